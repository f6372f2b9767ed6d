"""What pop consumption writes: check-points and acks in the revive topic, and the texts that clients carry about.

A check-point says which messages were given out and until when nobody else gets them; an ack takes one of them out of
it. Both are messages of topic ``rmq_sys_REVIVE_LOG_<cluster>`` with a JSON body, told apart by their tag.

Source: apache/rocketmq store/.../pop/PopCheckPoint.java, AckMsg.java, BatchAckMsg.java, and
remoting/.../ExtraInfoUtil.java.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from stratamq.errors import InvalidArgument
from stratamq.formats import properties as names
from stratamq.formats.message import Record
from stratamq.formats.properties import encode_properties, find_property
from stratamq.logstore.types import Message

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
ORDERED_REVIVE_QUEUE: Final = 999
"""What stands for the revive queue of an ordered pop: there is none."""
RETRY_PREFIX: Final = "%RETRY%"
MESSAGES_MAX: Final = 32
"""Messages of one check-point: its acks are bits of an i32."""


class Key(NamedTuple):
    """Names one check-point."""

    group: str
    topic: str
    queue_id: int
    start: int
    pop_ms: int


class Handle(NamedTuple):
    """POP_CK: what a client knows of one message that it popped."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry_flag: str
    broker_name: str
    queue_id: int
    offset: int


def revive_topic(cluster: str) -> str:
    """The topic of check-points and acks."""
    return f"rmq_sys_REVIVE_LOG_{cluster}"


def pop_retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """Where messages of a topic go that a group popped and did not acknowledge.

    The second form (`enableRetryTopicV2`) cannot mean two pairs of group and topic, the first can.
    """
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Both forms: what was given back under one is given out after the setting has changed too."""
    return pop_retry_topic(topic, group), pop_retry_topic(topic, group, is_v2=True)


def retry_flag(topic: str) -> str:
    """How POP_CK names the kind of a topic: 0 an ordinary one, 1 and 2 retry topics of the two forms."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def popped_topic(topic: str, group: str, flag: str) -> str:
    """The topic that a message was popped from: clients name the real one, or the one it is called by."""
    if flag not in ("1", "2") or topic.startswith(RETRY_PREFIX):
        return topic
    return pop_retry_topic(topic, group, is_v2=flag == "2")


def parse_handle(text: str) -> Handle:
    """Read POP_CK: eight words. Raises InvalidArgument."""
    words = text.split(" ")
    try:
        numbers = [int(words[place]) for place in (0, 1, 2, 3, 6, 7)]
        if len(words) != 8 or any(not -(2**63) <= number < 2**63 for number in numbers):
            raise ValueError(f"{len(words)} words")
    except (ValueError, IndexError) as error:
        raise InvalidArgument(f"extraInfo {text[:100]!r} is no POP_CK: {error}") from None
    start, pop_ms, invisible_ms, revive_queue, queue_id, offset = numbers
    return Handle(start, pop_ms, invisible_ms, revive_queue, words[4], words[5], queue_id, offset)


class StoredCheckpoint(NamedTuple):
    """A check-point as its record holds it."""

    key: Key
    offsets: tuple[int, ...]
    invisible_ms: int

    @property
    def end_ms(self) -> int:
        """When its time is over."""
        return self.key.pop_ms + self.invisible_ms


class StoredAck(NamedTuple):
    """An ack as its record holds it; one check-point, one or more offsets."""

    key: Key
    offsets: tuple[int, ...]
    end_ms: int
    """When the time of its check-point is over, for an ack that may come before that; else 0."""


def checkpoint_message(
    topic: str, key: Key, offsets: Sequence[int], invisible_ms: int, *, broker_name: str, host: bytes, now_ms: int
) -> Message:
    """The record of a check-point."""
    body = {
        "so": key.start,
        "pt": key.pop_ms,
        "it": invisible_ms,
        "bm": 0,
        "n": len(offsets),
        "q": key.queue_id,
        "t": key.topic,
        "c": key.group,
        "ro": 0,
        "d": [offset - key.start for offset in offsets],
        "bn": broker_name,
    }
    place = f"{key.topic}@{key.queue_id}@{key.start}@{key.group}@{key.pop_ms}@{broker_name}@{CHECKPOINT_TAG}"
    return _message(topic, CHECKPOINT_TAG, place, body, host=host, now_ms=now_ms)


def ack_message(
    topic: str, key: Key, offsets: Sequence[int], *, broker_name: str, host: bytes, now_ms: int, end_ms: int = 0
) -> Message:
    """The record of an ack, of one message or of several."""
    body: dict[str, Any] = {
        "ao": offsets[0],
        "so": key.start,
        "c": key.group,
        "t": key.topic,
        "q": key.queue_id,
        "pt": key.pop_ms,
        "bn": broker_name,
    }
    if end_ms:
        body["end"] = end_ms
    tag = ACK_TAG
    if len(offsets) > 1:
        tag = BATCH_ACK_TAG
        body["aol"] = list(offsets)
    place = f"{key.topic}@{key.queue_id}@{offsets[0]}@{key.group}@{key.pop_ms}@{broker_name}@{tag}"
    return _message(topic, tag, place, body, host=host, now_ms=now_ms)


def _message(topic: str, tag: str, unique: str, body: dict[str, Any], *, host: bytes, now_ms: int) -> Message:
    return Message(
        topic=topic,
        queue_id=0,
        body=json.dumps(body, separators=(",", ":")).encode(),
        # RocketMQ takes the newest of these times for how far its timer is; none, and it gives nothing back.
        properties=encode_properties({names.TAGS: tag, names.UNIQ_KEY: unique, names.TIMER_DELIVER_MS: str(now_ms)}),
        born_timestamp=now_ms,
        born_host=host,
    )


def is_from_timer(record: Record) -> bool:
    """Whether another broker wrote a record of the revive topic, through its timer: RocketMQ does, we never do."""
    return find_property(record.properties, names.TIMER_OUT_MS) is not None


def read_record(record: Record) -> StoredCheckpoint | StoredAck | None:
    """A check-point or ack; None for a record of the topic that is neither, or cannot be read."""
    try:
        body = json.loads(record.body)
        key = Key(str(body["c"]), str(body["t"]), int(body["q"]), int(body["so"]), int(body["pt"]))
        tag = find_property(record.properties, names.TAGS)
        if tag == CHECKPOINT_TAG:
            diffs = body.get("d") or range(int(body["n"]))
            offsets = tuple(key.start + int(diff) for diff in diffs)
            if not 0 < len(offsets) <= MESSAGES_MAX:
                return None
            return StoredCheckpoint(key, offsets, int(body["it"]))
        if tag in (ACK_TAG, BATCH_ACK_TAG):
            offsets = tuple(int(offset) for offset in body.get("aol") or (body["ao"],))
            return StoredAck(key, offsets, int(body.get("end") or 0))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


# --- texts of a pop's answer ---


class Given(NamedTuple):
    """What one pop gives out of one queue."""

    retry_flag: str
    queue_id: int
    start: int
    offsets: Sequence[int]


def start_offset_info(given: Iterable[Given]) -> str:
    """``startOffsetInfo``: for each queue its retry flag, number and first offset."""
    return ";".join(f"{one.retry_flag} {one.queue_id} {one.start}" for one in given)


def message_offset_info(given: Iterable[Given]) -> str:
    """``msgOffsetInfo``: for each queue the offsets of all its messages."""
    return ";".join(f"{one.retry_flag} {one.queue_id} {','.join(map(str, one.offsets))}" for one in given)
