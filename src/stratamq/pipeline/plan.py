"""From options and filters to exact ranges of queue offsets: decided once, when a read is planned.

A plan names the end of every range as a number. So a store that is being written to is read to a fixed end, the same
query always reads the same records, and a task that runs twice gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from stratamq.errors import DataLost, PipelineError
from stratamq.pipeline.filters import Bounds
from stratamq.pipeline.options import EARLIEST, LATEST, ReadOptions


class QueueLimits(Protocol):
    """One queue of a snapshot: its records are ``[min_offset, max_offset)``."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def queue_id(self) -> int:
        """The queue's number."""
        ...

    @property
    def min_offset(self) -> int:
        """Lowest offset that is there."""
        ...

    @property
    def max_offset(self) -> int:
        """One above the highest offset that is there."""
        ...


class Snapshot(Protocol):
    """What planning needs of an opened store."""

    def queues(self) -> Sequence[QueueLimits]:
        """Every queue with its limits."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, /) -> int:
        """Offset of the first record stored at or after a time; the queue's end when there is none."""
        ...


class Range(NamedTuple):
    """Records ``[lo, hi)`` of one queue."""

    topic: str
    queue_id: int
    lo: int
    hi: int


def plan_ranges(snapshot: Snapshot, options: ReadOptions, bounds: Bounds) -> list[Range]:
    """The ranges that a read covers, in the order of topics, queues and offsets. Empty ranges are left out.

    Raises:
        PipelineError: A topic or queue that was asked for by name is not there.
        DataLost: An offset that was asked for is not in the store, and ``failOnDataLoss`` is on.
    """
    queues = chosen_queues(snapshot.queues(), options)
    ranges: list[Range] = []
    for queue in queues:
        # Also where filters leave nothing to read: what was lost is lost all the same.
        lo = _start(snapshot, queue, options)
        hi = _end(snapshot, queue, options)
        if not bounds.wants_queue(queue.topic, queue.queue_id):
            continue
        lo, hi = _within_time(snapshot, queue, bounds, lo, hi)
        ranges.extend(Range(queue.topic, queue.queue_id, a, b) for a, b in bounds.ranges(lo, hi))
    return ranges


def chosen_queues(queues: Iterable[QueueLimits], options: ReadOptions) -> list[QueueLimits]:
    """The queues that the options ask for, sorted. Raises PipelineError for names that are not there."""
    there = sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))
    topics = {queue.topic for queue in there}
    if options.fail_on_data_loss:
        _insist(options.topics or (), topics, f"{options.path} has no topic", "it has")
    of_topics = [queue for queue in there if options.wants_topic(queue.topic)]
    if options.queues is not None and options.fail_on_data_loss and of_topics:
        ids = {queue.queue_id for queue in of_topics}
        _insist(options.queues, ids, "none of the topics has queue", "there are")
    chosen = [queue for queue in of_topics if options.queues is None or queue.queue_id in options.queues]
    names = {(queue.topic, queue.queue_id) for queue in chosen}
    for option, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        for topic, by_queue in (offsets or {}).items():
            for queue_id in by_queue:
                if (topic, queue_id) not in names and options.fail_on_data_loss:
                    raise PipelineError(
                        f"{option} names queue {queue_id} of topic {topic}, which this read does not cover"
                    )
    return chosen


def _insist(asked: Iterable[object], there: Iterable[object], text: str, has: str) -> None:
    absent = sorted(map(str, set(asked) - set(there)))
    if absent:
        raise PipelineError(f"{text} {', '.join(absent)}; {has} {', '.join(sorted(map(str, there))) or 'none'}")


def _start(snapshot: Snapshot, queue: QueueLimits, options: ReadOptions) -> int:
    if options.starting_timestamp_ms is not None:
        return snapshot.offset_by_time(queue.topic, queue.queue_id, options.starting_timestamp_ms)
    by_queue = (options.starting_offsets or {}).get(queue.topic, {})
    return _resolve(by_queue.get(queue.queue_id, options.starting_offset), queue, options, "startingOffsets")


def _end(snapshot: Snapshot, queue: QueueLimits, options: ReadOptions) -> int:
    if options.ending_timestamp_ms is not None:
        return snapshot.offset_by_time(queue.topic, queue.queue_id, options.ending_timestamp_ms)
    by_queue = (options.ending_offsets or {}).get(queue.topic, {})
    return _resolve(by_queue.get(queue.queue_id, options.ending_offset), queue, options, "endingOffsets")


def _resolve(offset: int, queue: QueueLimits, options: ReadOptions, option: str) -> int:
    if offset == EARLIEST:
        return queue.min_offset
    if offset == LATEST:
        return queue.max_offset
    if queue.min_offset <= offset <= queue.max_offset:
        return offset
    if options.fail_on_data_loss:
        raise DataLost(
            f"{option} asks for offset {offset} of topic {queue.topic}, queue {queue.queue_id}, but the store has "
            f"{queue.min_offset} to {queue.max_offset} (exclusive). Ask for offsets that are there, or set "
            "failOnDataLoss to false to read what is left"
        )
    return min(max(offset, queue.min_offset), queue.max_offset)


def _within_time(snapshot: Snapshot, queue: QueueLimits, bounds: Bounds, lo: int, hi: int) -> tuple[int, int]:
    """Narrow a range by the (already widened) time bounds of filters."""
    if bounds.time_lo_ms is not None:
        lo = max(lo, snapshot.offset_by_time(queue.topic, queue.queue_id, max(0, bounds.time_lo_ms)))
    if bounds.time_hi_ms is not None:
        hi = min(hi, snapshot.offset_by_time(queue.topic, queue.queue_id, max(0, bounds.time_hi_ms)))
    return lo, hi
