"""Field tables and arrays in RabbitMQ's dialect, and the two kinds of strings.

A table is ``length u32 | (name: u8 length + bytes | type u8 | value)*``, an array ``length u32 | (type | value)*``.
The letters differ from those of the specification: ``s`` is a signed 16-bit number, not a short string.

Python sees ``str`` for a long string (``surrogateescape`` keeps bytes that are not UTF-8), ``bytes`` for a byte array,
`Timestamp`, `Decimal`, `Float32` and the sized integers where a plain ``int`` would lose the letter. Those classes
make a decoded table encode to the same bytes again.

Source: RabbitMQ, deps/rabbit_common/src/rabbit_binary_parser.erl.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stratamq.protocols.amqp.replies import FRAME_ERROR, SYNTAX_ERROR, AmqpError

Value = Any
Table = dict[str, Value]

DEPTH_MAX: Final = 64
"""Tables inside of tables; more is refused, so that nobody exhausts the stack."""
NAME_BYTES_MAX: Final = 255


class Sized(int):
    """A whole number that remembers the letter it came with."""

    tag: int

    def __new__(cls, value: int, tag: int) -> Sized:
        made = super().__new__(cls, value)
        made.tag = tag
        return made


class Timestamp(int):
    """Seconds since the Unix epoch, type ``T``."""

    __slots__ = ()


class Float32(float):
    """A number that travels as 32-bit float, type ``f``."""

    __slots__ = ()


class Decimal(tuple[int, int]):
    """Scale and unscaled value, type ``D``."""


def _number(code: str, tag: str) -> Callable[[bytes, int], tuple[Value, int]]:
    packer = struct.Struct(">" + code)
    size, mark = packer.size, ord(tag)

    def read(data: bytes, at: int) -> tuple[Value, int]:
        return Sized(packer.unpack_from(data, at)[0], mark), at + size

    return read


def _read_bool(data: bytes, at: int) -> tuple[Value, int]:
    return data[at] != 0, at + 1


def _read_long(data: bytes, at: int) -> tuple[Value, int]:
    return int.from_bytes(_take(data, at, 8), "big", signed=True), at + 8


def _read_float(data: bytes, at: int) -> tuple[Value, int]:
    return Float32(struct.unpack_from(">f", data, at)[0]), at + 4


def _read_double(data: bytes, at: int) -> tuple[Value, int]:
    return struct.unpack_from(">d", data, at)[0], at + 8


def _read_decimal(data: bytes, at: int) -> tuple[Value, int]:
    return Decimal(struct.unpack_from(">BI", data, at)), at + 5


def _read_timestamp(data: bytes, at: int) -> tuple[Value, int]:
    return Timestamp(int.from_bytes(_take(data, at, 8), "big")), at + 8


def _read_string(data: bytes, at: int) -> tuple[Value, int]:
    raw, end = read_longstr(data, at)
    return raw.decode("utf-8", "surrogateescape"), end


def _read_void(data: bytes, at: int) -> tuple[Value, int]:
    return None, at


_READERS: Final[Mapping[int, Callable[[bytes, int], tuple[Value, int]]]] = {
    ord("t"): _read_bool,
    ord("b"): _number("b", "b"),
    ord("B"): _number("B", "B"),
    ord("s"): _number("h", "s"),
    ord("u"): _number("H", "u"),
    ord("I"): _number("i", "I"),
    ord("i"): _number("I", "i"),
    ord("l"): _read_long,
    ord("L"): _read_long,
    ord("f"): _read_float,
    ord("d"): _read_double,
    ord("D"): _read_decimal,
    ord("T"): _read_timestamp,
    ord("S"): _read_string,
    ord("V"): _read_void,
}


def _take(data: bytes, at: int, size: int) -> bytes:
    taken = data[at : at + size]
    if len(taken) != size:
        raise IndexError(at)
    return taken


def read_shortstr(data: bytes, at: int) -> tuple[str, int]:
    """A short string at ``at`` and the place behind it. Raises IndexError when it is cut off."""
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError(at)
    return data[at + 1 : end].decode("utf-8", "surrogateescape"), end


def read_longstr(data: bytes, at: int) -> tuple[bytes, int]:
    """A long string at ``at`` and the place behind it. Raises IndexError when it is cut off."""
    size = int.from_bytes(_take(data, at, 4), "big")
    return _take(data, at + 4, size), at + 4 + size


def read_table(data: bytes, at: int, depth: int = 0) -> tuple[Table, int]:
    """The table at ``at`` and the place behind it.

    Raises:
        AmqpError: 502 for an unknown type, a length that leaves the data, or too many levels.
    """
    try:
        raw, end = read_longstr(data, at)
        return _entries(raw, depth), end
    except (IndexError, struct.error) as error:
        raise AmqpError(SYNTAX_ERROR, "a field table is cut off") from error


def decode_table_entries(raw: bytes) -> Table:
    """A table without its length in front, as AMQPLAIN sends it. Raises AmqpError as `read_table` does."""
    try:
        return _entries(raw, 0)
    except (IndexError, struct.error) as error:
        raise AmqpError(SYNTAX_ERROR, "a field table is cut off") from error


def _entries(raw: bytes, depth: int) -> Table:
    if depth > DEPTH_MAX:
        raise AmqpError(SYNTAX_ERROR, f"field tables nested more than {DEPTH_MAX} deep")
    table: Table = {}
    at, end = 0, len(raw)
    while at < end:
        name, at = read_shortstr(raw, at)
        value, at = _read_value(raw, at, depth)
        table.setdefault(name, value)
    return table


def _read_value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    tag = data[at]
    reader = _READERS.get(tag)
    if reader is not None:
        return reader(data, at + 1)
    if tag == 0x46:  # F
        return read_table(data, at + 1, depth + 1)
    if tag == 0x78:  # x
        return read_longstr(data, at + 1)
    if tag == 0x41:  # A
        raw, end = read_longstr(data, at + 1)
        if depth > DEPTH_MAX:
            raise AmqpError(SYNTAX_ERROR, f"field tables nested more than {DEPTH_MAX} deep")
        values = []
        inner = 0
        while inner < len(raw):
            value, inner = _read_value(raw, inner, depth + 1)
            values.append(value)
        return values, end
    raise AmqpError(SYNTAX_ERROR, f"unknown type {tag} of a value in a field table")


def encode_shortstr(text: str) -> bytes:
    """A short string. Raises ValueError beyond 255 bytes."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > NAME_BYTES_MAX:
        raise ValueError(f"a short string of {len(raw)} bytes")
    return bytes((len(raw),)) + raw


def encode_longstr(raw: bytes) -> bytes:
    """A long string."""
    return len(raw).to_bytes(4, "big") + raw


def encode_table(table: Mapping[str, Value]) -> bytes:
    """A table with its length, in the order of the mapping."""
    parts = []
    for name, value in table.items():
        parts.append(encode_shortstr(name))
        parts.append(encode_value(value))
    return encode_longstr(b"".join(parts))


_SIZED: Final[Mapping[int, struct.Struct]] = {
    ord(tag): struct.Struct(">" + code)
    for tag, code in (("b", "b"), ("B", "B"), ("s", "h"), ("u", "H"), ("I", "i"), ("i", "I"))
}


def encode_value(value: Value) -> bytes:
    """A value with its type letter in front. Raises TypeError for a class that AMQP does not know."""
    if value is None:
        return b"V"
    if isinstance(value, str):
        return b"S" + encode_longstr(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, Sized):
        return bytes((value.tag,)) + _SIZED[value.tag].pack(value)
    if isinstance(value, Timestamp):
        return b"T" + int(value).to_bytes(8, "big")
    if isinstance(value, int):
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, Float32):
        return b"f" + struct.pack(">f", value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"x" + encode_longstr(value)
    if isinstance(value, Decimal):
        return b"D" + struct.pack(">BI", *value)
    if isinstance(value, Mapping):
        return b"F" + encode_table(value)
    if isinstance(value, Sequence):
        return b"A" + encode_longstr(b"".join(encode_value(item) for item in value))
    raise TypeError(f"{type(value).__name__} is no AMQP value")


def type_class(value: Value) -> str:
    """What counts as the same type when arguments and headers are compared: all whole numbers are one class."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return type(value).__name__


def same_value(one: Value, other: Value) -> bool:
    """Whether two values are equal for RabbitMQ: class of type first, then value."""
    return type_class(one) == type_class(other) and bool(one == other)


_TYPE_NAMES: Final[Mapping[int, str]] = {
    ord("b"): "byte",
    ord("B"): "unsignedbyte",
    ord("s"): "short",
    ord("u"): "unsignedshort",
    ord("I"): "signedint",
    ord("i"): "unsignedint",
}


def type_name(value: Value) -> str:
    """The name of a value's type as error texts give it."""
    if isinstance(value, Sized):
        return _TYPE_NAMES[value.tag]
    for kind, name in (
        (bool, "bool"),
        (Timestamp, "timestamp"),
        (int, "long"),
        (Float32, "float"),
        (float, "double"),
        (str, "longstr"),
        (bytes, "binary"),
        (Decimal, "decimal"),
        (Mapping, "table"),
        (Sequence, "array"),
    ):
        if isinstance(value, kind):
            return name
    return "void"


def require_utf8(name: str) -> str:
    """Pass a name on. Raises AmqpError 501 when its bytes are not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise AmqpError(FRAME_ERROR, "a name is not valid UTF-8") from error
    return name
