"""Log files in which a group's AMQP queues still have something: it is moved, the files go, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from stratamq.formats.quorum_record import TOPIC
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import method_frame
from tests.unit.protocols.amqp import peers
from tests.unit.replication.groups import FILE_BYTES, Group, until
from tests.unit.server.test_amqp_shell import SocketClient, declare

Answer = TypeVar("Answer")
KEPT = b"kept" * 50


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path, serves_amqp=True)
    for name in made.peers:
        await made.start(name)
    yield made
    for name in list(made.running):
        await made.stop(name)


async def on_leader(group: Group, work: Callable[[SocketClient], Awaitable[Answer]]) -> Answer:
    """Do something with a client of the leader; on a busy machine leadership may go meanwhile, and it is done again."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            port = group.amqp_ports[await group.leader()]
            client = SocketClient(*await asyncio.open_connection("127.0.0.1", port))
            try:
                client.writer.write(peers.handshake() + method_frame(1, methods.ChannelOpen()))
                for _ in range(4):
                    await client.method()
                return await work(client)
            finally:
                client.writer.close()
        await asyncio.sleep(0.05)


async def publish(client: SocketClient) -> None:
    """Put a message into a new durable queue, confirmed."""
    await client.call(declare("q"))
    await client.call(methods.ConfirmSelect(False))
    client.writer.write(peers.publish(1, "", "q", KEPT, delivery_mode=2))
    assert isinstance(await client.method(), methods.BasicAck)


async def get(client: SocketClient) -> bytes:
    """The body of the queue's first message."""
    assert isinstance(await client.call(methods.BasicGet("q", False)), methods.BasicGetOk)
    await client.frame()
    return (await client.frame())[1]


async def test_what_lies_in_old_files_is_moved_and_they_are_deleted(group: Group) -> None:
    await on_leader(group, publish)
    await group.put("t", 60)
    oldest = group.offsets(await group.leader(), TOPIC)[0]

    def is_trimmed() -> bool:
        for name, process in group.running.items():
            if process.server is not None and process.server.retention is not None and group.status(name)["serves"]:
                process.server.retention.hand_over(3 * FILE_BYTES)  # as its rounds do, until it is done
        return all(group.status(name)["log_start"] == 3 * FILE_BYTES for name in group.running)

    await until(is_trimmed)
    low, end = await group.same_offsets(TOPIC, lambda low, end: low > oldest)
    assert low < end
    assert await on_leader(group, get) == KEPT
    for name in group.peers:
        await group.stop(name)
    for name in group.peers:
        await group.start(name)
    assert await on_leader(group, get) == KEPT
