"""Steps of housekeeping: flushing into segments and collecting message files, one bounded step at a time.

A step has three parts, so that its syncs can run in a thread: `begin` writes, `sync` syncs and writes the manifest,
`finish` removes what nothing names any more. Only one step is under way at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.clock import Clock
from stratamq.config import QueueStoreConfig
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.queue_manifest import StoreRecord
from stratamq.queuestore.collector import Collector
from stratamq.queuestore.flush import Flusher, FlushWork
from stratamq.queuestore.journal import Journal
from stratamq.queuestore.manifest import Manifest, ManifestWrite
from stratamq.queuestore.queue import Shared
from stratamq.queuestore.types import CommitToken

PAUSE_MS: Final = 1_000
"""How long housekeeping rests after the disk was found full."""
_logger = logging.getLogger(__name__)


class StepWork(NamedTuple):
    """What one step has to sync, in this order: files, directories, the manifest."""

    paths: Sequence[str] = ()
    directories: Sequence[str] = ()
    manifest: ManifestWrite | None = None
    token: CommitToken | None = None
    """What was committed before and is synced first."""
    flush: FlushWork | None = None
    collector: Collector | None = None


class Housekeeping:
    """Decides which step is next. Not thread-safe but for `write_manifest`."""

    def __init__(
        self,
        fs: FileSystem,
        config: QueueStoreConfig,
        clock: Clock,
        shared: Shared,
        journal: Journal,
        manifest: Manifest,
        handles: HandleCache,
    ) -> None:
        self.flusher = Flusher(fs, config, shared, journal, manifest)
        self._manifest = manifest
        self._clock = clock
        self._shared = shared
        self._entry_count = config.queue_index_segment_entry_count
        self._collectors = [Collector(fs, store, config, handles) for store in (shared.persistent, shared.transient)]
        self._resume_at = 0
        self.next_queue_id = 1

    def is_due(self) -> bool:
        """Whether a step has something to do."""
        if self._resume_at and self._clock.monotonic_ms() < self._resume_at:
            return False
        self._resume_at = 0
        return self.flusher.is_due() or any(collector.is_due() for collector in self._collectors)

    def begin(self) -> StepWork | None:
        """Write one step. Everything must be committed. None when nothing is left to do. Raises OSError."""
        flush = self.flusher.step()
        if flush is not None:
            manifest = None
            if flush.low:
                manifest = self._manifest.prepare([self.store_record(flush.low), *flush.records])
            return StepWork(flush.paths, flush.directories, manifest, flush=flush)
        for collector in self._collectors:
            work = collector.step() if collector.is_due() else None
            if work is not None:
                return StepWork(work.paths, work.directories, collector=collector)
        return None

    def store_record(self, low: int) -> StoreRecord:
        """What the manifest says of the store now; ``low`` is the oldest batch that recovery needs besides it."""
        shared = self._shared
        next_id = shared.persistent.next_id
        return StoreRecord(self._entry_count, self.next_queue_id, shared.batch - 1, low, next_id)

    def finish(self, work: StepWork) -> None:
        """Everything of this step is synced. Raises OSError."""
        if work.flush is not None:
            self.flusher.remove(work.flush)
        if work.collector is not None:
            work.collector.finish()

    def pause(self) -> None:
        """The disk is full: give up what is under way, go on later."""
        _logger.warning("no space left for housekeeping; it goes on when there is")
        self._resume_at = self._clock.monotonic_ms() + PAUSE_MS
        self.abandon()

    def abandon(self) -> None:
        """Give up collections that are under way."""
        for collector in self._collectors:
            collector.abandon()
