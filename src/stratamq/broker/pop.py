"""Pop consumption: the broker decides who gets which message, and gives it to another when it is not acknowledged.

What is popped is not seen by others for its invisible time. It lies in a check-point: in memory, and before the answer
leaves as a record of the revive topic. An ack takes a message out of its check-point, and is answered when its record
is stored. When the time is over, what is left goes to the group's retry topic for the popped topic, with one more
reconsume time, or to its dead letters; an ack record then says that it is dealt with.

The group's committed offset moves when a check-point is stored. After a restart open check-points are read back from
the revive topic (`stratamq.broker.pop_reading`), so nothing begins anew. After a kill a message may come twice, never
not at all. Check-points that RocketMQ wrote come out of the timer shortly before their time is over; until then acks
of their messages are kept.

Nothing here reads a clock or waits: `run_due` does what is due. Check-points in memory are bounded by
`BrokerConfig.pop_checkpoints_max`.

Source: apache/rocketmq broker/.../PopMessageProcessor.java, PopReviveService.java, AckMessageProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from stratamq.broker.groups import GroupTable
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.pop_reading import OWN_QUEUE, ReviveReader
from stratamq.broker.pop_records import (
    RETRY_PREFIX,
    Key,
    StoredAck,
    StoredCheckpoint,
    ack_message,
    checkpoint_message,
    is_from_timer,
    pop_retry_topic,
    read_record,
    revive_topic,
)
from stratamq.broker.pop_table import Checkpoint, CheckpointTable
from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.broker.retry import dead_letter_topic, retry_copy
from stratamq.broker.topics import TopicTable
from stratamq.config import BrokerConfig
from stratamq.errors import CorruptionError, FlowControlled, ReadPending, ServiceUnavailable, StrataError
from stratamq.formats.message import Record, decode_record
from stratamq.logstore.types import GetResult, GetStatus, Message, PutDone, PutResult, PutStatus

_log = logging.getLogger(__name__)

RESET_START: Final = -1
"""First offset in an ack that is none: it says that an operator has set the group's offset."""
LOAD_STEPS: Final = 24
"""Steps of reading back that a request waits for before it is refused."""
PROGRESS_MS: Final = 1_000
"""How soon after an ack the position in the revive topic is committed."""
LOOK_MS: Final = 1_000
"""How often to look for what another broker's timer brought."""
GRACE_MS: Final = 3_000
"""How long after its end a check-point of another broker waits: acks leave that broker's timer at the end only."""
REVIVE_BATCH: Final = 32
"""Check-points whose time is over that are dealt with in one step."""
RETRY_PAUSE_MS: Final = 1_000
_STORED: Final = frozenset(
    {PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE}
)
Done = Callable[[str], None]
"""Called once with an empty text, or with why something was not stored."""


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
        self._table = CheckpointTable()
        self._reader = ReviveReader(store, offsets, self.topic)
        self._set_back: set[tuple[str, str, int]] = set()
        """Where reading back found that an operator had set an offset."""
        self._positions: dict[tuple[str, str, int], int] = {}
        self._progress_due_ms: int | None = None
        self._look_ms = 0
        self._in_flight = 0
        """Puts with records of the revive topic that are being stored."""
        self.timed: Callable[[], int] = lambda: 0
        """How many records of another broker the timer is known to hold for the revive topic."""
        self.began_ms = 0
        """When this broker began to serve the store: what was popped before may be another broker's."""
        self.timer_ms: Callable[[], int | None] = lambda: None
        """What was due before this time has left the timer; None without one."""

    # --- state ---

    @property
    def open_count(self) -> int:
        """Check-points with messages that nobody has acknowledged."""
        return len(self._table)

    def holds(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a group holds messages of a queue."""
        return self._table.holds(group, topic, queue_id)

    def check_loaded(self) -> None:
        """Refuse while check-points are still read back. Raises ServiceUnavailable."""
        for _ in range(LOAD_STEPS):
            if not self._reader.is_loading:
                return
            self._load()
        if self._reader.is_loading:
            raise ServiceUnavailable("check-points of earlier pops are still being read")

    def check_ready(self) -> None:
        """Refuse while check-points are still read back, or when too many are open.

        Raises ServiceUnavailable, FlowControlled.
        """
        self.check_loaded()
        if len(self._table) >= self.config.pop_checkpoints_max:
            raise FlowControlled(
                f"{len(self._table)} check-points of popped messages are open (pop_checkpoints_max); acknowledge some"
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
            self._put((message,), lambda result: None)
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
            made.append(Checkpoint(key, set(taken.offsets), pop_ms + invisible_ms))
        messages = [self._checkpoint_message(one.key, sorted(one.left), invisible_ms, pop_ms) for one in made]
        for one in made:
            self._table.add(one)
        try:
            self._put(tuple(messages), partial(self._stored, made, popped, done))
        except (StrataError, OSError) as error:
            self._stored(made, popped, done, PutResult(PutStatus.UNKNOWN_ERROR, (), str(error)))

    def _put(self, messages: tuple[Message, ...], done: PutDone) -> None:
        """Store messages, records of the revive topic among them."""
        self._in_flight += 1
        try:
            self._committer.put(messages, partial(self._landed, messages, done))
        except BaseException:
            self._in_flight -= 1
            raise

    def _landed(self, messages: tuple[Message, ...], done: PutDone, result: PutResult) -> None:
        self._in_flight -= 1
        for message, appended in zip(messages, result.appended, strict=False):
            if message.topic == self.topic:
                self._reader.landed(appended.queue_offset)
        done(result)

    def _checkpoint_message(self, key: Key, offsets: Sequence[int], invisible_ms: int, now_ms: int) -> Message:
        name = self.config.broker_name
        return checkpoint_message(
            self.topic, key, offsets, invisible_ms, broker_name=name, host=self._host, now_ms=now_ms
        )

    def _stored(self, made: list[Checkpoint], popped: Sequence[Popped], done: Done, result: PutResult) -> None:
        if result.status not in _STORED or len(result.appended) != len(made):
            for one, taken in zip(made, popped, strict=True):
                self._table.forget(one)
                place = (one.key.group, taken.topic, taken.queue_id)
                if self._positions.get(place, -1) >= taken.offsets[0]:
                    self._positions[place] = taken.offsets[0]
            done(result.remark or result.status.value)
            return
        for one, taken, appended in zip(made, popped, result.appended, strict=True):
            self._table.note(one, OWN_QUEUE, appended.queue_offset)
            group, topic, queue_id = one.key[:3]
            end = taken.result.next_offset
            # An earlier pop may have failed and be read again: what it holds is not behind the group yet.
            end = min(end, self._positions.get((group, topic, queue_id), end))
            self._offsets.commit(group, topic, queue_id, end)
        done("")

    # --- acks ---

    def ack(self, key: Key, offsets: Sequence[int], *, now_ms: int, end_ms: int = 0, done: Done) -> None:
        """These were consumed; ``done`` is called when that is stored. What is not open any more is no error.

        ``end_ms`` is when the client believes that their time is over.
        """
        one = self._table.get(key)
        if one is None and self._is_ahead(key, end_ms, now_ms):
            one = Checkpoint(key, set(), end_ms + 2 * GRACE_MS, ahead=set())
            self._table.add(one)
        if one is None or one.is_reviving:
            done("")
            return
        mine = [
            offset for offset in offsets if (one.ahead is not None and offset not in one.ahead) or offset in one.left
        ]
        if not mine:
            done("")
            return
        one.left.difference_update(mine)
        if one.ahead is not None:
            one.ahead.update(mine)
        one.pending += 1
        self._progress_due_ms = self._progress_due_ms or now_ms + PROGRESS_MS
        until = end_ms if one.ahead is not None else 0
        self._put((self._ack_message(key, mine, now_ms, until),), partial(self._acked, one, mine, done))

    def _is_ahead(self, key: Key, end_ms: int, now_ms: int) -> bool:
        """Whether a check-point that is not known may still come out of a timer. Raises FlowControlled.

        The timer's counts alone do not say: a broker that was killed has not saved them, and what the timer has just
        delivered is counted no more and not read yet.
        """
        may_be_another_brokers = key.pop_ms < self.began_ms and self.timer_ms() is not None
        if end_ms + GRACE_MS <= now_ms or not (may_be_another_brokers or self.timed()):
            return False
        if len(self._table) >= self.config.pop_checkpoints_max:
            raise FlowControlled(f"{len(self._table)} check-points of popped messages are open (pop_checkpoints_max)")
        return True

    def _ack_message(self, key: Key, offsets: Sequence[int], now_ms: int, end_ms: int = 0) -> Message:
        name = self.config.broker_name
        return ack_message(self.topic, key, offsets, broker_name=name, host=self._host, now_ms=now_ms, end_ms=end_ms)

    def _acked(self, one: Checkpoint, offsets: list[int], done: Done, result: PutResult) -> None:
        one.pending -= 1
        if result.status not in _STORED:
            if one.ahead is not None:
                one.ahead.difference_update(offsets)
            else:
                one.left.update(offsets)
            done(result.remark or result.status.value)
            return
        if one.ahead is not None:
            self._table.note(one, OWN_QUEUE, result.appended[0].queue_offset)
        self._forget_if_done(one)
        done("")

    def _forget_if_done(self, one: Checkpoint) -> None:
        if not one.left and not one.pending and one.ahead is None:
            self._table.forget(one)

    def free_pop_ms(self, key: Key, offset: int, now_ms: int) -> int:
        """The pop time for a check-point of one message of an earlier one: now, or the next that names no other."""
        while key._replace(start=offset, pop_ms=now_ms) in self._table:
            now_ms += 1
        return now_ms

    def change(self, key: Key, offset: int, *, pop_ms: int, invisible_ms: int, done: Done) -> None:
        """Give one message another invisible time from ``pop_ms`` on; it gets a check-point of its own.

        ``pop_ms`` is from `free_pop_ms`. ``done`` is called when that is stored. A message that is not open any more
        is no error.
        """
        now_ms = pop_ms
        one = self._table.get(key)
        if one is None or offset not in one.left or one.is_reviving:
            done("")
            return
        new = Checkpoint(key._replace(start=offset, pop_ms=pop_ms), {offset}, pop_ms + invisible_ms)
        one.left.discard(offset)
        one.pending += 1
        self._table.add(new)
        messages = (
            self._checkpoint_message(new.key, [offset], invisible_ms, now_ms),
            self._ack_message(key, [offset], now_ms),
        )

        def stored(result: PutResult) -> None:
            one.pending -= 1
            if result.status not in _STORED:
                self._table.forget(new)
                one.left.add(offset)
                done(result.remark or result.status.value)
                return
            self._table.note(new, OWN_QUEUE, result.appended[0].queue_offset)
            self._forget_if_done(one)
            done("")

        self._put(messages, stored)

    # --- what is due ---

    def next_due_ms(self) -> int | None:
        """When to call `run_due` next; 0 while there is something to read back."""
        if self._reader.is_loading:
            return 0
        times = (self._table.next_end(), self._progress_due_ms, self._look_ms)
        return min((time for time in times if time is not None), default=None)

    def run_due(self, now_ms: int) -> None:
        """Read back, or give back, a bounded part of what is due."""
        if self._reader.is_loading:
            self._load()
            return
        if self._look_ms <= now_ms:
            self._look_ms = now_ms + LOOK_MS
            self._reader.read_others(self._take_other, is_quiet=not self._in_flight)
        for _ in range(REVIVE_BATCH):
            due = self._table.next_end()
            if due is None or due > now_ms:
                break
            one = self._table.take_due()
            if one.pending or one.is_reviving or self._may_get_acks(one):
                self._table.due_at(one, now_ms + RETRY_PAUSE_MS)
            else:
                try:
                    self._revive(one, now_ms)
                except (StrataError, OSError) as error:
                    # In the cold tier (fetched now, or out of reach), or the disk fails: it stays open.
                    if not isinstance(error, ReadPending | ServiceUnavailable | FlowControlled):
                        _log.error("messages of %s cannot be given back, trying again: %s", one.key, error)
                    one.is_reviving = False
                    self._table.due_at(one, now_ms + RETRY_PAUSE_MS)
        self._progress_due_ms = None
        self._reader.commit(self._table.oldest)

    def _may_get_acks(self, one: Checkpoint) -> bool:
        """Whether the timer, which may be behind, holds acks of another broker's check-point."""
        reached = self.timer_ms() if one.timer_ms else None
        return reached is not None and reached <= one.timer_ms

    def _revive(self, one: Checkpoint, now_ms: int) -> None:
        """The time is over: what is left goes to the retry topic, and then an ack says so."""
        messages = [message for offset in sorted(one.left) if (message := self._retry(one.key, offset)) is not None]
        one.is_reviving = True
        if one.left:
            messages.append(self._ack_message(one.key, sorted(one.left), now_ms))
            self._put(tuple(messages), partial(self._revived, one, now_ms))
        else:
            self._table.forget(one)

    def _revived(self, one: Checkpoint, now_ms: int, result: PutResult) -> None:
        if result.status in _STORED:
            self._table.forget(one)
            return
        _log.warning("messages of %s were not given back, trying again: %s", one.key, result.remark)
        one.is_reviving = False
        self._table.due_at(one, now_ms + RETRY_PAUSE_MS)

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
        """Read some of the revive topic. At its end go on where the check-points end, or the group was saved.

        Where an operator set an offset meanwhile, what was saved may be older than that.
        """
        self._reader.load(self._take)
        if not self._reader.is_loading:
            for place, offset in self._positions.items():
                if place not in self._set_back:
                    self._positions[place] = max(offset, self._offsets.find(*place) or 0)

    def _take(self, record: Record, queue: int) -> None:
        """A record of the revive topic was read back."""
        stored = read_record(record)
        if isinstance(stored, StoredCheckpoint):
            self._take_checkpoint(stored, record, queue)
            place = stored.key[:3]
            self._positions[place] = max(self._positions.get(place, 0), stored.offsets[-1] + 1)
        elif stored is not None and stored.key.start == RESET_START:
            self._positions[stored.key[:3]] = stored.offsets[0]
            self._set_back.add(stored.key[:3])
        elif stored is not None:
            self._take_ack(stored, record, queue)
        elif record.body:
            _log.warning("record %d of queue %d of %s cannot be read", record.queue_offset, queue, self.topic)

    def _take_other(self, record: Record, queue: int) -> None:
        """A record came into the revive topic; this broker's own are known already."""
        stored = read_record(record) if is_from_timer(record) else None
        if isinstance(stored, StoredCheckpoint):
            self._take_checkpoint(stored, record, queue)
        elif stored is not None:
            self._take_ack(stored, record, queue)

    def _take_checkpoint(self, stored: StoredCheckpoint, record: Record, queue: int) -> None:
        one, is_other = self._table.get(stored.key), is_from_timer(record)
        if one is not None and one.ahead is None:
            return
        due_ms = stored.end_ms + (GRACE_MS if is_other else 0)
        if one is None:
            one = Checkpoint(stored.key, set(stored.offsets), due_ms)
            self._table.add(one)
        else:
            one.left, one.ahead = set(stored.offsets) - (one.ahead or set()), None
            self._table.due_at(one, due_ms)
        one.timer_ms = stored.end_ms if is_other else 0
        self._table.note(one, queue, record.queue_offset)
        self._forget_if_done(one)

    def _take_ack(self, stored: StoredAck, record: Record, queue: int) -> None:
        one = self._table.get(stored.key)
        if one is None and stored.end_ms:
            one = Checkpoint(stored.key, set(), stored.end_ms + 2 * GRACE_MS, ahead=set())
            self._table.add(one)
        if one is None or one.is_reviving:
            return
        one.left.difference_update(stored.offsets)
        if one.ahead is not None:
            one.ahead.update(stored.offsets)
            self._table.note(one, queue, record.queue_offset)
        self._forget_if_done(one)
