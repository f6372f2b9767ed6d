"""The half of a store that reads: messages of a queue, records by offset, key or time, and how far everything goes."""

from __future__ import annotations

import os

from stratamq.config import FlushMode
from stratamq.formats.consume_queue import Unit
from stratamq.logstore.batch_queue import BatchConsumeQueue
from stratamq.logstore.batch_read import read_batches
from stratamq.logstore.filtered_read import read_matching
from stratamq.logstore.queries import QUERY_MAX, find_by_key, record_view
from stratamq.logstore.reader import ReadLimits, offset_by_time, read_queue, store_timestamp_at
from stratamq.logstore.redispatch import Parts
from stratamq.logstore.types import GetResult, GetStatus, QueryResult, QueueKey, RecordFilter


class ReadableStore:
    """What a store is to its readers. All of it runs on the owner's thread; nothing here writes or syncs."""

    def __init__(self, parts: Parts) -> None:
        self.directory = parts.directory
        self.config = parts.config
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._limits = ReadLimits.of(parts.config, memory)
        self._is_sync = parts.config.flush_mode is FlushMode.SYNC
        self._flushed = 0
        """Everything below is known to be on the disk."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int | None = None,
        tags_codes: frozenset[int] | None = None,
        matching: RecordFilter | None = None,
    ) -> GetResult:
        """Read messages of a queue from ``offset`` on, as views of the records in the log.

        Bounded by ``max_messages``, ``max_bytes`` and the store's transfer limits; at least one message is returned
        when there is one. With ``tags_codes`` (signed 32-bit Java hashes) only messages whose tags code is among them;
        with ``matching`` only those whose properties it wants, which costs about 3 us for each record looked at.

        Raises CorruptionError when the next record is damaged. Cost: about 10 us and 0.4 us a message.
        """
        queue = self._queues.plain.get((topic, queue_id))
        if queue is None:
            batches = self._queues.get((topic, queue_id))
            if not isinstance(batches, BatchConsumeQueue):
                return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            return read_batches(
                self._log,
                batches,
                offset,
                max_messages,
                max_bytes=max_bytes,
                tags_codes=tags_codes,
                matching=matching,
                limits=self._limits,
            )
        if matching is not None:
            return read_matching(self._log, queue, offset, max_messages, matching, max_bytes, self._limits)
        return read_queue(
            self._log,
            queue,
            offset,
            max_messages,
            max_bytes=max_bytes,
            tags_codes=tags_codes,
            limits=self._limits,
        )

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest offset of a queue that can be read; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One more than the newest offset that can be read; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.visible_offset

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """Up to ``count`` units of a queue from ``offset`` on, no further than consumers may read; empty beyond it.

        Of a queue of batches one unit is one record, the first the one that holds ``offset``.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset < queue.min_offset:
            return []
        if isinstance(queue, BatchConsumeQueue):
            units = queue.batch_units(offset, count)
            return [unit.plain for unit in units if unit.base_offset < queue.visible_offset]
        end = min(offset + count, queue.visible_offset)
        found = [queue.unit(at) for at in range(offset, end)]
        return [unit for unit in found if unit is not None]

    def queues(self) -> list[QueueKey]:
        """All queues that hold or held a message, sorted."""
        return sorted(queue.key for queue in self._queues.values() if queue.bases or queue.next_offset)

    def is_in_memory(self, physical_offset: int) -> bool:
        """Whether a record is so new that it is likely in the page cache."""
        return self._log.end - physical_offset <= self._limits.page_cache_bytes

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that begins at ``physical_offset``, checked with its checksum; None when none does."""
        return record_view(self._log, physical_offset, self._readable_end)

    def offset_by_time(self, topic: str, queue_id: int, ms: int, upper: bool = False) -> int:
        """The first offset stored at or after ``ms``; with ``upper`` the last at or before it (0 when there is none).

        When all is older than ``ms``, the queue's max offset. Cost: log2(length) small reads.
        """
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else offset_by_time(self._log, queue, ms, upper=upper)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the oldest message of a queue; -1 when it has none."""
        queue = self._queues.get((topic, queue_id))
        unit = None if queue is None or queue.min_offset >= queue.visible_offset else queue.unit(queue.min_offset)
        found = None if unit is None else store_timestamp_at(self._log, unit.physical_offset, unit.size)
        return -1 if found is None else found

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Messages of a topic by unique key or by one of KEYS, stored in [begin_ms, end_ms]; the newest ``max_count``.

        Hash collisions are left out. ``max_count`` is cut to `QUERY_MAX`. Cost: some 10 us a hit.
        """
        if self._index is None:
            return QueryResult((), 0, 0)
        count = min(max_count, QUERY_MAX)
        records = find_by_key(self._log, self._index, topic, key, count, begin_ms, end_ms, self._readable_end)
        _, _, timestamp, physical_offset = self._index.newest
        return QueryResult(records, timestamp, physical_offset)

    @property
    def _readable_end(self) -> int:
        return self._flushed if self._is_sync else self._log.end

    @property
    def min_physical_offset(self) -> int:
        """Where the oldest commit-log file begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """End of what is committed."""
        return self._log.end

    @property
    def flushed_physical_offset(self) -> int:
        """End of what is known to be on the disk."""
        return self._flushed
