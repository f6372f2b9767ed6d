"""How a method's arguments are laid out, as a short string per method, and the coder made from it.

Letters: ``o`` octet, ``h`` short, ``l`` long, ``q`` longlong, ``s`` short string, ``S`` long string, ``t`` field
table, ``b`` bit (neighbouring bits share octets, low bit first). An upper-case ``O H L B Z`` is the same as the small
letter (``Z`` a short string) but reserved: skipped when read, zero or empty when written.

Source: AMQP 0-9-1, section 4.2.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from stratamq.protocols.amqp.replies import COMMAND_INVALID, SYNTAX_ERROR, AmqpError
from stratamq.protocols.amqp.values import encode_longstr, encode_shortstr, encode_table, read_longstr
from stratamq.protocols.amqp.values import read_shortstr as _read_shortstr
from stratamq.protocols.amqp.values import read_table as _read_table

_SIZES: Final = {"o": 1, "h": 2, "l": 4, "q": 8}
_RESERVED: Final = {"O": "o", "H": "h", "L": "l", "B": "b", "Z": "s"}
_EMPTY: Final[dict[str, Any]] = {"o": 0, "h": 0, "l": 0, "b": False, "s": ""}

T = TypeVar("T")


class MethodSpec(NamedTuple):
    """One method: its numbers, layout, class of arguments, and whether content follows."""

    class_id: int
    method_id: int
    layout: str
    arguments: Callable[..., Any]
    has_content: bool

    @property
    def head(self) -> bytes:
        """Class and method number as they stand in front of the arguments."""
        return struct.pack(">HH", self.class_id, self.method_id)


SPECS: Final[dict[bytes, MethodSpec]] = {}
"""By the four bytes of class and method number."""
_SPEC_OF: Final[dict[type[Any], MethodSpec]] = {}


def method(class_id: int, method_id: int, layout: str = "", *, content: bool = False) -> Callable[[type[T]], type[T]]:
    """Register a class of arguments under a method's numbers."""

    def register(kind: type[T]) -> type[T]:
        spec = MethodSpec(class_id, method_id, layout, kind, content)
        SPECS[spec.head] = spec
        _SPEC_OF[kind] = spec
        return kind

    return register


def spec_of(kind: type[Any]) -> MethodSpec:
    """The numbers and layout of a class of arguments."""
    return _SPEC_OF[kind]


def decode_method(payload: bytes) -> Any:
    """The arguments of a method frame's payload, as the class registered for it.

    Raises:
        AmqpError: 503 for an unknown method, 502 for arguments that cannot be read.
    """
    spec = SPECS.get(payload[:4])
    if spec is None:
        raise AmqpError(COMMAND_INVALID, f"unknown method {payload[:4].hex()}")
    try:
        return spec.arguments(*_decode_arguments(payload, spec.layout))
    except (IndexError, struct.error) as error:
        raise AmqpError(SYNTAX_ERROR, f"the arguments of method {payload[:4].hex()} are cut off") from error


def _decode_arguments(data: bytes, layout: str) -> list[Any]:
    found: list[Any] = []
    at, bit, bits = 4, 0, 0
    for letter in layout:
        kind = _RESERVED.get(letter, letter)
        value: Any
        if kind == "b":
            if bit in (0, 8):
                bits, bit, at = data[at], 0, at + 1
            value = bool(bits >> bit & 1)
            bit += 1
        else:
            bit = 0
            if kind == "s":
                value, at = _read_shortstr(data, at)
            elif kind == "S":
                value, at = read_longstr(data, at)
            elif kind == "t":
                value, at = _read_table(data, at)
            else:
                end = at + _SIZES[kind]
                if end > len(data):
                    raise IndexError(at)
                value, at = int.from_bytes(data[at:end], "big"), end
        if letter == kind:
            found.append(value)
    return found


def encode_method(arguments: Any) -> bytes:
    """A method frame's payload. The class of ``arguments`` must be registered."""
    spec = _SPEC_OF[type(arguments)]
    values = iter(arguments)
    parts = [spec.head]
    bits = 0
    count = 0
    for letter in spec.layout:
        kind = _RESERVED.get(letter, letter)
        value = next(values) if letter == kind else _EMPTY[kind]
        if kind == "b":
            if count == 8:
                parts.append(bytes((bits,)))
                bits = count = 0
            bits |= bool(value) << count
            count += 1
            continue
        if count:
            parts.append(bytes((bits,)))
            bits = count = 0
        if kind == "s":
            parts.append(encode_shortstr(value))
        elif kind == "S":
            parts.append(encode_longstr(value))
        elif kind == "t":
            parts.append(encode_table(value))
        else:
            parts.append(int(value).to_bytes(_SIZES[kind], "big"))
    if count:
        parts.append(bytes((bits,)))
    return b"".join(parts)
