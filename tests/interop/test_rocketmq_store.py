"""One store directory, handed from broker to broker: Apache RocketMQ opens what StrataMQ wrote, and back.

Both brokers get the same file sizes and, one after the other, the same port, so that offset message ids stay valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratamq.clock import SystemClock
from stratamq.config import StoreConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from tests.interop.cpp_world import Client, without_client
from tests.interop.rocketmq_java.runner import JavaClient, RocketServer, body_of
from tests.interop.rocketmq_java.targets import StrataServer, file_sizes, need_java, wait_until
from tests.interop.stores import (
    QUEUES,
    TOPICS,
    Broker,
    assert_acknowledged,
    assert_config_kept,
    assert_same,
    assert_whole,
    commit_offsets,
    committed_offsets,
    config_of,
    consume,
    digest_tree,
    ends,
    found_by_key,
    has_route,
    kill_under_load,
    place,
    pull_topics,
    read_json,
    stored,
    write_mix,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SYNC = {"flushDiskType": "SYNC_FLUSH", "flushConsumerOffsetInterval": 500}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM with RocketMQ's client for all tests; they keep apart by client id."""
    need_java("5.3.3", "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version="5.3.3") as client:
        yield client


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """StrataMQ and RocketMQ over one directory; whatever still runs is killed at the end."""
    made = Brokers(tmp_path)
    yield made
    made.kill()


class Brokers:
    """Brokers that take turns with one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.ours = StrataServer(self.store, folder / "ours", settings=SYNC)
        self.theirs: dict[str, RocketServer] = {}

    def rocketmq(self, version: str = "5.3.3") -> RocketServer:
        """RocketMQ's broker of a version over the store, not started, on our broker's port."""
        need_java(version, "server")
        if version not in self.theirs:
            settings = {**file_sizes(), **SYNC, "listenPort": self.ours.broker_port}
            made = RocketServer(self.store, self.folder / f"rocketmq-{version}", version=version, settings=settings)
            self.theirs[version] = made
        return self.theirs[version]

    def kill(self) -> None:
        """Kill all of them."""
        self.ours.kill()
        for broker in self.theirs.values():
            broker.kill()


def keys_of(label: str) -> list[tuple[str, str, int]]:
    """Topic, key and number of messages that `write_mix` wrote with it."""
    return [
        ("Orders", f"{label}-0", 1),
        ("Clicks", f"{label}-599", 1),
        ("Orders", "user-2", 12),
        ("Batches", f"{label}-b3-17", 1),
        ("Large", f"{label}-large-7", 1),
    ]


def test_rocketmq_serves_a_store_that_stratamq_stopped_in_order(java: JavaClient, brokers: Brokers) -> None:
    ours = brokers.ours.start()
    sent = write_mix(java, ours.namesrv, "ours")
    java.push(ours.namesrv, "Clicks", id="worker-1", group="workers")
    consume(java, "worker-1", sum(row["topic"] == "Clicks" for row in sent))
    java.call("push.persist", id="worker-1")
    java.stop("worker-1")
    kept = {queue: 5 + queue for queue in range(QUEUES)}
    commit_offsets(java, ours.namesrv, "middle", "Orders", kept)
    before = pull_topics(java, ours.namesrv, "reader-1")
    ends_before = ends(java, "reader-1")
    java.stop("reader-1")
    ours.stop()
    assert_whole(brokers.store)
    config = config_of(brokers.store)

    theirs = brokers.rocketmq().start()
    assert_same(before, pull_topics(java, theirs.namesrv, "reader-2"))
    assert ends(java, "reader-2") == ends_before
    for topic, key, count in keys_of("ours"):
        assert len(found_by_key(java, "reader-2", topic, key)) == count, (topic, key)
    some = sent[17]
    by_unique = java.call("pull.viewUnique", id="reader-2", topic=some["topic"], msgId=some["msgId"])
    by_offset = java.call("pull.view", id="reader-2", topic=some["topic"], offsetMsgId=some["offsetMsgId"])
    assert place(by_unique) == place(by_offset) == place(some)
    middle = before["Orders", 1, 30]["storeTimestamp"]
    first = min(o for (t, q, o), row in before.items() if (t, q) == ("Orders", 1) and row["storeTimestamp"] >= middle)
    assert java.call("pull.search", id="reader-2", topic="Orders", timestamp=middle)["1"] == first
    java.puller(theirs.namesrv, id="middle-2", group="middle")
    assert committed_offsets(java, "middle-2", "Orders") == kept
    java.push(theirs.namesrv, "Clicks", id="worker-2", group="workers")
    later = write_mix(java, theirs.namesrv, "theirs")
    new = sorted(place(row) for row in later if row["topic"] == "Clicks")
    assert sorted(place(row) for row in consume(java, "worker-2", len(new))) == new
    java.call("push.persist", id="worker-2")
    java.stop("worker-2")
    during = pull_topics(java, theirs.namesrv, "reader-3", sent=later)
    ends_during = ends(java, "reader-3")
    for id in ("reader-2", "reader-3", "middle-2"):
        java.stop(id)
    theirs.stop()
    assert_whole(brokers.store)

    ours.start()
    after = pull_topics(java, ours.namesrv, "reader-4")
    assert_same(before, after)
    assert_same(during, after)
    assert len(after) == len(during)
    assert ends(java, "reader-4") == ends_during
    for label in ("ours", "theirs"):
        for topic, key, count in keys_of(label):
            found = found_by_key(java, "reader-4", topic, key)
            assert len(found) == (2 * count if key.startswith("user") else count), (topic, key)
    java.puller(ours.namesrv, id="middle-4", group="middle")
    assert committed_offsets(java, "middle-4", "Orders") == kept
    java.push(ours.namesrv, "Clicks", id="worker-4", group="workers")
    java.wait_queues("worker-4", QUEUES)
    last = write_mix(java, ours.namesrv, "last")
    new = sorted(place(row) for row in last if row["topic"] == "Clicks")
    assert sorted(place(row) for row in consume(java, "worker-4", len(new))) == new
    for id in ("reader-4", "middle-4", "worker-4"):
        java.stop(id)
    ours.stop()
    assert_whole(brokers.store)
    assert_config_kept({**config, "offsets": {"Orders@middle": kept}}, config_of(brokers.store))


def test_rocketmq_serves_a_store_that_stratamq_was_killed_over(java: JavaClient, brokers: Brokers) -> None:
    ours = brokers.ours.start()
    write_mix(java, ours.namesrv, "killed")
    before = pull_topics(java, ours.namesrv, "killed-1")
    java.stop("killed-1")
    answered = kill_under_load(java, ours, "Load", label="ours")

    theirs = brokers.rocketmq().start()
    during = pull_topics(java, theirs.namesrv, "killed-2", (*TOPICS, "Load"))
    assert_same(before, during)
    assert_acknowledged(answered, during, "Load")
    for topic, key, count in keys_of("killed"):
        assert len(found_by_key(java, "killed-2", topic, key)) == count, (topic, key)
    more = write_mix(java, theirs.namesrv, "more")
    during = pull_topics(java, theirs.namesrv, "killed-3", (*TOPICS, "Load"), sent=more)
    for id in ("killed-2", "killed-3"):
        java.stop(id)
    answered += kill_under_load(java, theirs, "Load", label="theirs")

    ours.start()
    after = pull_topics(java, ours.namesrv, "killed-4", (*TOPICS, "Load"))
    assert_same(during, after)
    assert_acknowledged(answered, after, "Load")
    for label in ("killed", "more"):
        for topic, key, count in keys_of(label):
            found = found_by_key(java, "killed-4", topic, key)
            assert len(found) == (2 * count if key.startswith("user") else count), (topic, key)
    java.stop("killed-4")
    ours.stop()
    assert_whole(brokers.store)


def test_a_delayed_message_is_delivered_by_the_broker_that_comes_next(java: JavaClient, brokers: Brokers) -> None:
    ours, theirs = brokers.ours.start(), brokers.rocketmq()
    send_delayed(java, ours.namesrv, "by StrataMQ")
    assert delivered(java, ours.namesrv, "delay-1") == set()
    ours.stop()
    assert_whole(brokers.store)
    theirs.start()
    wait_until("its delivery", lambda: delivered(java, theirs.namesrv, "delay-2") == {"by StrataMQ"})
    send_delayed(java, theirs.namesrv, "by RocketMQ")
    theirs.kill()
    ours.start()
    # The first one may come again: RocketMQ was killed before it wrote down how far it was.
    wait_until("its delivery", lambda: delivered(java, ours.namesrv, "delay-3") == {"by StrataMQ", "by RocketMQ"})
    ours.stop()
    assert_whole(brokers.store)


def send_delayed(java: JavaClient, namesrv: str, text: str) -> None:
    """Send a message that is due in five seconds."""
    id = f"delayer-{text[3:]}"
    java.producer(namesrv, id=id, group="writers", retries=0)
    if not delivered(java, namesrv, f"{id}-look"):
        stored(java.send([{"topic": "Later", "text": "not delayed"}], id=id))
    stored(java.send([{"topic": "Later", "text": text, "keys": text[3:], "delay": 2}], id=id))
    java.stop(id)


def delivered(java: JavaClient, namesrv: str, id: str) -> set[str]:
    """Bodies of the delayed messages that can be pulled."""
    java.puller(namesrv, id=id, group="delay-readers")
    try:
        rows = java.pull_all("Later", id=id) if has_route(java, id, "Later") else []
    finally:
        java.stop(id)
    return {(body_of(row) or b"").decode() for row in rows} - {"not delayed"}


@without_client
def test_rocketmq_serves_what_the_cpp_client_sent_to_stratamq(java: JavaClient, brokers: Brokers) -> None:
    ours = brokers.ours.start()
    sent = {how: [cpp_message(how, i) for i in range(100)] for how in ("sync", "async", "orderly")}
    # Longer than 4 KB, the client would compress a batch as a whole, which no broker takes.
    sent["batch"] = [{"body": f"batch {i}", "tags": "T1", "keys": f"batch-{i}"} for i in range(20)]
    for how, messages in sent.items():
        produce(brokers, ours, messages, how=how)
    reader = Client(brokers.folder, "consume", namesrv=ours.namesrv, topic="Cpp", group="cpp-group").wait_started()
    later = [{"body": f"later {i}"} for i in range(8)]  # a new group of this client may begin at the end
    produce(brokers, ours, later)
    reader.wait_for_bodies([message["body"] for message in later])
    reader.finish()
    before = pull_topics(java, ours.namesrv, "cpp-1", ("Cpp",))
    java.stop("cpp-1")
    ours.stop()
    bodies = [message["body"] for messages in (*sent.values(), later) for message in messages]
    assert sorted(row["bodyMd5"] for row in before.values()) == sorted(map(md5, bodies))
    assert_whole(brokers.store)

    theirs = brokers.rocketmq().start()
    assert_same(before, pull_topics(java, theirs.namesrv, "cpp-2", ("Cpp",)))
    for key in ("sync-0", "async-50", "orderly-99", "batch-7"):
        assert len(found_by_key(java, "cpp-2", "Cpp", key)) == 1, key
    reader = Client(brokers.folder, "consume", namesrv=theirs.namesrv, topic="Cpp", group="cpp-group").wait_started()
    last = [{"body": f"last {i}"} for i in range(8)]
    produce(brokers, theirs, last)
    reader.wait_for_bodies([message["body"] for message in last])
    reader.finish()
    assert reader.bodies() == [message["body"] for message in last], "its offsets were not honoured"
    java.stop("cpp-2")
    theirs.kill()

    ours.start()
    after = pull_topics(java, ours.namesrv, "cpp-3", ("Cpp",))
    assert_same(before, after)
    assert len(after) == len(bodies) + len(last)
    java.stop("cpp-3")
    ours.stop()
    assert_whole(brokers.store)


def cpp_message(how: str, number: int) -> dict[str, Any]:
    """A message for the C++ client; ``key`` is what picks the queue where that is asked for."""
    body = f"{how} {number} " + "x" * (number * 37 % 900)
    properties = {"number": str(number)}
    return {"body": body, "tags": f"T{number % 3}", "keys": f"{how}-{number}", "properties": properties, "key": number}


def produce(brokers: Brokers, broker: Broker, messages: list[dict[str, Any]], *, how: str = "sync") -> None:
    """Send messages to the topic ``Cpp`` through the C++ client."""
    sender = Client(brokers.folder, "produce", namesrv=broker.namesrv, topic="Cpp", how=how, messages=messages)
    sender.wait_until(lambda: any("done" in line for line in sender.lines), f"sending {how}")
    assert not [line for line in sender.finish() if "error" in line]


def md5(text: str) -> str:
    """Digest of a body."""
    return hashlib.md5(text.encode()).hexdigest()


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_a_store_that_rocketmq_was_killed_over_is_recovered(
    java: JavaClient, brokers: Brokers, tmp_path: Path, version: str
) -> None:
    theirs = brokers.rocketmq(version).start()
    label = f"dead-{version.replace('.', '-')}"
    write_mix(java, theirs.namesrv, label)
    kept = {queue: 5 + queue for queue in range(QUEUES)}
    commit_offsets(java, theirs.namesrv, label, "Orders", kept)
    before = pull_topics(java, theirs.namesrv, f"{label}-1")
    offsets = brokers.store / "config" / "consumerOffset.json"
    wait_until("the offsets on disk", lambda: offsets.exists() and f"Orders@{label}" in offsets.read_text())
    java.stop(f"{label}-1")
    answered = kill_under_load(java, theirs, "Load", label=label)
    config = config_of(brokers.store)

    once, twice = tmp_path / "once", tmp_path / "twice"
    shutil.copytree(brokers.store, once)
    with opened(once) as store:
        assert not store.recovery.clean
        shutil.copytree(once, twice)
    assert_whole(once)
    with opened(twice):
        pass
    assert_whole(twice)
    for folder in ("commitlog", "consumequeue"):
        assert digest_tree(once / folder) == digest_tree(twice / folder), folder

    ours = brokers.ours.start()
    after = pull_topics(java, ours.namesrv, f"{label}-2", (*TOPICS, "Load"))
    assert_same(before, after)
    assert_acknowledged(answered, after, "Load")
    for topic, key, count in keys_of(label):
        assert len(found_by_key(java, f"{label}-2", topic, key)) == count, (topic, key)
    for number, queue, row in [(i, row["queueId"], row) for i, row in enumerate(answered[-20:])]:
        found = java.call("pull.viewUnique", id=f"{label}-2", topic="Load", msgId=row["msgId"])
        assert place(found) == ("Load", queue, row["queueOffset"]), number
    java.puller(ours.namesrv, id=f"{label}-3", group=label)
    assert committed_offsets(java, f"{label}-3", "Orders") == kept
    java.producer(ours.namesrv, id=f"{label}-p", group="writers", retries=0)
    (next_one,) = stored(java.send([{"topic": "Load", "queue": 1, "text": "next"}], id=f"{label}-p"))
    assert next_one["queueOffset"] == 1 + max(offset for topic, queue, offset in after if (topic, queue) == ("Load", 1))
    for id in (f"{label}-2", f"{label}-3", f"{label}-p"):
        java.stop(id)
    ours.stop()
    assert_whole(brokers.store)
    assert_config_kept(config, config_of(brokers.store))


def opened(path: Path) -> contextlib.closing[LogStore]:
    """Our store over a directory, with the file sizes that all brokers here have."""
    sizes = file_sizes()
    config = StoreConfig(
        commit_log_file_bytes=sizes["mappedFileSizeCommitLog"],
        consume_queue_file_bytes=sizes["mappedFileSizeConsumeQueue"],
        index_slots=sizes["maxHashSlotNum"],
        index_entries=sizes["maxIndexNum"],
    )
    host = encode_host("127.0.0.1", 10911)
    return contextlib.closing(LogStore.open(path, config, clock=SystemClock(), store_host=host))


def test_filters_are_kept_by_the_broker_that_comes_next(java: JavaClient, brokers: Brokers) -> None:
    """RocketMQ forgets the whole file when one filter's Bloom positions are not what it would give it."""
    ours = brokers.ours.start()
    java.producer(ours.namesrv, id="filter-writer", group="writers")
    stored(java.send([{"topic": "Prices", "text": str(i), "properties": {"price": str(i)}} for i in range(9)],
                     id="filter-writer"))  # fmt: skip
    java.push(ours.namesrv, "Prices", id="filtering", group="buyers", sql="price BETWEEN 5 AND 7")
    consume(java, "filtering", 3)
    java.stop("filtering")
    java.stop("filter-writer")
    ours.stop()
    written = filter_of(brokers.store)
    assert (written["expression"], written["dead"]) == ("price BETWEEN 5 AND 7", True)
    for version in ("5.3.3", "5.5.0"):
        theirs = brokers.rocketmq(version).start()
        theirs.stop()
        assert filter_of(brokers.store) == written
    ours.start()
    ours.stop()
    assert filter_of(brokers.store) == written


def filter_of(store: Path) -> dict[str, Any]:
    """The one filter that a store's configuration holds."""
    table = read_json(store / "config" / "consumerFilter.json")["filterDataByTopic"]
    found: dict[str, Any] = table["Prices"]["groupFilterData"]["buyers"]
    return found
