"""Kill -9 with messages for a set time pending: every acknowledged one is delivered, and none before its time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stratamq.testing.clock import ManualClock
from tests.crash.killing import run_and_kill
from tests.unit.server.test_timers import START, TimerHarness

KILLS = 12


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_every_acknowledged_message_comes_after_kills(tmp_path: Path) -> None:
    rng = random.Random(20)
    due: dict[bytes, int] = {}
    now = START
    for seed in range(1, KILLS + 1):
        for name, value in run_and_kill("timer_victim", tmp_path, seed, now, rng.randrange(20, 600)):
            if name == "clock":
                now = int(value)
            else:
                due[name.encode()] = int(value)
    harness = TimerHarness(tmp_path, clock=ManualClock(now))
    delivered = set(harness.bodies())
    assert {body for body in delivered if due.get(body, 0) > now + 1_000} == set()
    for _ in range(40):
        harness.clock.advance(500)
        for _ in range(5):
            harness.broker.run_due()
    assert set(harness.bodies()) >= set(due)
    assert len(due) > 300
    assert harness.files.wheel.pending() == 0
    harness.stop()
