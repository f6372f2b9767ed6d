"""The unmodified C++ client (PyPI package ``rocketmq``) against a broker: all that it can do.

Every client runs in a process of its own. Waiting is for conditions, with deadlines; nothing sleeps for luck.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.broker_process import ROOT, BrokerProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.quick,
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="package rocketmq is not installed"),
]

SCRIPT = Path(__file__).with_name("cpp_client.py")
SECONDS = 60.0
# The client waits 30 s for the answer to a pull that it sent into a connection that was just being closed.


class Client:
    """One client process; its lines are collected as they come."""

    def __init__(self, home: Path, role: str, **options: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._errors = (home / f"client-{role}-{time.monotonic_ns()}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), role, json.dumps(options)],
            env={**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{"):
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until lines that came make ``condition`` true."""
        with self._changed:
            if not self._changed.wait_for(condition, SECONDS):
                raise AssertionError(f"{what}: not within {SECONDS:.0f} s; got {self.lines[-20:]}")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages it has consumed."""
        return [line for line in self.lines if "body" in line]

    def bodies(self) -> list[str]:
        """Bodies of what it has consumed, sorted."""
        return sorted(line["body"] for line in self.messages)

    def wait_for_messages(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many messages."""
        self.wait_until(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages

    def wait_for_bodies(self, expected: list[str]) -> None:
        """Wait until it has consumed all of these, and perhaps more."""
        self.wait_until(lambda: set(expected) <= set(self.bodies()), "all messages")

    def wait_started(self) -> Client:
        """Wait until a consumer has started."""
        self.wait_until(lambda: any("started" in line for line in self.lines), "start")
        return self

    def finish(self) -> list[dict[str, Any]]:
        """Let it end by itself, or in order; return its lines."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(SECONDS)
        self._close()
        return self.lines

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


class World:
    """A broker and what connects to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = BrokerProcess(directory)
        self.clients: list[Client] = []

    def client(self, role: str, **options: Any) -> Client:
        """Start a client."""
        made = Client(self.directory, role, namesrv=self.broker.addresses["namesrv"], **options)
        self.clients.append(made)
        return made

    def produce(self, topic: str, specs: list[dict[str, Any]], how: str = "sync") -> list[dict[str, Any]]:
        """Send messages and return the results; all must have been stored."""
        made = self.client("produce", topic=topic, messages=specs, how=how)
        made.wait_until(lambda: any("done" in line for line in made.lines), "sending")
        lines = made.finish()
        assert [line for line in lines if "error" in line] == []
        return [line for line in lines if "done" not in line]

    def consume(self, topic: str, group: str, **options: Any) -> Client:
        """Start a push consumer."""
        return self.client("consume", topic=topic, group=group, **options).wait_started()

    def get(self, path: str) -> Any:
        """Ask the broker's HTTP port."""
        with urllib.request.urlopen(f"http://{self.broker.addresses['http']}{path}", timeout=10) as answer:
            return json.load(answer)

    def group(self, name: str) -> dict[str, Any]:
        """What the broker says of a consumer group."""
        return next((row for row in self.get("/api/v1/groups")["groups"] if row["group"] == name), {})

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the broker makes ``condition`` true."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s\n{self.broker.log()[-3000:]}"
            time.sleep(0.05)

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            if client.process.poll() is None:
                client.kill()
            else:
                client._close()
        if self.broker.process is not None and self.broker.process.poll() is None:
            assert self.broker.stop() == 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.broker.start()
    yield made
    made.close()


def specs(count: int, prefix: str = "m", **extra: Any) -> list[dict[str, Any]]:
    """Plain messages."""
    return [{"body": f"{prefix}{number}", **extra} for number in range(count)]


def bodies(rows: list[dict[str, Any]]) -> list[str]:
    """Sorted bodies."""
    return sorted(row["body"] for row in rows)


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


def test_a_running_consumer_goes_on_after_a_restart_of_the_broker(world):
    world.produce("again", specs(5, "before"))
    consumer = world.consume("again", "g")
    consumer.wait_for_messages(5)
    assert world.broker.stop() == 0
    world.broker.start()
    world.produce("again", specs(5, "after"))
    consumer.wait_for_bodies(bodies(specs(5, "after")))


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


def test_a_delayed_message_comes_later(world):
    world.produce("later", specs(1, "warm"))
    consumer = world.consume("later", "g")
    consumer.wait_for_messages(1)
    started = time.monotonic()
    world.produce("later", [{"body": "delayed", "delay": 1}])
    consumer.wait_for_messages(2)
    assert time.monotonic() - started > 0.9


def test_what_is_not_served_is_refused_and_not_stored(world):
    world.produce("refused", specs(1))
    made = world.client("produce", topic="refused", messages=[{"body": "x", "properties": {"TIMER_DELAY_SEC": "5"}}])
    made.wait_until(lambda: any("done" in line for line in made.lines), "sending")
    assert len([line for line in made.finish() if "error" in line]) == 1
    assert world.get("/api/v1/overview")["messages_put"] == 1
