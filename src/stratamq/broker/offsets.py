"""How far each consumer group has come in each queue, kept in ``config/consumerOffset.json``.

An offset is the next one to consume. A smaller one than before is taken (consumers may go back on purpose). The file
is written every few seconds and at stop, so after a crash a group may see again what it consumed in that time.

Source: apache/rocketmq broker/.../ConsumerOffsetManager.java.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from stratamq.broker.versions import DataVersion

TOPIC_GROUP_SEPARATOR: Final = "@"


class OffsetTable:
    """Committed offsets: (topic, group) -> queue id -> offset. ``is_dirty`` until what is stored is current."""

    def __init__(self, stored: Any = None, *, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.resets: dict[tuple[str, str, int], int] = {}
        """Offsets that an operator set and the group has not heard of yet: (topic, group, queue id) -> offset."""
        self.is_dirty = False
        self.version = DataVersion.from_json(stored.get("dataVersion") if isinstance(stored, dict) else None)
        table = stored.get("offsetTable") if isinstance(stored, dict) else None
        for name, queues in (table or {}).items():
            topic, separator, group = name.rpartition(TOPIC_GROUP_SEPARATOR)
            if separator and isinstance(queues, dict):
                self._offsets[topic, group] = {int(queue): int(offset) for queue, offset in queues.items()}

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember an offset."""
        queues = self._offsets.get((topic, group))
        if queues is None:
            queues = self._offsets[topic, group] = {}
        queues[queue_id] = offset
        self.is_dirty = True

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None."""
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """All committed offsets of a group in a topic, by queue id."""
        return dict(self._offsets.get((topic, group), {}))

    def pairs(self) -> list[tuple[str, str]]:
        """All (topic, group) in which something is committed."""
        return list(self._offsets)

    def topics_of(self, group: str) -> list[str]:
        """Topics in which a group has committed something, sorted."""
        return sorted(topic for topic, name in self._offsets if name == group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have committed something in a topic, sorted."""
        return sorted(group for name, group in self._offsets if name == topic)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset on an operator's behalf: it stands at once, and the group's next pull is told of it.

        Until then what the group commits in that queue is not taken.
        """
        self.commit(group, topic, queue_id, offset)
        self.resets[topic, group, queue_id] = offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset to tell a group of, once; None when nobody set one."""
        return self.resets.pop((topic, group, queue_id), None)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether an operator set an offset that the group has not heard of yet."""
        return (topic, group, queue_id) in self.resets

    def clone(self, group: str, to_group: str, topic: str) -> None:
        """Let another group stand where this one stands in a topic."""
        queues = self._offsets.get((topic, group))
        if queues:
            self._offsets[topic, to_group] = dict(queues)
            self.is_dirty = True

    def adopt(self, stored: Any) -> None:
        """Take over all offsets of another broker's table, as `as_json` gives it; what it does not know stays."""
        other = OffsetTable(stored, wall_ms=self._wall_ms)
        for key, queues in other._offsets.items():
            mine = self._offsets.setdefault(key, {})
            if mine | queues != mine:
                mine.update(queues)
                self.is_dirty = True

    def delete_topic(self, topic: str) -> None:
        """Forget everybody's offsets in a topic."""
        self._delete(lambda key: key[0] == topic)

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._delete(lambda key: key[1] == group)

    def _delete(self, is_meant: Callable[[tuple[str, str]], bool]) -> None:
        for key in [key for key in self._offsets if is_meant(key)]:
            del self._offsets[key]
            self.is_dirty = True
        for reset in [reset for reset in self.resets if is_meant(reset[:2])]:
            del self.resets[reset]

    def as_json(self) -> dict[str, Any]:
        """What ``consumerOffset.json`` holds. Counts a new data version when something changed since the last call."""
        if self.is_dirty:
            self.version.next(self._wall_ms())
        table = {f"{topic}@{group}": dict(queues) for (topic, group), queues in self._offsets.items()}
        return {"dataVersion": self.version.as_json(), "offsetTable": table}
