"""What a message for a time looks like when it is asked for, while it waits, when it rolls and when it is delivered.

Source: apache/rocketmq store/.../timer/TimerMessageStore.java (convert), broker/.../util/HookUtils.java.
"""

from __future__ import annotations

from typing import Final

from stratamq.broker.copies import copy_of
from stratamq.broker.topics import TIMER_TOPIC
from stratamq.errors import MessageIllegal
from stratamq.formats import properties as names
from stratamq.formats.message import Record
from stratamq.formats.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties, find_property
from stratamq.logstore.types import Message

_UNITS_MS: Final = {names.TIMER_DELAY_SEC: 1_000, names.TIMER_DELAY_MS: 1, names.TIMER_DELIVER_MS: 0}
"""The properties that ask for a time, the strongest first; 0 stands for a point in time."""
_DIGITS_MAX: Final = 19


def requested_ms(message: Message, now_ms: int) -> int | None:
    """The wall time that a message asks for; None when it asks for none, or has one already.

    Raises MessageIllegal when it is no number.
    """
    if "TIMER_" not in message.properties:
        return None
    if message.topic == TIMER_TOPIC or find_property(message.properties, names.TIMER_OUT_MS) is not None:
        return None
    for name, unit_ms in _UNITS_MS.items():
        text = find_property(message.properties, name)
        if text is not None:
            value = _number(text)
            if value is None:
                raise MessageIllegal(f"property {name} is {text[:50]!r}, it must be a number")
            return now_ms + value * unit_ms if unit_ms else value
    return None


def is_for_a_time(properties: str) -> bool:
    """Whether properties ask for a time."""
    return any(find_property(properties, name) is not None for name in _UNITS_MS)


def waiting_message(message: Message, slot_ms: int) -> Message:
    """The message as it waits: in the timer's topic, due time and real place noted."""
    known = decode_properties(message.properties)
    known[names.TIMER_OUT_MS] = str(slot_ms)
    known[names.REAL_TOPIC] = message.topic
    known[names.REAL_QID] = str(message.queue_id)
    message.topic = TIMER_TOPIC
    message.queue_id = 0
    message.properties = encode_properties(known)
    return message


def due_of(record: Record) -> int | None:
    """The due time of a waiting message; None when it names none."""
    text = find_property(record.properties, names.TIMER_OUT_MS)
    value = _number(text) if text is not None else None
    return value if value is not None and value >= 0 else None


def delete_keys(record: Record) -> set[str]:
    """What a deletion deletes: ``topic+key``. A bare key belongs to the deletion's own topic."""
    key = find_property(record.properties, names.TIMER_DEL_UNIQKEY)
    if key is None:
        return set()
    topic = find_property(record.properties, names.REAL_TOPIC) or ""
    return {key, f"{topic}+{key}"}


def delivered_message(record: Record, enqueued_ms: int, now_ms: int) -> Message | None:
    """The message as it is to be delivered; None for one that does not say where it belongs."""
    known = decode_properties(record.properties)
    topic = known.pop(names.REAL_TOPIC, None)
    queue_id = _number(known.pop(names.REAL_QID, ""))
    if topic is None or queue_id is None or queue_id < 0:
        return None
    noted = {names.TIMER_ENQUEUE_MS: str(enqueued_ms), names.TIMER_DEQUEUE_MS: str(now_ms)}
    return copy_of(record, topic=topic, queue_id=queue_id, properties=_with(known, noted), wait_for_sync=False)


def rolled_message(record: Record, enqueued_ms: int, now_ms: int) -> Message:
    """The message as it is put into the timer's topic once more."""
    known = decode_properties(record.properties)
    times = _number(known.get(names.TIMER_ROLL_TIMES, "0")) or 0
    noted = {
        names.TIMER_ENQUEUE_MS: str(enqueued_ms),
        names.TIMER_ROLL_TIMES: str(times + 1),
        names.TIMER_DEQUEUE_MS: str(now_ms),
    }
    return copy_of(record, topic=TIMER_TOPIC, queue_id=0, properties=_with(known, noted), wait_for_sync=False)


def _with(known: dict[str, str], noted: dict[str, str]) -> str:
    """The properties with what is noted; without it when there is no room: a message counts more than a note."""
    text = encode_properties(known | noted)
    return text if len(text.encode()) <= PROPERTIES_BYTES_MAX else encode_properties(known)


def _number(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX else None
