"""The process dies at any step of a round, and the disk forgets what was not synced: the store opens, without a gap."""

from __future__ import annotations

import random

import pytest

from stratamq.config import RetentionConfig
from stratamq.logstore.retention_service import RetentionService
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from tests.unit.logstore.stores import abandon, bodies, message, open_store, put
from tests.unit.logstore.test_retention_service import BODY, HOUR, Probe


@pytest.mark.parametrize("nth", range(1, 31))
def test_a_crash_in_the_middle_of_a_round(tmp_path, nth):
    fs, clock = FaultyFileSystem(), ManualClock()
    store = open_store(tmp_path / "s", fs=fs, clock=clock)
    put(store, *(message(BODY + str(number).encode(), KEYS=f"k{number}") for number in range(40)))
    store.sync_checkpoint(store.begin_checkpoint())
    clock.advance(73 * HOUR)
    service = RetentionService(store, RetentionConfig(), clock=clock, offsets=dict, probe=Probe(), filesystem=fs)
    service.request()
    fs.crash_at(nth)
    died = False
    try:
        for step in service.round():
            if step.blocking is not None:
                step.blocking()
    except SimulatedCrash:
        died = True
    assert died or nth > 15
    abandon(store)
    fs.lose_unsynced(random.Random(nth))
    store = open_store(tmp_path / "s", clock=clock)
    low = store.min_offset("T", 0)
    assert bodies(store) == [BODY + str(number).encode() for number in range(low, 40)]
    put(store, message(b"after"))
    assert bodies(store)[-1] == b"after"
    store.close()
