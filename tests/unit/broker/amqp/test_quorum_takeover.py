"""Clients of a group's queues, and what the next leader gives them: order, counts, dead letters, definitions."""

from __future__ import annotations

from typing import Any

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.broker.amqp.quorum_storage import QuorumStorage
from stratamq.protocols.amqp import methods
from tests.unit.broker.amqp.clients import NOW_MS, Client, new_broker, turn
from tests.unit.broker.amqp.quorum_log import MemoryLog


class Leader:
    """A leader over a log; its turns are decided when `end_turn` is told so."""

    def __init__(self, log: MemoryLog | None = None, *, term: int = 1) -> None:
        self.log = log or MemoryLog()
        self.storage = QuorumStorage(self.log)
        for _ in self.storage.load(term):
            pass
        value = self.storage.state.definitions()
        if value is None:
            self.broker = new_broker(self.storage)
        else:
            self.broker = AmqpBroker(self.storage, now_ms=NOW_MS)
            load_definitions(self.broker, value)
        self.storage.note_definitions(definitions_of(self.broker))
        self.broker.definitions_saved()
        self.end_turn()

    def end_turn(self, *, decides: bool = True) -> None:
        turn(self.broker)
        if self.broker.is_definitions_dirty:
            self.storage.note_changes(self.broker.definition_changes)
            self.broker.definitions_saved()
        self.storage.propose()
        if decides:
            self.log.decide()
            self.storage.propose()
            self.log.decide()

    def next(self) -> Leader:
        """The next one, with what is decided and nothing else."""
        return Leader(self.log.next_leader(0), term=self.storage.state.term + 1)


def quorum_queue(client: Client, name: str = "q", **arguments: Any) -> None:
    client.queue(name, durable=True, queue_type="quorum", **arguments)


def got(client: Client, name: str = "q", *, no_ack: bool = False) -> tuple[bytes, bool] | None:
    """The next message and whether it is a redelivery."""
    found = client.send(methods.BasicGet(name, no_ack))
    if isinstance(found[0], methods.BasicGetEmpty):
        return None
    return found[1][1], found[0].redelivered


def test_the_next_leader_has_definitions_messages_and_order() -> None:
    first = Leader()
    client = Client(first.broker)
    quorum_queue(client)
    client.exchange("ex", "fanout", durable=True)
    client.bind("q", "ex")
    for number in range(5):
        client.publish("", b"%d" % number, exchange="ex")
    first.end_turn()
    later = Client(first.next().broker)
    assert [got(later) for _ in range(6)] == [(b"%d" % number, False) for number in range(5)] + [None]


def test_what_was_delivered_comes_again_as_redelivered_and_before_the_rest() -> None:
    first = Leader()
    client = Client(first.broker)
    quorum_queue(client)
    for number in range(4):
        client.publish("q", b"%d" % number)
    assert [got(client) for _ in range(3)] == [(b"0", False), (b"1", False), (b"2", False)]
    client.send(methods.BasicAck(2, False))
    first.end_turn()
    second = first.next()
    later = Client(second.broker)
    assert [got(later) for _ in range(3)] == [(b"0", True), (b"2", True), (b"3", False)]
    second.end_turn()
    third = second.next()
    marks = next(queue.marks for queue in third.storage.state.queues.values() if queue.name == "/\nq\n0")
    assert [mark >> 2 for mark in marks.values()] == [2, 2, 1]


def test_a_message_over_its_limit_goes_to_the_dead_letter_exchange_of_the_next_leader() -> None:
    first = Leader()
    client = Client(first.broker)
    quorum_queue(client, "dead")
    quorum_queue(client, delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("q", b"poison")
    assert got(client) == (b"poison", False)
    first.end_turn()
    second = first.next()
    client = Client(second.broker)
    assert got(client) == (b"poison", True)
    client.send(methods.BasicNack(1, False, True))
    second.end_turn()
    later = Client(second.next().broker)
    assert got(later) is None
    assert got(later, "dead") == (b"poison", False)


def test_what_no_majority_has_never_was() -> None:
    first = Leader()
    client = Client(first.broker)
    quorum_queue(client)
    client.publish("q", b"decided")
    first.end_turn()
    quorum_queue(client, "late")
    client.publish("q", b"lost")
    got(client, no_ack=True)
    first.end_turn(decides=False)
    later = first.next()
    assert "late" not in later.broker.vhosts["/"].queues
    assert Client(later.broker).count() == 1


def test_a_message_given_back_uncounted_is_no_further_attempt() -> None:
    first = Leader()
    client = Client(first.broker)
    quorum_queue(client)
    client.publish("q", b"m")
    got(client)
    client.session.shut_down()
    first.end_turn()
    before = [mark for queue in first.storage.state.queues.values() for mark in queue.marks.values()]
    after = [mark for queue in first.next().storage.state.queues.values() for mark in queue.marks.values()]
    assert after == before


def test_a_deleted_queue_stays_deleted_and_its_name_can_be_used_again() -> None:
    first = Leader()
    client = Client(first.broker)
    quorum_queue(client)
    client.publish("q", b"old")
    first.end_turn()
    client.call(methods.QueueDelete("q", False, False, False))
    quorum_queue(client)
    client.publish("q", b"new")
    first.end_turn()
    later = Client(first.next().broker)
    assert [got(later), got(later)] == [(b"new", False), None]
