"""Brokers and name servers apart: registration, changes, restarts of either side, goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratamq.config import BrokerConfig, ServerConfig
from stratamq.errors import ConfigError, PeerUnreachable
from stratamq.nameserver.routes import QueueData, RouteTable
from stratamq.server.lifecycle import Server
from stratamq.server.namesrv_process import NameServerProcess
from stratamq.server.registering import Identity, Registered, Registrar, parse_addresses
from stratamq.server.remoting_client import RemotingClient
from tests.interop.ports import free_ports
from tests.unit.server.test_lifecycle import FREE, Connection, send_ext, settings, until

TOPICS = {
    "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 5},
    "topicConfigTable": {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for name in ("A", "B")
    },
}


@contextlib.asynccontextmanager
async def names(folder: Path, port: int = 0) -> AsyncIterator[NameServerProcess]:
    process = NameServerProcess(replace(FREE, namesrv_port=port, stop_timeout_ms=200), folder)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def broker(folder: Path, *addresses: str, **config: object) -> AsyncIterator[Server]:
    server_config = replace(FREE, namesrv_port=-1, namesrv_addresses=";".join(addresses), amqp_port=-1)
    server = Server(settings(folder, server=server_config, broker=BrokerConfig(**config)))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_a_broker_is_known_to_every_name_server_and_leaves_them(tmp_path):
    async with names(tmp_path / "n1") as first, names(tmp_path / "n2") as second:
        async with broker(tmp_path / "b", first.address, second.address) as server:
            tables = [process.names.routes for process in (first, second)]
            await until(lambda: all(table.broker("broker-a") for table in tables))
            assert server.addresses.namesrv == f"{first.address};{second.address}"
            client = await Connection.open(server.addresses.broker)
            assert (await client.ask(310, send_ext("Fresh"), b"x")).code == 0
            await until(lambda: all(table.route("Fresh") for table in tables))
            asked = await Connection.open(second.address)
            route = json.loads((await asked.ask(105, {"topic": "Fresh"})).body)
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": server.addresses.broker}
            client.close()
            asked.close()
        await until(lambda: not any(table.route("Fresh") for table in tables))


async def test_a_name_server_that_comes_back_hears_of_the_broker_again(tmp_path):
    (port,) = free_ports()  # none that a connection from here may take while nobody listens
    async with names(tmp_path / "n", port) as first, broker(tmp_path / "b", first.address) as server:
        assert server.registrar is not None
        await until(lambda: first.names.routes.broker("broker-a") is not None)
        await first.stop()
        reached = server.registrar.reached
        await until(lambda: not reached[first.address])
        async with names(tmp_path / "n", port) as again:
            await until(lambda: again.names.routes.broker("broker-a") is not None)
            await until(lambda: reached[first.address])


async def test_a_name_server_that_is_not_there_holds_up_nobody(tmp_path, caplog):
    async with names(tmp_path / "n") as there, names(tmp_path / "m") as gone:
        await gone.stop()
        async with broker(tmp_path / "b", gone.address, there.address) as server:
            await until(lambda: there.names.routes.broker("broker-a") is not None)
            client = await Connection.open(server.addresses.broker)
            assert (await client.ask(310, send_ext(), b"x")).code == 0
            client.close()
    assert gone.address in caplog.text


async def test_the_later_leader_of_a_name_is_believed_whoever_speaks_last(tmp_path):
    found: list[Registered] = []
    async with names(tmp_path) as process:
        old = Identity(cluster="c", name="n", address="127.0.0.1:1", topics=TOPICS, state_version=1)
        new = replace(old, address="127.0.0.1:2", state_version=2)
        registrars = [
            Registrar([process.address], lambda one=one: one, on_registered=lambda _, answer: found.append(answer))
            for one in (new, old)
        ]
        for count, registrar in enumerate(registrars, start=1):
            registrar.start()
            await until(lambda count=count: len(found) == count)
        data = process.names.routes.broker("n")
        assert data is not None
        assert data.addresses == {0: "127.0.0.1:2"}
        slave = replace(old, broker_id=1, state_version=2)
        registrars.append(Registrar([process.address], lambda: slave, on_registered=lambda _, a: found.append(a)))
        registrars[-1].start()
        await until(lambda: len(found) == 3)
        assert found[-1].master_address == "127.0.0.1:2"
        for registrar in registrars:
            await registrar.close()


async def test_a_broker_without_a_role_is_not_registered_until_it_has_one(tmp_path):
    identity: list[Identity | None] = [None]
    async with names(tmp_path) as process:
        registrar = Registrar([process.address], lambda: identity[0], period_s=600)
        registrar.start()
        await until(lambda: bool(process.names.listener.peers))
        assert process.names.routes.brokers() == []
        identity[0] = Identity(cluster="c", name="n", address="127.0.0.1:1", topics=TOPICS)
        registrar.changed()
        await until(lambda: process.names.routes.broker("n") is not None)
        assert process.names.routes.topics() == ["A", "B"]
        await registrar.close()
        assert process.names.routes.brokers() == []


async def test_an_own_name_server_named_in_the_file_is_not_registered_with_twice(tmp_path):
    (port,) = free_ports()
    server_config = replace(
        FREE, namesrv_port=port, namesrv_addresses=f"127.0.0.1:{port};localhost:{port}", amqp_port=-1
    )
    server = Server(settings(tmp_path / "b", server=server_config))
    await server.start()
    assert server.registrar is None
    await server.stop()


def test_addresses_are_checked():
    assert parse_addresses(" a:1; b:2;a:1;") == ["a:1", "b:2"]
    for bad in ("a", "a:", ":1", "a:0", "a:70000", "a:1;b"):
        with pytest.raises(ConfigError, match="host:port"):
            parse_addresses(bad)


async def test_who_waits_for_an_answer_is_told_when_the_connection_ends(tmp_path):
    async with names(tmp_path) as process:
        client = await RemotingClient.connect(process.address)
        header, _ = await client.request(105, {"topic": "none"})
        assert header.code == 17
        with pytest.raises(PeerUnreachable, match="within"):
            await client.request(105, {"topic": "none"}, timeout_s=0.0)
        await process.stop()
        with pytest.raises(PeerUnreachable):
            await client.request(105, {"topic": "none"})
        await client.close()
        with pytest.raises(PeerUnreachable, match=process.address):
            await RemotingClient.connect(process.address)


async def test_garbage_instead_of_an_answer_ends_the_connection():
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with await RemotingClient.connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(PeerUnreachable, match="frame"):
            await client.request(105, {"topic": "T"})
    server.close()
    await server.wait_closed()


def test_the_port_of_a_name_server_may_be_left_out():
    assert ServerConfig(namesrv_port=-1).namesrv_port == -1
    with pytest.raises(ConfigError):
        ServerConfig(namesrv_port=-2)


def route_of(table: RouteTable) -> list[QueueData]:
    """Topic A's queues by broker; none while it is not known."""
    route = table.route("A")
    return [] if route is None else list(route.queues.values())


def perms(server: Server) -> set[int]:
    """Permissions of topic A in the routes that the server's own name server gives."""
    assert server.namesrv is not None
    return {queue.perm for queue in route_of(server.namesrv.routes)}


async def test_routes_show_what_the_broker_allows(tmp_path):
    """A producer must not try a broker that refuses it: the route says so, at start and when it changes."""
    async with names(tmp_path / "n") as outside, broker(tmp_path / "b", outside.address, permission=4) as server:
        table = outside.names.routes
        server.broker.topics.ensure("A", queues=4)
        await until(lambda: {queue.perm for queue in route_of(table)} == {4})
        assert perms(server) == {4}
        assert server.broker.topics.get("A").perm == 6  # the topic itself is as it was made
        server.live.update("brokerPermission=6")
        assert perms(server) == {6}
        await until(lambda: {queue.perm for queue in route_of(table)} == {6})
