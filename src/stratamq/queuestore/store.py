"""The queue store: queues with acknowledgements, a shared store for large messages, one journal in front of both.

One owner: every method but `sync` and `sync_step` is called from one thread. Changes gather in memory; `commit` writes
them as one journal frame; `sync` brings it to the disk and may run in another thread; `synced` is told so.

    store = QueueStore.open(directory, QueueStoreConfig(), clock=SystemClock())
    queue = store.declare_queue("/ orders", durable=True)          # the same object when it exists already
    store.publish(content, persistent=True, queues=[queue])        # [sequence number], ascending in each queue
    number = store.published                                       # this publish is confirmed when durable > number - 1
    token = store.commit()                                         # one write; None when there was nothing to write
    store.sync(token)                                              # fdatasync, in any thread
    durable = store.synced(token)                                  # publishes 1 .. durable may now be confirmed
    for delivery in queue.fetch(100):                              # seq, content, redelivered, expiry_ms, priority
        queue.ack([delivery.seq])                                  # or queue.requeue([...]); durable with the next sync
    store.tick()                                                   # now and then: a bounded step of housekeeping
    store.close()

A message may be fetched before it is synced. ``content`` is opaque (the broker's encoding of properties and body).
``queuestore.group_commit`` runs commits and syncs on an event loop and calls back for confirms.

Durable queues and the persistent messages in them survive a restart. Such a message that was delivered comes back as
ready, with ``redelivered`` true. What lies on the disk: docs/formats/queue-store.md; why: docs/design/queue-store.md.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections import deque
from collections.abc import Sequence
from typing import Final

from stratamq.clock import Clock
from stratamq.config import QueueStoreConfig
from stratamq.errors import MessageRefused, StoreClosed, StoreError, StoreFailed, StoreFull
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.queue_journal import (
    PUBLISH,
    PUBLISH_ONE,
    Publish,
    encode_ack,
    encode_declare,
    encode_delete,
    encode_mark,
    encode_publish,
    to_runs,
)
from stratamq.queuestore import layout
from stratamq.queuestore.housekeeping import Housekeeping, StepWork
from stratamq.queuestore.index_files import IndexFiles
from stratamq.queuestore.journal import Journal, random_salt
from stratamq.queuestore.lock import QueueStoreLock
from stratamq.queuestore.manifest import Manifest
from stratamq.queuestore.message_files import write_recovery
from stratamq.queuestore.message_store import MessageStore
from stratamq.queuestore.queue import Queue, Shared
from stratamq.queuestore.recovery import recover
from stratamq.queuestore.segment import BODY_HERE, IN_PERSISTENT, IN_TRANSIENT, SURVIVES
from stratamq.queuestore.types import CommitToken, Progress, RecoveryReport, StoreStatus, SyncWork

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_HERE: Final = BODY_HERE | SURVIVES
_U64_MAX: Final = 2**64 - 1
_logger = logging.getLogger(__name__)


class QueueStore:
    """An open store. See the module's text; make one with `QueueStore.open`."""

    def __init__(
        self, directory: str, config: QueueStoreConfig, fs: FileSystem, clock: Clock, lock: QueueStoreLock
    ) -> None:
        self.directory = directory
        self.config = config
        self.recovery = RecoveryReport()
        self.published = 0
        """How many publishes were taken since the store was opened: the number of the newest one."""
        self.durable = 0
        """All publishes up to this number are durable, or need not be."""
        self._fs = fs
        self._clock = clock
        self._lock = lock
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._handles = HandleCache(fs, min(1024, soft // 4) if soft > 0 else 1024)
        queues_directory = os.path.join(directory, layout.QUEUES)
        transient_directory = os.path.join(directory, layout.TRANSIENT)
        self._persistent = MessageStore(
            fs, os.path.join(directory, layout.PERSISTENT), config, self._handles, durable=True
        )
        self._transient = MessageStore(fs, transient_directory, config, self._handles, durable=False)
        self._index = IndexFiles(fs, queues_directory, transient_directory, self._handles, config.index_cache_bytes_max)
        self._shared = Shared(
            entry_count=config.queue_index_segment_entry_count,
            index=self._index,
            persistent=self._persistent,
            transient=self._transient,
        )
        self._journal = Journal(fs, os.path.join(directory, layout.JOURNAL), config.journal_file_bytes, random_salt)
        self._manifest = Manifest(fs, os.path.join(directory, layout.MANIFEST))
        self._housekeeping = Housekeeping(fs, config, clock, self._shared, self._journal, self._manifest, self._handles)
        self._queues: dict[str, Queue] = {}
        self._next_transient_id = layout.TRANSIENT_IDS
        self._durable_batch = 0
        self._confirmable: deque[tuple[int, int]] = deque()
        """Batch and newest publish in it, for batches that are not synced."""
        self._waiting = False
        """Whether a publish of the current batch waits for its sync."""
        self._unsynced: dict[str, int] = {}
        self._unsynced_directories: dict[str, int] = {}
        self._refusal: StoreError | None = None

    # --- opening and closing ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: QueueStoreConfig,
        *,
        clock: Clock,
        filesystem: FileSystem | None = None,
        progress: Progress | None = None,
    ) -> QueueStore:
        """Open the store in ``directory`` (made when missing), recovering it as far as its last end requires.

        Raises:
            StoreLocked: Another process, or this one, has it open.
            CorruptionError: What was synced is damaged; nothing was changed.
            ConfigError: ``queue_index_segment_entry_count`` is not what the store was made with.
            OSError: The disk refuses.

        Blocks: after a clean stop for some milliseconds, after a crash for reading the journal.
        """
        fs = filesystem or LocalFileSystem()
        path = os.path.abspath(os.fspath(directory))
        fs.make_directory(path)
        lock = QueueStoreLock(path)
        store: QueueStore | None = None
        try:
            store = cls(path, config, fs, clock, lock)
            store._recover(progress)
        except BaseException:
            if store is not None:
                store._journal.close()
                store._handles.close()
            lock.release()
            raise
        return store

    def _recover(self, progress: Progress | None) -> None:
        layout.wipe(self._fs, self._transient.directory)
        for directory in (self._journal.directory, self._persistent.directory, self._index.directory):
            self._fs.make_directory(directory)
        self._fs.make_directory(self._transient.directory)
        found = recover(self._fs, self._shared, self._journal, self._manifest, progress)
        self._queues = {queue.name: queue for queue in found.queues}
        self._housekeeping.next_queue_id = found.next_queue_id
        if self._manifest.store is None:  # a new store: from now on a missing manifest is damage
            self._manifest.write(self._manifest.prepare([self._housekeeping.store_record(1)]))
        self._durable_batch = found.batch
        self._shared.batch = self._persistent.batch = found.batch + 1
        self.recovery = found.report

    def close(self) -> None:
        """Commit, sync, write the recovery files. Harmless when repeated. After a failure nothing more is written.

        Raises StoreFull, StoreFailed when the last writes do not succeed; the store is closed all the same.
        """
        if isinstance(self._refusal, StoreClosed):
            return
        failed = isinstance(self._refusal, StoreFailed)
        try:
            if not failed:
                self._close_cleanly()
        finally:
            self._refusal = StoreClosed()
            self._journal.close()
            self._handles.close()
            self._lock.release()

    def _close_cleanly(self) -> None:
        for store in (self._persistent, self._transient):
            if store.files and not store.files[-1].sealed:
                store.seal(store.files[-1])
        self._sync_all()
        self._sync_all()  # the footers of the files that were just synced
        for queue in self._queues.values():
            if not queue.durable:
                queue.release_all()
        self._persistent.settle(_U64_MAX)
        try:
            self._housekeeping.abandon()
            self._housekeeping.flusher.flush_all()
            while (step := self.begin_step(collect=False)) is not None:
                self.sync_step(step)
                self.finish_step(step)
            self._manifest.write(
                self._manifest.prepare([self._housekeeping.store_record(self._shared.batch)], anew=True)
            )
            self._journal.remove_through(self._shared.batch)
            write_recovery(self._fs, self.directory, self._persistent, self._shared.batch - 1)
        except OSError as error:
            raise self._fail("write", self.directory, error) from error

    def _sync_all(self) -> None:
        token = self.commit() or self.unsynced()
        if token is not None:
            self.sync(token)
            self.synced(token)

    # --- queues -----------------------------------------------------------------------------------------------

    def declare_queue(self, name: str, durable: bool) -> Queue:
        """The queue of this name, made when it is not there (its ``durable`` is then as given).

        A durable queue is there after a crash when the next commit was synced.
        Raises StoreFull, StoreFailed, StoreClosed.
        """
        queue = self._queues.get(name)
        if queue is not None:
            return queue
        self._check()
        if durable:
            queue_id = self._housekeeping.next_queue_id
            self._housekeeping.next_queue_id += 1
        else:
            queue_id = self._next_transient_id
            self._next_transient_id += 1
        queue = Queue(self._shared, queue_id, name, durable)
        self._queues[name] = queue
        if durable:
            self._shared.parts.append(encode_declare(queue.id, name))
            queue.note_dirty()
        return queue

    def queue(self, name: str) -> Queue | None:
        """The queue of this name; None when there is none."""
        return self._queues.get(name)

    def queues(self) -> list[Queue]:
        """All queues, oldest first."""
        return list(self._queues.values())

    def delete_queue(self, name: str) -> int:
        """Delete a queue with all its messages; returns how many those were (0 for an unknown queue).

        Raises StoreFailed, StoreClosed.
        """
        queue = self._queues.get(name)
        if queue is None:
            return 0
        self._check_open()
        del self._queues[name]
        count = queue.ready + queue.unacked
        shared = self._shared
        queue.release_all()
        for table in (shared.acked, shared.marked, shared.dirty, shared.recent_queues, shared.dropping):
            table.pop(queue.id, None)
        if queue.durable:
            shared.parts.append(encode_delete(queue.id))
        shared.deleted[queue.id] = shared.batch
        return count

    # --- writing ----------------------------------------------------------------------------------------------

    def publish(
        self,
        content: bytes,
        *,
        persistent: bool,
        queues: Sequence[Queue],
        priority: int = 0,
        expiry_ms: int = 0,
        size: int | None = None,
        forced: bool = False,
    ) -> list[int]:
        """Put one message into each of ``queues``; returns its sequence number in each, in their order.

        Args:
            content: The message as the broker encodes it; kept as it is.
            persistent: Whether it survives a restart in durable queues.
            priority: 0 to 255, kept beside it. The order of a queue does not depend on it.
            expiry_ms: Wall time at which it expires, kept beside it; 0 for never.
            size: Body, properties and headers in bytes, for the decision whether it is kept in the index or in the
                message store; the length of ``content`` when None.
            forced: Take it into memory though the disk is full, because it stands for one that is acknowledged.

        Durable when ``durable`` (see `synced`) reaches ``published`` as it is after this call.
        Cost: about 2 us, and 1 us for each further queue.

        Raises:
            MessageRefused: A limit is broken.
            StoreFull: No room on the disk; `commit` tries again, acknowledgements are still taken.
            StoreFailed, StoreClosed: No more writes.
        """
        if self._refusal is not None and not (forced and isinstance(self._refusal, StoreFull)):
            self._check()
        length = len(content)
        if length > self.config.message_bytes_max or not 0 <= priority <= 255 or not 0 <= expiry_ms <= _U64_MAX:
            raise _refused(length, priority, expiry_ms, self.config.message_bytes_max)
        here = (length if size is None else size) < self.config.queue_index_embed_msgs_below
        shared = self._shared
        self.published += 1
        if here and len(queues) == 1:
            queue = queues[0]
            if not (persistent and queue.durable):
                return [queue.append(BODY_HERE, content, length, expiry_ms, priority)]
            seq = queue.append(_HERE, content, length, expiry_ms, priority)
            shared.parts.append(PUBLISH_ONE.pack(PUBLISH, priority, 0, 1, length, expiry_ms, queue.id, seq))
            shared.parts.append(content)
            self._waiting = True
            return [seq]
        return self._publish_many(content, here, persistent, queues, priority, expiry_ms)

    def _publish_many(
        self, content: bytes, here: bool, persistent: bool, queues: Sequence[Queue], priority: int, expiry_ms: int
    ) -> list[int]:
        if not queues:
            return []
        shared = self._shared
        length = len(content)
        surviving = [queue for queue in queues if queue.durable] if persistent else []
        message_id = 0
        kind = BODY_HERE
        if not here:
            store = self._persistent if surviving else self._transient
            message_id = store.add(content, len(queues))
            kind = IN_PERSISTENT if surviving else IN_TRANSIENT
        body: bytes | int = content if here else message_id
        seqs = [
            queue.append(kind | SURVIVES if surviving and queue.durable else kind, body, length, expiry_ms, priority)
            for queue in queues
        ]
        if surviving:
            targets = [(queue.id, seq) for queue, seq in zip(queues, seqs, strict=True) if queue.durable]
            record = Publish(targets, content if here else None, message_id, length, expiry_ms, priority)
            shared.parts.append(encode_publish(record))
            self._waiting = True
        buffered = self._persistent.buffered_bytes + self._transient.buffered_bytes
        if buffered >= self.config.write_buffer_bytes:
            self._write_messages()
        return seqs

    def _write_messages(self) -> None:
        """Write gathered bodies early. A full disk is left for the commit to report."""
        for store in (self._persistent, self._transient):
            try:
                store.write()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise self._fail("write", store.directory, error) from error
                self._refusal = StoreFull(store.directory)

    def commit(self) -> CommitToken | None:
        """Write everything that changed: bodies to the message files, the rest as one frame of the journal.

        Returns what to `sync`; None when nothing has to be. Blocks for writes to the page cache.

        Raises:
            StoreFull: No room. Nothing is lost, nothing is durable; publishes are refused until a commit succeeds.
            StoreFailed: The disk failed. No more writes until the store is opened anew.
        """
        self._check_open()
        shared = self._shared
        parts = self._records()
        batch = shared.batch
        path = self._persistent.directory
        try:
            self._persistent.write()
            path = self._transient.directory
            self._transient.write()
            path = self._journal.directory
            if not parts:
                self._wrote(batch - 1, [])
                return None
            journal_path, created = self._journal.write(batch, self._durable_batch, parts)
        except OSError as error:
            if error.errno in NO_SPACE:
                self._refusal = StoreFull(path)
                raise StoreFull(path) from error
            raise self._fail("write", path, error) from error
        self._refusal = None
        if created:
            self._unsynced_directories[self._journal.directory] = batch
        self._wrote(batch, [journal_path])
        self._confirmable.append((batch, self.published))
        shared.parts.clear()
        shared.batch = self._persistent.batch = batch + 1
        is_urgent, self._waiting = self._waiting, False
        return CommitToken(batch, self._work(), is_urgent)

    def _records(self) -> list[bytes]:
        """Turn acknowledgements and marks into journal records behind those that are there already."""
        shared = self._shared
        for queue_id, seqs in shared.acked.items():
            shared.parts.append(encode_ack(queue_id, to_runs(seqs)))
        for queue in shared.marked.values():
            shared.parts.append(encode_mark(queue.id, queue.mark))
        shared.acked.clear()
        shared.marked.clear()
        return shared.parts

    def _wrote(self, batch: int, paths: Sequence[str]) -> None:
        store = self._persistent
        for path in store.touched:
            self._unsynced[path] = batch
        if store.directory_touched:
            self._unsynced_directories[store.directory] = batch
            store.directory_touched = False
        store.touched.clear()
        self._transient.touched.clear()
        self._transient.settle(_U64_MAX)
        for path in paths:
            self._unsynced.pop(path, None)  # journals last: a frame must not be older than the bodies it names
            self._unsynced[path] = batch

    def _work(self) -> SyncWork:
        return SyncWork(list(self._unsynced), list(self._unsynced_directories))

    def sync(self, token: CommitToken) -> None:
        """Bring everything written up to this token to the disk. Blocks; may run in any thread beside other calls.

        Raises StoreFailed; the store then takes no more writes, and the sync is not tried again.
        """
        if isinstance(self._refusal, StoreFailed):
            raise StoreFailed(*self._refusal.args)
        self._sync_work(token.work)

    def _sync_work(self, work: SyncWork) -> None:
        path = self.directory
        try:
            for path in work.paths:
                try:
                    fd = self._fs.open(path)
                except FileNotFoundError:
                    continue  # removed since
                try:
                    self._fs.sync(fd)
                finally:
                    self._fs.close(fd)
            for path in work.directories:
                self._fs.sync_directory(path)
        except OSError as error:
            raise self._fail("sync", path, error) from error

    def synced(self, token: CommitToken) -> int:
        """Note that `sync` of this token succeeded. All publishes up to the number returned are durable now."""
        batch = token.batch
        self._durable_batch = max(self._durable_batch, batch)
        for table in (self._unsynced, self._unsynced_directories):
            for path in [path for path, last in table.items() if last <= batch]:
                del table[path]
        while self._confirmable and self._confirmable[0][0] <= batch:
            self.durable = self._confirmable.popleft()[1]
        self._persistent.settle(batch)
        self._journal.mark_synced(batch)
        return self.durable

    def unsynced(self) -> CommitToken | None:
        """A token for everything committed and not yet synced; None when all is on the disk."""
        batch = self._shared.batch - 1
        if batch == self._durable_batch and not self._unsynced:
            return None
        return CommitToken(batch, self._work())

    # --- housekeeping -----------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """One bounded step of housekeeping, with its syncs; without one, a sync when one is overdue.

        Call it about every ``sync_interval_ms``, and at once again when it returns True: there is more to do.
        Raises StoreFull (nothing is lost, it goes on later), StoreFailed, StoreClosed.
        """
        step = self.begin_step()
        if step is None:
            self._sync_all()
        else:
            self.sync_step(step)
            self.finish_step(step)
        return self._housekeeping.is_due()

    @property
    def step_due(self) -> bool:
        """Whether housekeeping has something to do."""
        return self._housekeeping.is_due()

    def begin_step(self, *, collect: bool = True) -> StepWork | None:
        """Write one step of housekeeping; None when there is nothing to do. One step at a time.

        Commits first. Then `sync_step` in any thread, then `finish_step`. Raises as `tick` does.
        """
        self._check_open()
        if not (self._housekeeping.is_due() if collect else self._housekeeping.flusher.is_due()):
            return None
        token = self.commit() or self.unsynced()
        try:
            work = self._housekeeping.begin()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise self._fail("write", self.directory, error) from error
            self._housekeeping.pause()
            raise StoreFull(self.directory) from error
        if work is None:
            return None if token is None else StepWork(token=token)
        return work._replace(token=token)

    def sync_step(self, work: StepWork) -> None:
        """Bring a step to the disk. Blocks; may run in any thread beside other calls, but not beside another sync.

        Raises StoreFailed, as `sync` does.
        """
        if work.token is not None:
            self.sync(work.token)
        self._sync_work(SyncWork(work.paths, work.directories))
        if work.manifest is not None:
            try:
                self._manifest.write(work.manifest)
            except OSError as error:
                raise self._fail("write", self._manifest.path, error) from error

    def finish_step(self, work: StepWork) -> int:
        """Note that `sync_step` succeeded; removes what is not needed any more. Returns what `synced` returns."""
        if work.token is not None:
            self.synced(work.token)
        try:
            self._housekeeping.finish(work)
        except OSError as error:
            raise self._fail("remove", self.directory, error) from error
        return self.durable

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> StoreError | None:
        """Why no publishes are taken now; None while they are."""
        return self._refusal

    def status(self) -> StoreStatus:
        """Figures now."""
        persistent, transient = self._persistent, self._transient
        memory = self._shared.recent_bytes + self._index.cache_bytes
        for store in (persistent, transient):
            memory += store.cache_bytes + store.table_bytes
        return StoreStatus(
            queues=len(self._queues),
            batch=self._shared.batch,
            durable_batch=self._durable_batch,
            journal_bytes=self._journal.size,
            memory_bytes=memory,
            message_files=len(persistent.files) + len(transient.files),
            message_bytes=persistent.total_bytes + transient.total_bytes,
            garbage_bytes=persistent.garbage_bytes + transient.garbage_bytes,
            failure="" if self._refusal is None else str(self._refusal),
        )

    def _check(self) -> None:
        """Raise why publishes are not taken."""
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _check_open(self) -> None:
        """Raise why nothing at all is taken."""
        if isinstance(self._refusal, StoreFailed | StoreClosed):
            self._check()

    def _fail(self, operation: str, path: str, error: OSError) -> StoreFailed:
        failure = StoreFailed(operation, path, error.strerror or str(error))
        if not isinstance(self._refusal, StoreFailed):
            _logger.critical("%s", failure)
            self._refusal = failure
        return failure


def _refused(length: int, priority: int, expiry_ms: int, length_max: int) -> MessageRefused:
    if length > length_max:
        return MessageRefused("message", f"{length} bytes", f"at most {length_max} bytes")
    if not 0 <= priority <= 255:
        return MessageRefused("priority", priority, "0 to 255")
    return MessageRefused("expiry", expiry_ms, "0 to 2**64 - 1")
