"""What becomes of a message that its consumer could not work off: another try later, or the dead-letter topic.

The copy goes to ``%RETRY%group`` with one more reconsume time, after a delay that grows with the tries (level
3 + tries unless the consumer names one), or at once to ``%DLQ%group`` when the tries are used up or the consumer gives
up (a negative level).

Source: apache/rocketmq broker/.../AbstractSendMessageProcessor.java, consumerSendMsgBack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratamq.broker.topics import DLQ_PREFIX, RETRY_PREFIX
from stratamq.formats import properties as names
from stratamq.formats.message import SYS_HOSTS_V6, Record
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.logstore.types import Message

FIRST_RETRY_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Retry:
    """Where the copy goes, and after which delay level (0: at once)."""

    topic: str
    is_dead: bool
    delay_level: int


def retry_topic(group: str) -> str:
    """The topic from which a group takes its messages again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic that takes what a group gave up."""
    return DLQ_PREFIX + group


def decide_retry(group: str, *, reconsume_times: int, times_max: int, delay_level: int) -> Retry:
    """Where a message goes that failed for the ``reconsume_times + 1``-th time."""
    if reconsume_times >= times_max or delay_level < 0:
        return Retry(dead_letter_topic(group), True, 0)
    return Retry(retry_topic(group), False, delay_level or FIRST_RETRY_LEVEL + reconsume_times)


def retry_copy(record: Record, *, topic: str, queue_id: int, message_id: str) -> Message:
    """The copy to store: same body, keys and tags, one more reconsume time, and where it came from."""
    known = decode_properties(record.properties)
    known.setdefault(names.RETRY_TOPIC, record.topic)
    known.setdefault(names.ORIGIN_MESSAGE_ID, message_id)
    for name in (names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.WAIT):
        known.pop(name, None)
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=encode_properties(known),
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag & ~SYS_HOSTS_V6,
        reconsume_times=record.reconsume_times + 1,
    )
