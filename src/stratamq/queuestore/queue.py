"""One queue: sequence numbers in segments, a cursor, and what was delivered.

A message is ready, unacknowledged or gone. Ready ones are fetched in the order of their numbers; one that is requeued
stands at its old place again. Everything below ``mark`` was delivered at least once, which is all that `Delivery`'s
redelivered flag needs. Memory is one byte a message in the segments that still hold some, plus the recent messages
(`queuestore.segment`); what is older is read back from the disk.

Nothing here writes: changes that must survive are noted in the `Shared` state and journaled by the store's commit.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from stratamq.errors import CorruptionError, OffsetOutOfRange, StoreError
from stratamq.formats.queue_journal import encode_purge, to_runs
from stratamq.formats.queue_segment import Entry
from stratamq.queuestore.index_files import IndexFiles
from stratamq.queuestore.message_store import MessageStore
from stratamq.queuestore.segment import BODY_HERE, IN_PERSISTENT, IN_TRANSIENT, SURVIVES, Segment
from stratamq.queuestore.types import GONE, READY, UNACKED, Delivery, QueueCounts

IDLE_STATES_MAX: Final = 1024
"""An empty segment that is still filled is begun anew when it remembers more entries than this."""
RECENT_COST: Final = 64
"""Memory that a recent entry is counted with, besides its body."""
_PURGED: Final = bytes([GONE if state == READY else state for state in range(256)])
_logger = logging.getLogger(__name__)


class Shared:
    """What the queues of one store share with it."""

    __slots__ = ("acked", "batch", "deleted", "dirty", "dropping", "entry_count", "index", "marked", "parts",
                 "persistent", "recent_bytes", "recent_queues", "transient")  # fmt: skip

    def __init__(
        self, *, entry_count: int, index: IndexFiles, persistent: MessageStore, transient: MessageStore
    ) -> None:
        self.entry_count = entry_count
        self.index = index
        self.persistent = persistent
        self.transient = transient
        self.batch = 1
        """Number of the frame that the next commit writes."""
        self.parts: list[bytes] = []
        """Journal records of that frame."""
        self.acked: dict[int, list[int]] = {}
        """Acknowledged numbers by queue id, for that frame."""
        self.marked: dict[int, Queue] = {}
        """Queues whose mark moved."""
        self.dirty: OrderedDict[int, Queue] = OrderedDict()
        """Queues with journaled changes that the manifest lacks, by the age of the oldest."""
        self.recent_queues: dict[int, Queue] = {}
        """Queues with recent entries."""
        self.dropping: dict[int, Queue] = {}
        """Queues with segment files that hold no message any more."""
        self.deleted: dict[int, int] = {}
        """Deleted queues whose files are still there, and the batch that deleted them."""
        self.recent_bytes = 0


class Queue:
    """One queue of a store. Made by `QueueStore.declare_queue`. Not thread-safe."""

    __slots__ = ("_order", "_shared", "_tail", "bytes", "cursor", "damaged", "deleted", "dirty_batch", "dropped",
                 "durable", "id", "mark", "name", "next_seq", "ready", "segments", "stamp", "unacked")  # fmt: skip

    def __init__(self, shared: Shared, queue_id: int, name: str, durable: bool) -> None:
        self.id = queue_id
        self.name = name
        self.durable = durable
        self.next_seq = 0
        self.mark = 0
        self.cursor = 0
        self.ready = 0
        self.unacked = 0
        self.bytes = 0
        self.damaged = 0
        """Messages that could not be read; they stay unacknowledged and are tried again after a restart."""
        self.deleted = False
        self.dirty_batch = -1
        self.stamp = 0
        """Newest batch whose changes the manifest holds for this queue."""
        self.segments: dict[int, Segment] = {}
        self.dropped: list[Segment] = []
        """Segments without a message whose files are still there."""
        self._shared = shared
        self._order: list[int] = []
        self._tail: Segment | None = None

    # --- for clients ------------------------------------------------------------------------------------------

    def counts(self) -> QueueCounts:
        """How much the queue holds."""
        return QueueCounts(self.ready, self.unacked, self.bytes)

    def fetch(self, limit: int) -> list[Delivery]:
        """Take up to ``limit`` ready messages in order; they are unacknowledged from now on.

        A damaged message is passed over, logged and counted in ``damaged``. Raises OSError. Cost: about 2 us a message.
        """
        taken: list[Delivery] = []
        entry_count = self._shared.entry_count
        while limit > 0 and self.ready:
            segment = self._segment_from(self.cursor)
            at = segment.states.find(READY, max(0, self.cursor - segment.first))
            if at < 0:
                self.cursor = (segment.number + 1) * entry_count
                continue
            seq = segment.first + at
            try:
                delivery = self._deliver(segment, seq)
            except StoreError as error:
                self.damaged += 1
                _logger.error("queue %r: message %d is held back: %s", self.name, seq, error)
            else:
                taken.append(delivery)
                limit -= 1
            segment.states[at] = UNACKED
            self.ready -= 1
            self.unacked += 1
            self.cursor = seq + 1
        return taken

    def _deliver(self, segment: Segment, seq: int) -> Delivery:
        if seq >= segment.flushed:
            row = seq - segment.flushed
            content = segment.contents[row]
            expiry, priority = segment.expiries[row], segment.priorities[row]
            if type(content) is not bytes:
                content = self._store_of(segment.kinds[row]).read(content)  # type: ignore[arg-type]
        else:
            entry = self._shared.index.entry(self.id, segment, seq)
            expiry, priority = entry.expiry_ms, entry.priority
            content = self._body(segment, entry)
        redelivered = seq < self.mark
        if not redelivered:
            self.mark = seq + 1
            if self.durable:
                self._shared.marked[self.id] = self
                self.note_dirty()
        return Delivery(seq, content, redelivered, expiry, priority)

    def read(self, seq: int) -> bytes:
        """The content of a message that is ready or unacknowledged.

        Raises OffsetOutOfRange (gone or never there), CorruptionError, OSError.
        """
        segment = self._segment_of(seq)
        if seq < segment.flushed:
            return self._body(segment, self._shared.index.entry(self.id, segment, seq))
        row = seq - segment.flushed
        content = segment.contents[row]
        if type(content) is bytes:
            return content
        return self._store_of(segment.kinds[row]).read(content)  # type: ignore[arg-type]

    def head(self) -> Entry | None:
        """What the index says of the message that `fetch` would take next; None when none is ready.

        Reads no body: meant for expiry at the head. ``Entry.locator`` is the sequence number here.
        """
        while self.ready:
            segment = self._segment_from(self.cursor)
            at = segment.states.find(READY, max(0, self.cursor - segment.first))
            if at >= 0:
                self.cursor = segment.first + at
                return self.entry(self.cursor)._replace(locator=self.cursor)
            self.cursor = (segment.number + 1) * self._shared.entry_count
        return None

    def entry(self, seq: int) -> Entry:
        """Kind, priority, size and expiry of a message. Raises OffsetOutOfRange, CorruptionError, OSError."""
        segment = self._segment_of(seq)
        if seq < segment.flushed:
            return self._shared.index.entry(self.id, segment, seq)
        row = seq - segment.flushed
        locator = segment.contents[row]
        return Entry(
            segment.kinds[row],
            segment.priorities[row],
            segment.sizes[row],
            0,
            locator if isinstance(locator, int) else 0,
            segment.expiries[row],
        )

    def ack(self, seqs: Iterable[int]) -> int:
        """Messages are done with, ready ones too. Unknown numbers are passed over. Returns how many were dropped.

        Durable with the next commit's sync. Cost: about 1 us a message.
        """
        dropped = 0
        segments = self.segments
        entry_count = self._shared.entry_count
        for seq in seqs:
            segment = segments.get(seq // entry_count)
            at = -1 if segment is None else seq - segment.first
            if segment is None or not 0 <= at < len(segment.states) or segment.states[at] == GONE:
                continue
            if segment.states[at] == READY:
                self.ready -= 1
            else:
                self.unacked -= 1
            segment.states[at] = GONE
            self._let_go(segment, seq)
            dropped += 1
        return dropped

    def requeue(self, seqs: Iterable[int]) -> int:
        """Unacknowledged messages are ready again, at their old places. Returns how many. Reads no bodies."""
        count = 0
        for seq in seqs:
            segment = self.segments.get(seq // self._shared.entry_count)
            at = -1 if segment is None else seq - segment.first
            if segment is None or not 0 <= at < len(segment.states) or segment.states[at] != UNACKED:
                continue
            segment.states[at] = READY
            if seq < self.cursor:
                self.cursor = seq
            count += 1
        self.ready += count
        self.unacked -= count
        return count

    def purge(self) -> int:
        """Drop all ready messages; returns how many. Unacknowledged ones stay."""
        purged = self.ready
        if not purged:
            return 0
        shared = self._shared
        if self.durable:
            kept = to_runs(self._numbers(UNACKED))
            shared.parts.append(encode_purge(self.id, self.next_seq, kept))
            self.note_dirty()
        for segment in list(self.segments.values()):
            self._purge_segment(segment)
        self.ready = 0
        self.cursor = self.next_seq
        self.bytes = sum([segment.live_bytes for segment in self.segments.values()])
        return purged

    # --- for the store ----------------------------------------------------------------------------------------

    def append(self, kind: int, content: bytes | int, size: int, expiry_ms: int, priority: int) -> int:
        """Add a message whose body (or id in a message store) is given; returns its number."""
        seq = self.next_seq
        segment = self._tail
        if segment is None or seq // self._shared.entry_count != segment.number:
            segment = self._begin_segment(seq)
        segment.states.append(READY)
        segment.live += 1
        segment.live_bytes += size
        segment.dirty = True
        segment.contents.append(content)
        segment.sizes.append(size)
        segment.expiries.append(expiry_ms)
        segment.priorities.append(priority)
        segment.kinds.append(kind)
        self.next_seq = seq + 1
        self.ready += 1
        self.bytes += size
        shared = self._shared
        shared.recent_bytes += size + RECENT_COST if kind & BODY_HERE else RECENT_COST
        shared.recent_queues[self.id] = self
        if kind & SURVIVES and self.dirty_batch < 0:
            self.note_dirty()
        return seq

    def skip_to(self, seq: int) -> None:
        """Sequence numbers below ``seq`` are not used any more (recovery: they belonged to messages that are gone)."""
        segment = self._tail
        entry_count = self._shared.entry_count
        if segment is not None and seq // entry_count == segment.number:
            missing = seq - segment.end
            segment.states.extend(bytes([GONE]) * missing)
            segment.contents.extend([None] * missing)
            segment.sizes.extend([0] * missing)
            segment.expiries.extend([0] * missing)
            segment.priorities.extend(bytes(missing))
            segment.kinds.extend(bytes(missing))
            self._shared.recent_bytes += RECENT_COST * missing
            self._shared.recent_queues[self.id] = self
        elif segment is not None:
            self._tail = None
            if not segment.live:
                self._drop(segment)
        self.next_seq = seq

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Take segments that recovery found, in ascending order."""
        for segment in segments:
            self.segments[segment.number] = segment
            self._order.append(segment.number)
            self.ready += segment.live
            self.bytes += segment.live_bytes
            self._tail = segment if segment.end == self.next_seq else None

    def stored_ids(self, segment: Segment) -> Iterator[tuple[int, int]]:
        """Kind and id of each live entry of a segment whose body is in a message store."""
        if segment.stored:
            for seq in range(segment.first, segment.flushed):
                if segment.states[seq - segment.first] != GONE:
                    entry = self._entry_or_gap(segment, seq)
                    if entry.kind & (IN_PERSISTENT | IN_TRANSIENT):
                        yield entry.kind, entry.locator
        for kind, content in zip(segment.kinds, segment.contents, strict=True):
            if type(content) is int:
                yield kind, content

    def numbers_between(self, lo: int, hi: int) -> Iterator[int]:
        """Numbers of the messages in [lo, hi) that are there."""
        for number in list(self._order):
            segment = self.segments[number]
            for seq in range(max(lo, segment.first), min(hi, segment.end)):
                if segment.states[seq - segment.first] != GONE:
                    yield seq

    def release_all(self) -> None:
        """Give back every reference to a message store; for a queue that is deleted."""
        for segment in list(self.segments.values()):
            for kind, message_id in self.stored_ids(segment):
                self._store_of(kind).release(message_id, self._shared.batch)
            self._shared.recent_bytes -= sum([len(c) for c in segment.contents if type(c) is bytes])
            self._shared.recent_bytes -= RECENT_COST * len(segment.contents)
            self._shared.index.forget(self.id, segment)
        self.segments.clear()
        self._order.clear()
        self._tail = None
        self.ready = self.unacked = self.bytes = 0
        self.deleted = True

    def note_dirty(self) -> None:
        """Something changed that the manifest does not know."""
        if self.dirty_batch < 0 and self.durable:
            self.dirty_batch = self._shared.batch
            self._shared.dirty[self.id] = self

    def _numbers(self, state: int) -> Iterator[int]:
        for segment in self.segments.values():
            at = segment.states.find(state)
            while at >= 0:
                yield segment.first + at
                at = segment.states.find(state, at + 1)

    def _store_of(self, kind: int) -> MessageStore:
        return self._shared.persistent if kind & IN_PERSISTENT else self._shared.transient

    def _entry_or_gap(self, segment: Segment, seq: int) -> Entry:
        """What the index says of an entry; where it is damaged, an entry without a body that survives restarts."""
        try:
            return self._shared.index.entry(self.id, segment, seq)
        except CorruptionError as error:
            _logger.error("queue %r: the entry of message %d is damaged: %s", self.name, seq, error)
            return Entry(SURVIVES, 0, 0, 0, 0, 0)

    def _body(self, segment: Segment, entry: Entry) -> bytes:
        if entry.kind & BODY_HERE:
            return self._shared.index.body(self.id, segment, entry)
        return self._store_of(entry.kind).read(entry.locator)

    def _segment_of(self, seq: int) -> Segment:
        segment = self.segments.get(seq // self._shared.entry_count)
        at = -1 if segment is None else seq - segment.first
        if segment is None or not 0 <= at < len(segment.states) or segment.states[at] == GONE:
            raise OffsetOutOfRange(seq, 0, self.next_seq, where=f"queue {self.name}")
        return segment

    def _segment_from(self, seq: int) -> Segment:
        number = seq // self._shared.entry_count
        segment = self.segments.get(number)
        if segment is None:
            segment = self.segments[self._order[bisect_right(self._order, number)]]
        return segment

    def _begin_segment(self, seq: int) -> Segment:
        number = seq // self._shared.entry_count
        old = self._tail
        segment = self._tail = Segment(number, seq)
        if old is not None and not old.live:
            self._drop(old)
        self.segments[number] = segment
        self._order.append(number)
        return segment

    def _let_go(self, segment: Segment, seq: int) -> None:
        """A message became GONE: count, journal, and give its body back."""
        shared = self._shared
        if seq >= segment.flushed:
            row = seq - segment.flushed
            kind, size, content = segment.kinds[row], segment.sizes[row], segment.contents[row]
            segment.contents[row] = None
            if type(content) is bytes:
                shared.recent_bytes -= size
        else:
            entry = self._entry_or_gap(segment, seq)
            kind, size, content = entry.kind, entry.size, entry.locator
        if kind & IN_PERSISTENT:
            shared.persistent.release(content, shared.batch)  # type: ignore[arg-type]
        elif kind & IN_TRANSIENT:
            shared.transient.release(content, 0)  # type: ignore[arg-type]
        self.bytes -= size
        segment.dirty = True
        if kind & SURVIVES:
            acked = shared.acked.get(self.id)
            if acked is None:
                shared.acked[self.id] = [seq]
            else:
                acked.append(seq)
            if self.dirty_batch < 0:
                self.note_dirty()
        segment.live -= 1
        segment.live_bytes -= size
        if not segment.live:
            self._emptied(segment)

    def _purge_segment(self, segment: Segment) -> None:
        shared = self._shared
        states = segment.states
        if segment.stored:
            at = states.find(READY)
            while at >= 0 and segment.first + at < segment.flushed:
                entry = self._entry_or_gap(segment, segment.first + at)
                if entry.kind & (IN_PERSISTENT | IN_TRANSIENT):
                    self._store_of(entry.kind).release(entry.locator, shared.batch)
                at = states.find(READY, at + 1)
        skipped = segment.flushed - segment.first
        for row, content in enumerate(segment.contents):
            if content is None or states[skipped + row] != READY:
                continue
            segment.contents[row] = None
            if type(content) is int:
                self._store_of(segment.kinds[row]).release(content, shared.batch)
            else:
                shared.recent_bytes -= segment.sizes[row]
        segment.states = states.translate(_PURGED)
        segment.live = segment.states.count(UNACKED)
        kept = (
            [segment.first + at for at, state in enumerate(segment.states) if state == UNACKED] if segment.live else []
        )
        segment.live_bytes = sum([self.entry(seq).size for seq in kept])
        segment.dirty = True
        if not segment.live:
            self._emptied(segment)

    def _emptied(self, segment: Segment) -> None:
        """The last message of a segment is gone: drop it, unless it is still being filled and small."""
        if segment is self._tail:
            is_small = segment.flushed == segment.first and len(segment.states) <= IDLE_STATES_MAX
            if is_small and len(segment.states) < self._shared.entry_count - self._tail_rest(segment):
                return
            self._tail = None
        self._drop(segment)

    def drop_idle(self, segment: Segment) -> None:
        """Forget a segment that holds no message, though it is still being filled."""
        if segment is self._tail:
            self._tail = None
        self._drop(segment)

    def _tail_rest(self, segment: Segment) -> int:
        """Entries of a segment's number range that lie before its first."""
        return segment.first - segment.number * self._shared.entry_count

    def _drop(self, segment: Segment) -> None:
        if self.segments.get(segment.number) is segment:
            del self.segments[segment.number]
            del self._order[bisect_left(self._order, segment.number)]
        self._shared.recent_bytes -= RECENT_COST * len(segment.contents)
        segment.contents.clear()
        if segment.file_bytes:
            self.dropped.append(segment)
            self._shared.dropping[self.id] = self
        self._shared.index.forget(self.id, segment)
