"""The unmodified C++ client (PyPI package ``rocketmq``) against a broker: all that it can do."""

from __future__ import annotations

import time

import pytest

from tests.interop.cpp_world import Client, bodies, specs, without_client
from tests.interop.cpp_world import world as world

pytestmark = [pytest.mark.interop, pytest.mark.quick, without_client]


def test_every_way_of_sending_arrives(world):
    results = world.produce("ways", specs(8, "sync"))
    assert {result["status"] for result in results} == {0}
    assert len({result["id"] for result in results}) == 8
    world.produce("ways", specs(8, "async"), "async")
    world.produce("ways", [{"body": f"orderly{number}", "key": 3} for number in range(8)], "orderly")
    world.produce("ways", specs(8, "batch"), "batch")
    world.produce("ways", specs(8, "oneway"), "oneway")
    consumer = world.consume("ways", "all")
    got = consumer.wait_for_messages(40)
    expected = [f"{how}{number}" for how in ("sync", "async", "orderly", "batch", "oneway") for number in range(8)]
    assert bodies(got) == sorted(expected)
    ordered = [row for row in got if row["body"].startswith("orderly")]
    assert {row["queue"] for row in ordered} == {3}
    assert [row["body"] for row in sorted(ordered, key=lambda row: row["offset"])] == [f"orderly{n}" for n in range(8)]
    assert len({row["queue"] for row in got if row["body"].startswith("batch")}) == 1


def test_properties_keys_and_tags_come_back_as_sent(world):
    properties = {"custom": "Grüße \U0001f680"}
    world.produce("props", [{"body": "häl\u4e16", "tags": "TagA", "keys": "order-1", "properties": properties}])
    got = world.consume("props", "g").wait_for_messages(1)[0]
    assert (got["body"], got["tags"], got["keys"]) == ("häl\u4e16", "TagA", "order-1")
    assert got["custom"] == properties["custom"]


def test_a_large_body_is_compressed_by_the_client_and_comes_back(world):
    body = "".join(f"{number:08d}" for number in range(12_000))
    world.produce("large", [{"body": body}])
    assert world.consume("large", "g").wait_for_messages(1)[0]["body"] == body


def test_a_topic_is_created_by_its_first_message_and_gets_a_route(world):
    world.produce("fresh", specs(1))
    topic = next(row for row in world.get("/api/v1/topics")["topics"] if row["topic"] == "fresh")
    assert (topic["read_queues"], topic["write_queues"], topic["perm"]) == (4, 4, 6)


def test_long_polling_brings_a_message_at_once(world):
    world.produce("poll", specs(1, "first"))
    consumer = world.consume("poll", "g")
    consumer.wait_for_messages(1)
    world.wait_for(lambda: world.get("/api/v1/overview")["waiting_pulls"] >= 4, "waiting pulls")
    started = time.monotonic()
    world.produce("poll", specs(4, "later"))
    consumer.wait_for_messages(5)
    assert time.monotonic() - started < 5.0
    assert consumer.bodies() == sorted(["first0", *(f"later{number}" for number in range(4))])


def test_tags_filter(world):
    mixed = [{"body": f"{tag}{number}", "tags": tag} for number in range(6) for tag in ("TagA", "TagB", "TagC")]
    world.produce("tags", mixed)
    consumer = world.consume("tags", "g", expression="TagA || TagC")
    consumer.wait_for_messages(12)
    world.produce("tags", [{"body": "last", "tags": "TagA"}])
    consumer.wait_for_messages(13)
    assert {row["tags"] for row in consumer.messages} == {"TagA", "TagC"}
    assert len(consumer.messages) == 13


def test_pull_consumer_reads_everything(world):
    world.produce("pulled", specs(50))
    client = world.client("pull", topic="pulled", group="pullers")
    client.wait_until(lambda: any("done" in line for line in client.lines), "pulling")
    assert bodies([line for line in client.finish() if "body" in line]) == bodies(specs(50))


def test_broadcasting_gives_every_member_everything(world):
    world.produce("news", specs(1, "warm"))
    homes = [world.directory / name for name in ("one", "two")]
    members = []
    for home in homes:
        home.mkdir()
        client = Client(
            home,
            "consume",
            namesrv=world.broker.addresses["namesrv"],
            topic="news",
            group="readers",
            broadcasting=True,
        )
        world.clients.append(client)
        members.append(client.wait_started())
    world.wait_for(lambda: world.group("readers").get("members") == 2, "two members")
    assert world.group("readers")["message_model"] == "BROADCASTING"
    world.wait_for(lambda: world.get("/api/v1/overview")["waiting_pulls"] >= 8, "waiting pulls")
    world.produce("news", specs(20))
    for member in members:
        member.wait_for_bodies(bodies(specs(20)))


def test_orderly_consumer_keeps_the_order_of_a_queue(world):
    world.produce("ordered", [{"body": f"{number:03d}", "key": number % 2} for number in range(40)], "orderly")
    got = world.consume("ordered", "g", orderly=True).wait_for_messages(40)
    for queue in (0, 1):
        mine = [row["body"] for row in got if row["queue"] == queue]
        assert mine == sorted(mine)
        assert len(mine) == 20


def test_offsets_survive_a_restart_of_the_broker(world):
    world.produce("kept", specs(30, "before"))
    first = world.consume("kept", "g")
    first.wait_for_messages(30)
    first.finish()
    world.wait_for(lambda: world.group("g").get("members") == 0, "the consumer has left")
    assert sum(row["lag"] for row in world.group("g")["topics"]) == 0
    assert world.broker.stop() == 0
    world.broker.start()
    assert sum(row["lag"] for row in world.group("g")["topics"]) == 0
    world.produce("kept", specs(10, "after"))
    second = world.consume("kept", "g")
    second.wait_for_messages(10)
    assert second.bodies() == bodies(specs(10, "after"))


def test_queues_are_shared_out_when_consumers_join_and_leave(world):
    world.produce("shared", specs(4, "warm"))
    one = world.consume("shared", "team", instance="one")
    one.wait_for_messages(4)
    two = world.consume("shared", "team", instance="two")
    world.wait_for(lambda: world.group("team").get("members") == 2, "two members")
    sent = 0

    def both_work() -> bool:
        nonlocal sent
        world.produce("shared", specs(8, f"r{sent}-"))
        sent += 8
        return bool(two.messages)

    world.wait_for(both_work, "the second consumer gets queues")
    one.wait_until(lambda: len({*one.bodies(), *two.bodies()}) == 4 + sent, "all messages")
    queues_of_two = {row["queue"] for row in two.messages}
    assert queues_of_two < {0, 1, 2, 3}
    two.finish()
    world.wait_for(lambda: world.group("team").get("members") == 1, "one member")
    world.produce("shared", specs(40, "end"))
    one.wait_until(lambda: set(bodies(specs(40, "end"))) <= {*one.bodies(), *two.bodies()}, "all after leaving")
    assert {row["queue"] for row in one.messages if row["body"].startswith("end")} == {0, 1, 2, 3}


def test_a_killed_consumer_is_noticed_and_replaced(world):
    world.produce("killed", specs(4, "warm"))
    one = world.consume("killed", "team", instance="one")
    one.wait_for_messages(4)
    two = world.consume("killed", "team", instance="two")
    world.wait_for(lambda: world.group("team").get("members") == 2, "two members")
    two.kill()
    world.wait_for(lambda: world.group("team").get("members") == 1, "one member")
    world.produce("killed", specs(12, "end"))
    one.wait_until(lambda: set(bodies(specs(12, "end"))) <= {*one.bodies(), *two.bodies()}, "all messages")


def test_a_delayed_message_comes_later(world):
    world.produce("later", specs(1, "warm"))
    consumer = world.consume("later", "g")
    consumer.wait_for_messages(1)
    started = time.monotonic()
    world.produce("later", [{"body": "delayed", "delay": 1}])
    consumer.wait_for_messages(2)
    assert time.monotonic() - started > 0.9


def test_what_cannot_be_is_refused_and_not_stored(world):
    world.produce("refused", specs(1))
    made = world.client("produce", topic="refused", messages=[{"body": "x", "properties": {"TIMER_DELAY_SEC": "soon"}}])
    made.wait_until(lambda: any("done" in line for line in made.lines), "sending")
    assert len([line for line in made.finish() if "error" in line]) == 1
    assert world.get("/api/v1/overview")["messages_put"] == 1


def test_a_message_for_a_later_time_comes_then(world):
    world.produce("later", [{"body": "now"}])  # else the consumer would look for the topic's route 30 s later
    consumer = world.consume("later", "g")
    consumer.wait_for_messages(1)
    began = time.time()
    world.produce("later", [{"body": "x", "properties": {"TIMER_DELAY_SEC": "2"}}])
    consumer.wait_for_messages(2)
    assert time.time() - began >= 1  # kept to the second
