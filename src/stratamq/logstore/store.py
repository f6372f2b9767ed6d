"""The log store: one commit log for all topics, a consume queue per (topic, queue id), an index, a checkpoint.

One owner: every method but `LogStore.sync` and `LogStore.sync_checkpoint` is called from one thread. Appending collects
a batch in memory; `commit` writes it; `sync` brings it to the disk and may run in another thread; `synced` is told so.
With SYNC_FLUSH consumers see a message only after its sync, with ASYNC_FLUSH after its commit.

    appended = store.append(messages)       # nothing on disk yet
    token = store.commit()                  # one write per file; queues and index follow
    store.sync(token)                       # fdatasync, in any thread
    arrivals = store.synced(token)          # now durable, now visible

How writes can fail and what then holds: docs/design/write-path.md.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.clock import Clock
from stratamq.config import DELAY_LEVELS_DEFAULT, StoreConfig, parse_delay_levels
from stratamq.errors import StoreClosed, StoreError, StoreFailed, StoreFull
from stratamq.files.durable import write_file
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.checkpoint import Checkpoint
from stratamq.logstore import layout
from stratamq.logstore.batch import Batch, NeedsCare
from stratamq.logstore.bulk_append import append_many
from stratamq.logstore.careful_append import append_with_care
from stratamq.logstore.checkpoints import CheckpointFile, CheckpointToken, Trust, checkpoint_token
from stratamq.logstore.commit_log import CommitLog, SyncWork
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.deletions import folders_of, remove_folder
from stratamq.logstore.index import Index
from stratamq.logstore.light_queues import is_light_name
from stratamq.logstore.lock import StoreLock
from stratamq.logstore.queries import catch_up
from stratamq.logstore.queue_table import SYNC_FILES_MAX, QueueTable
from stratamq.logstore.readable import ReadableStore
from stratamq.logstore.recovery import load_parts, recover
from stratamq.logstore.redispatch import Parts, RecoveryReport
from stratamq.logstore.syncing import carry_out
from stratamq.logstore.types import (
    Appended,
    AppendedMany,
    Arrival,
    Message,
    Progress,
    StoreStatus,
)

CATCH_UP_BYTES: Final = 4 * 1024 * 1024
"""Log bytes indexed per checkpoint round while the index is behind: some 20 ms of the owner's thread."""
WRITE_AT_ONCE_MAX: Final = 32
"""A commit that touches at most so many queues writes their units at once."""
WAITING_UNITS_MAX: Final = 128 * 1024
"""Queue units that may wait in memory, 20 bytes each."""
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_logger = logging.getLogger(__name__)


class CommitToken(NamedTuple):
    """What one commit wrote.

    ``work`` covers everything unsynced, older commits too. ``arrivals`` is for ASYNC_FLUSH.
    """

    end: int
    last_store_timestamp: int
    work: SyncWork
    arrivals: Sequence[Arrival] = ()


class LogStore(ReadableStore):
    """An open store. See the module's text; make one with `LogStore.open`."""

    def __init__(self, parts: Parts, *, clock: Clock, store_host: bytes, lock: StoreLock, handles: HandleCache) -> None:
        super().__init__(parts)
        self.recovery = RecoveryReport()
        self._fs = parts.fs
        self._lock = lock
        self._handles = handles
        self._parts = parts
        self._checkpoint = CheckpointFile(parts.fs, os.path.join(parts.directory, layout.CHECKPOINT))
        self._abort_path = os.path.join(parts.directory, layout.ABORT)
        self._batch = Batch(
            config=parts.config,
            clock=clock,
            queues=parts.queues,
            store_host=store_host,
            delay_levels=parts.delay_levels,
        )
        self._flushed_timestamp = 0
        self._unseen: deque[tuple[int, list[Arrival]]] = deque()
        """Commits that wait for their sync before consumers may see them: end of the log, arrivals."""
        self._refusal: StoreError | None = None
        self._disk_full: StoreFull | None = None
        self._closed = False

    # --- opening and closing ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: StoreConfig,
        *,
        clock: Clock,
        store_host: bytes,
        filesystem: FileSystem | None = None,
        progress: Progress | None = None,
        delay_levels: str = DELAY_LEVELS_DEFAULT,
    ) -> LogStore:
        """Open the store in ``directory`` (made when missing), recovering it as far as its last end requires.

        Args:
            store_host: Address and port that records carry (`formats.message.encode_host`); see `set_store_host`.
            filesystem: The disk; the machine's when None.
            progress: Told now and then how far recovery is.
            delay_levels: RocketMQ's ``messageDelayLevel``.

        Raises:
            StoreLocked: Another process, or this one, has it open.
            CorruptionError, StrayFile: Files are not what they must be; nothing was changed.
            OSError: The disk refuses.

        Blocks: after a clean stop for some milliseconds, after a crash for reading the log since the last checkpoint.
        """
        fs = filesystem or LocalFileSystem()
        path = os.path.abspath(os.fspath(directory))
        levels = parse_delay_levels(delay_levels)
        fs.make_directory(path)
        lock = StoreLock(path)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        handles = HandleCache(fs, min(4096, soft // 4) if soft > 0 else 4096)
        store: LogStore | None = None
        try:
            parts = load_parts(fs, path, config, clock, handles, levels)
            store = cls(parts, clock=clock, store_host=store_host, lock=lock, handles=handles)
            store._recover(progress)
        except BaseException:
            if store is not None:
                store._close_files()
            handles.close()
            lock.release()
            raise
        return store

    def _recover(self, progress: Progress | None) -> None:
        checkpoint, synced = self._checkpoint.read()
        clean = self._fs.stat(self._abort_path) is None and (checkpoint is not None or not self._log.bases)
        trust = Trust(self._checkpoint, checkpoint or Checkpoint(), synced, self._mark_open)
        self.recovery = recover(self._parts, checkpoint, synced, trust, clean=clean, report=progress)
        end = self.recovery.end
        timestamp = self.recovery.last_store_timestamp
        if not timestamp and checkpoint is not None:
            timestamp = checkpoint.physic_msg_timestamp
        self._parts.deletions.fit(self._log.min_offset, end)
        self._batch.begin(end)
        self._batch.last_store_timestamp = timestamp
        self._write_index_rows()
        self._sync_everything(CommitToken(end, timestamp, self._log.sync_work()), clean=False)
        self._mark_open()

    def _mark_open(self) -> None:
        """Put the abort marker in place: while it is there, the next open is one after a crash."""
        if self._fs.stat(self._abort_path) is None:
            write_file(self._abort_path, str(os.getpid()).encode(), filesystem=self._fs)
            self._fs.sync_directory(self.directory)

    def _sync_everything(self, token: CommitToken, *, clean: bool) -> None:
        self.sync(token)
        self.synced(token)
        self.sync_checkpoint(self._checkpoint_token(everything=True, clean=clean))

    def close(self) -> None:
        """Commit, sync everything, write the checkpoint, remove the abort marker; in this order. Harmless when
        repeated.

        After a failure nothing more is written and the marker stays, so that the next open recovers.
        Raises StoreFull, StoreFailed when the last writes do not succeed; the store is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        failed = isinstance(self._refusal, StoreFailed)
        try:
            if not failed:
                self.commit()
                self._write_units(list(self._queues.waiting))
                self._write_index_rows()
                end = CommitToken(self._log.end, self._batch.last_store_timestamp, self._log.sync_work())
                self._sync_everything(end, clean=True)
                if not self._queues.waiting:
                    self._remove_marker()
        finally:
            self._refusal = StoreClosed()
            self._close_files()
            self._handles.close()
            self._lock.release()

    def _remove_marker(self) -> None:
        try:
            self._fs.remove(self._abort_path)
            self._fs.sync_directory(self.directory)
        except OSError as error:
            raise self._fail("remove", self._abort_path, error) from error

    def _close_files(self) -> None:
        self._log.close()
        if self._index is not None:
            self._index.close()
        self._checkpoint.close()

    # --- writing ----------------------------------------------------------------------------------------------

    def set_store_host(self, store_host: bytes) -> None:
        """Records appended from now on carry this host (8 or 20 bytes)."""
        self._batch.set_store_host(store_host)

    def append(self, messages: Sequence[Message]) -> list[Appended]:
        """Add messages to the batch: all of one call end up side by side in one file, or none is taken.

        Nothing is on the disk before `commit`. Cost: about 3 us a message.

        Raises:
            MessageRefused: A limit is broken (field, found, allowed).
            FlowControlled: ``pending_bytes_max`` bytes wait for `commit`.
            StoreFull: Queue units still wait for room on the disk, and `commit` tries again; or `refuse_writes`.
            StoreFailed, StoreClosed: No more writes.
        """
        refusal = self.failure
        if refusal is not None:
            raise type(refusal)(*refusal.args)
        try:
            return self._batch.append(messages)
        except NeedsCare:
            return append_with_care(self._batch, messages)

    def append_many(
        self, template: Message, bodies: Sequence[bytes], properties: Sequence[str] | None = None
    ) -> AppendedMany:
        """Add many messages of one queue, which differ in body, and in properties when those are given.

        All else is taken from ``template``, whose own body is not looked at. They follow each other in the queue;
        unlike with `append` they may lie in several files. Either all are taken or none. Cost: about 0.7 us a message.

        Raises:
            MessageRefused: A limit is broken; or a transaction, or an IPv6 host, which only `append` takes.
            FlowControlled, StoreFull, StoreFailed, StoreClosed: As `append` does.
        """
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)
        return append_many(self._batch, template, bodies, properties)

    def commit(self) -> CommitToken | None:
        """Write what was appended: commit log, then consume queues and index. None when there was nothing to do.

        Blocks for writes to the page cache; syncs nothing.

        Raises:
            StoreFull: No room. Nothing of the batch was stored and its offsets are free again; the store goes on.
            StoreFailed: The disk failed. No more writes until the store is opened anew.
        """
        batch = self._batch
        if isinstance(self._refusal, StoreFailed):
            raise StoreFailed(*self._refusal.args)
        if self._refusal is not None:
            self._write_units(list(self._queues.waiting))
        if not batch.size:
            return None
        try:
            self._log.write(batch.segments)
        except OSError as error:
            raise self._undo(error) from error
        rows, touched, start = batch.index_rows, batch.touched, batch.start
        batch.begin(batch.position)
        arrivals = self._queues.commit(touched, start, batch.position, batch.last_store_timestamp)
        if len(touched) <= WRITE_AT_ONCE_MAX:
            self._write_units(touched)
        elif self._queues.waiting_units > WAITING_UNITS_MAX:
            self._write_units(list(self._queues.waiting), units_left=WAITING_UNITS_MAX // 2)
        if self._index is not None:
            self._index.add(rows, batch.position)
        return self._committed(arrivals)

    def _committed(self, arrivals: list[Arrival]) -> CommitToken:
        end = self._log.end
        work = self._log.sync_work()
        timestamp = self._batch.last_store_timestamp
        if self._is_sync:
            self._unseen.append((end, arrivals))
            return CommitToken(end, timestamp, work)
        self._show(arrivals)
        return CommitToken(end, timestamp, work, arrivals)

    def _undo(self, error: OSError) -> StoreError:
        """The log could not be written: take the batch back. Returns what to raise."""
        batch = self._batch
        path = self._log.path_of(self._log.base_of(self._log.end))
        segments, start = batch.segments, batch.start
        batch.undo()
        try:
            self._log.erase(start, segments)
        except OSError as second:
            return self._fail("write", path, second)
        if error.errno in NO_SPACE:
            return StoreFull(path)
        return self._fail("write", path, error)

    def _write_units(self, queues: Sequence[ConsumeQueue], *, units_left: int = -1) -> None:
        """Write units that wait in memory. No room for them: they go on waiting, and no further message is taken."""
        try:
            self._queues.write_waiting(queues, units_left=units_left)
        except OSError as error:
            self._units_failed(error)
            return
        if isinstance(self._refusal, StoreFull) and not self._queues.waiting:
            _logger.warning("consume queues in %s are written again: writes are taken again", self.directory)
            self._refusal = None

    def _units_failed(self, error: OSError) -> None:
        """Units could not be written.

        The messages are stored; without room they wait in memory, and writes with them.
        """
        path = next((queue.directory for queue in self._queues.waiting), self._queues.directory)
        if error.errno not in NO_SPACE:
            raise self._fail("write", path, error) from error
        if self._refusal is None:
            _logger.error("no space left for %s: writes are refused until its units are written", path)
            self._refusal = StoreFull(path)

    def _fail(self, operation: str, path: str, error: OSError) -> StoreFailed:
        failure = StoreFailed(operation, path, error.strerror or str(error))
        if not isinstance(self._refusal, StoreFailed):
            _logger.critical("%s", failure)
            self._refusal = failure
        return failure

    def sync(self, token: CommitToken) -> None:
        """Bring everything that was written up to this token to the disk. Blocks; may run in any thread beside appends.

        Raises StoreFailed; the store then takes no more writes, and the sync is not tried again.
        """
        if isinstance(self._refusal, StoreFailed):
            raise StoreFailed(*self._refusal.args)
        self._sync_work(token.work)

    def _sync_work(self, work: SyncWork) -> None:
        failed = carry_out(self._fs, work, derived=(self._queues.directory, self._queues.batch_directory))
        if failed is not None:
            raise self._fail("sync", failed.path, failed.error) from failed.error

    def synced(self, token: CommitToken) -> list[Arrival]:
        """Note that `sync` of this token succeeded. Returns who can now read more (SYNC_FLUSH; else empty)."""
        if token.end > self._flushed:
            self._flushed = token.end
            self._flushed_timestamp = token.last_store_timestamp
        self._log.mark_synced(token.end)
        arrivals: list[Arrival] = []
        while self._unseen and self._unseen[0][0] <= token.end:
            arrivals += self._unseen.popleft()[1]
        self._show(arrivals)
        return arrivals

    def _show(self, arrivals: Sequence[Arrival]) -> None:
        queues = self._queues
        for arrival in arrivals:
            queues[arrival.queue].visible_offset = arrival.max_offset

    def unsynced(self) -> CommitToken | None:
        """A token for everything committed and not yet synced; None when all is on the disk."""
        if self._flushed == self._log.end:
            return None
        return CommitToken(self._log.end, self._batch.last_store_timestamp, self._log.sync_work())

    # --- topics that go ---------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Remove all queues of a topic, from table and disk. Harmless when it has none.

        Its records stay in the log until they expire, but no recovery makes queues of them again (`deletions`). A topic
        of that name made later begins at offset 0. Messages that wait for `commit` right now count as sent after this:
        they begin a new queue at the offset that they were given.

        Blocks for some syncs and for the removal of every file of the topic.

        Raises:
            StoreFull: No room to note the deletion; nothing changed.
            StoreFailed: The disk failed. The next open goes on where this stopped.
            StoreClosed: The store is closed.
        """
        if isinstance(self._refusal, StoreFailed | StoreClosed):
            raise type(self._refusal)(*self._refusal.args)
        doomed = [queue for queue in self._queues.values() if queue.key.topic == topic]
        folders = folders_of(self.directory, topic)
        is_name = layout.is_topic_name(topic) or is_light_name(topic)
        if not is_name or not (doomed or any(self._fs.stat(folder) for folder in folders)):
            return
        deletions = self._parts.deletions
        try:
            deletions.add(topic, self._log.end, log_min=self._log.min_offset)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StoreFull(deletions.path) from error
            raise self._fail("write", deletions.path, error) from error
        kept = [(end, [a for a in arrivals if a.queue.topic != topic]) for end, arrivals in self._unseen]
        self._unseen = deque(kept)
        try:
            for queue in doomed:
                following = self._queues.remove(queue)
                if following is not None:
                    self._batch.replace(queue, following)
            if not any(queue.key.topic == topic for queue in self._queues.values()):
                self._queues.batch_topics.discard(topic)
            for folder in folders:
                remove_folder(self._fs, folder)
        except OSError as error:
            raise self._fail("remove", folders[0], error) from error
        _logger.info("the queues of topic %s are deleted: %d of them", topic, len(doomed))

    def set_queue_type(self, topic: str, *, is_batch: bool) -> None:
        """Say whether a topic has queues of batches (``queue.type=BatchCQ``), before its first message.

        What a topic has messages of stays as it is: a change is refused with an entry in the log. Costs nothing when
        it is known already. Raises OSError.
        """
        if not self._queues.set_kind(topic, is_batch=is_batch):
            kind = "of single messages" if is_batch else "of batches"
            _logger.error("topic %s has queues %s with messages in them, and keeps them", topic, kind)

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes appended or committed that are not synced yet."""
        return self._batch.position - self._flushed

    @property
    def failure(self) -> StoreError | None:
        """Why no writes are taken now; None while they are."""
        return self._refusal or self._disk_full

    def refuse_writes(self, reason: StoreFull | None) -> None:
        """Take no messages because of how full the disk is, or take them again (None). Reads and `commit` go on."""
        self._disk_full = reason

    def retained(self) -> tuple[CommitLog, QueueTable, Index | None]:
        """The parts that retention takes files from (`retention_service`), on the owner's thread like all else."""
        return self._log, self._queues, self._index

    def status(self) -> StoreStatus:
        """Positions and state now."""
        return StoreStatus(
            min_physical_offset=self._log.min_offset,
            max_physical_offset=self._log.end,
            flushed_physical_offset=self._flushed,
            pending_bytes=self.pending_bytes,
            commit_log_files=len(self._log.bases),
            queues=len(self._queues),
            last_store_timestamp=self._batch.last_store_timestamp,
            is_writable=self.failure is None,
            index_behind=self._index is not None and self._index.behind_from is not None,
            failure="" if self.failure is None else str(self.failure),
        )

    # --- the checkpoint ---------------------------------------------------------------------------------------

    def begin_checkpoint(self) -> CheckpointToken:
        """Start a round of queue and index syncs (call it about every second). Also retries what waits for room.

        Raises StoreFailed.
        """
        if isinstance(self._refusal, StoreFailed):
            raise StoreFailed(*self._refusal.args)
        count = SYNC_FILES_MAX if self._refusal is None else len(self._queues.waiting)
        self._write_units(self._queues.oldest_waiting(count))
        self._write_index_rows()
        return self._checkpoint_token(everything=False, clean=False)

    def sync_checkpoint(self, token: CheckpointToken) -> None:
        """Bring queues and index to the disk, then write the checkpoint. Blocks; may run in any thread, one at a time.

        Raises StoreFailed, as `sync` does.
        """
        if isinstance(self._refusal, StoreFailed):
            raise StoreFailed(*self._refusal.args)
        self._sync_work(token.work)
        try:
            self._checkpoint.write(token.checkpoint, token.progress)
        except OSError as error:
            raise self._fail("write", self._checkpoint.path, error) from error

    def _checkpoint_token(self, *, everything: bool, clean: bool) -> CheckpointToken:
        return checkpoint_token(
            self._flushed, self._flushed_timestamp, self._queues, self._index, everything=everything, clean=clean
        )

    def _write_index_rows(self) -> None:
        index = self._index
        if index is not None:
            index.write_rows()
            if index.behind_from is not None:
                catch_up(self._log, index, CATCH_UP_BYTES)
