"""Our own commands against running brokers: ours, and RocketMQ's (the same commands, the same answers)."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratamq.cli.admin.aliases import MQADMIN
from stratamq.cli.main import main
from tests.interop.rocketmq_java.runner import RocketServer
from tests.interop.rocketmq_java.targets import StrataServer, Target, need_java, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP = "Cli", "cli-group"


class Shell:
    """A broker, and a way to run commands against it."""

    def __init__(self, broker: Target, name: str) -> None:
        self.broker = broker
        self.name = name

    def run(self, *words: str, code: int = 0) -> Any:
        """The JSON that a command prints."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            got = main([*words, "-n", self.broker.namesrv, "--output", "json"])
        assert got == code, f"{words}: {got}\n{out.getvalue()}\n{err.getvalue()}"
        if code:
            return err.getvalue()
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        return lines[0] if len(lines) == 1 else lines

    def send(self, body: str, *more: str) -> dict[str, Any]:
        sent: dict[str, Any] = self.run("message", "send", "-t", TOPIC, "-p", body, *more)["sent"][0]
        return sent


@pytest.fixture(scope="module", params=["stratamq", "rocketmq"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One broker of each kind with a topic of two queues."""
    folder = tmp_path_factory.mktemp(request.param)
    broker: Target
    if request.param == "rocketmq":
        need_java("5.5.0", "server")
        settings = {"timerWheelEnable": "true"}  # without it, RocketMQ fails to delete topics
        broker = RocketServer(  # type: ignore[assignment]
            folder / "store", folder / "work", version="5.5.0", settings=settings
        )
    else:
        broker = StrataServer(folder / "store", folder / "work")
    try:
        broker.start()
        made = Shell(broker, request.param)
        made.run("topic", "update", "-t", TOPIC, "-c", "DefaultCluster", "-r", "2", "-w", "2")
        wait_until("the route", lambda: main(["topic", "route", "-t", TOPIC, "-n", broker.namesrv]) == 0)
        made.run("group", "update", "-g", GROUP, "-c", "DefaultCluster", "-r", "3")
        yield made
    finally:
        broker.kill()


def test_a_topic_is_made_changed_and_deleted(shell):
    shell.run("updateTopic", "-t", "Brief", "-b", shell.broker.broker, "-r", "3", "-w", "3")
    wait_until("the route", lambda: "Brief" in _topics(shell))
    (route,) = shell.run("topicRoute", "-t", "Brief")["route"]
    assert (route["read_queues"], route["write_queues"], route["perm"]) == (3, 3, 6)
    assert shell.run("topicClusterList", "-t", "Brief")["clusters"] == [{"cluster": "DefaultCluster"}]
    shell.run("updateTopicPerm", "-t", "Brief", "-c", "DefaultCluster", "-p", "4")
    wait_until("the change", lambda: shell.run("topicRoute", "-t", "Brief")["route"][0]["perm"] == 4)
    shell.run("deleteTopic", "-t", "Brief", "-c", "DefaultCluster")
    assert "Brief" not in _topics(shell)


def test_a_static_topic_is_made_and_gets_more_queues(shell):
    made = shell.run("updateStaticTopic", "-t", "Fixed", "-qn", "2", "-c", "DefaultCluster")["queues"]
    assert [(row["queue"], row["physical_queue"]) for row in made] == [(0, 0), (1, 1)]
    grown = shell.run("topic", "static", "-t", "Fixed", "-qn", "3", "-b", made[0]["broker"])["queues"]
    assert (grown[:2], grown[2]["queue"]) == (made, 2)
    assert "can only get more" in shell.run(
        "topic", "static", "-t", "Fixed", "-qn", "3", "-c", "DefaultCluster", code=1
    )
    assert "not static" in shell.run("topic", "static", "-t", TOPIC, "-qn", "3", "-c", "DefaultCluster", code=1)
    wait_until("the route", lambda: "Fixed" in _topics(shell))
    (route,) = shell.run("topicRoute", "-t", "Fixed")["route"]
    assert (route["read_queues"], route["write_queues"]) == (3, 3)
    assert "no broker" in shell.run("topicRoute", "-t", "Brief", code=1)


def _printed(shell: Shell, *more: str) -> set[str]:
    rows = shell.run("printMsg", "-t", TOPIC, *more)
    return {row["body"] for row in (rows if isinstance(rows, list) else [rows])}


def _topics(shell: Shell) -> set[str]:
    return {row["topic"] for row in shell.run("topicList")["topics"]}


def test_a_message_is_sent_and_found_in_every_way(shell):
    sent = shell.send("found me", "-k", "key-1 key-2", "-c", "TagA", "-b", "broker-a", "-i", "1", "-P", "colour=blue")
    assert sent["queue"] == 1
    place = ["-b", "broker-a", "-i", "1", "-o", str(sent["offset"])]
    ways = [
        ["message", "by-id", "-i", sent["offset_message_id"]],
        ["queryMsgById", "-i", sent["message_id"], "-t", TOPIC],
        ["queryMsgByUniqueKey", "-i", sent["message_id"], "-t", TOPIC],
        ["queryMsgByOffset", "-t", TOPIC, *place],
    ]
    for way in ways:
        row = wait_until(str(way), lambda way=way: _one(shell, way))
        assert (row["body"], row["tags"], row["keys"]) == ("found me", "TagA", "key-1 key-2"), way
        assert row["properties"]["colour"] == "blue"
        assert (row["queue_id"], row["queue_offset"]) == (1, sent["offset"])
    found = wait_until("the index", lambda: _one(shell, ["queryMsgByKey", "-t", TOPIC, "-k", "key-2"]))
    assert found["message_id"] == sent["message_id"]
    assert "has key" in shell.run("queryMsgByKey", "-t", TOPIC, "-k", "none", code=1)


def _one(shell: Shell, way: list[str]) -> dict[str, Any] | None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main([*way, "-n", shell.broker.namesrv, "--output", "json"])
    found: dict[str, Any] | None = json.loads(out.getvalue().splitlines()[0]) if code == 0 else None
    return found


def test_messages_are_printed_and_taken(shell):
    for number in range(6):
        shell.send(f"p{number}", "-c", "Odd" if number % 2 else "Even", "-b", "broker-a", "-i", str(number % 2))
    for tag, wanted in (("Odd", {"p1", "p3", "p5"}), ("Even", {"p0", "p2", "p4"})):
        # RocketMQ answers a send before the message can be read.
        wait_until(f"{tag} messages", lambda tag=tag, wanted=wanted: _printed(shell, "-s", tag) == wanted)
    rows = shell.run("consumeMessage", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-c", "2")
    assert len(rows) == 2
    tags = shell.run("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "0", "-p", "false", "-f", "true")
    assert {"tag": "Even", "messages": 3} in tags["tags"]
    units = shell.run("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "2", "-b", shell.broker.broker)
    assert len(units["units"]) == 2
    assert units["units"][0]["size"] > 90
    status = shell.run("topicStatus", "-t", TOPIC)["queues"]
    assert [row["queue"] for row in status] == [0, 1]
    assert all(row["max_offset"] >= 3 and row["min_offset"] == 0 for row in status)


def test_a_group_is_shown_reset_copied_and_deleted(shell):
    while min(row["max_offset"] for row in shell.run("topicStatus", "-t", TOPIC)["queues"]) < 3:
        for queue in ("0", "1"):
            shell.send("more", "-b", "broker-a", "-i", queue)
    row = next(row for row in shell.run("group", "list")["groups"] if row["group"] == GROUP)
    assert row["retry_max"] == 3
    assert shell.run("getConsumerConfig", "-g", GROUP)["broker-a"]["retryMaxTimes"] == 3

    def is_moved() -> bool:
        # A group without members is moved at once; its first offset is where it is moved to. What was sent last may
        # become readable only now.
        shell.run("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC)
        ends = {row["queue"]: row["max_offset"] for row in shell.run("topicStatus", "-t", TOPIC)["queues"]}
        progress = shell.run("consumerProgress", "-g", GROUP, "-t", TOPIC)["queues"]
        offsets = {row["queue"]: row["consumer_offset"] for row in progress}
        return offsets == ends and sum(row["behind"] for row in progress) == 0

    wait_until("the group is at the end", is_moved)
    shell.run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    progress = shell.run("consumerProgress", "-g", GROUP, "-t", TOPIC)["queues"]
    assert {row["consumer_offset"] for row in progress} == {0}
    shell.run("updateSubGroup", "-g", "cli-copy", "-c", "DefaultCluster")
    shell.run("cloneGroupOffset", "-s", GROUP, "-d", "cli-copy", "-t", TOPIC)
    assert "nobody" in shell.run("consumerConnection", "-g", GROUP, code=1)
    shell.run("deleteSubGroup", "-g", "cli-copy", "-c", "DefaultCluster", "-r", "true")
    assert "cli-copy" not in {row["group"] for row in shell.run("group", "list")["groups"]}


def test_brokers_say_how_they_are_and_take_settings(shell):
    (row,) = shell.run("clusterList")["brokers"]
    assert (row["broker"], row["broker_id"], row["address"], row["alive"]) == ("broker-a", 0, shell.broker.broker, True)
    runtime = shell.run("brokerStatus", "-b", shell.broker.broker)[shell.broker.broker]
    assert int(runtime["putMessageTimesTotal"]) > 0
    shell.run("updateBrokerConfig", "-b", shell.broker.broker, "-k", "fileReservedTime", "-v", "99")
    config = shell.run("getBrokerConfig", "-b", shell.broker.broker, "-k", "fileReservedTime")
    assert config[shell.broker.broker] == {"fileReservedTime": "99"}
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert shell.broker.broker in shell.run(command, "-c", "DefaultCluster")["remarks"][0]


def test_name_servers_keep_settings_and_permissions(shell):
    shell.run("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    shell.run("updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "broker-a:2")
    assert shell.run("updateOrderConf", "-t", TOPIC, "-m", "get")["order"]["order"] == "broker-a:2"
    shell.run("updateOrderConf", "-t", TOPIC, "-m", "delete")
    shell.run("deleteKvConfig", "-s", "space", "-k", "key")
    assert "listenPort" in shell.run("getNamesrvConfig")[shell.broker.namesrv]
    assert "topics of broker-a" in shell.run("wipeWritePerm", "-b", "broker-a")["remarks"][0]
    assert shell.run("topicRoute", "-t", TOPIC)["route"][0]["perm"] == 4
    shell.run("addWritePerm", "-b", "broker-a")
    assert shell.run("topicRoute", "-t", TOPIC)["route"][0]["perm"] == 6


def test_a_cluster_is_exported(shell, tmp_path):
    for command, name, member in (
        ("exportMetadata", "metadata.json", "topicConfigTable"),
        ("exportConfigs", "configs.json", "brokerConfigs"),
        ("exportMetrics", "metrics.json", "evaluateReport"),
    ):
        shell.run(command, "-c", "DefaultCluster", "-f", str(tmp_path))
        assert json.loads((tmp_path / name).read_text())[member]
    assert TOPIC in json.loads((tmp_path / "metadata.json").read_text())["topicConfigTable"]


def test_rates_and_times_are_shown(shell):
    assert any(row["topic"] == TOPIC for row in shell.run("statsAll", "-t", TOPIC)["stats"])
    (row,) = shell.run("clusterRT", "-a", "3")["brokers"]
    assert (row["broker"], row["messages"]) == ("broker-a", 3)
    assert len(shell.run("checkMsgSendRT", "-t", TOPIC, "-a", "3")["sent"]) == 3
    assert len(shell.run("sendMsgStatus", "-b", "broker-a", "-c", "2")["sent"]) == 2
    rows = shell.run("allocateMQ", "-t", TOPIC, "-i", "c1,c2")["queues"]
    assert [(row["client"], row["queue"]) for row in rows] == [("c1", 0), ("c2", 1)]


def test_every_alias_has_help(tmp_path: Path) -> None:
    for name in MQADMIN:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([name, "--help"]) == 0
        assert "Usage" in out.getvalue(), name
