"""When the disk will reach each mark if messages keep coming as they do now: pure arithmetic over the files' times.

The rate is that of the newest files that span an hour (all of them when they do not). The future is played hour by
hour: what comes is added, expired files leave in the hours of ``deleteWhen``, or at any hour above the reclaim mark,
as the planner would have it. Forced deletion is not played: its mark is one of the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.config import RetentionConfig
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.retention_values import LogFile, Moment

HOUR_MS: Final = 3_600_000
HOURS_MAX: Final = 24 * 366


class Rate(NamedTuple):
    """Bytes of the commit log an hour, seen over so many milliseconds."""

    bytes_an_hour: int
    span_ms: int


class Reached(NamedTuple):
    """A mark, and when the disk is above it: a time, or None for not within a year."""

    percent: int
    meaning: str
    at_ms: int | None
    is_now: bool = False


class Forecast(NamedTuple):
    """The marks, how full the disk gets within a year, and the rate it all rests on."""

    rate: Rate
    marks: Sequence[Reached]
    highest_percent: int
    highest_ms: int


def rate_of(files: Sequence[LogFile], end: int, newest_ms: int, *, span_min_ms: int = HOUR_MS) -> Rate:
    """The rate of the newest files. ``newest_ms`` is the store time of the newest record, at ``end``."""
    rate = Rate(0, 0)
    for number in range(len(files) - 1, 0, -1):
        since, base = files[number - 1].newest_ms, files[number].base
        span = newest_ms - since
        if not since or span <= 0 or base >= end:
            continue
        rate = Rate((end - base) * HOUR_MS // span, span)
        if span >= span_min_ms:
            break
    return rate


def forecast(
    files: Sequence[LogFile],
    usage: DiskUsage,
    rate: Rate,
    now: Moment,
    policy: RetentionConfig,
    *,
    overhead: float = 0.0,
) -> Forecast:
    """Play a year hour by hour. ``overhead``: bytes of queues and index for each byte of the log."""
    meanings = (
        (policy.reclaim_percent, "expired files go at any hour"),
        (policy.force_percent, "the oldest files go whatever their age"),
        (policy.warning_percent, "no more messages are taken"),
        (99, "the disk is full"),
    )
    capacity = usage.used_bytes + usage.usable_bytes
    hourly = int(rate.bytes_an_hour * (1 + overhead))
    keep_ms = policy.file_reserved_hours * HOUR_MS
    old = deque((file.newest_ms or file.modified_ms) + keep_ms for file in files[:-1])
    sizes = deque(int(file.allocated_bytes * (1 + overhead)) for file in files[:-1])
    reached: dict[int, int] = {}
    used, highest, highest_ms = usage.used_bytes, usage.percent, now.wall_ms
    for hour in range(HOURS_MAX + 1):
        at_ms = now.wall_ms + hour * HOUR_MS
        if hour:
            used += hourly
            old.append(at_ms + keep_ms)
            sizes.append(hourly)
        percent = -(-100 * used // capacity) if capacity else 0
        if percent > highest:
            highest, highest_ms = percent, at_ms
        for mark, _ in meanings:
            if percent > mark:
                reached.setdefault(mark, at_ms)
        timely = (now.local_hour + hour) % 24 in policy.delete_hours or percent > policy.reclaim_percent
        while timely and old and old[0] <= at_ms:
            old.popleft()
            used -= sizes.popleft()
        if percent > 100:
            break
    marks = [Reached(mark, text, reached.get(mark), reached.get(mark) == now.wall_ms) for mark, text in meanings]
    return Forecast(rate, marks, min(highest, 100), highest_ms)
