"""Light queues and queues of batches, handed from broker to broker: RocketMQ opens what StrataMQ wrote, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratamq.findings import Severity
from stratamq.logstore.check import check_store
from tests.interop.rocketmq_java.runner import CallFailed, JavaClient, RocketServer, body_of
from tests.interop.rocketmq_java.targets import StrataServer, file_sizes, need_java, wait_until
from tests.interop.stores import Broker, has_route, stored

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VERSION = "5.5.0"
BROKER = "broker-a"
SETTINGS = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mapperFileSizeBatchConsumeQueue": 460,
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": 500,
}
LIGHT = ("%LMQ%odd", "%LMQ%every", "%LMQ%third")


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM with RocketMQ's client for all tests."""
    need_java(VERSION, "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version=VERSION) as client:
        yield client


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[StrataServer]:
    """StrataMQ over the store."""
    made = StrataServer(tmp_path / "store", tmp_path / "ours", settings=SETTINGS)
    yield made
    made.kill()


@pytest.fixture
def theirs(tmp_path: Path, ours: StrataServer) -> Iterator[RocketServer]:
    """RocketMQ over the same store, on the same port."""
    need_java(VERSION, "server")
    settings = {**file_sizes(), **SETTINGS, "listenPort": ours.broker_port}
    made = RocketServer(tmp_path / "store", tmp_path / "theirs", version=VERSION, settings=settings)
    yield made
    made.kill()


class World:
    """What was sent: bodies by light queue, and those of the topic of batches, in order."""

    def __init__(self, java: JavaClient) -> None:
        self.java = java
        self.light: dict[str, list[str]] = {name: [] for name in LIGHT}
        self.batches: list[str] = []

    def make_topics(self, broker: Broker) -> None:
        """The topic of batches, with one queue; made by a broker's own command."""
        attributes = ("-r", "1", "-w", "1", "-a", "+queue.type=BatchCQ")
        self.java.mqadmin("updateTopic", "-n", broker.namesrv, "-b", broker.broker, "-t", "Batched", *attributes)
        self.java.puller(broker.namesrv, id="maker", group="maker")
        wait_until("a route to Batched", lambda: has_route(self.java, "maker", "Batched"), timeout_s=120)
        self.java.stop("maker")

    def write(self, broker: Broker, label: str) -> None:
        """Send messages that go into light queues, batches, and singles to the topic of batches."""
        id = f"writer-{label}"
        self.java.producer(broker.namesrv, id=id, group="writers", retries=0, topicQueues=1)
        for number in range(24):
            names = [LIGHT[1]] + [LIGHT[0]] * (number % 2) + [LIGHT[2]] * (number % 3 == 0)
            body = f"{label} {number}"
            properties = {"INNER_MULTI_DISPATCH": ",".join(names)}
            row = {"topic": "Parent", "queue": 0, "text": body, "keys": body, "properties": properties}
            stored(self.java.send([row], id=id))
            for name in names:
                self.light[name].append(body)
        for number in range(6):
            bodies = [f"{label} batch {number}.{part}" for part in range(1 + number)]
            rows = [{"topic": "Batched", "queue": 0, "text": body, "tags": "T"} for body in bodies]
            stored(self.java.send(rows, id=id, mode="batch"))
            single = f"{label} single {number}"
            stored(self.java.send([{"topic": "Batched", "queue": 0, "text": single}], id=id))
            self.batches += [*bodies, single]
        self.java.stop(id)

    def check(self, broker: Broker, id: str) -> None:
        """Pull everything and compare."""
        self.java.puller(broker.namesrv, id=id, group=f"group-{id}")
        for topic in ("Parent", "Batched"):
            wait_until(f"a route to {topic}", lambda topic=topic: has_route(self.java, id, topic), timeout_s=120)  # type: ignore[misc]
        for name, bodies in self.light.items():
            wait_until(f"{name} whole", lambda name=name, bodies=bodies: self.pulled(id, name) == bodies, timeout_s=120)  # type: ignore[misc]
        (end,) = self.java.offsets("Batched", id=id)
        assert (end["min"], end["max"]) == (0, len(self.batches))
        rows = self.java.pull_all("Batched", id=id)
        assert [text_of(row) for row in rows] == self.batches
        assert [row["queueOffset"] for row in rows] == list(range(len(self.batches)))
        self.java.stop(id)

    def pulled(self, id: str, topic: str) -> list[str]:
        """Bodies of a light queue, pulled to its end."""
        found: list[str] = []
        offset = 0
        while True:
            try:
                row = self.java.call("pull.one", id=id, topic=topic, broker=BROKER, queue=0, offset=offset)
            except CallFailed:
                return found
            if row["status"] != "FOUND":
                return found
            found += [text_of(message) for message in row["messages"]]
            offset = row["next"]

    def commit(self, broker: Broker, offset: int) -> None:
        """Commit an offset in a light queue as an ordinary group and as a light one."""
        for number, group in enumerate(("plain", "%LMQ%group")):
            id = f"committer-{number}-{offset}"
            self.java.puller(broker.namesrv, id=id, group=group)
            wait_until("a route", lambda id=id: has_route(self.java, id, "Parent"), timeout_s=120)  # type: ignore[misc]
            self.java.call("pull.commit", id=id, topic=LIGHT[1], broker=BROKER, queue=0, offset=offset + number)
            assert self.committed(id) == offset + number
            self.java.stop(id)

    def committed(self, id: str) -> int:
        """What the broker says is committed."""
        found: int = self.java.call("pull.committed", id=id, topic=LIGHT[1], broker=BROKER, queue=0)
        return found

    def check_committed(self, broker: Broker, offset: int) -> None:
        """Both groups stand where they were left."""
        for number, group in enumerate(("plain", "%LMQ%group")):
            id = f"checker-{number}-{offset}-{broker.broker}-{type(broker).__name__}"
            self.java.puller(broker.namesrv, id=id, group=group)
            wait_until("a route", lambda id=id: has_route(self.java, id, "Parent"), timeout_s=120)  # type: ignore[misc]
            assert self.committed(id) == offset + number
            self.java.stop(id)


def text_of(row: dict[str, object]) -> str:
    """The body of a message."""
    return (body_of(row) or b"").decode()


def assert_sound(store: Path) -> None:
    """`store check` finds no damage and nothing odd."""
    bad = [finding for finding in check_store(store).findings if finding.severity is not Severity.INFO]
    assert not bad, bad[:3]


def test_one_store_goes_to_rocketmq_and_back(java: JavaClient, ours: StrataServer, theirs: RocketServer) -> None:
    world = World(java)
    ours.start()
    world.make_topics(ours)
    world.write(ours, "ours")
    world.check(ours, "reader-1")
    world.commit(ours, 5)
    ours.stop()
    assert_sound(ours.store)

    theirs.start()
    world.check(theirs, "reader-2")
    world.check_committed(theirs, 5)
    world.write(theirs, "theirs")
    world.check(theirs, "reader-3")
    world.commit(theirs, 11)
    theirs.stop()
    assert_sound(ours.store)

    ours.start()
    world.check(ours, "reader-4")
    world.check_committed(ours, 11)
    world.write(ours, "again")
    world.check(ours, "reader-5")
    ours.kill()
    ours.start()
    world.check(ours, "reader-6")
    ours.stop()
    assert_sound(ours.store)


def test_a_store_that_rocketmq_was_killed_over(java: JavaClient, ours: StrataServer, theirs: RocketServer) -> None:
    world = World(java)
    ours.start()  # with enableLmq RocketMQ makes no topics in an empty store, not even its own
    world.make_topics(ours)
    ours.stop()
    theirs.start()
    world.write(theirs, "theirs")
    world.check(theirs, "killed-1")
    theirs.kill()
    ours.start()
    world.check(ours, "killed-2")
    world.write(ours, "ours")
    world.check(ours, "killed-3")
    ours.stop()
    assert_sound(ours.store)
