"""The cold tier in a running broker: requests that wait for it, its timer and threads, its start and stop."""

from __future__ import annotations

import asyncio
import threading
import urllib.request

import msgspec
import pytest

from stratamq.broker.broker import Broker
from stratamq.broker.topics import TopicConfig
from stratamq.clock import SystemClock
from stratamq.config import BrokerConfig, ServerConfig, TieredConfig
from stratamq.errors import ReadPending, ServiceUnavailable, TierError
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.server.lifecycle import Server
from stratamq.server.settings import Settings
from stratamq.server.stream_log import BrokerStreams
from stratamq.server.tiering import Tiering
from stratamq.tiered import commits
from stratamq.tiered.folder import FolderBackend
from tests.unit.logstore.stores import message, open_store, put
from tests.unit.server.harness import Harness, records
from tests.unit.server.test_pop import bodies, later, pop
from tests.unit.server.test_remoting_shell import read_answer, request, world


class Fetching:
    """Reads that wait until the test has "fetched" what they want; then they go through, or fail."""

    def __init__(self, real) -> None:
        self.real = real
        self.wakers: list = []
        self.is_there = False
        self.failure: Exception | None = None

    def __call__(self, *arguments, **named):
        if self.failure is not None:
            raise self.failure
        if not self.is_there:
            raise ReadPending("something", self.wakers.append)
        return self.real(*arguments, **named)

    def arrive(self) -> None:
        self.is_there = True
        wakers, self.wakers = self.wakers, []
        for wake in wakers:
            wake()


async def test_a_request_that_reads_what_is_being_fetched_is_answered_when_it_is_there():
    async with world() as here:
        fetching = Fetching(here.echo)
        here.listener.handlers[9] = fetching
        reader, writer = await here.connect()
        writer.write(request(9, opaque=1, body=b"cold") + request(1, opaque=2, body=b"warm"))
        assert (await read_answer(reader)).opaque == 2  # nobody waits behind it
        await here.wait_for(lambda: bool(fetching.wakers))
        peer = next(iter(here.listener.peers))
        assert peer.unanswered == 1
        for wake in fetching.wakers[:]:  # woken too early: it waits again
            fetching.wakers.remove(wake)
            wake()
        assert peer.unanswered == 1
        fetching.arrive()
        answer = await read_answer(reader)
        assert (answer.opaque, answer.body, peer.unanswered) == (1, b"cold", 0)
        fetching.failure = ServiceUnavailable("the tier is down")
        writer.write(request(9, opaque=3))
        assert "the tier is down" in (await read_answer(reader)).remark
        writer.close()


async def test_who_leaves_while_it_is_being_fetched_is_forgotten():
    async with world() as here:
        fetching = Fetching(here.echo)
        here.listener.handlers[9] = fetching
        _, writer = await here.connect()
        writer.write(request(9))
        await here.wait_for(lambda: bool(fetching.wakers))
        writer.close()
        await here.wait_for(lambda: not here.listener.peers)
        fetching.arrive()
        await here.check_served()


def test_a_pull_that_waited_for_messages_can_wait_for_the_tier_too(harness: Harness):
    harness.send(body=b"one")
    harness.heartbeat(g="T:*")
    fetching = Fetching(harness.store.get)
    harness.pulls._get = fetching
    fetching.is_there = True
    harness.request(RequestCode.PULL_MESSAGE, harness.pull_ext(queueOffset=1, sysFlag=6))
    harness.peer.take()
    fetching.is_there = False
    harness.send(body=b"two")
    assert len(fetching.wakers) == 1
    harness.peer.take()
    fetching.arrive()
    (answer,) = harness.peer.take()
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in records(answer.body)] == [b"two"]


class ColdQueue(Fetching):
    """Only one queue of a topic has to be fetched."""

    def __init__(self, real, key: tuple[str, int]) -> None:
        super().__init__(real)
        self.key = key

    def __call__(self, topic, queue_id, *arguments, **named):
        if (topic, queue_id) == self.key:
            return super().__call__(topic, queue_id, *arguments, **named)
        return self.real(topic, queue_id, *arguments, **named)


def test_a_pop_gives_what_is_there_and_skips_nothing_while_another_queue_is_fetched(harness: Harness):
    for queue in range(4):
        harness.send(body=b"q%d" % queue, e=queue)
    cold = ColdQueue(harness.store.get, ("T", 2))
    harness.store.get = cold
    assert sorted(bodies(pop(harness))) == [b"q0", b"q1", b"q3"]
    fields = {"consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000}
    fields |= {"pollTime": 0, "bornTime": 0, "initMode": 0}
    header = CommandHeader(
        code=200050,
        opaque=1,
        ext=msgspec.Raw(msgspec.json.encode({name: str(value) for name, value in fields.items()})),
    )
    with pytest.raises(ReadPending):  # nothing else to give: the connection asks again
        harness.handlers[200050](harness.peer, header, memoryview(b""))
    cold.arrive()
    assert bodies(pop(harness)) == [b"q2"]


def test_a_popped_message_that_is_cold_when_its_time_is_over_comes_again(harness: Harness):
    harness.send(body=b"once")
    assert bodies(pop(harness)) == [b"once"]
    cold = ColdQueue(harness.store.get, ("T", 0))
    harness.store.get = cold
    later(harness, 60_001)
    assert pop(harness).code != ResponseCode.SUCCESS
    cold.arrive()
    later(harness, 60_000)
    assert bodies(pop(harness)) == [b"once"]


def test_an_amqp_stream_reads_on_when_it_has_been_fetched(harness: Harness):
    harness.send(body=b"one")
    streams = BrokerStreams(harness.broker)
    fetching = Fetching(harness.store.get)
    harness.broker.store.get = fetching
    told = []
    streams.watch("T", lambda: told.append(1))
    assert streams.read("T", 0, 5) == ((), 0)
    fetching.arrive()
    assert told == [1]
    found, following = streams.read("T", 0, 5)
    assert ([one.body for one in found], following) == ([b"one"], 1)
    fetching.failure = ServiceUnavailable("down")
    assert streams.read("T", 0, 5) == ((), 0)


# --- the whole ---


def ask(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=100) as answer:
        return answer.read().decode()


def policy(tmp_path, **changes) -> TieredConfig:
    return TieredConfig(url=f"file://{tmp_path}/cold", seal_age_ms=0, **changes)


def server(tmp_path, **changes) -> Server:
    ports = {"namesrv_port": 0, "broker_port": 0, "http_port": 0, "amqp_port": -1}
    settings = Settings(data_dir=tmp_path / "data", server=ServerConfig(**ports), tiered=policy(tmp_path, **changes))
    return Server(settings)


async def wait_for(condition) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_broker_tiers_by_its_own_timer_and_says_how_far_it_is(tmp_path):
    made = server(tmp_path)
    await made.start()
    try:
        store = made.tiering.store.local
        broker: Broker = made.broker
        broker.topics.ensure("T", queues=1)
        put(store, *(message(b"x" * 100) for _ in range(50)))
        backend = FolderBackend(str(tmp_path / "cold" / "broker-a"))
        service = made.tiering.service
        await wait_for(lambda: service.manifests.get(("T", 0)) and service.manifests["T", 0].end == 50)
        assert [one.end for one in commits.find_all(backend).manifests] == [50]
        assert made.retention._keep_from() is None
        assert '"end": 50' in await asyncio.to_thread(ask, made.addresses.http, "/api/v1/tier")
        texts = await asyncio.to_thread(ask, made.addresses.http, "/metrics")
        assert (
            'rocketmq_tiered_store_messages_dispatch_total{cluster="DefaultCluster",node_id="broker-a"} 50.0' in texts
        )
        assert (
            'rocketmq_tiered_store_dispatch_behind{cluster="DefaultCluster",node_id="broker-a",topic="T"} 0.0' in texts
        )
        put(store, message(b"y"))
        assert made.retention._keep_from() == store.units("T", 0, 50, 1)[0].physical_offset
    finally:
        await made.stop()
    again = server(tmp_path)
    await again.start()
    try:
        assert again.tiering.service.manifests["T", 0].end >= 50
        assert again.broker.store is again.tiering.store
    finally:
        await again.stop()


async def test_a_broker_without_a_tier_has_none(tmp_path):
    made = server(tmp_path)
    made.settings = Settings(data_dir=tmp_path / "data", server=made.settings.server)
    await made.start()
    try:
        assert made.tiering is None
        assert not (tmp_path / "cold").exists()
    finally:
        await made.stop()


async def test_a_tier_that_cannot_be_reached_at_the_first_start_is_said(tmp_path):
    (tmp_path / "cold").write_text("a file, not a directory")
    made = server(tmp_path)
    with pytest.raises(TierError, match=r"File exists|Not a directory"):
        await made.start()


async def test_a_slow_backend_holds_nobody_up(tmp_path, monkeypatch):
    released, waiting = threading.Event(), threading.Event()
    put_new = FolderBackend.put_new

    def slow(self, name, parts):
        if name.endswith(".seg"):
            waiting.set()
            assert released.wait(100)
        put_new(self, name, parts)

    monkeypatch.setattr(FolderBackend, "put_new", slow)
    made = server(tmp_path)
    await made.start()
    try:
        made.broker.topics.ensure("T", queues=1)
        put(made.tiering.store.local, message(b"x"))
        await wait_for(waiting.is_set)
        assert "ok" in await asyncio.to_thread(ask, made.addresses.http, "/healthz")
        assert made.broker.store.get("T", 0, 0, 1).message_count == 1
        assert made.tiering.service.manifests["T", 0].end == 0
        released.set()
        await wait_for(lambda: made.tiering.service.manifests["T", 0].end == 1)
    finally:
        released.set()
        await made.stop()


async def test_an_operator_deletes_a_topic_in_both_tiers(tmp_path):
    made = server(tmp_path)
    await made.start()
    try:
        made.broker.topics.ensure("T", queues=1)
        put(made.tiering.store.local, message(b"x"))
        service = made.tiering.service
        await wait_for(lambda: ("T", 0) in service.manifests and service.manifests["T", 0].end == 1)
        made.broker.delete_topic("T")
        backend = FolderBackend(str(tmp_path / "cold" / "broker-a"))
        await wait_for(lambda: not commits.find_all(backend).manifests)
    finally:
        await made.stop()
    again = server(tmp_path)
    await again.start()
    try:
        assert again.broker.topics.find("T") is None
    finally:
        await again.stop()


async def test_a_topic_whose_records_hold_many_messages_is_not_said_to_be_in_the_tier(tmp_path):
    topics = {
        "T": TopicConfig(topic_name="T"),
        "B": TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}),
    }
    store = open_store(tmp_path / "s")
    tiering = Tiering(store, policy(tmp_path), BrokerConfig(), tmp_path, SystemClock(), find_topic=topics.get)
    assert [tiering.keeps(topic) for topic in ("T", "B", "none")] == [True, False, False]
    await tiering.close()
    store.close()


async def test_reads_run_in_threads_and_end_on_the_loop(tmp_path):
    store = open_store(tmp_path / "s")
    tiering = Tiering(store, policy(tmp_path), BrokerConfig(), tmp_path, SystemClock(), find_topic=lambda topic: None)
    told: list = []
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise ValueError("no")

    def done(answer, error) -> None:
        assert asyncio.get_running_loop() is loop
        told.append((answer, str(error) if error else None))

    tiering._spawn(lambda: 5, done)
    await wait_for(lambda: told)
    tiering._spawn(fail, done)
    await wait_for(lambda: len(told) == 2)
    assert told == [(5, None), (None, "no")]
    await tiering.close()
    store.close()
