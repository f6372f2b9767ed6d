"""The manifest file: the newest record of every durable queue and segment, appended to, now and then written anew.

A frame is appended only when everything that it names is on the disk, and the one before it as well. So a damaged frame
with a good one behind it is corruption, and a damaged last one is a write that a crash cut off: the journal still holds
what it said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stratamq.errors import ChecksumMismatch
from stratamq.files.durable import replace_file
from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_frame import (
    MANIFEST_MAGIC,
    FileHeader,
    decode_file_header,
    encode_file_header,
    encode_frame,
    scan_frames,
)
from stratamq.formats.queue_manifest import (
    DroppedRecord,
    ManifestRecord,
    QueueRecord,
    SegmentRecord,
    StoreRecord,
    decode_manifest_records,
    encode_manifest_record,
)
from stratamq.queuestore.journal import random_salt

REWRITE_SLACK: Final = 1 << 20
"""The file may grow to twice what it holds plus this, before it is written anew."""


class ManifestWrite(NamedTuple):
    """Bytes that one step adds: the records, and whether the file is to be written anew with everything."""

    payload: bytes
    anew: bool


class Manifest:
    """The manifest of one store, and its newest records by queue and segment, encoded."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self.store: StoreRecord | None = None
        self._fs = fs
        self._queues: dict[int, bytes] = {}
        self._segments: dict[int, dict[int, bytes]] = {}
        self._header = FileHeader(0, 0, 1)
        self._next_frame = 1
        self._end = 0
        self._full_bytes = 0
        self._exists = False

    def load(self) -> Iterator[ManifestRecord]:
        """Read the file; yields the newest record of each queue, each followed by its segments in ascending order.

        A frame that was cut off is cut off for good. Raises CorruptionError, OSError.
        """
        found = self._fs.stat(self.path)
        if found is None:
            return
        fd = self._fs.open(self.path)
        try:
            data = self._fs.read(fd, found.size, 0)
            header = decode_file_header(data, MANIFEST_MAGIC, path=self.path)
            if header is None:
                raise ChecksumMismatch(self.path, 0, "a manifest", "zeros")
            scan = scan_frames(data, header)
            expected = header.first + len(scan.frames)
            if scan.durable_beyond >= expected or not scan.frames:
                raise ChecksumMismatch(self.path, scan.end, f"frame {expected}", "bytes that are no frame")
            if scan.end < len(data):
                self._fs.truncate(fd, scan.end)
                self._fs.sync(fd)
        finally:
            self._fs.close(fd)
        decoded: dict[tuple[int, int], SegmentRecord] = {}
        queues: dict[int, QueueRecord] = {}
        for frame in scan.frames:
            for record in decode_manifest_records(data, frame.start, frame.end, path=self.path):
                self.note(record)
                if isinstance(record, QueueRecord):
                    queues[record.queue] = record
                elif isinstance(record, SegmentRecord):
                    decoded[record.queue, record.number] = record
        self._header, self._next_frame, self._end, self._exists = header, expected, scan.end, True
        self._full_bytes = scan.frames[0].end
        for queue_id in sorted(self._queues):
            yield queues[queue_id]
            for number in sorted(self._segments.get(queue_id, ())):
                yield decoded[queue_id, number]

    def note(self, record: ManifestRecord) -> bytes:
        """Take a record as the newest of its kind; returns its bytes."""
        raw = encode_manifest_record(record)
        if isinstance(record, StoreRecord):
            self.store = record
        elif isinstance(record, QueueRecord):
            self._queues[record.queue] = raw
        elif isinstance(record, SegmentRecord):
            self._segments.setdefault(record.queue, {})[record.number] = raw
        elif isinstance(record, DroppedRecord):
            self._segments.get(record.queue, {}).pop(record.number, None)
        else:
            self._queues.pop(record.queue, None)
            self._segments.pop(record.queue, None)
        return raw

    def prepare(self, records: Sequence[ManifestRecord], *, anew: bool = False) -> ManifestWrite:
        """Note the records; returns what `write` has to write for them."""
        parts = [self.note(record) for record in records]
        size = sum(map(len, parts))
        if anew or not self._exists or self._end + size > 2 * self._full_bytes + REWRITE_SLACK:
            parts = [] if self.store is None else [encode_manifest_record(self.store)]
            for queue_id, raw in self._queues.items():
                parts.append(raw)
                parts += self._segments.get(queue_id, {}).values()
            anew = True
        return ManifestWrite(b"".join(parts), anew)

    def write(self, work: ManifestWrite) -> None:
        """Write and sync. Blocks; may run in any thread, one at a time. Raises OSError."""
        if work.anew:
            header = FileHeader(random_salt(), self._header.number + 1, self._next_frame)
            data = encode_file_header(MANIFEST_MAGIC, header)
            data += encode_frame(header.salt, self._next_frame, self._next_frame - 1, [work.payload])
            replace_file(self.path, data, filesystem=self._fs)
            self._header, self._end, self._full_bytes, self._exists = header, len(data), len(data), True
        else:
            frame = encode_frame(self._header.salt, self._next_frame, self._next_frame - 1, [work.payload])
            fd = self._fs.open(self.path)
            try:
                self._fs.write(fd, [frame], self._end)
                self._fs.sync(fd)
            finally:
                self._fs.close(fd)
            self._end += len(frame)
        self._next_frame += 1

    @property
    def directory(self) -> str:
        """Where the file lies."""
        return os.path.dirname(self.path)

    def has(self, queue_id: int) -> bool:
        """Whether the manifest names this queue."""
        return queue_id in self._queues

    def has_segment(self, queue_id: int, number: int) -> bool:
        """Whether the manifest names this segment."""
        return number in self._segments.get(queue_id, {})
