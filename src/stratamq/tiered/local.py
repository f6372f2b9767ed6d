"""What the cold tier needs of the local store: records of a queue that are safe to copy, and how many wait.

Runs on the store's thread. "Confirmed" is what is synced here and, with replicas, held by enough of them (I11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from stratamq.formats.consume_queue import UNIT
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.queue_table import QueueTable
from stratamq.logstore.reader import ReadLimits, read_queue, store_timestamp_at
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import GetStatus
from stratamq.units import GiB

Key = tuple[str, int]
"""Topic and queue id."""
BLOCK_BYTES: Final = 256 * 1024
BLOCK_MESSAGES: Final = 4_096
_COUNT_UNITS: Final = 4_096
_QUEUE_OFFSET_AT: Final = 20


class Piece(NamedTuple):
    """Some records from an offset on. ``first`` is where they begin: behind the offset asked for, if that is gone."""

    first: int
    messages: int
    bytes: int
    records: list[memoryview]


class LocalQueues(Protocol):
    """The local side of all queues."""

    def keys(self) -> Iterable[Key]:
        """All queues that hold or held a message."""
        ...

    def start(self, key: Key) -> int:
        """First offset that can be read."""
        ...

    def end(self, key: Key) -> int:
        """Offset behind the last confirmed message."""
        ...

    def visible_end(self, key: Key) -> int:
        """Offset behind the last message that consumers may read; confirmed or not."""
        ...

    def read(self, key: Key, offset: int, end: int, max_bytes: int) -> Piece:
        """A block of records from ``offset`` on, none at or behind ``end``. Raises CorruptionError."""
        ...

    def waiting_bytes(self, key: Key, offset: int, end: int) -> tuple[int, int]:
        """Bytes of the records from ``offset`` on, and up to which offset they were added up: a few thousand a call."""
        ...

    def stored_ms(self, key: Key, offset: int) -> int:
        """Store time of a message; -1 when it is gone."""
        ...

    def physical_offset(self, key: Key, offset: int) -> int:
        """Where a message lies in the log; -1 when it has no unit (any more)."""
        ...


class LogQueues:
    """The queues of an open log store."""

    def __init__(self, store: LogStore, confirmed: Callable[[], int] | None = None) -> None:
        """``confirmed``: physical offset up to which replicas have the log; what is synced here when None."""
        self._store = store
        self._log: CommitLog
        self._queues: QueueTable
        self._log, self._queues, _ = store.retained()
        self._confirmed = confirmed

    def keys(self) -> Iterable[Key]:
        """Queues that may be copied: those of batches stay in the log alone."""
        return [q.key for q in self._queues.values() if (q.bases or q.next_offset) and not q.is_batch]

    def start(self, key: Key) -> int:
        queue = self._queues.get(key)
        return 0 if queue is None else min(queue.min_offset, queue.visible_offset)

    def end(self, key: Key) -> int:
        queue = self._queues.get(key)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.visible_offset
        limit = self._store.flushed_physical_offset
        if self._confirmed is not None:
            limit = min(limit, self._confirmed())
        if high <= low or 0 <= queue.max_physical_offset <= limit or _end_of(queue, high - 1) <= limit:
            return high
        return queue.first_offset_where(lambda unit: unit.physical_offset + unit.size > limit, low, high)

    def visible_end(self, key: Key) -> int:
        return self._store.max_offset(*key)

    def read(self, key: Key, offset: int, end: int, max_bytes: int) -> Piece:
        queue = self._queues.get(key)
        wanted = min(BLOCK_MESSAGES, end - offset)
        if queue is None or wanted <= 0:
            return Piece(offset, 0, 0, [])
        found = read_queue(self._log, queue, offset, wanted, max_bytes=max_bytes, tags_codes=None, limits=_LIMITS)
        if found.status is not GetStatus.FOUND:
            return Piece(max(offset, min(found.next_offset, end)), 0, 0, [])
        head = found.records[0]
        first = int.from_bytes(head[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], "big", signed=True)
        return Piece(first, found.message_count, found.total_bytes, list(found.records))

    def waiting_bytes(self, key: Key, offset: int, end: int) -> tuple[int, int]:
        queue = self._queues.get(key)
        if queue is None or offset >= end:
            return 0, offset
        units = queue.read_units(offset, min(_COUNT_UNITS, end - offset))
        sizes = [size for _, size, _ in UNIT.iter_unpack(units)]
        return sum(sizes), offset + len(sizes)

    def stored_ms(self, key: Key, offset: int) -> int:
        queue = self._queues.get(key)
        unit = None if queue is None or not queue.min_offset <= offset < queue.visible_offset else queue.unit(offset)
        found = None if unit is None else store_timestamp_at(self._log, unit.physical_offset, unit.size)
        return -1 if found is None else found

    def physical_offset(self, key: Key, offset: int) -> int:
        queue = self._queues.get(key)
        unit = None if queue is None or offset >= queue.visible_offset else queue.unit(offset)
        return -1 if unit is None or not unit.is_valid or unit.is_prefill else unit.physical_offset

    def begin_at(self, key: Key, offset: int) -> bool:
        """Let a queue that never held a message begin at an offset; False when it has messages or had some."""
        queue = self._queues.open(*key)
        if queue.bases or queue.next_offset:
            return False
        queue.begin_at(offset)
        return True


def _end_of(queue: ConsumeQueue, offset: int) -> int:
    unit = queue.unit(offset)
    return 0 if unit is None else unit.physical_offset + unit.size


_LIMITS: Final = ReadLimits(
    memory_bytes=1 * GiB,
    memory_messages=BLOCK_MESSAGES,
    disk_bytes=1 * GiB,
    disk_messages=BLOCK_MESSAGES,
    page_cache_bytes=1 << 62,
)
