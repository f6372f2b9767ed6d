"""Sends that the disk cannot follow are refused after a while, the rest is served, and no more is read than before."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from stratamq.config import FlushMode
from stratamq.server.lifecycle import Server
from stratamq.units import KiB, MiB
from tests.unit.server.harness import SMALL, records
from tests.unit.server.test_lifecycle import FREE, SECONDS, Connection, send_ext, settings
from tests.unit.server.test_remoting_shell import read_answer, request, world

ONE_WAY = 2


async def test_a_send_held_back_too_long_is_told_that_the_broker_is_busy():
    async with world(send_wait_ms=30) as here:
        reader, writer = await here.connect()
        writer.write(request(2, opaque=1))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        begun = here.listener.loop.time()
        writer.write(request(2, opaque=2) + request(opaque=3, body=b"x") + request(2, opaque=4, flag=ONE_WAY))
        busy, other = await read_answer(reader), await read_answer(reader)
        assert here.listener.loop.time() - begun >= 0.03
        assert (busy.opaque, busy.code) == (2, 2)
        assert (busy.remark or "").startswith(
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period"
        )
        assert "size of queue: 2; the disk does not follow (pending_bytes_max)" in (busy.remark or "")
        assert (other.opaque, other.code, other.body) == (3, 0, b"x")
        assert (len(here.held), here.listener.counters.requests_shed) == (1, 2)
        here.release()
        assert (await read_answer(reader)).opaque == 1
        writer.write(request(2, opaque=5))
        assert (await read_answer(reader)).code == 2  # still: the next piece was read
        here.listener.set_congested(False)
        writer.write(request(2, opaque=6))
        await here.wait_for(lambda: len(here.held) == 1)
        here.release()
        assert ((answer := await read_answer(reader)).opaque, answer.code) == (6, 0)
        assert here.listener.counters.requests == 6
        writer.close()


async def test_a_send_that_need_not_wait_so_long_is_served():
    async with world(send_wait_ms=60_000) as here:
        reader, writer = await here.connect()
        writer.write(request(2, opaque=1))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        writer.write(request(2, opaque=2))
        await here.check_served()
        assert len(here.held) == 1
        here.listener.set_congested(False)
        await here.wait_for(lambda: len(here.held) == 2)
        here.release()
        assert [(await read_answer(reader)).code for _ in range(2)] == [0, 0]
        assert here.listener.counters.requests_shed == 0
        writer.close()


async def test_too_many_unanswered_sends_of_a_connection_are_told_so():
    async with world(send_wait_ms=30, requests_unanswered_max=3) as here:
        reader, writer = await here.connect()
        writer.write(b"".join(request(2, opaque=number) for number in range(5)))
        busy = [await read_answer(reader) for _ in range(2)]
        assert [(answer.opaque, answer.code) for answer in busy] == [(3, 2), (4, 2)]
        assert (busy[0].remark or "").startswith(
            "[OVERLOAD]system busy, start flow control for a while, period in queue"
        )
        assert "this connection has 3 unanswered sends (requests_unanswered_max)" in (busy[0].remark or "")
        assert len(here.held) == 3
        here.release()
        assert [(await read_answer(reader)).code for _ in range(3)] == [0, 0, 0]
        writer.close()


async def test_the_pressure_stays_while_sends_are_refused():
    """What is read is bounded by one piece a wait, however much a client sends."""
    async with world(send_wait_ms=60) as here:
        reader, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        begun = here.listener.loop.time()
        sending = asyncio.create_task(_send_much(writer))
        for _ in range(40):
            assert (await read_answer(reader)).code == 2
        waits = (here.listener.loop.time() - begun) / 0.06
        assert here.listener.counters.requests_shed * 32 <= 256 * (waits + 1)
        assert not sending.done()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()


async def _send_much(writer: asyncio.StreamWriter) -> None:
    frame = request(2, body=bytes(32 * KiB))
    while True:
        writer.write(frame)
        await writer.drain()


async def test_without_fast_failure_sends_wait_on():
    async with world(send_wait_ms=10, fast_failure=False) as here:
        reader, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        writer.write(request(2, opaque=9))
        for _ in range(5):
            await here.check_served()
        (peer,) = [peer for peer in here.listener.peers if peer.is_writer]
        assert peer._wait_timer is None
        assert here.listener.counters.requests_shed == 0
        here.listener.set_congested(False)
        await here.wait_for(lambda: len(here.held) == 2)
        here.release()
        await read_answer(reader)
        writer.close()


def hold_back(peer, data: bytes) -> None:
    """Let a peer receive a send that has to wait, with nothing between that and what the test does next.

    Over a socket, the wait of a few milliseconds may be over before the test sees that it has begun.
    """
    peer.get_buffer(-1)[: len(data)] = data
    peer.buffer_updated(len(data))
    assert peer._backlog


async def test_a_peer_that_takes_nothing_is_told_when_it_does():
    async with world(send_wait_ms=20) as here:
        reader, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        (peer,) = here.listener.peers
        hold_back(peer, request(2, opaque=5))
        peer.pause_writing()
        first = peer._wait_timer
        await here.wait_for(lambda: peer._wait_timer is not first)
        assert here.listener.counters.requests_shed == 0
        peer.resume_writing()
        assert ((answer := await read_answer(reader)).opaque, answer.code) == (5, 2)
        writer.close()


async def test_a_peer_that_leaves_while_its_sends_are_held_back_is_forgotten():
    async with world(send_wait_ms=20) as here:
        _reader, writer = await here.connect()
        writer.write(request(2))
        await here.wait_for(lambda: len(here.held) == 1)
        here.listener.set_congested(True)
        (peer,) = here.listener.peers
        hold_back(peer, request(2))
        timer = peer._wait_timer
        peer.abort()
        await here.wait_for(lambda: not here.listener.peers)
        assert timer is not None
        assert timer.cancelled()
        writer.close()


async def test_a_disk_that_stands_still_is_told_to_who_sends_and_loses_nothing(tmp_path, monkeypatch):
    """A whole broker with SYNC_FLUSH whose sync hangs for a while: what is answered 0 is stored, what is not is not."""
    store_config = replace(
        SMALL,
        flush_mode=FlushMode.SYNC,
        pending_bytes_max=MiB,
        commit_log_file_bytes=8 * MiB,
        message_body_bytes_max=MiB,
        sync_flush_timeout_ms=60_000,
    )
    server = Server(settings(tmp_path, server=replace(FREE, send_wait_ms=50), store=store_config))
    await server.start()
    try:
        store, disk = server.broker.store, threading.Event()
        sync = store.sync

        def hang(token):
            disk.wait(SECONDS)
            return sync(token)

        monkeypatch.setattr(store, "sync", hang)
        sender, other = [await Connection.open(server.addresses.broker) for _ in range(2)]
        for number in range(12):
            sender.send(310, send_ext(), bytes([number]) * (200 * KiB), opaque=number)
        busy = await sender.receive()
        assert (busy.code, "[TIMEOUT_CLEAN_QUEUE]" in (busy.remark or "")) == (2, True)
        assert busy.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert (await other.ask(34, {}, b'{"clientID":"c"}')).code == 0
        disk.set()
        answers = [busy] + [await sender.receive() for _ in range(11)]
        codes = {answer.opaque: answer.code for answer in answers}
        assert set(codes.values()) == {0, 2}
        assert (await sender.ask(310, send_ext(), b"after")).code == 0
        sender.close()
        other.close()
        stored = [number for number in range(12) if codes[number] == 0]
        assert bodies_of(store) == [bytes([number]) * (200 * KiB) for number in stored] + [b"after"]
    finally:
        disk.set()
        await server.stop()


def bodies_of(store) -> list[bytes]:
    """Everything in queue 0 of T."""
    found: list[bytes] = []
    while len(found) < store.max_offset("T", 0):
        result = store.get("T", 0, len(found), 1)
        found += [record.body for record in records(b"".join(result.records))]
    return found
