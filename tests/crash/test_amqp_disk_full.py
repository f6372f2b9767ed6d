"""A broker whose AMQP store lies on a disk that is really full: confirms stop, consumers go on, all goes on by itself.

Needs the right to mount; skipped where that is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import method_frame
from tests.crash.amqp_client import Delivery, LoadClient
from tests.interop.broker_process import BrokerProcess

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

MIB = 1024 * 1024
DISK = 24 * MIB
FILES = {
    "queue_index_embed_msgs_below": 512,
    "queue_index_journal_bytes_max": MIB,
    "journal_file_bytes": 256 * 1024,
    "msg_store_file_size_limit": 512 * 1024,
    "recent_bytes_max": MIB,
}
FILLING = b"x" * 2000
CONSUMING = 2


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerProcess]:
    """A broker with its AMQP directory on a file system of 24 MiB; not started."""
    place = tmp_path / "data" / "amqp"
    place.mkdir(parents=True)
    if not hasattr(ctypes.CDLL(None), "mount") or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    made = BrokerProcess(tmp_path, "--amqp-port=0", f"--config={tmp_path / 'broker.conf'}")
    try:
        yield made
    finally:
        if made.process is not None:
            made.process.kill()
            made.process.wait()
        subprocess.run(["umount", "-l", str(place)], check=True)


def start(broker: BrokerProcess, limit: int) -> int:
    """Start it with that limit of free space; returns the port."""
    settings = {**FILES, "disk_free_limit_bytes": limit}
    conf = broker.data_dir.parent / "broker.conf"
    conf.write_text("".join(f"amqp_{name}={value}\n" for name, value in settings.items()))
    return int(broker.start().addresses["amqp"].rpartition(":")[2])


Connect = Callable[[int], LoadClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients, which are closed in the end."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(closing(LoadClient(port, CONSUMING)))


class Publisher:
    """Publishes numbered messages to ``q``, a window at a time."""

    def __init__(self, client: LoadClient) -> None:
        self.client = client
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.client.call(methods.QueueDeclare("q", False, True, False, False, False, dead))
        self.client.call(methods.QueueDeclare("dead", False, True, False, False, False, {}))

    @property
    def confirmed(self) -> list[int]:
        """Numbers of the messages that were taken."""
        client = self.client
        missing = {*client.unconfirmed, *client.refused}
        return [number for number in range(1, client.published + 1) if number not in missing]

    def fill(self, window: int = 100) -> None:
        """Publish up to the window."""
        frames = []
        while len(self.client.unconfirmed) < window:
            number = self.client.published + 1
            frames.append(self.client.publish("", "q", b"%d." % number + FILLING))
        self.client.send(b"".join(frames))

    def publish_until_blocked(self) -> None:
        """Publish until the broker says that it takes nothing more, which it does at a publish."""
        self.fill()
        while not self.client.is_blocked:
            readable, _, _ = select.select([self.client.socket], [], [], 0.1)
            if readable:
                assert self.client.receive() is not None
                self.fill()
            else:
                self.fill(len(self.client.unconfirmed) + 1)

    def settle(self) -> None:
        """Wait until every publish is answered and publishing is possible again."""
        while self.client.unconfirmed or self.client.is_blocked:
            assert self.client.receive() is not None


class Consumer:
    """Consumes a queue in order."""

    def __init__(self, client: LoadClient, queue: str) -> None:
        self.client = client
        self.client.call(methods.BasicQos(0, 200, False), CONSUMING)
        self.client.call(methods.BasicConsume(queue, "c", False, False, False, False, {}), CONSUMING)
        self.taken: list[int] = []
        self._waiting: list[Delivery] = []

    def take(self, until: int, *, reject: bool = False) -> None:
        """Acknowledge, or reject, until so many have come."""
        while len(self.taken) < until:
            if not self._waiting:
                deliveries = self.client.receive()
                assert deliveries is not None
                self._waiting = deliveries
            count = until - len(self.taken)
            settled, self._waiting = self._waiting[:count], self._waiting[count:]
            answers = []
            for delivery in settled:
                number, _, filling = delivery.body.partition(b".")
                assert filling == FILLING
                self.taken.append(int(number))
                answer = methods.BasicReject(delivery.tag, False) if reject else methods.BasicAck(delivery.tag, False)
                answers.append(method_frame(CONSUMING, answer))
            self.client.send(b"".join(answers))


def test_publishers_are_blocked_above_the_limit_and_go_on_when_consumers_made_room(broker, connect):
    port = start(broker, 12 * MIB)
    publisher, consumer = Publisher(connect(port)), Consumer(connect(port), "q")
    amqp = broker.data_dir / "amqp"
    taken = 0
    while taken * len(FILLING) < 2 * DISK:
        publisher.publish_until_blocked()
        assert os.statvfs(amqp).f_bavail * os.statvfs(amqp).f_frsize < 12 * MIB
        consumer.take(len(publisher.confirmed))
        publisher.settle()
        taken = len(publisher.confirmed)
    consumer.take(len(publisher.confirmed))
    assert consumer.taken == publisher.confirmed
    assert broker.stop() == 0


def test_publishers_alone_never_take_the_last_of_the_disk(broker, connect):
    """However late it is noticed that little is left: acknowledgements need some of it, and only they make room."""
    port = start(broker, 0)
    publisher, consumer = Publisher(connect(port)), Consumer(connect(port), "q")
    for _ in range(2):
        publisher.publish_until_blocked()
        consumer.take(len(publisher.confirmed))
        publisher.settle()
    consumer.take(len(publisher.confirmed))
    assert consumer.taken == publisher.confirmed
    assert broker.stop() == 0


def test_a_disk_that_is_full_to_the_last_byte_loses_nothing_confirmed_and_heals(broker, connect):
    ballast = broker.data_dir / "amqp" / "ballast"
    port = start(broker, 0)
    publisher = Publisher(connect(port))
    publisher.fill()
    publisher.settle()
    ballast.write_bytes(bytes(12 * MIB))
    publisher.publish_until_blocked()
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    before = publisher.confirmed
    consumer = Consumer(connect(port), "q")
    consumer.take(300, reject=True)
    consumer.take(600)
    assert consumer.taken == before[:600], "consumers go on while the disk is full"
    assert publisher.client.unconfirmed, "and nothing is confirmed"
    assert b"no space left" in broker.log().encode()
    ballast.unlink()
    publisher.settle()
    publisher.fill()
    publisher.settle()
    consumer.client.call(methods.QueueDeclare("later", False, True, False, False, False, {}))
    consumer.client.send(consumer.client.publish("", "later", b"proof that the acknowledgements are durable"))
    while consumer.client.unconfirmed:
        consumer.client.receive()
    broker.kill()
    port = start(broker, 0)
    dead = Consumer(connect(port), "dead")
    dead.take(300)
    assert dead.taken == before[:300], "what was rejected on the full disk is among the dead"
    left = Consumer(connect(port), "q")
    left.take(len(publisher.confirmed) - 600)
    assert left.taken == publisher.confirmed[600:]
    assert broker.stop() == 0
