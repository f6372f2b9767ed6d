"""Kill -9 with messages for a set time pending: every acknowledged one is delivered, and none before its time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from stratamq.testing.clock import ManualClock
from tests.unit.server.test_timers import START, TimerHarness

ROOT = Path(__file__).resolve().parents[2]
KILLS = 12


def run_and_kill(directory: Path, seed: int, first_ms: int, lines_before_death: int) -> list[list[str]]:
    """Start the victim, kill it after so many lines, return all that it got out."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.crash.timer_victim", str(directory), str(seed), str(first_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as victim:
        assert victim.stdout is not None
        lines = []
        for line in victim.stdout:
            lines.append(line)
            if len(lines) > lines_before_death:
                victim.kill()
        victim.wait()
    assert lines[0] == "ready\n"
    return [line.split() for line in lines[1:] if line.endswith("\n")]


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_acknowledged_message_comes_after_kills(tmp_path: Path) -> None:
    rng = random.Random(20)
    due: dict[bytes, int] = {}
    now = START
    for seed in range(1, KILLS + 1):
        for name, value in run_and_kill(tmp_path, seed, now, rng.randrange(20, 600)):
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
