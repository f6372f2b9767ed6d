"""Quorum queues of a group of three, whose leader is killed under load while pika publishes, consumes and acknowledges.

A publisher repeats what was not confirmed, so a message may be there twice; what follows speaks of those that were
published once. A consumer acknowledges in transactions: a commit-ok says that the acknowledgement is decided.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.interop.replica_group import ReplicaGroup, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
QUEUE = "orders"
KILLS = 3
BROKEN = (pika.exceptions.AMQPError, OSError)


class Worker:
    """A thread with a connection to whoever leads; ``work`` is called again on a new one when the old one breaks."""

    def __init__(self, group: ReplicaGroup, work: Callable[[Any], None]) -> None:
        self._hosts = [
            pika.ConnectionParameters("127.0.0.1", port, connection_attempts=1, socket_timeout=30, heartbeat=30)
            for port in group.amqp_ports.values()
        ]
        self._work = work
        self.has_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.has_to_stop.is_set():
            with contextlib.suppress(*BROKEN):
                connection = pika.BlockingConnection(self._hosts)
                channel = connection.channel()
                channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
                self._work(channel)
                connection.close()
            self.has_to_stop.wait(0.05)

    def stop(self) -> None:
        self.has_to_stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


class Publisher:
    """Publishes 0, 1, 2, ..., each until it is confirmed."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.attempts: Counter[int] = Counter()
        self.confirmed = 0
        self.worker = Worker(group, self._work)

    def _work(self, channel: Any) -> None:
        channel.confirm_delivery()
        while not self.worker.has_to_stop.is_set():
            self.attempts[self.confirmed] += 1
            channel.basic_publish("", QUEUE, b"%d" % self.confirmed, mandatory=True)
            self.confirmed += 1


class Consumer:
    """Takes what comes, acknowledges some of it at a time, and writes down everything."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.deliveries: list[list[tuple[int, bool, int]]] = []
        """For each connection: number, whether redelivered, the delivery count."""
        self.acked: Counter[int] = Counter()
        self.in_doubt: set[int] = set()
        """What was acknowledged, whether the leader lived to say so or not: it may be gone, or come again."""
        self.late: list[int] = []
        """What came though it had been acknowledged before."""
        self.worker = Worker(group, self._work)

    def _work(self, channel: Any) -> None:
        came: list[tuple[int, bool, int]] = []
        self.deliveries.append(came)
        channel.tx_select()
        channel.basic_qos(prefetch_count=20)
        pending: list[int] = []
        last = 0
        for method, properties, body in channel.consume(QUEUE, inactivity_timeout=0.1):
            if method is not None:
                number, last = int(body), method.delivery_tag
                if self.acked[number]:
                    self.late.append(number)
                count = (properties.headers or {}).get("x-delivery-count", 0)
                came.append((number, method.redelivered, count))
                pending.append(number)
                if len(pending) < 7:
                    continue
            if pending:
                self.in_doubt.update(pending)
                channel.basic_ack(last, multiple=True)  # not 0: that would be what has not been looked at as well
                channel.tx_commit()
                self.acked.update(pending)
                pending.clear()
            if self.worker.has_to_stop.is_set():
                return


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    with ReplicaGroup(tmp_path, serves_amqp=True) as running:
        running.leader()
        yield running


def kill_the_leader(group: ReplicaGroup) -> None:
    """Kill it, wait for the next one, and let it come back as a follower."""
    leader = group.leader()
    group.signal(leader, signal.SIGKILL)
    group.leader([name for name in group.names if name != leader])
    group.start(leader)
    wait_for(lambda: group.status(leader).get("leader"), "the old leader knows who leads now")


def test_nothing_confirmed_is_lost_and_nothing_acknowledged_comes_back(group: ReplicaGroup) -> None:
    publisher, consumer = Publisher(group), Consumer(group)
    try:
        for _ in range(KILLS):
            confirmed, acked = publisher.confirmed + 50, len(consumer.acked) + 50
            wait_for(lambda: publisher.confirmed >= confirmed and len(consumer.acked) >= acked, "traffic")  # noqa: B023
            kill_the_leader(group)
        confirmed = publisher.confirmed + 50
        wait_for(lambda: publisher.confirmed >= confirmed, "confirms by the last leader")
        publisher.worker.stop()
        everything = set(range(publisher.confirmed))
        wait_for(lambda: everything <= set(consumer.acked) | consumer.in_doubt, "every confirmed message has come")
    finally:
        publisher.worker.stop()
        consumer.worker.stop()
    once = {number for number, attempts in publisher.attempts.items() if attempts == 1}
    assert not once & set(consumer.late)
    assert all(consumer.acked[number] <= publisher.attempts[number] for number in consumer.acked)
    seen: set[int] = set()
    for came in consumer.deliveries:
        numbers = [number for number, _, _ in came if number in once]
        assert numbers == sorted(set(numbers))
        for number, redelivered, count in came:
            if number in once and number in seen:
                assert redelivered
                assert count >= 1
        seen.update(numbers)
    assert group.wait_equal()
