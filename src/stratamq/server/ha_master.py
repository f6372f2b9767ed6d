"""A master's port for its slaves: sockets and timers round `stratamq.replication.ha_serving`.

With SYNC_FLUSH slaves get what is synced, so that a master that loses power never has less than its slaves; with
ASYNC_FLUSH they get what is written. Log bytes go out as views of the mapped files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from stratamq.clock import Clock
from stratamq.config import FlushMode, HaConfig
from stratamq.errors import RemoteProtocolError
from stratamq.logstore.store import LogStore
from stratamq.replication.ha_serving import SlaveLink, SlaveRefused, copied_up_to, in_sync_copies
from stratamq.replication.ha_wire import FRAME_HEAD, ReportReader
from stratamq.units import KiB

_log = logging.getLogger(__name__)
REPORT_BYTES: Final = 4 * KiB
BURST_BYTES: Final = 256 * KiB
"""Log bytes that go to the socket in one call."""
TICK_S: Final = 0.1
"""How often a connection looks for work when nobody wakes it: heartbeats, and the next second of flow control."""


class HaMaster:
    """Gives the log to slaves. ``on_acked`` is called when a slave has more, or is gone."""

    def __init__(
        self, store: LogStore, config: HaConfig, clock: Clock, *, on_acked: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._on_acked = on_acked
        self._is_sync = store.config.flush_mode is FlushMode.SYNC
        self._links: dict[SlaveLink, tuple[asyncio.Event, asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, sock: Any) -> None:
        """Accept slaves on a bound socket."""
        self._server = await asyncio.start_server(self._accepted, sock=sock)

    # --- who has what ---

    @property
    def links(self) -> list[SlaveLink]:
        """The slaves that are connected."""
        return list(self._links)

    @property
    def log_end(self) -> int:
        """How far slaves may copy the log."""
        store = self._store
        return store.flushed_physical_offset if self._is_sync else store.max_physical_offset

    def copied_up_to(self, copies: int) -> int:
        """How far the log is held by so many brokers, this one among them."""
        return copied_up_to(self._links, copies)

    def in_sync_copies(self) -> int:
        """How many brokers have the log and are near its end, this one among them."""
        return in_sync_copies(self._links, self.log_end, self._config.gap_max)

    def status(self) -> dict[str, Any]:
        """The body of GET_BROKER_HA_STATUS, under RocketMQ's names."""
        end, gap = self.log_end, self._config.gap_max
        rows = [
            {
                "addr": link.address,
                "slaveAckOffset": link.acked,
                "diff": end - link.acked,
                "inSync": link.is_in_sync(end, gap),
                "transferredByteInSecond": link.rate,
                "transferFromWhere": link.next_offset,
            }
            for link in self._links
        ]
        return {
            "master": True,
            "masterCommitLogMaxOffset": self._store.max_physical_offset,
            "inSyncSlaveNums": sum(bool(row["inSync"]) for row in rows),
            "haConnectionInfo": rows,
        }

    # --- connections ---

    def wake(self) -> None:
        """The log has grown. It is sent at once where a socket has room: sends that wait for slaves wait for this.

        (Through the task of the connection instead, a message at a time took twice as long: `bench master_slave`.)
        """
        for link, (event, writer) in self._links.items():
            try:
                if not writer.transport.get_write_buffer_size():
                    self._send_some(link, writer)
            except SlaveRefused:
                pass  # found again, and told to the slave, by who sends
            if link.next_offset < self.log_end:
                event.set()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")[:2]
        config = self._config
        link = SlaveLink(
            address=f"{host}:{port}",
            now_ms=self._clock.monotonic_ms(),
            file_bytes=self._store.config.commit_log_file_bytes,
            from_first_file=config.from_first_file,
            bytes_per_second=config.bytes_per_second if config.flow_control else 0,
        )
        if len(self._links) >= config.slaves_max:
            _log.warning("slave %s refused: %d are connected already (ha_slaves_max)", link.address, len(self._links))
            writer.close()
            return
        event = asyncio.Event()
        self._links[link] = (event, writer)
        sender = asyncio.create_task(self._send_forever(link, writer, event))
        hearer = asyncio.create_task(self._hear_forever(link, reader, event))
        try:
            await asyncio.wait((sender, hearer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._links[link]
            for task in (sender, hearer):
                task.cancel()
            ends = await asyncio.gather(sender, hearer, return_exceptions=True)
            self._tell_end(link, writer, [end for end in ends if isinstance(end, Exception)])
            writer.close()
            self._on_acked()

    def _tell_end(self, link: SlaveLink, writer: asyncio.StreamWriter, ends: list[Exception]) -> None:
        for end in ends:
            if isinstance(end, SlaveRefused):
                with contextlib.suppress(OSError):
                    writer.write(FRAME_HEAD.pack(end.offset, 0))
            if isinstance(end, RemoteProtocolError):
                _log.error("slave %s: %s; the connection is closed", link.address, end)
            elif not isinstance(end, OSError | TimeoutError):
                _log.error("slave %s: the connection failed", link.address, exc_info=end)
        _log.warning("slave %s is gone; it has the log up to %d", link.address, link.acked)

    async def _hear_forever(self, link: SlaveLink, reader: asyncio.StreamReader, event: asyncio.Event) -> None:
        reports = ReportReader()
        while True:
            async with asyncio.timeout(self._config.housekeeping_ms / 1000):
                data = await reader.read(REPORT_BYTES)
            if not data:
                return
            offset = reports.feed(data)
            if offset is None:
                continue
            is_new = link.next_offset < 0
            start, end = self._store.min_physical_offset, self.log_end
            link.reported(offset, log_start=start, log_end=end, now_ms=self._clock.monotonic_ms())
            if is_new:
                _log.info("slave %s has the log up to %d, gets it from %d", link.address, offset, link.next_offset)
                event.set()
            self._on_acked()

    async def _send_forever(self, link: SlaveLink, writer: asyncio.StreamWriter, event: asyncio.Event) -> None:
        while True:
            event.clear()
            while self._send_some(link, writer):
                await writer.drain()
            if link.is_heartbeat_due(self._clock.monotonic_ms(), self._config.heartbeat_ms):
                writer.write(FRAME_HEAD.pack(link.next_offset, 0))
                link.sent(0, self._clock.monotonic_ms())
                await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await event.wait()

    def _send_some(self, link: SlaveLink, writer: asyncio.StreamWriter) -> bool:
        """Write the next frames to the socket; False when there is nothing to send now. Raises SlaveRefused."""
        if link.next_offset < 0:
            return False
        now = self._clock.monotonic_ms()
        end, room = self.log_end, min(BURST_BYTES, link.may_send(now))
        pieces: list[bytes | memoryview] = []
        log = self._store.retained()[0]
        while room > 0 and link.next_offset < end:
            offset = link.next_offset
            size = min(self._config.batch_bytes, room, end - offset, log.file_bytes - offset % log.file_bytes)
            view = log.view(offset, size)
            if view is None:
                start = log.min_offset
                raise SlaveRefused(f"it is to get {offset}, and this log begins at {start} now", start)
            pieces += (FRAME_HEAD.pack(offset, size), view)
            link.sent(size, now)
            room -= size
        writer.writelines(pieces)
        return bool(pieces)

    async def close(self) -> None:
        """Close every connection, then the port."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
