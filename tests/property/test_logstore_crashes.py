"""Seeded lives of a store on a disk that dies: crashes at any call, lost pages and names, parts deleted by hand.

A life opens the store, checks it against what must and may be there, works, and ends cleanly or in a crash at a chosen
call, after which any part of what was not synced is gone. The seed in the test's name replays it.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from stratamq.config import FlushMode
from stratamq.logstore.check import check_store
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from tests.unit.logstore.stores import FOREVER, abandon, message, open_store, read_all, small_config


class Lives:
    """One store over several lives. ``durable`` must be there: key -> place; ``possible`` may be."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.clock = ManualClock()
        self.config = small_config(
            flush_mode=self.rng.choice(list(FlushMode)),
            commit_log_file_bytes=4096 * self.rng.choice([1, 2, 4]),
            consume_queue_file_bytes=self.rng.choice([100, 400, 6000]),
            index_entries=self.rng.choice([20, 200]),
        )
        self.durable = {}
        self.possible = {}
        self.unsynced = {}
        self.number = 0

    def live(self) -> None:
        fs = FaultyFileSystem()
        if self.rng.random() < 0.7:
            fs.crash_at(self.rng.randint(1, 400))
        self.store = None
        try:
            self.store = open_store(self.directory, self.config, fs=fs, clock=self.clock)
            self.check()
            for _ in range(self.rng.randint(5, 60)):
                self.step()
            if self.rng.random() < 0.5:
                raise SimulatedCrash
            self.store.close()
            self.durable |= self.possible
        except SimulatedCrash:
            if self.store is not None:
                abandon(self.store)
            if self.rng.random() < 0.7:
                fs.lose_unsynced(self.rng, keep=self.rng.choice([0, 0.5, 0.9]))
        self.delete_by_hand()

    def check(self) -> None:
        found = {}
        for key in self.store.queues():
            for record in read_all(self.store, *key, batch=32):
                name = record.body.decode()
                assert name not in found
                found[name] = (record.topic, record.queue_id, record.queue_offset)
        assert {name: found.get(name) for name in self.durable} == self.durable
        assert found.keys() <= self.durable.keys() | self.possible.keys()
        for name in self.rng.sample(sorted(found), min(8, len(found))):
            assert len(self.store.query(found[name][0], "key" + name, 5, 0, FOREVER).records) == 1, name
        self.durable, self.possible, self.unsynced = found, {}, {}

    def step(self) -> None:
        self.clock.advance(self.rng.choice([0, 1, 50, 4000]))
        choice = self.rng.random()
        if choice < 0.6:
            self.append()
        elif choice < 0.8:
            self.store.commit()
        elif choice < 0.93:
            token = self.store.commit() or self.store.unsynced()
            if token is not None:
                self.store.sync(token)
                for name in [name for name, end in self.unsynced.items() if end <= token.end]:
                    self.durable[name] = self.possible[name]
                    del self.unsynced[name]
                self.store.synced(token)
        else:
            self.store.sync_checkpoint(self.store.begin_checkpoint())

    def append(self) -> None:
        topic, queue_id = self.rng.choice("AB"), self.rng.randint(0, 2)
        batch = []
        for _ in range(self.rng.choice([1, 1, 1, 3])):
            self.number += 1
            padding = "p" * self.rng.choice([1, 10, 300])
            batch.append(message(f"{self.number}", topic=topic, queue_id=queue_id, KEYS=f"key{self.number}", P=padding))
        for one, place in zip(batch, self.store.append(batch), strict=True):
            name = one.body.decode()
            self.possible[name] = (topic, queue_id, place.queue_offset)
            self.unsynced[name] = place.physical_offset + place.size

    def delete_by_hand(self) -> None:
        for victim in ("index", "consumequeue", "consumequeue/A/1"):
            if self.rng.random() < 0.1 and os.path.exists(self.directory / victim):
                shutil.rmtree(self.directory / victim)


@pytest.fixture(autouse=True, params=["large", "small"])
def _both_ways(request, monkeypatch):
    """Large stores read their log by blocks in recovery and let queue units wait in memory: small ones here do too."""
    if request.param == "large":
        monkeypatch.setattr("stratamq.logstore.store.WRITE_AT_ONCE_MAX", 0)
        monkeypatch.setattr("stratamq.logstore.store.WAITING_UNITS_MAX", 20)
        monkeypatch.setattr("stratamq.logstore.queue_table.SYNC_FILES_MAX", 3)
        monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)
        monkeypatch.setattr("stratamq.logstore.recovery._ONE_BY_ONE", 3)


@pytest.mark.parametrize("seed", range(80))
def test_nothing_durable_is_lost_and_nothing_appears_from_nowhere(tmp_path, seed):
    assert live_several_times(tmp_path, seed) == []


def live_several_times(directory, seed):
    """Live, crash and check against the model several times; returns what a check of the store finds at the end."""
    lives = Lives(directory, seed)
    for _ in range(lives.rng.randint(2, 5)):
        lives.live()
    lives.store = open_store(directory, lives.config, clock=lives.clock)
    lives.check()
    for _ in range(30):  # a file of a few entries does not tell the check how many slots it has
        lives.append()
    lives.store.close()
    return check_store(directory).findings


@pytest.mark.crash
@pytest.mark.parametrize("block", range(10))
def test_many_more_lives(tmp_path, block):
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        assert live_several_times(tmp_path / str(seed), seed) == []
        shutil.rmtree(tmp_path / str(seed))
