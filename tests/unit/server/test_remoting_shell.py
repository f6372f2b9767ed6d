"""The remoting port on real sockets: garbage, slow and half-open peers, too many of them; others are always served."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from stratamq.config import ServerConfig
from stratamq.protocols.remoting.command import CommandHeader, encode_frame
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.remoting import RemotingListener
from stratamq.server.requests.base import Peer
from stratamq.server.sockets import bind, port_of
from tests.unit.protocols import wire

SECONDS = 120.0


class World:
    """A listener with three handlers: 1 echoes its body, 2 answers when told to, 3 fails; 4 answers with much."""

    def __init__(self, config: ServerConfig) -> None:
        self.held: list[tuple[Peer, CommandHeader]] = []
        self.lost: list[object] = []
        self.answered = 0
        handlers = {1: self.echo, 2: self.hold, 3: self.fail, 4: self.much}
        self.listener = RemotingListener("test", config, handlers, on_lost=self.lost.append, sends=frozenset({2}))
        self.port = 0

    def echo(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes:
        return encode_response(header, 0, body=bytes(body))

    def hold(self, peer: Peer, header: CommandHeader, body: memoryview) -> None:
        peer.begin_request()
        self.held.append((peer, header))

    def release(self) -> None:
        held, self.held = self.held, []
        for peer, header in held:
            peer.end_request()
            peer.write(encode_response(header, 0))

    def fail(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes:
        raise KeyError("broken handler")

    def much(self, peer: Peer, header: CommandHeader, body: memoryview) -> None:
        self.answered += 1
        piece = memoryview(bytes(64 * 1024))
        head = encode_response(header, 0)
        length, mark = struct.unpack_from(">II", head)
        peer.write_parts(struct.pack(">II", length + len(piece), mark) + head[8:], [piece], len(piece))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def check_served(self) -> None:
        """A newcomer is served."""
        reader, writer = await self.connect()
        writer.write(request(body=b"still there"))
        assert (await read_answer(reader)).body == b"still there"
        writer.close()
        await writer.wait_closed()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def world(**config) -> AsyncIterator[World]:
    made = World(replace(ServerConfig(), **config))
    sock = bind("127.0.0.1", 0, "test")
    made.port = port_of(sock)
    await made.listener.listen(sock)
    try:
        yield made
    finally:
        await made.listener.close(0.2)


def request(code: int = 1, *, opaque: int = 7, body: bytes = b"", flag: int = 0) -> bytes:
    return encode_frame(code=code, opaque=opaque, body=body, flag=flag)


async def read_answer(reader: asyncio.StreamReader) -> wire.Answer:
    async with asyncio.timeout(SECONDS):
        head = await reader.readexactly(4)
        return wire.one(head + await reader.readexactly(struct.unpack(">I", head)[0]))


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(SECONDS):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_pipelined_requests_are_answered_in_order():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(b"".join(request(opaque=number, body=b"%d" % number) for number in range(1000)))
        for number in range(1000):
            answer = await read_answer(reader)
            assert (answer.opaque, answer.body) == (number, b"%d" % number)
        writer.close()


async def test_an_unknown_code_is_named():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(request(200050) + request(999))
        answer = await read_answer(reader)
        assert (answer.code, "200050 (POP_MESSAGE)" in (answer.remark or "")) == (3, True)
        assert "999" in ((await read_answer(reader)).remark or "")
        writer.close()


async def test_a_broken_handler_is_answered_and_harms_nobody(caplog):
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(request(3) + request(1, body=b"x"))
        answer = await read_answer(reader)
        assert (answer.code, answer.remark) == (1, "KeyError: 'broken handler'")
        assert (await read_answer(reader)).body == b"x"
        assert here.listener.counters.requests_failed == 1
        writer.close()
    assert "broken handler" in caplog.text


async def test_one_way_requests_and_stray_answers_get_no_answer():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(
            request(1, flag=2) + request(3, flag=2) + request(77, flag=2) + request(1, flag=1) + request(body=b"y")
        )
        assert (await read_answer(reader)).body == b"y"
        writer.close()


async def test_one_byte_at_a_time():
    async with world() as here:
        reader, writer = await here.connect()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(body=b"slow"):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_answer(reader)).body == b"slow"
        writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\xff" * 100,
        b"\x00" * 100,
        struct.pack(">II", 100, 200) + bytes(92),
        struct.pack(">II", 50, 2 << 24 | 10) + bytes(42),
        struct.pack(">II", 14, 10) + b"0123456789",
        random.Random(1).randbytes(5000),
    ],
)
async def test_garbage_ends_its_connection_only(garbage):
    async with world() as here:
        good_reader, good_writer = await here.connect()
        reader, writer = await here.connect()
        writer.write(request(body=b"good") + garbage)
        assert wire.one(await read_to_end(reader)).body == b"good"
        writer.close()
        good_writer.write(request(body=b"fine"))
        assert (await read_answer(good_reader)).body == b"fine"
        assert here.listener.counters.faults == 1
        good_writer.close()
        await here.check_served()


async def test_requests_before_garbage_are_answered_even_when_that_takes_time():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(request(2, opaque=5) + b"\xff" * 20)
        await here.wait_for(lambda: bool(here.held))
        here.release()
        assert wire.one(await read_to_end(reader)).opaque == 5
        writer.close()


async def test_a_promised_giant_takes_no_memory_and_ends_in_time():
    async with world(stall_timeout_ms=1_000_000) as here:
        reader, writer = await here.connect()
        writer.write(struct.pack(">II", 16 * 1024 * 1024, 100) + b"x" * 1000)
        await here.wait_for(lambda: here.listener.partial_bytes == 1008)
        (peer,) = here.listener.peers
        here.listener.sweep()
        assert not peer.is_closed
        peer._partial_since -= 1001.0
        here.listener.sweep()
        assert await read_to_end(reader) == b""
        await here.wait_for(lambda: not here.listener.peers)
        assert here.listener.partial_bytes == 0
        writer.close()


async def test_unfinished_requests_of_all_together_are_bounded():
    async with world(receive_bytes_max=16 * 1024 * 1024) as here:
        connections = [await here.connect() for _ in range(10)]
        for _, writer in connections:
            writer.write(struct.pack(">II", 15 * 1024 * 1024, 100) + bytes(3 * 1024 * 1024))
        await here.wait_for(lambda: len(here.listener.peers) < 10)
        await here.wait_for(lambda: here.listener.partial_bytes <= 16 * 1024 * 1024)
        await here.check_served()
        for _, writer in connections:
            writer.close()


async def test_a_silent_connection_is_closed():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(request(body=b"x"))
        await read_answer(reader)
        (peer,) = here.listener.peers
        peer._seen = here.listener.loop.time() - 119
        here.listener.sweep()
        assert not peer.is_closed
        peer._seen -= 2
        here.listener.sweep()
        assert await read_to_end(reader) == b""
        await here.wait_for(lambda: len(here.lost) == 1)
        writer.close()


async def test_a_peer_that_does_not_read_stops_being_read():
    async with world(write_buffer_bytes=64 * 1024) as here:
        sock = socket.create_connection(("127.0.0.1", here.port))
        sock.sendall(b"".join(request(4, opaque=number) for number in range(1000)))
        await here.wait_for(lambda: any(peer.is_clogged for peer in here.listener.peers))
        await here.check_served()
        assert here.answered < 200
        sock.settimeout(SECONDS)
        received = await asyncio.to_thread(receive_exactly, sock, 1000 * 64 * 1024)
        assert received >= 1000 * 64 * 1024
        assert here.answered == 1000
        sock.close()


def receive_exactly(sock: socket.socket, least: int) -> int:
    received = 0
    while received < least:
        data = sock.recv(1 << 20)
        assert data
        received += len(data)
    return received


async def test_a_peer_that_never_reads_is_closed():
    async with world(write_buffer_bytes=64 * 1024) as here:
        sock = socket.create_connection(("127.0.0.1", here.port))
        sock.sendall(b"".join(request(4) for _ in range(200)))
        await here.wait_for(lambda: any(peer.is_clogged for peer in here.listener.peers))
        (peer,) = here.listener.peers
        done = []
        peer.defer(lambda: done.append(1))
        peer._stalled_since -= 61
        here.listener.sweep()
        await here.wait_for(lambda: not here.listener.peers)
        assert done == []
        sock.close()


async def test_work_put_off_is_done_when_the_peer_reads_again():
    async with world(write_buffer_bytes=64 * 1024) as here:
        sock = socket.create_connection(("127.0.0.1", here.port))
        sock.sendall(b"".join(request(4) for _ in range(100)))
        await here.wait_for(lambda: any(peer.is_clogged for peer in here.listener.peers))
        (peer,) = here.listener.peers
        done: list[bool] = []
        peer.defer(lambda: done.append(peer.is_clogged))
        sock.settimeout(SECONDS)
        await asyncio.to_thread(receive_exactly, sock, 100 * 64 * 1024)
        await here.wait_for(lambda: bool(done))
        assert done == [False]
        sock.close()


async def test_too_many_unanswered_requests_stop_the_reading():
    async with world(requests_unanswered_max=10) as here:
        reader, writer = await here.connect()
        writer.write(b"".join(request(2, opaque=number) for number in range(35)) + request(opaque=99, body=b"end"))
        await here.wait_for(lambda: len(here.held) == 10)
        await here.check_served()
        assert len(here.held) == 10
        seen = 10
        while seen < 35:
            here.release()
            await here.wait_for(lambda: bool(here.held))
            seen += len(here.held)
            assert len(here.held) <= 10
        here.release()
        answers = [await read_answer(reader) for _ in range(36)]
        assert sorted(answer.opaque for answer in answers) == [*range(35), 99]
        writer.close()


async def test_a_congested_store_stops_writers_only():
    async with world() as here:
        writing, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        writer.write(request(2) * 3)
        await here.check_served()
        assert len(here.held) == 1
        here.listener.set_congested(False)
        await here.wait_for(lambda: len(here.held) == 4)
        here.release()
        for _ in range(4):
            await read_answer(writing)
        writer.close()


async def test_connections_over_the_limit_are_closed_at_once(caplog):
    async with world(connections_max=3) as here:
        kept = [await here.connect() for _ in range(3)]
        await here.wait_for(lambda: len(here.listener.peers) == 3)
        reader, writer = await here.connect()
        assert await read_to_end(reader) == b""
        writer.close()
        assert here.listener.counters.refused == 1
        for reader, writer in kept:
            writer.write(request(body=b"x"))
            assert (await read_answer(reader)).body == b"x"
            writer.close()
        await here.wait_for(lambda: not here.listener.peers)
        await here.check_served()
    assert "connections_max" in caplog.text


async def test_thousands_of_connections_that_come_and_go():
    async with world() as here:
        for _ in range(5):
            socks = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(200)]
            for number, sock in enumerate(socks):
                if number % 3 == 0:
                    sock.sendall(request(body=b"x")[: number % 40])
            await here.check_served()
            for sock in socks:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
        await here.wait_for(lambda: not here.listener.peers)
        assert here.listener.partial_bytes == 0
        assert len(here.lost) >= 1000


async def test_what_is_left_to_say_is_said_at_the_end():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(request(2, opaque=5))
        await here.wait_for(lambda: len(here.held) == 1)
        assert here.listener.unanswered() == 1
        here.release()
        await here.listener.close(1.0)
        assert wire.one(await read_to_end(reader)).opaque == 5
        writer.close()


async def test_own_requests_reach_the_peer():
    async with world() as here:
        reader, writer = await here.connect()
        await here.wait_for(lambda: len(here.listener.peers) == 1)
        (peer,) = here.listener.peers
        peer.notify(40, {"consumerGroup": "g"})
        notice = await read_answer(reader)
        assert (notice.code, notice.flag, notice.ext) == (40, 2, {"consumerGroup": "g"})
        writer.close()


# --- requests of the server's own ---


async def test_a_client_answers_a_request_of_ours_once():
    async with world() as here:
        reader, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: bool(here.held))
        peer, _ = here.held[0]
        got: list[tuple[int | None, bytes]] = []
        peer.call(307, {"group": "g"}, b"ask", lambda header, body: got.append((header and header.code, body)))
        asked = await read_answer(reader)
        assert (asked.code, asked.flag, asked.ext, asked.body) == (307, 0, {"group": "g"}, b"ask")
        answer = encode_frame(code=0, opaque=asked.opaque, flag=1, body=b"fine")
        writer.write(answer + answer + encode_frame(code=0, opaque=99_999, flag=1, body=b"nobody asked"))
        await here.wait_for(lambda: bool(got))
        await here.check_served()
        assert got == [(0, b"fine")]
        writer.close()


async def test_a_request_of_ours_that_is_not_answered_ends_with_nothing():
    async with world() as here:
        _, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: bool(here.held))
        peer, _ = here.held[0]
        late: list[object] = []
        left: list[object] = []
        peer.call(307, {}, b"", lambda header, body: late.append(header), timeout_ms=1)
        peer.call(307, {}, b"", lambda header, body: left.append(header), timeout_ms=600_000)
        await here.wait_for(lambda: late == [None])
        assert left == []
        writer.close()
        await here.wait_for(lambda: left == [None])
        peer.call(307, {}, b"", lambda header, body: left.append(header))
        assert left == [None, None]
