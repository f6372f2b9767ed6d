"""Which filters of a query the source takes over, and what they say about what must be read.

Spark hands over a list of filters that must all hold. What only names a topic, queues or offsets is taken exactly: the
planner then does not read anything else, and Spark does not look again. Bounds on the store time only narrow the
offsets, by a search that trusts store times to rise; so they are widened by `CLOCK_STEP_MS`, and Spark checks them
again row by row. Everything else is Spark's.

Filters are told apart by the names of their classes, so nothing here needs Spark. Nothing is opened, all is pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

CLOCK_STEP_MS: Final = 10 * 60 * 1000
"""By how much the broker's clock may have been set back without a time filter losing rows: 10 minutes."""

OFFSETS_IN_MAX: Final = 1000
"""Longest list of offsets that is taken exactly; a longer one only gives its lowest and highest offset."""

NEVER_NULL: Final = frozenset({"topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the filters leave. Ranges are half open; None means no bound. ``nothing``: no row can match."""

    topics: frozenset[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    queue_lo: int = 0
    queue_hi: int | None = None
    queues: frozenset[int] | None = None
    offset_lo: int = 0
    offset_hi: int | None = None
    offsets: frozenset[int] | None = None
    time_lo_ms: int | None = None
    time_hi_ms: int | None = None
    nothing: bool = False

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Whether rows of this queue can match."""
        if self.nothing or queue_id < self.queue_lo or (self.queue_hi is not None and queue_id >= self.queue_hi):
            return False
        if self.queues is not None and queue_id not in self.queues:
            return False
        if not all(topic.startswith(prefix) for prefix in self.topic_prefixes):
            return False
        return self.topics is None or topic in self.topics

    def ranges(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of ``[lo, hi)`` whose offsets can match, in order."""
        lo = max(lo, self.offset_lo)
        hi = hi if self.offset_hi is None else min(hi, self.offset_hi)
        if lo >= hi:
            return []
        if self.offsets is None:
            return [(lo, hi)]
        runs: list[tuple[int, int]] = []
        for offset in sorted(offset for offset in self.offsets if lo <= offset < hi):
            if runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], offset + 1)
            else:
                runs.append((offset, offset + 1))
        return runs


def take_filters(filters: Iterable[Any]) -> tuple[Bounds, list[Any]]:
    """Split filters into bounds of our own and those that Spark must still check (the very same objects)."""
    bounds = Bounds()
    rest = []
    for one in filters:
        narrowed, exact = _narrow(bounds, one)
        if narrowed is not None:
            bounds = narrowed
        if narrowed is None or not exact:
            rest.append(one)
    return bounds, rest


def _narrow(bounds: Bounds, one: Any) -> tuple[Bounds | None, bool]:
    """Bounds with one more filter, and whether they say all that the filter says; None when it is not for us."""
    kind = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return None, False
    column = path[0]
    if kind == "IsNotNull":
        return (bounds, True) if column in NEVER_NULL else (None, False)
    value = getattr(one, "value", None)
    if column == "topic":
        return _narrow_topic(bounds, kind, value)
    if column in ("queue_id", "queue_offset"):
        return _narrow_number(bounds, kind, value, "queue" if column == "queue_id" else "offset")
    if column == "store_timestamp" and isinstance(value, datetime.datetime):
        return _narrow_time(bounds, kind, value), False
    return None, False


def _narrow_topic(bounds: Bounds, kind: str, value: Any) -> tuple[Bounds | None, bool]:
    if kind == "StringStartsWith" and isinstance(value, str):
        return replace(bounds, topic_prefixes=(*bounds.topic_prefixes, value)), True
    wanted = _values(kind, value, str)
    if wanted is None:
        return None, False
    return replace(bounds, topics=wanted if bounds.topics is None else bounds.topics & wanted), True


def _narrow_number(bounds: Bounds, kind: str, value: Any, name: str) -> tuple[Bounds | None, bool]:
    wanted = _values(kind, value, int)
    if wanted is not None:
        if not wanted:
            return replace(bounds, nothing=True), True
        exact = name == "queue" or len(wanted) <= OFFSETS_IN_MAX
        bounds = _tighten(_tighten(bounds, name, "lo", min(wanted)), name, "hi", max(wanted) + 1)
        if not exact:
            return bounds, False
        field = f"{name}s"
        before = getattr(bounds, field)
        changes: dict[str, Any] = {field: wanted if before is None else before & wanted}
        return replace(bounds, **changes), True
    if not _is(value, int):
        return None, False
    match kind:
        case "GreaterThan":
            return _tighten(bounds, name, "lo", value + 1), True
        case "GreaterThanOrEqual":
            return _tighten(bounds, name, "lo", value), True
        case "LessThan":
            return _tighten(bounds, name, "hi", value), True
        case "LessThanOrEqual":
            return _tighten(bounds, name, "hi", value + 1), True
    return None, False


def _narrow_time(bounds: Bounds, kind: str, value: datetime.datetime) -> Bounds | None:
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    # Whole milliseconds downwards; one is added where the bound is an upper one.
    milliseconds = (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    lo, hi = milliseconds - CLOCK_STEP_MS, milliseconds + 1 + CLOCK_STEP_MS
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return _tighten(_tighten(bounds, "time", "lo_ms", lo), "time", "hi_ms", hi)
        case "GreaterThan" | "GreaterThanOrEqual":
            return _tighten(bounds, "time", "lo_ms", lo)
        case "LessThan" | "LessThanOrEqual":
            return _tighten(bounds, "time", "hi_ms", hi)
    return None


def _tighten(bounds: Bounds, name: str, side: str, value: int) -> Bounds:
    field = f"{name}_{side}"
    before = getattr(bounds, field)
    if before is not None:
        value = max(before, value) if side.startswith("lo") else min(before, value)
    changes: dict[str, Any] = {field: value}
    return replace(bounds, **changes)


def _values(kind: str, value: Any, wanted: type) -> frozenset[Any] | None:
    """The values that an equality or an IN list allows; None when it is something else. Null matches nothing."""
    if kind in ("EqualTo", "EqualNullSafe"):
        return frozenset([value]) if _is(value, wanted) else None
    if kind == "In" and isinstance(value, list | tuple) and all(one is None or _is(one, wanted) for one in value):
        return frozenset(one for one in value if one is not None)
    return None


def _is(value: Any, wanted: type) -> bool:
    return isinstance(value, wanted) and not isinstance(value, bool)
