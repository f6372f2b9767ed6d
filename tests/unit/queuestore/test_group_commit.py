"""Commits and confirms on an event loop: after the sync, in order, shared, and what a failing disk does to them."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from functools import partial

import pytest

from stratamq.config import QueueStoreConfig
from stratamq.errors import StoreError, StoreFailed
from stratamq.queuestore.group_commit import GroupCommitter
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock
from tests.unit.queuestore.memory_disk import MemoryDisk


class SlowDisk(MemoryDisk):
    """A disk whose syncs wait for a test's permission."""

    def __init__(self):
        super().__init__()
        self.allowed = threading.Event()
        self.allowed.set()
        self.syncs = 0

    def sync(self, fd):
        self.allowed.wait(100)
        self.syncs += 1
        super().sync(fd)


@pytest.fixture
def disk():
    """A disk that can be held up."""
    return SlowDisk()


@pytest.fixture
def store(tmp_path, disk):
    """A store on that disk, one durable queue declared."""
    config = QueueStoreConfig(sync_interval_ms=1)
    opened = QueueStore.open(tmp_path, config, clock=ManualClock(), filesystem=disk)
    opened.declare_queue("q", durable=True)
    yield opened
    opened.close()


def noted(confirmed: list[object], number: int, error: StoreError | None) -> None:
    """A done-callback that remembers which message it was for."""
    confirmed.append((number, error))


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is true."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - nothing tells that a timer of the committer has run
            await asyncio.sleep(0.001)


async def settled(committer: GroupCommitter) -> None:
    """Let the loop turn until nobody waits."""
    await until(lambda: not committer.waiting and committer._syncing is None)


async def test_confirm_comes_after_the_sync_and_one_sync_serves_many(store, disk):
    committer = GroupCommitter(store)
    confirmed: list[object] = []
    disk.allowed.clear()
    for i in range(100):
        committer.publish(b"m", persistent=True, queues=store.queues(), done=partial(noted, confirmed, i))
    for _ in range(5):
        await asyncio.sleep(0)
    assert confirmed == []
    before = disk.syncs
    disk.allowed.set()
    await settled(committer)
    assert confirmed == [(i, None) for i in range(100)]
    assert disk.syncs == before + 1
    await committer.close()
    await committer.close()


async def test_what_is_published_during_a_sync_goes_into_the_next(store, disk):
    committer = GroupCommitter(store)
    confirmed: list[str] = []
    disk.allowed.clear()
    committer.publish(b"1", persistent=True, queues=store.queues(), done=lambda error: confirmed.append("first"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    committer.publish(b"2", persistent=True, queues=store.queues(), done=lambda error: confirmed.append("second"))
    assert store.commit() is not None
    disk.allowed.set()
    committer.schedule()
    await until(lambda: "first" in confirmed)
    await committer.close()
    assert confirmed == ["first", "second"]


async def test_transient_messages_are_confirmed_without_a_sync(store, disk):
    committer = GroupCommitter(store)
    confirmed: list[object] = []
    disk.allowed.clear()
    committer.publish(b"1", persistent=False, queues=store.queues(), done=confirmed.append)
    await asyncio.sleep(0)
    assert confirmed == [None]
    disk.allowed.set()
    await committer.close()


async def test_acknowledgements_are_synced_soon(store, disk):
    committer = GroupCommitter(store)
    committer.publish(b"1", persistent=True, queues=store.queues())
    await settled(committer)
    queue = store.queues()[0]
    queue.ack([delivery.seq for delivery in queue.fetch(1)])
    before = disk.syncs
    committer.schedule()
    await until(lambda: disk.syncs > before)
    await committer.close()


async def test_a_failed_sync_answers_everybody_with_the_failure(store, disk):
    committer = GroupCommitter(store)
    answers: list[object] = []
    disk.fail_ops, disk.fail_with, disk.fail_at = frozenset({"sync"}), errno.EIO, disk.calls + 1
    disk.calls = 0
    disk.fail_at = 1
    for _ in range(3):
        committer.publish(b"1", persistent=True, queues=store.queues(), done=answers.append)
    await settled(committer)
    assert [type(answer) for answer in answers] == [StoreFailed] * 3
    with pytest.raises(StoreFailed):
        committer.publish(b"1", persistent=True, queues=store.queues())
    with pytest.raises(StoreFailed):
        await committer.close()


async def test_a_full_disk_only_delays(store, disk):
    committer = GroupCommitter(store)
    answers: list[object] = []
    disk.fail_ops, disk.fail_with, disk.calls, disk.fail_at = frozenset({"write"}), errno.ENOSPC, 0, 1
    committer.publish(b"1", persistent=True, queues=store.queues(), done=answers.append)
    await until(lambda: answers)
    assert answers == [None]
    await committer.close()
