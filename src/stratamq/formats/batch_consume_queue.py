"""The batch-consume-queue unit: where in the commit log one record of a queue lies, and which messages it holds.

46 bytes, big-endian: physical offset i64 | record size i32 | tags code i64 | store time in ms i64 | queue offset of the
first message i64 | number of messages i16 | compacted offset i32, -1 | reserved i32, 0. Units follow each other without
gaps from byte 0 of their stream on, whatever their queue offsets are. A unit is valid when offset and base are >= 0 and
size and number are > 0.

How many messages a record holds stands in its properties INNER_NUM and INNER_BASE; a record without is one message.
The body of an inner batch is the request's: entries of i32 size, i32 magic, i32 CRC, i32 flag, i32 body length, body,
i16 properties length, properties.

Source: docs/formats/batch-consume-queue.md; apache/rocketmq store/.../queue/BatchConsumeQueue.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.formats.consume_queue import Unit
from stratamq.formats.properties import INNER_BASE, INNER_NUM, find_property
from stratamq.units import Buffer

BATCH_UNIT_BYTES: Final = 46
BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
BATCH_MESSAGES_MAX: Final = 32767
"""Most messages of one unit: its field has 16 bits."""
BATCH_UNIT_DTYPE: Final = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base_offset", ">i8"),
        ("messages", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
_ENTRY: Final = struct.Struct(">iiiii")


class BatchUnit(NamedTuple):
    """One unit: a record, and the messages ``base_offset`` to ``end_offset - 1`` of the queue in it."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    messages: int
    compacted_offset: int = -1
    reserved: int = 0

    @property
    def end_offset(self) -> int:
        """One above the queue offset of the last message."""
        return self.base_offset + self.messages

    @property
    def is_valid(self) -> bool:
        """Whether this can be a written unit (zeros are not)."""
        return self.physical_offset >= 0 and self.size > 0 and self.base_offset >= 0 and self.messages > 0

    @property
    def plain(self) -> Unit:
        """The record as a unit of an ordinary queue names it."""
        return Unit(self.physical_offset, self.size, self.tags_code)


def encode_batch_unit(unit: BatchUnit) -> bytes:
    """One unit as 46 bytes."""
    return BATCH_UNIT.pack(*unit)


def decode_batch_unit(data: Buffer, position: int = 0) -> BatchUnit:
    """The unit at byte ``position`` of ``data``."""
    return BatchUnit._make(BATCH_UNIT.unpack_from(data, position))


def decode_batch_units(data: Buffer) -> list[BatchUnit]:
    """All units of ``data``, whose length is a multiple of 46."""
    return [BatchUnit._make(fields) for fields in BATCH_UNIT.iter_unpack(data)]


def batch_units_view(data: Buffer) -> npt.NDArray[Any]:
    """The units as a NumPy structured array laid over ``data`` (no copy, read it only)."""
    return np.frombuffer(data, dtype=BATCH_UNIT_DTYPE)


def inner_span(properties: str, queue_offset: int) -> tuple[int, int]:
    """Queue offset of the first message of a record in a queue of batches, and how many messages it holds.

    Never fails: numbers that cannot be count as absent, which makes the record one message.
    """
    if INNER_NUM in properties and INNER_BASE in properties:
        number, base = find_property(properties, INNER_NUM) or "", find_property(properties, INNER_BASE) or ""
        if _is_number(number, 5) and _is_number(base, 18) and 0 < int(number) <= BATCH_MESSAGES_MAX:
            return int(base), int(number)
    return queue_offset, 1


class InnerMessage(NamedTuple):
    """One message in the body of an inner batch; views into it."""

    flag: int
    body: memoryview
    properties: memoryview


def inner_messages(body: Buffer) -> Iterator[InnerMessage]:
    """The messages in the body of an inner batch, as far as it can be read: the caller knows how many there must be."""
    view = memoryview(body)
    at = 0
    while at + _ENTRY.size <= len(view):
        size, _, _, flag, body_bytes = _ENTRY.unpack_from(view, at)
        start = at + _ENTRY.size + body_bytes
        if body_bytes < 0 or size < _ENTRY.size + 2 + body_bytes or at + size > len(view):
            return
        length = int.from_bytes(view[start : start + 2], "big")
        if start + 2 + length > at + size:
            return
        yield InnerMessage(flag, view[start - body_bytes : start], view[start + 2 : start + 2 + length])
        at += size


def inner_properties(body: Buffer) -> Iterator[str]:
    """The properties of each message in the body of an inner batch, as far as it can be read."""
    return (str(message.properties, "utf-8", "replace") for message in inner_messages(body))


def _is_number(text: str, digits_max: int) -> bool:
    return 0 < len(text) <= digits_max and text.isascii() and text.isdecimal()
