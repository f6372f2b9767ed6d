"""How settings are declared and checked: each with its default, bounds, unit and text in one place."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from stratamq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """What is known of one setting besides its type and default."""

    doc: str
    rocketmq: str = ""
    at_least: int | None = None
    at_most: int | None = None
    multiple_of: int = 1


def setting(
    default: Any,
    *,
    doc: str,
    rocketmq: str = "",
    at_least: int | None = None,
    at_most: int | None = None,
    multiple_of: int = 1,
) -> Any:
    """Declare one setting of a `Section`."""
    info = SettingInfo(doc=doc, rocketmq=rocketmq, at_least=at_least, at_most=at_most, multiple_of=multiple_of)
    return dataclasses.field(default=default, metadata={"setting": info})


class Section:
    """What all sections share: a section is a frozen dataclass of settings, and one that exists is usable.

    Its docstring opens its part of docs/configuration.md.
    """

    __slots__ = ()

    TITLE: ClassVar[str]
    """The heading of its part of docs/configuration.md."""
    PREFIX: ClassVar[str] = ""
    """What the names of its settings begin with in ``broker.conf`` where RocketMQ has no name for them."""

    def __post_init__(self) -> None:
        check_bounds(self)
        self.check()

    def check(self) -> None:
        """Check what the bounds of single settings do not say. Raises ConfigError."""


def settings_of(section: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], SettingInfo]]:
    """The settings of a section in the order of declaration."""
    for field in dataclasses.fields(section):
        info = field.metadata.get("setting")
        if info is not None:
            yield field, info


def own_name(section: type[Any], name: str) -> str:
    """What a setting is called in a file where RocketMQ has no name for it."""
    return str(section.PREFIX) + name


def key_of(section: type[Any], field: dataclasses.Field[Any]) -> str:
    """A setting's name in files, requests and errors: RocketMQ's where it has one."""
    info: SettingInfo = field.metadata["setting"]
    return info.rocketmq or own_name(section, field.name)


def check_bounds(section: Section) -> None:
    """Check every numeric setting of ``section`` against its bounds. Raises ConfigError naming the first bad one."""
    for field, info in settings_of(type(section)):
        value = getattr(section, field.name)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        too_low = info.at_least is not None and value < info.at_least
        too_high = info.at_most is not None and value > info.at_most
        if too_low or too_high or value % info.multiple_of:
            raise ConfigError(key_of(type(section), field), value, describe_bounds(info))


def describe_bounds(info: SettingInfo) -> str:
    """The allowed range of a numeric setting in words."""
    parts = []
    if info.at_least is not None:
        parts.append(f"at least {info.at_least}")
    if info.at_most is not None:
        parts.append(f"at most {info.at_most}")
    if info.multiple_of != 1:
        parts.append(f"a multiple of {info.multiple_of}")
    return ", ".join(parts) or "a whole number"


def expect_match(key: str, value: str, pattern: str, allowed: str) -> None:
    """Check that ``value`` is of the form that a regular expression gives. Raises ConfigError."""
    if not re.fullmatch(pattern, value):
        raise ConfigError(key, value, allowed)


def expect_ipv4(key: str, value: str, examples: str) -> None:
    """Check that ``value`` is an IPv4 address. Raises ConfigError."""
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        raise ConfigError(key, value, f"an IPv4 address, such as {examples}") from None
