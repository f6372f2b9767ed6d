"""What happens to a queue in the cold tier, and when: pure functions of manifest, clock and settings.

Nothing here reads a clock or asks a backend. Every change is a new manifest that follows the one before
(`formats.cold_manifest.follows`); the names I1 to I14 are those of docs/design/cold-tier.md.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from stratamq.config import TieredConfig
from stratamq.formats.cold_manifest import FLAT, PARQUET, Dropped, Gap, Manifest, Segment, follows
from stratamq.formats.cold_names import Lifetime

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
JOIN_COUNT: Final = 64
"""So many small segments in a row are joined whatever their size, so that manifests stay short."""
GAPS_MAX: Final = 1_000
"""Most gaps a manifest remembers; of those below the start the oldest are forgotten."""

NEVER_TIERED: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "BenchmarkTest",
    }
)
NEVER_TIERED_PREFIXES: Final = ("rmq_sys_", "%LMQ%", "rmq_pop_revive", "reviveTopic")


class Writer(NamedTuple):
    """Who writes manifests: the epoch it claimed, and a name that no other process has."""

    epoch: int
    name: str


class Waiting(NamedTuple):
    """What of a queue is not in the tier yet."""

    messages: int
    bytes: int
    waited_ms: int
    """How long the owner has known of the first of them; measured by the monotonic clock."""


class Join(NamedTuple):
    """Segments that follow each other and are to become one."""

    segments: tuple[Segment, ...]
    format: str


# --- which topics, for how long -----------------------------------------------------------------------------------


def is_tiered(topic: str, policy: TieredConfig, own_names: Collection[str] = ()) -> bool:
    """Whether a topic's messages go to the tier. ``own_names``: cluster and broker, whose topics never do."""
    if topic in NEVER_TIERED or topic.startswith(NEVER_TIERED_PREFIXES) or topic in own_names:
        return False
    return _matches(topic, policy.topics) and not _matches(topic, policy.topics_excluded)


def _matches(topic: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(topic, part.strip()) for part in patterns.split(";") if part.strip())


def hours_of(topic: str, policy: TieredConfig, reserve_time: str | None = None) -> int:
    """How many hours a topic's messages are kept: its attribute reserve.time, else the settings."""
    if reserve_time is not None and reserve_time.isdecimal() and 0 < int(reserve_time) <= 8_760_000:
        return int(reserve_time)
    for pattern, hours in policy.hours_by_topic:
        if fnmatch.fnmatchcase(topic, pattern):
            return hours
    return policy.reserved_hours


# --- sealing --------------------------------------------------------------------------------------------------------


def should_seal(waiting: Waiting, policy: TieredConfig) -> bool:
    """Whether what waits is uploaded now. How much it is never delays it for good: time alone is enough (I12)."""
    if waiting.messages <= 0:
        return False
    return (
        waiting.waited_ms >= policy.seal_age_ms
        or waiting.bytes >= policy.seal_bytes
        or waiting.messages >= policy.seal_messages
    )


# --- manifests ------------------------------------------------------------------------------------------------------


def created(life: Lifetime, start: int, writer: Writer, now_ms: int) -> Manifest:
    """Version 0: says who the queue is and from which offset on the tier has everything (I5, I13)."""
    return Manifest(
        topic=life.topic,
        queue_id=life.queue_id,
        incarnation=life.incarnation,
        version=0,
        epoch=writer.epoch,
        writer=writer.name,
        written_ms=now_ms,
        start=start,
        end=start,
    )


def succeed(before: Manifest, writer: Writer, now_ms: int, **changes: object) -> Manifest:
    """The next version with some members changed. Raises AssertionError when it would not follow: our own mistake."""
    after = msgspec.structs.replace(
        before, version=before.version + 1, epoch=writer.epoch, writer=writer.name, written_ms=now_ms, **changes
    )
    wrong = follows(before, after)
    assert not wrong, f"{before.life} version {after.version}: {wrong}"
    return after


def with_segment(before: Manifest, segment: Segment, writer: Writer, now_ms: int) -> Manifest:
    """A segment was uploaded: it continues where the tier ended."""
    return succeed(before, writer, now_ms, segments=(*before.segments, segment), end=segment.last + 1)


def with_gap(before: Manifest, upto: int, reason: str, writer: Writer, now_ms: int) -> Manifest:
    """Offsets from the end up to ``upto`` (excluded) are gone locally and never came: say so and go on behind them."""
    gap = Gap(first=before.end, last=upto - 1, noted_ms=now_ms, reason=reason)
    start = before.start if before.segments or before.start < before.end else upto
    below = [old for old in before.gaps if old.last < start]
    kept = [old for old in before.gaps if old.last >= start]
    return succeed(before, writer, now_ms, gaps=(*below[-GAPS_MAX:], *kept, gap), end=upto, start=start)


def expired(manifest: Manifest, now_ms: int, hours: int, bytes_max: int = 0) -> list[Segment]:
    """The segments that may go: from the oldest on, those whose newest message is old enough, and those above the size.

    A function of its arguments alone. Only what a manifest names can expire, so nothing that is being sealed or
    uploaded ever does (I2, I3); a queue without segments loses nothing.
    """
    gone: list[Segment] = []
    total = sum(segment.bytes for segment in manifest.segments)
    for segment in manifest.segments:
        too_old = segment.max_ms + hours * HOUR_MS <= now_ms
        too_much = bytes_max > 0 and total > bytes_max
        if not too_old and not too_much:
            break
        gone.append(segment)
        total -= segment.bytes
    return gone


def without(before: Manifest, gone: Sequence[Segment], writer: Writer, now_ms: int, grace_ms: int) -> Manifest:
    """The oldest segments go from the manifest now and from the backend after the grace time (I10)."""
    left = before.segments[len(gone) :]
    assert tuple(gone) == before.segments[: len(gone)], "only the oldest segments expire"
    start = left[0].first if left else before.end
    return succeed(
        before, writer, now_ms, segments=left, start=start, dropped=_dropped(before, gone, now_ms + grace_ms)
    )


def swapped(
    before: Manifest, old: Sequence[Segment], new: Segment, writer: Writer, now_ms: int, grace_ms: int
) -> Manifest | None:
    """One segment takes the place of several, with the same offsets; None when they are not there (any more)."""
    names = [segment.name for segment in before.segments]
    if not old or old[0].name not in names:
        return None
    at = names.index(old[0].name)
    if before.segments[at : at + len(old)] != tuple(old):
        return None
    if (new.first, new.last) != (old[0].first, old[-1].last):
        return None
    segments = (*before.segments[:at], new, *before.segments[at + len(old) :])
    return succeed(before, writer, now_ms, segments=segments, dropped=_dropped(before, old, now_ms + grace_ms))


def _dropped(before: Manifest, gone: Iterable[Segment], not_before_ms: int) -> tuple[Dropped, ...]:
    names = dict.fromkeys(name for segment in gone for name in (segment.name, segment.index_name))
    return (*before.dropped, *(Dropped(name=name, not_before_ms=not_before_ms) for name in names))


def deletable(manifest: Manifest, now_ms: int) -> list[str]:
    """Objects whose grace time is over."""
    return [entry.name for entry in manifest.dropped if entry.not_before_ms <= now_ms]


def purged(before: Manifest, names: Collection[str], writer: Writer, now_ms: int) -> Manifest:
    """Objects were deleted: the manifest may forget them."""
    return succeed(before, writer, now_ms, dropped=tuple(row for row in before.dropped if row.name not in names))


# --- joining --------------------------------------------------------------------------------------------------------


def plan_join(
    manifest: Manifest, now_ms: int, policy: TieredConfig, target: str, *, eager: bool = False
) -> Join | None:
    """The next segments to be joined; None when there are none.

    Flat segments of one day that follow each other become one in the ``target`` format when they are large enough
    together, or when their day is over, or now when ``eager``. Before that many small ones become a larger flat one.
    """
    ceiling = policy.compact_bytes if target == FLAT else policy.compact_bytes_max + 1
    for run in _runs(manifest.segments, policy.compact_bytes_max, ceiling):
        is_last = run[-1] is manifest.segments[-1]
        size = sum(segment.raw_bytes for segment in run)
        day_over = now_ms >= (_day(run[0]) + 1) * DAY_MS + HOUR_MS
        due = eager or size >= policy.compact_bytes or (day_over and (not is_last or _idle(run, now_ms)))
        if due and (target == PARQUET or len(run) > 1):
            return Join(tuple(run), target)
        small = [segment for segment in run if segment.raw_bytes < policy.compact_bytes // 4]
        if len(run) >= JOIN_COUNT and len(small) == len(run):
            return Join(tuple(run), FLAT)
    return None


def _idle(run: Sequence[Segment], now_ms: int) -> bool:
    return now_ms - run[-1].max_ms >= HOUR_MS


def _day(segment: Segment) -> int:
    return segment.min_ms // DAY_MS


def _runs(segments: Sequence[Segment], bytes_max: int, ceiling: int) -> Iterable[list[Segment]]:
    """Flat segments of one day, each below ``ceiling``, that follow each other without a gap; cut where they get too
    large together."""
    run: list[Segment] = []
    size = 0
    for segment in segments:
        fits = (
            run
            and segment.format == FLAT
            and segment.first == run[-1].last + 1
            and _day(segment) == _day(run[0])
            and size + segment.raw_bytes <= bytes_max
        )
        if not fits:
            if run:
                yield run
            run, size = [], 0
        if segment.format == FLAT and segment.raw_bytes < ceiling:
            run.append(segment)
            size += segment.raw_bytes
    if run:
        yield run
