"""Settings that operators change while the broker runs (UPDATE_BROKER_CONFIG), and the file that keeps them.

What is changed goes to ``config/broker.properties`` in the data directory, never into the ``broker.conf`` that the
broker was started with: that file is an operator's, and may be read only. At start the kept file stands over
``broker.conf``. A change is taken whole or not at all; it is on the disk before it holds.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from stratamq.config import BrokerConfig, RetentionConfig, ServerConfig, key_of, settings_of
from stratamq.errors import AccessDenied, ConfigError, InvalidArgument
from stratamq.files.durable import read_file, replace_file
from stratamq.server.broker_conf import IN_SECONDS, interpret, parse_properties

KEPT_FILE: Final = "broker.properties"
NAMES_FILE: Final = "namesrv.properties"
BLACKLIST: Final = frozenset({"configBlackList", "brokerConfigPath", "configStorePath", "kvConfigPath"})
"""Keys that nobody changes from outside, as in RocketMQ; ``configBlackList`` adds to them."""
Live = Mapping[type[Any], frozenset[str]]
LIVE: Final[Live] = {
    BrokerConfig: frozenset(
        {
            "auto_create_topics",
            "auto_create_groups",
            "default_topic_queues",
            "permission",
            "property_filters",
            "long_polling",
            "short_polling_ms",
            "server_side_reset",
            "query_messages_max",
        }
    ),
    RetentionConfig: frozenset(field.name for field, _ in settings_of(RetentionConfig)) - {"clean_interval_ms"},
}
"""Settings that a running broker takes at once, by class; all others hold from the start on."""
LIVE_NAMES: Final[Live] = {
    ServerConfig: frozenset({"connections_max", "idle_timeout_ms", "stall_timeout_ms", "order_topics"})
}
"""The same of a name server."""
VALUE_BYTES_MAX: Final = 64 * 1024


def live_keys(live: Live = LIVE) -> list[str]:
    """The names of all settings that may change live, sorted."""
    return sorted(
        key_of(kind, field) for kind, names in live.items() for field, _ in settings_of(kind) if field.name in names
    )


def property_text(value: object) -> str:
    """A value as RocketMQ writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, enum.Enum) else value)


def property_lines(configs: Iterable[Any]) -> str:
    """All settings of some configurations as lines that `parse_properties` reads."""
    lines = []
    for config in configs:
        for field, _ in settings_of(type(config)):
            key, value = key_of(type(config), field), getattr(config, field.name)
            lines.append(f"{key}={property_text(value // 1000 if key in IN_SECONDS else value)}\n")
    return "".join(lines)


class LiveSettings:
    """The broker's settings as they are now. ``apply`` is called with the configurations by class after a change."""

    def __init__(
        self,
        configs: Mapping[type[Any], Any],
        path: Path,
        *,
        apply: Callable[[Mapping[type[Any], Any]], None] = lambda configs: None,
        blacklist: str = "",
        live: Live = LIVE,
    ) -> None:
        self.configs = dict(configs)
        self.blacklist = BLACKLIST | {name.strip() for name in blacklist.split(";") if name.strip()}
        self._live = live
        self._path = path
        self._apply = apply

    def update(self, text: str) -> dict[str, str]:
        """Take property lines; returns what was taken. Blocks for two syncs.

        Raises:
            AccessDenied: A key is on the blacklist, or holds from the start on only.
            InvalidArgument: A key that nothing knows, or a value that is not usable.
            OSError: It cannot be kept; nothing has changed then.
        """
        wanted = parse_properties(text)
        for key, value in wanted.items():
            if key in self.blacklist:
                raise AccessDenied(f"Can not update config in black list: {key}")
            if len(value) > VALUE_BYTES_MAX:
                raise InvalidArgument(f"the value of {key} has {len(value)} characters, at most {VALUE_BYTES_MAX}")
        changed = self._changed(wanted)
        kept = read_kept(self._path) | wanted
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(os.fspath(self._path), _render(kept).encode())
        self.configs |= changed
        self._apply(self.configs)
        return wanted

    def _changed(self, wanted: Mapping[str, str]) -> dict[type[Any], Any]:
        live, all_keys = set(live_keys(self._live)), set()
        for config in self.configs.values():
            all_keys |= {key_of(type(config), field) for field, _ in settings_of(type(config))}
        for key in wanted:
            if key in all_keys and key not in live:
                raise AccessDenied(f"{key} holds from the start on: set it in broker.conf and start the broker anew")
            if key not in live:
                raise InvalidArgument(f"{key} is no setting of this broker; getBrokerConfig lists them")
        try:
            values = interpret(wanted, where="the request").values
            return {
                kind: dataclasses.replace(self.configs[kind], **given)
                for kind, given in values.items()
                if given and kind in self.configs
            }
        except ConfigError as error:
            raise InvalidArgument(str(error)) from error


def read_kept(path: Path) -> dict[str, str]:
    """The properties that operators changed earlier; empty when none were. Raises OSError."""
    data = read_file(os.fspath(path))
    return {} if data is None else parse_properties(data.decode("utf-8", "surrogateescape"))


def with_kept(configs: Mapping[type[Any], Any], path: Path, live: Live = LIVE) -> dict[type[Any], Any]:
    """The configurations with what operators changed earlier. Raises ConfigError naming the file, OSError."""
    allowed = set(live_keys(live))
    kept = {key: value for key, value in read_kept(path).items() if key in allowed}
    values = interpret(kept, where=str(path)).values
    return {kind: dataclasses.replace(config, **values.get(kind, {})) for kind, config in configs.items()}


def _render(properties: Mapping[str, str]) -> str:
    head = "# What operators changed while the broker ran; it stands over broker.conf. Written by the broker.\n"
    return head + "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in sorted(properties.items()))


def _escape(text: str) -> str:
    """A key or value so that `parse_properties` reads it back."""
    for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\f", "\\f")):
        text = text.replace(plain, escaped)
    for mark in "=:#! ":
        text = text.replace(mark, "\\" + mark)
    return text
