"""Kill -9 while messages are popped and acknowledged: what was acknowledged stays so, everything else comes again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.killing import run_and_kill
from tests.crash.pop_victim import INVISIBLE_MS, open_harness, popped
from tests.unit.server.test_pop import ack

START = 1_767_225_600_000
KILLS = 10


def drain(directory: Path, now_ms: int) -> tuple[list[str], int]:
    """Take and acknowledge everything that the broker gives out until all invisible times are over."""
    harness = open_harness(directory, now_ms)
    found: list[str] = []
    for _ in range(40):
        for name, handle in popped(harness):
            found.append(name)
            assert ack(harness, handle).code == 0
        harness.clock.advance(INVISIBLE_MS // 8)
        for _ in range(4):
            harness.broker.run_due()
    end = harness.clock.wall_ms()
    harness.close()
    return found, end


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_no_message_is_lost_and_none_that_was_acknowledged_comes_again(tmp_path: Path) -> None:
    rng = random.Random(31)
    now, came_again, acked_in_all = START, 0, 0
    for seed in range(1, KILLS + 1):
        lines = run_and_kill("pop_victim", tmp_path, seed, now, rng.randrange(40, 500))
        told = {what: {value for name, value in lines if name == what} for what in ("sent", "ack", "acked")}
        now = max(int(value) for name, value in lines if name == "clock")
        found, now = drain(tmp_path, now)
        assert told["acked"] & set(found) == set(), "acknowledged, answered, and given out again"
        assert told["sent"] - told["ack"] <= set(found), "stored, never acknowledged, and lost"
        came_again += len(found)
        acked_in_all += len(told["acked"])
    assert came_again > 50
    assert acked_in_all > 50
