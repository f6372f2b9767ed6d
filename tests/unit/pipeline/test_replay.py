"""The parts of a replay that need no broker: waves, state, filters, rate."""

from __future__ import annotations

import pytest

from stratamq.errors import PipelineError
from stratamq.pipeline.jobs import replay as job
from stratamq.pipeline.jobs.replay import Limiter, Piece, State, Where, waves_of
from stratamq.pipeline.jobs.table import Table
from stratamq.pipeline.options import parse_options


def piece(topic: str, queue_id: int, lo: int) -> Piece:
    return Piece(topic, queue_id, lo, lo + 10, False, ())


def where(**changes: object) -> Where:
    to = parse_options({"namesrv": "127.0.0.1:1"})
    return Where("n", to, "", None, None, None, None)._replace(**changes)  # type: ignore[arg-type]


def test_a_queue_is_in_a_wave_once_and_in_order():
    pieces = [piece("a", 0, 0), piece("a", 0, 10), piece("a", 1, 0), piece("b", 0, 0), piece("b", 0, 10)]
    waves = waves_of(pieces)
    assert [[(one.topic, one.queue_id, one.lo) for one in wave] for wave in waves] == [
        [("a", 0, 0), ("a", 1, 0), ("b", 0, 0)],
        [("a", 0, 10), ("b", 0, 10)],
    ]
    assert waves_of([]) == []


def test_a_state_is_taken_up_with_the_plan_that_it_began_with(tmp_path):
    path = tmp_path / "deep" / "state.json"
    state = State.open(path, ["plan"], lambda: [piece("a", 0, 0)])
    state.since, state.done = {"a/0": 7}, 0
    state.save()
    again = State.open(path, ["plan"], lambda: pytest.fail("it has a plan"))
    assert (again.pieces, again.since, again.done) == ([piece("a", 0, 0)], {"a/0": 7}, 0)
    with pytest.raises(PipelineError, match="other options"):
        State.open(path, ["another"], list)
    for text in ("", "{}", "[]", '{"pieces": [[1]], "plan": "", "done": 0, "since": null}'):
        path.write_text(text)
        with pytest.raises(PipelineError, match="no state"):
            State.open(path, ["plan"], list)


def test_tags_and_keys():
    properties = {"TAGS": "a", "KEYS": "k1 k2"}
    assert job.wants(properties, where())
    assert job.wants(properties, where(tag="a", key="k2"))
    assert not job.wants(properties, where(tag="b"))
    assert not job.wants(properties, where(key="k"))
    assert not job.wants({}, where(key="k"))


def test_the_rate_holds_over_any_time():
    now = [0.0]
    limiter = Limiter(100, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert limiter.batch_max == 50
    for _ in range(40):
        limiter.take(limiter.batch_max)
    assert now[0] == pytest.approx(19.5)
    now[0] += 100  # what was not used is not saved up
    for _ in range(3):
        limiter.take(50)
    assert now[0] == pytest.approx(120.5)
    assert Limiter(0).batch_max == job.BATCH_MESSAGES_MAX
    assert Limiter(0.1).batch_max == 1


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="no table"):
        job.pieces_of_table(Table(tmp_path), None)
