"""RocketMQ's ``broker.conf``: Java properties, read as they are into our settings.

Values are checked and refused with the allowed form. A key that nothing here knows is no error, because a real
``broker.conf`` has many: all of them are named in one warning. Some keys are known but say something that this broker
cannot do (access control, say): these are refused rather than ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from stratamq.config import SECTIONS, Section, SettingInfo, key_of, own_name, settings_of
from stratamq.errors import ConfigError

ONLY_VALUE: Final[Mapping[str, tuple[str, str]]] = {
    "enableDLegerCommitLog": ("false", "false (groups of brokers are made with stratamq broker --group)"),
    "storeType": ("default", "default"),
    "aclEnable": ("false", "false (access control is not served yet)"),
}
"""Keys that have one value here; any other would promise what is not done."""

ALIASES: Final[Mapping[str, str]] = {"haSlaveFallbehindMax": "haMaxGapNotInSync"}
"""Names of RocketMQ 4 for settings that RocketMQ 5 calls otherwise."""
_ROOT_KEY: Final = "storePathRootDir"
IN_SECONDS: Final = frozenset({"serverChannelMaxIdleTimeSeconds"})
_UNICODE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")


class BrokerConf(NamedTuple):
    """What a file says: settings by class, the store directory when it names one, keys nobody knows."""

    values: dict[type[Any], dict[str, Any]]
    data_dir: str | None
    unknown: list[str]


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties format: ``key=value``, ``key: value`` or ``key value``; # and ! comments; \\ continues a line.

    Of a repeated key the last one wins.
    """
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        logical = line.lstrip(" \t\f")
        if not logical or logical[0] in "#!":
            continue
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1] + next(lines, "").lstrip(" \t\f")
        match = re.match(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", logical, re.DOTALL)
        assert match is not None
        found[_unescape(match[1])] = _unescape(match[2])
    return found


def _unescape(text: str) -> str:
    text = _UNICODE.sub(lambda match: chr(int(match[1], 16)), text)
    return re.sub(r"\\(.)", lambda match: {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(match[1], match[1]), text)


def read_broker_conf(path: Path) -> BrokerConf:
    """Read a ``broker.conf``. Raises ConfigError when it cannot be read or a value is not usable."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigError("--config", str(path), "a readable file", where=error.strerror or "") from error
    return interpret(parse_properties(text), where=str(path))


def interpret(properties: Mapping[str, str], *, where: str = "") -> BrokerConf:
    """Turn properties into settings. Raises ConfigError."""
    known = {key_of(section, field): (section, field.name) for section in SECTIONS for field, _ in settings_of(section)}
    values: dict[type[Any], dict[str, Any]] = {section: {} for section in SECTIONS}
    unknown: list[str] = []
    for given, raw in properties.items():
        key, text = ALIASES.get(given, given), raw.strip()
        if key in ONLY_VALUE:
            only, allowed = ONLY_VALUE[key]
            if text.lower() != only.lower():
                raise ConfigError(key, text, allowed, where=where)
        elif key in known:
            section, name = known[key]
            values[section][name] = convert(key, text, _type_of(section, name), where=where)
        elif key != _ROOT_KEY:
            unknown.append(key)
    return BrokerConf(values, properties.get(_ROOT_KEY, "").strip() or None, sorted(unknown))


def build(config_class: type[Any], *layers: Mapping[str, Any]) -> Any:
    """A configuration from layers of values; later ones win, None counts as not given. Raises ConfigError."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= {name: value for name, value in layer.items() if value is not None}
    return config_class(**merged)


def convert(key: str, text: str, kind: Any, *, where: str = "") -> Any:
    """The value of one setting from its text. Raises ConfigError with the allowed form."""
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(key, text, "true or false", where=where)
        return text.lower() == "true"
    if kind is int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ConfigError(key, text, "a whole number", where=where)
        return int(text) * 1000 if key in IN_SECONDS else int(text)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if text == member.value:
                return member
        raise ConfigError(key, text, " or ".join(str(member.value) for member in kind), where=where)
    return text


def _type_of(section: type[Section], name: str) -> Any:
    return typing.get_type_hints(section)[name]


def render_settings() -> str:
    """docs/configuration.md: every setting with its default, bounds and text."""
    parts = [_PAGE_HEAD]
    for section in SECTIONS:
        parts.append(f"\n## {section.TITLE}\n\n{(section.__doc__ or '').strip()}\n\n")
        parts.append("| setting | in broker.conf | default | allowed | what it does |\n|---|---|---|---|---|\n")
        for field, info in settings_of(section):
            parts.append(_row(own_name(section, field.name), field, info))
    only = "".join(f"| `{key}` | {allowed} |\n" for key, (_, allowed) in sorted(ONLY_VALUE.items()))
    parts.append(_PAGE_TAIL + only)
    return "".join(parts)


_PAGE_HEAD: Final = """\
# Configuration

<!-- Generated by `python -m stratamq.cli.configuration`; a test fails when it is stale. -->

No setting is needed: `stratamq serve --data-dir DIR` runs with the defaults. `--config FILE` reads RocketMQ's
`broker.conf` as it is. Flags of the command line stand over the file, the file over the defaults. A value that is not
usable is refused with the allowed form (exit code 2). Keys that StrataMQ does not know are ignored; one warning names
them all. Settings without a name under "in broker.conf" are StrataMQ's own and may stand in the file under their name
here. Sizes are bytes, durations milliseconds.

`storePathRootDir` names the data directory when `--data-dir` is not given.
"""

_PAGE_TAIL: Final = """
## One value only

These keys of RocketMQ are understood, and any other value is refused, because it asks for what is not done here.

| key | allowed |
|---|---|
"""


def _row(name: str, field: dataclasses.Field[Any], info: SettingInfo) -> str:
    default = field.default
    if isinstance(default, enum.Enum):
        shown = str(default.value)
    elif isinstance(default, bool):
        shown = "true" if default else "false"
    else:
        shown = str(default)
    allowed = _allowed(default, info)
    rocketmq = f"`{info.rocketmq}`" if info.rocketmq else ""
    return f"| `{name}` | {rocketmq} | {f'`{shown}`' if shown else 'empty'} | {allowed} | {info.doc} |\n"


def _allowed(default: Any, info: SettingInfo) -> str:
    if isinstance(default, bool):
        return "true, false"
    if isinstance(default, enum.Enum):
        return ", ".join(str(member.value) for member in type(default))
    if not isinstance(default, int):
        return "text"
    low, high = info.at_least, info.at_most
    return f"{low if low is not None else ''} to {high}" if high is not None else f"{low} or more" if low else "number"
