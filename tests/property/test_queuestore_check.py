"""`store check` of the queue store against any damage: what it does not report changes no message.

Random operations make a store, which is stopped or killed; then a bit is flipped, a file cut short, or a sector zeroed.
"""

from __future__ import annotations

import functools
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.findings import Severity
from stratamq.queuestore.check import QueueStoreReport, check_queue_store
from tests.property.test_queuestore_damage import (
    DAMAGES,
    Key,
    content_of,
    do_damage,
    messages_in,
    open_or_refuse,
    open_store,
)
from tests.unit.queuestore.memory_disk import MemoryDisk

STORES = 12


class Made(NamedTuple):
    """A store's disk, the messages that a start finds in it, and what a check says of it."""

    disk: MemoryDisk
    messages: dict[Key, bytes | None]
    report: QueueStoreReport


def operate(folder: str, seed: int) -> MemoryDisk:
    """A store after random operations, every third one stopped in order."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    store = open_store(folder, disk)
    names = ["a", "b", "c", "d"]
    for number in range(rng.randint(20, 160)):
        queues = [store.declare_queue(name, durable=True) for name in rng.sample(names, rng.randint(1, 3))]
        store.publish(content_of(number), persistent=rng.random() < 0.9, queues=queues)
        chance = rng.random()
        if chance < 0.3:
            queues[0].ack([delivery.seq for delivery in queues[0].fetch(rng.randint(1, 8))])
        elif chance < 0.4:
            queues[0].requeue([delivery.seq for delivery in queues[0].fetch(2)])
        elif chance < 0.42:
            queues[0].purge()
        elif chance < 0.44:
            store.delete_queue(queues[0].name)
        if rng.random() < 0.4 and (token := store.commit()) is not None and rng.random() < 0.7:
            store.sync(token)
            store.synced(token)
        if rng.random() < 0.3:
            store.tick()
    if seed % 3 == 0:
        store.close()
        return disk
    store._lock.release()
    return disk.crash(rng if seed % 3 == 1 else None)


@functools.cache
def made(folder: str, seed: int) -> Made:
    """One of the stores."""
    disk = operate(folder, seed)
    report = check_queue_store(folder, filesystem=disk)
    store = open_store(folder, disk.crash(None))
    messages = messages_in(store)
    store._lock.release()
    return Made(disk, messages, report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Where the stores say that they lie; the files are in memory."""
    return str(tmp_path_factory.mktemp("store"))


def snapshot(disk: MemoryDisk) -> dict[str, dict[str, bytes]]:
    """All bytes on a disk."""
    return {path: {name: bytes(file.data) for name, file in files.items()} for path, files in disk.directories.items()}


@pytest.mark.parametrize("seed", range(STORES))
def test_a_store_that_nothing_happened_to_is_whole_and_stays_as_it_is(folder, seed):
    disk = operate(folder, seed)
    before = snapshot(disk)
    report = check_queue_store(folder, filesystem=disk)
    assert snapshot(disk) == before
    assert [finding for finding in report.findings if finding.severity is not Severity.INFO] == []
    assert report.messages == len(made(folder, seed).messages)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, STORES - 1),
    pick=st.integers(0, 10_000),
    damage=DAMAGES,
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_damage_is_reported_or_changes_no_message(folder, seed, pick, damage, where, bit):
    before = made(folder, seed)
    disk = before.disk.crash(None)
    path, at = do_damage(disk, pick, damage, where, bit)
    report = check_queue_store(folder, filesystem=disk)
    new = set(report.findings) - set(before.report.findings)
    store = open_or_refuse(folder, disk)
    if store is None:
        assert report.is_damaged, f"{path}, {damage} at {at}: a start refuses it"
        assert not report.is_readable
        return
    assert report.is_readable
    try:
        found = messages_in(store)
    finally:
        store._lock.release()
    if found != before.messages:
        assert new, f"{path}, {damage} at {at}: not reported"
    unreadable = [key for key, content in found.items() if content is None and before.messages.get(key) is not None]
    if unreadable:
        assert report.is_damaged, f"{path}, {damage} at {at}: {unreadable} are held back, and no error is reported"
