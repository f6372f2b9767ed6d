"""Tag subscriptions: ``*`` or ``a || b``, as the set of Java hashes that the store filters by.

Source: apache/rocketmq remoting/.../FilterAPI.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from stratamq.errors import NotSupported, SubscriptionIllegal
from stratamq.formats.java import tags_code

ALL_TAGS: Final = "*"
EXPRESSION_TAG: Final = "TAG"
TAGS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic. ``tags_codes`` is None for everything."""

    topic: str
    expression: str
    tags: frozenset[str]
    tags_codes: frozenset[int] | None
    version: int = 0
    expression_type: str = EXPRESSION_TAG


@lru_cache(maxsize=1024)
def parse_subscription(topic: str, expression: str, expression_type: str = "", version: int = 0) -> Subscription:
    """Parse a subscription expression; None or "" for the type means TAG.

    Raises SubscriptionIllegal when it cannot be parsed, NotSupported for SQL92.
    """
    if expression_type not in ("", EXPRESSION_TAG):
        raise NotSupported(f"the broker does not filter by {expression_type}; subscribe by tags")
    if expression in ("", ALL_TAGS):
        return Subscription(topic, ALL_TAGS, frozenset(), None, version)
    tags = frozenset(tag for tag in map(str.strip, expression.split("||")) if tag)
    if not tags:
        raise SubscriptionIllegal(f"the subscription {expression!r} of topic {topic} names no tag")
    if len(tags) > TAGS_MAX:
        raise SubscriptionIllegal(f"the subscription of topic {topic} names {len(tags)} tags, at most {TAGS_MAX}")
    return Subscription(topic, expression, tags, frozenset(map(tags_code, tags)), version)
