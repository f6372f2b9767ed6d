"""Who loses what when the log begins later: messages that a consumer group has not read yet and can read no more.

A group has lost what lies between the next offset it would read and the first one that is still there. Groups are
those that have committed an offset in the topic. Of a topic in which no group ever has, the loss is counted under the
empty name: nobody may have wanted it, but nobody has read it either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from stratamq.logstore.dispatch import SCHEDULE_TOPIC
from stratamq.logstore.retention_values import Loss
from stratamq.logstore.types import QueueKey

Offsets = Mapping[tuple[str, str], Mapping[int, int]]
"""Next offset to consume: (topic, group) -> queue id -> offset."""

TOPIC_GROUP_SEPARATOR: Final = "@"
NOBODY: Final = ""
DELIVERY: Final = "(delayed delivery)"
"""Stands for the broker itself, which reads the topic of delayed messages."""


class LossRange(NamedTuple):
    """Messages ``[first_offset, end_offset)`` of a queue that a group loses."""

    group: str
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int


class QueueReader(Protocol):
    """What is asked of a store to count a loss."""

    def span(self, key: QueueKey) -> tuple[int, int] | None:
        """Smallest and end offset of a queue; None when there is none."""
        ...

    def physical_offset(self, key: QueueKey, offset: int) -> int | None:
        """Where the message at a queue offset begins in the log; None when its unit cannot be read."""
        ...

    def first_at(self, key: QueueKey, physical_offset: int) -> int:
        """The first queue offset whose message does not lie below ``physical_offset``."""
        ...

    def measure(self, key: QueueKey, first_offset: int, end_offset: int) -> tuple[int, int]:
        """Bytes of some messages, and store time of the first (0 when it cannot be read)."""
        ...


def read_offsets(value: Any) -> dict[tuple[str, str], dict[int, int]]:
    """The table of ``consumerOffset.json`` as it was decoded; what is malformed in it is left out."""
    table = value.get("offsetTable") if isinstance(value, dict) else None
    found: dict[tuple[str, str], dict[int, int]] = {}
    for name, queues in (table if isinstance(table, dict) else {}).items():
        topic, separator, group = name.rpartition(TOPIC_GROUP_SEPARATOR)
        if separator and isinstance(queues, dict):
            pairs = ((str(queue), offset) for queue, offset in queues.items())
            found[topic, group] = {
                int(queue): offset for queue, offset in pairs if queue.isdigit() and isinstance(offset, int)
            }
    return found


def delivery_offsets(value: Any) -> dict[tuple[str, str], dict[int, int]]:
    """The table of ``delayOffset.json`` as it was decoded: level n is queue n - 1 of the topic of delayed messages."""
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        return {}
    pairs = ((str(level), offset) for level, offset in table.items())
    queues = {int(level) - 1: at for level, at in pairs if level.isdigit() and isinstance(at, int)}
    return {(SCHEDULE_TOPIC, DELIVERY): queues}


def loss_ranges(
    reader: QueueReader, keys: Iterable[QueueKey], offsets: Offsets, start: int, end: int
) -> Iterator[LossRange | None]:
    """What each group loses of each queue when the log begins at physical offset ``end`` and no more at ``start``.

    What lies below ``start`` is lost already and not counted again.

    Yields None for each queue looked at, so that who counts for a live broker can pause. Cost: one small read for a
    queue that loses nothing, some twenty more for one that does.
    """
    by_topic: dict[str, list[tuple[str, Mapping[int, int]]]] = {}
    for (topic, group), queues in offsets.items():
        by_topic.setdefault(topic, []).append((group, queues))
    for key in keys:
        yield None
        span = reader.span(key)
        if span is None or span[0] >= span[1]:
            continue
        low, high = span
        groups = [(group, queues.get(key.queue_id, 0)) for group, queues in by_topic.get(key.topic, [])]
        groups = groups or [(NOBODY, 0)]
        begin = max(low, min(offset for _, offset in groups))
        where = reader.physical_offset(key, begin) if begin < high else None
        if where is None or where >= end:
            continue
        kept = reader.first_at(key, end)
        if where < start:
            low = max(low, reader.first_at(key, start))
        for group, offset in sorted(groups):
            first = max(low, offset)
            if first < kept:
                yield LossRange(group, key.topic, key.queue_id, first, kept)


def measure_loss(reader: QueueReader, lost: LossRange) -> Loss:
    """Count the bytes of a loss and find its oldest message."""
    size, oldest_ms = reader.measure(QueueKey(lost.topic, lost.queue_id), lost.first_offset, lost.end_offset)
    return Loss(*lost, size_bytes=size, oldest_ms=oldest_ms)


def sum_by_group(losses: Iterable[Loss]) -> list[tuple[str, str, int, int, int]]:
    """Losses added up: group, topic, messages, bytes, oldest store time; largest first."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for loss in losses:
        messages, size, oldest = sums.get((loss.group, loss.topic), (0, 0, 0))
        oldest = min(t for t in (oldest, loss.oldest_ms) if t) if oldest or loss.oldest_ms else 0
        sums[loss.group, loss.topic] = (messages + loss.messages, size + loss.size_bytes, oldest)
    rows = [(group, topic, *row) for (group, topic), row in sums.items()]
    return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))


def describe_losses(losses: Iterable[Loss], *, format_time: Callable[[int], str], rows_max: int = 10) -> str:
    """Losses in one sentence for a log line."""
    rows = sum_by_group(losses)
    if not rows:
        return "no group loses unread messages"
    parts = [
        f"{'group ' + group if group else 'nobody has read: topic ' + topic}"
        f"{' loses' if group else ''} {messages} messages{f' of topic {topic}' if group else ''}"
        f" ({size} bytes, oldest {format_time(oldest)})"
        for group, topic, messages, size, oldest in rows[:rows_max]
    ]
    more = len(rows) - rows_max
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
