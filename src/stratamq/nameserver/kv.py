"""Key-value settings that the name server keeps for operators, by namespace.

One namespace has a meaning of its own: ``ORDER_TOPIC_CONFIG``, topic -> ``broker-a:8;broker-b:4``. Clients build their
queues from that text and fail on a malformed one, so it is checked when it is put.

Source: apache/rocketmq namesrv/.../KVConfigManager.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from stratamq.errors import InvalidArgument, NothingFound

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
_ORDER: Final = re.compile(r"[^:;]+:\d+(?:;[^:;]+:\d+)*")
_ENTRIES_MAX: Final = 10_000
_TEXT_MAX: Final = 65_536


class KvConfig:
    """Namespaces of key-value pairs. ``on_change`` is called with what is to be stored after every change."""

    def __init__(self, stored: Any = None, *, on_change: Callable[[Any], None] | None = None) -> None:
        self._on_change = on_change
        self._tables: dict[str, dict[str, str]] = {}
        tables = stored.get("configTable") if isinstance(stored, dict) else None
        for namespace, table in (tables or {}).items():
            if isinstance(table, dict):
                self._tables[namespace] = {str(key): str(value) for key, value in table.items()}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value. Raises InvalidArgument when it is too long, one too many, or a malformed order setting."""
        if namespace == ORDER_TOPIC_CONFIG and not _ORDER.fullmatch(value):
            raise InvalidArgument(
                f"order setting of {key} is {value!r}; allowed: broker-name:queues;broker-name:queues"
            )
        if len(value) > _TEXT_MAX or len(key) > _TEXT_MAX:
            raise InvalidArgument(f"key and value have at most {_TEXT_MAX} characters")
        if sum(map(len, self._tables.values())) >= _ENTRIES_MAX and key not in self._tables.get(namespace, ()):
            raise InvalidArgument(f"there are {_ENTRIES_MAX} entries already; delete some first")
        self._tables.setdefault(namespace, {})[key] = value
        self._changed()

    def get(self, namespace: str, key: str) -> str:
        """One value. Raises NothingFound."""
        value = self._tables.get(namespace, {}).get(key)
        if value is None:
            raise NothingFound(f"no value for key {key} in namespace {namespace}")
        return value

    def delete(self, namespace: str, key: str) -> None:
        """Remove one value; nothing happens when there is none."""
        table = self._tables.get(namespace)
        if table is not None and table.pop(key, None) is not None:
            if not table:
                del self._tables[namespace]
            self._changed()

    def table(self, namespace: str) -> dict[str, str]:
        """All pairs of a namespace. Raises NothingFound when there are none."""
        table = self._tables.get(namespace)
        if not table:
            raise NothingFound(f"nothing in namespace {namespace}")
        return dict(table)

    def order_topics(self) -> dict[str, str]:
        """The order settings, which brokers are told with each registration."""
        return dict(self._tables.get(ORDER_TOPIC_CONFIG, {}))

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change({"configTable": {name: dict(table) for name, table in self._tables.items()}})
