"""RocketMQ's own mqadmin against the broker: what its operators look at first."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.interop.rocketmq_java.runner import JavaClient, Row
from tests.interop.rocketmq_java.targets import Target, make_target, need_java, wait_until
from tests.interop.stores import QUEUES, consume, has_route, stored

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP, PRODUCERS = "Admin", "admin-group", "admin-producers"
COUNT = 20


class Admin:
    """A broker with 20 consumed messages, its clients, and mqadmin."""

    def __init__(self, broker: Target, java: JavaClient) -> None:
        self.broker = broker
        self.java = java
        java.producer(broker.namesrv, group=PRODUCERS, retries=0, topicQueues=QUEUES)
        rows = [
            {"topic": TOPIC, "queue": i % QUEUES, "text": str(i), "keys": f"key-{i}", "tags": "A"} for i in range(COUNT)
        ]
        self.sent: list[Row] = stored(java.send(rows))
        java.push(broker.namesrv, TOPIC, id="c", group=GROUP)
        consume(java, "c", COUNT)
        java.call("push.persist", id="c")
        java.puller(broker.namesrv)

    def run(self, *words: str) -> str:
        """What mqadmin prints."""
        return self.java.mqadmin(*words, "-n", self.broker.namesrv)

    def rows(self, *words: str) -> list[list[str]]:
        """The lines of a table that mqadmin prints, cut at blanks, without its heads."""
        lines = self.run(*words).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """One broker and one JVM for all tests."""
    need_java("5.3.3", "server")
    folder = tmp_path_factory.mktemp("admin")
    broker = make_target(folder / "store", folder / "work")
    try:
        broker.start()
        with JavaClient(folder / "client", version="5.3.3") as java:
            yield Admin(broker, java)
    finally:
        broker.kill()


def test_cluster_list(admin: Admin) -> None:
    ((cluster, name, number, address, *rest),) = admin.rows("clusterList")
    assert (cluster, name, number, address) == ("DefaultCluster", "broker-a", "0", admin.broker.broker)
    assert rest[-1] == "true"
    assert "null" not in " ".join(rest)


def test_topic_list(admin: Admin) -> None:
    topics = {row[0] for row in admin.rows("topicList")}
    assert topics >= {TOPIC, f"%RETRY%{GROUP}", "TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"}
    by_cluster = [row for row in admin.rows("topicList", "-c") if row[:2] == ["DefaultCluster", TOPIC]]
    assert ["DefaultCluster", TOPIC, GROUP] in by_cluster


def test_topic_route_and_status(admin: Admin) -> None:
    route = re.sub(r"\s", "", admin.run("topicRoute", "-t", TOPIC))
    assert f'{{0:"{admin.broker.broker}"}}' in route
    assert f'"readQueueNums":{QUEUES}' in route
    rows = [row for row in admin.rows("topicStatus", "-t", TOPIC) if row[0] == "broker-a"]
    assert [row[:4] for row in rows] == [["broker-a", str(q), "0", str(COUNT // QUEUES)] for q in range(QUEUES)]


def test_consumer_progress(admin: Admin) -> None:
    rows = [row for row in admin.rows("consumerProgress", "-g", GROUP) if row[0] == TOPIC]
    end = str(COUNT // QUEUES)
    assert [row[1:6] for row in rows] == [["broker-a", str(q), end, end, "0"] for q in range(QUEUES)]
    (row,) = [row for row in admin.rows("consumerProgress") if row[0] == GROUP]
    assert (row[1], row[3], row[4], row[-1]) == ("1", "PUSH", "CLUSTERING", "0")


def test_broker_status(admin: Admin) -> None:
    lines = admin.run("brokerStatus", "-b", admin.broker.broker).splitlines()
    table = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert table["brokerActive"] == "true"
    assert int(table["putMessageTimesTotal"]) >= COUNT
    assert int(table["commitLogMaxOffset"]) > int(table["commitLogMinOffset"]) == 0


def test_queries(admin: Admin) -> None:
    sent = admin.sent[6]
    for words in (
        ("queryMsgById", "-t", TOPIC, "-i", sent["offsetMsgId"]),
        ("queryMsgByUniqueKey", "-t", TOPIC, "-i", sent["msgId"]),
        ("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", str(sent["queueId"]), "-o", str(sent["queueOffset"])),
    ):
        printed = re.sub(r" +", " ", admin.run(*words))
        assert "Keys: [key-6]" in printed, words
        assert f"Queue Offset: {sent['queueOffset']}" in printed, words
        assert f"MessageTrack [consumerGroup={GROUP}, trackType=CONSUMED" in printed, words
    found = admin.rows("queryMsgByKey", "-t", TOPIC, "-k", "key-6")
    assert found == [[sent["msgId"], str(sent["queueId"]), str(sent["queueOffset"])]]


def test_connections(admin: Admin) -> None:
    consumers = admin.run("consumerConnection", "-g", GROUP)
    assert re.search(r"@c +127\.0\.0\.1:\d+ +JAVA +V5_3_3", consumers)
    assert re.search(rf"{TOPIC} +\*", consumers)
    assert "CONSUME_PASSIVELY" in consumers
    producers = admin.run("producerConnection", "-g", PRODUCERS, "-t", TOPIC)
    assert re.search(r"@p +127\.0\.0\.1:\d+ +JAVA +V5_3_3", producers)


def test_topics_and_groups_are_made_and_changed(admin: Admin) -> None:
    admin.run("updateTopic", "-b", admin.broker.broker, "-t", "Made", "-r", "6", "-w", "6")
    wait_until("its route", lambda: has_route(admin.java, "q", "Made"))
    assert len(admin.java.offsets("Made")) == 6
    admin.run("updateTopic", "-c", "DefaultCluster", "-t", "Made", "-r", "8", "-w", "8")
    assert [row[1] for row in admin.rows("topicStatus", "-t", "Made") if row[0] == "broker-a"] == [
        str(q) for q in range(8)
    ]
    made = admin.run("updateSubGroup", "-b", admin.broker.broker, "-g", "made-group", "-r", "5")
    assert "success" in made
    config = re.sub(r" ", "", admin.run("getConsumerConfig", "-g", "made-group"))
    assert "retryMaxTimes=5" in config or "retryQueueNums=5" in config
    assert "success" in admin.run("deleteSubGroup", "-b", admin.broker.broker, "-g", "made-group")
    assert "made-group" not in admin.run("getConsumerConfig", "-g", "made-group")
