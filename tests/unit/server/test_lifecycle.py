"""Starting, serving and stopping a whole server in this process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import replace

import aiohttp
import pytest

from stratamq.config import BrokerConfig, FlushMode, ServerConfig, StoreConfig
from stratamq.errors import StoreLocked
from stratamq.protocols.remoting.command import encode_frame
from stratamq.server.lifecycle import Server
from stratamq.server.ports import Addresses
from stratamq.server.process import remove_ready_file, write_ready_file
from stratamq.server.settings import Settings
from stratamq.server.sockets import PortUnusable, advertised_host, bind, port_of
from stratamq.server.tables import keep_tables
from tests.unit.protocols import wire
from tests.unit.server.harness import SMALL, Harness, records

FREE = ServerConfig(namesrv_port=0, broker_port=0, http_port=0)
SECONDS = 120.0
"""Limits that only matter when a test fails: a busy machine may be slow."""


def settings(directory, *, server: ServerConfig = FREE, broker: BrokerConfig | None = None, store: StoreConfig = SMALL):
    return Settings(data_dir=directory, server=server, broker=broker or BrokerConfig(), store=store)


class Connection:
    """A plain client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, code: int, ext: dict[str, object] | None = None, body: bytes = b"", opaque: int = 1) -> None:
        fields = {name: str(value) for name, value in (ext or {}).items()}
        self.writer.write(encode_frame(code=code, opaque=opaque, ext=fields, body=body))

    async def receive(self) -> wire.Answer:
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readexactly(4)
            return wire.one(head + await self.reader.readexactly(struct.unpack(">I", head)[0]))

    async def ask(self, code: int, ext: dict[str, object] | None = None, body: bytes = b"") -> wire.Answer:
        self.send(code, ext, body)
        return await self.receive()

    def close(self) -> None:
        self.writer.close()


def send_ext(topic: str = "T") -> dict[str, object]:
    return {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}


def pull_ext(**ext: object) -> dict[str, object]:
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 6,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15000,
        "subscription": "*",
        "subVersion": 0,
    }
    return fields | ext


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_a_message_goes_in_and_comes_out_after_a_restart(tmp_path, mode):
    chosen = settings(tmp_path, store=replace(SMALL, flush_mode=mode))
    server = Server(chosen)
    await server.start()
    client = await Connection.open(server.addresses.broker)
    assert (await client.ask(310, send_ext(), b"hello")).code == 0
    names = await Connection.open(server.addresses.namesrv)
    route = json.loads((await names.ask(105, {"topic": "T"})).body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": server.addresses.broker}
    assert (await names.ask(105, {"topic": "X"})).code == 17
    await client.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    await server.stop()
    assert not (tmp_path / "abort").exists()
    assert "T@g" in (tmp_path / "config" / "consumerOffset.json").read_text()
    client.close()
    names.close()
    server = Server(chosen)
    await server.start()
    client = await Connection.open(server.addresses.broker)
    answer = await client.ask(11, pull_ext())
    assert [record.body for record in records(answer.body)] == [b"hello"]
    asked = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    assert (await client.ask(14, asked)).ext == {"offset": "1"}
    client.close()
    await server.stop()


async def test_a_waiting_pull_is_woken_and_one_that_waits_at_stop_is_answered(tmp_path):
    server = Server(settings(tmp_path))
    await server.start()
    one, two = await Connection.open(server.addresses.broker), await Connection.open(server.addresses.broker)
    await one.ask(310, send_ext(), b"first")
    two.send(11, pull_ext(queueOffset=1))
    await one.ask(310, send_ext(), b"second")
    assert [record.body for record in records((await two.receive()).body)] == [b"second"]
    two.send(11, pull_ext(queueOffset=2))
    await until(lambda: len(server.broker.waiting))
    await server.stop()
    assert (await two.receive()).code == 14
    assert await two.reader.read() == b""
    one.close()
    two.close()


async def test_a_waiting_pull_ends_in_time(tmp_path):
    server = Server(settings(tmp_path))
    await server.start()
    client = await Connection.open(server.addresses.broker)
    await client.ask(310, send_ext(), b"first")
    answer = await client.ask(11, pull_ext(queueOffset=1, suspendTimeoutMillis=50))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")
    client.close()
    await server.stop()


async def test_sends_in_work_are_answered_at_stop(tmp_path):
    server = Server(settings(tmp_path, store=replace(SMALL, flush_mode=FlushMode.SYNC)))
    await server.start()
    client = await Connection.open(server.addresses.broker)
    for number in range(50):
        client.send(310, send_ext(), b"%d" % number, opaque=number)
    await client.writer.drain()
    answers = [await client.receive()]
    await server.stop()
    while data := await client.reader.read():
        answers += wire.split(data)
    stored = [answer for answer in answers if answer.code == 0]
    assert len({answer.opaque for answer in stored}) == len(stored) >= 1
    assert all(answer.code in (0, 14) for answer in answers)
    client.close()
    again = Server(settings(tmp_path))
    await again.start()
    assert again.broker.store.max_offset("T", 0) >= len(stored)
    await again.stop()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def members_of(server: Server) -> int:
    group = server.broker.consumers.find("g")
    return len(group.members) if group is not None else 0


async def test_a_member_that_disconnects_is_noticed(tmp_path):
    server = Server(settings(tmp_path))
    await server.start()
    one, two = await Connection.open(server.addresses.broker), await Connection.open(server.addresses.broker)
    for client, name in ((one, "one"), (two, "two")):
        body = {"clientID": name, "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T"}]}]}
        client.send(34, {}, json.dumps(body).encode())
    await until(lambda: members_of(server) == 2)
    names = await one.ask(38, {"consumerGroup": "g"})
    while names.flag & 1 == 0 or not names.body:  # what is said of the second's coming is read before that answer
        names = await one.receive()
    two.close()
    while (await one.receive()).code != 40:
        pass
    assert members_of(server) == 1
    one.close()
    await server.stop()


async def test_topics_are_saved_soon_after_they_are_made(tmp_path):
    server = Server(settings(tmp_path))
    await server.start()
    client = await Connection.open(server.addresses.broker)
    await client.ask(310, send_ext("made"), b"x")
    async with asyncio.timeout(SECONDS):
        while '"made"' not in await asyncio.to_thread(_text, tmp_path / "config" / "topics.json"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    client.close()
    await server.stop()


def _text(path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_just_when_tables_are_to_be_saved_is_heeded(tmp_path, turns):
    """The cancellation was lost when it came within these turns of the loop, and the stop waited for ever."""
    harness, wanted = Harness(tmp_path), asyncio.Event()
    task = asyncio.create_task(keep_tables(harness.broker, wanted, offsets_interval_ms=60_000))
    await asyncio.sleep(0)
    wanted.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    harness.close()
    assert task.cancelled()


async def test_a_delayed_message_comes(tmp_path):
    server = Server(settings(tmp_path, broker=BrokerConfig(delay_levels="1s")))
    await server.start()
    client = await Connection.open(server.addresses.broker)
    assert (await client.ask(310, send_ext() | {"i": "DELAY\x011\x02"}, b"later")).code == 0
    answer = await client.ask(11, pull_ext(suspendTimeoutMillis=100_000))
    assert [record.body for record in records(answer.body)] == [b"later"]
    client.close()
    await server.stop()


async def test_the_http_port(tmp_path):
    server = Server(settings(tmp_path))
    await server.start()
    client = await Connection.open(server.addresses.broker)
    await client.ask(310, send_ext("T"), b"x")
    entry = {"groupName": "g", "subscriptionDataSet": [{"topic": "T"}]}
    await client.ask(34, {}, json.dumps({"clientID": "<b>", "consumerDataSet": [entry]}).encode())
    base = f"http://{server.addresses.http}"
    async with aiohttp.ClientSession() as http:
        async with http.get(base + "/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with http.get(base + "/api/v1/overview") as answer:
            overview = await answer.json()
            assert (overview["messages_put"], overview["broker"]) == (1, "broker-a")
            assert overview["connections"] == {"broker": 1, "name server": 0}
        async with http.get(base + "/api/v1/topics") as answer:
            topics = (await answer.json())["topics"]
            assert [row["topic"] for row in topics] == ["%RETRY%g", "T"]
            assert topics[1]["queues"][0] == {"queue_id": 0, "min_offset": 0, "max_offset": 1}
        async with http.get(base + "/api/v1/topics?own=1") as answer:
            assert "TBW102" in {row["topic"] for row in (await answer.json())["topics"]}
        async with http.get(base + "/api/v1/groups") as answer:
            (group,) = (await answer.json())["groups"]
            assert (group["group"], group["members"]) == ("g", 1)
            assert group["topics"] == [{"topic": "T", "lag": 1, "committed": {}}]
        async with http.get(base + "/metrics") as answer:
            text = await answer.text()
            assert 'rocketmq_messages_in_total{cluster="DefaultCluster",node_id="broker-a"} 1.0' in text
            lag = 'rocketmq_consumer_lag_messages{cluster="DefaultCluster",consumer_group="g",topic="T"} 1.0'
            assert lag in text
        async with http.get(base + "/") as answer:
            page = await answer.text()
            assert "<td>T</td>" in page
            assert "script" not in page
        async with http.get(base + "/nothing") as answer:
            assert answer.status == 404
        server.broker.is_accepting = False
        async with http.get(base + "/healthz") as answer:
            assert answer.status == 503
    client.close()
    await server.stop()


# --- what can go wrong at start ---


async def test_a_port_in_use_is_named_with_its_flag(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port_of(taken)
        for chosen, flag in (
            (replace(FREE, namesrv_port=port), "--namesrv-port"),
            (replace(FREE, broker_port=port), "--broker-port"),
            (replace(FREE, http_port=port), "--http-port"),
        ):
            server = Server(settings(tmp_path, server=chosen))
            with pytest.raises(PortUnusable, match=f"port {port} on 127.0.0.1 is in use.*{flag}"):
                await server.start()
    assert not (tmp_path / "commitlog").exists()


async def test_an_address_of_another_machine_is_named(tmp_path):
    server = Server(settings(tmp_path, server=replace(FREE, host="192.0.2.1")))
    with pytest.raises(PortUnusable, match="no address of this machine"):
        await server.start()


async def test_a_store_in_use_is_named(tmp_path):
    server = Server(settings(tmp_path))
    await server.start()
    other = Server(settings(tmp_path))
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        await other.start()
    await server.stop()


async def test_damaged_tables_fall_back_to_their_backup(tmp_path):
    chosen = settings(tmp_path)
    for topic in ("one", "two"):
        server = Server(chosen)
        await server.start()
        client = await Connection.open(server.addresses.broker)
        await client.ask(310, send_ext(topic), b"x")
        client.close()
        await server.stop()
    (tmp_path / "config" / "topics.json").write_text("{")
    server = Server(chosen)
    await server.start()
    assert {"one", "two"} <= set(server.broker.topics.names())
    await server.stop()


async def test_the_vip_port_is_two_below(tmp_path):
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = port_of(probe)
        chosen = settings(tmp_path, server=replace(FREE, broker_port=port, vip_port=True))
        server = Server(chosen)
        try:
            await server.start()
        except PortUnusable:
            continue
        client = await Connection.open(f"127.0.0.1:{port - 2}")
        assert (await client.ask(310, send_ext(), b"x")).code == 0
        client.close()
        await server.stop()
        return
    pytest.fail("no two free ports")


def test_addresses_told_to_clients():
    assert advertised_host("127.0.0.1", "") == "127.0.0.1"
    assert advertised_host("0.0.0.0", "192.0.2.7") == "192.0.2.7"
    found = advertised_host("0.0.0.0", "")
    assert found not in ("", "0.0.0.0")
    with bind(found, 0, "test") as sock:
        assert port_of(sock) > 0


def test_the_ready_file_is_whole(tmp_path):
    path = tmp_path / "ready.json"
    write_ready_file(path, Addresses("h:1", "h:2", "h:3").named())
    assert json.loads(path.read_text()) == {"namesrv": "h:1", "broker": "h:2", "http": "h:3"}
    remove_ready_file(path)
    remove_ready_file(path)
    assert not path.exists()
