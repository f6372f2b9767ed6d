"""Kill -9 with transactions open: what is committed arrives, what is rolled back never does, a kill repeats once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.killing import run_and_kill
from tests.crash.transaction_victim import COMMIT, ROLLBACK, answer_checks, open_harness, verdict
from tests.unit.server.test_transactions import stored, wait

START = 1_767_225_600_000
KILLS = 12


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_every_transaction_ends_as_its_producer_said(tmp_path: Path) -> None:
    rng = random.Random(20)
    begun: set[int] = set()
    runs: list[list[int]] = []
    now, seen = START, 0
    for seed in range(1, KILLS + 1):
        ended: set[int] = set()
        for name, value in run_and_kill("transaction_victim", tmp_path, seed, now, rng.randrange(20, 500)):
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
