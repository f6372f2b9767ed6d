"""Topics, groups and offsets of a broker with light queues (``enableLmq``): none of them is made, all are there.

A light queue ``%LMQ%name`` is read as queue 0 of a topic of that name, by any group; groups may be called ``%LMQ%...``
too. Neither stands in a table: a million of them cost their offsets, no more. Offsets of ordinary groups are kept by
queue, those of ``%LMQ%`` groups as one number, and both are in ``lmqConsumerOffset.json``. The same is written to
``consumerOffset.json``, for whoever looks there.

Source: apache/rocketmq broker/.../LmqTopicConfigManager.java, LmqSubscriptionGroupManager.java,
LmqConsumerOffsetManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from stratamq.broker.groups import GroupConfig, GroupTable
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.ports import SavedValue
from stratamq.broker.topics import PERM_READ, PERM_WRITE, TopicConfig, TopicTable
from stratamq.errors import TopicNotFound, TopicRefused
from stratamq.logstore.light_queues import LIGHT_QUEUE_ID, LMQ_PREFIX, is_light_name

LIGHT_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
_SEPARATOR: Final = "@"


def _light_topic(topic: str) -> TopicConfig | None:
    if not is_light_name(topic):
        return None
    return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ | PERM_WRITE)


class LightTopicTable(TopicTable):
    """A topic table in which every light queue is a topic with one queue."""

    def __contains__(self, topic: str) -> bool:
        return super().__contains__(topic) or is_light_name(topic)

    def find(self, topic: str) -> TopicConfig | None:
        return super().find(topic) or _light_topic(topic)

    def get(self, topic: str) -> TopicConfig:
        found = self.find(topic)
        if found is None:
            raise TopicNotFound(f"topic {topic} does not exist on this broker")
        return found

    def check(self, config: TopicConfig) -> None:
        if is_light_name(config.topic_name):
            raise TopicRefused(f"{config.topic_name} is a light queue: it is there without being made")
        super().check(config)

    def ensure(
        self, topic: str, *, queues: int, perm: int = PERM_READ | PERM_WRITE, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig:
        light = _light_topic(topic)
        if light is not None:
            return light
        return super().ensure(topic, queues=queues, perm=perm, order=order, sys_flag=sys_flag)

    def take_back(self, queues: Iterable[tuple[str, int]]) -> list[str]:
        return super().take_back(key for key in queues if not is_light_name(key[0]))


class LightGroupTable(GroupTable):
    """A group table in which every group called ``%LMQ%...`` is there."""

    def find(self, group: str) -> GroupConfig | None:
        found = super().find(group)
        return GroupConfig(group_name=group) if found is None and is_light_name(group) else found

    def get(self, group: str) -> GroupConfig:
        found = self.find(group)
        return super().get(group) if found is None else found


class LightOffsetTable(OffsetTable):
    """An offset table that also holds the offsets of ``%LMQ%`` groups."""

    def __init__(self, stored: Any = None, *, wall_ms: Callable[[], int]) -> None:
        super().__init__(stored, wall_ms=wall_ms)
        self.take_light(stored)

    def take_light(self, stored: Any) -> None:
        """Take over the offsets of ``%LMQ%`` groups that a file holds."""
        table = stored.get("lmqOffsetTable") if isinstance(stored, dict) else None
        for name, offset in (table if isinstance(table, dict) else {}).items():
            at = name.find(_SEPARATOR + LMQ_PREFIX)
            if at > 0 and isinstance(offset, int) and offset >= 0:
                self._offsets[name[:at], name[at + 1 :]] = {LIGHT_QUEUE_ID: offset}

    def as_json(self) -> dict[str, Any]:
        """What both files hold."""
        found = super().as_json()
        light = {
            f"{topic}{_SEPARATOR}{group}": queues.get(LIGHT_QUEUE_ID, 0)
            for (topic, group), queues in self._offsets.items()
            if group.startswith(LMQ_PREFIX)
        }
        ordinary = {name: queues for name, queues in found["offsetTable"].items() if name not in light}
        return {**found, "lmqOffsetTable": light, "offsetTable": ordinary}


class LightOffsetsFile:
    """The second file of an offset table: dirty when the table is, or was since this was written."""

    def __init__(self, table: LightOffsetTable) -> None:
        self._table = table
        self._written = table.version.counter

    @property
    def is_dirty(self) -> bool:
        """Whether the table changed since this was last written."""
        return self._table.is_dirty or self._table.version.counter != self._written

    @is_dirty.setter
    def is_dirty(self, value: bool) -> None:
        self._written = -1 if value else self._table.version.counter

    def as_json(self) -> Any:
        """What the file holds; the table's own file is written first, so its version is counted already."""
        return self._table.as_json()


def load_offsets(ordinary: SavedValue, light: SavedValue, *, wall_ms: Callable[[], int]) -> LightOffsetTable:
    """The offsets of whichever file was written last; those of ``%LMQ%`` groups of either, as RocketMQ does."""
    older, newer = sorted((ordinary, light), key=lambda file: file.modified_ms())
    stored = newer.load()
    if stored is None:
        older, newer = newer, older
        stored = newer.load()
    table = LightOffsetTable(stored, wall_ms=wall_ms)
    if newer is ordinary and not (isinstance(stored, dict) and "lmqOffsetTable" in stored):
        table.take_light(light.load())
    return table
