"""Kill a process that uploads, joins and deletes, again and again: every durable message stays readable."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratamq.tiered import commits, inspecting
from stratamq.tiered.litter import find_litter
from tests.crash.tier_victim import QUEUES, Opened, body_of
from tests.unit.tiered.test_store import read_everything

pytestmark = pytest.mark.crash
ROOT = Path(__file__).resolve().parents[2]


def run_and_kill(directory: Path, lines: int, seconds: float) -> dict[int, int]:
    """Kill the victim so long after so many lines; returns how many messages of each queue it said are durable."""
    victim = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("tier_victim.py")), str(directory)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
    )
    assert victim.stdout is not None
    said = b"".join(victim.stdout.readline() for _ in range(lines))
    time.sleep(seconds)  # the moment of the kill is what the test varies
    victim.kill()
    rest = victim.stdout.read()
    victim.wait()
    victim.stdout.close()
    acked: dict[int, int] = {}
    for line in (said + rest).decode().splitlines():
        parts = line.split()
        if len(parts) == 2:
            acked[int(parts[0])] = int(parts[1])
    assert acked
    return acked


def test_whatever_was_durable_is_readable_after_any_kill(tmp_path):
    rng = random.Random(11)
    acked: dict[int, int] = {}
    low = segments = 0
    for _ in range(12):
        acked.update(run_and_kill(tmp_path, rng.randrange(1, 70), rng.random() * 0.03))
        opened = Opened(tmp_path)
        for queue in range(QUEUES):
            found = read_everything(opened.store, "T", queue, 0)
            assert len(found) >= acked.get(queue, 0)
            assert found == [(number, body_of(number)) for number in range(len(found))]
        everything = commits.find_all(opened.service.tier.backend)
        assert list(inspecting.check(opened.service.tier.backend, everything, deep=True)) == []
        litter = find_litter(opened.service.tier.backend, opened.clock.wall_ms() + 10**9, 0)
        assert litter.strange == []
        low, segments = opened.local.min_offset("T", 0), inspecting.total(everything.manifests).segments
        opened.service.close()
        opened.local.close()
    assert low > 100, "local files went, so the tier was read"
    assert segments > 3
