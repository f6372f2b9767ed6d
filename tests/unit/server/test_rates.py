"""Rates of the management overview: between the last two samples."""

from __future__ import annotations

import asyncio

from stratamq.clock import SystemClock
from stratamq.protocols.amqp import methods
from stratamq.server.amqp_service import AmqpService
from stratamq.server.management import objects
from stratamq.server.management.rates import SAMPLE_MS, Rates
from tests.unit.broker.amqp.clients import Client


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
