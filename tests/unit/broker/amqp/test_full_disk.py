"""A disk without room: what is refused, what waits, what goes on; and all of it once there is room again."""

from __future__ import annotations

import errno
import sys

import pytest

from stratamq.broker.amqp.durable_storage import DurableStorage
from stratamq.config import QueueStoreConfig
from stratamq.protocols.amqp import methods
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock
from tests.unit.broker.amqp.clients import Client, new_broker, turn
from tests.unit.queuestore.memory_disk import MemoryDisk


class World:
    """A broker over a disk that is full when the test says so; syncs and timers run at once."""

    def __init__(self, directory):
        self.disk = MemoryDisk()
        self.store = QueueStore.open(directory, QueueStoreConfig(), clock=ManualClock(), filesystem=self.disk)
        self.tokens, self.later = [], []
        self.free = sys.maxsize
        self.storage = DurableStorage(
            self.store, start_sync=self.tokens.append, call_later=self.later.append, free_bytes=lambda: self.free
        )
        self.fills = 0
        self.storage.on_full = self.note_full
        self.client = Client(new_broker(self.storage))
        dead = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        self.client.queue("dead", durable=True)
        self.client.queue("q", durable=True, **dead)
        self.client.queue("brief", durable=True, message_ttl=50, **dead)
        self.client.queue("other", durable=True, message_ttl=50, **dead)
        self.client.call(methods.ConfirmSelect(False))

    def note_full(self):
        self.fills += 1

    def set_full(self, full):
        """No room for anything from here on, or room again."""
        self.disk.fail_ops = frozenset({"write", "create"})
        self.disk.fail_with, self.disk.fail_from = errno.ENOSPC, full
        self.disk.fail_at = self.disk.calls + 1 if full else -1

    def settle(self, *, later_ms=0):
        """Let what waits run once; what the client is told."""
        turn(self.client.broker, later_ms=later_ms)
        while self.tokens:
            token = self.tokens.pop(0)
            self.store.sync(token)
            self.storage.sync_done(token, None)
        waiting, self.later[:] = list(self.later), []
        for work in waiting:
            work()
        while self.tokens:
            token = self.tokens.pop(0)
            self.store.sync(token)
            self.storage.sync_done(token, None)
        turn(self.client.broker)
        return self.client.take()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.set_full(False)
    made.settle()
    made.store.close()


def test_what_was_taken_waits_what_comes_later_is_refused_and_confirms_keep_their_order(world):
    world.client.publish("q", "taken", delivery_mode=2)
    assert world.settle() == [methods.BasicAck(1, False)]
    world.set_full(True)
    world.client.publish("q", "waits", delivery_mode=2)
    assert world.settle() == []
    world.client.publish("q", "refused", "refused too", delivery_mode=2)
    assert world.settle() == []
    assert world.storage.is_full
    assert world.fills == 1
    world.set_full(False)
    assert world.settle() == [
        methods.BasicAck(2, False),
        methods.BasicNack(3, False, False),
        methods.BasicNack(4, False, False),
    ]
    assert not world.storage.is_full
    world.client.publish("q", "after", delivery_mode=2)
    assert world.settle() == [methods.BasicAck(5, False)]
    assert world.client.bodies("q") == ["taken", "waits", "after"]


def test_a_transaction_is_not_answered_as_done(world):
    world.set_full(True)
    world.client.publish("q", "waits", delivery_mode=2)
    other = Client(world.client.broker)
    other.call(methods.TxSelect())
    other.publish("q", "refused", delivery_mode=2)
    (close,) = other.send(methods.TxCommit())
    assert (close.code, close.text) == (406, "PRECONDITION_FAILED - partial tx completion")


def test_messages_go_on_dying_and_none_is_lost(world):
    world.client.publish("q", "rejected", "acked", delivery_mode=2)
    world.client.publish("brief", "expires", delivery_mode=2)
    world.client.publish("other", "expires too", delivery_mode=2)
    world.settle()
    world.set_full(True)
    world.client.publish("q", "waits", delivery_mode=2)
    got, _, _ = world.client.get("q", no_ack=False)
    assert world.client.nack(got.delivery_tag, requeue=False) == []
    assert world.client.get("q")[2] == b"acked"
    world.settle(later_ms=60)
    assert world.storage.is_full
    assert [world.client.count(name) for name in ("q", "brief", "other", "dead")] == [1, 0, 0, 3]
    world.set_full(False)
    world.settle()
    assert world.client.bodies("dead") == ["rejected", "expires", "expires too"]


def test_expiry_rests_while_too_much_waits_for_the_disk(world, monkeypatch):
    world.client.publish("brief", "expires", delivery_mode=2)
    world.settle()
    monkeypatch.setattr("stratamq.broker.amqp.durable_storage.UNSYNCED_BYTES_MAX", 0)
    world.set_full(True)
    world.client.publish("q", "waits", delivery_mode=2)
    world.settle(later_ms=60)
    assert world.client.count("brief") == 1
    assert world.client.broker.next_deadline_ms() > world.client.broker.now_ms
    world.set_full(False)
    world.settle()
    world.settle(later_ms=200)
    assert [world.client.count("brief"), world.client.count("dead")] == [0, 1]


def test_publishes_are_refused_before_acknowledgements_have_no_room(world):
    world.free = world.storage.room.reserve + 1_000
    world.client.publish("q", "one", "two", delivery_mode=2)
    world.settle()
    assert world.client.publish("q", "three" * 200, delivery_mode=2) == [methods.BasicNack(3, False, False)]
    assert world.storage.is_full
    assert world.fills == 1
    world.free *= 2
    assert not world.storage.is_full
    world.client.publish("q", "four", delivery_mode=2)
    assert world.settle() == [methods.BasicAck(4, False)]
