"""The consume-queue unit: where in the commit log one message of a queue lies.

20 bytes, big-endian: physical offset i64 | record size i32 | tags code i64. Unit number q stands at stream byte 20*q.
A unit is valid when its offset is >= 0 and its size > 0. A queue that does not begin at 0 is filled up to its first
unit with units (0, 0x7FFFFFFF, 0). In topic SCHEDULE_TOPIC_XXXX the tags code is the time of delivery in ms.

Source: docs/formats/consume-queue.md; apache/rocketmq store/.../ConsumeQueue.java.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.units import Buffer

UNIT_BYTES: Final = 20
PREFILL_SIZE: Final = 0x7FFFFFFF
UNIT: Final = struct.Struct(">qiq")
UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


class Unit(NamedTuple):
    """One consume-queue unit."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_valid(self) -> bool:
        """Whether this can be a written unit (zeros are not)."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def is_prefill(self) -> bool:
        """Whether this stands for an offset below the queue's first message."""
        return self.physical_offset == 0 and self.size == PREFILL_SIZE


PREFILL_UNIT: Final = UNIT.pack(0, PREFILL_SIZE, 0)


def encode_unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    """One unit as 20 bytes."""
    return UNIT.pack(physical_offset, size, tags_code)


def decode_unit(data: Buffer, position: int = 0) -> Unit:
    """The unit at byte ``position`` of ``data``."""
    return Unit._make(UNIT.unpack_from(data, position))


def units_view(data: Buffer, start: int, count: int) -> npt.NDArray[Any]:
    """``count`` units from byte ``start`` on as a NumPy structured array laid over ``data`` (no copy, read it only)."""
    return np.frombuffer(data, dtype=UNIT_DTYPE, count=count, offset=start)
