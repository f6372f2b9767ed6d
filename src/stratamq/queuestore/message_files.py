"""Loading the message store's files at start: footers where files are sealed, a scan where one is not.

A file that is not sealed is scanned, cut off behind its last whole record, and sealed, so that no start ever scans it
again. Files inside the range that an older one covers are left-overs of an interrupted collection and are removed.
"""

from __future__ import annotations

import logging
import os
from array import array

from stratamq.errors import CorruptionError
from stratamq.files.durable import read_file, replace_file
from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_messages import (
    TRAILER,
    MessageTable,
    StoredFile,
    StoredTables,
    decode_footer,
    decode_tables,
    decode_trailer,
    encode_footer,
    encode_tables,
    scan_records,
)
from stratamq.queuestore import layout
from stratamq.queuestore.message_store import MessageFile, MessageStore
from stratamq.queuestore.types import Progress

_logger = logging.getLogger(__name__)


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
        if not table.ids:
            fs.remove(path)
            continue
        files.append(MessageFile(number, table.ids[0], table, array("I", bytes(4 * len(table.ids))), sealed=True))
        files[-1].covers = covered
        if progress is not None:
            progress("reading message files", done + 1, len(numbers))
    store.set_files(files)
    store.next_number = covered + 1
    store.next_id = files[-1].table.ids[-1] + 1 if files else 1
    return scanned


def write_recovery(fs: FileSystem, directory: str, store: MessageStore, batch: int) -> None:
    """Write the recovery file of a clean stop. Raises OSError."""
    files = [StoredFile(file.number, file.covers, file.first_id, file.table, file.refs) for file in store.files]
    data = encode_tables(StoredTables(batch, store.next_id, store.next_number, files))
    replace_file(os.path.join(directory, layout.RECOVERY), data, filesystem=fs)


def take_recovery(fs: FileSystem, directory: str, store: MessageStore, batch: int) -> bool:
    """Fill the store from the recovery file of a clean stop and remove that file; False when there is none to trust.

    Raises OSError.
    """
    path = os.path.join(directory, layout.RECOVERY)
    data = read_file(path, filesystem=fs)
    if data is None:
        return False
    try:
        tables: StoredTables | None = decode_tables(data, path=path)
    except CorruptionError as error:
        _logger.warning("the recovery file is not usable, the message files are read instead: %s", error)
        tables = None
    fs.remove(path)
    fs.sync_directory(directory)
    if tables is None or tables.batch != batch:
        return False
    numbers = layout.list_numbered(fs, store.directory, layout.MESSAGE_SUFFIX)
    if not {file.number for file in tables.files} <= set(numbers):
        return False
    files = []
    for number, covers, first_id, table, refs in tables.files:
        file = MessageFile(number, first_id, table, refs, sealed=True)
        file.covers = covers
        files.append(file)
    store.set_files(files)
    store.next_id, store.next_number = tables.next_id, tables.next_number
    return True


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
        fs.sync(fd)
        fs.write(fd, [encode_footer(table, number)], end)
        fs.sync(fd)
    finally:
        fs.close(fd)
    return table
