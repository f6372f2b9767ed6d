"""Static topics with RocketMQ's own mqadmin and client: made, filled, moved to another broker while being consumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rocketmq_java.runner import JavaClient, body_of
from tests.interop.rocketmq_java.targets import StrataServer, need_java, wait_until
from tests.interop.stores import stored

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VERSION = "5.5.0"
TOPIC = "Fixed"
LOGICAL = "__syslo__global__"
GAP = 10_000
"""mqadmin begins a moved queue at the next multiple of this that leaves room."""


@pytest.fixture
def java(tmp_path: Path) -> Iterator[JavaClient]:
    """A JVM that keeps what mqadmin notes of mappings where the test does."""
    need_java(VERSION)
    folder = tmp_path / "jvm"
    folder.mkdir()
    with JavaClient(tmp_path / "java", version=VERSION, jvm_properties={"java.io.tmpdir": str(folder)}) as client:
        yield client


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[StrataServer]]:
    """Two brokers with one name server, which is in the first one's process."""
    made: list[StrataServer] = []
    try:
        for name in ("broker-a", "broker-b"):
            settings = {"brokerName": name} | ({"namesrvAddr": made[0].namesrv} if made else {})
            made.append(StrataServer(tmp_path / name, tmp_path / f"{name}-work", settings=settings).start())
        wait_until("the second to register", lambda: "registered with name server" in made[1].log_tail())
        yield made
    finally:
        for broker in made:
            broker.kill()


class World:
    """What was sent to the topic, by logical queue."""

    def __init__(self, java: JavaClient, namesrv: str) -> None:
        self.java = java
        self.namesrv = namesrv
        self.sent: dict[int, list[tuple[int, bytes]]] = defaultdict(list)

    def send(self, label: str) -> None:
        """Two messages to each of four queues; what finds no route, or a broker that lost the queue, is sent again."""
        for number in range(8):
            body = f"{label} {number}"
            rows: list[dict[str, Any]] = []

            def is_stored(body: str = body, queue: int = number % 4, rows: list[dict[str, Any]] = rows) -> bool:
                rows[:] = self.java.send([{"topic": TOPIC, "queue": queue, "text": body}])
                return rows[0].get("status") == "SEND_OK"

            wait_until(f"{body!r} to be stored", is_stored)
            (row,) = stored(rows)
            assert row["queueId"] == number % 4
            self.sent[row["queueId"]].append((row["queueOffset"], body.encode()))

    def received(self, id: str, rows: list[dict[str, Any]]) -> dict[int, list[tuple[int, bytes]]]:
        """What a consumer got, by queue and in order, once it is as much as was sent."""

        def is_all_here() -> bool:
            rows.extend(self.java.poll(id, min=1, timeout_s=2))
            return len({row["uniqId"] for row in rows}) >= sum(map(len, self.sent.values()))

        wait_until(f"{id} to get everything", is_all_here)
        found: dict[int, set[tuple[int, bytes]]] = defaultdict(set)
        for row in rows:
            found[row["queueId"]].add((row["queueOffset"], body_of(row) or b""))
        return {queue: sorted(messages) for queue, messages in found.items()}


def test_a_static_topic_moves_to_another_broker_under_its_consumers(java: JavaClient, brokers: list[StrataServer]):
    namesrv = brokers[0].namesrv
    where = ("-n", namesrv, "-t", TOPIC)
    java.mqadmin("updateStaticTopic", *where, "-qn", "4", "-b", "broker-a")
    world = World(java, namesrv)
    java.producer(namesrv, pollMs=1000)
    world.send("first")
    assert [[offset for offset, _ in world.sent[queue]] for queue in range(4)] == [[0, 1]] * 4
    java.push(namesrv, TOPIC, id="early", group="early", **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    early: list[dict[str, Any]] = []
    assert world.received("early", early) == world.sent

    java.mqadmin("remappingStaticTopic", *where, "-b", "broker-b")
    world.send("second")
    assert [[offset for offset, _ in world.sent[queue]] for queue in range(4)] == [[0, 1, GAP, GAP + 1]] * 4
    assert world.received("early", early) == world.sent
    java.push(namesrv, TOPIC, id="late", group="late", **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    assert world.received("late", []) == world.sent

    java.puller(namesrv)
    ends = sorted((row["brokerName"], row["queueId"], row["min"], row["max"]) for row in java.offsets(TOPIC))
    assert ends == [(LOGICAL, queue, 0, GAP + 2) for queue in range(4)]
