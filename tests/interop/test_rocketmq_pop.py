"""Pop consumption by RocketMQ's Java client: the broker shares messages, not queues. The same against RocketMQ."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.interop.rocketmq_java.runner import JavaClient
from tests.interop.rocketmq_java.targets import Target, make_target, need_java, wait_until
from tests.interop.stores import stored

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
COUNT = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One broker for all tests. RocketMQ pops only with its timers on."""
    need_java("5.3.3", "server")
    folder = tmp_path_factory.mktemp("pop")
    made = make_target(folder / "store", folder / "work", settings={"timerWheelEnable": "true"})
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM for all tests."""
    need_java("5.3.3", "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version="5.3.3") as client:
        yield client


def command(broker: Target, *words: str) -> None:
    """One of our own commands, which RocketMQ's broker understands as well."""
    done = subprocess.run(
        [sys.executable, "-m", "stratamq.cli.main", *words, "-n", broker.namesrv], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def prepare(broker: Target, java: JavaClient, topic: str, group: str, **options: object) -> None:
    """A topic with messages, and a group that pops them."""
    command(broker, "updateTopic", "-t", topic, "-c", "DefaultCluster", "-r", "4", "-w", "4")
    command(broker, "updateSubGroup", "-g", group, "-c", "DefaultCluster")
    command(broker, "setConsumeMode", "-t", topic, "-g", group, "-m", "POP", "-b", broker.broker)
    wait_until("the route", lambda: main_ok(broker, topic))
    java.producer(broker.namesrv, id=f"p-{group}", group=f"P-{group}", retries=0)
    rows = [{"topic": topic, "queue": number % 4, "text": str(number), "keys": f"k{number}"} for number in range(COUNT)]
    assert len(stored(java.send(rows, id=f"p-{group}"))) == COUNT


def main_ok(broker: Target, topic: str) -> bool:
    words = [sys.executable, "-m", "stratamq.cli.main", "topicRoute", "-t", topic, "-n", broker.namesrv]
    return subprocess.run(words, capture_output=True).returncode == 0


def collect(java: JavaClient, *ids: str, until: int) -> list[tuple[str, str]]:
    """Client and text of what came, until there are so many different ones."""
    found: list[tuple[str, str]] = []

    def enough() -> bool:
        for one in ids:
            found.extend((one, row["properties"]["KEYS"][1:]) for row in java.poll(one, min=0, timeout_s=0.3))
        return len({text for _, text in found}) >= until

    wait_until(f"{until} messages by pop", enough, timeout_s=150)
    return found


def test_two_consumers_share_messages_and_each_comes_once(broker, java):
    prepare(broker, java, "PopShared", "pop-shared")
    for one in ("s1", "s2"):
        java.push(broker.namesrv, "PopShared", id=one, group="pop-shared", pop=True, threads=2)
    found = collect(java, "s1", "s2", until=COUNT)
    assert sorted(int(text) for _, text in found) == list(range(COUNT))
    for one in ("s1", "s2"):
        java.stop(one)


def test_what_is_refused_comes_again(broker, java):
    prepare(broker, java, "PopRefused", "pop-refused")
    java.push(broker.namesrv, "PopRefused", id="r", group="pop-refused", pop=True, failures=1, retryLevel=1)
    seen: dict[str, int] = {}

    def all_twice() -> bool:
        for row in java.poll("r", min=0, timeout_s=0.3):
            key = row["properties"]["KEYS"]
            seen[key] = seen.get(key, 0) + 1
        return len(seen) == COUNT and min(seen.values()) >= 2

    wait_until("every message twice", all_twice, timeout_s=150)
    java.stop("r")
