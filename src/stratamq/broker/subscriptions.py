"""Subscriptions: tags (``*`` or ``a || b``), as the set of Java hashes that the store filters by, or SQL92.

Source: apache/rocketmq remoting/.../FilterAPI.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from stratamq.broker.sql import SqlFilter, compile_filter
from stratamq.errors import SubscriptionIllegal
from stratamq.formats.java import tags_code

ALL_TAGS: Final = "*"
EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
TAGS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic. ``tags_codes`` is None for everything; ``sql`` decides by properties."""

    topic: str
    expression: str
    tags: frozenset[str]
    tags_codes: frozenset[int] | None
    version: int = 0
    expression_type: str = EXPRESSION_TAG
    sql: SqlFilter | None = None


def parse_subscription(topic: str, expression: str, expression_type: str = "", version: int = 0) -> Subscription:
    """Parse a subscription expression; None or "" for the type means TAG.

    Raises SubscriptionIllegal when it cannot be parsed, and for a type other than TAG and SQL92.
    """
    if expression_type == EXPRESSION_SQL92:
        sql = compile_filter(expression)
        return Subscription(topic, expression, frozenset(), None, version, EXPRESSION_SQL92, sql)
    if expression_type not in ("", EXPRESSION_TAG):
        raise SubscriptionIllegal(f"there are no subscriptions by {expression_type[:40]!r}, only by TAG and SQL92")
    return _parse_tags(topic, expression, version)


@lru_cache(maxsize=1024)
def _parse_tags(topic: str, expression: str, version: int) -> Subscription:
    if expression in ("", ALL_TAGS):
        return Subscription(topic, ALL_TAGS, frozenset(), None, version)
    tags = frozenset(tag for tag in map(str.strip, expression.split("||")) if tag)
    if not tags:
        raise SubscriptionIllegal(f"the subscription {expression!r} of topic {topic} names no tag")
    if len(tags) > TAGS_MAX:
        raise SubscriptionIllegal(f"the subscription of topic {topic} names {len(tags)} tags, at most {TAGS_MAX}")
    return Subscription(topic, expression, tags, frozenset(map(tags_code, tags)), version)
