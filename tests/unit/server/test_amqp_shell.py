"""The AMQP shell on loopback sockets: confirms from a real store, alarms, heartbeats, ends; time is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratamq.clock import SystemClock
from stratamq.errors import StoreFailed
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import decode_method
from stratamq.protocols.amqp.frames import HEARTBEAT, PROTOCOL_HEADER, method_frame
from stratamq.server.amqp import HANDSHAKE_TIMEOUT_S
from stratamq.server.amqp_service import AmqpService
from stratamq.server.sockets import bind, port_of
from tests.unit.protocols.amqp import peers

WAIT_S = 100


class SocketClient:
    """A client on a real socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> tuple[int, bytes]:
        """Kind and payload of the next frame."""
        head = await asyncio.wait_for(self.reader.readexactly(7), WAIT_S)
        payload = await asyncio.wait_for(self.reader.readexactly(int.from_bytes(head[3:], "big") + 1), WAIT_S)
        return head[0], payload[:-1]

    async def method(self):
        """The next method."""
        kind, payload = await self.frame()
        assert kind == 1
        return decode_method(payload)

    async def call(self, *arguments):
        """Send methods on channel 1; the next method that comes."""
        self.writer.write(b"".join(method_frame(1, one) for one in arguments))
        return await self.method()

    async def ended(self) -> bool:
        """Wait until the broker closes the connection."""
        return await asyncio.wait_for(self.reader.read(), WAIT_S) == b""


class Broker:
    """A service on a free port, with the clients that a test makes."""

    def __init__(self, directory: Path) -> None:
        self.service = AmqpService(directory, SystemClock())
        self.clients: list[SocketClient] = []
        self.port = 0

    async def start(self) -> None:
        sock = bind("127.0.0.1", 0, "--amqp-port")
        self.port = port_of(sock)
        await self.service.listen(sock)

    async def bare(self) -> SocketClient:
        """A client that has said nothing yet."""
        client = SocketClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def client(self, *, heartbeat: int = 0) -> SocketClient:
        """A client with channel 1 open."""
        client = await self.bare()
        client.writer.write(peers.handshake(heartbeat=heartbeat) + method_frame(1, methods.ChannelOpen()))
        for _ in range(4):
            await client.method()
        return client

    async def stop(self) -> None:
        for client in self.clients:
            client.writer.close()
        await self.service.close(1.0)


@pytest.fixture
async def broker(tmp_path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    await made.start()
    yield made
    await made.stop()


def declare(name: str) -> methods.QueueDeclare:
    return methods.QueueDeclare(name, False, True, False, False, False, {})


async def test_confirms_come_and_messages_survive_a_stop(broker, tmp_path):
    client = await broker.client()
    await client.call(declare("q"))
    await client.call(methods.ConfirmSelect(False))
    client.writer.write(b"".join(peers.publish(1, "", "q", b"%d" % number, delivery_mode=2) for number in range(10)))
    assert await client.method() == methods.BasicAck(10, True)
    await broker.stop()
    again = Broker(tmp_path)
    await again.start()
    client = await again.client()
    answer = await client.call(declare("q"))
    assert answer.message_count == 10
    await again.stop()


async def test_a_stop_tells_clients(broker):
    client = await broker.client()
    stopping = asyncio.create_task(broker.service.close(WAIT_S))
    close = await client.method()
    assert (close.code, close.text) == (
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )
    client.writer.write(method_frame(0, methods.ConnectionCloseOk()))
    assert await client.ended()
    await stopping


async def test_who_speaks_something_else_is_told_and_disconnected(broker):
    client = await broker.bare()
    client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(client.reader.read(), WAIT_S) == PROTOCOL_HEADER


async def test_a_bad_frame_closes_one_connection(broker):
    bad, good = await broker.client(), await broker.client()
    bad.writer.write(peers.raw_frame(1, 1, b"x", end=b"\0"))
    assert (await bad.method()).code == 501
    bad.writer.write(method_frame(0, methods.ConnectionCloseOk()))
    assert isinstance(await good.call(declare("q")), methods.QueueDeclareOk)


async def test_publishers_are_blocked_by_an_alarm_and_go_on_after_it(broker):
    client = await broker.client()
    await client.call(declare("q"))
    broker.service.memory_limit = 1  # so that the broker's own look, at any moment, finds the same
    broker.service.check_alarms()
    client.writer.write(peers.publish(1, "", "q", b"one"))
    assert await client.method() == methods.ConnectionBlocked("low on memory")
    client.writer.write(peers.publish(1, "", "q", b"two") + method_frame(1, declare("q")))
    await asyncio.sleep(0)
    broker.service.memory_limit = 0
    broker.service.check_alarms()
    assert await client.method() == methods.ConnectionUnblocked()
    assert (await client.method()).message_count == 2


async def test_time_runs_out_for_silent_peers_and_slow_handshakes(broker):
    client, slow = await broker.client(heartbeat=10), await broker.bare()
    while len(broker.service.listener.peers) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    now = asyncio.get_running_loop().time()
    for peer in list(broker.service.listener.peers):
        peer.check_time(now + 6)
    head = await asyncio.wait_for(client.reader.readexactly(8), WAIT_S)
    assert head == HEARTBEAT
    for peer in list(broker.service.listener.peers):
        peer.check_time(now + max(30, HANDSHAKE_TIMEOUT_S + 1))
    for one in (client, slow):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(one.reader.readexactly(1), WAIT_S)


async def test_a_consumer_that_does_not_read_holds_nobody_up(broker):
    lazy, busy = await broker.client(), await broker.client()
    await busy.call(declare("q"))
    await lazy.call(methods.BasicConsume("q", "c", False, True, False, False, {}))
    lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await busy.call(methods.ConfirmSelect(False))
    confirmed = 0
    for _ in range(40):
        busy.writer.write(peers.publish(1, "", "q", b"x" * 120_000) * 10)
        while True:
            confirmed = (await busy.method()).delivery_tag
            if confirmed % 10 == 0:
                break
    assert confirmed == 400
    (queue,) = broker.service.broker.vhosts["/"].queues.values()
    assert queue.ready > 0


async def test_a_sync_that_fails_ends_every_connection_and_is_not_tried_again(broker, monkeypatch):
    publisher = await broker.client()
    assert isinstance(await publisher.call(methods.ConfirmSelect(False)), methods.ConfirmSelectOk)
    assert isinstance(
        await publisher.call(methods.QueueDeclare("q", False, True, False, False, False, {})), methods.QueueDeclareOk
    )
    syncs = []

    def fail(token) -> None:
        syncs.append(token)
        raise StoreFailed("fdatasync", "journal", "Input/output error")

    monkeypatch.setattr(broker.service.store, "sync", fail)
    publisher.writer.write(peers.publish(1, "", "q", b"m", delivery_mode=2))
    close = await publisher.method()
    assert isinstance(close, methods.ConnectionClose)
    assert (close.code, "failed" in close.text) == (541, True)
    assert len(syncs) == 1
    late = await broker.bare()
    late.writer.write(PROTOCOL_HEADER)
    assert isinstance(await late.method(), methods.ConnectionStart)
    late.writer.write(peers.start_ok(response=b"\0guest\0guest"))
    assert isinstance(await late.method(), methods.ConnectionTune)
    late.writer.write(
        method_frame(0, methods.ConnectionTuneOk(2047, 131_072, 0)) + method_frame(0, methods.ConnectionOpen("/"))
    )
    refused = await late.method()
    assert (refused.code, "restart" in refused.text) == (541, True)
