"""Attributes of topics, as operators write them: ``+message.type=FIFO,-reserve.time``.

A plus sets one, a minus takes one away. While a topic is made only pluses are allowed; ``queue.type`` and
``cleanup.policy`` never change afterwards. What this store has no files for is refused rather than noted down.

Source: apache/rocketmq common/.../attribute/AttributeUtil.java, AttributeParser.java, common/.../TopicAttributes.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from stratamq.errors import InvalidArgument
from stratamq.logstore.queue_types import BATCH_TYPE, QUEUE_TYPE

MESSAGE_TYPE: Final = "message.type"


class _Attribute(NamedTuple):
    values: frozenset[str] | None
    """Allowed values; None for a whole number from -1 on."""
    may_change: bool


ATTRIBUTES: Final[Mapping[str, _Attribute]] = {
    QUEUE_TYPE: _Attribute(frozenset({"SimpleCQ", BATCH_TYPE}), may_change=False),
    "cleanup.policy": _Attribute(frozenset({"DELETE"}), may_change=False),
    MESSAGE_TYPE: _Attribute(frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"}), may_change=True),
    "reserve.time": _Attribute(None, may_change=True),
}
NOT_HERE: Final[Mapping[str, str]] = {
    "cleanup.policy=COMPACTION": "this store does not compact topics",
    "message.type=MIXED": "MIXED message type is not supported",
}


def change_attributes(current: Mapping[str, str], text: str, *, is_new: bool) -> dict[str, str]:
    """The attributes of a topic after a change.

    Args:
        current: What the topic has; empty for one that is made.
        text: Changes joined by commas; may be empty.
        is_new: Whether the topic is made now.

    Raises:
        InvalidArgument: A change that cannot be read or may not be made. Nothing of the text is taken then.
    """
    found = dict(current)
    seen: set[str] = set()
    for part in text.split(","):
        change = part.strip()
        if not change:
            continue
        name, equals, value = change[1:].partition("=")
        name, value = name.strip(), value.strip()
        if change[0] not in "+-" or not name or (change[0] == "+") != bool(equals):
            raise InvalidArgument(f"{change[:100]!r} is no change of an attribute; allowed: +name=value, -name")
        if name in seen:
            raise InvalidArgument(f"attribute {name} is changed twice")
        seen.add(name)
        _check(name, change[0], value, current, is_new=is_new)
        if change[0] == "+":
            found[name] = value
        else:
            del found[name]
    return found


def _check(name: str, sign: str, value: str, current: Mapping[str, str], *, is_new: bool) -> None:
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        raise InvalidArgument(f"unsupported key: {name[:100]}; there are: {', '.join(ATTRIBUTES)}")
    if sign == "-":
        if is_new:
            raise InvalidArgument(f"only add attribute is supported while creating topic. key: {name}")
        if name not in current:
            raise InvalidArgument(f"attempt to delete a nonexistent key: {name}")
    if not is_new and not attribute.may_change and (sign == "-" or current.get(name) != value):
        raise InvalidArgument(f"attempt to update an unchangeable attribute. key: {name}")
    if sign == "-":
        return
    if f"{name}={value}" in NOT_HERE:
        raise InvalidArgument(NOT_HERE[f"{name}={value}"])
    if attribute.values is None:
        if not (value.isdecimal() and value.isascii() and len(value) < 19) and value != "-1":
            raise InvalidArgument(f"{name} is {value[:100]!r}, it must be a whole number from -1 on")
    elif value not in attribute.values:
        raise InvalidArgument(f"{name} is {value[:100]!r}, it must be one of {', '.join(sorted(attribute.values))}")
