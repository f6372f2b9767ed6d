"""SQL92 filters that consumer groups subscribe by, as RocketMQ keeps them in ``config/consumerFilter.json``.

A group's newest filter of a topic counts, by the client's version of its subscription. When the last member of a group
goes, its filters are dead; they are forgotten a day later. After a start all count as dead until their group is back.

A filter comes with the bits that it would have in RocketMQ's Bloom maps: RocketMQ ignores the whole file when they are
not its own. This broker makes no such maps.

Source: apache/rocketmq broker/.../ConsumerFilterManager.java, ConsumerFilterData.java; filter/.../BloomFilter.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratamq.broker.sql import SqlFilter, compile_filter
from stratamq.broker.subscriptions import EXPRESSION_SQL92, Subscription
from stratamq.errors import SubscriptionIllegal

_log = logging.getLogger(__name__)

DEAD_FILTERS_KEPT_MS: Final = 24 * 3600 * 1000
_DEAD_AT_LOAD_MS: Final = 30_000
BLOOM_BITS: Final = 112
"""Length of RocketMQ's maps with its defaults: 32 consumers, 20 % errors."""
_BLOOM_HASHES: Final = 3


@dataclass(slots=True)
class GroupFilter:
    """One group's filter of one topic. Times are wall time; ``dead_ms`` 0 means alive."""

    group: str
    topic: str
    version: int
    born_ms: int
    dead_ms: int
    sql: SqlFilter

    @property
    def is_dead(self) -> bool:
        """Whether the group has had no member since."""
        return self.dead_ms >= self.born_ms

    def as_json(self) -> dict[str, Any]:
        """As RocketMQ writes it."""
        return {
            "bloomFilterData": {"bitNum": BLOOM_BITS, "bitPos": bloom_positions(f"{self.group}#{self.topic}")},
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.sql.expression,
            "expressionType": EXPRESSION_SQL92,
            "topic": self.topic,
        }


class FilterTable:
    """All groups' filters."""

    def __init__(self, saved: Any | None, *, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._filters: dict[str, dict[str, GroupFilter]] = {}
        """By group and topic."""
        self.is_dirty = False
        self._load(saved)

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Take what a member of a group subscribes to: all topics, with any kind of expression."""
        subscriptions = list(subscriptions)
        for subscription in subscriptions:
            if subscription.expression_type == EXPRESSION_SQL92:
                self._take(group, subscription)
        topics = {subscription.topic for subscription in subscriptions}
        self._bury(filter for topic, filter in self._filters.get(group, {}).items() if topic not in topics)

    def _take(self, group: str, new: Subscription) -> None:
        old = self._filters.get(group, {}).get(new.topic)
        if old is not None and new.version < old.version:
            return
        if old is not None and (new.version == old.version or new.expression == old.sql.expression):
            if old.is_dead or new.version != old.version:
                old.dead_ms, old.version = 0, new.version
                self.is_dirty = True
            return
        self.is_dirty = True
        try:
            sql = compile_filter(new.expression)
        except SubscriptionIllegal as error:
            _log.warning("group %s, topic %s: %s", group, new.topic, error)
            self._filters.get(group, {}).pop(new.topic, None)
            return
        made = GroupFilter(group, new.topic, new.version, self._wall_ms(), 0, sql)
        self._filters.setdefault(group, {})[new.topic] = made

    def unregister(self, group: str) -> None:
        """The last member of a group is gone."""
        self._bury(self._filters.get(group, {}).values())

    def _bury(self, filters: Iterable[GroupFilter]) -> None:
        for filter in filters:
            if not filter.is_dead:
                filter.dead_ms = max(self._wall_ms(), filter.born_ms)
                self.is_dirty = True

    def find(self, group: str, topic: str) -> GroupFilter | None:
        """A group's filter of a topic, dead or alive; None when it has none that can be parsed."""
        return self._filters.get(group, {}).get(topic)

    # --- on disk ---

    def as_json(self) -> dict[str, Any]:
        """The file: by topic, then by group. Forgets what has been dead for a day."""
        now = self._wall_ms()
        by_topic: dict[str, dict[str, Any]] = {}
        for group, filters in list(self._filters.items()):
            for topic, filter in list(filters.items()):
                if filter.is_dead and now - filter.dead_ms >= DEAD_FILTERS_KEPT_MS:
                    del filters[topic]
                    continue
                entry = by_topic.setdefault(topic, {"groupFilterData": {}, "topic": topic})
                entry["groupFilterData"][group] = filter.as_json()
            if not filters:
                del self._filters[group]
        return {"filterDataByTopic": by_topic}

    def _load(self, saved: Any | None) -> None:
        """Take what was saved; an entry that cannot be used is left out and said: its group brings it again."""
        topics = saved.get("filterDataByTopic") if isinstance(saved, Mapping) else None
        for topic, by_group in _items(topics):
            for group, entry in _items(by_group.get("groupFilterData") if isinstance(by_group, Mapping) else None):
                filter = self._read(group, topic, entry)
                if filter is not None:
                    self._filters.setdefault(group, {})[topic] = filter

    def _read(self, group: str, topic: str, entry: Any) -> GroupFilter | None:
        if not isinstance(entry, Mapping) or entry.get("expressionType") != EXPRESSION_SQL92:
            return None
        numbers = [entry.get(name) for name in ("clientVersion", "bornTime", "deadTime")]
        expression = entry.get("expression")
        try:
            version, born, dead = (number for number in numbers if isinstance(number, int))
            sql = compile_filter(expression if isinstance(expression, str) else "")
        except (ValueError, SubscriptionIllegal) as error:
            _log.warning("the saved filter of group %s, topic %s is left out: %s", group, topic, error)
            return None
        if dead == 0:
            dead = max(self._wall_ms() - _DEAD_AT_LOAD_MS, born)
        return GroupFilter(group, topic, version, born, dead, sql)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, Mapping) else ()


# --- RocketMQ's Bloom positions ---

_MASK64: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def bloom_positions(key: str) -> list[int]:
    """The bits of ``group#topic`` in RocketMQ's maps: Murmur3, 128 bits, x64; the first 64 give two hashes."""
    first = _murmur3_low64(key.encode("utf-8", "replace"))
    low, high = first & 0xFFFFFFFF, first >> 32
    positions = []
    for number in range(1, _BLOOM_HASHES + 1):
        mixed = (low + number * high) & 0xFFFFFFFF
        positions.append((mixed ^ 0xFFFFFFFF if mixed & 0x80000000 else mixed) % BLOOM_BITS)
    return positions


def _murmur3_low64(data: bytes) -> int:
    one = two = 0
    blocks_end = len(data) & ~15
    for at in range(0, blocks_end, 16):
        one ^= _scramble(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        one = (_rotate(one, 27) + two) * 5 + 0x52DCE729 & _MASK64
        two ^= _scramble(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        two = (_rotate(two, 31) + one) * 5 + 0x38495AB5 & _MASK64
    tail = data[blocks_end:]
    two ^= _scramble(int.from_bytes(tail[8:], "little"), _C2, 33, _C1)
    one ^= _scramble(int.from_bytes(tail[:8], "little"), _C1, 31, _C2)
    one ^= len(data)
    two ^= len(data)
    one = one + two & _MASK64
    two = two + one & _MASK64
    return _finish(one) + _finish(two) & _MASK64


def _scramble(value: int, factor: int, turn: int, other: int) -> int:
    return _rotate(value * factor & _MASK64, turn) * other & _MASK64


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK64


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK64
    return value ^ value >> 33
