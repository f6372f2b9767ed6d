"""Retention in a running broker: the timers that `logstore.retention_service` does not have.

Two tasks, so that none waits for the other: a look at the disk, and a round of deletions whose blocking parts run in a
thread. The first round comes a minute after the start, as RocketMQ's does; the first look at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from stratamq.broker.offsets import OffsetTable
from stratamq.clock import Clock
from stratamq.config import RetentionConfig
from stratamq.logstore.disk_usage import DiskProbe
from stratamq.logstore.retention_losses import Offsets, delivery_offsets
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.store import LogStore

FIRST_ROUND_S: Final = 60.0
_log = logging.getLogger(__name__)


def retention_of(
    store: object,
    policy: RetentionConfig,
    offsets: OffsetTable,
    clock: Clock,
    *,
    delays: Callable[[], Any] = dict,
    probe: DiskProbe | None = None,
    keep_from: Callable[[], int | None] | None = None,
    is_tiered: Callable[[str], bool] = lambda topic: False,
) -> RetentionService | None:
    """Retention for a broker's store; None for one that has no files.

    ``delays`` gives what ``delayOffset.json`` would hold now, ``keep_from`` from where on the cold tier lacks the log,
    ``is_tiered`` whether it keeps a topic.
    """
    if not isinstance(store, LogStore):
        return None
    return RetentionService(
        store,
        policy,
        clock=clock,
        offsets=offsets_of(offsets, delays),
        probe=probe,
        keep_from=keep_from,
        is_tiered=is_tiered,
    )


def offsets_of(table: OffsetTable, delays: Callable[[], Any]) -> Callable[[], Offsets]:
    """How far groups, and the delivery of delayed messages, have come when it is asked for."""
    return lambda: {
        **{(topic, group): table.of(group, topic) for topic, group in table.pairs()},
        **delivery_offsets(delays()),
    }


def retention_tasks(
    service: RetentionService, *, first_round_s: float = FIRST_ROUND_S
) -> list[Coroutine[Any, Any, None]]:
    """What has to run beside the broker. Looks at the disk once before it returns."""
    interval = service.policy.clean_interval_ms / 1000
    service.watch()
    return [_watch_forever(service, interval), _clean_forever(service, interval, first_round_s)]


async def run_round(service: RetentionService) -> None:
    """One round: what blocks runs in a thread, and between two steps everybody else gets their turn."""
    for step in service.round():
        if step.blocking is not None:
            await asyncio.to_thread(step.blocking)
        await asyncio.sleep(step.pause_ms / 1000)


async def _watch_forever(service: RetentionService, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            service.watch()
        except Exception:
            _log.exception("looking at the disk failed")


async def _clean_forever(service: RetentionService, interval: float, first_round_s: float) -> None:
    await asyncio.sleep(first_round_s)
    while True:
        try:
            await run_round(service)
        except Exception:
            _log.exception("a round of cleaning failed; the next one is tried")
        await asyncio.sleep(interval)
