"""The C++ client where it takes its time: half a minute for a lost answer, ten seconds for a route."""

from __future__ import annotations

import pytest

from tests.interop.broker_process import BrokerProcess
from tests.interop.cpp_world import World, bodies, specs, without_client
from tests.interop.cpp_world import world as world

pytestmark = [pytest.mark.interop, without_client]


def test_a_running_consumer_goes_on_after_a_restart_of_the_broker(world):
    world.produce("again", specs(5, "before"))
    consumer = world.consume("again", "g")
    consumer.wait_for_messages(5)
    assert world.broker.stop() == 0
    world.broker.start()
    world.produce("again", specs(5, "after"))
    consumer.wait_for_bodies(bodies(specs(5, "after")))


def test_a_failed_message_comes_again_after_its_delay(tmp_path):
    world = World(tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel=1s 1s 1s 1s 1s\n")
    world.broker = BrokerProcess(tmp_path, f"--config={conf}")
    world.broker.start()
    try:
        world.produce("retried", specs(5))
        consumer = world.consume("retried", "g", fail=["m2"])
        consumer.wait_for_messages(6)
        again = [row for row in consumer.messages if row["body"] == "m2"]
        assert [row["times"] for row in again] == [0, 1]
        assert {row["topic"] for row in again} == {"retried"}
    finally:
        world.close()
