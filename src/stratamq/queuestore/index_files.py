"""Reading segments of the queue index: entries by way of a bounded cache, bodies by way of one read-ahead window.

A table of entries is read and checked as a whole (512 KiB for a full segment) and kept until the cache is full; the
least recently used goes first. Bodies are read ahead, because queues are read in order.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from typing import Final

from stratamq.errors import ChecksumMismatch, TruncatedRecord
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.queue_segment import (
    CHUNK,
    ENTRY,
    Entry,
    check_chunk,
    decode_chunk_header,
    entry_at,
)
from stratamq.queuestore import layout
from stratamq.queuestore.segment import Chunk, Segment

READ_AHEAD: Final = 128 * 1024
"""Bytes of bodies read at a time."""


class IndexFiles:
    """The segment files of all queues. Not thread-safe."""

    def __init__(
        self, fs: FileSystem, directory: str, transient_directory: str, handles: HandleCache, cache_bytes_max: int
    ) -> None:
        self.directory = directory
        self.transient_directory = transient_directory
        self.fs = fs
        self.handles = handles
        self._cache_max = cache_bytes_max
        self._tables: OrderedDict[int, Segment] = OrderedDict()
        self.cache_bytes = 0
        self._window_path = ""
        self._window_of: Segment | None = None
        self._window_start = 0
        self._window = b""

    def queue_directory(self, queue_id: int) -> str:
        """Directory of a queue's segments."""
        directory = self.directory if queue_id < layout.TRANSIENT_IDS else self.transient_directory
        return os.path.join(directory, f"{queue_id:0{layout.DIGITS}d}")

    def path_of(self, queue_id: int, segment: Segment) -> str:
        """Path of a segment's file, named by its first sequence number."""
        name = f"{segment.first:020d}{layout.SEGMENT_SUFFIX}"
        return os.path.join(self.queue_directory(queue_id), name)

    def entry(self, queue_id: int, segment: Segment, seq: int) -> Entry:
        """What the index says of a flushed entry. Raises CorruptionError, OSError."""
        table = segment.table
        if table is None:
            table = self._load(queue_id, segment)
        elif len(self._tables) > 1:
            self._tables.move_to_end(id(segment))
        return entry_at(table, seq - segment.first)

    def table(self, queue_id: int, segment: Segment) -> bytes:
        """The rows of all flushed entries of a segment. Raises CorruptionError, OSError."""
        return segment.table if segment.table is not None else self._load(queue_id, segment)

    def body(self, queue_id: int, segment: Segment, entry: Entry) -> bytes:
        """A body that is kept in the index, checked. Raises CorruptionError, OSError."""
        at = entry.locator - self._window_start
        if segment is not self._window_of or at < 0 or at + entry.size > len(self._window):
            path = self.path_of(queue_id, segment)
            self._window = self.fs.read(self.handles.get(path), max(entry.size, READ_AHEAD), entry.locator)
            self._window_path, self._window_of, self._window_start, at = path, segment, entry.locator, 0
        content = self._window[at : at + entry.size]
        if len(content) < entry.size:
            found = f"{len(content)} bytes"
            raise TruncatedRecord(self._window_path, entry.locator, f"{entry.size} bytes", found)
        crc = zlib.crc32(content)
        if crc != entry.crc:
            raise ChecksumMismatch(self._window_path, entry.locator, hex(entry.crc), hex(crc))
        return content

    def extend(self, path: str, segment: Segment, rows: bytes) -> None:
        """Note rows that were just appended to a segment's file; what was read ahead of it is not true any more."""
        if path == self._window_path:
            self._forget_window()
        if segment.table is not None:
            segment.table += rows
            self.cache_bytes += len(rows)
            self._shrink(segment)

    def forget(self, queue_id: int, segment: Segment) -> None:
        """Let go of everything held for a segment."""
        if self._tables.pop(id(segment), None) is not None and segment.table is not None:
            self.cache_bytes -= len(segment.table)
        segment.table = None
        if segment.file_bytes:
            path = self.path_of(queue_id, segment)
            self.handles.forget(path)
            if path == self._window_path:
                self._forget_window()

    def _forget_window(self) -> None:
        self._window_path, self._window_of, self._window = "", None, b""

    def _load(self, queue_id: int, segment: Segment) -> bytes:
        path = self.path_of(queue_id, segment)
        try:
            fd = self.handles.get(path)
        except FileNotFoundError as error:
            raise TruncatedRecord(path, 0, f"{segment.file_bytes} bytes", "no file") from error
        table = segment.table = b"".join([read_chunk(self.fs, fd, path, chunk) for chunk in segment.chunks])
        self._tables[id(segment)] = segment
        self.cache_bytes += len(table)
        self._shrink(segment)
        return table

    def _shrink(self, keep: Segment) -> None:
        while self.cache_bytes > self._cache_max and len(self._tables) > 1:
            key, oldest = next(iter(self._tables.items()))
            if oldest is keep:
                self._tables.move_to_end(key)
                continue
            del self._tables[key]
            if oldest.table is not None:
                self.cache_bytes -= len(oldest.table)
                oldest.table = None


def read_chunk(fs: FileSystem, fd: int, path: str, chunk: Chunk) -> bytes:
    """The rows of one chunk, checked against its header. Raises CorruptionError, OSError."""
    first, count, offset = chunk
    data = fs.read(fd, CHUNK.size + ENTRY.size * count, offset)
    header = decode_chunk_header(data, path=path, offset=offset)
    rows = data[CHUNK.size :]
    check_chunk(header, rows, path=path, offset=offset)
    if header.first != first or header.entries != count:
        raise ChecksumMismatch(path, offset, f"entries {first} +{count}", f"{header.first} +{header.entries}")
    return rows
