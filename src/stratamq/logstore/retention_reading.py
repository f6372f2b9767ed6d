"""What retention reads of a store: when a file's successor was begun, where queues begin, what a group would lose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from stratamq.files.filesystem import FileSystem
from stratamq.formats.consume_queue import UNIT_BYTES, UNIT_DTYPE
from stratamq.formats.message import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from stratamq.logstore.batch_queue import BatchConsumeQueue
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.queue_table import QueueTable
from stratamq.logstore.reader import store_timestamp_at
from stratamq.logstore.retention_values import QueueEnds
from stratamq.logstore.types import QueueKey

_HEAD_BYTES: Final = 80
_BORN_HOST_V6: Final = 0x10


def first_record_ms(fs: FileSystem, path: str, base: int) -> int:
    """Store time of the record that a commit-log file begins with; 0 when it begins with none. Opens the file."""
    try:
        fd = fs.open(path, writable=False)
    except OSError:
        return 0
    try:
        head = fs.read(fd, _HEAD_BYTES, 0)
    except OSError:
        return 0
    finally:
        fs.close(fd)
    return store_ms_of(head, base)


def store_ms_of(head: bytes, physical_offset: int) -> int:
    """Store time in the first bytes of a record; 0 when they are no record of that place."""
    if len(head) < _HEAD_BYTES or SIZE_AND_MAGIC.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
        return 0
    if int.from_bytes(head[28:36], "big") != physical_offset:
        return 0
    at = 68 if head[39] & _BORN_HOST_V6 else 56
    return max(0, int.from_bytes(head[at : at + 8], "big", signed=True))


def queue_ends(queue: ConsumeQueue) -> QueueEnds:
    """A queue as the corrector wants it. Cost: one small read."""
    unit = queue.unit(queue.min_offset) if queue.min_offset < queue.written_offset else None
    first = unit.physical_offset if unit is not None and unit.is_valid and not unit.is_prefill else None
    return QueueEnds(queue.key, queue.min_offset, queue.written_offset, first)


class LiveQueues:
    """A `retention_losses.QueueReader` over an open store, on its thread."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues

    def keys(self) -> Iterable[QueueKey]:
        """All queues."""
        return (queue.key for queue in self._queues.values())

    def span(self, key: QueueKey) -> tuple[int, int] | None:
        queue = self._queues.get(key)
        return None if queue is None else (queue.min_offset, queue.written_offset)

    def physical_offset(self, key: QueueKey, offset: int) -> int | None:
        unit = self._queues[key].unit(offset)
        return unit.physical_offset if unit is not None and unit.is_valid else None

    def first_at(self, key: QueueKey, physical_offset: int) -> int:
        queue = self._queues[key]
        low, end = queue.min_offset, queue.written_offset
        return queue.first_offset_where(lambda unit: unit.physical_offset >= physical_offset, low, end)

    def measure(self, key: QueueKey, first_offset: int, end_offset: int) -> tuple[int, int]:
        queue = self._queues[key]
        first = queue.unit(first_offset)
        oldest = None if first is None else store_timestamp_at(self._log, first.physical_offset, first.size)
        if isinstance(queue, BatchConsumeQueue):
            return _batch_bytes(queue, first_offset, end_offset), oldest or 0
        return _plain_bytes(queue, first_offset, end_offset), oldest or 0


def _plain_bytes(queue: ConsumeQueue, first_offset: int, end_offset: int) -> int:
    """Bytes of the records of some messages, as far as their units are there."""
    size, at = 0, first_offset
    while at < end_offset:
        data = queue.read_units(at, end_offset - at)
        count = len(data) // UNIT_BYTES
        if not count:
            break
        size += int(np.frombuffer(data, UNIT_DTYPE, count)["size"].sum(dtype=np.int64))
        at += count
    return size


def _batch_bytes(queue: BatchConsumeQueue, first_offset: int, end_offset: int) -> int:
    """Likewise; a record counts as a whole when one of its messages does."""
    size, at = 0, first_offset
    while at < end_offset:
        units = [unit for unit in queue.batch_units(at, end_offset - at) if unit.base_offset < end_offset]
        if not units:
            break
        size += sum(unit.size for unit in units)
        at = units[-1].end_offset
    return size
