"""The queue store through its front: publish, fetch, acknowledge, requeue, purge, delete, and what a restart keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stratamq.config import QueueStoreConfig
from stratamq.errors import MessageRefused, OffsetOutOfRange, StoreClosed, StoreLocked
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock

SMALL = QueueStoreConfig(
    queue_index_embed_msgs_below=64,
    queue_index_segment_entry_count=16,
    journal_file_bytes=4096,
    msg_store_file_size_limit=4096,
    write_buffer_bytes=1024,
)


def open_store(path: Path, config: QueueStoreConfig = SMALL) -> QueueStore:
    """A store with tiny files and a clock that stands still."""
    return QueueStore.open(path, config, clock=ManualClock())


def sync(store: QueueStore) -> int:
    """Commit and sync; returns the newest durable publish."""
    token = store.commit()
    if token is not None:
        store.sync(token)
        store.synced(token)
    return store.durable


def contents(store: QueueStore, name: str, limit: int = 1000) -> list[bytes]:
    """Fetch everything ready of a queue."""
    queue = store.queue(name)
    assert queue is not None
    return [delivery.content for delivery in queue.fetch(limit)]


@pytest.fixture
def store(tmp_path):
    """An open store."""
    opened = open_store(tmp_path / "store")
    yield opened
    opened.close()


def test_messages_come_back_in_order_and_once(store):
    queue = store.declare_queue("a", durable=True)
    seqs = [store.publish(b"%d" % i, persistent=True, queues=[queue])[0] for i in range(50)]
    assert seqs == list(range(50))
    taken = queue.fetch(20) + queue.fetch(100)
    assert [d.content for d in taken] == [b"%d" % i for i in range(50)]
    assert not any(d.redelivered for d in taken)
    assert queue.fetch(1) == []
    assert queue.counts() == (0, 50, 90)
    assert queue.ack(range(50)) == 50
    assert queue.ack(range(60)) == 0
    assert queue.counts() == (0, 0, 0)


def test_requeued_messages_stand_at_their_old_place(store):
    queue = store.declare_queue("a", durable=False)
    for i in range(40):
        store.publish(b"%d" % i, persistent=False, queues=[queue], priority=i, expiry_ms=i)
    taken = queue.fetch(30)
    assert queue.requeue([taken[3].seq, taken[25].seq, 39, 99]) == 2
    again = queue.fetch(3)
    assert [d[1:] for d in again] == [(b"3", True, 3, 3), (b"25", True, 25, 25), (b"30", False, 30, 30)]
    assert queue.head().locator == 31


def test_large_messages_share_one_body(store, tmp_path):
    queues = [store.declare_queue(f"q{i}", durable=True) for i in range(5)]
    body = bytes(range(256)) * 4
    store.publish(body, persistent=True, queues=queues)
    sync(store)
    assert sum(p.stat().st_size for p in (tmp_path / "store").rglob("*.rdq")) < 2 * len(body)
    for queue in queues:
        assert queue.fetch(1)[0].content == body
        assert queue.read(0) == body


def test_size_hint_decides_where_a_message_goes(store):
    queue = store.declare_queue("q", durable=True)
    store.publish(b"x", persistent=True, queues=[queue], size=64)
    store.publish(b"y" * 100, persistent=True, queues=[queue], size=63)
    assert store.status().message_bytes == 32
    assert contents(store, "q") == [b"x", b"y" * 100]


def test_restart_keeps_persistent_messages_of_durable_queues(tmp_path):
    store = open_store(tmp_path)
    durable, other = store.declare_queue("d", durable=True), store.declare_queue("t", durable=False)
    for i in range(30):
        size = 100 if i % 3 == 0 else 3
        store.publish(b"%03d" % i + b"p" * (size - 3), persistent=i % 2 == 0, queues=[durable, other])
    taken = durable.fetch(10)
    durable.ack([taken[2].seq, taken[4].seq])
    store.close()
    store = open_store(tmp_path)
    assert [queue.name for queue in store.queues()] == ["d"]
    deliveries = store.queues()[0].fetch(100)
    assert [int(d.content[:3]) for d in deliveries] == [0, 6, 8, *range(10, 30, 2)]
    assert [d.redelivered for d in deliveries] == [True] * 3 + [False] * 10
    store.close()


def test_confirms_follow_the_sync(store):
    queue = store.declare_queue("q", durable=True)
    sync(store)
    store.publish(b"1", persistent=True, queues=[queue])
    first = store.commit()
    store.publish(b"2", persistent=True, queues=[queue])
    second = store.commit()
    assert store.durable == 0
    store.sync(first)
    assert store.synced(first) == 1
    store.sync(second)
    assert store.synced(second) == 2
    assert store.commit() is None


def test_purge_leaves_what_is_unacknowledged(tmp_path):
    store = open_store(tmp_path)
    queue = store.declare_queue("q", durable=True)
    for i in range(60):
        store.publish(b"%d" % i * (40 if i % 2 else 1), persistent=True, queues=[queue])
    held = queue.fetch(5)
    assert queue.purge() == 55
    assert queue.counts() == (0, 5, sum(len(d.content) for d in held))
    store.publish(b"after", persistent=True, queues=[queue])
    assert [d.content for d in queue.fetch(9)] == [b"after"]
    store.close()
    store = open_store(tmp_path)
    assert contents(store, "q") == [d.content for d in held] + [b"after"]
    store.close()


def test_deleted_queue_is_gone_and_its_name_is_free(tmp_path):
    store = open_store(tmp_path)
    queue = store.declare_queue("q", durable=True)
    store.publish(b"m" * 100, persistent=True, queues=[queue])
    assert store.delete_queue("q") == 1
    assert store.delete_queue("q") == 0
    again = store.declare_queue("q", durable=True)
    assert again is not queue
    store.publish(b"new", persistent=True, queues=[again])
    store.close()
    store = open_store(tmp_path)
    assert contents(store, "q") == [b"new"]
    store.close()


def test_what_breaks_a_limit_is_refused(store):
    queue = store.declare_queue("q", durable=True)
    small = dataclasses.replace(SMALL, message_bytes_max=1024)
    assert small.message_bytes_max == 1024
    for bad in ({"priority": 256}, {"expiry_ms": -1}):
        with pytest.raises(MessageRefused):
            store.publish(b"m", persistent=True, queues=[queue], **bad)
    assert queue.counts() == (0, 0, 0)
    with pytest.raises(OffsetOutOfRange):
        queue.read(0)


def test_one_owner(store, tmp_path):
    with pytest.raises(StoreLocked):
        open_store(tmp_path / "store")
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.commit()
    open_store(tmp_path / "store").close()
