"""Kill -9 under load with SYNC_FLUSH: every acknowledged message is there, at its place, whole; nothing is torn."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from stratamq.formats.message import check_record
from stratamq.logstore.check import check_store
from stratamq.logstore.store import LogStore
from tests.crash.victim import CONFIG, body_of
from tests.unit.logstore.stores import FOREVER, abandon, open_store, read_all, records_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = 60


def run_and_kill(directory: Path, first: int, acknowledged_before_death: int) -> list[list[str]]:
    """Start the victim, kill it after so many acknowledgements, return all that it got out."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.crash.victim", str(directory), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as victim:
        lines = []
        for line in victim.stdout:
            lines.append(line)
            if len(lines) > acknowledged_before_death:
                victim.kill()
        victim.wait()
    assert lines[0] == "ready\n"
    return [line.split() for line in lines[1:] if line.endswith("\n") and len(line.split()) == 6]


def check(store: LogStore, acknowledged: list[list[str]], newest: list[list[str]]) -> int:
    """Compare the store with what was acknowledged. Returns the highest message number that is in the store."""
    places = {}
    highest = 0
    for key in store.queues():
        for record in read_all(store, *key, batch=32):
            number = record.born_timestamp
            assert record.body == body_of(number)
            highest = max(highest, number)
            places[key.topic, key.queue_id, record.queue_offset] = (record.physical_offset, number)
    for topic, queue_id, queue_offset, physical_offset, number, crc in acknowledged:
        assert places[topic, int(queue_id), int(queue_offset)] == (int(physical_offset), int(number))
        assert zlib.crc32(body_of(int(number))) == int(crc)
    for topic, _, _, physical_offset, number, _ in newest[-20:]:
        (view,) = store.query(topic, f"key{number}", 9, 0, FOREVER).records
        (record,) = records_of(view)
        assert record.physical_offset == int(physical_offset)
        assert check_record(view, 0, len(view), physical_offset=record.physical_offset).flaw is None
    return highest


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_nothing_acknowledged_is_lost_in_sixty_kills(tmp_path):
    rng = random.Random(20240229)
    acknowledged: list[list[str]] = []
    first = 0
    for kill in range(KILLS):
        got = run_and_kill(tmp_path, first, rng.randint(0, 400))
        acknowledged += got
        store = open_store(tmp_path, CONFIG)
        try:
            assert not store.recovery.clean
            first = max(first + len(got), check(store, acknowledged if kill % 10 == 9 else got, got)) + 100
        finally:
            store.close() if kill % 3 else abandon(store)  # every third time the checking process dies as well
        if kill % 3 and kill % 5 == 0:
            assert check_store(tmp_path).findings == []
    store = open_store(tmp_path, CONFIG)
    check(store, acknowledged, acknowledged)
    assert len(acknowledged) > KILLS * 50
    store.close()
    report = check_store(tmp_path)
    assert report.findings == []
    assert report.records >= len(acknowledged)


@pytest.mark.crash
def test_a_broker_that_dies_while_it_opens_loses_nothing(tmp_path):
    """Kill the victim as soon as it says anything, again and again: recovery itself gets interrupted."""
    got = run_and_kill(tmp_path, 0, 500)
    for _ in range(10):
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.crash.victim", str(tmp_path), "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment) as victim:
            victim.stdout.readline()
            victim.kill()
            victim.wait()
    store = open_store(tmp_path, CONFIG)
    check(store, got, got)
    store.close()
