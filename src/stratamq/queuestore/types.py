"""Values that cross the queue store's border."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

READY = 1
"""State of a message in its queue: may be fetched."""
UNACKED = 2
"""State of a message in its queue: fetched, not acknowledged."""
GONE = 3
"""State of a sequence number without a message (any more)."""


class Delivery(NamedTuple):
    """A message as `Queue.fetch` returns it. ``expiry_ms`` is wall time, 0 for none."""

    seq: int
    content: bytes
    redelivered: bool
    expiry_ms: int
    priority: int


class QueueCounts(NamedTuple):
    """How much a queue holds. ``bytes`` counts the contents of ready and unacked messages."""

    ready: int
    unacked: int
    bytes: int


class SyncWork(NamedTuple):
    """What has to be synced, by path, in this order: files, then directories. A file that is gone needs no sync."""

    paths: Sequence[str] = ()
    directories: Sequence[str] = ()


class CommitToken(NamedTuple):
    """What `QueueStore.commit` wrote; ``work`` covers everything unsynced, older commits too."""

    batch: int
    work: SyncWork
    is_urgent: bool = False
    """Whether somebody waits for a confirm; else the sync may wait for `QueueStoreConfig.sync_interval_ms`."""


class RecoveryReport(NamedTuple):
    """What opening the store found and did."""

    clean: bool = True
    queues: int = 0
    messages: int = 0
    journal_bytes: int = 0
    files_scanned: int = 0
    messages_dropped: int = 0
    """Unsynced messages whose body did not reach the disk."""
    truncated_bytes: int = 0
    damaged_segments: int = 0
    """Index segments whose entries cannot be read. Message files are not collected until the next start finds none."""


class StoreStatus(NamedTuple):
    """Figures of an open store at one moment."""

    queues: int
    batch: int
    durable_batch: int
    journal_bytes: int
    memory_bytes: int
    """Bytes of bodies and tables that are held in memory, as far as they are counted."""
    message_files: int
    message_bytes: int
    garbage_bytes: int
    failure: str = ""


Progress = Callable[[str, int, int], None]
"""Called now and then during long work: what is being done, done so far, total (same unit)."""
