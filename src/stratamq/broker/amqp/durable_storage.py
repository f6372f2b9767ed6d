"""The queue store as the broker's `Storage`: durable queues, one commit and one sync for everything of a turn.

While a sync runs nothing is committed: what is published meanwhile goes into the next batch, so that a lone publisher
waits for one sync and many share one. A batch that nobody waits for (acknowledgements, transient messages) is synced
some milliseconds later.

Where the sync runs is the caller's: it hands in ``start_sync``, which runs `QueueStore.sync` somewhere and then calls
`sync_done`, and ``call_later`` for the lazy ones.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from stratamq.broker.amqp.delivery_counts import DeliveryCounts
from stratamq.broker.amqp.messages import Message, MessageDecoder, encode_message
from stratamq.broker.amqp.storage import QueueStorage, Stored
from stratamq.errors import CorruptionError, StoreError, StoreFull
from stratamq.queuestore.alarms import DiskRoom
from stratamq.queuestore.queue import Queue as StoreQueue
from stratamq.queuestore.store import QueueStore
from stratamq.queuestore.types import CommitToken

_log = logging.getLogger(__name__)

UNSYNCED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Published but not synced bytes above which publishers are held back."""


class DurableQueueStorage:
    """One queue of the queue store."""

    __slots__ = ("_all_redelivered", "_decode", "_storage", "queue")
    notes_takes = False

    def __init__(self, storage: DurableStorage, queue: StoreQueue) -> None:
        self._storage = storage
        self.queue = queue
        self._decode = MessageDecoder().decode
        self._all_redelivered = queue.next_seq if storage.was_killed else 0
        """Below this sequence number it is not known what had been delivered."""

    @property
    def count(self) -> int:
        return self.queue.ready + self.queue.unacked

    def fetch(self, after: int, count: int) -> list[Stored]:
        found: list[Stored] = []
        counts = self._storage.counts.of.get(self.queue.name, {})
        while len(found) < count:
            deliveries = self.queue.fetch(count)
            if not deliveries:
                break
            for delivery in deliveries:
                if delivery.seq <= after:
                    continue  # the broker has had it from its own memory
                redelivered = delivery.redelivered or delivery.seq < self._all_redelivered
                try:
                    message = self._decode(delivery.content)
                    found.append(Stored(delivery.seq, message, redelivered, counts.get(delivery.seq, 0)))
                except CorruptionError as error:
                    _log.error("queue %r, message %d: %s", self.queue.name, delivery.seq, error)
        self._storage.touch()
        return found

    def body_bytes(self) -> int:
        total = 0
        for seq in self.queue.numbers_between(0, self.queue.next_seq):
            try:
                total += len(self._decode(self.queue.read(seq)).body)
            except CorruptionError as error:
                _log.error("queue %r, message %d: %s", self.queue.name, seq, error)
        return total

    def ack(self, seqs: Iterable[int]) -> None:
        counts = self._storage.counts
        if counts.of:
            seqs = tuple(seqs)
            counts.forget(self.queue.name, seqs)
        self.queue.ack(seqs)
        self._storage.touch()

    def take(self, seq: int) -> None:
        """After a kill every message counts as delivered before, so single deliveries are not written down."""

    def note_deliveries(self, seq: int, count: int) -> None:
        self._storage.counts.note(self.queue.name, seq, count)

    def delete(self) -> None:
        self._storage.counts.drop(self.queue.name)
        self._storage.store.delete_queue(self.queue.name)
        self._storage.touch()


class DurableStorage:
    """All durable queues."""

    def __init__(
        self,
        store: QueueStore,
        *,
        start_sync: Callable[[CommitToken], None],
        call_later: Callable[[Callable[[], None]], None],
        on_failed: Callable[[StoreError], None] = lambda error: None,
        free_bytes: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self.store = store
        self.room = DiskRoom(store.config, free_bytes)
        self.counts = DeliveryCounts()
        self.was_killed = not store.recovery.clean
        self.on_synced: Callable[[int], None] = lambda number: None
        self.on_congested: Callable[[bool], None] = lambda congested: None
        self.on_full: Callable[[], None] = lambda: None
        """Called when a commit or a publish finds no room on the disk for the first time."""
        self._start_sync = start_sync
        self._call_later = call_later
        self._on_failed = on_failed
        self._open_batch = 1
        """Number of the batch that is being gathered."""
        self._closed_batch = 0
        self._is_waited_for = self._is_touched = self._is_syncing = self._is_timer_set = False
        self._is_full = False
        self._gathered_bytes = self._syncing_bytes = 0
        self.failure: StoreError | None = None

    def touch(self) -> None:
        """Something changed that nobody waits for."""
        self._is_touched = True

    def open_queue(self, name: str) -> QueueStorage:
        queue = self.store.declare_queue(name, durable=True)
        self._is_touched = True
        return DurableQueueStorage(self, queue)

    def publish(
        self, message: Message, persistent: bool, queues: Sequence[QueueStorage], forced: bool = False
    ) -> Sequence[int]:
        content = encode_message(message)
        if not forced:
            self._check_room(len(content))
        targets = [queue.queue for queue in queues if isinstance(queue, DurableQueueStorage)]
        seqs = self.store.publish(content, persistent=persistent, queues=targets, forced=forced)
        self._is_touched = True
        if persistent:
            self._is_waited_for = True
            self._gathered_bytes += len(content)
        return seqs

    def _check_room(self, size: int) -> None:
        """Raises StoreFull when a publish would take what acknowledgements need."""
        was_short = self.room.is_short
        if self.room.take(size, self._gathered_bytes + self._syncing_bytes):
            return
        error = StoreFull(self.store.directory)
        if not was_short:
            _log.error("%s; the last %d bytes are kept for acknowledgements", error, self.room.reserve)
            self.on_full()
        raise error

    @property
    def is_congested(self) -> bool:
        return self._gathered_bytes + self._syncing_bytes > UNSYNCED_BYTES_MAX

    # --- batches ---

    def commit(self) -> int:
        self.counts.end_turn()
        if not self._is_touched or self.failure is not None:
            return 0
        number = self._open_batch if self._is_waited_for else 0
        if not self._is_syncing:
            self._write()
        return number

    def _write(self) -> None:
        """Close the batch that was gathered and sync it, now or soon."""
        try:
            token = self.store.commit()
            if token is None and self._is_waited_for:
                token = self.store.unsynced()  # a step of housekeeping has committed it already
        except StoreFull as error:
            self.note_full(error)
            return
        except StoreError as error:
            self.fail(error)
            return
        self._is_full = self._is_touched = False
        self._closed_batch = self._open_batch
        self._open_batch += 1
        is_waited_for, self._is_waited_for = self._is_waited_for, False
        if token is None:
            self._gathered_bytes = 0
            self.on_synced(self._closed_batch)
        elif is_waited_for or token.is_urgent:
            self._sync(token)
        else:
            self._later()

    def _sync(self, token: CommitToken) -> None:
        self._is_syncing = True
        self._syncing_bytes, self._gathered_bytes = self._gathered_bytes, 0
        self._start_sync(token)

    def _later(self) -> None:
        if not self._is_timer_set:
            self._is_timer_set = True
            self._call_later(self._on_timer)

    def _on_timer(self) -> None:
        self._is_timer_set = False
        if self._is_syncing or self.failure is not None:
            return
        if self._is_touched:
            self._write()
            return
        token = self.store.unsynced()
        if token is not None:
            self._sync(token)

    def sync_done(self, token: CommitToken, error: StoreError | None) -> None:
        """The sync that was started has ended. Called on the owner's thread."""
        was_congested = self.is_congested
        self._is_syncing = False
        self._syncing_bytes = 0
        if error is not None:
            self.fail(error)
            return
        self.store.synced(token)
        self.on_synced(self._closed_batch)
        if self._is_touched:
            if self._is_waited_for:
                self._write()
            else:
                self._later()
        if was_congested and not self.is_congested:
            self.on_congested(False)

    def note_full(self, error: StoreFull) -> None:
        """There is no room on the disk: what was gathered is written as soon as there is."""
        if not self._is_full:
            self._is_full = True
            _log.error("%s", error)
            self.on_full()
        self._is_touched = True
        self._later()

    @property
    def is_full(self) -> bool:
        """Whether the last commit found no room on the disk, or publishes would take the last of it."""
        self.room.look()
        return self._is_full or self.room.is_short

    def fail(self, error: StoreError) -> None:
        """The store takes nothing more."""
        self.failure = error
        self._on_failed(error)

    def note_delivered(self, queue: QueueStorage, seq: int) -> None:
        """Let the store know, before a clean stop, that messages up to ``seq`` have been delivered once."""
        if isinstance(queue, DurableQueueStorage):
            while queue.queue.mark <= seq and queue.queue.fetch(512):
                pass
