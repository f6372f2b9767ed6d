"""What went in and out lately, by a clock that tests move."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stratamq.broker import statistics as module
from stratamq.broker.statistics import Statistics, Tallies, Totals

NOON = int(datetime(2026, 1, 5, 12).timestamp() * 1000)  # noqa: DTZ001 - local time is what is tested


class World:
    """Statistics whose totals are set by hand."""

    def __init__(self, now_ms: int = NOON) -> None:
        self.now = now_ms
        self.totals = Totals()
        self.statistics = Statistics(now_ms=now_ms, totals=lambda: self.totals, cluster="c")

    def seconds(self, count: int, *, each: int = 0) -> None:
        """Let time pass; put so many messages each second."""
        for _ in range(count):
            self.now += 1_000
            tally = self.statistics.puts["T"]
            tally.count += each
            tally.size += 100 * each
            self.totals = self.totals._replace(puts=self.totals.puts + each)
            self.statistics.run_due(self.now)

    def put(self, name: str = "TOPIC_PUT_NUMS", key: str = "T"):
        found = self.statistics.windows(name, key, self.now)
        assert found is not None
        return found


def test_windows_slide():
    world = World()
    world.seconds(300, each=2)
    found = world.put()
    assert 110 <= found.minute.total <= 140
    assert found.minute.per_second == pytest.approx(2.0, rel=0.02)
    assert (found.hour.total, found.day.total) == (600, 600)
    assert world.put("TOPIC_PUT_SIZE").day.per_piece == pytest.approx(100)
    world.seconds(3_600)
    found = world.put()
    assert (found.minute.total, found.day.total) == (0, 600)
    assert found.hour.total <= 600
    world.seconds(1_800)
    assert world.put().hour.total == 0


def test_a_key_that_slept_for_days_begins_anew():
    world = World()
    world.seconds(30, each=1)
    world.now += 3 * 86_400_000
    world.seconds(20, each=1)
    found = world.put()
    assert found.minute.total == found.day.total <= 30
    assert found.minute.per_second == pytest.approx(1.0, rel=0.6)


def test_rates_over_ten_seconds_a_minute_and_ten():
    world = World()
    world.seconds(600, each=1)
    world.seconds(10, each=31)
    ten, minute, ten_minutes = world.statistics.rates(lambda totals: totals.puts, world.now)
    assert ten == pytest.approx(31, rel=0.12)
    assert minute == pytest.approx(6, rel=0.12)
    assert ten_minutes == pytest.approx(1.5, rel=0.05)


def test_totals_at_midnight():
    world = World(NOON + int(timedelta(hours=11, minutes=59).total_seconds() * 1000))
    world.seconds(30, each=1)
    assert world.statistics.morning == Totals()
    world.seconds(60, each=1)
    assert world.statistics.morning.puts in (60, 61)
    world.now += 86_400_000
    world.seconds(1, each=1)
    assert world.statistics.morning_before.puts in (60, 61)
    assert world.statistics.morning.puts == 91


def test_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "KEYS_MAX", 2)
    tallies: Tallies[str] = Tallies()
    for name in "abcd":
        tallies[name].count += 1
    assert sorted(tallies) == ["a", "b"]
    assert tallies.beyond.count == 2


def test_a_topic_that_goes_is_forgotten():
    world = World()
    world.seconds(20, each=1)
    world.statistics.gets["T", "g"].count += 1
    world.statistics.gets["Other", "g"].count += 1
    world.statistics.forget_topic("T")
    assert world.statistics.windows("TOPIC_PUT_NUMS", "T", world.now) is None
    assert world.statistics.windows("GROUP_GET_NUMS", "T@g", world.now) is None
    assert world.statistics.windows("GROUP_GET_NUMS", "Other@g", world.now) is not None
    assert world.statistics.windows("NOTHING", "T", world.now) is None
