"""A commit log in two directories, handed from broker to broker: each goes on in the directories of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rocketmq_java.runner import JavaClient
from tests.interop.rocketmq_java.targets import need_java
from tests.interop.stores import TOPICS, assert_acknowledged, assert_same, assert_whole, kill_under_load, pull_topics
from tests.interop.stores import write_mix as write
from tests.interop.test_rocketmq_store import Brokers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM with RocketMQ's client for all tests; they keep apart by client id."""
    need_java("5.3.3", "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version="5.3.3") as client:
        yield client


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """StrataMQ and RocketMQ over one store whose log lies in the directories a and b."""
    made = Brokers(tmp_path)
    for broker in (made.ours, made.rocketmq()):
        broker.settings["storePathCommitLog"] = f"{tmp_path / 'a'},{tmp_path / 'b'}"
        broker.settings["mappedFileSizeCommitLog"] = MIB
    yield made
    made.kill()


def assert_placed(folder: Path) -> None:
    """Files of the log are where both brokers place them: even numbers in a, odd ones in b."""
    found = {name: sorted(int(path.name) // MIB for path in (folder / name).iterdir()) for name in "ab"}
    assert found["a"], found
    assert found["b"], found
    assert {number % 2 for number in found["a"]} == {0}, found
    assert {number % 2 for number in found["b"]} == {1}, found


def test_rocketmq_opens_our_log_in_two_directories_and_we_open_its(java: JavaClient, brokers: Brokers) -> None:
    ours, theirs = brokers.ours.start(), brokers.rocketmq()
    write(java, ours.namesrv, "ours")
    before = pull_topics(java, ours.namesrv, "paths-1")
    java.stop("paths-1")
    ours.stop()
    assert_placed(brokers.folder)
    assert_whole(brokers.store)

    theirs.start()
    assert_same(before, pull_topics(java, theirs.namesrv, "paths-2"))
    write(java, theirs.namesrv, "theirs")
    during = pull_topics(java, theirs.namesrv, "paths-3")
    for id in ("paths-2", "paths-3"):
        java.stop(id)
    theirs.stop()
    assert_placed(brokers.folder)
    assert_whole(brokers.store)

    ours.start()
    after = pull_topics(java, ours.namesrv, "paths-4")
    java.stop("paths-4")
    assert_same(during, after)
    assert len(after) == len(during)
    ours.stop()
    assert_whole(brokers.store)


def test_we_recover_what_rocketmq_was_killed_over_in_two_directories_and_back(
    java: JavaClient, brokers: Brokers
) -> None:
    theirs, ours = brokers.rocketmq().start(), brokers.ours
    write(java, theirs.namesrv, "first")
    before = pull_topics(java, theirs.namesrv, "paths-5")
    java.stop("paths-5")
    answered = kill_under_load(java, theirs, "Load", label="theirs")

    ours.start()
    during = pull_topics(java, ours.namesrv, "paths-6", (*TOPICS, "Load"))
    java.stop("paths-6")
    assert_same(before, during)
    assert_acknowledged(answered, during, "Load")
    answered += kill_under_load(java, ours, "Load", label="ours")
    assert_placed(brokers.folder)

    theirs.start()
    after = pull_topics(java, theirs.namesrv, "paths-7", (*TOPICS, "Load"))
    java.stop("paths-7")
    assert_same(during, after)
    assert_acknowledged(answered, after, "Load")
    theirs.stop()
    assert_whole(brokers.store)
