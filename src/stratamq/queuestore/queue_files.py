"""Making queues from the manifest at start, and counting the references that their segments hold."""

from __future__ import annotations

import logging
import os

import numpy as np

from stratamq.errors import ConfigError, CorruptionError
from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_manifest import HAS_STORED, HAS_TRANSIENT, QueueRecord, SegmentRecord
from stratamq.formats.queue_segment import ENTRY_COLUMNS
from stratamq.queuestore import layout
from stratamq.queuestore.manifest import Manifest
from stratamq.queuestore.queue import Queue, Shared
from stratamq.queuestore.segment import IN_PERSISTENT, SURVIVES, Chunk, Segment
from stratamq.queuestore.types import GONE, READY

_STATES = bytes([READY, GONE]) + bytes(254)
_logger = logging.getLogger(__name__)


def load_queues(shared: Shared, manifest: Manifest, queues: list[Queue]) -> int:
    """Fill ``queues`` with what the manifest names; returns how many segments cannot be read.

    Raises CorruptionError (the manifest itself), ConfigError (another segment length), OSError.
    """
    damaged = 0
    segments: list[Segment] = []
    for record in manifest.load():
        if isinstance(record, QueueRecord):
            _adopt(queues, segments)
            queue = Queue(shared, record.queue, record.name, True)
            queue.next_seq, queue.mark, queue.stamp = record.next_seq, record.mark, record.stamp
            queues.append(queue)
        elif isinstance(record, SegmentRecord):
            segment = segment_of(record)
            segments.append(segment)
            if segment.transient:
                damaged += not drop_transient(shared, record.queue, segment)
    _adopt(queues, segments)
    store = manifest.store
    if store is not None and store.entry_count != shared.entry_count:
        raise ConfigError("queue_index_segment_entry_count", shared.entry_count, f"{store.entry_count}, as it was made")
    return damaged


def _adopt(queues: list[Queue], segments: list[Segment]) -> None:
    if queues:
        queues[-1].adopt(segments)
        for segment in [segment for segment in segments if not segment.live]:
            queues[-1].drop_idle(segment)
    segments.clear()


def segment_of(record: SegmentRecord) -> Segment:
    """A segment as the manifest describes it, everything flushed."""
    segment = Segment(record.number, record.first)
    gone = record.gone or bytes(record.entries)
    segment.states = bytearray(gone.translate(_STATES))
    segment.live = record.live
    segment.live_bytes = record.live_bytes
    segment.flushed = record.first + record.entries
    segment.chunks = [Chunk(*chunk) for chunk in record.chunks]
    segment.file_bytes = record.file_bytes
    segment.stored = bool(record.flags & HAS_STORED)
    segment.transient = bool(record.flags & HAS_TRANSIENT)
    return segment


def drop_transient(shared: Shared, queue_id: int, segment: Segment) -> bool:
    """Forget the messages of a segment that do not survive a restart; False when its entries cannot be read."""
    try:
        rows = np.frombuffer(shared.index.table(queue_id, segment), ENTRY_COLUMNS)[: len(segment.states)]
    except CorruptionError as error:
        _logger.error("index segment %s cannot be read: %s", shared.index.path_of(queue_id, segment), error)
        return False
    states = np.frombuffer(segment.states, np.uint8).copy()
    lost = (states != GONE) & (rows["kind"] & SURVIVES == 0)
    states[lost] = GONE
    segment.states = bytearray(states.tobytes())
    segment.live -= int(lost.sum())
    segment.live_bytes -= int(rows["size"][lost].sum())
    return True


def count_references(shared: Shared, queues: list[Queue]) -> int:
    """Count which bodies the segments name; returns how many segments cannot be read. Raises OSError."""
    damaged = 0
    found = []
    for queue in queues:
        for segment in queue.segments.values():
            if not segment.stored:
                continue
            try:
                rows = np.frombuffer(shared.index.table(queue.id, segment), ENTRY_COLUMNS)[: len(segment.states)]
            except CorruptionError as error:
                damaged += 1
                _logger.error("index segment %s cannot be read: %s", shared.index.path_of(queue.id, segment), error)
                continue
            named = (np.frombuffer(segment.states, np.uint8) != GONE) & (rows["kind"] & IN_PERSISTENT != 0)
            found.append(rows["locator"][named])
    if found:
        shared.persistent.refer_many(np.concatenate(found).astype(np.uint64))
    return damaged


def remove_orphans(fs: FileSystem, shared: Shared, queues: list[Queue]) -> None:
    """Remove index files that no queue knows: a crash came before the manifest learned of them. Raises OSError."""
    kept = {os.path.basename(shared.index.queue_directory(queue_id)) for queue_id in shared.deleted}
    known: dict[str, set[str]] = {}
    for queue in queues:
        segments = [*queue.segments.values(), *queue.dropped]
        names = {
            os.path.basename(shared.index.path_of(queue.id, segment)) for segment in segments if segment.file_bytes
        }
        known[os.path.basename(shared.index.queue_directory(queue.id))] = names
    directory = shared.index.directory
    for name in fs.list(directory):
        path = os.path.join(directory, name)
        if name in kept:
            continue
        if name not in known:
            layout.wipe(fs, path)
            continue
        for file in fs.list(path):
            if file not in known[name]:
                fs.remove(os.path.join(path, file))
