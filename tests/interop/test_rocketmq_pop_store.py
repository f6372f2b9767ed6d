"""A store with popped messages, handed from StrataMQ to Apache RocketMQ and back: who has acknowledged gets none again.

Pops and acks are sent as plain requests, so that some can be left out. What is not acknowledged comes again with
whoever opened the store; what was acknowledged, before or after it changed hands, does not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratamq.cli.admin.client import AdminClient
from stratamq.errors import PeerUnreachable
from stratamq.formats.properties import find_property
from stratamq.protocols.remoting.codes import RequestCode
from tests.interop.rocketmq_java.runner import RocketServer
from tests.interop.rocketmq_java.targets import StrataServer, file_sizes, need_java, wait_until
from tests.interop.stores import Broker, read_json
from tests.unit.server.harness import records

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VERSION = "5.5.0"
TOPIC, GROUP = "Popped", "poppers"
SETTINGS = {
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 1 << 20,
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": 500,
}
INVISIBLE_MS = 10_000
COUNT = 6
WAIT_S = 120


@dataclass(frozen=True)
class Held:
    """A message that was popped: its body, and what an ack has to say."""

    body: str
    ack: dict[str, str]
    end_ms: float


@contextlib.contextmanager
def client_of(broker: Broker) -> Iterator[AdminClient]:
    """A client of a broker's name server."""
    with AdminClient([broker.namesrv], timeout_s=30) as client:
        yield client


def prepare(client: AdminClient, address: str) -> None:
    """The topic and the group."""
    topic = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
    client.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    client.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"%s"}' % GROUP.encode())


def send(client: AdminClient, address: str, name: str) -> None:
    """Some messages."""
    for number in range(COUNT):
        ext = {"producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 1}
        ext |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": int(time.time() * 1_000), "flag": 0, "properties": ""}
        ext |= {"reconsumeTimes": 0, "unitMode": False, "maxReconsumeTimes": 0, "batch": False}
        client.ask(address, RequestCode.SEND_MESSAGE, ext, f"{name} {number}".encode())


def pop(client: AdminClient, address: str, invisible_ms: int = INVISIBLE_MS) -> list[Held]:
    """What there is, without waiting."""
    begun = time.time() * 1_000
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": invisible_ms}
    ext |= {"pollTime": 0, "bornTime": int(begun), "initMode": 0}
    answer = client.call(address, RequestCode.POP_MESSAGE, ext)
    if answer.code:
        return []
    starts = {tuple(one.split(" ")[:2]): one.split(" ")[2] for one in answer.ext["startOffsetInfo"].split(";")}
    found = []
    for record in records(bytes(answer.body)):
        place = (str(record.queue_id), str(record.queue_offset))
        text = find_property(record.properties, "POP_CK")  # RocketMQ writes it into messages of a retry topic
        if text is None:
            flag = "1" if record.topic.startswith("%RETRY%") else "0"
            words = [starts[flag, place[0]], answer.ext["popTime"], answer.ext["invisibleTime"]]
            text = " ".join([*words, answer.ext["reviveQid"], flag, "broker-a", *place])
        ack = {"consumerGroup": GROUP, "topic": record.topic, "queueId": text.split(" ")[6], "extraInfo": text}
        found.append(Held(record.body.decode(), ack | {"offset": text.split(" ")[7]}, begun + invisible_ms))
    return found


def acknowledged(client: AdminClient, address: str, held: list[Held]) -> set[str]:
    """Acknowledge; returns what was, before its time was over."""
    for one in held:
        client.ask(address, RequestCode.ACK_MESSAGE, one.ack)
    now = time.time() * 1_000
    return {one.body for one in held if now < one.end_ms}


def take_some(broker: Broker, address: str, name: str) -> tuple[list[Held], set[str]]:
    """Send and pop messages and acknowledge the first third; returns the others, and what was acknowledged."""
    with client_of(broker) as client:
        send(client, address, name)
        held: list[Held] = []

        def all_there() -> bool:  # RocketMQ's queues follow its log a moment later
            held.extend(pop(client, address))
            return len(held) == COUNT

        wait_until("all messages", all_there, timeout_s=WAIT_S)
        assert [one.body for one in held] == [f"{name} {number}" for number in range(COUNT)]
        done = acknowledged(client, address, held[: COUNT // 3])
        offsets = broker.store / "config" / "consumerOffset.json"
        last = int(held[-1].ack["offset"]) + 1

        def saved() -> bool:
            table = {}
            with contextlib.suppress(OSError, ValueError):  # not there yet, or being written
                table = read_json(offsets)["offsetTable"].get(f"{TOPIC}@{GROUP}", {})
            return {int(queue): offset for queue, offset in table.items()}.get(0) == last

        wait_until("the group's offset on disk", saved, timeout_s=WAIT_S)
    return held[COUNT // 3 :], done


def take_the_rest(broker: Broker, address: str, held: list[Held], done: set[str]) -> set[str]:
    """Acknowledge another third of what was popped before, and wait until the last third has come again.

    Returns what came although it had been acknowledged.
    """
    with client_of(broker) as client:
        done |= acknowledged(client, address, held[: COUNT // 3])
        expected = {one.body for one in held[COUNT // 3 :]}
        seen: list[str] = []

        def again() -> bool:
            with contextlib.suppress(PeerUnreachable):
                found = pop(client, address, 60_000)
                acknowledged(client, address, found)
                seen.extend(one.body for one in found)
            return expected <= set(seen)

        wait_until(f"again: {sorted(expected)}", again, timeout_s=WAIT_S)
        return done & set(seen)


def test_what_was_acknowledged_stays_so_and_the_rest_comes_again(tmp_path: Path) -> None:
    need_java(VERSION, "server")
    store = tmp_path / "store"
    ours = StrataServer(store, tmp_path / "ours", settings=SETTINGS)
    settings = {**file_sizes(), **SETTINGS, "listenPort": ours.broker_port}
    theirs = RocketServer(store, tmp_path / "theirs", version=VERSION, settings=settings)
    try:
        ours.start()
        with client_of(ours) as client:
            prepare(client, ours.broker)
        left, done = take_some(ours, ours.broker, "ours-stopped")
        ours.stop()

        theirs.start()
        assert take_the_rest(theirs, ours.broker, left, done) == set()
        left, done = take_some(theirs, ours.broker, "theirs-killed")
        theirs.kill()

        ours.start()
        assert take_the_rest(ours, ours.broker, left, done) == set()
        ours.stop()
    finally:
        ours.kill()
        theirs.kill()
