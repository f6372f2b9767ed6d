"""What the report says beyond counts: how long the disk lasts, who lags behind, what nobody could consume, and where a
key went. Values, and functions that make them of files and facts; no Spark.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratamq.config import RetentionConfig
from stratamq.errors import StoreError
from stratamq.logstore.retention_forecast import forecast, rate_of
from stratamq.logstore.retention_offline import OfflineStore
from stratamq.logstore.retention_values import Moment
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.jobs.facts import FACTS

TRACE_COLUMNS: Final = ("message_id", "properties", "reconsume_times", "sys_flag", "physical_offset")
"""Columns that `trace_facts` needs beyond those of `facts_of`."""
STEPS_A_SPLIT_MAX: Final = 1_000
STEPS_MAX: Final = 5_000
BACKLOGS_MAX: Final = 1_000
DEAD_PREFIX: Final = "%DLQ%"
RETRY_PREFIX: Final = "%RETRY%"
_SHOWN: Final = (
    "REAL_TOPIC",
    "RETRY_TOPIC",
    "DLQ_ORIGIN_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "DELAY",
    "TIMER_OUT_MS",
    "PGROUP",
)


class Mark(NamedTuple):
    """A mark of the disk, what happens there, and when it is reached: a time, or None for not within a year."""

    percent: int
    meaning: str
    at_ms: int | None


class Outlook(NamedTuple):
    """The disk now, at what rate the log grows (seen over ``span_ms``), and when it reaches each mark."""

    percent: int
    used_bytes: int
    usable_bytes: int
    log_bytes: int
    bytes_an_hour: int
    span_ms: int
    reserved_hours: int
    highest_percent: int
    highest_ms: int
    marks: Sequence[Mark]


class Backlog(NamedTuple):
    """What a group has not consumed of a topic: messages, the store time of the oldest of them, and messages that were
    deleted before it came to them."""

    group: str
    topic: str
    messages: int
    oldest_ms: int
    lost: int


class Undelivered(NamedTuple):
    """What a group could not consume: messages in its dead letters, or waiting to be tried again."""

    group: str
    kind: str
    messages: int
    bytes: int
    first_ms: int
    last_ms: int


class TopicTotal(NamedTuple):
    """One topic: its share, the busiest moment, and percentiles of sizes (bytes) and of delays to the store (ms)."""

    topic: str
    messages: int
    bytes: int
    peak_per_second: float
    size_p50: int
    size_p99: int
    latency_p50: int
    latency_p99: int
    last_ms: int


class Step(NamedTuple):
    """One message of a trace, in the order of store times. ``about`` are properties that say why it is there."""

    stored_ms: int
    born_ms: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    tags: str
    keys: str
    body_bytes: int
    reconsume_times: int
    about: Mapping[str, str]


def look_ahead(path: Path, policy: RetentionConfig | None = None, *, now_ms: int | None = None) -> Outlook | None:
    """The forecast of `stratamq store forecast`; None when the disk's size cannot be told. Raises StoreError."""
    policy = policy or RetentionConfig()
    store = OfflineStore(path)
    files, usage = store.files(), store.disks().log[0]
    if not usage.is_known:
        return None
    wall_ms = int(time.time() * 1000) if now_ms is None else now_ms
    hour = datetime.datetime.fromtimestamp(wall_ms / 1000).hour  # noqa: DTZ006 - deleteWhen is in local time
    rate = rate_of(files.log, files.end, store.snapshot.end.newest_ms)
    log_bytes = sum(file.allocated_bytes for file in files.log) or 1
    derived = sum(file.allocated_bytes for queue in files.queues for file in queue.files)
    derived += sum(file.allocated_bytes for file in files.index_files)
    made = forecast(
        files.log, usage, rate, Moment(wall_ms, wall_ms, hour), policy, overhead=min(1.0, derived / log_bytes)
    )
    return Outlook(
        usage.percent,
        usage.used_bytes,
        usage.usable_bytes,
        log_bytes,
        rate.bytes_an_hour,
        rate.span_ms,
        policy.file_reserved_hours,
        made.highest_percent,
        made.highest_ms,
        [Mark(mark.percent, mark.meaning, mark.at_ms) for mark in made.marks],
    )


def backlogs(path: Path) -> list[Backlog]:
    """What each group has not consumed, most first; at most `BACKLOGS_MAX` rows. None of an unreadable offsets file.

    Cost: a few small reads for each group and queue.
    """
    store = OfflineStore(path)
    try:
        offsets = store.offsets()
    except StoreError:
        return []
    there = set(store.keys())
    found = []
    for (topic, group), queues in offsets.items():
        waiting = lost = oldest = 0
        for queue_id, offset in queues.items():
            key = QueueKey(topic, queue_id)
            if key not in there:
                continue
            low, high = store.span(key) or (0, 0)
            lost += max(0, min(low, high) - offset)
            first = max(low, offset)
            if first < high:
                waiting += high - first
                where = store.physical_offset(key, first)
                stored = store.snapshot.store_timestamp_at(where) if where is not None else 0
                oldest = min(oldest or stored, stored)
        if waiting or lost:
            found.append(Backlog(group, topic, waiting, oldest, lost))
    return sorted(found, key=lambda one: (-one.messages, one.group, one.topic))[:BACKLOGS_MAX]


def undelivered(queues: Iterable[Any]) -> list[Undelivered]:
    """Dead letters and retries of each group, from the totals of all queues (`summary.QueueTotal`)."""
    sums: dict[tuple[str, str], list[int]] = {}
    for one in queues:
        for prefix, kind in ((DEAD_PREFIX, "dead letters"), (RETRY_PREFIX, "to be tried again")):
            if one.topic.startswith(prefix):
                row = sums.setdefault((one.topic.removeprefix(prefix), kind), [0, 0, one.first_ms, one.last_ms])
                row[0] += one.messages
                row[1] += one.bytes
                row[2], row[3] = min(row[2], one.first_ms), max(row[3], one.last_ms)
    return [
        Undelivered(group, kind, *row)
        for (group, kind), row in sorted(sums.items(), key=lambda item: (item[0][1], -item[1][0], item[0][0]))
    ]


def trace_facts(batch: pa.RecordBatch, key: str) -> pa.Table:
    """Facts of kind ``trace`` for the messages of a batch with a key, or with it as their message id.

    Text is a `Step`'s further values as JSON, number the queue offset, low and high store and born time in ms.
    """
    padded = pc.binary_join_element_wise("", pc.fill_null(batch.column("keys"), ""), "", " ")
    hit = pc.or_(pc.equal(batch.column("message_id"), key), pc.match_substring(padded, f" {key} "))
    rows = batch.filter(pc.fill_null(hit, False)).to_pylist()[:STEPS_A_SPLIT_MAX]
    found = []
    for row in rows:
        properties = dict(row["properties"] or ())
        more = {
            "id": row["message_id"] or "",
            "tags": row["tags"] or "",
            "keys": row["keys"] or "",
            "bytes": len(row["body"] or b""),
            "again": row["reconsume_times"],
            "about": {name: properties[name] for name in _SHOWN if name in properties},
        }
        stored, born = (round(row[name].timestamp() * 1000) for name in ("store_timestamp", "born_timestamp"))
        found.append(
            {
                "kind": "trace",
                "topic": row["topic"],
                "text": json.dumps(more, ensure_ascii=False),
                "queue_id": row["queue_id"],
                "number": row["queue_offset"],
                "count": 1,
                "bytes": 0,
                "low": stored,
                "high": born,
            }
        )
    return pa.Table.from_pylist(found, schema=FACTS)


def steps_of(rows: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Facts of kind ``trace`` as the steps of a trace."""
    steps = []
    for row in rows:
        more = json.loads(row["text"])
        steps.append(
            Step(
                row["low"],
                row["high"],
                row["topic"],
                row["queue_id"],
                row["number"],
                more["id"],
                more["tags"],
                more["keys"],
                more["bytes"],
                more["again"],
                more["about"],
            )
        )
    return sorted(steps, key=lambda step: (step.stored_ms, step.topic, step.queue_id, step.queue_offset))[:STEPS_MAX]
