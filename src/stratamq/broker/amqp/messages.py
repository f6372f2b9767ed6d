"""A message as the broker holds it, and as bytes for a store.

Stored layout, big-endian: ``born u64 (ms) | exchange u8+bytes | routing key u8+bytes | block length u32 | property
block | body``. The property block is what the publisher sent, unless the broker had to change it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from stratamq.errors import CorruptionError
from stratamq.protocols.amqp.properties import Facts
from stratamq.protocols.amqp.values import encode_shortstr, read_shortstr

EXPIRATION_MAX_MS: Final = 315_360_000_000
_pack_born = struct.Struct(">Q").pack
_pack_length = struct.Struct(">I").pack


class Message:
    """One published message; the same object stands in every queue it went to."""

    __slots__ = ("address", "body", "born_ms", "exchange", "facts", "routing_key", "ttl_ms")

    def __init__(
        self, exchange: str, routing_key: str, address: bytes, facts: Facts, body: bytes, born_ms: int
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.address = address
        """Exchange and routing key as two short strings, ready for deliveries."""
        self.facts = facts
        self.body = body
        self.born_ms = born_ms
        expiration = facts.expiration
        self.ttl_ms: int | None = None if expiration is None else int(expiration)


def encode_address(exchange: str, routing_key: str) -> bytes:
    """Exchange and routing key as they stand in deliveries and in the store."""
    return encode_shortstr(exchange) + encode_shortstr(routing_key)


def encode_message(message: Message) -> bytes:
    """The message as bytes."""
    block = message.facts.block
    return b"".join((_pack_born(message.born_ms), message.address, _pack_length(len(block)), block, message.body))


def decode_message(data: bytes) -> Message:
    """The message from its bytes. Raises CorruptionError when they cannot be one."""
    try:
        born_ms = int.from_bytes(data[:8], "big")
        exchange, at = read_shortstr(data, 8)
        routing_key, end = read_shortstr(data, at)
        address = data[8:end]
        block_end = end + 4 + int.from_bytes(data[end : end + 4], "big")
        if block_end > len(data):
            raise IndexError(end)
        return Message(exchange, routing_key, address, Facts(data[end + 4 : block_end]), data[block_end:], born_ms)
    except (IndexError, ValueError) as error:
        raise CorruptionError("queue store", 0, "a stored message", data[:16].hex()) from error


class MessageDecoder:
    """`decode_message` that knows its last result: neighbours in a queue mostly differ in their bodies alone."""

    __slots__ = ("_head", "_last")

    def __init__(self) -> None:
        self._head = b""
        self._last: Message | None = None

    def decode(self, data: bytes) -> Message:
        """The message from its bytes. Raises CorruptionError."""
        head, last = self._head, self._last
        if last is not None and data.startswith(head, 8):
            born_ms = int.from_bytes(data[:8], "big")
            body = data[8 + len(head) :]
            return Message(last.exchange, last.routing_key, last.address, last.facts, body, born_ms)
        self._last = message = decode_message(data)
        self._head = data[8 : len(data) - len(message.body)]
        return message


def carbon_copies(headers: dict[str, Any], *names: str) -> list[str]:
    """Extra routing keys out of headers such as ``CC`` and ``BCC``: what is no array of strings is ignored."""
    found: list[str] = []
    for name in names:
        value = headers.get(name)
        if isinstance(value, list):
            found.extend(key for key in value if isinstance(key, str))
    return found
