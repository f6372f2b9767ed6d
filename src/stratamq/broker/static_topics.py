"""Static topics: a fixed number of logical queues, each made of physical queues that follow one another.

A logical queue has a list of items, oldest first. An item is one physical queue of one broker and says at which
logical offset it begins; the last one is the leader: its broker takes what is sent and answers for the whole queue.
Moving a queue to another broker adds an item there. At first its ``logicOffset`` is -1, undecided: it is written to,
but not read, until the operator's tool knows how far the old leader got and leaves a gap behind it.

    logical offset   0 ........ 57            10000 ..........
    item             gen 0, broker-a, queue 1 | gen 1, broker-b, queue 0

This module holds the values, their checks and the arithmetic, and the table of one broker. It knows no request and no
other broker. Kept in ``config/topicQueueMapping.json``.

Source: apache/rocketmq remoting/.../statictopic/*.java, broker/.../TopicQueueMappingManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from stratamq.broker.topics import QUEUES_MAX
from stratamq.broker.versions import DataVersion
from stratamq.errors import MappingRefused, NotLeaderForQueue

GLOBAL_SCOPE: Final = "__global__"
UNDECIDED: Final = -1
ITEMS_MAX: Final = 1_024
"""How often one logical queue may have moved."""

_Queue = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Offset = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]


class MappingItem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One physical queue of a logical one. Offsets of it begin at ``start_offset`` and end before ``end_offset``."""

    gen: _Queue
    queue_id: _Queue
    bname: str
    logic_offset: _Offset = 0
    start_offset: _Offset = 0
    end_offset: _Offset = UNDECIDED
    time_of_start: int = -1
    time_of_end: int = -1

    @property
    def is_decided(self) -> bool:
        """Whether it is known where the item begins."""
        return self.logic_offset >= 0

    @property
    def is_ended(self) -> bool:
        """Whether it is known where the item ends."""
        return self.end_offset > self.start_offset

    @property
    def delta(self) -> int:
        """What is added to an offset of the physical queue to get the logical one."""
        return self.logic_offset - self.start_offset

    @property
    def logical_end(self) -> int:
        """The logical offset behind the item as far as the mapping knows: its begin while its end is open."""
        return self.logic_offset + max(self.end_offset - self.start_offset, 0)

    def to_logical(self, offset: int) -> int:
        """The logical offset of a physical one; the item's first for anything before it."""
        return self.logic_offset + max(offset - self.start_offset, 0)

    def to_logical_or_unknown(self, offset: int) -> int:
        """The same within the item's end; -1 while it is not decided where the item begins."""
        if not self.is_decided:
            return UNDECIDED
        return self.to_logical(min(offset, self.end_offset) if self.end_offset >= self.start_offset else offset)

    def to_physical(self, offset: int) -> int:
        """The physical offset of a logical one; negative when it lies before the item."""
        return offset - self.delta


Items = tuple[MappingItem, ...]


class TopicMapping(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one broker knows of a static topic: the logical queues it leads or led, under RocketMQ's member names."""

    topic: str
    bname: str
    total_queues: Annotated[int, msgspec.Meta(ge=0, le=QUEUES_MAX)] = 0
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    scope: str = GLOBAL_SCOPE
    dirty: bool = False
    hosted_queues: dict[_Queue, Items] = {}

    def led(self) -> dict[int, int]:
        """The physical queue of each logical queue that this broker leads."""
        return {
            number: items[-1].queue_id
            for number, items in sorted(self.hosted_queues.items())
            if items and items[-1].bname == self.bname
        }

    def as_json(self) -> dict[str, Any]:
        """All of it, as ``topicQueueMapping.json`` and operators' tools hold it."""
        queues = {number: msgspec.to_builtins(items) for number, items in sorted(self.hosted_queues.items())}
        return {**self._info({}), "hostedQueues": queues}

    def info(self) -> dict[str, Any]:
        """What name servers are told: `led` without the items."""
        return self._info(self.led())

    def _info(self, led: dict[int, int]) -> dict[str, Any]:
        return {
            "bname": self.bname,
            "currIdMap": led,
            "dirty": self.dirty,
            "epoch": self.epoch,
            "scope": self.scope,
            "topic": self.topic,
            "totalQueues": self.total_queues,
        }


class Place(NamedTuple):
    """A logical queue that this broker leads."""

    mapping: TopicMapping
    queue_id: int
    items: Items

    @property
    def leader(self) -> MappingItem:
        """The item that is written to."""
        return self.items[-1]

    @property
    def earliest(self) -> MappingItem:
        """The first item that may be read."""
        return next(reversed(self.readable), self.items[0])

    @property
    def readable(self) -> Items:
        """The items that may be read, newest first."""
        return tuple(item for item in reversed(self.items) if item.is_decided)

    @property
    def is_one_queue(self) -> bool:
        """Whether its offsets are those of one physical queue, which has always been its only one."""
        return len(self.items) == 1 and not self.leader.delta

    def is_here(self, item: MappingItem) -> bool:
        """Whether an item's physical queue is this broker's."""
        return item.bname == self.mapping.bname

    def item_at(self, offset: int) -> MappingItem:
        """The item that a logical offset lies in or behind; the earliest for anything before it."""
        return next((item for item in self.readable if offset >= item.logic_offset), self.earliest)

    def after(self, item: MappingItem) -> MappingItem | None:
        """The next item that may be read; None behind the last."""
        return next((other for other in self.items if other.gen > item.gen and other.is_decided), None)


def decode_mapping(value: Any) -> TopicMapping:
    """A mapping from parsed JSON, keys as text or numbers. Raises MappingRefused with the member that is wrong."""
    if not isinstance(value, dict):
        raise MappingRefused("a topic's queue mapping must be a JSON object")
    known = {name: member for name, member in value.items() if member is not None}
    try:
        return msgspec.convert(known, TopicMapping, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MappingRefused(f"the queue mapping cannot be read: {error}") from error


def check_items(items: Items) -> None:
    """Whether items can follow one another. Raises MappingRefused."""
    if len(items) > ITEMS_MAX:
        raise MappingRefused(f"a queue has {len(items)} items, at most {ITEMS_MAX} are taken")
    later: MappingItem | None = None
    for item in reversed(items):
        if item.start_offset < 0:
            raise MappingRefused(f"the item of generation {item.gen} has the negative startOffset {item.start_offset}")
        if later is not None and item.logic_offset < 0:
            raise MappingRefused(
                f"the item of generation {item.gen} has no logicOffset, and only the last one may have none"
            )
        if later is not None and item.gen >= later.gen:
            raise MappingRefused(f"generation {item.gen} stands before generation {later.gen}; they must grow")
        if item.end_offset != UNDECIDED and item.end_offset < item.start_offset:
            raise MappingRefused(f"the item of generation {item.gen} ends at {item.end_offset}, before it begins")
        if later is not None and later.is_decided:
            if item.logic_offset >= later.logic_offset:
                raise MappingRefused(
                    f"logicOffset {item.logic_offset} stands before {later.logic_offset}; they must grow"
                )
            if item.logical_end >= later.logic_offset:
                raise MappingRefused(
                    f"the item of generation {item.gen} reaches into the next one, which begins at {later.logic_offset}"
                )
        later = item


def check_mapping(mapping: TopicMapping, *, broker_name: str) -> None:
    """Whether this broker can serve by a mapping. Raises MappingRefused."""
    where = f"queue mapping of topic {mapping.topic}"
    if mapping.bname != broker_name:
        raise MappingRefused(f"the {where} is for broker {mapping.bname}, this is {broker_name}")
    users: dict[int, int] = {}
    for number, items in mapping.hosted_queues.items():
        if number >= mapping.total_queues:
            raise MappingRefused(f"the {where} has {mapping.total_queues} queues, but names queue {number}")
        if not items:
            raise MappingRefused(f"the {where} says nothing of queue {number}")
        check_items(items)
        if not items[0].is_decided:
            raise MappingRefused(f"the {where} does not say where queue {number} begins")
        for queue_id in (item.queue_id for item in items if item.bname == broker_name):
            if queue_id in users:
                raise MappingRefused(
                    f"the {where} gives queues {users[queue_id]} and {number} the same physical queue {queue_id}"
                )
            users[queue_id] = number


def check_change(old: Items, new: Items, *, is_epoch_equal: bool) -> None:
    """Whether items may take the place of others: what both have must be the same. Raises MappingRefused.

    Either list may lack what the other has: the oldest items are dropped when they hold nothing any more.
    """
    if not old:
        return
    if not new:
        raise MappingRefused("the new item list is empty, the known one is not")
    known = {item.gen: item for item in old}
    for item in new:
        before = known.get(item.gen)
        if before is None:
            continue
        kept = (before.bname, before.queue_id, before.start_offset)
        if kept != (item.bname, item.queue_id, item.start_offset):
            raise MappingRefused(f"the item of generation {item.gen} is another physical queue than before")
        if before.is_decided and before.logic_offset != item.logic_offset:
            raise MappingRefused(
                f"the item of generation {item.gen} began at logical offset {before.logic_offset}, "
                f"that cannot become {item.logic_offset}"
            )
    leaders = [(items[-1].gen, items[-1].bname, items[-1].queue_id, items[-1].start_offset) for items in (old, new)]
    if is_epoch_equal and leaders[0] != leaders[1]:
        raise MappingRefused("another leader needs a higher epoch")


class StaticTopics:
    """The queue mappings of one broker. ``is_dirty`` until what is stored is current.

    A stored mapping that cannot be read is refused as a whole with MappingRefused: serving a static topic as if it
    were none would give its messages other offsets.
    """

    def __init__(self, stored: Any = None, *, broker_name: str, wall_ms: Callable[[], int]) -> None:
        self._broker_name = broker_name
        self._wall_ms = wall_ms
        self.is_dirty = False
        self.version = DataVersion.from_json(stored.get("dataVersion") if isinstance(stored, dict) else None)
        table = stored.get("topicQueueMappingInfoMap") if isinstance(stored, dict) else None
        self._mappings = _decode_table(table)

    def __len__(self) -> int:
        return len(self._mappings)

    def __contains__(self, topic: str) -> bool:
        return topic in self._mappings

    def find(self, topic: str) -> TopicMapping | None:
        """A topic's mapping; None for a topic that is not static."""
        return self._mappings.get(topic)

    def accept(self, new: TopicMapping, *, force: bool = False) -> TopicMapping:
        """What a new mapping becomes with what is known: queues that it does not name stay.

        With ``force`` it need not be a successor of the known one. Changes nothing. Raises MappingRefused.
        """
        check_mapping(new, broker_name=self._broker_name)
        old = self._mappings.get(new.topic)
        if old is None:
            return new
        if not force:
            if new.epoch < old.epoch:
                raise MappingRefused(f"epoch {new.epoch} is older than the known {old.epoch}")
            is_equal = new.epoch == old.epoch
            for number, items in old.hosted_queues.items():
                if number in new.hosted_queues:
                    check_change(items, new.hosted_queues[number], is_epoch_equal=is_equal)
                elif is_equal:
                    raise MappingRefused(f"queue {number} is missing, and the epoch {new.epoch} is the known one")
        merged = msgspec.structs.replace(new, hosted_queues={**old.hosted_queues, **new.hosted_queues})
        check_mapping(merged, broker_name=self._broker_name)
        return merged

    def put(self, mapping: TopicMapping) -> None:
        """Serve a topic by a mapping that `accept` gave."""
        self._mappings[mapping.topic] = mapping
        self._changed()

    def delete(self, topic: str) -> None:
        """Forget a topic. Harmless when it is not static."""
        if self._mappings.pop(topic, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.version.next(self._wall_ms())
        self.is_dirty = True

    def place(self, topic: str, queue_id: int, *, lo: bool | None = None) -> Place | None:
        """Where a logical queue lies; None when the topic is not static, or ``lo`` says that the queue is none.

        A negative number stands for any queue led here, as in a send. Raises NotLeaderForQueue.
        """
        mapping = self._mappings.get(topic)
        if mapping is None or lo is False:
            return None
        if queue_id < 0:
            queue_id = next(iter(mapping.led()), queue_id)
        items = mapping.hosted_queues.get(queue_id)
        if not items or items[-1].bname != mapping.bname:
            raise NotLeaderForQueue(
                f"{topic}-{queue_id} is not led by broker {self._broker_name}; ask for the topic's route again"
            )
        return Place(mapping, queue_id, items)

    def infos(self) -> dict[str, Any]:
        """By topic what name servers are told."""
        return {topic: mapping.info() for topic, mapping in sorted(self._mappings.items())}

    def details(self) -> dict[str, Any]:
        """By topic all that is known."""
        return {topic: mapping.as_json() for topic, mapping in sorted(self._mappings.items())}

    def as_json(self) -> dict[str, Any]:
        """What ``topicQueueMapping.json`` holds."""
        return {"dataVersion": self.version.as_json(), "topicQueueMappingInfoMap": self.details()}

    def adopt(self, stored: Mapping[str, Any]) -> None:
        """Take a master's mappings, as GET_ALL_TOPIC_CONFIG gives them, in place of the own ones."""
        mappings = _decode_table(stored.get("topicQueueMappingDetailMap"))
        if mappings != self._mappings:
            self._mappings = mappings
            self.version = DataVersion.from_json(stored.get("mappingDataVersion"))
            self.is_dirty = True


def _decode_table(table: Any) -> dict[str, TopicMapping]:
    if not isinstance(table, dict):
        return {}
    return {topic: decode_mapping({**_object(value), "topic": topic}) for topic, value in table.items()}


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MappingRefused("a topic's queue mapping must be a JSON object")
    return value
