"""One topic for AMQP and RocketMQ clients: what pika publishes to a stream the C++ client consumes, and back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest

from tests.interop.cpp_world import World, bodies, specs, without_client

pytestmark = [pytest.mark.interop, pytest.mark.quick, without_client]
STREAM = {"x-queue-type": "stream"}
SECONDS = 150.0


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    """A broker with both ports."""
    made = World(tmp_path, "--amqp-port=0")
    made.broker.start()
    yield made
    made.close()


def connected(world: World) -> pika.BlockingConnection:
    port = int(world.broker.addresses["amqp"].rpartition(":")[2])
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def read(world: World, count: int, offset: object = "first") -> list[tuple[str, int]]:
    """Bodies and offsets of a stream, by pika."""
    connection = connected(world)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=50)
    found: list[tuple[str, int]] = []
    deadline = time.monotonic() + SECONDS
    for method, properties, body in channel.consume(
        "both", arguments={"x-stream-offset": offset}, inactivity_timeout=1
    ):
        if method is not None:
            found.append((body.decode(), properties.headers["x-stream-offset"]))
            channel.basic_ack(method.delivery_tag)
        if len(found) >= count:
            break
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages"
    connection.close()
    return found


def publish(world: World, texts: list[str]) -> None:
    connection = connected(world)
    channel = connection.channel()
    channel.queue_declare("both", durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for text in texts:
        properties = pika.BasicProperties(message_id=f"id-{text}", headers={"x-stream-filter-value": "TagA"})
        channel.basic_publish("", "both", text.encode(), properties)
    connection.close()


def test_amqp_and_rocketmq_clients_share_a_topic_and_a_restart(world):
    sent = [f"amqp-{number}" for number in range(100)]
    publish(world, sent)
    assert read(world, 100) == [(text, number) for number, text in enumerate(sent)]
    consumer = world.consume("both", "g")
    got = consumer.wait_for_messages(100)
    assert bodies(got) == sorted(sent)
    assert {row["tags"] for row in got} == {"TagA"}
    assert {row["keys"] for row in got} == {f"id-{text}" for text in sent}
    world.produce("both", specs(20, "rocket-", keys="k"))
    assert {text for text, _ in read(world, 20, offset=100)} == {f"rocket-{number}" for number in range(20)}
    assert world.broker.stop() == 0
    world.broker.start()
    assert len(read(world, 120)) == 120
    publish(world, ["after"])
    assert read(world, 1, offset="last") == [("after", 120)]


def test_what_was_confirmed_is_there_after_a_kill(world):
    sent = [f"m{number}" for number in range(200)]
    publish(world, sent)
    world.broker.kill()
    world.broker.start()
    assert [text for text, _ in read(world, 200)] == sent


def test_a_topic_with_more_queues_is_no_stream(world):
    world.produce("four", specs(1))
    connection = connected(world)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="exactly 1"):
        connection.channel().queue_declare("four", durable=True, arguments=STREAM)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="belongs to the broker"):
        connection.channel().queue_declare("SCHEDULE_TOPIC_XXXX", durable=True, arguments=STREAM)
    connection.channel().queue_declare("both", durable=True, arguments=STREAM)
    connection.channel().queue_delete("both")
    connection.close()
    assert "both" not in {row["topic"] for row in world.get("/api/v1/topics")["topics"]}


def test_readers_of_the_files_see_what_was_published(world):
    from stratamq.logstore.search import at_offsets
    from stratamq.logstore.snapshot import StoreSnapshot

    publish(world, ["one", "two"])
    assert world.broker.stop() == 0
    with StoreSnapshot.open(world.broker.data_dir) as snapshot:
        assert [record.body for record in at_offsets(snapshot, "both", 0, 0, 2)] == [b"one", b"two"]
