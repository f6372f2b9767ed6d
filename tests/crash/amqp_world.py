"""What the kill test does to a broker over AMQP, what it may expect afterwards, and what the store holds then.

Six queues: ``a``, ``b`` and ``c`` behind a fanout exchange, ``work`` whose rejected messages and ``brief`` whose
expired ones go to ``dead``. Everything a message is - where it goes, how long it is, whether it is persistent, what its
consumer does with it - follows from its number.

When a client may count an acknowledgement as durable: when a persistent message that the same connection published
after it is confirmed.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from stratamq.broker.amqp.messages import decode_message
from stratamq.clock import SystemClock
from stratamq.config import QueueStoreConfig
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import method_frame
from stratamq.queuestore.store import QueueStore
from tests.crash.amqp_client import WAIT_S, Delivery, LoadClient

SETTINGS: Final = {
    "queue_index_embed_msgs_below": 512,
    "queue_index_segment_entry_count": 128,
    "queue_index_journal_bytes_max": 192 * 1024,
    "journal_file_bytes": 32 * 1024,
    "msg_store_file_size_limit": 64 * 1024,
    "write_buffer_bytes": 16 * 1024,
    "recent_bytes_max": 256 * 1024,
    "index_cache_bytes_max": 64 * 1024,
    "body_cache_bytes_max": 64 * 1024,
    "maintenance_bytes": 64 * 1024,
    "gc_files_min": 2,
}
"""Small files, so that everything rolls, is collected and is compacted all the time."""
FANNED: Final = ("a", "b", "c")
QUEUES: Final = (*FANNED, "work", "brief", "dead")
CHANNEL: Final = {"a": 2, "work": 3, "b": 4, "dead": 5, "c": 6}
TTL_MS: Final = 60
WINDOW: Final = 200
HELD_MAX: Final = 20
"""Deliveries of a consumer that are left unacknowledged."""


def config() -> QueueStoreConfig:
    """The settings of the broker's queue store."""
    return QueueStoreConfig(**SETTINGS)


def body_of(number: int) -> bytes:
    """What message ``number`` holds: one in four lies in the message store."""
    return b"%d." % number * (150 if number % 4 == 0 else 4)


def number_of(body: bytes) -> int:
    """Which message this is. Fails when a byte of it is wrong."""
    number = int(body.split(b".", 1)[0])
    assert body == body_of(number)
    return number


def route_of(number: int) -> str:
    """Where message ``number`` is published: the fanout exchange or a queue."""
    return ("fan", "work", "fan", "brief", "work")[number % 5]


def is_persistent(number: int) -> bool:
    """One in seventeen does not survive."""
    return number % 17 != 0


def targets_of(number: int) -> tuple[str, ...]:
    """Queues that message ``number`` goes to."""
    route = route_of(number)
    return FANNED if route == "fan" else (route,)


def declare(client: LoadClient) -> None:
    """Make exchange and queues, or find them there."""
    client.call(methods.ExchangeDeclare("fan", "fanout", False, True, False, False, False, {}))
    for name in QUEUES:
        arguments: dict[str, Any] = {}
        if name in ("work", "brief"):
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        if name == "brief":
            arguments["x-message-ttl"] = TTL_MS
        client.call(methods.QueueDeclare(name, False, True, False, False, False, arguments))
        if name in FANNED:
            client.call(methods.QueueBind(name, "fan", "", False, {}))


@dataclass
class Expectation:
    """What may and must be in the queues after a kill."""

    there: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    """What was in each queue before the round."""
    sent: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    acked: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    """Acknowledged, whether the broker has heard of it or not."""
    gone: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    """Acknowledged, and known to be durable."""
    rejected: set[int] = field(default_factory=set)
    buried: set[int] = field(default_factory=set)
    """Rejected, and known to be durable."""

    def check(self, found: dict[str, list[int]]) -> None:
        """Fail where a queue holds what it must not, or lacks what it must have."""
        sets = {name: set(numbers) for name, numbers in found.items()}
        for name, numbers in found.items():
            assert len(numbers) == len(sets[name]), f"{name}: a message is there twice"
            assert not sets[name] & self.gone[name], f"{name}: back after a durable acknowledgement"
            assert all(map(is_persistent, numbers)), f"{name}: a transient message survived"
            if name != "dead":
                new = {number for number in self.sent if name in targets_of(number)}
                assert sets[name] <= self.there[name] | new, f"{name}: came from nowhere"
                for part in (0, 1):
                    line = [number for number in numbers if number % 2 == part]
                    assert line == sorted(line), f"{name}: out of order"
        for name in FANNED:
            owed = self._owed(name) - self.acked[name]
            assert owed <= sets[name], f"{name}: lost {sorted(owed - sets[name])[:9]}"
        self._check_dead(sets)

    def _owed(self, name: str) -> set[int]:
        new = {number for number in self.confirmed if is_persistent(number) and name in targets_of(number)}
        return self.there[name] | new

    def _check_dead(self, sets: dict[str, set[int]]) -> None:
        """A message that dies is in its queue or among the dead, never in both, never in neither."""
        dead, dropped = sets["dead"], self.acked["dead"]
        for name in ("work", "brief"):
            may_die = self.rejected if name == "work" else self._owed(name)
            owed = self._owed(name) - self.acked[name]
            lost = owed - sets[name] - ((dead | dropped) & may_die)
            assert not lost, f"{name}: lost {sorted(lost)[:9]}"
            assert not sets[name] & dead, f"{name}: dead and alive"
        assert not sets["work"] & self.buried, "work: back after a durable rejection"
        lost = self.there["dead"] - dropped - dead
        assert not lost, f"dead: lost {sorted(lost)[:9]}"
        died = self.rejected | {n for n in self.there["brief"] | self.sent if "brief" in targets_of(n)}
        assert dead <= self.there["dead"] | died, "dead: came from nowhere"

    def after(self, found: dict[str, list[int]]) -> Expectation:
        """What the next round begins with: all that was found is on the disk."""
        return Expectation(there={name: set(numbers) for name, numbers in found.items()})


class Worker:
    """One connection that publishes every second number and consumes some queues."""

    def __init__(self, port: int, first: int, queues: tuple[str, ...], expected: Expectation) -> None:
        self.client = LoadClient(port, max(CHANNEL.values()))
        self._next = first
        self._expected = expected
        self._numbers: dict[int, int] = {}
        self._unproven: list[tuple[int, set[int], int]] = []
        """Settled deliveries: number of the next publish then, the set to note the message in, the message."""
        self._queue_of = {CHANNEL[name]: name for name in queues}
        self._seen: dict[str, set[int]] = {name: set() for name in queues}
        self._last: dict[tuple[str, int], int] = {}
        self._held = dict.fromkeys(queues, 0)
        self._newest_confirmed = 0

    def consume(self) -> None:
        """Start the consumers."""
        for channel, name in self._queue_of.items():
            self.client.call(methods.BasicQos(0, 60, False), channel)
            self.client.call(methods.BasicConsume(name, name, False, False, False, False, {}), channel)

    def fill(self) -> None:
        """Publish until the window is full."""
        frames = []
        while len(self.client.unconfirmed) < WINDOW:
            number = self._next
            self._next += 2
            route = route_of(number)
            exchange, key = (route, "") if route == "fan" else ("", route)
            frames.append(self.client.publish(exchange, key, body_of(number), persistent=is_persistent(number)))
            self._numbers[self.client.published] = number
            self._expected.sent.add(number)
        if frames:
            self.client.send(b"".join(frames))

    def take(self, deliveries: list[Delivery]) -> None:
        """Settle what came, each message by its number, and note what is confirmed."""
        self._note_confirms()
        frames = [frame for delivery in deliveries for frame in self._settle(delivery)]
        if frames:
            self.client.send(b"".join(frames))

    def _note_confirms(self) -> None:
        waiting = self.client.unconfirmed
        for tag in [tag for tag in self._numbers if tag not in waiting]:
            number = self._numbers.pop(tag)
            self._expected.confirmed.add(number)
            if is_persistent(number):
                self._newest_confirmed = max(self._newest_confirmed, tag)
        while self._unproven and self._unproven[0][0] <= self._newest_confirmed:
            _, known, number = self._unproven.pop(0)
            known.add(number)

    def _settle(self, delivery: Delivery) -> list[bytes]:
        name = self._queue_of[delivery.channel]
        number = number_of(delivery.body)
        expected = self._expected
        assert number not in expected.gone[name], f"{name}: {number} came after a durable acknowledgement"
        assert delivery.redelivered or number not in expected.there[name], "what was there before a kill says so"
        is_first = number not in self._seen[name]
        self._seen[name].add(number)
        if is_first and name != "dead":
            assert number > self._last.get((name, number % 2), -1), f"{name}: {number} out of order"
            self._last[name, number % 2] = number
        if name in ("b", "dead") and number % 7 == 3 and self._held[name] < HELD_MAX:
            self._held[name] += 1
            return []
        if name in ("b", "work") and number % 3 == 2 and is_first:
            return [method_frame(delivery.channel, methods.BasicNack(delivery.tag, False, True))]
        if name == "work" and number % 3 == 0:
            expected.rejected.add(number)
            self._unproven.append((self.client.published + 1, expected.buried, number))
            return [method_frame(delivery.channel, methods.BasicReject(delivery.tag, False))]
        expected.acked[name].add(number)
        self._unproven.append((self.client.published + 1, expected.gone[name], number))
        return [method_frame(delivery.channel, methods.BasicAck(delivery.tag, False))]


def run_load(workers: list[Worker], expected: Expectation, until: int, kill: Callable[[], object]) -> None:
    """Publish and consume until so many messages are confirmed; kill; take in what was on its way by then."""
    by_socket = {worker.client.socket: worker for worker in workers}
    for worker in workers:
        worker.fill()
    while len(expected.confirmed) < until:
        readable, _, _ = select.select(list(by_socket), [], [], WAIT_S)
        assert readable, "nothing came for too long"
        for sock in readable:
            worker = by_socket[sock]
            deliveries = worker.client.receive()
            assert deliveries is not None, "the broker ended by itself"
            worker.take(deliveries)
            worker.fill()
    kill()
    for worker in workers:
        worker.client.drain()
        worker.take([])
        worker.client.close()


def read_store(directory: str) -> tuple[dict[str, list[int]], QueueStore]:
    """What each queue holds, in order. Also proves that each body is whole, and that all references are counted."""
    store = QueueStore.open(directory, config(), clock=SystemClock())
    found: dict[str, list[int]] = {}
    named: dict[int, int] = {}
    for queue in store.queues():
        name = queue.name.split("\n")[1]
        found[name] = [
            number_of(decode_message(queue.read(seq)).body) for seq in queue.numbers_between(0, queue.next_seq)
        ]
        for segment in queue.segments.values():
            for _, message_id in queue.stored_ids(segment):
                named[message_id] = named.get(message_id, 0) + 1
    files = store._persistent.files
    counts = {one: store._persistent.references(one) for file in files for one in file.table.ids}
    assert {one: count for one, count in counts.items() if count} == named, "reference counts are wrong"
    return {name: found.get(name, []) for name in QUEUES}, store


def abandon(store: QueueStore) -> None:
    """Leave the store as a kill would."""
    store._journal.close()
    store._handles.close()
    store._lock.release()
