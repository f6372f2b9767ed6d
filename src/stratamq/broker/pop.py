"""Pop consumption: the broker decides who gets which message, and gives it to another when it is not acknowledged.

What is popped is not seen by others for its invisible time. It lies in a check-point: in memory, and before the answer
leaves as a record of the revive topic. An ack takes a message out of its check-point, and is answered when its record
is stored. When the time is over, what is left goes to the group's retry topic for the popped topic, with one more
reconsume time, or to its dead letters; an ack record then says that it is dealt with.

The group's committed offset moves when a check-point is stored. After a restart open check-points are read back from
the revive topic, from the oldest that was still open (a committed offset of group ``CID_RMQ_SYS_REVIVE_GROUP``), so
nothing begins anew. After a kill a message may come twice, never not at all.

Nothing here reads a clock or waits: `run_due` does what is due. Check-points in memory are bounded by
`BrokerConfig.pop_checkpoints_max`.

Source: apache/rocketmq broker/.../PopMessageProcessor.java, PopReviveService.java, AckMessageProcessor.java.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from stratamq.broker.groups import GroupTable
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.pop_records import (
    RETRY_PREFIX,
    Key,
    StoredCheckpoint,
    ack_message,
    checkpoint_message,
    pop_retry_topic,
    read_record,
    revive_topic,
)
from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.broker.retry import dead_letter_topic, retry_copy
from stratamq.broker.topics import TopicTable
from stratamq.config import BrokerConfig
from stratamq.errors import CorruptionError, FlowControlled, ReadPending, ServiceUnavailable, StrataError
from stratamq.formats.message import Record, decode_record
from stratamq.logstore.types import GetResult, GetStatus, Message, PutResult, PutStatus

_log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_QUEUE: Final = 0
LOAD_BATCH: Final = 256
"""Records read back in one step at start."""
RESET_START: Final = -1
"""First offset in an ack that is none: it says that an operator has set the group's offset."""
HEAP_SLACK: Final = 1_000
"""Ends of check-points that are over may stay in the heap, up to this many more than are open."""
LOAD_STEPS: Final = 8
"""Steps of reading back that a request waits for before it is refused."""
PROGRESS_MS: Final = 1_000
"""How soon after an ack the position in the revive topic is committed."""
REVIVE_BATCH: Final = 32
"""Check-points whose time is over that are dealt with in one step."""
RETRY_PAUSE_MS: Final = 1_000
_STORED: Final = frozenset(
    {PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE}
)
_AT_END: Final = frozenset(
    {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE}
)
Done = Callable[[str], None]
"""Called once with an empty text, or with why something was not stored."""


@dataclass(slots=True, eq=False)
class _Checkpoint:
    key: Key
    left: set[int]
    """Offsets that nobody has acknowledged."""
    due_ms: int
    record_offset: int = -1
    pending: int = 0
    """Acks that are being stored."""
    is_reviving: bool = False


@dataclass(frozen=True, slots=True)
class Popped:
    """What was taken out of one queue: the records, their offsets, and where reading goes on."""

    topic: str
    queue_id: int
    offsets: tuple[int, ...]
    result: GetResult


class Pop:
    """All that is popped and not acknowledged, in check-points, of one broker."""

    def __init__(
        self,
        store: StoreSurface,
        committer: CommitterSurface,
        *,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        config: BrokerConfig,
        host: bytes,
    ) -> None:
        self._store, self._committer = store, committer
        self._offsets, self._topics, self._groups = offsets, topics, groups
        self._host = host
        self.config = config
        self.topic = revive_topic(config.cluster_name)
        self._open: dict[Key, _Checkpoint] = {}
        self._set_back: set[tuple[str, str, int]] = set()
        """Where reading back found that an operator had set an offset."""
        self._places: dict[tuple[str, str, int], int] = {}
        """Open check-points by group, topic and queue."""
        self._due: list[tuple[int, int, _Checkpoint]] = []
        self._number = 0
        self._records: OrderedDict[int, None] = OrderedDict()
        """Record offsets of open check-points, oldest first."""
        self._positions: dict[tuple[str, str, int], int] = {}
        self._load_at: int | None = offsets.find(GROUP, self.topic, REVIVE_QUEUE) or 0
        self._end = self._load_at
        self._progress_due_ms: int | None = None

    # --- state ---

    @property
    def open_count(self) -> int:
        """Check-points with messages that nobody has acknowledged."""
        return len(self._open)

    def holds(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a group holds messages of a queue."""
        return (group, topic, queue_id) in self._places

    def check_loaded(self) -> None:
        """Refuse while check-points are still read back. Raises ServiceUnavailable."""
        for _ in range(LOAD_STEPS):
            if self._load_at is None:
                return
            self._load()
        if self._load_at is not None:
            raise ServiceUnavailable("check-points of earlier pops are still being read")

    def check_ready(self) -> None:
        """Refuse while check-points are still read back, or when too many are open.

        Raises ServiceUnavailable, FlowControlled.
        """
        self.check_loaded()
        if len(self._open) >= self.config.pop_checkpoints_max:
            raise FlowControlled(
                f"{len(self._open)} check-points of popped messages are open (pop_checkpoints_max); acknowledge some"
            )

    # --- popping ---

    def position(self, group: str, topic: str, queue_id: int, *, from_end: bool) -> int:
        """Where the next pop of a group reads a queue. ``from_end`` is for a group that was never here."""
        place = (group, topic, queue_id)
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._positions[place] = reset
            # Check-points before this must not move the group on again after a restart.
            mark = Key(group, topic, queue_id, RESET_START, 0)
            name = self.config.broker_name
            message = ack_message(self.topic, mark, [reset], broker_name=name, host=self._host, now_ms=0)
            self._committer.put((message,), lambda result: None)
        found = self._positions.get(place)
        if found is None:
            found = self._offsets.find(group, topic, queue_id)
            if found is None:
                end = from_end and not topic.startswith(RETRY_PREFIX)
                found = (self._store.max_offset if end else self._store.min_offset)(topic, queue_id)
            self._positions[place] = found
        return found

    def move(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The next pop of a group reads a queue from here: what lies before was looked at."""
        self._positions[group, topic, queue_id] = offset

    def store_checkpoints(
        self, group: str, popped: Sequence[Popped], *, pop_ms: int, invisible_ms: int, done: Done
    ) -> None:
        """Make check-points of what was popped; ``done`` is called when they are stored, or could not be.

        What could not be stored can be popped again at once.
        """
        made = []
        for taken in popped:
            key = Key(group, taken.topic, taken.queue_id, taken.offsets[0], pop_ms)
            made.append(_Checkpoint(key, set(taken.offsets), pop_ms + invisible_ms))
        messages = [self._checkpoint_message(one.key, sorted(one.left), invisible_ms, pop_ms) for one in made]
        for one in made:
            self._add(one)
        try:
            self._committer.put(tuple(messages), partial(self._stored, made, popped, done))
        except (StrataError, OSError) as error:
            self._stored(made, popped, done, PutResult(PutStatus.UNKNOWN_ERROR, (), str(error)))

    def _checkpoint_message(self, key: Key, offsets: Sequence[int], invisible_ms: int, now_ms: int) -> Message:
        name = self.config.broker_name
        return checkpoint_message(
            self.topic, key, offsets, invisible_ms, broker_name=name, host=self._host, now_ms=now_ms
        )

    def _stored(self, made: list[_Checkpoint], popped: Sequence[Popped], done: Done, result: PutResult) -> None:
        if result.status not in _STORED or len(result.appended) != len(made):
            for one, taken in zip(made, popped, strict=True):
                self._forget(one)
                place = (one.key.group, taken.topic, taken.queue_id)
                if self._positions.get(place, -1) >= taken.offsets[0]:
                    self._positions[place] = taken.offsets[0]
            done(result.remark or result.status.value)
            return
        for one, taken, appended in zip(made, popped, result.appended, strict=True):
            self._note_record(one, appended.queue_offset)
            group, topic, queue_id = one.key[:3]
            end = taken.result.next_offset
            # An earlier pop may have failed and be read again: what it holds is not behind the group yet.
            end = min(end, self._positions.get((group, topic, queue_id), end))
            self._offsets.commit(group, topic, queue_id, end)
        done("")

    def _note_record(self, one: _Checkpoint, offset: int) -> None:
        one.record_offset = offset
        self._end = max(self._end, offset + 1)
        if self._open.get(one.key) is one:
            self._records[offset] = None

    def _add(self, one: _Checkpoint) -> None:
        self._open[one.key] = one
        place = one.key[:3]
        self._places[place] = self._places.get(place, 0) + 1
        if len(self._due) > 2 * len(self._open) + HEAP_SLACK:
            self._due = [item for item in self._due if self._open.get(item[2].key) is item[2]]
            heapify(self._due)
        self._number += 1
        heappush(self._due, (one.due_ms, self._number, one))

    def _forget(self, one: _Checkpoint) -> None:
        if self._open.get(one.key) is one:
            del self._open[one.key]
            place = one.key[:3]
            self._places[place] -= 1
            if not self._places[place]:
                del self._places[place]
        self._records.pop(one.record_offset, None)

    # --- acks ---

    def ack(self, key: Key, offsets: Sequence[int], *, now_ms: int, done: Done) -> None:
        """These were consumed; ``done`` is called when that is stored. What is not open any more is no error."""
        one = self._open.get(key)
        mine = [offset for offset in offsets if one is not None and offset in one.left]
        if one is None or not mine or one.is_reviving:
            done("")
            return
        one.left.difference_update(mine)
        one.pending += 1
        self._progress_due_ms = self._progress_due_ms or now_ms + PROGRESS_MS
        message = ack_message(
            self.topic, key, mine, broker_name=self.config.broker_name, host=self._host, now_ms=now_ms
        )
        self._committer.put((message,), partial(self._acked, one, mine, done))

    def _acked(self, one: _Checkpoint, offsets: list[int], done: Done, result: PutResult) -> None:
        one.pending -= 1
        if result.status not in _STORED:
            one.left.update(offsets)
            done(result.remark or result.status.value)
            return
        self._end = max(self._end, result.appended[0].queue_offset + 1)
        if not one.left and not one.pending:
            self._forget(one)
        done("")

    def free_pop_ms(self, key: Key, offset: int, now_ms: int) -> int:
        """The pop time for a check-point of one message of an earlier one: now, or the next that names no other."""
        while key._replace(start=offset, pop_ms=now_ms) in self._open:
            now_ms += 1
        return now_ms

    def change(self, key: Key, offset: int, *, pop_ms: int, invisible_ms: int, done: Done) -> None:
        """Give one message another invisible time from ``pop_ms`` on; it gets a check-point of its own.

        ``pop_ms`` is from `free_pop_ms`. ``done`` is called when that is stored. A message that is not open any more
        is no error.
        """
        now_ms = pop_ms
        one = self._open.get(key)
        if one is None or offset not in one.left or one.is_reviving:
            done("")
            return
        new = _Checkpoint(key._replace(start=offset, pop_ms=pop_ms), {offset}, pop_ms + invisible_ms)
        one.left.discard(offset)
        one.pending += 1
        self._add(new)
        messages = (
            self._checkpoint_message(new.key, [offset], invisible_ms, now_ms),
            ack_message(self.topic, key, [offset], broker_name=self.config.broker_name, host=self._host, now_ms=now_ms),
        )

        def stored(result: PutResult) -> None:
            one.pending -= 1
            if result.status not in _STORED:
                self._forget(new)
                one.left.add(offset)
                done(result.remark or result.status.value)
                return
            self._note_record(new, result.appended[0].queue_offset)
            self._end = max(self._end, result.appended[-1].queue_offset + 1)
            if not one.left and not one.pending:
                self._forget(one)
            done("")

        self._committer.put(messages, stored)

    # --- what is due ---

    def next_due_ms(self) -> int | None:
        """When to call `run_due` next; 0 while there is something to read back."""
        if self._load_at is not None:
            return 0
        due = self._next_end()
        times = [time for time in (due, self._progress_due_ms) if time is not None]
        return min(times, default=None)

    def _next_end(self) -> int | None:
        """When the next check-point's time is over."""
        while self._due and self._open.get(self._due[0][2].key) is not self._due[0][2]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def run_due(self, now_ms: int) -> None:
        """Read back, or give back, a bounded part of what is due."""
        if self._load_at is not None:
            self._load()
            return
        for _ in range(REVIVE_BATCH):
            due = self._next_end()
            if due is None or due > now_ms:
                break
            _, _, one = heappop(self._due)
            if one.pending or one.is_reviving:
                self._postpone(one, now_ms)
            else:
                try:
                    self._revive(one, now_ms)
                except (StrataError, OSError) as error:
                    # In the cold tier (fetched now, or out of reach), or the disk fails: it stays open.
                    if not isinstance(error, ReadPending | ServiceUnavailable | FlowControlled):
                        _log.error("messages of %s cannot be given back, trying again: %s", one.key, error)
                    one.is_reviving = False
                    self._postpone(one, now_ms)
        self._progress_due_ms = None
        self._commit_progress()

    def _commit_progress(self) -> None:
        needed = next(iter(self._records), self._end)
        if self._offsets.find(GROUP, self.topic, REVIVE_QUEUE) != needed:
            self._offsets.commit(GROUP, self.topic, REVIVE_QUEUE, needed)

    def _postpone(self, one: _Checkpoint, now_ms: int) -> None:
        self._number += 1
        one.due_ms = now_ms + RETRY_PAUSE_MS
        heappush(self._due, (one.due_ms, self._number, one))

    def _revive(self, one: _Checkpoint, now_ms: int) -> None:
        """The time is over: what is left goes to the retry topic, and then an ack says so."""
        messages = [message for offset in sorted(one.left) if (message := self._retry(one.key, offset)) is not None]
        one.is_reviving = True
        if one.left:
            name = self.config.broker_name
            messages.append(
                ack_message(self.topic, one.key, sorted(one.left), broker_name=name, host=self._host, now_ms=now_ms)
            )
            self._committer.put(tuple(messages), partial(self._revived, one, now_ms))
        else:
            self._forget(one)

    def _revived(self, one: _Checkpoint, now_ms: int, result: PutResult) -> None:
        if result.status in _STORED:
            self._forget(one)
            return
        _log.warning("messages of %s were not given back, trying again: %s", one.key, result.remark)
        one.is_reviving = False
        self._postpone(one, now_ms)

    def _retry(self, key: Key, offset: int) -> Message | None:
        """The copy of a message for another try; None when the message is gone."""
        try:
            found = self._store.get(key.topic, key.queue_id, offset, 1)
            if found.status is not GetStatus.FOUND:
                return None
            record = decode_record(found.records[0])
        except CorruptionError as error:
            _log.error("message %d of %s is damaged, nobody can have it: %s", offset, key, error)
            return None
        if record.queue_offset != offset:
            return None
        group = self._groups.get(key.group)
        if record.reconsume_times >= group.retry_max_times:
            target = self._topics.ensure(dead_letter_topic(key.group), queues=1).topic_name
        elif key.topic.startswith(RETRY_PREFIX):
            target = key.topic
        else:
            target = self._retry_topic(key)
        return retry_copy(record, topic=target, queue_id=0, message_id=record.message_id)

    def _retry_topic(self, key: Key) -> str:
        topic = pop_retry_topic(key.topic, key.group, is_v2=self.config.pop_retry_v2)
        return self._topics.ensure(topic, queues=1).topic_name

    # --- reading back ---

    def _load(self) -> None:
        """Read some of the revive topic; sets `_load_at` to None at its end."""
        assert self._load_at is not None
        found = self._store.get(self.topic, REVIVE_QUEUE, self._load_at, LOAD_BATCH)
        if found.status is not GetStatus.FOUND:
            if found.status in _AT_END or found.next_offset <= self._load_at:
                self._end = max(self._end, self._load_at)
                self._end_load()
            else:
                self._load_at = found.next_offset
            return
        at = self._load_at
        for record in _records_of(found.records):
            self._take(record)
            at = record.queue_offset + 1
        self._end = at
        self._load_at = at
        if at >= found.max_offset:
            self._end_load()

    def _end_load(self) -> None:
        """Everything is read: go on where the check-points end, or the group was saved, whichever is further.

        Where an operator set an offset meanwhile, what was saved may be older than that.
        """
        self._load_at = None
        for place, offset in self._positions.items():
            if place not in self._set_back:
                self._positions[place] = max(offset, self._offsets.find(*place) or 0)

    def _take(self, record: Record) -> None:
        stored = read_record(record)
        if isinstance(stored, StoredCheckpoint):
            key = stored.key
            one = _Checkpoint(key, set(stored.offsets), key.pop_ms + stored.invisible_ms, record.queue_offset)
            if key not in self._open:
                self._add(one)
                self._records[record.queue_offset] = None
            place = (key.group, key.topic, key.queue_id)
            self._positions[place] = max(self._positions.get(place, 0), stored.offsets[-1] + 1)
        elif stored is not None and stored.key.start == RESET_START:
            self._positions[stored.key[:3]] = stored.offsets[0]
            self._set_back.add(stored.key[:3])
        elif stored is not None:
            kept = self._open.get(stored.key)
            if kept is not None:
                kept.left.difference_update(stored.offsets)
                if not kept.left:
                    self._forget(kept)
        elif record.body:
            _log.warning("record %d of %s is neither check-point nor ack", record.queue_offset, self.topic)


def _records_of(views: Sequence[memoryview]) -> list[Record]:
    found = []
    for view in views:
        at = 0
        while at < len(view):
            record = decode_record(view, at)
            found.append(record)
            at += record.size
    return found
