"""Kill -9 with transactions open: what is committed arrives, what is rolled back never does, a kill repeats once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.transaction_victim import COMMIT, ROLLBACK, answer_checks, open_harness, verdict
from tests.unit.server.test_transactions import stored, wait

ROOT = Path(__file__).resolve().parents[2]
START = 1_767_225_600_000
KILLS = 12


def run_and_kill(directory: Path, seed: int, first_ms: int, lines_before_death: int) -> list[list[str]]:
    """Start the victim, kill it after so many lines, return all that it got out."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.crash.transaction_victim", str(directory), str(seed), str(first_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as victim:
        assert victim.stdout is not None
        lines = []
        for line in victim.stdout:
            lines.append(line)
            if len(lines) > lines_before_death:
                victim.kill()
        victim.wait()
    assert victim.returncode == -signal.SIGKILL
    assert lines[0] == "ready\n"
    return [line.split() for line in lines[1:] if line.endswith("\n")]


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_transaction_ends_as_its_producer_said(tmp_path: Path) -> None:
    rng = random.Random(20)
    begun: set[int] = set()
    runs: list[list[int]] = []
    now, seen = START, 0
    for seed in range(1, KILLS + 1):
        ended: set[int] = set()
        for name, value in run_and_kill(tmp_path, seed, now, rng.randrange(20, 500)):
            if name == "clock":
                now = int(value)
            else:
                (begun if name == "half" else ended).add(int(value))
        harness, _ = open_harness(tmp_path, now)
        bodies = [int(record.body[1:]) for record in stored(harness, "T")]
        harness.close()
        runs.append(bodies[seen:])
        seen = len(bodies)
        assert {number for number in ended if verdict(number) == COMMIT} <= set(bodies)
    harness, producer = open_harness(tmp_path, now)
    for _ in range(4):
        wait(harness, steps=len(begun))
        answer_checks(harness, producer)
        harness.heartbeat("c")
    bodies = [int(record.body[1:]) for record in stored(harness, "T")]
    runs.append(bodies[seen:])
    harness.close()
    assert {number for number in begun if verdict(number) == COMMIT} <= set(bodies)
    assert [number for number in bodies if verdict(number) == ROLLBACK] == []
    for run in runs:  # only a kill repeats anything, and each kill once at most
        assert [number for number, times in Counter(run).items() if times > 1] == []
    assert len(begun) > 300
