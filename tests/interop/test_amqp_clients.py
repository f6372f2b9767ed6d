"""Unmodified RabbitMQ clients against ``stratamq serve``: pika, aio-pika, kombu, and what survives a kill."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import aio_pika
import kombu
import pika
import pika.exceptions
import pytest

from tests.interop.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.quick,
    # clients that lose their broker leave sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Let what clients left behind go while the mark above holds, not when some other test runs."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[BrokerProcess]:
    """One broker for the module."""
    with BrokerProcess(tmp_path_factory.mktemp("amqp"), "--amqp-port=0") as process:
        yield process


def port_of(broker: BrokerProcess) -> int:
    return int(broker.addresses["amqp"].rpartition(":")[2])


def connected(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port_of(broker)))


@pytest.fixture
def connection(broker) -> Iterator[pika.BlockingConnection]:
    made = connected(broker)
    yield made
    if made.is_open:
        made.close()


def test_pika_publishes_gets_and_consumes(connection):
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    bodies = [b"", b"x", b"y" * 300_000]
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
    method, properties, body = channel.basic_get(queue)
    assert (method.message_count, properties.delivery_mode, body) == (2, 2, b"")
    channel.basic_nack(method.delivery_tag)
    found = []
    for method, _, body in channel.consume(queue, inactivity_timeout=100):
        assert method is not None
        found.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)
        if len(found) == len(bodies):
            break
    assert found == [(b"", True), (b"x", False), (b"y" * 300_000, False)]


def test_pika_sees_returns_nacks_and_refusals(connection):
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"x", mandatory=True)
    queue = channel.queue_declare("", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", queue.method.queue, b"fits")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue.method.queue, b"too much")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("nope", passive=True)
    assert (caught.value.reply_code, caught.value.reply_text) == (404, "NOT_FOUND - no queue 'nope' in vhost '/'")
    assert connection.channel().is_open


def test_a_wrong_password_is_refused_politely(broker):
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port_of(broker), credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        pika.BlockingConnection(parameters)


def test_a_bad_frame_ends_its_connection_and_no_other(broker, connection):
    channel = connection.channel()
    bad = connected(broker)
    bad._impl._transport.write(b"\x01\x00\x01\x00\x00\x00\x01x\x00")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        bad.process_data_events(time_limit=100)
    assert caught.value.reply_code == 501
    assert channel.queue_declare("", exclusive=True).method.message_count == 0


def test_pika_uses_transactions(connection):
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.tx_select()
    channel.basic_publish("", queue, b"no")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"yes")
    channel.tx_commit()
    assert channel.basic_get(queue, auto_ack=True)[2] == b"yes"


def test_a_direct_reply_finds_its_way_back(connection):
    asking, answering = connection.channel(), connection.channel()
    queue = answering.queue_declare("", exclusive=True).method.queue
    replies: list[bytes] = []
    asking.basic_consume("amq.rabbitmq.reply-to", lambda *got: replies.append(got[3]), auto_ack=True)
    asking.basic_publish("", queue, b"?", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    _, properties, _ = next(answering.consume(queue, auto_ack=True, inactivity_timeout=100))
    answering.basic_publish("", properties.reply_to, b"!")
    for _ in range(100):
        if not replies:
            connection.process_data_events(time_limit=1)
    assert replies == [b"!"]


async def test_aio_pika_with_exchanges_and_iterators(broker):
    connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{port_of(broker)}/", timeout=100)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange("aio", aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "a.*")
        for number in range(50):
            await exchange.publish(aio_pika.Message(b"%d" % number, headers={"n": number}), f"a.{number}")
        found = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    found.append((message.body, message.headers["n"]))
                if len(found) == 50:
                    break
        assert found == [(b"%d" % number, number) for number in range(50)]
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
            await channel.declare_exchange("aio", aio_pika.ExchangeType.FANOUT)


def test_kombu_carries_objects(broker):
    address = f"amqp://guest:guest@127.0.0.1:{port_of(broker)}//"
    with kombu.Connection(address) as connection, connection.SimpleQueue("kombu-simple") as queue:
        for number in range(20):
            queue.put({"number": number})
        found = []
        for _ in range(20):
            message = queue.get(timeout=100)
            found.append(message.payload["number"])
            message.ack()
        assert found == list(range(20))


def test_what_was_confirmed_survives_a_kill_and_what_was_acknowledged_stays_gone(tmp_path):
    with BrokerProcess(tmp_path, "--amqp-port=0") as broker:
        confirmed: list[int] = []
        ready = threading.Event()

        def publish() -> None:
            connection = connected(broker)
            channel = connection.channel()
            channel.queue_declare("work", durable=True)
            channel.confirm_delivery()
            try:
                for number in range(1_000_000):
                    channel.basic_publish("", "work", b"%d" % number, PERSISTENT)
                    confirmed.append(number)
                    if number == 300:
                        ready.set()
            except pika.exceptions.AMQPError:
                pass

        thread = threading.Thread(target=publish)
        thread.start()
        assert ready.wait(120)
        connection = connected(broker)
        channel = connection.channel()
        taken = [int(channel.basic_get("work", auto_ack=True)[2]) for _ in range(100)]
        wanted = len(confirmed) + 2  # what was published after the acknowledgements is synced with or after them
        deadline = time.monotonic() + 120
        while len(confirmed) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        broker.kill()
        thread.join(120)
        broker.start()
        with connected(broker) as connection:
            channel = connection.channel()
            found, redelivered = [], []
            while (got := channel.basic_get("work", auto_ack=True))[0] is not None:
                found.append(int(got[2]))
                redelivered.append(got[0].redelivered)
        assert taken == list(range(100))
        assert found == list(range(100, 100 + len(found)))
        assert len(confirmed) <= 100 + len(found) <= len(confirmed) + 1
        assert all(redelivered)


def test_definitions_and_messages_survive_an_ordinary_stop(tmp_path):
    with BrokerProcess(tmp_path, "--amqp-port=0") as broker:
        with connected(broker) as connection:
            channel = connection.channel()
            channel.exchange_declare("events", "topic", durable=True)
            channel.queue_declare("log", durable=True, arguments={"x-max-priority": 3})
            channel.queue_bind("log", "events", "order.#")
            channel.confirm_delivery()
            channel.basic_publish("events", "order.new", b"kept", PERSISTENT)
            channel.basic_publish("events", "order.new", b"first", pika.BasicProperties(delivery_mode=2, priority=3))
        assert broker.stop() == 0
        broker.start()
        with connected(broker) as connection:
            channel = connection.channel()
            channel.basic_publish("events", "order.more", b"later")
            found = [channel.basic_get("log", auto_ack=True) for _ in range(3)]
            assert [(body, method.redelivered) for method, _, body in found] == [
                (b"first", False), (b"kept", False), (b"later", False),
            ]  # fmt: skip
