"""What happens to a queue in the cold tier, decided without a backend."""

from __future__ import annotations

import pytest

from stratamq.config import TieredConfig
from stratamq.errors import ConfigError
from stratamq.formats.cold_manifest import FLAT, PARQUET, Gap
from stratamq.formats.cold_names import Lifetime
from stratamq.tiered import planning
from stratamq.tiered.planning import HOUR_MS, Waiting, Writer
from tests.unit.formats.test_cold import manifest, segment

WRITER = Writer(3, "w3")
POLICY = TieredConfig()


# --- which topics ---


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC", "%LMQ%a", "broker-a", "TBW102"]
)
def test_system_topics_are_never_tiered(topic):
    assert not planning.is_tiered(topic, POLICY, {"broker-a"})


def test_retry_and_dead_letter_topics_are_tiered():
    assert planning.is_tiered("%RETRY%g", POLICY)
    assert planning.is_tiered("%DLQ%g", POLICY)


def test_topics_are_picked_by_pattern():
    policy = TieredConfig(topics="orders*; logs", topics_excluded="orders-test")
    found = [
        topic for topic in ("orders", "orders-1", "orders-test", "logs", "logs2") if planning.is_tiered(topic, policy)
    ]
    assert found == ["orders", "orders-1", "logs"]


def test_hours_of_a_topic():
    policy = TieredConfig(topic_hours="logs*=5;audit=8760")
    assert planning.hours_of("logs-1", policy) == 5
    assert planning.hours_of("audit", policy) == 8760
    assert planning.hours_of("other", policy) == 72
    assert planning.hours_of("logs-1", policy, "9") == 9
    for nonsense in ("", "x", "0", "-1", "9" * 30):
        assert planning.hours_of("logs-1", policy, nonsense) == 5


@pytest.mark.parametrize("text", ["a", "a=", "a=0", "=5", "a=x"])
def test_hours_that_say_nothing_are_refused(text):
    with pytest.raises(ConfigError):
        TieredConfig(topic_hours=text)


# --- sealing ---


def test_time_alone_is_enough_to_seal():
    assert planning.should_seal(Waiting(1, 1, 30_000), POLICY)
    assert not planning.should_seal(Waiting(1, 1, 29_999), POLICY)
    assert not planning.should_seal(Waiting(0, 0, 10**9), POLICY)
    assert planning.should_seal(Waiting(1, 16 * 2**20, 0), POLICY)
    assert planning.should_seal(Waiting(100_000, 1, 0), POLICY)


# --- manifests ---


def test_a_queue_begins_where_it_is_told_to():
    made = planning.created(Lifetime("T", 1, 2), 50, WRITER, 7)
    assert (made.version, made.start, made.end, made.epoch, made.segments) == (0, 50, 50, 3, ())


def test_a_segment_must_continue_where_the_tier_ends():
    before = manifest(end=10, segments=(segment(0, 9),))
    after = planning.with_segment(before, segment(10, 14), WRITER, 9)
    assert (after.version, after.start, after.end, after.epoch) == (5, 0, 15, 3)
    with pytest.raises(AssertionError):
        planning.with_segment(before, segment(11, 14), WRITER, 9)
    with pytest.raises(AssertionError):
        planning.with_segment(before, segment(9, 14), WRITER, 9)


def test_an_older_epoch_cannot_follow():
    with pytest.raises(AssertionError):
        planning.with_segment(manifest(epoch=4), segment(0, 1), WRITER, 9)


def test_a_gap_is_recorded_and_gone_on_behind():
    before = manifest(end=10, segments=(segment(0, 9),))
    after = planning.with_gap(before, 15, "gone", WRITER, 9)
    assert after.gaps == (Gap(first=10, last=14, noted_ms=9, reason="gone"),)
    assert (after.start, after.end) == (0, 15)
    more = planning.with_segment(after, segment(15, 19), WRITER, 9)
    left = planning.without(more, more.segments[:1], WRITER, 9, 0)
    assert (left.start, left.end, len(left.gaps)) == (15, 20, 1)


def test_a_gap_before_anything_was_uploaded_moves_the_start():
    after = planning.with_gap(manifest(start=5, end=5), 9, "gone", WRITER, 9)
    assert (after.start, after.end) == (9, 9)


# --- expiry ---


def aged(*times: int):
    rows = tuple(segment(n * 10, n * 10 + 9, max_ms=time, bytes=100) for n, time in enumerate(times))
    return manifest(end=len(times) * 10, segments=rows)


def test_the_oldest_segments_expire_by_their_newest_message():
    value = aged(0, HOUR_MS, 2 * HOUR_MS)
    assert planning.expired(value, 72 * HOUR_MS - 1, 72) == []
    assert [s.first for s in planning.expired(value, 72 * HOUR_MS, 72)] == [0]
    assert [s.first for s in planning.expired(value, 74 * HOUR_MS, 72)] == [0, 10, 20]


def test_expiry_stops_at_the_first_segment_that_stays():
    assert planning.expired(aged(10**15, 0, 0), 100 * HOUR_MS, 72) == []


def test_an_empty_queue_has_nothing_that_expires():
    assert planning.expired(manifest(start=5, end=5), 10**15, 1) == []


def test_too_many_bytes_expire_the_oldest():
    assert [s.first for s in planning.expired(aged(0, 0, 0), 0, 72, 250)] == [0]
    assert [s.first for s in planning.expired(aged(0, 0, 0), 0, 72, 50)] == [0, 10, 20]


def test_objects_go_only_after_the_grace_time():
    before = aged(0, 0)
    after = planning.without(before, before.segments, WRITER, 100, 50)
    assert (after.start, after.end, after.segments) == (20, 20, ())
    assert planning.deletable(after, 149) == []
    assert planning.deletable(after, 150) == ["s/0", "s/10"]
    assert planning.purged(after, ["s/0"], WRITER, 150).dropped[0].name == "s/10"


def test_only_the_oldest_can_go():
    before = aged(0, 0)
    with pytest.raises(AssertionError):
        planning.without(before, before.segments[1:], WRITER, 100, 50)


# --- joining ---


def small(count: int, raw: int = 1000, day: int = 0, **changes):
    at = day * planning.DAY_MS
    rows = tuple(
        segment(n * 10, n * 10 + 9, raw_bytes=raw, min_ms=at + n, max_ms=at + n, **changes) for n in range(count)
    )
    return manifest(end=count * 10, segments=rows)


def test_enough_bytes_are_joined():
    policy = TieredConfig(compact_bytes=100_000, compact_bytes_max=150_000)
    found = planning.plan_join(small(20, raw=10_000), 1000, policy, PARQUET)
    assert found == (small(20, raw=10_000).segments[:15], PARQUET)
    assert planning.plan_join(small(9, raw=10_000), 1000, policy, PARQUET) is None


def test_a_day_that_is_over_is_joined():
    assert planning.plan_join(small(3), planning.DAY_MS, POLICY, PARQUET) is None
    later = planning.DAY_MS + 2 * HOUR_MS
    assert planning.plan_join(small(3), later, POLICY, PARQUET) == (small(3).segments, PARQUET)
    assert planning.plan_join(small(1), later, POLICY, PARQUET) == (small(1).segments, PARQUET)
    assert planning.plan_join(small(1), later, POLICY, FLAT) is None


def test_many_small_segments_become_a_larger_flat_one():
    assert planning.plan_join(small(63), 100, POLICY, PARQUET) is None
    assert planning.plan_join(small(64), 100, POLICY, PARQUET) == (small(64).segments, FLAT)


def test_what_is_large_already_is_not_joined_again():
    policy = TieredConfig(compact_bytes=100_000, compact_bytes_max=150_000)
    value = small(2, raw=120_000)
    assert planning.plan_join(value, 10**15, policy, FLAT) is None
    assert planning.plan_join(value, 0, policy, PARQUET).segments == value.segments[:1]
    assert planning.plan_join(small(9, format=PARQUET), 10**15, policy, PARQUET) is None


def test_a_swap_needs_exactly_the_segments_that_were_joined():
    before = small(4)
    new = segment(10, 29, format=PARQUET, index_name="i", name="p")
    after = planning.swapped(before, before.segments[1:3], new, WRITER, 9, 50)
    assert [s.first for s in after.segments] == [0, 10, 30]
    assert [row.name for row in after.dropped] == ["s/10", "s/20"]
    assert planning.swapped(after, before.segments[1:3], new, WRITER, 9, 50) is None
    assert planning.swapped(before, before.segments[1:3], segment(10, 19), WRITER, 9, 50) is None
    assert planning.swapped(before, (), new, WRITER, 9, 50) is None
