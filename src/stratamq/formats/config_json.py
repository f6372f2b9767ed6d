"""RocketMQ's ``config/*.json`` dialect: JSON in which integer map keys stand without quotes.

Written with tab indentation and members in the order given; maps of plain numbers stand on one line. Integer keys of a
Python dict are written without quotes, as fastjson does, and come back as text: the reader cannot know what they were.

Source: docs/formats/config-json.md; apache/rocketmq common/.../ConfigManager.java, RemotingSerializable.java.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL)


def decode_config_json(text: str) -> Any:
    """Read a config file's text. Keys without quotes are taken when they are whole numbers; all keys come as text.

    Raises:
        ValueError: It is no JSON; the sentence says where.
    """
    try:
        return json.loads(_STRING_OR_BARE_KEY.sub(_quote_bare_key, text), strict=False)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _quote_bare_key(match: re.Match[str]) -> str:
    lead = match.group(1)
    return match.group(0) if lead is None else f'{lead}"{match.group(2)}"'


def encode_config_json(value: Any) -> str:
    """Write a value (dict, list, str, int, float, bool, None) as a config file. Cost: about 1 us a member.

    Raises:
        TypeError: Something in ``value`` has no JSON form.
        ValueError: A number that JSON does not have (NaN, infinity).
    """
    parts: list[str] = []
    _encode(value, "\n", parts)
    parts.append("\n")
    return "".join(parts)


def _encode(value: Any, newline: str, parts: list[str]) -> None:
    if isinstance(value, dict):
        _encode_map(value, newline, parts)
    elif isinstance(value, list | tuple):
        if not value:
            parts.append("[]")
            return
        deeper = newline + "\t"
        lead = "[" + deeper
        for item in value:
            parts.append(lead)
            _encode(item, deeper, parts)
            lead = "," + deeper
        parts.append(newline + "]")
    else:
        parts.append(json.dumps(value, allow_nan=False))


def _encode_map(value: dict[Any, Any], newline: str, parts: list[str]) -> None:
    if not value:
        parts.append("{}")
        return
    if all(type(member) is int for member in value.values()):
        members = ",".join([f"{_encode_key(key)}:{member}" for key, member in value.items()])
        parts.append("{" + members + newline + "}")
        return
    deeper = newline + "\t"
    lead = "{" + deeper
    for key, member in value.items():
        parts.append(lead + _encode_key(key) + ":")
        _encode(member, deeper, parts)
        lead = "," + deeper
    parts.append(newline + "}")


def _encode_key(key: object) -> str:
    if type(key) is int:
        return str(key)
    if isinstance(key, str):
        return json.dumps(key)
    raise TypeError(f"a config map's key is text or a whole number, not {type(key).__name__}")
