"""Keeping a broker's tables on disk: soon after each change, consumer offsets every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.broker.ports import SavedValue

_log = logging.getLogger(__name__)

SAVE_DELAY_S: Final = 0.05
"""How long a changed table waits for further changes before it is written."""


async def keep_tables(broker: Broker, wanted: asyncio.Event, offsets_interval_ms: int) -> None:
    """Write changed tables whenever ``wanted`` is set, consumer offsets in their interval; until cancelled."""
    interval = offsets_interval_ms / 1000
    loop = asyncio.get_running_loop()
    next_offsets = loop.time() + interval
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(next_offsets):
                await wanted.wait()
            await asyncio.sleep(SAVE_DELAY_S)
        wanted.clear()
        with_offsets = loop.time() >= next_offsets
        if with_offsets:
            next_offsets = loop.time() + interval
        await _save(broker, with_offsets=with_offsets)


async def _save(broker: Broker, *, with_offsets: bool) -> None:
    unsaved = broker.unsaved(with_offsets=with_offsets)
    if not unsaved:
        return
    try:
        await asyncio.to_thread(write_all, unsaved)
    except OSError as error:
        broker.mark_unsaved()
        _log.error("tables cannot be saved, trying again in a while: %s", error)


def write_all(unsaved: Sequence[tuple[SavedValue, Any]]) -> None:
    """Write some tables. Blocks; raises OSError."""
    for file, value in unsaved:
        file.store(value)
