"""AMQP on the leader of a group: everything durable is in the group's log, and lies there as records.

Nothing is kept in files of its own. A new leader reads the records from the oldest one needed, lets the loop go on in
between, and then listens. When it cannot know what is decided (leadership is lost, no majority answers, the disk is
full), every client is disconnected and nothing of what was held back is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.broker.amqp.quorum_storage import QuorumStorage
from stratamq.broker.amqp.vhost import level_names
from stratamq.clock import Clock
from stratamq.config import QueueStoreConfig
from stratamq.protocols.amqp.connection import Limits
from stratamq.protocols.amqp.replies import CONNECTION_FORCED, AmqpError
from stratamq.server.amqp_front import ALARM_S, AmqpFront
from stratamq.server.amqp_group_log import GroupLog
from stratamq.units import KiB

_log = logging.getLogger(__name__)

RECORDS_A_STEP: Final = 16
"""Records that are read before the loop may go on."""
BESIDE_BODY_BYTES: Final = 256 * KiB
"""What a record may hold besides a message's body: its properties, its queues, the record's own head."""


class GroupAmqp(AmqpFront):
    """The AMQP side of a member that leads. ``on_failed`` is called when it can only begin anew."""

    def __init__(
        self,
        log: GroupLog,
        directory: Path,
        clock: Clock,
        config: QueueStoreConfig,
        *,
        on_failed: Callable[[str], None],
    ) -> None:
        self.storage = QuorumStorage(log, on_failed=self._failed)
        self._log = log
        self._on_failed = on_failed
        self._housekeeping: asyncio.Task[None] | None = None
        self._is_closed = False
        super().__init__(AmqpBroker(self.storage, now_ms=clock.wall_ms()), directory, clock, config)

    async def open(self, term: int) -> None:
        """Take over what the log holds, and begin. Raises StoreError, InvalidArgument for unusable definitions."""
        for number, _ in enumerate(self.storage.load(term), 1):
            if number % RECORDS_A_STEP == 0:
                await asyncio.sleep(0)
        value = self.storage.state.definitions()
        if value is None:
            self.broker.add_defaults()
        else:
            load_definitions(self.broker, value)
        self._drop_unnamed()
        self.storage.note_definitions(definitions_of(self.broker))
        self.broker.definitions_saved()
        limits = Limits(body_bytes_max=max(KiB, self._log.body_bytes_max - BESIDE_BODY_BYTES))
        self.open_listener(save_definitions=self._save, limits=limits, holding=self.storage)
        self.storage.on_decided = self.listener.wake
        self.storage.on_wanting = self._write_all_definitions
        self.storage.on_relieved = lambda: self.listener.set_congested(False)
        self.listener.wake()
        self._housekeeping = asyncio.create_task(self._keep_house())

    def _drop_unnamed(self) -> None:
        """Stores of queues whose declaration was not decided with them."""
        known = {
            name
            for vhost in self.broker.vhosts.values()
            for queue in vhost.queues.values()
            for name in level_names(vhost.name, queue.name, len(queue.levels))
        }
        for name in self.storage.queue_names():
            if name not in known:
                self.storage.open_queue(name).delete()

    def _save(self) -> None:
        broker = self.broker
        must_rewrite, changes = broker.must_rewrite_definitions, broker.definition_changes
        broker.definitions_saved()  # first: noting changes may find that all are to be written
        if must_rewrite:
            self.storage.note_definitions(definitions_of(broker))
        else:
            self.storage.note_changes(changes)

    def _write_all_definitions(self) -> None:
        self.broker.is_definitions_dirty = self.broker.must_rewrite_definitions = True
        asyncio.get_running_loop().call_soon(self.listener.wake)  # this turn has passed the point where they are saved

    def _failed(self, reason: str) -> None:
        if not self._is_closed:
            _log.warning("AMQP clients are disconnected: %s", reason)
            self._on_failed(reason)
        self.broker.disconnect(AmqpError(CONNECTION_FORCED, f"this member cannot answer any more: {reason}", hard=True))

    def empty_below(self, record: int) -> None:
        """Let no record below this offset be needed, soon."""
        if record > self.storage.carry_below:
            self.storage.carry_below = record
            self.listener.wake()

    async def _keep_house(self) -> None:
        while True:
            try:
                pause = self.check_alarms()
                await self.take_samples()
            except Exception:
                _log.exception("housekeeping failed")
                pause = ALARM_S
            await asyncio.sleep(min(ALARM_S, pause))

    async def close(self, timeout_s: float) -> None:
        """Disconnect everybody. What is not decided yet is told to nobody."""
        if self._is_closed:
            return
        self._is_closed = True
        self.storage.fail("this member leads no more, or stops")
        if self._housekeeping is None:
            return
        self._housekeeping.cancel()
        await self.listener.close(timeout_s)
