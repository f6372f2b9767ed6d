"""Pushed filters: what is taken, what is given back, and that nothing that could match is ever left out."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.pipeline.filters import CLOCK_STEP_MS, OFFSETS_IN_MAX, Bounds, take_filters

T0 = datetime.datetime(2024, 6, 1, 10, 0, 0, 1500, tzinfo=datetime.UTC)
T0_MS = int(T0.timestamp() * 1000)


@dataclass(frozen=True)
class Filter:
    attribute: tuple[str, ...]
    value: Any = None


class EqualTo(Filter): ...


class GreaterThan(Filter): ...


class GreaterThanOrEqual(Filter): ...


class LessThan(Filter): ...


class LessThanOrEqual(Filter): ...


class In(Filter): ...


class IsNotNull(Filter): ...


class StringStartsWith(Filter): ...


class Not(Filter): ...


def test_topic_queue_and_offset_are_taken_whole():
    filters = [
        IsNotNull(("topic",)),
        EqualTo(("topic",), "orders"),
        In(("queue_id",), (1, 3, None)),
        GreaterThan(("queue_offset",), 9),
        LessThanOrEqual(("queue_offset",), 20),
    ]
    bounds, rest = take_filters(filters)
    assert rest == []
    assert bounds == Bounds(
        topics=frozenset({"orders"}), queues=frozenset({1, 3}), queue_lo=1, queue_hi=4, offset_lo=10, offset_hi=21
    )
    assert bounds.wants_queue("orders", 3)
    assert not bounds.wants_queue("orders", 2)
    assert not bounds.wants_queue("payments", 1)
    assert bounds.ranges(0, 15) == [(10, 15)]
    assert bounds.ranges(21, 30) == []


def test_filters_join_as_and():
    bounds, rest = take_filters(
        [
            In(("topic",), ("a", "b")),
            In(("topic",), ("b", "c")),
            StringStartsWith(("topic",), "b"),
            GreaterThanOrEqual(("queue_id",), 2),
            LessThan(("queue_id",), 4),
        ]
    )
    assert rest == []
    wanted = [(topic, queue) for topic in "abc" for queue in range(6) if bounds.wants_queue(topic, queue)]
    assert wanted == [("b", 2), ("b", 3)]


def test_lists_of_offsets_become_runs():
    bounds, rest = take_filters([In(("queue_offset",), (5, 3, 4, 9, 100))])
    assert rest == []
    assert bounds.ranges(0, 50) == [(3, 6), (9, 10)]
    long = In(("queue_offset",), tuple(range(0, 2 * OFFSETS_IN_MAX + 2, 2)))
    bounds, rest = take_filters([long])
    assert rest == [long]
    assert bounds.ranges(0, 10**6) == [(0, 2 * OFFSETS_IN_MAX + 1)]
    assert take_filters([In(("queue_offset",), (None,))])[0].nothing


def test_times_narrow_but_spark_looks_again():
    filters = [GreaterThanOrEqual(("store_timestamp",), T0), LessThan(("store_timestamp",), T0)]
    bounds, rest = take_filters(filters)
    assert rest == filters
    assert all(one is other for one, other in zip(rest, filters, strict=True)), "Spark compares by identity"
    assert bounds.time_lo_ms == T0_MS - CLOCK_STEP_MS
    assert bounds.time_hi_ms == T0_MS + 1 + CLOCK_STEP_MS
    naive = GreaterThan(("store_timestamp",), T0.replace(tzinfo=None))
    assert take_filters([naive])[0].time_lo_ms == T0_MS - CLOCK_STEP_MS


@pytest.mark.parametrize(
    "foreign",
    [
        EqualTo(("tags",), "a"),
        EqualTo(("properties", "a"), "b"),
        IsNotNull(("tags",)),
        EqualTo(("topic",), 5),
        EqualTo(("queue_offset",), True),
        GreaterThan(("queue_offset",), 1.5),
        GreaterThan(("born_timestamp",), T0),
        GreaterThan(("topic",), "a"),
        Not(("queue_id",), 5),
        In(("topic",), ("a", 5)),
    ],
)
def test_everything_else_is_sparks(foreign):
    bounds, rest = take_filters([foreign])
    assert rest == [foreign]
    assert bounds == Bounds()


KINDS = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}
numbers = st.integers(-2, 12)
one_filter = st.one_of(
    st.builds(lambda kind, value: kind(("queue_offset",), value), st.sampled_from(list(KINDS)[:5]), numbers),
    st.builds(lambda values: In(("queue_offset",), tuple(values)), st.lists(numbers, max_size=4)),
)


@given(st.lists(one_filter, max_size=4), st.integers(0, 5), st.integers(0, 12))
def test_ranges_hold_exactly_the_offsets_that_match(filters, lo, hi):
    bounds, rest = take_filters(filters)
    assert rest == []
    found = [] if bounds.nothing else [offset for a, b in bounds.ranges(lo, hi) for offset in range(a, b)]
    wanted = [at for at in range(lo, hi) if all(KINDS[type(one)](at, one.value) for one in filters)]
    assert found == wanted
