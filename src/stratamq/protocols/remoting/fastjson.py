"""JSON as RocketMQ's brokers write it: fastjson's dialect, which standard parsers refuse.

Two liberties matter: integer keys without quotes (``{0:"10.0.0.5:10911"}``) and whole objects as keys
(``{{"brokerName":"b","queueId":0,"topic":"t"}:5}``). Read by a small parser of its own, bounded in depth; strings and
numbers are the standard library's.

Source: apache/rocketmq remoting/.../RemotingSerializable.java (fastjson).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from stratamq.errors import RemoteProtocolError
from stratamq.protocols.remoting.bodies import body_error
from stratamq.units import Buffer

DEPTH_MAX: Final = 64
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|NaN|[A-Za-z_$][\w$]*")
_scan_string = json.decoder.scanstring  # type: ignore[attr-defined]


class Entry(NamedTuple):
    """One member of a map whose keys are objects."""

    key: dict[str, Any]
    value: Any


def loads(body: Buffer) -> Any:
    """Parse a body. A map with objects as keys becomes a list of `Entry`; integer keys become text.

    Raises RemoteProtocolError. Standard JSON costs what `json.loads` costs, twice; the dialect about 1 us a token.
    """
    value = _parse(body)
    try:
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair would poison what it is stored in
    except (ValueError, RecursionError) as error:
        raise body_error(f"body of {len(body)} bytes holds what is no text: {error}") from None
    return value


def _parse(body: Buffer) -> Any:
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError as error:
        raise body_error(f"body of {len(body)} bytes is not UTF-8: {error}") from None
    try:
        return json.loads(text, strict=False)
    except ValueError:
        pass
    except RecursionError:
        raise body_error(f"body of {len(body)} bytes is nested too deep") from None
    parser = _Parser(text)
    value, at = parser.value(parser.skip(0), 0)
    if parser.skip(at) != len(text):
        raise parser.fault(at, "the end")
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text

    def fault(self, at: int, expected: str) -> RemoteProtocolError:
        return body_error(f"not JSON at character {at}: expected {expected}, found {self._text[at : at + 20]!r}")

    def skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        assert match is not None
        return match.end()

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > DEPTH_MAX:
            raise self.fault(at, f"at most {DEPTH_MAX} levels")
        first = self._text[at : at + 1]
        if first == "{":
            return self._object(at + 1, depth + 1)
        if first == "[":
            return self._array(at + 1, depth + 1)
        if first == '"':
            return self._string(at)
        match = _PLAIN.match(self._text, at)
        if match is None or (match[0] not in ("true", "false", "null") and match[0][0] not in "-0123456789"):
            raise self.fault(at, "a value")
        try:
            return json.loads(match[0]), match.end()
        except ValueError:  # a leading zero
            raise self.fault(at, "a value") from None

    def _string(self, at: int) -> tuple[str, int]:
        try:
            text, end = _scan_string(self._text, at + 1, False)
        except ValueError:
            raise self.fault(at, "a string") from None
        return text, end

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self.skip(at)
        while self._text[at : at + 1] != "]":
            item, at = self.value(at, depth)
            found.append(item)
            at = self._after(at, "]")
        return found, at + 1

    def _object(self, at: int, depth: int) -> tuple[Any, int]:
        plain: dict[str, Any] = {}
        entries: list[Entry] = []
        at = self.skip(at)
        while self._text[at : at + 1] != "}":
            key, at = self._key(at, depth)
            at = self.skip(at)
            if self._text[at : at + 1] != ":":
                raise self.fault(at, "a colon")
            value, at = self.value(self.skip(at + 1), depth)
            if isinstance(key, dict):
                entries.append(Entry(key, value))
            else:
                plain[key] = value
            at = self._after(at, "}")
        if entries and plain:
            raise self.fault(at, "keys of one kind")
        return entries or plain, at + 1

    def _key(self, at: int, depth: int) -> tuple[Any, int]:
        first = self._text[at : at + 1]
        if first == "{":
            return self.value(at, depth)
        if first == '"':
            return self._string(at)
        match = _PLAIN.match(self._text, at)
        if match is None:
            raise self.fault(at, "a key")
        return match[0], match.end()

    def _after(self, at: int, end: str) -> int:
        """The place of the next item, or of the closing bracket."""
        at = self.skip(at)
        found = self._text[at : at + 1]
        if found == ",":
            return self.skip(at + 1)
        if found != end:
            raise self.fault(at, f"a comma or {end}")
        return at
