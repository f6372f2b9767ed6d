"""Joining segments from outside, beside the owner of the queue: every message once, whatever comes in between."""

from __future__ import annotations

import dataclasses

import pytest

from stratamq.config import TieredConfig, TieredLevel
from stratamq.pipeline.jobs import compact
from stratamq.pipeline.jobs.running import run_here
from stratamq.testing.backend import FaultyBackend
from stratamq.tiered import commits, inspecting
from stratamq.tiered.folder import FolderBackend
from stratamq.tiered.planning import HOUR_MS
from tests.unit.tiered.test_store import Both, expected, read_everything


@pytest.fixture
def both(tmp_path):
    made = Both(tmp_path)
    made.close()
    made.directory = tmp_path / "data"
    made.directory.mkdir()
    made.policy = TieredConfig(
        compact=False, reserved_hours=10_000, seal_bytes=4096, folder=str(tmp_path / "cold"), delete_grace_ms=HOUR_MS
    )
    made.backend = FaultyBackend(FolderBackend(str(tmp_path / "cold")))
    made.open()
    yield made
    made.close()


@pytest.fixture
def tier(both):
    return compact.Tier(both.policy, "b")


def segments(tier):
    backend = tier.open()
    (found,) = [one for one in commits.find_all(backend).manifests if one.topic == "T"]
    return found.segments


def damage(tier):
    backend = tier.open()
    return list(inspecting.check(backend, commits.find_all(backend), deep=True))


def test_segments_become_parquet_and_nothing_changes_for_consumers(both, tier):
    both.fill(60)
    both.tier_all()
    before = len(segments(tier))
    assert compact.compact(run_here, tier, clock=both.clock).joins == 0, "nothing is due yet"
    done = compact.compact(run_here, tier, eager=True, clock=both.clock)
    assert (done.joins, done.messages, done.segments, done.overtaken) == (1, 60, before, 0)
    assert [one.format for one in segments(tier)] == ["parquet"]
    assert compact.compact(run_here, tier, eager=True, clock=both.clock).joins == 0
    assert damage(tier) == []
    both.fill(5)  # the owner goes on from there
    both.tier_all()
    assert segments(tier)[0].format == "parquet"
    assert read_everything(both.with_level(TieredLevel.FORCE)) == [
        *expected(60),
        *((60 + number, body) for number, body in expected(5)),
    ]


def test_the_owner_commits_while_segments_are_joined(both, tier):
    both.fill(40)
    both.tier_all()

    def meanwhile(fn, tasks):
        answers = run_here(fn, tasks)
        both.fill(3)
        both.tier_all()
        return answers

    done = compact.compact(meanwhile, tier, topic="T", eager=False, clock=both.clock)
    assert done.joins == 0
    done = compact.compact(_once(meanwhile), tier, eager=True, clock=both.clock)
    assert done.overtaken == 0
    assert sum(one.count for one in segments(tier)) == 43
    assert damage(tier) == []


def _once(first):
    calls = []

    def run(fn, tasks):
        calls.append(1)
        return (first if len(calls) == 1 else run_here)(fn, tasks)

    return run


def test_two_runs_at_once_join_once(both, tier):
    both.fill(40)
    both.tier_all()

    def meanwhile(fn, tasks):
        answers = run_here(fn, tasks)
        assert compact.compact(run_here, tier, eager=True, clock=both.clock).joins == 1
        return answers

    done = compact.compact(meanwhile, tier, eager=True, clock=both.clock)
    assert (done.joins, done.overtaken) == (0, 1)
    assert sum(one.count for one in segments(tier)) == 40
    assert damage(tier) == []


@pytest.mark.parametrize("when", ["before the commit", "behind the commit"])
def test_killed_and_run_again(both, tier, monkeypatch, when):
    both.fill(40)
    both.tier_all()
    real = compact.commit_join

    def dies(*arguments, **named):
        if when == "behind the commit":
            real(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(compact, "commit_join", dies)
    with pytest.raises(KeyboardInterrupt):
        compact.compact(run_here, tier, eager=True, clock=both.clock)
    monkeypatch.setattr(compact, "commit_join", real)
    done = compact.compact(run_here, tier, eager=True, clock=both.clock)
    assert done.joins == (1 if when == "before the commit" else 0)
    assert [(one.first, one.last, one.format) for one in segments(tier)] == [(0, 39, "parquet")]
    assert damage(tier) == []
    both.fill(1)
    both.tier_all()
    assert len(read_everything(both.with_level(TieredLevel.FORCE))) == 41


def test_an_object_that_does_not_give_the_records_back_is_never_named(both, tier, monkeypatch):
    from stratamq.errors import CorruptionError

    both.fill(20)
    both.tier_all()
    before = segments(tier)
    monkeypatch.setattr(compact, "_count", lambda backend, segment: 19)
    with pytest.raises(CorruptionError, match="20 records"):
        compact.compact(run_here, tier, eager=True, clock=both.clock)
    assert segments(tier) == before


def test_joining_that_took_too_long_is_not_committed(both, tier):
    from stratamq.errors import TierError

    both.fill(20)
    both.tier_all()
    slow = compact.Tier(dataclasses.replace(both.policy, orphan_grace_ms=3_600_000), "b")

    def late(fn, tasks):
        answers = run_here(fn, tasks)
        both.clock.advance(3_000_000)
        return answers

    with pytest.raises(TierError, match="litter"):
        compact.compact(late, slow, eager=True, clock=both.clock)
    assert {one.format for one in segments(tier)} == {"flat"}
