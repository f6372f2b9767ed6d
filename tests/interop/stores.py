"""What the tests that hand one store from broker to broker share: what is written, and how two views are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from stratamq.findings import Severity
from stratamq.formats.config_json import decode_config_json
from stratamq.logstore.check import check_store
from tests.interop.rocketmq_java.runner import CallFailed, JavaClient, RocketServer, Row
from tests.interop.rocketmq_java.targets import StrataServer, wait_until

SUBSCRIPTION_GROUP_NOT_EXIST = 26
NO_MESSAGE = 208
QUEUES = 4
TAGS = ("red", "green", "blue", "标签", None)
TOPICS = ("Orders", "Clicks", "Batches", "Large")

# The client writes these into a message that it pulled; they are not in the store.
_ADDED_BY_CLIENT = ("MIN_OFFSET", "MAX_OFFSET")

Place = tuple[str, int, int]
Broker = StrataServer | RocketServer


def mixed(count: int, label: str) -> list[Row]:
    """Messages of all kinds for ``Orders`` and ``Clicks``, two keys each, a fifth without tags."""
    rows: list[Row] = []
    for i in range(count):
        row: Row = {"topic": TOPICS[i % 2], "queue": i // 2 % QUEUES, "len": 1 + i * 37 % 1500, "seed": i}
        row["keys"] = f"{label}-{i} user-{i % 50}"
        if TAGS[i % len(TAGS)] is not None:
            row["tags"] = TAGS[i % len(TAGS)]
        if i % 7 == 0:
            row["properties"] = {"region": "欧洲", "equation": "a=b;c", "number": str(i)}
            row["flag"] = -i
        rows.append(row)
    return rows


def stored(rows: Sequence[Row]) -> list[Row]:
    """The rows of sends, all of which must have been stored."""
    failed = [row for row in rows if row.get("status") != "SEND_OK"]
    assert not failed, failed[:3]
    return list(rows)


def write_mix(java: JavaClient, namesrv: str, label: str, *, count: int = 600) -> list[Row]:
    """Write singles, batches, compressed and large bodies; returns what the client was told of the singles."""
    id = f"writer-{label}"
    java.producer(namesrv, id=id, group="writers", retries=0, topicQueues=QUEUES)
    # The first message makes its topic; sent together, some would find no route.
    first = [{"topic": topic, "queue": 0, "text": f"first of {label}", "keys": f"{label}-first"} for topic in TOPICS]
    sent = stored(java.send(first, id=id))
    sent += stored(java.send(mixed(count, label), id=id, mode="async"))
    for number in range(5):
        batch = [
            {
                "topic": "Batches",
                "queue": number % QUEUES,
                "text": f"{label} {number} {i}",
                "keys": f"{label}-b{number}-{i}",
            }
            for i in range(20)
        ]
        stored(java.send([{**row, "tags": "batch"} for row in batch], id=id, mode="batch"))
    large = [
        {"topic": "Large", "queue": i % QUEUES, "len": 60_000 + i, "kind": kind, "keys": f"{label}-large-{i}"}
        for i, kind in enumerate(("text", "random") * 10)
    ]
    sent += stored(java.send(large, id=id))
    java.stop(id)
    return sent


def place(row: Mapping[str, Any]) -> Place:
    """Where a message is."""
    return str(row["topic"]), int(row["queueId"]), int(row["queueOffset"])


def view(rows: Iterable[Row]) -> dict[Place, Row]:
    """Pulled messages by their place, without what the client added."""
    found = {}
    for row in rows:
        properties = {name: value for name, value in row["properties"].items() if name not in _ADDED_BY_CLIENT}
        assert place(row) not in found, f"pulled twice: {place(row)}"
        found[place(row)] = {**row, "properties": properties}
    return found


def assert_same(before: Mapping[Place, Row], after: Mapping[Place, Row]) -> None:
    """Every message of ``before`` is in ``after``, unchanged to the last field."""
    missing = sorted(before.keys() - after.keys())
    assert not missing, f"{len(missing)} of {len(before)} messages are gone, first {missing[:5]}"
    for where, row in before.items():
        assert row == after[where], where


def pull_topics(
    java: JavaClient, namesrv: str, id: str, topics: Sequence[str] = TOPICS, *, sent: Sequence[Row] = ()
) -> dict[Place, Row]:
    """Everything that a broker serves of some topics, through a pull consumer ``id`` that stays.

    RocketMQ lets messages be read some time after it has answered; they are waited for when ``sent`` is given.
    """
    java.puller(namesrv, id=id, group=f"group-{id}")
    wait_until("a route to every topic", lambda: all(has_route(java, id, topic) for topic in topics))
    wanted = {place(row) for row in sent}
    found: dict[Place, Row] = {}

    def all_there() -> bool:
        found.update(view(java.pull_all(topics, id=id)))
        return wanted <= found.keys()

    wait_until("all that was sent", all_there)
    return found


def has_route(java: JavaClient, id: str, topic: str) -> bool:
    """True once the client finds the topic's queues."""
    try:
        return bool(java.offsets(topic, id=id))
    except CallFailed:
        return False


def ends(java: JavaClient, id: str, topics: Sequence[str] = TOPICS) -> dict[tuple[str, int], tuple[int, int]]:
    """Minimum and maximum offset of every queue."""
    rows = [(topic, row) for topic in topics for row in java.offsets(topic, id=id)]
    return {(topic, row["queueId"]): (row["min"], row["max"]) for topic, row in rows}


def found_by_key(java: JavaClient, id: str, topic: str, key: str) -> list[Place]:
    """Places of messages with a key; none is no error."""
    try:
        return sorted(place(row) for row in java.query(topic, key, id=id, max=64))
    except CallFailed as nothing:
        if nothing.code != NO_MESSAGE:
            raise
        return []


def commit_offsets(java: JavaClient, namesrv: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets of a group that may be new: it exists from its first heartbeat on."""
    id = f"committer-{group}"
    java.puller(namesrv, id=id, group=group)

    def committed() -> bool:
        try:
            for queue, offset in offsets.items():
                java.call("pull.commit", id=id, topic=topic, queue=queue, offset=offset)
        except CallFailed as unknown:
            if unknown.code != SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            return False
        return True

    wait_until("the group's first heartbeat", committed)
    assert committed_offsets(java, id, topic) == dict(offsets)
    java.stop(id)


def committed_offsets(java: JavaClient, id: str, topic: str) -> dict[int, int]:
    """A group's offsets as its broker has them."""
    return {queue: java.call("pull.committed", id=id, topic=topic, queue=queue) for queue in range(QUEUES)}


def consume(java: JavaClient, id: str, count: int) -> list[Row]:
    """Poll a push consumer until it has ``count`` different messages."""
    got: list[Row] = []

    def enough() -> bool:
        got.extend(java.poll(id, min=1, timeout_s=1))
        return len({place(row) for row in got}) >= count

    wait_until(f"{count} messages at {id}", enough, timeout_s=150)
    return got


def start_load(java: JavaClient, namesrv: str, topic: str, count: int, *, label: str) -> Future[Any]:
    """Begin to send ``count`` messages without waiting; the future's rows say which were acknowledged."""
    id = f"load-{label}"
    java.producer(namesrv, id=id, group="writers", retries=0, topicQueues=QUEUES, timeoutMs=5_000)
    stored(java.send([{"topic": topic, "queue": 0, "text": "first"}], id=id))
    load = [
        {
            "topic": topic,
            "queue": i % QUEUES,
            "len": 10 + i * 13 % 700,
            "seed": i,
            "keys": f"{label}-{i}",
            "tags": "load",
        }
        for i in range(count)
    ]
    return java.submit("producer.send", id=id, mode="async", messages=load)


def kill_under_load(java: JavaClient, broker: Broker, topic: str, *, label: str, count: int = 4_000) -> list[Row]:
    """Kill -9 ``broker`` once part of a load is in; returns the sends it had acknowledged by then."""
    pending = start_load(java, broker.namesrv, topic, count, label=label)
    watch = f"watch-{label}"
    java.puller(broker.namesrv, id=watch, group=watch)
    before = sum(row["max"] for row in java.offsets(topic, id=watch))
    wait_until(
        "part of the load", lambda: sum(row["max"] for row in java.offsets(topic, id=watch)) >= before + count // 20
    )
    broker.kill()
    answered = [row for row in pending.result(timeout=150) if row.get("status") == "SEND_OK"]
    assert 0 < len(answered) < count, f"{len(answered)} of {count} were answered before the kill"
    for id in (watch, f"load-{label}"):
        java.stop(id)
    return answered


def assert_acknowledged(answered: Iterable[Row], found: Mapping[Place, Row], topic: str) -> None:
    """Every acknowledged send is there: the same place, the same id, the same body."""
    for row in answered:
        where = topic, row["queueId"], row["queueOffset"]
        assert where in found, f"acknowledged and gone: {where}"
        assert (found[where]["msgId"], found[where]["bodyMd5"]) == (row["msgId"], row["bodyMd5"]), where


def assert_whole(store: Path) -> None:
    """`store check` finds nothing that is damage or even odd."""
    report = check_store(store)
    bad = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    assert not bad, bad


def config_of(store: Path) -> dict[str, Any]:
    """Topics, groups and offsets of a store's configuration, in one form whoever wrote it."""
    loaded = {name: read_json(store / "config" / f"{name}.json") for name in ("topics", "subscriptionGroup")}
    offsets = read_json(store / "config" / "consumerOffset.json").get("offsetTable", {})
    return {
        "topics": {
            name: (config["readQueueNums"], config["writeQueueNums"], config["perm"])
            for name, config in loaded["topics"]["topicConfigTable"].items()
        },
        "groups": {
            name: (config["retryMaxTimes"], config["consumeEnable"], config["retryQueueNums"])
            for name, config in loaded["subscriptionGroup"]["subscriptionGroupTable"].items()
        },
        "offsets": {name: {int(queue): offset for queue, offset in queues.items()} for name, queues in offsets.items()},
    }


def assert_config_kept(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Nothing that was configured is gone or changed; more may have come."""
    for kind, table in before.items():
        for name, value in table.items():
            assert after[kind].get(name) == value, (kind, name)


def read_json(path: Path) -> Any:
    """A configuration file as RocketMQ or StrataMQ wrote it; RocketMQ leaves integer keys unquoted."""
    return decode_config_json(path.read_text(encoding="utf-8"))


def digest_tree(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
