"""Rates of the management API: between the last two samples, of the overview and of single objects."""

from __future__ import annotations

import asyncio
from typing import Any

from stratamq.clock import SystemClock
from stratamq.protocols.amqp import methods
from stratamq.server.amqp_service import AmqpService
from stratamq.server.management import objects
from stratamq.server.management.rates import OBJECTS_A_STEP, SAMPLE_MS, ObjectSampler, Rates
from stratamq.testing.clock import ManualClock
from tests.unit.broker.amqp.clients import Client, new_broker


def test_a_rate_is_what_moved_between_the_last_two_samples():
    rates = Rates()
    assert rates.is_due(1_000)
    rates.sample(1_000, {"publish": 100})
    assert rates.rated({"publish": 100}) == {"publish": 100, "publish_details": {"rate": 0.0}}
    assert not rates.is_due(1_000 + SAMPLE_MS - 1)
    rates.sample(6_000, {"publish": 600, "messages": 7})
    assert rates.rated({"publish": 650, "messages": 9}) == {
        "publish": 650,
        "publish_details": {"rate": 100.0},
        "messages": 9,
        "messages_details": {"rate": 0.0},
    }
    rates.sample(6_000, {"publish": 9_999})
    rates.sample(16_000, {"publish": 600, "messages": 2})
    assert rates.rated({"publish": 600, "messages": 2})["publish_details"] == {"rate": 0.0}
    assert rates.rated({"publish": 600, "messages": 2})["messages_details"] == {"rate": -0.5}


async def test_the_overview_shows_the_rates_of_what_clients_do(tmp_path):
    service = AmqpService(tmp_path, SystemClock())
    client = Client(service.broker)
    client.queue("q")
    async with asyncio.timeout(60):
        while service.rates.is_due(0):  # noqa: ASYNC110 (the first sample is the housekeeper's)
            await asyncio.sleep(0.01)
    service.rates = Rates()
    service.rates.sample(0, objects.all_totals(service.broker))
    client.publish("q", *"abcdefghij")
    client.get()
    assert client.call(methods.QueueDeclare("q", True, False, False, False, False, {})) is not None
    service.rates.sample(10_000, objects.all_totals(service.broker))
    row = objects.overview_row(service.broker, listeners=[], rates=service.rates)
    stats = row["message_stats"]
    assert (stats["publish"], stats["deliver_get"]) == (10, 1)
    assert stats["publish_details"] == {"rate": 1.0}
    assert row["queue_totals"]["messages_details"] == {"rate": 0.9}
    client.session.shut_down()
    await service.close(1.0)


def sampled(sampler: ObjectSampler, now_ms: int) -> None:
    """One whole round of samples."""
    sampler.begin()
    while sampler.step(now_ms):
        pass


def rates_of(row: dict[str, Any]) -> dict[str, float]:
    """The rates in a row that are not 0."""
    details = {name: value for name, value in row.items() if name.endswith("_details") and "rate" in value}
    return {name.removesuffix("_details"): value["rate"] for name, value in details.items() if value["rate"]}


def test_queues_and_channels_have_rates_of_their_own():
    clock = ManualClock()
    broker = new_broker()
    client, other = Client(broker), Client(broker)
    for name in ("busy", "idle"):
        client.queue(name)
    sampler = ObjectSampler(broker)
    sampled(sampler, clock.monotonic_ms())
    client.send(methods.ConfirmSelect(False))
    client.publish("busy", *"abcdefghij")
    client.publish("nowhere", "x", mandatory=True)
    other.get("busy", no_ack=False)
    other.get("busy")
    other.get("idle")
    other.send(methods.BasicNack(1, False, True))
    other.send(methods.BasicConsume("busy", "c", False, False, False, False, {}))
    other.send(methods.BasicAck(3, False))
    clock.advance(2_000)
    sampled(sampler, clock.monotonic_ms())
    queues = broker.vhosts["/"].queues
    busy, idle = (objects.queue_row(queues[name], None) for name in ("busy", "idle"))
    stats = busy["message_stats"]
    assert {name: stats[name] for name in ("publish", "get", "get_no_ack", "deliver", "deliver_get", "ack")} == {
        "publish": 10,
        "get": 1,
        "get_no_ack": 1,
        "deliver": 9,
        "deliver_get": 11,
        "ack": 1,
    }
    assert rates_of(stats) == {
        "publish": 5.0,
        "get": 0.5,
        "get_no_ack": 0.5,
        "deliver": 4.5,
        "deliver_get": 5.5,
        "redeliver": 0.5,
        "ack": 0.5,
    }
    assert rates_of(busy) == {"messages": 4.0, "messages_unacknowledged": 4.0}
    assert rates_of(idle["message_stats"]) == {"get_empty": 0.5}
    publisher = objects.channel_row(client.session.channels[1])["message_stats"]
    assert rates_of(publisher) == {"publish": 5.5, "confirm": 5.5, "return_unroutable": 0.5}
    consumer = objects.channel_row(other.session.channels[1])["message_stats"]
    expected = rates_of(stats) | {"get_empty": 0.5}
    del expected["publish"]
    assert rates_of(consumer) == expected
    clock.advance(5_000)
    sampled(sampler, clock.monotonic_ms())
    assert rates_of(objects.queue_row(queues["busy"], None)["message_stats"]) == {}
    assert broker.counters.redelivered == 1


def test_a_queue_that_nothing_passed_through_has_no_stats():
    client = Client(new_broker())
    client.queue("q")
    row = objects.queue_row(client.broker.vhosts["/"].queues["q"], None)
    assert row["message_stats"] == {}
    assert row["messages_details"] == {"rate": 0.0}


def test_a_round_of_samples_goes_in_bounded_steps():
    broker = new_broker()
    vhost = broker.vhosts["/"]
    for number in range(OBJECTS_A_STEP + 3):
        vhost.make_queue(f"q{number}", durable=False, auto_delete=False, owner=None, arguments={})
    sampler = ObjectSampler(broker)
    sampler.begin()
    for queue in vhost.queues.values():
        queue.traffic.publish += 1
    assert sampler.step(1_000)
    for queue in vhost.queues.values():
        queue.traffic.publish += 1
    assert not sampler.step(1_000)
    sampled(sampler, 2_000)
    rated = [queue for queue in vhost.queues.values() if queue.traffic.rates()]
    assert len(rated) == OBJECTS_A_STEP


def test_connections_show_what_the_shell_counted():
    client = Client(new_broker())
    octets = client.session.octets
    sampler = ObjectSampler(client.broker)
    sampled(sampler, 0)
    octets.recv_oct, octets.send_oct, octets.recv_cnt = 3_000, 50, 3
    sampled(sampler, 10_000)
    row = objects.connection_row(client.session)
    assert (row["recv_oct"], row["recv_oct_details"]) == (3_000, {"rate": 300.0})
    assert rates_of(row) == {"recv_oct": 300.0, "send_oct": 5.0, "recv_cnt": 0.3}
