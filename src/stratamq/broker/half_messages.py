"""What becomes of one half message: conversions between records and messages, and decisions. Pure.

A half message is a send with ``TRAN_MSG=true``. It lies in ``RMQ_SYS_TRANS_HALF_TOPIC``, queue 0, with its real topic
and queue among the properties and without transaction bits. A mark in ``RMQ_SYS_TRANS_OP_HALF_TOPIC`` (tag ``d``, body:
decimal queue offsets, each followed by a comma) says which half messages are finished.

Source: apache/rocketmq broker/.../transaction/queue/TransactionalMessageBridge.java, EndTransactionProcessor.java.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from stratamq.broker.copies import copy_of
from stratamq.broker.topics import HALF_OP_TOPIC, HALF_TOPIC
from stratamq.errors import MessageIllegal
from stratamq.formats import properties as names
from stratamq.formats.message import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    Record,
    encode_record,
)
from stratamq.formats.properties import decode_properties, encode_properties, find_property
from stratamq.logstore.types import Appended, Message

PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
MARK_TAG: Final = "d"
_NOT_FOR_HALVES: Final = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")


_BROKERS_OWN: Final = (CHECK_TIMES, PREPARED_QUEUE_OFFSET)


class Half(NamedTuple):
    """Names a half message: its queue offset, and that of the first of its copies."""

    offset: int
    first: int


class Step(enum.Enum):
    """What the check does with an open half message."""

    WAIT = "it is too young; so is all behind it"
    RENEW = "it may wait, but hold up nobody: append it anew, so that others are looked at"
    ASK = "append it anew with one more check, and ask its producer"
    DISCARD = "it was asked about too often, or is older than files are kept"


def is_half(properties: str) -> bool:
    """Whether a send begins a transaction."""
    return "TRAN_MSG\x01" in properties and (find_property(properties, names.TRANSACTION_PREPARED) or "").lower() == (
        "true"
    )


def half_message(message: Message) -> Message:
    """Turn a message into its half message. Raises MessageIllegal for one that is to wait as well."""
    known = decode_properties(message.properties)
    for name in _NOT_FOR_HALVES:
        if known.get(name, "0") != "0":
            raise MessageIllegal(f"a transactional message cannot wait for a time as well (property {name})")
    if names.UNIQ_KEY in known:
        known[TRANSACTION_ID] = known[names.UNIQ_KEY]
    for name in _BROKERS_OWN:  # a client may not say that its message is a copy of another
        known.pop(name, None)
    known[names.REAL_TOPIC] = message.topic
    known[names.REAL_QID] = str(message.queue_id)
    message.topic, message.queue_id = HALF_TOPIC, 0
    message.sys_flag &= ~SYS_TRANSACTION_MASK
    message.properties = encode_properties(known)
    return message


def half_of(record: Record) -> Half:
    """Which half message a record of the half topic is. An offset that cannot be that of a first copy is ignored."""
    return half_at(record.properties, record.queue_offset)


def half_at(properties: str, queue_offset: int) -> Half:
    """The same, of a half message that was just stored at a queue offset."""
    text = find_property(properties, PREPARED_QUEUE_OFFSET) or ""
    is_copy = text.isdecimal() and len(text) < 19 and int(text) < queue_offset
    return Half(queue_offset, int(text) if is_copy else queue_offset)


def copied(record: Record, properties: str, appended: Appended) -> Record:
    """The record of a copy that was just stored, which may not be readable yet."""
    return replace(
        record,
        size=appended.size,
        properties=properties,
        queue_offset=appended.queue_offset,
        physical_offset=appended.physical_offset,
        store_timestamp=appended.store_timestamp,
    )


def is_copy(record: Record, other: Record) -> bool:
    """Whether one record of the half topic is a copy of another: more than that it says so."""
    same = (names.REAL_TOPIC, names.REAL_QID, PRODUCER_GROUP, TRANSACTION_ID)
    return (
        (record.born_timestamp, record.born_host, record.body) == (other.born_timestamp, other.born_host, other.body)
        and half_of(record).first == half_of(other).first
        and all(find_property(record.properties, name) == find_property(other.properties, name) for name in same)
    )


def real_place(record: Record) -> tuple[str, int] | None:
    """Topic and queue that a half message is for; None when it does not say."""
    topic = find_property(record.properties, names.REAL_TOPIC)
    queue_id = find_property(record.properties, names.REAL_QID)
    if topic is None or queue_id is None or not queue_id.isdecimal() or len(queue_id) > 9:
        return None
    return topic, int(queue_id)


def committed_message(record: Record, topic: str, queue_id: int) -> Message:
    """The message that a commit delivers. Its properties stay as they are, as RocketMQ leaves them."""
    message = copy_of(record, topic=topic, queue_id=queue_id, properties=record.properties)
    message.sys_flag |= SYS_TRANSACTION_COMMIT
    message.prepared_transaction_offset = record.physical_offset
    return message


def half_again(record: Record, *, topic: str = HALF_TOPIC, check_times: int | None = None) -> Message:
    """A copy of a half message at the end of its topic; ``check_times`` is set when given.

    It waits for the sync, where there is one: an answer to the question must find it.
    """
    known = decode_properties(record.properties)
    if record.topic == HALF_TOPIC:
        known[PREPARED_QUEUE_OFFSET] = str(half_of(record).first)
    if check_times is not None:
        known[CHECK_TIMES] = str(check_times)
    return copy_of(record, topic=topic, queue_id=0, properties=encode_properties(known))


def question_body(record: Record) -> bytes:
    """The record that a check-back carries: under its real topic and queue."""
    place = real_place(record)
    assert place is not None
    return encode_record(
        body=record.body,
        topic=place[0].encode(),
        properties=record.properties.encode(),
        queue_id=place[1],
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def mark_message(offsets: Iterable[int], *, now_ms: int, host: bytes) -> Message:
    """The mark that half messages are finished."""
    return Message(
        topic=HALF_OP_TOPIC,
        queue_id=0,
        body="".join(f"{offset}," for offset in offsets).encode(),
        properties=encode_properties({names.TAGS: MARK_TAG}),
        born_timestamp=now_ms,
        born_host=host,
        wait_for_sync=False,
    )


def marked_offsets(record: Record) -> list[int]:
    """The queue offsets that a mark names; what is no number is left out."""
    if find_property(record.properties, names.TAGS) != MARK_TAG:
        return []
    words = record.body.decode("ascii", "replace").split(",")
    return [int(word) for word in words if word.isdecimal() and word.isascii() and len(word) < 19]


def check_times(record: Record) -> int:
    """How often the producer has been asked."""
    text = find_property(record.properties, CHECK_TIMES) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def immunity_ms(record: Record) -> int | None:
    """For how long after its birth a message asked not to be checked; None when it did not ask."""
    text = find_property(record.properties, IMMUNITY_SECONDS) or ""
    return int(text) * 1_000 if text.isdecimal() and len(text) < 10 else None


def next_step(
    record: Record, now_ms: int, *, timeout_ms: int, times_max: int, reserved_ms: int, is_crowded: bool = False
) -> Step:
    """What the check does with an open half message.

    Args:
        record: The half message.
        now_ms: Wall time.
        timeout_ms: `transactionTimeOut`.
        times_max: `transactionCheckMax`.
        reserved_ms: `fileReservedTime`: an older one is put aside while its record is still there.
        is_crowded: Whether nothing may hold up what lies behind it.
    """
    age = now_ms - record.born_timestamp
    if check_times(record) >= times_max or age > reserved_ms:
        return Step.DISCARD
    immunity = immunity_ms(record)
    if immunity is not None:
        return Step.RENEW if age < immunity else Step.ASK
    if age < timeout_ms and now_ms - record.store_timestamp < timeout_ms:
        return Step.RENEW if is_crowded else Step.WAIT
    return Step.ASK
