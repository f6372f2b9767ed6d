"""Delivery after a delay, RocketMQ's way: one queue for each level, in which due times only grow.

A delayed message is stored in topic ``SCHEDULE_TOPIC_XXXX``, queue ``level - 1``, with its real topic and queue among
the properties; the store notes the due time as the queue's tags code. Each queue is read from its last delivered
offset; what is due is stored again under its real topic, and only then the offset moves. The offsets are kept in
``config/delayOffset.json``, written now and then: after a crash a delayed message may be delivered twice, never lost.

Nothing here reads a clock or waits: `Delays.run_due` does what is due, `Delays.next_due_ms` says when to call again.

Source: apache/rocketmq broker/.../ScheduleMessageService.java.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from stratamq.broker.copies import copy_of
from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.broker.topics import SCHEDULE_TOPIC
from stratamq.broker.versions import DataVersion
from stratamq.formats import properties as names
from stratamq.formats.message import Record, decode_records
from stratamq.formats.properties import decode_properties, encode_properties, find_property
from stratamq.logstore.types import GetStatus, Message, PutResult, PutStatus

_log = logging.getLogger(__name__)

STORED: Final = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""Put results that mean the message is in the log."""

HOPELESS: Final = frozenset(
    {PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED, PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED}
)
"""Put results that trying again would not change."""

RETRY_PAUSE_MS: Final = 1_000
"""How long a level rests after a delivery that failed."""
BATCH: Final = 32
CLOCK_STEP_MS: Final = 60_000
"""A message stored so far in the future was stored before the clock was set back."""


class _Level:
    """Reading position of one level."""

    __slots__ = ("delay_ms", "due_ms", "in_work", "number", "offset")

    def __init__(self, number: int, delay_ms: int, offset: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.offset = offset
        self.due_ms: int | None = 0
        self.in_work = False


class _Delivery:
    """Messages of one level that are being stored again. ``end`` is how far the position may move."""

    __slots__ = ("end", "has_failed", "left")

    def __init__(self, end: int) -> None:
        self.end = end
        self.left = 0
        self.has_failed = False


class Delays:
    """The delay levels of a broker. Times are wall time, as the due times on disk are."""

    def __init__(
        self,
        store: StoreSurface,
        committer: CommitterSurface,
        delays_ms: Sequence[int],
        stored: Any = None,
    ) -> None:
        self._store = store
        self._committer = committer
        self.version = DataVersion.from_json(stored.get("dataVersion") if isinstance(stored, dict) else None)
        table = stored.get("offsetTable") if isinstance(stored, dict) else None
        offsets = {int(level): int(offset) for level, offset in (table or {}).items()}
        self._kept = {level: offset for level, offset in offsets.items() if not 1 <= level <= len(delays_ms)}
        self._levels = [
            _Level(number, delay_ms, offsets.get(number, 0)) for number, delay_ms in enumerate(delays_ms, start=1)
        ]
        self.is_dirty = False

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self._levels)

    def delayed(self, message: Message, level: int) -> Message:
        """Turn a message into one that waits: stored under the schedule topic, with its real place noted."""
        level = max(1, min(level, len(self._levels)))
        known = decode_properties(message.properties)
        known[names.DELAY] = str(level)
        known[names.REAL_TOPIC] = message.topic
        known[names.REAL_QID] = str(message.queue_id)
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1
        message.properties = encode_properties(known)
        return message

    def arrived(self, queue_id: int) -> None:
        """Something came into a level's queue: look at it again."""
        if 0 <= queue_id < len(self._levels):
            level = self._levels[queue_id]
            if level.due_ms is None:
                level.due_ms = 0

    def next_due_ms(self) -> int | None:
        """When `run_due` has to be called next; None when nothing waits."""
        times = [level.due_ms for level in self._levels if level.due_ms is not None and not level.in_work]
        return min(times, default=None)

    def run_due(self, now_ms: int) -> None:
        """Store again what is due."""
        for level in self._levels:
            if not level.in_work and level.due_ms is not None and level.due_ms <= now_ms:
                self._deliver_level(level, now_ms)

    def _deliver_level(self, level: _Level, now_ms: int) -> None:
        found = self._store.get(SCHEDULE_TOPIC, level.number - 1, level.offset, BATCH)
        if found.status is not GetStatus.FOUND:
            is_end = found.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE)
            if is_end or found.status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
                level.due_ms = None
            else:  # cleaned away, or a gap: go on behind it
                self._advance(level, found.next_offset)
                level.due_ms = now_ms if found.next_offset < found.max_offset else None
            return
        delivery = _Delivery(level.offset)
        due: list[tuple[Message, int]] = []
        for record in decode_records(found.records):
            due_ms = record.store_timestamp + level.delay_ms
            if record.store_timestamp > now_ms + CLOCK_STEP_MS:
                due_ms = now_ms  # the clock was set back far: better too early than in months
            if due_ms > now_ms:
                level.due_ms = due_ms
                break
            message = _real_message(record)
            if message is None:
                _log.warning("delayed message at %d does not say where it belongs: left out", record.physical_offset)
            else:
                due.append((message, record.queue_offset))
            delivery.end = record.queue_offset + 1
        else:
            level.due_ms = now_ms
        if not due:
            self._advance(level, delivery.end)
            return
        level.in_work = True
        delivery.left = len(due)
        for message, queue_offset in due:
            self._committer.put((message,), partial(self._delivered, level, delivery, queue_offset, now_ms))

    def _delivered(self, level: _Level, delivery: _Delivery, queue_offset: int, now_ms: int, result: PutResult) -> None:
        """One message has been dealt with; after the last of them the position moves, up to the first that failed."""
        if result.status not in STORED:
            if result.status in HOPELESS:
                _log.error("delayed message %d of level %d is lost: %s", queue_offset, level.number, result.remark)
            else:
                delivery.end = min(delivery.end, queue_offset)
                delivery.has_failed = True
        delivery.left -= 1
        if delivery.left:
            return
        level.in_work = False
        self._advance(level, delivery.end)
        if delivery.has_failed:
            level.due_ms = now_ms + RETRY_PAUSE_MS
        elif level.due_ms == now_ms:
            self._deliver_level(level, now_ms)

    def _advance(self, level: _Level, offset: int) -> None:
        if offset != level.offset:
            level.offset = offset
            self.is_dirty = True

    def adopt(self, stored: Any) -> None:
        """Take over how far another broker has come, as `as_json` gives it."""
        table = stored.get("offsetTable") if isinstance(stored, dict) else None
        offsets = {int(level): int(offset) for level, offset in (table or {}).items()}
        for level in self._levels:
            self._advance(level, offsets.get(level.number, level.offset))

    def as_json(self) -> dict[str, Any]:
        """What ``delayOffset.json`` holds."""
        self.version.counter += self.is_dirty
        offsets = self._kept | {level.number: level.offset for level in self._levels}
        return {"dataVersion": self.version.as_json(), "offsetTable": dict(sorted(offsets.items()))}


def _real_message(record: Record) -> Message | None:
    """The message as it is to be delivered; None for one that does not say where it belongs."""
    topic = find_property(record.properties, names.REAL_TOPIC)
    queue_id = find_property(record.properties, names.REAL_QID)
    if topic is None or queue_id is None or not queue_id.isdecimal():
        return None
    known = decode_properties(record.properties)
    for name in (names.DELAY, names.REAL_TOPIC, names.REAL_QID):
        known.pop(name, None)
    return copy_of(record, topic=topic, queue_id=int(queue_id), properties=encode_properties(known))
