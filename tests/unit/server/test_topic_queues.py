"""The queues of a topic on all brokers: from this process, from others, and when nobody answers."""

from __future__ import annotations

import asyncio
import json

import pytest

from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.nameserver.routes import QueueData, Registration, RouteTable
from stratamq.server import topic_queues
from stratamq.server.topic_queues import (
    KEPT_MS,
    QUEUES_MAX,
    TOPICS_ASKED_MAX,
    TopicQueues,
    ask_name_server,
    readable_queues,
)
from stratamq.testing.clock import ManualClock
from tests.unit.server.harness import FakePeer, Harness
from tests.unit.server.test_registering import broker, names

BOTH = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0)]


def table(routes: RouteTable | None = None) -> RouteTable:
    """Topic T with two queues to read on one broker and one on another; nobody may read W."""
    routes = routes or RouteTable()
    for name, count in (("broker-a", 2), ("broker-b", 1)):
        topics = {"T": QueueData(count, 8, 6), "W": QueueData(count, count, 2)}
        one = Registration(cluster="c", name=name, address=f"{name}:1", topics=topics)
        routes.register(one, now_ms=0, permanent=True)
    return routes


def test_without_other_name_servers_the_own_one_knows():
    found = []
    queues = TopicQueues([], table(), ManualClock())
    for topic in ("T", "W", "none"):
        queues.find(topic, found.append)
    assert found == [BOTH, [], None]


async def test_a_name_server_elsewhere_is_asked(tmp_path):
    async with (
        names(tmp_path / "names") as process,
        broker(tmp_path / "c", process.address, broker_name="broker-c") as server,
    ):
        table(process.names.routes)
        assert await ask_name_server(process.address, "T") == BOTH
        assert await ask_name_server(process.address, "none") is None
        assert await ask(server.broker.find_queues) == BOTH


class Servers:
    """What name servers answer, by address; an exception is raised."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def __call__(self, address, topic):
        self.asked.append(address)
        await asyncio.sleep(0)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def ask(find, topic="T"):
    told = asyncio.get_running_loop().create_future()
    find(topic, told.set_result)
    return await told


@pytest.fixture
def servers(monkeypatch):
    made = Servers(one=PeerUnreachable("one", "nobody there"), two=BOTH)
    monkeypatch.setattr(topic_queues, "ask_name_server", made)
    return made


async def test_an_answer_counts_for_a_while_and_is_shared(servers):
    clock = ManualClock()
    queues = TopicQueues(["one", "two"], RouteTable(), clock)
    assert await asyncio.gather(ask(queues.find), ask(queues.find)) == [BOTH, BOTH]
    assert servers.asked == ["one", "two"]
    assert await ask(queues.find) == BOTH
    assert servers.asked == ["one", "two"]
    clock.advance(KEPT_MS)
    servers.answers["one"] = BOTH[:1]
    assert await ask(queues.find) == BOTH[:1]
    clock.advance(KEPT_MS)
    servers.answers = dict.fromkeys(("one", "two"), RemoteProtocolError("garbage"))
    assert await ask(queues.find) == BOTH[:1], "what was said before"
    await queues.close()


async def test_a_topic_that_nobody_knows_is_asked_for_again(servers):
    servers.answers["one"] = None
    queues = TopicQueues(["one"], table(), ManualClock())
    assert await ask(queues.find) is None
    servers.answers["one"] = BOTH
    assert await ask(queues.find) == BOTH
    await queues.close()


async def test_when_nobody_answers_clients_keep_what_they_have(servers):
    queues = TopicQueues(["one"], table(), ManualClock())
    assert await ask(queues.find) is None
    await queues.close()


async def test_who_waits_at_the_end_is_told(servers):
    queues = TopicQueues(["two"], table(), ManualClock())
    found = []
    queues.find("T", found.append)
    await queues.close()
    assert found == [None]


async def test_only_so_many_topics_are_asked_for_at_a_time(servers):
    servers.answers["one"] = BOTH[:1]
    queues = TopicQueues(["one"], table(), ManualClock())
    names = ["T", *(f"T{number}" for number in range(TOPICS_ASKED_MAX))]
    found = await asyncio.gather(*(ask(queues.find, name) for name in reversed(names)))
    assert found == [BOTH[:1]] * TOPICS_ASKED_MAX + [None]
    assert len(servers.asked) == TOPICS_ASKED_MAX
    await queues.close()


@pytest.mark.parametrize(
    "rows",
    [
        [7],
        [{"brokerName": "a", "readQueueNums": "1", "perm": 6}],
        [{"brokerName": "a", "readQueueNums": QUEUES_MAX + 1, "perm": 6}],
        [{"brokerName": "a", "readQueueNums": QUEUES_MAX, "perm": 6}] * 2,
    ],
)
def test_a_route_that_cannot_be_is_refused(rows):
    with pytest.raises(RemoteProtocolError):
        readable_queues(rows)


def test_a_client_gets_its_part_of_all_brokers(tmp_path):
    harness = Harness(tmp_path)
    harness.broker.find_queues = TopicQueues([], table(), harness.clock).find
    for number, client in enumerate(("c1", "c2")):
        harness.heartbeat(client, peer=FakePeer(7000 + number), g="T:*")

    def assigned(client, **more):
        body = {"topic": "T", "consumerGroup": "g", "clientId": client, "messageModel": "CLUSTERING"} | more
        rows = json.loads(harness.ask(400, {}, body).body).get("messageQueueAssignments")
        queues = rows and [row["messageQueue"] for row in rows]
        return queues and [(queue["brokerName"], queue["queueId"]) for queue in queues]

    assert [assigned("c1"), assigned("c2")] == [BOTH[:2], BOTH[2:]]
    assert assigned("c1", strategyName="AVG_BY_CIRCLE") == [BOTH[0], BOTH[2]]
    assert assigned("c1", strategyName="BY_MOON") is None
    assert assigned("c1", consumerGroup="nobody") is None
    assert assigned("c1", messageModel="BROADCASTING") == BOTH
    assert assigned("c1", topic="%LMQ%light") == [(harness.broker.config.broker_name, 0)]
    harness.close()
