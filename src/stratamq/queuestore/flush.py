"""Moving recent messages from journal and memory into segments, in bounded steps, and telling the manifest.

A round begins when the journal or the recent messages outgrow their bound, or files wait to be removed. Its steps write
chunks of one queue after the other; a chunk that is written frees the memory at once, because the journal still holds
the messages. When a queue has nothing recent left, its records go to the manifest, stamped with the newest batch: from
then on recovery passes over older journal frames for this queue. Journal files that no queue needs are removed.

Order on the disk within a step: journal and bodies, segment files and their directories, then the manifest, and only
after that are files removed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.config import QueueStoreConfig
from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_manifest import (
    HAS_STORED,
    HAS_TRANSIENT,
    DeletedRecord,
    DroppedRecord,
    ManifestRecord,
    QueueRecord,
    SegmentRecord,
)
from stratamq.formats.queue_segment import CHUNK, Entry, bodies_offset, encode_chunk
from stratamq.queuestore import layout
from stratamq.queuestore.journal import Journal
from stratamq.queuestore.manifest import Manifest
from stratamq.queuestore.queue import RECENT_COST, Queue, Shared
from stratamq.queuestore.segment import BODY_HERE, SURVIVES, Chunk, Segment
from stratamq.queuestore.types import GONE

QUEUES_A_STEP: Final = 64
"""Most queues that one step tells the manifest of."""
_GONE_ONLY: Final = bytes([1 if state == GONE else 0 for state in range(256)])


class FlushWork(NamedTuple):
    """What one step wrote: files and directories to sync, records for the manifest, paths to remove after that."""

    paths: Sequence[str]
    directories: Sequence[str]
    records: Sequence[ManifestRecord]
    removals: Sequence[str]
    deleted: Sequence[int]
    low: int = 0
    """Oldest batch that recovery needs besides the manifest; 0 when this step tells the manifest nothing."""


class Flusher:
    """Decides what to flush and writes it. Not thread-safe."""

    def __init__(
        self, fs: FileSystem, config: QueueStoreConfig, shared: Shared, journal: Journal, manifest: Manifest
    ) -> None:
        self._fs = fs
        self._config = config
        self._shared = shared
        self._journal = journal
        self._manifest = manifest
        self._goal = 0
        """Queues with journaled changes up to this batch are flushed in the round that runs."""
        self._paths: dict[str, None] = {}
        self._directories: dict[str, None] = {}
        self._known: set[str] = set()

    def is_due(self) -> bool:
        """Whether there is something to do."""
        return bool(self._shared.deleted) or bool(self._candidates())

    def flush_all(self) -> None:
        """Let the round that runs now cover every queue."""
        self._journal.roll()
        self._goal = self._shared.batch

    def _candidates(self) -> list[Queue]:
        shared = self._shared
        if self._journal.size > self._config.queue_index_journal_bytes_max // 2 and self._goal < shared.batch - 1:
            oldest = next(iter(shared.dirty.values()), None)
            if oldest is None or oldest.dirty_batch > self._goal:
                self._journal.roll()
                self._goal = shared.batch - 1
        found: dict[int, Queue] = {}
        for queue in shared.dirty.values():  # the oldest first
            if queue.dirty_batch > self._goal or len(found) == QUEUES_A_STEP:
                break
            found[queue.id] = queue
        if not found and shared.recent_bytes > self._config.recent_bytes_max:
            fullest = max(shared.recent_queues.values(), key=_recent_entries, default=None)
            if fullest is not None:
                found[fullest.id] = fullest
        if not found:
            found = dict(shared.dropping)
        return list(found.values())

    def step(self) -> FlushWork | None:
        """Write the next chunks. Everything must be committed. None when nothing is to be done. Raises OSError."""
        budget = self._config.maintenance_bytes
        finished: list[Queue] = []
        for queue in self._candidates():
            budget -= self._write_recent(queue, budget)
            if budget <= 0:
                break
            finished.append(queue)
            if len(finished) >= QUEUES_A_STEP:
                break
        deleted = list(self._shared.deleted)
        if not finished and not deleted:
            return FlushWork((), (), (), (), ()) if budget <= 0 else None
        return self._finish(finished, deleted)

    def _finish(self, queues: Sequence[Queue], deleted: Sequence[int]) -> FlushWork:
        shared = self._shared
        index = shared.index
        records: list[ManifestRecord] = []
        removals: list[str] = []
        for queue in queues:
            shared.dirty.pop(queue.id, None)
            shared.recent_queues.pop(queue.id, None)
            shared.dropping.pop(queue.id, None)
            for segment in queue.dropped:
                removals.append(index.path_of(queue.id, segment))
            if queue.durable:
                records += self._records_of(queue)
            queue.dropped.clear()
            queue.dirty_batch = -1
        for queue_id in deleted:
            if self._manifest.has(queue_id):
                records.append(DeletedRecord(queue_id))
            del shared.deleted[queue_id]
        low = self.low() if deleted or any(queue.durable for queue in queues) else 0
        work = FlushWork(list(self._paths), list(self._directories), records, removals, deleted, low)
        self._paths.clear()
        self._directories.clear()
        return work

    def _records_of(self, queue: Queue) -> list[ManifestRecord]:
        queue.stamp = self._shared.batch - 1
        records: list[ManifestRecord] = [QueueRecord(queue.id, queue.name, queue.next_seq, queue.mark, queue.stamp)]
        for segment in queue.dropped:
            if self._manifest.has_segment(queue.id, segment.number) and segment.number not in queue.segments:
                records.append(DroppedRecord(queue.id, segment.number))
        for segment in queue.segments.values():
            if segment.dirty and segment.flushed > segment.first:
                segment.dirty = False
                records.append(segment_record(queue, segment))
        return records

    def _write_recent(self, queue: Queue, budget: int) -> int:
        """Write a queue's recent entries until ``budget`` is used up; returns how much was used."""
        used = 0
        for segment in list(queue.segments.values()):
            if not segment.contents:
                continue
            if not segment.live:
                queue.drop_idle(segment)
                continue
            while segment.contents:
                if used >= budget:
                    return used
                used += self._write_chunk(queue, segment, budget - used)
        return used

    def _write_chunk(self, queue: Queue, segment: Segment, budget: int) -> int:
        count, cost = 0, 0
        while count < len(segment.contents) and cost < budget:
            cost += segment.sizes[count] + RECENT_COST
            count += 1
        path = self._shared.index.path_of(queue.id, segment)
        first = segment.flushed
        entries, bodies = recent_entries(segment, count)
        parts = encode_chunk(first, entries, bodies)
        handles = self._shared.index.handles
        if not segment.file_bytes:
            self._make_directory(queue.id)
            handles.create(path, 0)
        self._fs.write(handles.get(path), parts, segment.file_bytes)
        segment.chunks.append(Chunk(first, count, segment.file_bytes))
        segment.file_bytes += sum(map(len, parts))
        for entry in entries:
            if entry.kind and not entry.kind & BODY_HERE:
                segment.stored = True
            if entry.kind and not entry.kind & SURVIVES:
                segment.transient = True
        self._shared.index.extend(path, segment, parts[0][CHUNK.size :])
        self._shared.recent_bytes -= segment.drop_recent(first + count) + RECENT_COST * count
        segment.dirty = True
        if queue.durable:
            self._paths[path] = None
        return cost

    def _make_directory(self, queue_id: int) -> None:
        directory = self._shared.index.queue_directory(queue_id)
        if directory not in self._known and self._fs.stat(directory) is None:
            self._fs.make_directory(directory)
            self._directories[self._shared.index.directory] = None
        self._known.add(directory)
        self._directories[directory] = None

    def remove(self, work: FlushWork) -> None:
        """The manifest is synced: remove what it does not name any more. Raises OSError."""
        for path in work.removals:
            self._shared.index.handles.forget(path)
            if self._fs.stat(path) is not None:
                self._fs.remove(path)
        for queue_id in work.deleted:
            directory = self._shared.index.queue_directory(queue_id)
            self._known.discard(directory)
            layout.wipe(self._fs, directory)
        self._journal.remove_through(work.low - 1)

    def low(self) -> int:
        """The oldest batch that recovery needs besides the manifest."""
        oldest = next(iter(self._shared.dirty.values()), None)
        low = self._shared.batch if oldest is None else oldest.dirty_batch
        return min([low, *self._shared.deleted.values()])


def _recent_entries(queue: Queue) -> int:
    return sum([len(segment.contents) for segment in queue.segments.values()])


def recent_entries(segment: Segment, count: int) -> tuple[list[Entry], list[bytes]]:
    """The first ``count`` recent entries of a segment as index entries with their bodies; gone ones as gaps."""
    entries: list[Entry] = []
    bodies: list[bytes] = []
    at = bodies_offset(segment.file_bytes, count)
    gap = Entry(0, 0, 0, 0, 0, 0)
    rows = zip(
        segment.contents[:count], segment.kinds, segment.priorities, segment.sizes, segment.expiries, strict=False
    )
    for content, kind, priority, size, expiry in rows:
        if content is None:
            entries.append(gap)
        elif type(content) is int:
            entries.append(Entry(kind, priority, size, 0, content, expiry))
        else:
            assert isinstance(content, bytes)
            entries.append(Entry(kind, priority, size, zlib.crc32(content), at, expiry))
            bodies.append(content)
            at += size
    return entries, bodies


def segment_record(queue: Queue, segment: Segment) -> SegmentRecord:
    """What the manifest says of a segment that has nothing recent."""
    gone = segment.states.translate(_GONE_ONLY) if segment.live < len(segment.states) else b""
    flags = (HAS_STORED if segment.stored else 0) | (HAS_TRANSIENT if segment.transient else 0)
    return SegmentRecord(
        queue.id,
        segment.number,
        segment.first,
        len(segment.states),
        segment.live,
        segment.live_bytes,
        segment.file_bytes,
        flags,
        segment.chunks,
        bytes(gone),
    )
