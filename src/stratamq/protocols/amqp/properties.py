"""Properties of a content: the block as received, and what a broker has to know of it.

A block is ``flags u16`` (more words follow while bit 0 is set) and then the present properties in the order of their
flags from bit 15 down. The broker keeps the received bytes and sends them unchanged; it looks inside for the few
properties that decide something, and builds a new block only where it must change one.

Source: AMQP 0-9-1, sections 1.8.3.1 to 1.8.3.14 and 4.2.6.1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from stratamq.protocols.amqp.replies import SYNTAX_ERROR, AmqpError
from stratamq.protocols.amqp.values import (
    Table,
    Timestamp,
    encode_shortstr,
    encode_table,
    read_shortstr,
    read_table,
)

PROPERTIES: Final[tuple[tuple[str, str], ...]] = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "t"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "T"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
"""Names and kinds from bit 15 down."""

NO_PROPERTIES: Final = b"\0\0"
_BITS: Final = tuple((1 << (15 - number), name, kind) for number, (name, kind) in enumerate(PROPERTIES))

HEADERS_FLAG: Final = 1 << 13
_MATTERS: Final = frozenset({"delivery_mode", "priority", "expiration", "user_id", "reply_to"})


class Facts:
    """What routing and queues need of a block."""

    __slots__ = ("_headers_at", "block", "expiration", "is_persistent", "priority", "reply_to", "user_id")

    def __init__(self, block: bytes) -> None:
        """Raises AmqpError 502 when the block cannot be read."""
        self.block = block
        self.is_persistent = False
        self.priority = 0
        self.expiration: str | None = None
        self.user_id: str | None = None
        self.reply_to: str | None = None
        self._headers_at = 0
        try:
            self._read(block)
        except (IndexError, struct.error) as error:
            raise AmqpError(SYNTAX_ERROR, "the properties of a content are cut off") from error

    def _read(self, block: bytes) -> None:
        flags = block[0] << 8 | block[1]
        if flags & 3:
            raise AmqpError(SYNTAX_ERROR, "unknown properties in a content header")
        at = 2
        for bit, name, kind in _BITS:
            if not flags & bit:
                continue
            if kind == "s":
                if name in _MATTERS:
                    text, at = read_shortstr(block, at)
                    setattr(self, name, text)
                else:
                    at += 1 + block[at]
            elif kind == "o":
                if name == "priority":
                    self.priority = block[at]
                else:
                    self.is_persistent = block[at] == 2
                at += 1
            elif kind == "t":
                self._headers_at = at
                at += 4 + int.from_bytes(block[at : at + 4], "big")
            else:
                at += 8
        if at != len(block):
            raise IndexError(at)

    @property
    def has_headers(self) -> bool:
        """Whether there is a headers table."""
        return self._headers_at > 0

    def headers(self) -> Table:
        """The headers, decoded now; empty when there are none. Raises AmqpError 502."""
        return read_table(self.block, self._headers_at)[0] if self._headers_at else {}

    def mentions(self, name: bytes) -> bool:
        """Whether the bytes of a header's name occur at all: a cheap look before decoding."""
        return self._headers_at > 0 and name in self.block


def decode_properties(block: bytes) -> dict[str, Any]:
    """All properties of a block by name. Raises AmqpError 502."""
    found: dict[str, Any] = {}
    try:
        flags, at = block[0] << 8 | block[1], 2
        for bit, name, kind in _BITS:
            if not flags & bit:
                continue
            if kind == "s":
                found[name], at = read_shortstr(block, at)
            elif kind == "o":
                found[name], at = block[at], at + 1
            elif kind == "t":
                found[name], at = read_table(block, at)
            else:
                found[name] = Timestamp(struct.unpack_from(">Q", block, at)[0])
                at += 8
    except (IndexError, struct.error) as error:
        raise AmqpError(SYNTAX_ERROR, "the properties of a content are cut off") from error
    return found


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """A block from properties by name; None counts as absent."""
    flags = 0
    parts = [b""]
    for bit, name, kind in _BITS:
        value = properties.get(name)
        if value is None:
            continue
        flags |= bit
        if kind == "s":
            parts.append(encode_shortstr(value))
        elif kind == "o":
            parts.append(bytes((value,)))
        elif kind == "t":
            parts.append(encode_table(value))
        else:
            parts.append(int(value).to_bytes(8, "big"))
    parts[0] = flags.to_bytes(2, "big")
    return b"".join(parts)


def change_properties(block: bytes, **changes: Any) -> bytes:
    """The block with some properties replaced, or removed where the new value is None."""
    return encode_properties(decode_properties(block) | changes)
