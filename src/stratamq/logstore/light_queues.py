"""Light queues (``%LMQ%name``): which of them a message goes into, and at which offsets. Pure functions.

A message that names light queues in INNER_MULTI_DISPATCH is stored once, in its own topic; each light queue gets a unit
of it in ``consumequeue/%LMQ%name/0``. The offsets are in the record, as INNER_MULTI_QUEUE_OFFSET in the order of the
names, so recovery puts every unit where it was.

Source: apache/rocketmq store/.../MultiDispatchUtils.java, LmqDispatch.java, ConsumeQueue.multiDispatchLmqQueue.
"""

from __future__ import annotations

import re
from typing import Final

from stratamq.formats.consume_queue import UNIT_BYTES
from stratamq.formats.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, find_property

LMQ_PREFIX: Final = "%LMQ%"
LIGHT_QUEUE_ID: Final = 0
LIGHT_NAME_BYTES_MAX: Final = 255
"""A light queue's name is a directory's, and no file system takes a longer one."""
INNER_MARK: Final = "INNER_"
"""What the names of all properties begin with that the store itself sets or reads; most messages have none of them."""
_NAME: Final = re.compile(r"%LMQ%[^/,\\\x00-\x1f\x7f]+\Z")
_RETRY_PREFIX: Final = "%RETRY%"
_SYSTEM_PREFIX: Final = "rmq_sys_"
_SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_PASSING_PREFIXES: Final = (_RETRY_PREFIX, "%DLQ%", _SYSTEM_PREFIX, "RMQ_SYS_")


def is_light_name(name: str) -> bool:
    """Whether ``name`` names a light queue, and can be a directory."""
    if _NAME.match(name) is None:
        return False
    try:
        return len(name.encode()) <= LIGHT_NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def gives_out(topic: str) -> bool:
    """Whether what is sent to ``topic`` goes into light queues now.

    Not from topics in which a message only waits (delayed, half, retried) or ends (dead letters): it goes into them
    once, from the topic that it is for. RocketMQ leaves out fewer topics, see `may_carry_units`.
    """
    return topic != _SCHEDULE_TOPIC and not topic.startswith(_PASSING_PREFIXES)


def may_carry_units(topic: str) -> bool:
    """Whether a stored record of ``topic`` may have units in light queues: RocketMQ's rule, for its stores and ours."""
    return topic != _SCHEDULE_TOPIC and not topic.startswith((_RETRY_PREFIX, _SYSTEM_PREFIX))


def split_names(text: str) -> list[str]:
    """Names or offsets between commas, as Java splits them: empty ones at the end do not count."""
    parts = text.split(",")
    while parts and not parts[-1]:
        parts.pop()
    return parts


def light_units(topic: str, properties: str) -> list[tuple[str, int]]:
    """The light queues that a stored record has a unit in, and its offset in each.

    Never fails: what cannot be is left out, and of a name that comes twice the first counts. Empty when the two lists
    do not match. Cost: one substring search for a record without.
    """
    if INNER_MULTI_QUEUE_OFFSET not in properties or not may_carry_units(topic):
        return []
    names = split_names(find_property(properties, INNER_MULTI_DISPATCH) or "")
    offsets = split_names(find_property(properties, INNER_MULTI_QUEUE_OFFSET) or "")
    if len(names) != len(offsets):
        return []
    found: dict[str, int] = {}
    for name, text in zip(names, offsets, strict=True):
        if len(text) < 20 and text.isascii() and text.isdecimal() and is_light_name(name):
            offset = int(text)
            if offset < 2**63 // UNIT_BYTES:
                found.setdefault(name, offset)
    return list(found.items())
