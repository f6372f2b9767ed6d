"""The log store behind a broker, opened with its committer."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.clock import Clock
from stratamq.config import StoreConfig
from stratamq.logstore.group_commit import GroupCommitter
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Arrival

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store, what writes to it, and how both are closed: first the committer, then the store."""

    store: StoreSurface
    committer: CommitterSurface
    close_committer: Callable[[], Awaitable[None]]
    close_store: Callable[[], None]


def open_log_store(
    directory: Path,
    config: StoreConfig,
    *,
    clock: Clock,
    store_host: bytes,
    delay_levels: str,
    on_arrivals: Callable[[Sequence[Arrival]], None],
    on_congested: Callable[[], None],
    on_relieved: Callable[[], None],
) -> OpenedStore:
    """Open the log store in ``directory``, on the running loop. Blocks while it recovers; raises StoreError."""
    store = LogStore.open(
        directory,
        config,
        clock=clock,
        store_host=store_host,
        delay_levels=delay_levels,
        progress=_RecoveryLog(),
    )
    committer = GroupCommitter(store, on_arrivals=on_arrivals, on_congested=on_congested, on_relieved=on_relieved)
    committer.start()
    return OpenedStore(store, committer, committer.close, store.close)


class _RecoveryLog:
    """Says now and then how far a long recovery is."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 2.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 2.0
            _log.info("recovery: %s, %d%% of %d", what, 100 * done // total if total else 100, total)
