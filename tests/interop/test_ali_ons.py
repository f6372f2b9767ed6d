"""The unmodified client `ali-ons` (npm) against a broker: sending, both ways to consume, tags, retries, restarts.

The package is installed by ``npm ci`` from the lock file in ``ali_ons/`` into the cache folder of the interop tests,
outside the repository; without node, npm or a registry that answers the tests are skipped and say which is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.node_packages import installed
from tests.interop.rocketmq_java.targets import StrataServer, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

HERE = Path(__file__).with_name("ali_ons")
SECONDS = 150.0
TOPIC = "Ali"
QUEUES = 4


class AliClient:
    """One client process; its lines are collected as they come."""

    def __init__(self, work: Path, role: str, **options: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        environment = {**os.environ, "HOME": str(work), "NODE_PATH": str(installed(HERE))}
        self._errors = (work / "ali-ons.log").open("ab")
        self.process = subprocess.Popen(
            ["node", str(HERE / "driver.js"), role, json.dumps(options)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until the lines that came make ``condition`` true."""
        with self._changed:
            if not self._changed.wait_for(condition, SECONDS):
                raise AssertionError(f"{what}: not within {SECONDS:.0f} s; got {self.lines[-20:]}")

    def said(self, word: str) -> bool:
        """Whether a line with this member came."""
        return any(word in line for line in self.lines)

    def messages(self) -> list[dict[str, Any]]:
        """What it has consumed."""
        return [line for line in self.lines if "body" in line]

    def bodies(self) -> list[str]:
        """Bodies of what it has consumed, sorted."""
        return sorted(line["body"] for line in self.messages())

    def wait_bodies(self, count: int) -> list[str]:
        """Wait for so many messages, then give the bodies of all."""
        self.wait(f"{count} messages", lambda: len(self.messages()) >= count)
        return self.bodies()

    def finish(self) -> None:
        """Let it end in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self._close()

    def kill(self) -> None:
        """End it without warning; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


class World:
    """A broker and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A refused message comes again after the third level; half a minute of tests would be waiting for it.
        levels = "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"
        self.broker = StrataServer(folder / "store", folder / "work", settings={"messageDelayLevel": levels})
        self.clients: list[AliClient] = []
        # This client makes no topics: it gives up when the name server has no route.
        config = folder / "store" / "config"
        config.mkdir(parents=True)
        queues = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6}
        topic = {"topicName": TOPIC, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, **queues}
        (config / "topics.json").write_text(json.dumps({"topicConfigTable": {TOPIC: topic}}))

    def client(self, role: str, **options: Any) -> AliClient:
        """Start a client."""
        made = AliClient(self.folder, role, namesrv=self.broker.namesrv, topic=TOPIC, **options)
        self.clients.append(made)
        return made

    def produce(self, specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send messages; all must have been stored. Gives the answers."""
        made = self.client("produce", messages=specs)
        made.wait("sending", lambda: made.said("done"))
        made.finish()
        assert not made.said("error"), made.lines
        rows = [line for line in made.lines if "status" in line]
        assert {row["status"] for row in rows} == {"SEND_OK"}
        return rows

    def consume(self, group: str, **options: Any) -> AliClient:
        """Start a consumer."""
        made = self.client("consume", group=group, **options)
        made.wait("its start", lambda: made.said("started"))
        return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A broker of the test's own."""
    installed(HERE)
    made = World(tmp_path)
    try:
        made.broker.start()
        yield made
    finally:
        for client in made.clients:
            client.kill()
        made.broker.kill()


def specs(count: int, name: str, **fields: Any) -> list[dict[str, Any]]:
    """Messages with the bodies ``name`` 0, 1, 2 and so on."""
    return [{"body": f"{name} {i}", **fields} for i in range(count)]


def bodies_of(messages: list[dict[str, Any]]) -> list[str]:
    """Their bodies, sorted."""
    return sorted(message["body"] for message in messages)


def test_what_is_sent_is_consumed_with_everything_in_it(world: World) -> None:
    sent = specs(40, "plain")
    sent.append({"body": "Grüße, 世界", "tags": "标签", "keys": ["k1", "k2"], "properties": {"region": "欧洲"}})
    sent.append({"body": "long " * 3000, "tags": "compressed"})
    answers = world.produce(sent)
    assert {answer["queue"] for answer in answers} == set(range(QUEUES))
    consumer = world.consume("everything")
    assert consumer.wait_bodies(len(sent)) == bodies_of(sent)
    (special,) = (row for row in consumer.messages() if row["body"] == "Grüße, 世界")
    assert (special["tags"], special["keys"], special["properties"]["region"]) == ("标签", "k1 k2", "欧洲")
    later = specs(8, "later")
    world.produce(later)
    assert consumer.wait_bodies(len(sent) + len(later)) == bodies_of(sent + later)


def test_a_group_shares_and_broadcasting_does_not(world: World) -> None:
    world.produce(specs(1, "first"))
    sharing = [world.consume("sharing"), world.consume("sharing")]
    listening = [world.consume("listening", broadcast=True), world.consume("listening", broadcast=True)]
    for client in listening:
        client.wait_bodies(1)
    expected = bodies_of(specs(1, "first"))

    def both_share() -> bool:
        more = specs(8, f"round {len(expected)}")
        world.produce(more)
        expected.extend(message["body"] for message in more)
        return all(client.messages() for client in sharing)

    wait_until("both consumers of the group get messages", both_share)

    def all_there() -> bool:
        return set(sharing[0].bodies()) | set(sharing[1].bodies()) == set(expected)

    wait_until("the two have everything", all_there)
    for client in listening:
        assert client.wait_bodies(len(expected)) == sorted(expected)


def test_tags_are_filtered(world: World) -> None:
    sent = [{"body": f"{tag} {i}", "tags": tag} for i in range(5) for tag in ("red", "green", "blue")]
    world.produce(sent)
    consumer = world.consume("tags", expression="red || blue")
    wanted = [message for message in sent if message["tags"] != "green"]
    assert consumer.wait_bodies(len(wanted)) == bodies_of(wanted)
    world.produce([{"body": "green last", "tags": "green"}, {"body": "red last", "tags": "red"}])
    consumer.wait("the last red one", lambda: "red last" in consumer.bodies())
    assert not [body for body in consumer.bodies() if body.startswith("green")]


def test_a_refused_message_comes_again(world: World) -> None:
    sent = specs(8, "order")
    world.produce(sent)
    consumer = world.consume("refusing", fail=["order 3", "order 6"])
    got = consumer.wait_bodies(10)
    assert got == sorted([*bodies_of(sent), "order 3", "order 6"])
    again = [row for row in consumer.messages() if row["times"] > 0]
    assert sorted((row["body"], row["times"]) for row in again) == [("order 3", 1), ("order 6", 1)]


def test_a_delayed_message_comes_later(world: World) -> None:
    world.produce([{"body": "delayed", "delay": 1}, {"body": "at once"}])
    consumer = world.consume("delayed")
    consumer.wait_bodies(2)
    assert [row["body"] for row in consumer.messages()] == ["at once", "delayed"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_offsets_survive_client_and_broker(world: World, end: str) -> None:
    world.produce(specs(12, "before"))
    consumer = world.consume("lasting")
    consumer.wait_bodies(12)
    consumer.finish()
    offsets = world.broker.store / "config" / "consumerOffset.json"

    def on_disk() -> bool:
        return offsets.exists() and f"{TOPIC}@lasting" in offsets.read_text()

    wait_until("the offsets on disk", on_disk)
    getattr(world.broker, end)()
    world.broker.start()
    after = specs(12, "after")
    world.produce(after)
    again = world.consume("lasting")
    assert again.wait_bodies(12) == bodies_of(after)
