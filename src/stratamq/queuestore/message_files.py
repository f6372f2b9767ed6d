"""Loading the message store's files at start: footers where files are sealed, a scan where one is not.

A file that is not sealed is scanned, cut off behind its last whole record, and sealed, so that no start ever scans it
again. Files inside the range that an older one covers are left-overs of an interrupted collection and are removed.
"""

from __future__ import annotations

from array import array

from stratamq.errors import CorruptionError
from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_messages import (
    TRAILER,
    MessageTable,
    decode_footer,
    decode_trailer,
    encode_footer,
    scan_records,
)
from stratamq.queuestore import layout
from stratamq.queuestore.message_store import MessageFile, MessageStore
from stratamq.queuestore.types import Progress


def load_messages(fs: FileSystem, store: MessageStore, progress: Progress | None) -> int:
    """Fill the store with what its directory holds, all reference counts 0; returns how many files were scanned.

    Raises OSError.
    """
    for name in fs.list(store.directory):
        if name.endswith(layout.COLLECTED_SUFFIX):
            fs.remove(f"{store.directory}/{name}")
    numbers = layout.list_numbered(fs, store.directory, layout.MESSAGE_SUFFIX)
    files: list[MessageFile] = []
    scanned = 0
    covered = -1
    for done, number in enumerate(numbers):
        path = store.path_of(number)
        if number <= covered:
            fs.remove(path)
            continue
        table, covers = read_footer(fs, path) or (None, number)
        if table is None:
            table = scan_file(fs, path)
            scanned += 1
        covered = max(covers, number)
        first = table.ids[0] if table.ids else (files[-1].table.ids[-1] + 1 if files and files[-1].table.ids else 1)
        files.append(MessageFile(number, first, table, array("I", bytes(4 * len(table.ids))), sealed=True))
        if progress is not None:
            progress("reading message files", done + 1, len(numbers))
    store.set_files(files)
    store.next_number = covered + 1
    last = [file.table.ids[-1] for file in files if file.table.ids]
    store.next_id = last[-1] + 1 if last else 1
    return scanned


def read_footer(fs: FileSystem, path: str) -> tuple[MessageTable, int] | None:
    """Table and covered range out of a sealed file's footer; None when the file has to be scanned. Raises OSError."""
    found = fs.stat(path)
    size = found.size if found is not None else 0
    if size < TRAILER.size:
        return None
    fd = fs.open(path, writable=False)
    try:
        trailer = decode_trailer(fs.read(fd, TRAILER.size, size - TRAILER.size), size, path=path)
        if trailer is None:
            return None
        start = size - TRAILER.size - trailer[0]
        return decode_footer(fs.read(fd, size - start, start), path=path, offset=start)
    except CorruptionError:
        return None  # the records themselves still say what there is
    finally:
        fs.close(fd)


def scan_file(fs: FileSystem, path: str) -> MessageTable:
    """Scan a file record by record, cut off what is not whole, seal it and sync it. Raises OSError."""
    found = fs.stat(path)
    fd = fs.open(path)
    try:
        table, end = scan_records(fs.read(fd, found.size if found is not None else 0, 0), path=path)
        number = int(path.rpartition("/")[2].removesuffix(layout.MESSAGE_SUFFIX))
        fs.truncate(fd, end)
        fs.write(fd, [encode_footer(table, number)], end)
        fs.sync(fd)
    finally:
        fs.close(fd)
    return table
