"""Bytes of the timer: slots of the wheel, units of the timer log, the timer's checkpoint.

All numbers are big-endian and signed. Byte tables: docs/formats/timer.md. Pure: nothing here opens a file.

Source: apache/rocketmq store/.../timer/{Slot,TimerWheel,TimerLog,TimerCheckpoint}.java.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from stratamq.units import Buffer

SLOTS: Final = 2 * 7 * 24 * 3600
"""Slots of a wheel: 14 days at a precision of a second, whatever the precision is."""
SLOT_BYTES: Final = 32
WHEEL_BYTES: Final = SLOTS * SLOT_BYTES
UNIT_BYTES: Final = 52
BLANK_BYTES: Final = 16
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
CHECKPOINT_BYTES: Final = 56
CHECKPOINT_FILE_BYTES: Final = 4096

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4

SLOT_DTYPE: Final = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")])
"""One slot: time in steps of the precision, first and last position in the timer log, messages, unused."""

UNIT_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("message_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
"""One unit of the timer log, for reading many at once."""

_UNIT: Final = struct.Struct(">iqiqiqiiq")
_BLANK: Final = struct.Struct(">iqi")
_CHECKPOINT: Final = struct.Struct(">7q")
_OWN: Final = struct.Struct(">4q")
_CRC: Final = struct.Struct(">I")


class TimerUnit(NamedTuple):
    """One unit of the timer log. ``previous`` is the position of the unit before it in the same slot; -1 for none."""

    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    message_bytes: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        """The time of the slot that the unit is in."""
        return self.write_ms + self.delay_ms


class TimerCheckpoint(NamedTuple):
    """How far the timer is.

    Slots before ``read_ms`` are delivered, messages of the timer's topic before ``queue_offset`` are in the log, the
    log is synced up to ``log_end``. Of units before ``passed_position`` those due before ``passed_ms`` are delivered
    too: that is what a clock which was set back leaves. ``is_exact`` tells that the values belong together; a
    checkpoint written by RocketMQ notes them one after the other while the timer goes on.
    """

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0
    passed_ms: int = 0
    passed_position: int = 0
    is_exact: bool = False


def encode_unit(unit: TimerUnit) -> bytes:
    """52 bytes. Raises struct.error when a number does not fit."""
    return _UNIT.pack(UNIT_BYTES, *unit, 0)


def decode_unit(data: Buffer, at: int = 0) -> TimerUnit | None:
    """The unit at ``at``; None when there is none: too few bytes, another size, magic bits that nobody writes."""
    if at < 0 or len(data) - at < UNIT_BYTES:
        return None
    size, *fields, _ = _UNIT.unpack_from(data, at)
    unit = TimerUnit(*fields)
    if size != UNIT_BYTES or not unit.magic & MAGIC_DEFAULT or not 0 <= unit.magic <= 7:
        return None
    return unit


def encode_blank(bytes_left: int) -> bytes:
    """The 16 bytes that follow the last unit of a file in which ``bytes_left`` bytes are left."""
    return _BLANK.pack(bytes_left, 0, BLANK_MAGIC)


def units_per_file(file_bytes: int) -> int:
    """How many units fit into a file, with the blank behind them."""
    return (file_bytes - BLANK_BYTES) // UNIT_BYTES


def encode_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """The 56 bytes that RocketMQ reads, which also answer GET_TIMER_CHECK_POINT."""
    return _CHECKPOINT.pack(*checkpoint[:7])


def encode_checkpoint_file(checkpoint: TimerCheckpoint) -> bytes:
    """What ``config/timercheck`` begins with: RocketMQ's 56 bytes, then ours, which say that they belong together."""
    own = encode_checkpoint(checkpoint) + _OWN.pack(checkpoint.passed_ms, checkpoint.passed_position, 0, 0)
    return own + _CRC.pack(zlib.crc32(own))


def decode_checkpoint_file(data: Buffer) -> TimerCheckpoint:
    """Read ``config/timercheck``. Never fails: one too short, or with negative numbers, says that nothing is done."""
    if len(data) < CHECKPOINT_BYTES:
        return TimerCheckpoint()
    fields = _CHECKPOINT.unpack_from(data)
    if min(fields[:3]) < 0:
        return TimerCheckpoint()
    length = CHECKPOINT_BYTES + _OWN.size
    if len(data) >= length + _CRC.size and _CRC.unpack_from(data, length)[0] == zlib.crc32(bytes(data[:length])):
        passed_ms, passed_position, _, _ = _OWN.unpack_from(data, CHECKPOINT_BYTES)
        return TimerCheckpoint(*fields)._replace(passed_ms=passed_ms, passed_position=passed_position, is_exact=True)
    return TimerCheckpoint(*fields)
