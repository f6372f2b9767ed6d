"""Storage: one suite for the store in memory and the durable one; batches and confirms; restarts, clean and not."""

from __future__ import annotations

import json

import pytest

from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.broker.amqp.durable_storage import DurableStorage
from stratamq.broker.amqp.levels import WINDOW_MESSAGES
from stratamq.broker.amqp.messages import Message, MessageDecoder, decode_message, encode_address, encode_message
from stratamq.broker.amqp.policies import Policy
from stratamq.broker.amqp.storage import MemoryStorage
from stratamq.config import QueueStoreConfig
from stratamq.errors import CorruptionError, InvalidArgument
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.properties import Facts, encode_properties
from stratamq.protocols.amqp.values import Sized
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock
from tests.unit.broker.amqp.clients import NOW_MS, Client, new_broker, turn


def message(body: bytes, **properties) -> Message:
    facts = Facts(encode_properties({"delivery_mode": 2, **properties}))
    return Message("ex", "key", encode_address("ex", "key"), facts, body, NOW_MS)


class Disk:
    """A durable storage whose syncs happen when the test says so."""

    def __init__(self, directory):
        self.store = QueueStore.open(directory, QueueStoreConfig(), clock=ManualClock())
        self.tokens, self.later = [], []
        self.storage = DurableStorage(self.store, start_sync=self.tokens.append, call_later=self.later.append)

    def sync(self):
        """Bring to the disk what is on its way there."""
        while self.tokens:
            token = self.tokens.pop(0)
            self.store.sync(token)
            self.storage.sync_done(token, None)

    def kill(self):
        """What a killed process leaves: nothing is written any more, the lock is free."""
        self.store._journal.close()
        self.store._handles.close()
        self.store._lock.release()


@pytest.fixture(params=["memory", "disk"])
def storage(request, tmp_path):
    if request.param == "memory":
        yield MemoryStorage()
        return
    disk = Disk(tmp_path)
    yield disk.storage
    disk.store.close()


def test_messages_go_there_and_back():
    one = message(b"body", expiration="5", priority=3)
    again = decode_message(encode_message(one))
    assert (again.exchange, again.routing_key, again.body, again.ttl_ms) == ("ex", "key", b"body", 5)
    assert (again.facts.block, again.address, again.born_ms) == (one.facts.block, one.address, NOW_MS)
    for cut in (3, 9, 12, 17):
        with pytest.raises(CorruptionError):
            decode_message(encode_message(one)[:cut])


def test_a_decoder_that_remembers_decodes_the_same():
    decoder = MessageDecoder()
    different = Message("e", "key2", encode_address("e", "key2"), Facts(b"\0\0"), b"", NOW_MS)
    for one in (message(b"a"), message(b"b"), different, different, message(b"c", priority=1), message(b"")):
        again = decoder.decode(encode_message(one))
        assert encode_message(again) == encode_message(one)
        assert (again.exchange, again.routing_key, again.facts.priority) == (
            one.exchange,
            one.routing_key,
            one.facts.priority,
        )


def test_messages_are_fetched_in_order_after_a_number(storage):
    queue = storage.open_queue("q")
    seqs = [storage.publish(message(b"%d" % number), True, [queue])[0] for number in range(5)]
    assert seqs == sorted(seqs)
    assert queue.count == 5
    assert [stored.message.body for stored in queue.fetch(seqs[1], 2)] == [b"2", b"3"]
    assert [stored.seq for stored in queue.fetch(seqs[3], 10)] == seqs[4:]


def test_what_is_acknowledged_is_gone(storage):
    queue = storage.open_queue("q")
    seqs = [storage.publish(message(b"%d" % number), True, [queue])[0] for number in range(4)]
    queue.ack([seqs[0], seqs[2]])
    assert queue.count == 2
    assert [stored.seq for stored in queue.fetch(-1, 10)] == [seqs[1], seqs[3]]
    queue.delete()
    assert storage.open_queue("q").count == 0


def test_one_message_may_stand_in_many_queues(storage):
    queues = [storage.open_queue(name) for name in "abc"]
    seqs = storage.publish(message(b"x" * 10_000), True, queues)
    assert len(seqs) == 3
    queues[0].ack([seqs[0]])
    assert [len(queue.fetch(-1, 9)) for queue in queues] == [0, 1, 1]


def test_batches_are_numbered_and_reported_when_synced(tmp_path):
    disk = Disk(tmp_path)
    synced = []
    storage = disk.storage
    storage.on_synced = synced.append
    queue = storage.open_queue("q")
    storage.publish(message(b"1"), True, [queue])
    first = storage.commit()
    storage.publish(message(b"2"), True, [queue])
    second = storage.commit()
    assert (first, second, synced) == (1, 2, [])
    assert len(disk.tokens) == 1
    storage.publish(message(b"3"), True, [queue])
    assert storage.commit() == second
    disk.sync()
    assert synced == [1, 2]
    storage.publish(message(b"t"), False, [queue])
    assert storage.commit() == 0
    queue.ack([0])
    assert storage.commit() == 0
    assert len(disk.later) == 1
    disk.later.pop()()
    disk.sync()
    disk.store.close()


def test_a_step_of_housekeeping_in_between_loses_no_batch(tmp_path):
    disk = Disk(tmp_path)
    synced = []
    disk.storage.on_synced = synced.append
    queue = disk.storage.open_queue("q")
    disk.storage.publish(message(b"1"), True, [queue])
    disk.store.commit()  # as a step of housekeeping does
    assert disk.storage.commit() == 1
    assert synced == []
    disk.sync()
    assert synced == [1]
    disk.store.close()


def durable_client(disk) -> Client:
    broker = new_broker(disk.storage)
    return Client(broker)


def reopened(disk, definitions, *, killed: bool) -> tuple[Disk, Client]:
    directory = disk.store.directory
    if killed:
        disk.kill()
    else:
        disk.store.close()
    again = Disk(directory)
    broker = new_broker(again.storage)
    load_definitions(broker, json.loads(json.dumps(definitions)))
    return again, Client(broker)


@pytest.mark.parametrize("killed", [False, True])
def test_confirmed_persistent_messages_survive_and_acknowledged_ones_stay_gone(tmp_path, killed):
    disk = Disk(tmp_path)
    client = durable_client(disk)
    client.queue("q", durable=True, max_priority=2)
    client.call(methods.ConfirmSelect(False))
    client.publish("q", *"abcd", delivery_mode=2)
    client.publish("q", "high", delivery_mode=2, priority=2)
    client.publish("q", "transient")
    disk.sync()
    assert [type(one) for one in client.take()][-1] is methods.BasicAck
    assert client.get()[2] == b"high"
    assert client.get()[2] == b"a"
    turn(client.broker)
    for work in disk.later:
        work()
    disk.sync()
    again, client = reopened(disk, definitions_of(client.broker), killed=killed)
    found = [client.get() for _ in range(3)]
    assert [body for _, _, body in found] == [b"b", b"c", b"d"]
    assert [got.redelivered for got, _, _ in found] == [killed] * 3
    assert client.get() is None
    again.store.close()


@pytest.mark.parametrize("by_policy", [False, True])
def test_a_limit_in_bytes_counts_what_was_there_before_the_restart(tmp_path, by_policy):
    disk = Disk(tmp_path)
    client = durable_client(disk)
    client.queue("q", durable=True, **({} if by_policy else {"max_length_bytes": 10}))
    client.publish("q", "aaaa", "bbbb", delivery_mode=2)
    disk.sync()
    again, client = reopened(disk, definitions_of(client.broker), killed=True)
    queue = client.broker.vhosts["/"].queues["q"]
    if by_policy:
        queue.apply_policy({"max-length-bytes": 10})
    assert queue.ready_bytes == 8
    client.publish("q", "cccc", delivery_mode=2)
    again.sync()
    assert queue.ready_bytes == 8
    assert [client.get()[2] for _ in range(2)] == [b"bbbb", b"cccc"]
    assert client.get() is None
    assert queue.ready_bytes == 0
    again.store.close()


def test_what_was_delivered_before_a_clean_stop_comes_redelivered(tmp_path):
    disk = Disk(tmp_path)
    client = durable_client(disk)
    client.queue("q", durable=True)
    client.publish("q", "a", "b", "c", delivery_mode=2)
    client.get(no_ack=False)
    client.session.shut_down()
    (level,) = client.broker.vhosts["/"].queues["q"].levels
    disk.storage.note_delivered(level.store, max(entry.seq for entry in level.returned))
    definitions = definitions_of(client.broker)
    while disk.tokens:
        disk.sync()
    again, client = reopened(disk, definitions, killed=False)
    assert client.get()[0].redelivered
    again.store.close()


def test_a_long_queue_keeps_only_its_front_in_memory(tmp_path):
    disk = Disk(tmp_path)
    client = durable_client(disk)
    client.queue("q", durable=True)
    count = WINDOW_MESSAGES + 1000
    client.publish("q", *[str(number) for number in range(count)])
    (level,) = client.broker.vhosts["/"].queues["q"].levels
    assert (len(level.window), level.beyond) == (WINDOW_MESSAGES, 1000)
    client.get(no_ack=False)
    client.nack(1)
    client.consume(no_ack=True)
    bodies = [body for _, _, body in client.delivered()]
    for _ in range(10):
        client.session.set_clogged(False)
        turn(client.broker)
        bodies += [body for _, _, body in client.delivered()]
    assert level.beyond == 0
    assert client.count() == 0
    client.publish("q", "last")
    disk.store.close()


def test_definitions_survive_and_what_is_transient_does_not():
    client = Client(new_broker())
    broker = client.broker
    client.exchange("e", "topic", durable=True, auto_delete=True, alternate_exchange="amq.fanout")
    client.exchange("gone", "topic")
    client.queue("d", durable=True, max_length=Sized(5, ord("B")), dead_letter_exchange="e")
    client.queue("t")
    client.queue("x", durable=True, exclusive=True)
    client.bind("d", "e", "a.#")
    client.bind("t", "e", "b")
    client.bind("d", "amq.match", "", a=1)
    broker.vhosts["/"].policies.set(Policy("p", "^d", {"message-ttl": 7}, "queues", 3))
    broker.users.add("bob", "pw", tags=("monitoring",))
    value = json.loads(json.dumps(definitions_of(broker)))
    again = new_broker()
    load_definitions(again, value)
    assert definitions_of(again) == value
    vhost = again.vhosts["/"]
    assert set(vhost.queues) == {"d"}
    assert (vhost.queues["d"].max_length, vhost.queues["d"].ttl_ms) == (5, 7)
    assert vhost.exchanges["e"].auto_delete
    assert "gone" not in vhost.exchanges
    assert len(list(vhost.bindings())) == 2
    assert again.users.authenticate("bob", "pw").tags == ("monitoring",)


def test_definitions_that_make_no_sense_are_refused():
    with pytest.raises(InvalidArgument):
        load_definitions(new_broker(), {"queues": [{"vhost": "/"}]})


def test_definitions_of_rabbitmq_are_understood():
    broker = new_broker()
    load_definitions(
        broker,
        {
            "users": [
                {
                    "name": "u",
                    "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                    "hashing_algorithm": "rabbit_password_hashing_sha256",
                    "tags": "administrator",
                }
            ],
            "vhosts": [{"name": "v"}],
            "permissions": [{"user": "u", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}],
            "queues": [
                {"name": "q", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 3}}
            ],
        },
    )
    client = Client(broker, user="u", password="test12", vhost="v")
    assert client.count("q") == 0


def test_what_housekeeping_has_written_and_synced_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr("stratamq.broker.amqp.durable_storage.UNSYNCED_BYTES_MAX", 0)
    disk = Disk(tmp_path)
    disk.storage.publish(message(b"body"), True, [disk.storage.open_queue("q")])
    assert disk.storage.is_congested
    token = disk.store.commit()
    disk.store.sync(token)
    disk.store.synced(token)
    disk.storage.commit()
    assert not disk.storage.is_congested
    disk.store.close()
