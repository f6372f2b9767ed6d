"""AMQP in a broker process: the queue store, the definitions file, the listener, and the alarms, opened and closed.

Everything lies below ``amqp`` in the data directory: ``store`` is the queue store, ``definitions.json`` what was
declared. Definitions are written and synced before the answers of the turn that changed them leave.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.broker.amqp.durable_storage import DurableStorage
from stratamq.broker.amqp.streams import StreamLog
from stratamq.broker.amqp.vhost import level_names
from stratamq.clock import Clock
from stratamq.config import QueueStoreConfig
from stratamq.errors import StoreError, StoreFailed, StoreFull
from stratamq.protocols.amqp.connection import Limits
from stratamq.queuestore.store import QueueStore
from stratamq.queuestore.types import CommitToken
from stratamq.server.amqp_front import ALARM_S, AmqpFront
from stratamq.server.definitions_file import DefinitionsFile
from stratamq.server.delivery_counts_file import DeliveryCountsFile

_log = logging.getLogger(__name__)

DIRECTORY: Final = "amqp"
STORE_DIRECTORY: Final = "store"
TICK_S: Final = 0.1


class AmqpService(AmqpFront):
    """The AMQP side of a broker of its own, on the running loop. Opening blocks while the store recovers."""

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
        config = config or QueueStoreConfig()
        directory = data_dir / DIRECTORY
        self.store = QueueStore.open(directory / STORE_DIRECTORY, config, clock=clock)
        self._thread = ThreadPoolExecutor(1, "amqp-sync")
        try:
            self.storage = DurableStorage(
                self.store,
                start_sync=self._start_sync,
                call_later=self._call_later,
                on_failed=self._store_failed,
                free_bytes=lambda: shutil.disk_usage(directory).free,
            )
            self.storage.on_full = self._store_full
            self._definitions = DefinitionsFile(directory, journal_bytes_max=config.definitions_journal_bytes_max)
            broker = AmqpBroker(self.storage, now_ms=clock.wall_ms(), streams=streams)
            super().__init__(broker, directory, clock, config)
            self._counts = DeliveryCountsFile(directory, self.storage.counts)
            self._counts.load(self._is_kept)  # before the queues, which look at their first message
            self._load()
        except BaseException:
            self._thread.shutdown()
            self.store.close()
            raise
        self.open_listener(save_definitions=self._save, limits=limits)
        self.storage.on_congested = self.listener.set_congested
        self._is_closed = False
        self._housekeeping = asyncio.create_task(self._keep_house())

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

    @property
    def is_full(self) -> bool:
        return self.storage.is_full

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
                await self.take_samples()
            except StoreFull as error:
                self.storage.note_full(error)
            except StoreFailed as error:
                self.storage.fail(error)
            except StoreError as error:
                _log.error("housekeeping of the queue store: %s", error)
            except Exception:
                _log.exception("housekeeping failed")

    async def _take_step(self) -> bool:
        """One bounded step of the store's housekeeping, its sync in the thread. False when there was nothing to do."""
        step = self.store.begin_step()
        if step is None:
            return False
        await self._loop.run_in_executor(self._thread, self.store.sync_step, step)
        self.store.finish_step(step)
        return True

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
