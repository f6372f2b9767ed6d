"""A name server, a master and a slave in one process, and a connection between the two that tests may cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratamq.clock import SystemClock
from stratamq.config import BrokerConfig, BrokerRole, FlushMode, HaConfig, ServerConfig, StoreConfig
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.lifecycle import Server
from stratamq.server.namesrv_process import NameServerProcess
from stratamq.server.settings import Settings
from stratamq.units import Millis
from tests.unit.protocols import wire
from tests.unit.server.test_lifecycle import Connection, send_ext

SECONDS = 120.0
FILE_BYTES = 32 * 1024
ASYNC = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=2_000,
    index_slots=100,
    index_entries=400,
    message_body_bytes_max=16_000,
    flush_interval_ms=20,
)
SYNC = replace(ASYNC, flush_mode=FlushMode.SYNC)
FREE = ServerConfig(namesrv_port=-1, broker_port=0, http_port=0, amqp_port=-1, stop_timeout_ms=500)
QUICK: dict[str, Any] = {"heartbeat_ms": 100, "tables_interval_ms": 100, "retry_ms": 20}


async def until(what: str, condition: Callable[[], Any]) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {SECONDS:g} s: {what}") from None


class ClockAhead(SystemClock):
    """The machine's clock, moved by a test."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> Millis:
        return Millis(super().wall_ms() + self.ahead_ms)


class Pair:
    """Makes brokers of one name; all that still run are stopped at the end."""

    def __init__(self, folder: Path, names: str) -> None:
        self.folder = folder
        self.names = names
        self.clock = ClockAhead()
        self._running: list[Server] = []

    async def start(self, name: str, *, store: StoreConfig = ASYNC, broker: BrokerConfig | None = None, **ha: Any):
        """Start a broker over its own folder."""
        server = Server(
            Settings(
                data_dir=self.folder / name,
                server=replace(FREE, namesrv_addresses=self.names),
                store=store,
                broker=broker or BrokerConfig(timer_wheel=False),
                ha=HaConfig(**{**QUICK, **ha}),
            ),
            clock=self.clock,
        )
        await server.start()
        self._running.append(server)
        return server

    async def master(self, name: str = "master", **rest: Any) -> Server:
        return await self.start(name, **rest)

    async def slave(self, name: str = "slave", *, number: int = 1, **rest: Any) -> Server:
        return await self.start(name, role=BrokerRole.SLAVE, broker_id=number, **rest)

    async def stop(self, server: Server) -> None:
        self._running.remove(server)
        await server.stop()

    async def close(self) -> None:
        for server in reversed(self._running):
            await server.stop()


@contextlib.asynccontextmanager
async def pair_in(folder: Path) -> AsyncIterator[Pair]:
    """A name server, and the maker of brokers."""
    process = NameServerProcess(replace(FREE, namesrv_port=0, stop_timeout_ms=200), folder / "names")
    await process.start()
    pair = Pair(folder, process.address)
    try:
        yield pair
    finally:
        await pair.close()
        await process.stop()


def end_of(server: Server) -> int:
    """Where a broker's log ends."""
    return int(server.broker.store.status().max_physical_offset)


async def send(
    server: Server, count: int, *, topic: str = "T", body: bytes = b"x" * 500, **ext: Any
) -> list[wire.Answer]:
    """Send messages one after the other."""
    client = await Connection.open(server.addresses.broker)
    try:
        return [
            await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic) | ext, body + b"%d" % number)
            for number in range(count)
        ]
    finally:
        client.close()


def log_of(folder: Path, start: int = 0) -> bytes:
    """The bytes of all commit-log files from ``start`` on, without the zeros behind the end."""
    files = sorted((folder / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files if int(path.name) >= start).rstrip(b"\0")


async def followed(master: Server, slave: Server) -> None:
    """Wait until the slave has stored, and the master knows of, all that the master has."""

    def is_done() -> bool:
        links = master.replication.master.links
        return end_of(slave) == end_of(master) and any(link.acked == end_of(master) for link in links)

    await until("the slave has the whole log", is_done)


class Cutting:
    """Passes on what a slave and its master say; ends each connection after so many bytes of the master's."""

    def __init__(self) -> None:
        self.target = ""
        self.budgets: list[int] = []
        """Bytes that the next connections carry; without one, no end."""
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._join(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        budget = self.budgets.pop(0) if self.budgets else -1
        host, _, port = self.target.rpartition(":")
        far: asyncio.StreamWriter | None = None
        try:
            back, far = await asyncio.open_connection(host, int(port))
            up = asyncio.create_task(_pass(reader, far, -1))
            down = asyncio.create_task(_pass(back, writer, budget))
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            for side in (up, down):
                side.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            pass
        finally:
            writer.close()
            if far is not None:
                far.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int) -> None:
    with contextlib.suppress(OSError):
        while budget and (data := await reader.read(4096 if budget < 0 else min(4096, budget))):
            writer.write(data)
            await writer.drain()
            budget -= len(data) if budget > 0 else 0
