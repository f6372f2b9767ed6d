"""A store with open, committed and rolled back transactions, handed from StrataMQ to Apache RocketMQ and back.

One store goes through four hands, after a stop in order and after kill -9. Whoever opens it asks about what the one
before left open, delivers what is committed and nothing that is rolled back. What RocketMQ leaves after a stop in order
is in the golden stores.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stratamq.broker.half_messages import CHECK_TIMES, marked_offsets
from stratamq.broker.transactions import GROUP
from stratamq.formats.message import Record, decode_record
from stratamq.formats.properties import find_property
from tests.interop.rocketmq_java.runner import JavaClient, RocketServer, body_of
from tests.interop.rocketmq_java.targets import StrataServer, file_sizes, need_java, wait_until
from tests.interop.stores import Broker, has_route, read_json, stored

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

HALF, MARKS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
VERSION = "5.5.0"
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": 500,
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_500,
    "transactionOpBatchInterval": 100,
    "transactionCheckMax": 1_000,
}
WAIT_S = 120
EACH = 2


@dataclass
class Round:
    """What one broker was given: texts of messages by what becomes of them."""

    name: str
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM with RocketMQ's client."""
    need_java(VERSION, "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version=VERSION) as client:
        yield client


def records(store: Path) -> list[Record]:
    """All records in a running broker's commit log."""
    found = []
    for path in sorted((store / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 < len(data) and data[at + 4 : at + 8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
            found.append(decode_record(memoryview(data), at))
            at += found[-1].size
    return found


def leave_open(java: JavaClient, broker: Broker, name: str) -> Round:
    """Begin transactions: some are ended at once, the others stay open until the producer is gone."""
    made = Round(name)
    id = f"t-{name}"
    java.producer(broker.namesrv, id=id, group="deciders", transaction=True, retries=0)
    for decision in ("commit", "rollback", "unknown"):
        for number in range(EACH * (2 if decision == "unknown" else 1)):
            verdict = ("commit", "rollback")[number % 2] if decision == "unknown" else decision
            text = f"{name} {decision} {number}"
            row = {"topic": "Ends", "queue": 0, "text": text, "properties": {"verdict": verdict}}
            stored(java.send([row], id=id, mode="transaction", decision=decision, onCheck="unknown"))
            (made.committed if verdict == "commit" else made.rolled_back).add(text)
    store = broker.store
    wait_until("marks for what was ended", lambda: ended(store, name) >= 2 * EACH, timeout_s=WAIT_S)
    wait_until("each open one was asked about", lambda: asked(store, name) == 2 * EACH, timeout_s=WAIT_S)
    java.stop(id)
    return made


def halves_of(found: list[Record], name: str) -> list[Record]:
    return [one for one in found if one.topic == HALF and one.body.decode().startswith(f"{name} ")]


def ended(store: Path, name: str) -> int:
    """Half messages of a round that marks name."""
    found = records(store)
    marked = {offset for one in found if one.topic == MARKS for offset in marked_offsets(one)}
    return len({one.body for one in halves_of(found, name) if one.queue_offset in marked})


def asked(store: Path, name: str) -> int:
    """Half messages of a round that a check-back appended anew."""
    return len({one.body for one in halves_of(records(store), name) if find_property(one.properties, CHECK_TIMES)})


def delivered(store: Path) -> Counter[str]:
    """What consumers may see of all rounds."""
    return Counter(one.body.decode() for one in records(store) if one.topic == "Ends")


def end_all(java: JavaClient, broker: Broker, before: Round) -> None:
    """A new producer of the group answers what it is asked, until nothing of the round before is open."""
    id = f"ending-{before.name}"
    java.producer(broker.namesrv, id=id, group="deciders", transaction=True, retries=0)
    # Brokers know a producer that has asked for a topic's route.
    stored(java.send([{"topic": "Hello", "queue": 0, "text": "hello"}], id=id))
    store = broker.store
    wait_until("all have ended", lambda: ended(store, before.name) == 4 * EACH, timeout_s=WAIT_S)
    wait_until("what was committed", lambda: set(delivered(store)) >= before.committed, timeout_s=WAIT_S)
    java.puller(broker.namesrv, id=f"look-{before.name}", group="lookers")
    wait_until("a route", lambda: has_route(java, f"look-{before.name}", "Ends"), timeout_s=WAIT_S)
    seen = {(body_of(row) or b"").decode() for row in java.pull_all("Ends", id=f"look-{before.name}")}
    assert seen == set(delivered(store))
    assert before.committed <= seen
    assert not before.rolled_back & seen
    for one in (id, f"look-{before.name}"):
        java.stop(one)


def position(store: Path) -> int | None:
    """Up to where everything is settled, as the store says it."""
    with contextlib.suppress(OSError, ValueError):  # not there yet, or being written
        table = read_json(store / "config" / "consumerOffset.json")["offsetTable"].get(f"{HALF}@{GROUP}", {})
        return {int(queue): offset for queue, offset in table.items()}.get(0)
    return None


def test_whoever_opens_the_store_ends_what_was_left_open(java: JavaClient, tmp_path: Path) -> None:
    store = tmp_path / "store"
    ours = StrataServer(store, tmp_path / "ours", settings=SETTINGS)
    settings = {**file_sizes(), **SETTINGS, "listenPort": ours.broker_port}
    theirs = RocketServer(store, tmp_path / "theirs", version=VERSION, settings=settings)
    try:
        ours.start()
        first = leave_open(java, ours, "ours-stopped")
        ours.stop()

        theirs.start()
        end_all(java, theirs, first)
        second = leave_open(java, theirs, "theirs-killed")
        theirs.kill()

        ours.start()
        end_all(java, ours, second)
        halves = max(one.queue_offset for one in records(store) if one.topic == HALF) + 1
        wait_until("nothing is open", lambda: position(store) == halves, timeout_s=WAIT_S)
        third = leave_open(java, ours, "ours-killed")
        ours.kill()

        theirs.start()
        end_all(java, theirs, third)
        theirs.kill()
    finally:
        ours.kill()
        theirs.kill()
