"""Bytes of RocketMQ's replication stream between a master and a slave, in both directions.

All numbers are big-endian. A slave sends 8 bytes again and again: how far its log goes (the first one: where to start).
A master sends frames: i64 physical offset, i32 size, then so many bytes of the commit log as they lie there. Size 0 is
a heartbeat; its offset is where the next frame begins. Frames never cross a log file and end anywhere in a record.

Pure: bytes in, values out, in whatever pieces they come.

Source: apache/rocketmq store/.../ha/DefaultHAConnection.java, DefaultHAClient.java.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from stratamq.errors import RemoteProtocolError
from stratamq.units import MiB

FRAME_HEAD: Final = struct.Struct(">qi")
"""Physical offset of the body, size of the body."""
REPORT: Final = struct.Struct(">q")
"""End of the slave's log."""
BODY_BYTES_MAX: Final = 4 * MiB
"""Longest body that a slave takes: RocketMQ's slaves have a buffer of this size."""


class Frame(NamedTuple):
    """A piece of the master's log; an empty one is a heartbeat."""

    offset: int
    body: bytes

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.offset + len(self.body)


class FrameReader:
    """Cuts what a master sends into frames. Holds at most one frame that is not whole."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take received bytes, return the frames that are whole now. Raises RemoteProtocolError; then close."""
        self._data += data
        found: list[Frame] = []
        at = 0
        while len(self._data) - at >= FRAME_HEAD.size:
            offset, size = FRAME_HEAD.unpack_from(self._data, at)
            if offset < 0 or not 0 <= size <= BODY_BYTES_MAX:
                raise RemoteProtocolError(
                    f"a frame of {size} bytes at offset {offset}; a master sends at most {BODY_BYTES_MAX} bytes at an "
                    "offset from 0 on: is this the address of a master's haListenPort?"
                )
            begin = at + FRAME_HEAD.size
            if len(self._data) - begin < size:
                break
            found.append(Frame(offset, bytes(self._data[begin : begin + size])))
            at = begin + size
        del self._data[:at]
        return found


class ReportReader:
    """Reads what a slave sends. Of several reports only the last counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Take received bytes; return the newest whole report, None without one. Raises RemoteProtocolError."""
        data = self._rest + data
        end = len(data) - len(data) % REPORT.size
        self._rest = data[end:]
        if not end:
            return None
        (offset,) = REPORT.unpack_from(data, end - REPORT.size)
        if offset < 0:
            raise RemoteProtocolError(f"a slave reports offset {offset}, which is below 0")
        return int(offset)
