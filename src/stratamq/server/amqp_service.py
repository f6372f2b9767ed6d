"""AMQP in a broker process: the queue store, the definitions file, the listener, and the alarms, opened and closed.

Everything lies below ``amqp`` in the data directory: ``store`` is the queue store, ``definitions.json`` what was
declared. Definitions are written and synced before the answers of the turn that changed them leave.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.broker.amqp.durable_storage import DurableStorage
from stratamq.broker.amqp.streams import StreamLog
from stratamq.broker.amqp.vhost import level_names
from stratamq.clock import Clock
from stratamq.config import QueueStoreConfig
from stratamq.errors import StoreError, StoreFailed, StoreFull
from stratamq.protocols.amqp.connection import Limits
from stratamq.queuestore.alarms import next_disk_check_ms
from stratamq.queuestore.store import QueueStore
from stratamq.queuestore.types import CommitToken
from stratamq.server.amqp import AmqpListener
from stratamq.server.definitions_file import DefinitionsFile
from stratamq.server.delivery_counts_file import DeliveryCountsFile
from stratamq.server.management.objects import all_totals
from stratamq.server.management.rates import ObjectSampler, Rates
from stratamq.server.tls import Tls

_log = logging.getLogger(__name__)

DIRECTORY: Final = "amqp"
STORE_DIRECTORY: Final = "store"
ALARM_S: Final = 1.0
TICK_S: Final = 0.1


class AmqpService:
    """The AMQP side of one process, on the running loop. Opening blocks while the store recovers."""

    def __init__(
        self,
        data_dir: Path,
        clock: Clock,
        *,
        config: QueueStoreConfig | None = None,
        limits: Limits | None = None,
        streams: StreamLog | None = None,
    ) -> None:
        """Raises StoreError when the store cannot be opened, InvalidArgument for unusable definitions."""
        self.config = config or QueueStoreConfig()
        self._loop = asyncio.get_running_loop()
        self.directory = data_dir / DIRECTORY
        self._clock = clock
        self.started_ms = clock.wall_ms()
        self.store = QueueStore.open(self.directory / STORE_DIRECTORY, self.config, clock=clock)
        self._thread = ThreadPoolExecutor(1, "amqp-sync")
        self._ports: list[dict[str, Any]] = []
        self.rates = Rates()
        try:
            self.storage = DurableStorage(
                self.store, start_sync=self._start_sync, call_later=self._call_later, on_failed=self._store_failed
            )
            self.storage.on_full = self._store_full
            limit = self.config.definitions_journal_bytes_max
            self._definitions = DefinitionsFile(self.directory, journal_bytes_max=limit)
            self.broker = AmqpBroker(self.storage, now_ms=clock.wall_ms(), streams=streams)
            self.sampler = ObjectSampler(self.broker)
            self._counts = DeliveryCountsFile(self.directory, self.storage.counts)
            self._counts.load(self._is_kept)  # before the queues, which look at their first message
            self._load()
        except BaseException:
            self._thread.shutdown()
            self.store.close()
            raise
        self.listener = AmqpListener(self.broker, clock, limits=limits, save_definitions=self._save)
        self.storage.on_congested = self.listener.set_congested
        self._is_closed = False
        self.memory_limit = _memory_bytes() * self.config.vm_memory_high_watermark_percent // 100
        self._housekeeping = asyncio.create_task(self._keep_house())

    async def listen(self, sock: socket.socket, tls: Tls | None = None) -> None:
        """Accept connections on a bound socket; TLS alone where there is a certificate."""
        host, port = sock.getsockname()[:2]
        name = "amqp" if tls is None else "amqp/ssl"
        self._ports.append({"node": "", "protocol": name, "ip_address": host, "port": port, "socket_opts": {}})
        await self.listener.listen(sock, tls)

    def listeners(self) -> list[dict[str, Any]]:
        """The ports that AMQP clients connect to."""
        return [dict(row) for row in self._ports]

    async def turn_ended(self) -> None:
        """Wait until the turn that runs has ended: what it changed has taken effect and is written down."""
        self.listener.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    # --- definitions ---

    def _load(self) -> None:
        value = self._definitions.load()
        if value is None:
            self.broker.add_defaults()
        else:
            load_definitions(self.broker, value)
        self.broker.definitions_saved()
        if not self._definitions.is_current:
            self.broker.must_rewrite_definitions = True
            self._save()
        known = {
            name
            for vhost in self.broker.vhosts.values()
            for queue in vhost.queues.values()
            for name in level_names(vhost.name, queue.name, len(queue.levels))
        }
        for queue in self.store.queues():
            if queue.name not in known:
                self.store.delete_queue(queue.name)  # deleted just before a crash, or never answered

    def _is_kept(self, name: str, seq: int) -> bool:
        """Whether the store still has a message."""
        queue = self.store.queue(name)
        return queue is not None and next(iter(queue.numbers_between(seq, seq + 1)), None) is not None

    def _save(self) -> None:
        broker = self.broker
        try:
            if broker.must_rewrite_definitions or not self._definitions.append(broker.definition_changes):
                self._definitions.store(definitions_of(broker))
            broker.definitions_saved()
        except OSError as error:
            self.broker.is_definitions_dirty = True
            _log.error("definitions cannot be saved, trying again with the next turn: %s", error)

    # --- syncing ---

    def _start_sync(self, token: CommitToken) -> None:
        future = self._loop.run_in_executor(self._thread, self.store.sync, token)
        future.add_done_callback(lambda done: self._sync_ended(token, done))

    def _sync_ended(self, token: CommitToken, future: asyncio.Future[None]) -> None:
        error = future.exception()
        if error is not None and not isinstance(error, StoreError):
            raise error
        self.storage.sync_done(token, error)
        self.listener.wake()

    def _call_later(self, work: object) -> None:
        if callable(work):
            self._loop.call_later(self.config.sync_interval_ms / 1000, work)

    def _store_failed(self, error: StoreError) -> None:
        _log.critical("%s; AMQP clients are disconnected, restart the broker", error)
        self.broker.fail(str(error))
        self.listener.wake()

    def _store_full(self) -> None:
        self._loop.call_soon(self.check_alarms)  # publishers are told behind the turn that runs

    # --- meanwhile ---

    async def _keep_house(self) -> None:
        next_alarms = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            try:
                if self._loop.time() >= next_alarms:
                    next_alarms = self._loop.time() + min(ALARM_S, self.check_alarms())
                while self.storage.failure is None and await self._take_step():
                    pass
                is_sampling = self.sample()
                while is_sampling:
                    is_sampling = self.sampler.step(self._clock.monotonic_ms())
                    await asyncio.sleep(0)  # clients have their turns in between
            except StoreFull as error:
                self.storage.note_full(error)
            except StoreFailed as error:
                self.storage.fail(error)
            except StoreError as error:
                _log.error("housekeeping of the queue store: %s", error)
            except Exception:
                _log.exception("housekeeping failed")

    def sample(self) -> bool:
        """Take a sample for the rates of the overview, when one is due, and begin with those of single objects.

        False: none is due. True: `ObjectSampler.step` is to be called until it is done.
        """
        now_ms = self._clock.monotonic_ms()
        if not self.rates.is_due(now_ms):
            return False
        self.rates.sample(now_ms, all_totals(self.broker))
        self.sampler.begin()
        return True

    async def _take_step(self) -> bool:
        """One bounded step of the store's housekeeping, its sync in the thread. False when there was nothing to do."""
        step = self.store.begin_step()
        if step is None:
            return False
        await self._loop.run_in_executor(self._thread, self.store.sync_step, step)
        self.store.finish_step(step)
        return True

    def check_alarms(self) -> float:
        """Raise or clear the alarms for memory and disk; returns in how many seconds the disk could be full."""
        free = shutil.disk_usage(self.directory).free
        self._set_alarm("disk", free < self.config.disk_free_limit_bytes or self.storage.is_full)
        self._set_alarm("memory", 0 < self.memory_limit < _own_memory_bytes())
        return next_disk_check_ms(free, self.config.disk_free_limit_bytes) / 1000

    def _set_alarm(self, name: str, raised: bool) -> None:
        if raised != (name in self.broker.alarms):
            _log.warning("alarm: low on %s %s", name, "raised, publishers are blocked" if raised else "cleared")
            self.broker.set_alarm(name, raised)
            self.listener.set_congested(raised)

    # --- stop ---

    async def close(self, timeout_s: float) -> None:
        """Close connections, write what is unwritten, close the store. Raises StoreError from the last writes."""
        if self._is_closed:
            return
        self._is_closed = True
        await self.listener.close(timeout_s)
        self._housekeeping.cancel()
        for vhost in self.broker.vhosts.values():
            for queue in vhost.queues.values():
                for level in queue.levels:
                    if level.returned:
                        self.storage.note_delivered(level.store, max(entry.seq for entry in level.returned))
        await self._loop.run_in_executor(self._thread, lambda: None)  # a sync that runs ends first
        await asyncio.sleep(0)
        self._thread.shutdown()
        try:
            self._definitions.close(definitions_of(self.broker))
            self._counts.close()
        except OSError as error:
            _log.error("definitions cannot be saved at stop: %s", error)
        self.store.close()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _own_memory_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
