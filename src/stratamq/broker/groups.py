"""Consumer groups and their settings, kept in ``config/subscriptionGroup.json``.

Source: apache/rocketmq broker/.../SubscriptionGroupManager.java, remoting/.../SubscriptionGroupConfig.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from stratamq.broker.versions import DataVersion
from stratamq.errors import GroupNotFound, InvalidArgument

GROUP_CHARACTERS_MAX: Final = 120
GROUPS_MAX: Final = 100_000
FORBIDDEN_READ: Final = 1 << 2
"""The bit of ``forbiddenTable`` that stands for reading."""
_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class GroupConfig(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False):
    """One consumer group, under RocketMQ's member names."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = {}


def check_group_name(group: str) -> None:
    """Raise InvalidArgument when ``group`` cannot be the name of one."""
    if not group or len(group) > GROUP_CHARACTERS_MAX or not _LEGAL_NAME.fullmatch(group):
        raise InvalidArgument(
            f"the group {group[:200]!r} is not legal; allowed: 1 to {GROUP_CHARACTERS_MAX} of % | a-z A-Z 0-9 _ -"
        )


def _mask(value: Any) -> int:
    return value if isinstance(value, int) else 0


class GroupTable:
    """All consumer groups of a broker. ``on_change`` is called after every change."""

    def __init__(
        self,
        stored: Any = None,
        *,
        auto_create: bool = True,
        wall_ms: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.auto_create = auto_create
        """Whether a group is made on first use."""
        self._wall_ms = wall_ms
        self._on_change = on_change
        self._groups: dict[str, GroupConfig] = {}
        self._forbidden: dict[str, Any] = {}
        self.version = DataVersion.from_json(stored.get("dataVersion") if isinstance(stored, dict) else None)
        if isinstance(stored, dict):
            self._forbidden = stored.get("forbiddenTable") or {}
            for name, entry in (stored.get("subscriptionGroupTable") or {}).items():
                if isinstance(entry, dict):
                    known = {key: value for key, value in entry.items() if value is not None}
                    self._groups[name] = msgspec.convert({**known, "groupName": name}, GroupConfig, strict=False)

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, group: str) -> GroupConfig | None:
        """A group that is there already, or None."""
        return self._groups.get(group)

    def get(self, group: str) -> GroupConfig:
        """A group; made on first use when that is allowed. Raises GroupNotFound, InvalidArgument."""
        found = self._groups.get(group)
        if found is not None:
            return found
        if not self.auto_create:
            raise GroupNotFound(
                f"consumer group {group} does not exist; create it, or set autoCreateSubscriptionGroup=true"
            )
        check_group_name(group)
        if len(self._groups) >= GROUPS_MAX:
            raise InvalidArgument(f"there are {GROUPS_MAX} consumer groups already; delete some first")
        config = GroupConfig(group_name=group)
        self.put(config)
        return config

    def put(self, config: GroupConfig) -> None:
        """Create or replace a group. Raises InvalidArgument for an illegal name."""
        check_group_name(config.group_name)
        self._groups[config.group_name] = config
        self._changed()

    def delete(self, group: str) -> None:
        """Forget a group."""
        if self._groups.pop(group, None) is not None:
            self._changed()

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Let a group read a topic or forbid it. Raises GroupNotFound, InvalidArgument."""
        self.get(group)
        table = self._forbidden.get(group)
        topics: dict[str, Any] = table if isinstance(table, dict) else {}
        mask = _mask(topics.get(topic))
        changed = mask & ~FORBIDDEN_READ if readable else mask | FORBIDDEN_READ
        if changed == mask:
            return
        topics[topic] = changed
        if not changed:
            del topics[topic]
        self._forbidden[group] = topics
        if not topics:
            del self._forbidden[group]
        self._changed()

    def is_readable(self, group: str, topic: str) -> bool:
        """Whether a group may read a topic."""
        if not self._forbidden:
            return True
        table = self._forbidden.get(group)
        return not (isinstance(table, dict) and _mask(table.get(topic)) & FORBIDDEN_READ)

    def adopt(self, stored: Any) -> bool:
        """Take another broker's table, as `as_json` gives it, in place of this one; says whether it was another."""
        other = GroupTable(stored, wall_ms=self._wall_ms)
        mine = (self._groups, self._forbidden, self.version)
        if mine == (other._groups, other._forbidden, other.version):
            return False
        self._groups.clear()
        self._groups.update(other._groups)
        self._forbidden, self.version = other._forbidden, other.version
        self._on_change()
        return True

    def configs(self) -> Mapping[str, GroupConfig]:
        """All groups by name; a view, not to be changed."""
        return self._groups

    def as_json(self) -> dict[str, Any]:
        """What ``subscriptionGroup.json`` and GET_ALL_SUBSCRIPTIONGROUP_CONFIG hold."""
        table = {name: msgspec.to_builtins(self._groups[name]) for name in sorted(self._groups)}
        return {
            "dataVersion": self.version.as_json(),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": table,
        }

    def _changed(self) -> None:
        self.version.next(self._wall_ms())
        self._on_change()
