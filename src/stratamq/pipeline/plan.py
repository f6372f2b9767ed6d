"""From options and filters to exact ranges of queue offsets: decided once, when a read is planned.

A plan names the end of every range as a number. So a store that is being written to is read to a fixed end, the same
query always reads the same records, and a task that runs twice gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final

from stratamq.errors import DataLost, PipelineError
from stratamq.logstore.snapshot import QueueRange
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.filters import Bounds
from stratamq.pipeline.options import EARLIEST, LATEST, ReadOptions
from stratamq.pipeline.origins import Origin, open_origin
from stratamq.pipeline.reader import QueueSpan, Split

TASKS_KEPT: Final = 64
"""So many tasks are never joined: enough for the cores of one machine, and for a cluster to share."""


def plan_read(options: ReadOptions, bounds: Bounds | None = None) -> list[Split]:
    """Open the place, fix all ends, and cut what is to be read into tasks. What `plan_spans` and opening raise."""
    with closing(open_origin(options)) as origin:
        spans = plan_spans(origin.keys(), origin, options, bounds or Bounds())
        return cut_spans(origin, spans, options)


def cut_spans(origin: Origin, spans: Sequence[QueueSpan], options: ReadOptions) -> list[Split]:
    """Cut spans into splits of ``bytesPerSplit``, and finer until there are ``minPartitions`` of them."""
    splits = origin.splits(spans, bytes_per_split=options.bytes_per_split)
    # A span that is hardly larger than a split stays in one piece at first.
    total, records = sum(split.size_bytes for split in splits), sum(split.hi - split.lo for split in splits)
    wanted = min(options.partitions_min, records)
    size = min(options.bytes_per_split, total // max(1, wanted))
    while len(splits) < wanted and size > 0:
        splits = origin.splits(spans, bytes_per_split=size)
        size //= 2
    return splits


def group_splits(splits: Sequence[Split], bytes_per_task: int, *, tasks_min: int = TASKS_KEPT) -> list[list[Split]]:
    """Put neighbouring small splits into one task where there are many: a task costs about 10 ms whatever it reads.

    Up to ``tasks_min`` splits each stays a task of its own; beyond, tasks take splits until they hold
    ``bytes_per_task``, or less where that would leave fewer than ``tasks_min``.
    """
    if len(splits) <= tasks_min:
        return [[split] for split in splits]
    target = min(bytes_per_task, sum(split.size_bytes for split in splits) // tasks_min)
    groups: list[list[Split]] = []
    held = 0
    for split in splits:
        if not groups or held + split.size_bytes > target:
            groups.append([])
            held = 0
        groups[-1].append(split)
        held += split.size_bytes
    return groups


def plan_spans(keys: Iterable[QueueKey], origin: Origin, options: ReadOptions, bounds: Bounds) -> list[QueueSpan]:
    """The spans that a read covers, in the order of topics, queues and offsets. Empty ones are left out.

    Only queues that are asked for are looked into, so damage elsewhere does no harm.

    Raises:
        PipelineError: A topic or queue that was asked for by name is not there.
        DataLost: An offset that was asked for is not in the store, and ``failOnDataLoss`` is on.
    """
    spans: list[QueueSpan] = []
    for topic, queue_id in chosen_queues(keys, options):
        if not bounds.wants_queue(topic, queue_id):
            continue
        queue = origin.queue(topic, queue_id)
        lo, hi = start_offset(origin, queue, options), _end(origin, queue, options)
        lo, hi = _within_time(origin, queue, bounds, lo, hi)
        spans.extend(QueueSpan(topic, queue_id, a, b) for a, b in bounds.ranges(lo, hi))
    return spans


def chosen_queues(keys: Iterable[QueueKey], options: ReadOptions) -> list[QueueKey]:
    """The queues that the options ask for, sorted. Raises PipelineError for names that are not there."""
    there = sorted(keys)
    if options.fail_on_data_loss:
        _insist(options.topics or (), {key.topic for key in there}, f"{options.place} has no topic", "it has")
    of_topics = [key for key in there if options.wants_topic(key.topic)]
    if options.queues is not None and options.fail_on_data_loss and of_topics:
        _insist(options.queues, {key.queue_id for key in of_topics}, "none of the topics has queue", "there are")
    chosen = [key for key in of_topics if options.queues is None or key.queue_id in options.queues]
    if options.assigned is not None:
        absent = sorted(options.assigned - {(key.topic, key.queue_id) for key in chosen})
        if absent and options.fail_on_data_loss:
            raise PipelineError(f"assign names queue {absent[0][1]} of topic {absent[0][0]}, which is not there")
        chosen = [key for key in chosen if (key.topic, key.queue_id) in options.assigned]
    named = (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsetsByTimestamp", options.ending_times),
    )
    for option, offsets in named:
        for topic, by_queue in (offsets or {}).items():
            for queue_id in by_queue:
                if (topic, queue_id) not in chosen and options.fail_on_data_loss:
                    raise PipelineError(f"{option} names queue {queue_id} of topic {topic}, which is not in this read")
    return chosen


def _insist(asked: Iterable[object], there: Iterable[object], text: str, has: str) -> None:
    absent = sorted(map(str, set(asked) - set(there)))
    if absent:
        raise PipelineError(f"{text} {', '.join(absent)}; {has} {', '.join(sorted(map(str, there))) or 'none'}")


def start_offset(origin: Origin, queue: QueueRange, options: ReadOptions) -> int:
    """Where the options have a queue begin. A time wins over an offset, one of the queue over one of all queues.

    Raises:
        DataLost: The offset is not in the store, and ``failOnDataLoss`` is on.
        PipelineError: Nothing was stored at or after the time, and ``startingOffsetsByTimestampStrategy`` is error.
    """
    at_ms = (options.starting_times or {}).get(queue.topic, {}).get(queue.queue_id, options.starting_timestamp_ms)
    if at_ms is not None:
        offset = origin.offset_by_time(queue.topic, queue.queue_id, at_ms)
        if offset == queue.max_offset and options.fails_without_time:
            raise PipelineError(
                f"topic {queue.topic}, queue {queue.queue_id} has nothing stored at or after {at_ms} ms; ask for an "
                "earlier time, or set startingOffsetsByTimestampStrategy to latest"
            )
        return offset
    by_queue = (options.starting_offsets or {}).get(queue.topic, {})
    return _resolve(by_queue.get(queue.queue_id, options.starting_offset), queue, options, "startingOffsets")


def last_offset(origin: Origin, queue: QueueRange, options: ReadOptions) -> int | None:
    """Where the options have a stream end in a queue, which may not be there yet; None for nowhere."""
    at_ms = (options.ending_times or {}).get(queue.topic, {}).get(queue.queue_id, options.ending_timestamp_ms)
    if at_ms is not None:
        return origin.offset_by_time(queue.topic, queue.queue_id, at_ms)
    offset = (options.ending_offsets or {}).get(queue.topic, {}).get(queue.queue_id, options.ending_offset)
    return None if offset == LATEST else queue.min_offset if offset == EARLIEST else offset


def _end(origin: Origin, queue: QueueRange, options: ReadOptions) -> int:
    at_ms = (options.ending_times or {}).get(queue.topic, {}).get(queue.queue_id)
    if at_ms is not None:
        return origin.offset_by_time(queue.topic, queue.queue_id, at_ms)
    if options.ending_timestamp_ms is not None:
        return origin.offset_by_time(queue.topic, queue.queue_id, options.ending_timestamp_ms)
    by_queue = (options.ending_offsets or {}).get(queue.topic, {})
    return _resolve(by_queue.get(queue.queue_id, options.ending_offset), queue, options, "endingOffsets")


def _resolve(offset: int, queue: QueueRange, options: ReadOptions, option: str) -> int:
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


def _within_time(origin: Origin, queue: QueueRange, bounds: Bounds, lo: int, hi: int) -> tuple[int, int]:
    """Narrow a range by the (already widened) time bounds of filters."""
    if bounds.time_lo_ms is not None:
        lo = max(lo, origin.offset_by_time(queue.topic, queue.queue_id, bounds.time_lo_ms))
    if bounds.time_hi_ms is not None:
        hi = min(hi, origin.offset_by_time(queue.topic, queue.queue_id, bounds.time_hi_ms))
    return lo, hi
