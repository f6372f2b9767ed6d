"""Topics of one broker: their queues and permissions, automatic creation, the table on disk.

A producer names a template topic (``TBW102``) with its first send; the template's permission must carry the inherit
bit. Consumers never create a topic, but each consumer group gets its ``%RETRY%group`` and, in need, ``%DLQ%group``.

The table is kept in ``config/topics.json``. Messages are the truth: a topic that the store holds messages of but that
the table has lost is taken back at start with as many queues as there are.

Source: apache/rocketmq broker/.../TopicConfigManager.java, common/.../TopicValidator.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from stratamq.broker.versions import DataVersion
from stratamq.errors import InvalidArgument, TopicNotFound, TopicRefused
from stratamq.logstore.queue_types import BATCH_TYPE, QUEUE_TYPE

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

TEMPLATE_TOPIC: Final = "TBW102"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
SCHEDULE_QUEUES: Final = 18
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SYSTEM_PREFIX: Final = "rmq_sys_"

UNSENDABLE_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, CHECK_MAX_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
    | {TIMER_TOPIC}
)
"""Topics that clients may not send to: the broker writes them itself."""

SYSTEM_TOPICS: Final = frozenset({TEMPLATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}) | UNSENDABLE_TOPICS

TOPIC_CHARACTERS_MAX: Final = 127
QUEUES_MAX: Final = 1024
_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One topic, under RocketMQ's member names."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    def routed(self, permission: int) -> TopicConfig:
        """The topic as routes show it: without what ``brokerPermission`` forbids. Source: BrokerController.java."""
        if permission & PERM_READ and permission & PERM_WRITE:
            return self
        return msgspec.structs.replace(self, perm=self.perm & permission)

    @property
    def is_writable(self) -> bool:
        """Whether messages may be sent to it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def is_readable(self) -> bool:
        """Whether messages may be read from it."""
        return bool(self.perm & PERM_READ)

    @property
    def is_batch(self) -> bool:
        """Whether its queues are queues of batches (``queue.type=BatchCQ``)."""
        return self.attributes.get(QUEUE_TYPE) == BATCH_TYPE

    @property
    def queues(self) -> int:
        """Queue ids run below this number."""
        return max(self.read_queue_nums, self.write_queue_nums)


def is_system_topic(topic: str) -> bool:
    """Whether the broker made this topic for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def check_topic_name(topic: str) -> None:
    """Raise TopicRefused when ``topic`` cannot be the name of one."""
    if not topic:
        raise TopicRefused("the topic is empty")
    if not _LEGAL_NAME.fullmatch(topic):
        raise TopicRefused(f"the topic {topic!r} is not legal; allowed characters: % | a-z A-Z 0-9 _ -")
    if len(topic) > TOPIC_CHARACTERS_MAX:
        raise TopicRefused(f"the topic has {len(topic)} characters, at most {TOPIC_CHARACTERS_MAX} are allowed")


class TopicTable:
    """All topics of a broker. ``on_change`` is called with every topic that was made or changed."""

    def __init__(
        self,
        stored: Any = None,
        *,
        wall_ms: Callable[[], int],
        on_change: Callable[[TopicConfig], None] = lambda config: None,
    ) -> None:
        self._wall_ms = wall_ms
        self._on_change = on_change
        self._topics: dict[str, TopicConfig] = {}
        self.version = DataVersion.from_json(stored.get("dataVersion") if isinstance(stored, dict) else None)
        table = stored.get("topicConfigTable") if isinstance(stored, dict) else None
        for name, entry in (table or {}).items():
            if isinstance(entry, dict):
                known = {key: value for key, value in entry.items() if value is not None}
                self._topics[name] = msgspec.convert({**known, "topicName": name}, TopicConfig, strict=False)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, topic: str) -> TopicConfig | None:
        """A topic, or None."""
        return self._topics.get(topic)

    def get(self, topic: str) -> TopicConfig:
        """A topic. Raises TopicNotFound."""
        found = self._topics.get(topic)
        if found is None:
            raise TopicNotFound(f"topic {topic} does not exist on this broker")
        return found

    def names(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._topics)

    def configs(self) -> Mapping[str, TopicConfig]:
        """All topics by name; a view, not to be changed."""
        return self._topics

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic."""
        self._topics[config.topic_name] = config
        self.version.next(self._wall_ms())
        self._on_change(config)

    def update(self, config: TopicConfig) -> None:
        """Create or change a topic on an operator's behalf. Raises TopicRefused, InvalidArgument."""
        self.check(config)
        self.put(config)

    def check(self, config: TopicConfig) -> None:
        """Whether an operator may have such a topic. Raises TopicRefused, InvalidArgument."""
        check_topic_name(config.topic_name)
        if is_system_topic(config.topic_name):
            raise TopicRefused(f"topic {config.topic_name} belongs to the broker")
        for count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= count <= QUEUES_MAX:
                raise InvalidArgument(f"a topic has 0 to {QUEUES_MAX} queues, not {count}")
        if not 0 <= config.perm <= PERM_PRIORITY | PERM_READ | PERM_WRITE | PERM_INHERIT:
            raise InvalidArgument(f"permission {config.perm} is not a sum of 4 (read), 2 (write), 1 (inherit)")

    def adopt(self, stored: Any) -> list[TopicConfig] | None:
        """Take another broker's table, as `as_json` gives it, in place of this one; nobody is told of changes.

        Returns the topics that are new or changed; None when the two were the same already.
        """
        other = TopicTable(stored, wall_ms=self._wall_ms)
        if (other._topics, other.version) == (self._topics, self.version):
            return None
        changed = [config for name, config in other._topics.items() if config != self._topics.get(name)]
        self._topics.clear()
        self._topics.update(other._topics)
        self.version = other.version
        return changed

    def delete(self, topic: str) -> bool:
        """Forget a topic; say whether it was there."""
        if self._topics.pop(topic, None) is None:
            return False
        self.version.next(self._wall_ms())
        return True

    def ensure(
        self, topic: str, *, queues: int, perm: int = PERM_READ | PERM_WRITE, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, made with this many queues when it is not there."""
        found = self._topics.get(topic)
        if found is None:
            found = TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                order=order,
                topic_sys_flag=sys_flag,
            )
            self.put(found)
        return found

    def create_from_template(self, topic: str, *, template: str, queues: int) -> TopicConfig:
        """Make the topic of a first send from the template that the producer named.

        Raises TopicRefused for an illegal name, TopicNotFound when the template does not hand itself on.
        """
        check_topic_name(topic)
        source = self._topics.get(template)
        if source is None or not source.perm & PERM_INHERIT:
            raise TopicNotFound(
                f"topic {topic} does not exist and cannot be made from {template}; "
                "create it, or set autoCreateTopicEnable=true"
            )
        count = min(queues, source.write_queue_nums)
        if count < 1:
            raise InvalidArgument(f"a topic cannot have {count} queues")
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=source.perm & ~PERM_INHERIT,
            topic_filter_type=source.topic_filter_type,
        )
        self.put(config)
        return config

    def take_back(self, queues: Iterable[tuple[str, int]]) -> list[str]:
        """Add topics that the store has messages of and the table has not; return their names."""
        needed: dict[str, int] = {}
        for topic, queue_id in queues:
            needed[topic] = max(needed.get(topic, 0), queue_id + 1)
        lost = [topic for topic in needed if topic not in self._topics]
        for topic in lost:
            self.ensure(topic, queues=needed[topic])
        for topic, count in needed.items():
            config = self._topics[topic]
            if config.read_queue_nums < count:
                self.put(msgspec.structs.replace(config, read_queue_nums=count))
        return sorted(lost)

    def republish(self) -> None:
        """Count a change of all topics' routes: what the broker allows is different now."""
        self.version.next(self._wall_ms())

    def as_json(self, permission: int = PERM_READ | PERM_WRITE) -> dict[str, Any]:
        """What ``topics.json`` and GET_ALL_TOPIC_CONFIG hold.

        For name servers, with the broker's own ``permission``: what it does not allow, no topic's route allows.
        """
        table = {name: msgspec.to_builtins(self._topics[name].routed(permission)) for name in sorted(self._topics)}
        return {"dataVersion": self.version.as_json(), "topicConfigTable": table}
