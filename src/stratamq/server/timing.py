"""The files of the timer in a running broker: opened with the store, synced in a thread."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from stratamq.broker.timers import Timers
from stratamq.errors import StoreFailed
from stratamq.logstore.timer_store import TimerStore
from stratamq.server.settings import Settings

_log = logging.getLogger(__name__)

TIMER_SYNC_S: Final = 1.0


def open_timer(settings: Settings) -> TimerStore:
    """The files of the timer, in a store that is open. Blocks; raises StoreError, OSError."""
    config = settings.broker
    return TimerStore.open(
        str(settings.data_dir), precision_ms=config.timer_precision_ms, file_bytes=config.timer_log_file_bytes
    )


async def sync_timer(timers: Timers) -> None:
    """Sync the timer's files every second, in a thread, until one sync fails."""
    while True:
        await asyncio.sleep(TIMER_SYNC_S)
        try:
            token = timers.begin_sync()
            if token is not None:
                await asyncio.to_thread(timers.sync, token)
        except StoreFailed as error:
            _log.critical("the timer's files cannot be synced, timers stand still until a restart: %s", error)
            return
