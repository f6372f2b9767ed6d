"""A slave's connection to its master: socket and timers round `stratamq.replication.ha_following`.

What is acknowledged is stored: written with ASYNC_FLUSH, synced with SYNC_FLUSH.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from stratamq.clock import Clock
from stratamq.config import FlushMode, HaConfig
from stratamq.errors import LogsDiffer, RemoteProtocolError, StoreError, StoreFailed, StrataError
from stratamq.replication.ha_following import Following
from stratamq.replication.ha_store import SlaveCommitter, SlaveStore
from stratamq.replication.ha_wire import REPORT, Frame, FrameReader
from stratamq.units import KiB

_log = logging.getLogger(__name__)
RECEIVE_BYTES: Final = 256 * KiB
CONNECT_S: Final = 3.0
TICK_S: Final = 0.1


class HaSlave:
    """Keeps a slave's log like its master's.

    ``on_failed`` is called once when that cannot go on: the logs differ, or our disk failed. ``on_lost`` is called when
    the master is not reached: it may be elsewhere now.
    """

    def __init__(
        self,
        store: SlaveStore,
        committer: SlaveCommitter,
        config: HaConfig,
        clock: Clock,
        *,
        on_failed: Callable[[StrataError], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._committer = committer
        self._config = config
        self._clock = clock
        self._on_failed = on_failed
        self._on_lost = on_lost
        self._is_sync = store.config.flush_mode is FlushMode.SYNC
        self._address = config.master_address
        self._changed = asyncio.Event()
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._following: Following | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reported = -1
        self._reported_ms = self._heard_ms = 0
        self._trouble = ""
        self.master_end = 0
        """How far the master's log went when it last said something."""

    def start(self) -> None:
        """Begin to follow."""
        self._committer.on_synced = self._on_synced
        self._task = asyncio.create_task(self._run())

    def learn(self, address: str) -> None:
        """Name servers say where the master gives its log; a setting stands over that."""
        if self._config.master_address or not address or address == self._address:
            return
        _log.info("the master gives its log at %s", address)
        self._address = address
        self._changed.set()
        if self._writer is not None:
            self._writer.close()

    @property
    def stored(self) -> int:
        """How far the log is stored here."""
        return self._store.flushed_physical_offset if self._is_sync else self._store.max_physical_offset

    @property
    def is_connected(self) -> bool:
        """Whether the master's log is being followed now."""
        return self._following is not None and self._following.is_compared

    def status(self) -> dict[str, Any]:
        """The body of GET_BROKER_HA_STATUS, under RocketMQ's names."""
        return {
            "master": False,
            "masterCommitLogMaxOffset": self.master_end,
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "masterAddr": self._address,
                "transferredByteInSecond": 0,
                "maxOffset": self.stored,
                "lastReadTimestamp": self._heard_ms,
                "lastWriteTimestamp": self._reported_ms,
                "masterFlushOffset": 0,
                "isActivated": self.is_connected,
            },
        }

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not self._address:
                await self._changed.wait()
            try:
                await self._follow(self._address)
                self._say("it closed the connection")
            except (LogsDiffer, StoreFailed) as error:
                _log.critical("%s", error)
                self._on_failed(error)
                return
            except (OSError, TimeoutError, RemoteProtocolError, StoreError) as error:
                self._say(str(error) or type(error).__name__)
            except Exception as error:
                _log.exception("following the master failed")
                self._trouble = str(error)
            self._following = self._writer = None
            self._on_lost()
            await asyncio.sleep(self._config.retry_ms / 1000)

    def _say(self, trouble: str) -> None:
        """Log why the master is not followed, once a reason."""
        if trouble != self._trouble:
            _log.warning("the master's log at %s is not followed, trying again: %s", self._address, trouble)
        self._trouble = trouble

    async def _follow(self, address: str) -> None:
        """Follow until the connection ends. Raises LogsDiffer, StoreError, RemoteProtocolError, OSError."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        store = self._store
        self._writer, self._reported = writer, -1
        following = self._following = Following(
            start=store.min_physical_offset,
            end=store.max_physical_offset,
            read=store.read_bytes,
            compare_bytes=self._config.compare_bytes,
            file_bytes=store.config.commit_log_file_bytes,
            waiting_bytes_max=store.config.pending_bytes_max,
        )
        reporting = asyncio.create_task(self._report_forever())
        try:
            self._report()
            frames = FrameReader()
            while True:
                async with asyncio.timeout(self._config.housekeeping_ms / 1000):
                    data = await reader.read(RECEIVE_BYTES)
                if not data:
                    return
                self._heard_ms = self._clock.wall_ms()
                for frame in frames.feed(data):
                    self._take(following, frame)
                self._report()
                await self._wait_for_disk()
        finally:
            reporting.cancel()
            writer.close()
            await asyncio.gather(reporting, return_exceptions=True)

    def _take(self, following: Following, frame: Frame) -> None:
        store, was_compared = self._store, following.is_compared
        runs = following.receive(frame)
        self.master_end = max(frame.end, self.master_end)
        for run in runs:
            if store.min_physical_offset == store.max_physical_offset:
                store.begin_at(following.begins_at)
            self._committer.added(store.add(run))
        if self._trouble != "following" and following.is_compared and (not was_compared or runs):
            self._trouble = "following"
            _log.info("the master's log is followed from %d on", store.max_physical_offset)

    async def _wait_for_disk(self) -> None:
        """Read no more while too much waits for a sync."""
        store = self._store
        while self._is_sync and store.pending_bytes > store.config.pending_bytes_max and store.failure is None:
            self._synced.clear()
            await self._synced.wait()

    def _on_synced(self) -> None:
        self._synced.set()
        self._report()

    def _report(self, *, again: bool = False) -> None:
        """Tell the master how far the log is stored here, when it does not know yet."""
        writer, following = self._writer, self._following
        if writer is None or following is None or writer.is_closing():
            return
        offset = following.report(self.stored)
        if again or offset != self._reported:
            self._reported, self._reported_ms = offset, self._clock.wall_ms()
            writer.write(REPORT.pack(offset))

    async def _report_forever(self) -> None:
        heartbeat = self._config.heartbeat_ms
        last = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(min(TICK_S * 10, heartbeat / 1000))
            now = self._clock.monotonic_ms()
            if now - last >= heartbeat:
                last = now
                self._report(again=True)

    async def close(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
