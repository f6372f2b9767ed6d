"""What a report says, as plain values: made from joined facts, written as JSON, drawn by `jobs.page`."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratamq.pipeline.jobs.facts import EXACT_BELOW, percentiles
from stratamq.pipeline.jobs.outlook import Backlog, Outlook, Step, TopicTotal, Undelivered, steps_of, undelivered

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
TOP_KEYS: Final = 20
# Topics that RocketMQ makes for itself; "%" starts those of retries and dead letters.
_SYSTEM_PREFIXES: Final = ("%", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "TBW102", "OFFSET_MOVED_EVENT", "SELF_TEST")


class TagMinute(NamedTuple):
    """Messages of one topic and tag in one minute of store time."""

    topic: str
    tag: str
    minute_ms: int
    messages: int
    bytes: int


class TagTotal(NamedTuple):
    """Messages of one topic and tag."""

    topic: str
    tag: str
    messages: int
    bytes: int


class Bucket(NamedTuple):
    """Messages of one topic in one bucket of the timeline."""

    topic: str
    start_ms: int
    messages: int
    bytes: int


class QueueTotal(NamedTuple):
    """One queue: its share, its offsets ``[min_offset, max_offset)``, and the store times of first and last message."""

    topic: str
    queue_id: int
    messages: int
    bytes: int
    min_offset: int
    max_offset: int
    first_ms: int
    last_ms: int


class KeyTotal(NamedTuple):
    """How many messages carry a key."""

    key: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution of whole numbers: count, lowest, highest, percentiles, and the histogram they come from.

    ``is_exact`` says whether every percentile is the exact number; if not, those above 65,536 are up to 0.4 % low.
    """

    count: int
    low: int
    high: int
    percentiles: Mapping[str, int]
    is_exact: bool
    histogram: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything the report says. Times are milliseconds since the Unix epoch, UTC."""

    store: str
    taken_ms: int
    timeline_ms: int
    messages: int
    body_bytes: int
    tag_totals: Sequence[TagTotal]
    tag_minutes: Sequence[TagMinute]
    timeline: Sequence[Bucket]
    queues: Sequence[QueueTotal]
    sizes: Distribution
    sizes_by_topic: Mapping[str, Distribution]
    latency: Distribution
    top_keys: Sequence[KeyTotal]
    latency_by_topic: Mapping[str, Distribution] = dataclasses.field(default_factory=dict)
    topic_totals: Sequence[TopicTotal] = ()
    """Topics by their messages, most first."""
    undelivered: Sequence[Undelivered] = ()
    """Dead letters and retries."""
    backlogs: Sequence[Backlog] = ()
    outlook: Outlook | None = None
    trace_key: str = ""
    trace: Sequence[Step] = ()
    was_killed: bool = False
    """The broker was killed and has not recovered: records at the log's end may be in no queue, and are not counted."""
    seconds: float = 0.0

    @property
    def topics(self) -> list[str]:
        """Topics with messages: those of applications first, each kind by name."""
        return sorted({queue.topic for queue in self.queues}, key=lambda topic: (is_system_topic(topic), topic))

    @property
    def first_ms(self) -> int:
        """Store time of the first message; 0 when there is none."""
        return min((queue.first_ms for queue in self.queues), default=0)

    @property
    def last_ms(self) -> int:
        """Store time of the last message; 0 when there is none."""
        return max((queue.last_ms for queue in self.queues), default=0)

    def as_json(self) -> dict[str, object]:
        """The report as plain JSON values; rows as objects, histograms left out."""
        document: dict[str, object] = {}
        for field in dataclasses.fields(self):
            document[field.name] = _plain(getattr(self, field.name))
        return document


def is_system_topic(topic: str) -> bool:
    """Whether a topic is one of the broker's own."""
    return topic.startswith(_SYSTEM_PREFIXES)


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        return {
            "count": value.count,
            "low": value.low,
            "high": value.high,
            "percentiles": dict(value.percentiles),
            "is_exact": value.is_exact,
        }
    if hasattr(value, "_asdict"):
        return {key: _plain(one) for key, one in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


def summarise(
    facts: pa.Table, top_keys: Iterable[tuple[str, int]], *, store: str, taken_ms: int, timeline_ms: int
) -> Report:
    """Make a report of joined facts (`jobs.facts.join`); those of kind ``key`` are not looked at."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in facts.filter(pc.not_equal(facts["kind"], "key")).to_pylist():
        rows[row["kind"]].append(row)
    minutes = sorted(
        TagMinute(row["topic"], row["text"], row["number"], row["count"], row["bytes"]) for row in rows["minute"]
    )
    queues = _queue_totals(rows["queue"], rows["offset"])
    timeline = sorted(Bucket(row["topic"], row["number"], row["count"], row["bytes"]) for row in rows["timeline"])
    sizes, latency = _by_topic(rows["size"]), _by_topic(rows["latency"])
    return Report(
        store=store,
        taken_ms=taken_ms,
        timeline_ms=timeline_ms,
        messages=sum(row["count"] for row in rows["queue"]),
        body_bytes=sum(row["bytes"] for row in rows["queue"]),
        tag_totals=_tag_totals(minutes),
        tag_minutes=minutes,
        timeline=timeline,
        queues=queues,
        sizes=distribution(rows["size"]),
        sizes_by_topic=sizes,
        latency=distribution(rows["latency"]),
        latency_by_topic=latency,
        topic_totals=_topic_totals(queues, timeline, timeline_ms, sizes, latency),
        undelivered=undelivered(queues),
        trace=steps_of(rows["trace"]),
        top_keys=[KeyTotal(key, count) for key, count in top_keys],
    )


def _by_topic(rows: Iterable[Mapping[str, Any]]) -> dict[str, Distribution]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["topic"]].append(row)
    return {topic: distribution(found[topic]) for topic in sorted(found)}


def _topic_totals(
    queues: Iterable[QueueTotal],
    timeline: Iterable[Bucket],
    timeline_ms: int,
    sizes: Mapping[str, Distribution],
    latency: Mapping[str, Distribution],
) -> list[TopicTotal]:
    peaks: dict[str, int] = defaultdict(int)
    for bucket in timeline:
        peaks[bucket.topic] = max(peaks[bucket.topic], bucket.messages)
    sums: dict[str, tuple[int, int, int]] = {}
    for queue in queues:
        messages, size, last = sums.get(queue.topic, (0, 0, 0))
        sums[queue.topic] = messages + queue.messages, size + queue.bytes, max(last, queue.last_ms)
    totals = [
        TopicTotal(
            topic,
            messages,
            size,
            round(peaks[topic] * 1000 / timeline_ms, 3),
            sizes[topic].percentiles["p50"],
            sizes[topic].percentiles["p99"],
            latency[topic].percentiles["p50"],
            latency[topic].percentiles["p99"],
            last,
        )
        for topic, (messages, size, last) in sums.items()
    ]
    return sorted(totals, key=lambda one: (-one.messages, one.topic))


def _tag_totals(minutes: Iterable[TagMinute]) -> list[TagTotal]:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for one in minutes:
        count, size = totals.get((one.topic, one.tag), (0, 0))
        totals[one.topic, one.tag] = (count + one.messages, size + one.bytes)
    return [
        TagTotal(topic, tag, count, size)
        for (topic, tag), (count, size) in sorted(totals.items(), key=_applications_first)
    ]


def _applications_first(item: tuple[Sequence[Any], object]) -> tuple[bool, Sequence[Any]]:
    return is_system_topic(item[0][0]), item[0]


def _queue_totals(queues: Iterable[Mapping[str, Any]], offsets: Iterable[Mapping[str, Any]]) -> list[QueueTotal]:
    limits = {(row["topic"], row["queue_id"]): (row["low"], row["high"] + 1) for row in offsets}
    rows = [
        QueueTotal(
            row["topic"],
            row["queue_id"],
            row["count"],
            row["bytes"],
            *limits[row["topic"], row["queue_id"]],
            row["low"],
            row["high"],
        )
        for row in queues
    ]
    return sorted(rows, key=lambda row: _applications_first((row, None)))


def distribution(rows: Iterable[Mapping[str, Any]]) -> Distribution:
    """A distribution of size or latency facts."""
    histogram: dict[int, int] = {}
    low, high = None, 0
    for row in rows:
        histogram[row["number"]] = histogram.get(row["number"], 0) + row["count"]
        low = row["low"] if low is None else min(low, row["low"])
        high = max(high, row["high"])
    found = percentiles(histogram, SHARES.values())
    return Distribution(
        count=sum(histogram.values()),
        low=low or 0,
        high=high,
        percentiles=dict(zip(SHARES, found, strict=True)),
        is_exact=max(found, default=0) < EXACT_BELOW,
        histogram=histogram,
    )
