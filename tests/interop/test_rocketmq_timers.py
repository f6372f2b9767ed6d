"""Messages for a set time: RocketMQ's Java client against the broker, and stores with pending ones handed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rocketmq_java.runner import CallFailed, JavaClient, RocketServer, Row, body_of
from tests.interop.rocketmq_java.targets import (
    LaunchBroker,
    StrataServer,
    file_sizes,
    need_java,
    own_target,
    wait_until,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

__all__ = ["own_target"]

SETTINGS = {
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 1 << 20,
    "flushDiskType": "SYNC_FLUSH",
    "timerRollWindowSlot": 100_000,
}
AHEAD_MS = 25_000
ILLEGAL_OPERATION = 604


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM with RocketMQ's client, a version that can recall."""
    need_java("5.5.0", "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version="5.5.0") as client:
        yield client


def collect(java: JavaClient, id: str, texts: set[str], timeout_s: float = 150) -> list[Row]:
    """Wait until a consumer has got these bodies; returns all that it got."""
    got: list[Row] = []

    def all_there() -> bool:
        got.extend(java.poll(id, min=1, timeout_s=1))
        return {(body_of(row) or b"").decode() for row in got} >= texts

    wait_until(f"the messages {sorted(texts)}", all_there, timeout_s=timeout_s)
    return got


def test_messages_come_at_their_time_and_not_before(java: JavaClient, own_target: LaunchBroker) -> None:
    target = own_target(SETTINGS)
    java.producer(target.namesrv, id="p", group="timers", retries=0)
    java.send([{"topic": "Timed", "text": "now"}], id="p")
    java.push(target.namesrv, "Timed", id="c", group="timed")
    collect(java, "c", {"now"})
    due = int(time.time() * 1000) + 4_300
    java.send(
        [{"topic": "Timed", "text": "at", "deliverMs": due}, {"topic": "Timed", "text": "in", "delayMs": 2_000}], id="p"
    )
    for row in collect(java, "c", {"at", "in"}):
        text = (body_of(row) or b"").decode()
        if text == "at":
            assert due <= row["receivedAt"] < due + 60_000
        elif text == "in":
            assert row["receivedAt"] >= row["bornTimestamp"] + 1_900
    for id in ("p", "c"):
        java.stop(id)


def test_a_recalled_message_does_not_come(java: JavaClient, own_target: LaunchBroker) -> None:
    target = own_target({**SETTINGS, "recallMessageEnable": "true"})
    java.producer(target.namesrv, id="rp", group="timers", retries=0)
    java.send([{"topic": topic, "text": "now"} for topic in ("Recalled", "Elsewhere")], id="rp")
    java.push(target.namesrv, "Recalled", id="rc", group="timed")
    collect(java, "rc", {"now"})
    rows = [{"topic": "Recalled", "text": text, "delayMs": 10_000} for text in ("kept", "recalled")]
    kept, recalled = java.send(rows, id="rp")
    assert kept["recallHandle"] != recalled["recallHandle"]
    key = java.call("producer.recall", id="rp", topic="Recalled", handle=recalled["recallHandle"])
    assert key == recalled["msgId"]
    with pytest.raises(CallFailed) as refused:
        java.call("producer.recall", id="rp", topic="Elsewhere", handle=kept["recallHandle"])
    assert refused.value.code == ILLEGAL_OPERATION
    # Both are due in the same second or the recalled one first: when the last has come, it would have been there.
    java.send([{"topic": "Recalled", "text": "last", "delayMs": 13_000}], id="rp")
    got = collect(java, "rc", {"kept", "last"})
    assert sorted((body_of(row) or b"").decode() for row in got) == ["kept", "last"]
    for id in ("rp", "rc"):
        java.stop(id)


@pytest.mark.parametrize("first", ["ours", "killed", "theirs"])
def test_pending_messages_are_delivered_by_whoever_opens_the_store(
    java: JavaClient, tmp_path: Path, first: str
) -> None:
    store = tmp_path / "store"
    ours = StrataServer(store, tmp_path / "ours", settings=SETTINGS)
    settings = {**file_sizes(), **SETTINGS, "listenPort": ours.broker_port}
    theirs = RocketServer(store, tmp_path / "theirs", version="5.3.3", settings=settings)
    before, after = (theirs, ours) if first == "theirs" else (ours, theirs)
    try:
        before.start()
        java.producer(before.namesrv, id="p1", group="timers", retries=0)
        due = int(time.time() * 1000) + AHEAD_MS
        rows = [{"topic": "Timed", "text": f"pending {n}", "deliverMs": due + n % 3 * 1_000} for n in range(30)]
        java.send([*rows, {"topic": "Timed", "text": "tomorrow", "delayMs": 86_400_000}], id="p1")
        checkpoint = store / "config" / "timercheck"
        wait_until(
            "all are in the timer",
            lambda: checkpoint.exists() and checkpoint.read_bytes()[16:24] == (31).to_bytes(8, "big"),
        )
        java.stop("p1")
        before.kill() if first == "killed" else before.stop()
        after.start()
        java.push(after.namesrv, "Timed", id="c1", group="timed")
        got = collect(java, "c1", {f"pending {n}" for n in range(30)}, timeout_s=150)
        assert len(got) == 30
        assert min(row["receivedAt"] for row in got) >= due
        java.stop("c1")
        after.stop()
    finally:
        ours.kill()
        theirs.kill()
