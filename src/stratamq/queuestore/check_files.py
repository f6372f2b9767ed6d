"""The bytes of a queue store's files against their checksums: message files record by record, index segments chunk by
chunk and body by body. Reads about 1 MiB at a time, or one message where that is longer."""

from __future__ import annotations

import os
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from stratamq.errors import CorruptionError
from stratamq.files.filesystem import FileSystem
from stratamq.findings import Findings
from stratamq.formats.queue_messages import ENTRY as FOOTER_ROW
from stratamq.formats.queue_messages import (
    RECORD,
    RECORD_MAGIC,
    TRAILER,
    TRAILER_MAGIC,
    MessageTable,
    decode_record,
    record_bytes,
)
from stratamq.formats.queue_segment import ENTRY_COLUMNS
from stratamq.queuestore import layout
from stratamq.queuestore.index_files import read_chunk
from stratamq.queuestore.message_files import read_footer
from stratamq.queuestore.message_store import DEAD
from stratamq.queuestore.queue import Queue
from stratamq.queuestore.segment import BODY_HERE, IN_PERSISTENT, IN_TRANSIENT, SURVIVES, Chunk, Segment
from stratamq.queuestore.types import GONE, Progress
from stratamq.queuestore.view import View
from stratamq.units import MiB

BLOCK_BYTES: Final = MiB
MISSES_MAX: Final = 1_000
"""So many records that prove bad end the search for good ones behind one: each may cost a checksum of the file."""
HELD_BACK: Final = "the broker holds this message back and logs it, others are served; restore the file from a copy"
NOBODY: Final = "nobody refers to it, so nothing is lost; it goes when its file is collected"
PLACES: Final = (BODY_HERE, IN_PERSISTENT, IN_TRANSIENT)
KINDS: Final = frozenset({0, *PLACES, *(place | SURVIVES for place in PLACES)})


class Window:
    """A file read from front to back in blocks; what lies in the current block costs no read."""

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self._start = 0
        self._data = b""
        self.bytes_read = 0

    def take(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes at ``offset``; fewer at the end of the file. Raises OSError."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            self._data = self._fs.read(self._fd, max(length, BLOCK_BYTES), offset)
            self._start, at = offset, 0
            self.bytes_read += len(self._data)
        return self._data[at : at + length]


class MessageFilePass:
    """Checks the files of the persistent message store."""

    def __init__(self, fs: FileSystem, findings: Findings, progress: Progress | None) -> None:
        self._fs = fs
        self._findings = findings
        self._tell = progress or (lambda what, done, total: None)
        self.files = 0
        self.records = 0
        self.bytes_read = 0

    def check(self, view: View) -> None:
        """All files that a start would use, with what it knows of references."""
        store = view.shared.persistent
        cuts = {cut.path: cut for cut in view.fs.cut}
        last_id = 0
        for done, file in enumerate(store.files):
            path = store.path_of(file.number)
            self._tell("checking message files", done, len(store.files))
            if path in cuts or read_footer(self._fs, path) is None:
                newest = file is store.files[-1]
                last = file.table.ids[-1] if file.table.ids else last_id
                self._check_unsealed(path, file.size, last, is_newest=newest)
            if file.table.ids[0] <= last_id:
                expected, advice = f"ids above {last_id}", "messages in it may not be found; restore it from a copy"
                self._findings.error("message-order", path, 0, expected, file.table.ids[0], advice)
            last_id = max(last_id, file.table.ids[-1])
            live = np.frombuffer(file.refs, np.uint32) != DEAD
            self._check_records(path, file.table, live)
        known = {store.path_of(file.number) for file in store.files}
        for path, cut in cuts.items():
            if path.endswith(layout.MESSAGE_SUFFIX) and path not in known:  # not one good record at its front
                self._check_unsealed(path, cut.start, 0, is_newest=False)

    def check_without_store(self, directory: str) -> None:
        """All files by their footers, where nothing is known of references; unsealed ones are passed over."""
        if self._fs.stat(directory) is None:
            return
        for number in layout.list_numbered(self._fs, directory, layout.MESSAGE_SUFFIX):
            path = layout.numbered(directory, number, layout.MESSAGE_SUFFIX)
            footer = read_footer(self._fs, path) if self._fs.stat(path) is not None else None
            if footer is not None:
                self._check_records(path, footer[0], None)

    def _check_records(self, path: str, table: MessageTable, live: npt.NDArray[np.bool_] | None) -> None:
        self.files += 1
        self.records += len(table.ids)
        fd = self._fs.open(path, writable=False)
        window = Window(self._fs, fd)
        end = 0
        try:
            for row, (message_id, offset, length) in enumerate(zip(*table, strict=True)):
                size = record_bytes(length)
                if offset != end:
                    advice = "the footer's table is wrong though its checksum is right; keep a copy and report it"
                    self._findings.error("footer-row", path, offset, f"record {message_id} at {end}", offset, advice)
                end = offset + size
                try:
                    found = decode_record(window.take(offset, size), message_id, path=path, offset=offset)
                    if len(found) != length:
                        raise CorruptionError(path, offset, f"{length} bytes of message", f"{len(found)}")
                except CorruptionError as error:
                    note = self._findings.error if live is None or live[row] else self._findings.warn
                    advice = HELD_BACK if live is None or live[row] else NOBODY
                    note("message-record", path, error.offset, error.expected, error.found, advice)
        finally:
            self._fs.close(fd)
        self.bytes_read += window.bytes_read

    def _check_unsealed(self, path: str, end: int, last_id: int, *, is_newest: bool) -> None:
        """A file without a good footer, whose records end at ``end``: torn by a crash, or damaged?"""
        found = self._fs.stat(path)
        rest = found.size - end if found is not None else 0
        if rest <= 0:
            advice = "a crash came before its footer; a start after it scans the file and writes one"
            self._findings.inform("footer-missing", path, end, "a footer", "the end of the file", advice)
            return
        lost = self._records_behind(path, end, last_id)
        if lost:
            at, count = lost
            advice = "a start cuts the file off here, and what is behind is lost; restore it from a copy before that"
            what = f"bytes that are none, and {count} good records from {at} on"
            self._findings.error("message-record", path, end, "a record", what, advice)
        elif self._ends_like_footer(path):
            advice = "nothing is lost: a start after a crash scans the file and writes a new footer"
            self._findings.warn("footer", path, end, "a footer with a right checksum", f"{rest} bytes", advice)
        else:
            advice = "writes that a crash cut off, and that were never confirmed, look like this; a start cuts them off"
            note = self._findings.inform if is_newest else self._findings.warn
            note("message-tail", path, end, "the end of the file, or a footer", f"{rest} bytes", advice)

    def _ends_like_footer(self, path: str) -> bool:
        found = self._fs.stat(path)
        size = found.size if found is not None else 0
        fd = self._fs.open(path, writable=False)
        try:
            tail = self._fs.read(fd, TRAILER.size, max(0, size - TRAILER.size))
        finally:
            self._fs.close(fd)
        if len(tail) < TRAILER.size:
            return False
        magic, _, length, _ = TRAILER.unpack(tail)
        return bool(magic == TRAILER_MAGIC or (length % FOOTER_ROW.itemsize == 0 and 0 < length < size))

    def _records_behind(self, path: str, end: int, last_id: int) -> tuple[int, int] | None:
        """Where the first good record behind ``end`` is, and how many there are (as far as it is searched)."""
        found = self._fs.stat(path)
        size = found.size if found is not None else 0
        first, count, at, misses = -1, 0, end + 1, 0
        fd = self._fs.open(path, writable=False)
        window = Window(self._fs, fd)
        try:
            while misses < MISSES_MAX and (at := _find(window, at)) >= 0:
                _, _, message_id, length, _ = RECORD.unpack(window.take(at, RECORD.size).ljust(RECORD.size, b"\0"))
                bytes_of = record_bytes(length)
                if message_id > last_id and at + bytes_of <= size:
                    try:
                        decode_record(window.take(at, bytes_of), message_id, path=path, offset=at)
                    except CorruptionError:
                        misses += 1
                    else:
                        first, count = (at if first < 0 else first), count + 1
                        at += bytes_of
                        continue
                at += 1
        finally:
            self._fs.close(fd)
        return (first, count) if count else None


def _find(window: Window, at: int) -> int:
    """Where a record may begin, from ``at`` on: records lie at multiples of 8. -1 for nowhere."""
    at += -at % 8
    while True:
        block = window.take(at, BLOCK_BYTES)
        if len(block) < RECORD.size:
            return -1
        inside = block.find(RECORD_MAGIC)
        while inside >= 0 and inside % 8:
            inside = block.find(RECORD_MAGIC, inside + 1)
        if inside >= 0:
            return at + inside
        at += len(block) - len(block) % 8 or 8


class SegmentPass:
    """Checks the index segments of all queues."""

    def __init__(self, fs: FileSystem, findings: Findings, progress: Progress | None) -> None:
        self._fs = fs
        self._findings = findings
        self._tell = progress or (lambda what, done, total: None)
        self.segments = 0
        self.bytes_read = 0

    def check(self, view: View) -> None:
        """Every segment that manifest and journal name, as far as messages are left in it."""
        for done, queue in enumerate(view.found.queues):
            self._tell("checking queues", done, len(view.found.queues))
            for segment in queue.segments.values():
                self.segments += 1
                self._check_counts(view, queue, segment)
                if segment.chunks:
                    self._check_file(view, queue, segment)

    def _check_counts(self, view: View, queue: Queue, segment: Segment) -> None:
        """The manifest's own figures against its bits and its chunks."""
        path = view.shared.index.path_of(queue.id, segment)
        where = f"queue {queue.name!r}, segment {segment.number}"
        advice = "the manifest contradicts itself though its checksums are right; keep a copy and report it"
        alive = len(segment.states) - segment.states.count(GONE)
        if alive != segment.live:
            self._findings.error("segment-counts", path, 0, f"{segment.live} messages, {where}", alive, advice)
        expected = segment.first
        for first, count, _ in segment.chunks:
            if first != expected:
                self._findings.error("segment-counts", path, 0, f"a chunk from {expected} on, {where}", first, advice)
            expected = first + count

    def _check_file(self, view: View, queue: Queue, segment: Segment) -> None:
        path = view.shared.index.path_of(queue.id, segment)
        found = self._fs.stat(path)
        if found is None:
            advice = f"its {segment.live} messages are lost; restore the file from a copy"
            self._findings.error("segment-missing", path, 0, f"{segment.file_bytes} bytes", "no file", advice)
            return
        if found.size < segment.file_bytes:
            advice = "messages behind the end are held back; restore the file from a copy"
            expected = f"{segment.file_bytes} bytes"
            self._findings.error("segment-length", path, found.size, expected, f"{found.size} bytes", advice)
        fd = self._fs.open(path, writable=False)
        window = Window(self._fs, fd)
        try:
            for chunk in segment.chunks:
                self._check_chunk(view, queue, segment, chunk, path, fd, window)
        finally:
            self._fs.close(fd)
        self.bytes_read += window.bytes_read

    def _check_chunk(
        self, view: View, queue: Queue, segment: Segment, chunk: Chunk, path: str, fd: int, window: Window
    ) -> None:
        try:
            rows = np.frombuffer(read_chunk(self._fs, fd, path, chunk), ENTRY_COLUMNS)
        except CorruptionError as error:
            advice = "the broker holds the messages of this file back, and collects nothing; restore it from a copy"
            self._findings.error("index-chunk", path, error.offset, error.expected, error.found, advice)
            return
        at = chunk.first - segment.first
        live = np.frombuffer(segment.states, np.uint8)[at : at + len(rows)] != GONE
        rows = rows[: len(live)]
        columns = [rows[name].tolist() for name in ("kind", "size", "crc", "locator")]
        for kind, size, crc, locator, is_live in zip(*columns, live.tolist(), strict=True):
            if kind not in KINDS or (is_live and not kind):
                self._findings.error("index-entry", path, chunk.offset, "a kind of entry", f"kind {kind}", HELD_BACK)
            elif kind & BODY_HERE:
                self._check_body(path, window, locator, size, crc, is_live)
            elif is_live and kind & IN_PERSISTENT:
                self._check_reference(view, queue, locator, size, path, chunk.offset)

    def _check_body(self, path: str, window: Window, locator: int, size: int, crc: int, is_live: bool) -> None:
        body = window.take(locator, size)
        if len(body) == size and zlib.crc32(body) == crc:
            return
        expected = f"{size} bytes with checksum {crc:#x}"
        found = f"{len(body)} bytes with checksum {zlib.crc32(body):#x}"
        if is_live:
            self._findings.error("index-body", path, locator, expected, found, HELD_BACK)
        else:
            self._findings.warn("index-body", path, locator, expected, found, "the message was acknowledged already")

    def _check_reference(self, view: View, queue: Queue, message_id: int, size: int, path: str, offset: int) -> None:
        length = view.shared.persistent.length_of(message_id)
        if length == size:
            return
        folder = os.path.basename(view.shared.persistent.directory)
        expected = f"message {message_id} with {size} bytes in {folder}, for queue {queue.name!r}"
        found = "no such message" if length < 0 else f"{length} bytes"
        advice = "its message file is missing, cut short or damaged; " + HELD_BACK
        self._findings.error("message-missing", path, offset, expected, found, advice)
