"""Delivery at any time: RocketMQ's timer wheel.

A message for a time is stored in topic ``rmq_sys_wheel_timer``, with its real topic and queue among the properties.
`Timers.run_due` reads that topic on into the slots of the wheel, and stores what lies in slots that are over under its
real topic. A message further off than ``timerRollWindowSlot`` steps is put half way and stored anew when that comes, so
that the commit log may be cleaned behind it. Every call does a bounded piece of work, however many are due.

What is on disk and how it survives a kill: `stratamq.logstore.timer_store`, docs/design/timers.md.

Source: apache/rocketmq store/.../timer/TimerMessageStore.java, broker/.../util/HookUtils.java.
"""

from __future__ import annotations

import logging
import random
from array import array
from functools import partial
from typing import Any, Final

from stratamq.broker.delays import HOPELESS, STORED
from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.broker.timer_messages import (
    delete_keys,
    delivered_message,
    due_of,
    requested_ms,
    rolled_message,
    waiting_message,
)
from stratamq.broker.timer_metrics import Rate, TimerMetrics
from stratamq.broker.topics import TIMER_TOPIC
from stratamq.config import BrokerConfig
from stratamq.errors import MessageIllegal, StoreFailed, TimerRefused
from stratamq.formats import properties as names
from stratamq.formats.java import string_hash
from stratamq.formats.message import Record, decode_record
from stratamq.formats.properties import find_property
from stratamq.formats.timer import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    TimerCheckpoint,
    TimerUnit,
    encode_checkpoint,
)
from stratamq.logstore.timer_store import TimerStore, TimerSync
from stratamq.logstore.types import GetStatus, Message, PutResult

_log = logging.getLogger(__name__)

RETRY_PAUSE_MS: Final = 1_000
READ_BATCH: Final = 256
TURN_BACK_MAX_MS: Final = 7 * 86_400_000
"""The clock may be set back so far and slots follow; beyond it, messages wait for the time that was reached before."""


class _SlotWork:
    """A slot that is being delivered: first its chain is walked to the end, then messages go out, oldest first."""

    __slots__ = ("cursor", "deleted", "failed", "in_work", "positions", "slot_ms")

    def __init__(self, slot_ms: int, last: int) -> None:
        self.slot_ms = slot_ms
        self.cursor = last
        self.positions = array("q")
        self.deleted: set[str] = set()
        self.failed: list[int] = []
        self.in_work = 0


class Timers:
    """Messages for a time. Without files (`attach`) it refuses them, as RocketMQ does with ``timerWheelEnable=false``.

    Times are wall time. The clock may jump either way.
    """

    def __init__(self, store: StoreSurface, committer: CommitterSurface, config: BrokerConfig) -> None:
        self._store = store
        self._committer = committer
        self.config = config
        self._precision = config.timer_precision_ms
        self._files: TimerStore | None = None
        self.metrics = TimerMetrics()
        self.enqueued, self.dequeued = Rate(), Rate()
        self._work: _SlotWork | None = None
        self._read_offset = 0
        self._immediate: list[Message] = []
        """Messages read from the topic that are due already; the topic is read on once they are stored."""
        self._immediate_left = 0
        self._paused_until_ms = 0
        self._sync_at: tuple[int, TimerSync] | None = None
        self._rebuilt = (0, 0)

    # --- taking messages ---

    def accepted(self, message: Message, now_ms: int) -> Message:
        """A message as it is to be stored: one that names a time waits in the timer's topic, any other is returned.

        Raises TimerRefused without a wheel or when the second is full, MessageIllegal for a time that is no number or
        further off than ``timerMaxDelaySec``.
        """
        asked = requested_ms(message, now_ms)
        if asked is None:
            return message
        if self._files is None:
            raise TimerRefused("messages for a set time are not served: timerWheelEnable is false")
        if asked <= now_ms:
            if find_property(message.properties, names.TIMER_DEL_UNIQKEY) is not None:
                raise MessageIllegal("a timer's deletion comes when the message is already due")
            return message
        if asked - now_ms > self.config.timer_max_delay_s * 1_000:
            raise MessageIllegal(
                f"the message is for {asked - now_ms} ms from now, at most {self.config.timer_max_delay_s} s are taken "
                "(timerMaxDelaySec)"
            )
        slot_ms = (asked - 1) // self._precision * self._precision
        self._refuse_full_slot(slot_ms)
        return waiting_message(message, slot_ms)

    def _refuse_full_slot(self, slot_ms: int) -> None:
        assert self._files is not None
        slot = self._files.wheel.slot(slot_ms // self._precision)
        limit, count = self.config.timer_congest_per_slot, slot.messages if slot is not None else 0
        if count <= limit:
            return
        if count >= 2 * limit or random.randrange(1000) > 1000 * (count - limit) / (limit + 0.1):
            raise TimerRefused(f"{count} messages wait for that time, flow control begins at {limit}")

    # --- opening ---

    @property
    def is_enabled(self) -> bool:
        """Whether messages for a time are taken."""
        return self._files is not None

    @property
    def reached_ms(self) -> int | None:
        """What was due before this time has been delivered; None without a wheel."""
        return self._files.read_ms if self._files is not None else None

    def attach(self, files: TimerStore, now_ms: int, topics: list[str]) -> None:
        """Begin to work on files just opened; ``topics`` are all that may have messages waiting."""
        self._files = files
        if files.read_ms == 0:
            files.read_ms = now_ms // self._precision * self._precision
        end = self._store.max_offset(TIMER_TOPIC, 0)
        offset = files.queue_offset
        if not files.checkpoint.is_exact and not files.rebuilt_before:
            unit = files.last_unit()
            record = self._record(unit) if unit is not None else None
            if record is not None:
                offset = min(offset, record.queue_offset + 1)
        self._rebuilt = (files.rebuilt_before, files.checkpoint.read_ms)
        files.queue_offset = self._read_offset = min(offset, end)
        self.metrics.recount(files, topics)

    # --- the worker ---

    def next_due_ms(self) -> int | None:
        """When `run_due` has to be called next."""
        files = self._files
        if files is None or files.failure is not None:
            return None
        if self._paused_until_ms:
            return self._paused_until_ms
        return 0 if self._work or self._immediate or self._offset_behind() else files.read_ms + self._precision

    def arrived(self, queue_id: int) -> None:
        """Something came into the timer's topic; it is read with the next call."""

    def run_due(self, now_ms: int) -> None:
        """Do a bounded piece of what is due."""
        files = self._files
        if files is None or files.failure is not None:
            return
        self._paused_until_ms = 0
        self._follow_clock(files, now_ms)
        try:
            if not self.config.timer_stop_enqueue:
                self._enqueue(files, now_ms)
            if not self.config.timer_stop_dequeue:
                self._dequeue(files, now_ms)
        except StoreFailed as error:
            _log.critical("the timer stops: %s", error)

    def _follow_clock(self, files: TimerStore, now_ms: int) -> None:
        floor_ms = now_ms // self._precision * self._precision
        if self._work is None and floor_ms < files.read_ms:
            target = max(floor_ms, files.read_ms - TURN_BACK_MAX_MS)
            if target < files.read_ms and files.read_ms - floor_ms <= TURN_BACK_MAX_MS:
                _log.warning("the clock was set back by %d ms: timers follow", files.read_ms - floor_ms)
                files.turn_back(target)

    # --- from the topic into the wheel ---

    def _enqueue(self, files: TimerStore, now_ms: int) -> None:
        self._put_immediate(now_ms)
        budget = self.config.timer_messages_per_step
        try:
            while budget > 0 and not self._immediate_left and not self._immediate:
                found = self._store.get(TIMER_TOPIC, 0, self._read_offset, min(READ_BATCH, budget))
                if found.status is not GetStatus.FOUND:
                    if found.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING):
                        self._read_offset = files.queue_offset = found.next_offset
                        continue
                    break
                budget -= self._enqueue_batch(files, found.records, now_ms)
                if self._immediate:
                    self._put_immediate(now_ms)
                elif files.queue_offset == self._read_offset:
                    break  # nothing of it could be taken
                else:
                    files.queue_offset = self._read_offset
        finally:
            files.write()

    def _enqueue_batch(self, files: TimerStore, views: Any, now_ms: int) -> int:
        taken = 0
        for view in views:
            at = 0
            while at < len(view):
                record = decode_record(view, at)
                at += record.size
                if not self._enqueue_one(files, record, now_ms):
                    return max(taken, 1)
                self._read_offset = record.queue_offset + 1
                taken += 1
        return max(taken, 1)

    def _enqueue_one(self, files: TimerStore, record: Record, now_ms: int) -> bool:
        """Put one message where it belongs; False when the wheel has no place for it yet."""
        due = due_of(record)
        if due is None:
            _log.warning("timer message at %d does not say for when it is: left out", record.physical_offset)
            return True
        before, delivered_ms = self._rebuilt
        if record.queue_offset < before and due < delivered_ms:
            return True
        is_delete = find_property(record.properties, names.TIMER_DEL_UNIQKEY) is not None
        write_ms = now_ms // self._precision * self._precision
        if due < write_ms:
            if not is_delete:
                message = delivered_message(record, now_ms, now_ms)
                if message is not None:
                    self._immediate.append(message)
            return True
        magic = MAGIC_DEFAULT | (MAGIC_DELETE if is_delete else 0)
        window = self.config.timer_roll_window_slots * self._precision
        slot_ms = due
        if due - write_ms >= window:
            magic |= MAGIC_ROLL
            is_little = due - write_ms - window < self.config.timer_roll_window_slots // 3 * self._precision
            slot_ms = write_ms + (self.config.timer_roll_window_slots // 2 * self._precision if is_little else window)
        floor = files.read_ms
        if self._work is not None and self._work.slot_ms >= floor:
            floor = self._work.slot_ms + self._precision
        place = files.place(slot_ms, floor)
        if place is None:
            return False
        topic = find_property(record.properties, names.REAL_TOPIC) or ""
        files.add(
            place,
            magic=magic,
            write_ms=write_ms,
            offset=record.physical_offset,
            size=record.size,
            topic_hash=string_hash(topic),
        )
        self.metrics.add(topic, -1 if is_delete else 1, now_ms)
        self.enqueued.add(1, now_ms)
        return True

    def _put_immediate(self, now_ms: int) -> None:
        if self._immediate_left or not self._immediate:
            return
        messages, self._immediate = self._immediate, []
        self._immediate_left = len(messages)
        for message in messages:
            self._committer.put((message,), partial(self._immediate_done, message, now_ms))

    def _immediate_done(self, message: Message, now_ms: int, result: PutResult) -> None:
        if result.status in HOPELESS:
            _log.error("a timer message for %s is lost: %s", message.topic, result.remark)
        elif result.status not in STORED:
            self._immediate.append(message)
            self._paused_until_ms = now_ms + RETRY_PAUSE_MS
        self._immediate_left -= 1
        if not self._immediate_left and not self._immediate and self._files is not None:
            self._files.queue_offset = self._read_offset

    # --- from the wheel to the real topics ---

    def _dequeue(self, files: TimerStore, now_ms: int) -> None:
        budget = self.config.timer_messages_per_step
        end = now_ms // self._precision
        while budget > 0:
            if self._work is None:
                step = files.wheel.next_filled(files.read_ms // self._precision, end)
                if step is None:
                    files.read_ms = max(files.read_ms, end * self._precision)
                    return
                slot = files.wheel.slot(step)
                assert slot is not None
                files.read_ms = step * self._precision
                self._work = _SlotWork(files.read_ms, slot.last)
            budget = self._walk(files, self._work, budget)
            budget = self._deliver(files, self._work, budget, now_ms)
            if not self._finished(files) and (self._paused_until_ms or budget <= 0 or self._is_waiting()):
                return

    def _is_waiting(self) -> bool:
        return self._work is not None and self._work.in_work > 0

    def _finished(self, files: TimerStore) -> bool:
        work = self._work
        if work is None or work.cursor >= 0 or work.positions or work.failed or work.in_work:
            return False
        files.wheel.clear(work.slot_ms // self._precision)
        files.read_ms = work.slot_ms + self._precision
        self._work = None
        return True

    def _walk(self, files: TimerStore, work: _SlotWork, budget: int) -> int:
        """Collect the positions of a slot's units. Returns what is left of the budget."""
        while work.cursor >= 0 and budget > 0:
            unit = files.log.read(work.cursor)
            if unit is None or unit.slot_ms // self._precision * self._precision != work.slot_ms:
                _log.error("the timer's chain of %d breaks at position %d", work.slot_ms, work.cursor)
                work.cursor = -1
                break
            budget -= 1
            if unit.magic & MAGIC_DELETE and not unit.magic & MAGIC_ROLL:
                record = self._record(unit)
                if record is not None:
                    work.deleted |= delete_keys(record)
            else:
                work.positions.append(work.cursor)
            work.cursor = unit.previous if unit.previous < work.cursor else -1
        return budget

    def _deliver(self, files: TimerStore, work: _SlotWork, budget: int, now_ms: int) -> int:
        """Store messages of a slot whose chain was walked. Returns what is left of the budget."""
        if work.cursor >= 0:
            return budget
        if work.failed and not work.in_work:
            work.positions.extend(work.failed)
            work.failed.clear()
        most = self.config.timer_messages_per_step
        while work.positions and budget > 0 and work.in_work < most and not self._paused_until_ms:
            position = work.positions.pop()
            budget -= 1
            unit = files.log.read(position)
            record = self._record(unit) if unit is not None else None
            if unit is None or record is None:
                continue
            message = self._outgoing(unit, record, work, now_ms)
            if message is None:
                continue
            work.in_work += 1
            self._committer.put((message,), partial(self._delivered, work, position, message, now_ms))
        return budget

    def _outgoing(self, unit: TimerUnit, record: Record, work: _SlotWork, now_ms: int) -> Message | None:
        """What a unit's message becomes; None when nothing: deleted, or a message that is not the unit's."""
        due = due_of(record)
        topic = find_property(record.properties, names.REAL_TOPIC) or ""
        if due is None or string_hash(topic) != unit.topic_hash:
            return None
        if unit.magic & MAGIC_ROLL:
            self.metrics.add(topic, 1 if unit.magic & MAGIC_DELETE else -1, now_ms)
            return rolled_message(record, unit.write_ms, now_ms)
        if due > unit.slot_ms:
            return None  # the place in the commit log holds another message since the log was cut
        self.metrics.add(topic, -1, now_ms)
        unique_key = find_property(record.properties, names.UNIQ_KEY)
        if unique_key is not None and f"{topic}+{unique_key}" in work.deleted:
            self.metrics.add(topic, 1, now_ms)  # its deletion has been subtracted already
            return None
        return delivered_message(record, unit.write_ms, now_ms)

    def _delivered(self, work: _SlotWork, position: int, message: Message, now_ms: int, result: PutResult) -> None:
        work.in_work -= 1
        if result.status in STORED:
            self.dequeued.add(1, now_ms)
        elif result.status in HOPELESS:
            _log.error("a timer message for %s is lost: %s", message.topic, result.remark)
        else:
            work.failed.append(position)
            self._paused_until_ms = now_ms + RETRY_PAUSE_MS

    def _record(self, unit: TimerUnit) -> Record | None:
        """The message of a unit; None when it was cleaned away, or when something else lies there now."""
        found = self._store.record_at(unit.physical_offset)
        if found is None or len(found) != unit.message_bytes:
            return None
        record = decode_record(found)
        return record if record.topic == TIMER_TOPIC else None

    # --- syncing ---

    def begin_sync(self) -> TimerSync | None:
        """What has to be synced now; None while there is nothing, or while messages it counts on are not synced.

        Raises StoreFailed.
        """
        files = self._files
        if files is None:
            return None
        if self._sync_at is None:
            files.log.remove_before(self._store.status().min_physical_offset)
            token = files.begin_sync()
            if not token.pages and not token.full and token.checkpoint[:3] == files.checkpoint[:3]:
                return None
            self._sync_at = (self._store.status().max_physical_offset, token)
        end, token = self._sync_at
        if self._store.status().flushed_physical_offset < end:
            return None
        self._sync_at = None
        return token

    def sync(self, token: TimerSync) -> None:
        """Bring it to the disk. Blocks, in any thread. Raises StoreFailed."""
        assert self._files is not None
        self._files.sync(token)

    def close(self) -> None:
        """Write and sync what is left, after the last message was stored and synced. Raises StoreFailed."""
        files, self._files = self._files, None
        if files is None:
            return
        try:
            if files.failure is None:
                if self._sync_at is not None:
                    files.sync(self._sync_at[1])
                files.sync(files.begin_sync())
        finally:
            files.close()

    # --- what operators see ---

    def _offset_behind(self) -> int:
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self._read_offset)

    def runtime_table(self, now_ms: int) -> dict[str, Any]:
        """Rows of the broker's runtime info, under RocketMQ's names."""
        files = self._files
        if files is None:
            return {}
        return {
            "timerReadBehind": max(0, now_ms - files.read_ms) // 1_000,
            "timerOffsetBehind": self._offset_behind(),
            "timerCongestNum": files.wheel.pending(),
            "timerEnqueueTps": self.enqueued.per_second(now_ms),
            "timerDequeueTps": self.dequeued.per_second(now_ms),
        }

    def checkpoint_bytes(self) -> bytes:
        """What GET_TIMER_CHECK_POINT answers. Raises TimerRefused without a wheel."""
        if self._files is None:
            raise TimerRefused("there is no timer checkpoint: timerWheelEnable is false")
        return encode_checkpoint(self._files.checkpoint)

    @property
    def checkpoint(self) -> TimerCheckpoint | None:
        """What was synced last."""
        return self._files.checkpoint if self._files is not None else None
