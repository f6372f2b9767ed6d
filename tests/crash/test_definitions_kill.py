"""Kill -9 while durable queues are declared, bound and deleted: what was answered is there after the next start."""

from __future__ import annotations

import random
import threading
import time

import pika
import pika.exceptions
import pytest

from tests.interop.broker_process import BrokerProcess

KILLS = 3
SEED = 7
pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(600),
    # a client that loses its broker leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def connected(broker: BrokerProcess) -> pika.BlockingConnection:
    port = int(broker.addresses["amqp"].rpartition(":")[2])
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, socket_timeout=60))


class Declarer:
    """Declares and deletes until its broker is gone; knows what was answered, and which call may not have been."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.open: str | None = None
        self.answered = 0
        self._numbers = 0

    def run(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.exchange_declare("x", "direct", durable=True)
        try:
            while True:
                self._numbers += 1
                name = f"q{self._numbers}"
                if self._numbers % 5 == 0 and self.there:
                    self.open = min(self.there)
                    channel.queue_delete(self.open)
                    self.there.remove(self.open)
                else:
                    self.open = name
                    channel.queue_declare(name, durable=True)
                    channel.queue_bind(name, "x", "key")
                    self.there.add(name)
                self.open = None
                self.answered += 1
        except (pika.exceptions.AMQPError, OSError):
            return

    def check(self, connection: pika.BlockingConnection) -> None:
        """Everything answered is there, bound; nothing that was deleted is."""
        channel = connection.channel()
        channel.confirm_delivery()
        if self.open is not None:
            channel.queue_delete(self.open)
            self.there.discard(self.open)
        channel.basic_publish("x", "key", b"for all", mandatory=True)
        for number in range(1, self._numbers + 1):
            name = f"q{number}"
            if name in self.there:
                assert channel.queue_declare(name, passive=True).method.message_count >= 1, name
                channel.queue_purge(name)
                continue
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                channel.queue_declare(name, passive=True)
            channel = connection.channel()


def test_declared_queues_and_bindings_survive_kills(tmp_path):
    rng = random.Random(SEED)
    conf = tmp_path / "broker.conf"
    conf.write_text("amqp_definitions_journal_bytes_max=8192\n")
    broker = BrokerProcess(tmp_path, "--amqp-port=0", f"--config={conf}", "--log-level=warning")
    declarer = Declarer()
    for _ in range(KILLS):
        with broker:
            if declarer.answered:
                with connected(broker) as connection:
                    declarer.check(connection)
            connection = connected(broker)
            worker = threading.Thread(target=declarer.run, args=(connection,))
            wanted = declarer.answered + rng.randrange(5, 25)
            worker.start()
            deadline = time.monotonic() + 120
            while declarer.answered < wanted and time.monotonic() < deadline:
                time.sleep(0.001)
            broker.kill()
            worker.join(120)
            assert not worker.is_alive()
            assert declarer.answered >= wanted
    with broker, connected(broker) as connection:
        declarer.check(connection)
