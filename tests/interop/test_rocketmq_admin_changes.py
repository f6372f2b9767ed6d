"""RocketMQ's own mqadmin against the broker: what its operators change, and what they ask of clients."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rocketmq_java.runner import JavaClient
from tests.interop.rocketmq_java.targets import make_target, need_java, wait_until
from tests.interop.stores import QUEUES
from tests.interop.test_rocketmq_admin import COUNT, GROUP, TOPIC, Admin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

END = COUNT // QUEUES


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """One broker and one JVM for all tests."""
    need_java("5.3.3", "server")
    folder = tmp_path_factory.mktemp("changes")
    broker = make_target(folder / "store", folder / "work")
    try:
        broker.start()
        with JavaClient(folder / "client", version="5.3.3") as java:
            yield Admin(broker, java)
    finally:
        broker.kill()


@pytest.fixture
def client_id(admin: Admin) -> str:
    """The id that the consumer gave itself."""
    found = re.search(r"(\S+@c) ", admin.run("consumerConnection", "-g", GROUP))
    assert found is not None
    return found[1]


def progress(admin: Admin, group: str = GROUP) -> list[tuple[str, str]]:
    """Queue and consumer offset of the group's queues, as consumerProgress prints them."""
    return [(row[2], row[4]) for row in admin.rows("consumerProgress", "-g", group) if row[0] == TOPIC]


def test_a_topic_is_made_changed_and_deleted(admin: Admin) -> None:
    address = admin.broker.broker
    made = admin.run("updateTopic", "-b", address, "-t", "Gone", "-r", "2", "-w", "2", "-a", "+message.type=FIFO")
    assert "success" in made
    assert "from 6 to 4" in admin.run("updateTopicPerm", "-b", address, "-t", "Gone", "-p", "4")
    assert admin.rows("topicClusterList", "-t", "Gone") == [["DefaultCluster"]]
    deleted = admin.run("deleteTopic", "-c", "DefaultCluster", "-t", "Gone")
    assert deleted.count("success") == 2
    assert "Gone" not in {row[0] for row in admin.rows("topicList")}


def test_topics_and_groups_from_files(admin: Admin, tmp_path: Path) -> None:
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text('[{"topicName":"Listed","readQueueNums":3,"writeQueueNums":3,"perm":6}]')
    groups.write_text('[{"groupName":"listed-group","retryMaxTimes":4}]')
    assert "success" in admin.run("updateTopicList", "-b", admin.broker.broker, "-f", str(topics))
    assert len([row for row in admin.rows("topicStatus", "-t", "Listed") if row[0] == "broker-a"]) == 3
    assert "success" in admin.run("updateSubGroupList", "-b", admin.broker.broker, "-f", str(groups))
    assert "retryMaxTimes=4" in re.sub(" ", "", admin.run("getConsumerConfig", "-g", "listed-group"))


def test_order_and_key_value_settings(admin: Admin) -> None:
    assert "success" in admin.run("updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "broker-a:4")
    assert "broker-a:4" in admin.run("updateOrderConf", "-t", TOPIC, "-m", "get")
    assert "success" in admin.run("updateOrderConf", "-t", TOPIC, "-m", "delete")
    assert "success" in admin.run("updateKvConfig", "-s", "NS", "-k", "k", "-v", "v")
    assert "success" in admin.run("deleteKvConfig", "-s", "NS", "-k", "k")


def test_statistics(admin: Admin) -> None:
    (row,) = [row for row in admin.rows("statsAll", "-t", TOPIC) if row[0] == TOPIC]
    assert row[1] == GROUP
    assert (int(row[-2]) >= COUNT, int(row[-1]) >= COUNT) == (True, True)
    assert float(row[-4]) > 0
    rows = [row for row in admin.rows("brokerConsumeStats", "-b", admin.broker.broker) if row[:2] == [TOPIC, GROUP]]
    assert len(rows) == QUEUES
    shared = json.loads(admin.run("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"))["result"]
    assert [len(queues) for queues in shared.values()] == [QUEUES // 2] * 2


def test_the_consumer_answers_through_the_broker(admin: Admin, client_id: str) -> None:
    status = admin.run("consumerStatus", "-g", GROUP)
    assert client_id in status
    assert "Rebalance OK" in status
    sent = admin.sent[3]
    words = ("-t", TOPIC, "-i", sent["offsetMsgId"], "-g", GROUP)
    assert "consumeResult=CR_SUCCESS" in admin.run("queryMsgById", *words, "-d", client_id)


def test_a_group_goes_back_and_forward(admin: Admin) -> None:
    admin.java.poll("c", min=0, timeout_s=0.1)
    printed = admin.rows("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    assert sorted(row[1:] for row in printed if row[0] == "broker-a") == [[str(q), "0"] for q in range(QUEUES)]
    again: list[object] = []

    def came_again() -> bool:
        again.extend(admin.java.poll("c", min=1, timeout_s=2))
        return len(again) >= COUNT

    wait_until("the messages once more", came_again, timeout_s=150)
    printed = admin.rows("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC)
    assert sorted(row[1:] for row in printed if row[0] == "broker-a") == [[str(q), str(END)] for q in range(QUEUES)]
    copied = admin.run("cloneGroupOffset", "-s", GROUP, "-d", "copied-group", "-t", TOPIC, "-o", "true")
    assert "success" in copied


def test_messages_are_shown_sent_and_pulled(admin: Admin) -> None:
    printed = admin.run("printMsg", "-t", TOPIC)
    assert all(f"KEYS=key-{number}," in printed for number in range(COUNT))
    assert printed.count("MSGID:") >= COUNT
    assert "MSGID:" in admin.run("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "0", "-p", "true")
    (row,) = [row for row in admin.rows("sendMessage", "-t", "Shown", "-p", "text", "-k", "k") if row[0] == "broker-a"]
    assert row[2] == "SEND_OK"
    assert "BODY: text" in admin.run("consumeMessage", "-t", "Shown")
    assert "SEND_OK" in admin.run("sendMsgStatus", "-b", "broker-a", "-s", "10", "-c", "1")
    assert "true" in admin.run("checkMsgSendRT", "-t", TOPIC, "-a", "2", "-s", "10")


def test_a_queue_s_units(admin: Admin) -> None:
    words = ("-t", TOPIC, "-q", "0", "-i", "1", "-c", "2", "-b", admin.broker.broker, "-g", GROUP)
    printed = admin.run("queryCq", *words)
    assert len(re.findall(r"ConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=65,.*eval=true", printed)) == 2
    assert re.search(r"max: \d+, min: 0", printed)


def test_settings_are_changed_live_and_kept(admin: Admin) -> None:
    address = admin.broker.broker
    assert "success" in admin.run("updateBrokerConfig", "-b", address, "-k", "fileReservedTime", "-v", "47")
    shown = re.sub(" ", "", admin.run("getBrokerConfig", "-b", address))
    assert "fileReservedTime=47" in shown
    assert "success" not in admin.run("updateBrokerConfig", "-b", address, "-k", "listenPort", "-v", "1")
    kept = (admin.broker.store / "config" / "broker.properties").read_text()
    assert "fileReservedTime=47\n" in kept
    admin.run("updateNamesrvConfig", "-k", "connections_max", "-v", "777")
    assert "connections_max=777" in re.sub(" ", "", admin.run("getNamesrvConfig"))


def test_permissions_and_cleaning(admin: Admin) -> None:
    assert re.search(r"OK, \d+", admin.run("wipeWritePerm", "-b", "broker-a"))
    assert re.search(r"OK, \d+", admin.run("addWritePerm", "-b", "broker-a"))
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in admin.run(command, "-b", admin.broker.broker), command


def test_exports(admin: Admin, tmp_path: Path) -> None:
    for command, name in (("exportMetadata", "metadata"), ("exportConfigs", "configs"), ("exportMetrics", "metrics")):
        assert "success" in admin.run(command, "-c", "DefaultCluster", "-f", str(tmp_path)), command
        assert json.loads((tmp_path / f"{name}.json").read_text()), command
    assert TOPIC in json.loads((tmp_path / "metadata.json").read_text())["topicConfigTable"]
