"""One remoting connection without I/O: bytes in whatever pieces they arrive, commands out.

A peer's fault is no exception here: `RemotingConnection.receive_data` gives the commands that came whole before the
bad bytes, and sets `RemotingConnection.fault`; the shell answers the good ones and closes. What an unfinished frame
holds in memory is what arrived of it, never what its length word promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratamq.errors import RemoteProtocolError
from stratamq.protocols.remoting.codes import FLAG_ONE_WAY
from stratamq.protocols.remoting.command import (
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    HEADER_BYTES_MASK,
    CommandHeader,
    decode_header,
    encode_frame,
)
from stratamq.units import Buffer

Command = tuple[CommandHeader, memoryview]
"""A received command: header and body. The body is a view into what was received."""

_HEAD_BYTES: Final = FRAME_HEAD.size
_unpack_head = FRAME_HEAD.unpack_from


class RemotingConnection:
    """The receiving and numbering half of one connection."""

    __slots__ = ("_frame_bytes_max", "_needed", "_next_opaque", "_partial", "fault")

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()
        self._needed = 0
        self._next_opaque = 0
        self.fault: RemoteProtocolError | None = None

    @property
    def bytes_buffered(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return len(self._partial)

    def receive_data(self, chunk: bytes) -> list[Command]:
        """Take what arrived and return the commands it completes, in order.

        Once `fault` is set nothing is taken any more. Cost: about 2 us a command.
        """
        if self.fault is not None:
            return []
        data: bytes | bytearray = chunk
        if self._partial:
            self._partial += chunk
            if len(self._partial) < self._needed:
                return []
            data, self._partial = self._partial, bytearray()
        commands: list[Command] = []
        try:
            used = self._cut(data, commands)
        except RemoteProtocolError as error:
            self.fault = error
            return commands
        if used < len(data):
            self._partial += memoryview(data)[used:]
        return commands

    def _cut(self, data: bytes | bytearray, commands: list[Command]) -> int:
        """Append the whole commands at the front of ``data``; return how many bytes they took."""
        view = memoryview(data)
        end = len(data)
        at = 0
        while end - at >= _HEAD_BYTES:
            length, mark = _unpack_head(data, at)
            header_bytes = mark & HEADER_BYTES_MASK
            if not 4 <= length <= self._frame_bytes_max or header_bytes > length - 4 or mark >> 24 > 1:
                raise _bad_head(data, at, length, mark, self._frame_bytes_max)
            frame_end = at + 4 + length
            if frame_end > end:
                self._needed = frame_end - at
                return at
            header_at = at + _HEAD_BYTES
            body_at = header_at + header_bytes
            commands.append((decode_header(mark >> 24, data[header_at:body_at]), view[body_at:frame_end]))
            at = frame_end
        if end - at >= 4:
            length = int.from_bytes(data[at : at + 4], "big")
            if not 4 <= length <= self._frame_bytes_max:
                raise _bad_head(data, at, length, 0, self._frame_bytes_max)
        self._needed = _HEAD_BYTES
        return at

    def next_opaque(self) -> int:
        """The number of our own next request on this connection."""
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return self._next_opaque

    def one_way_request(self, code: int, ext: Mapping[str, str], body: Buffer = b"") -> bytes:
        """A request of ours that needs no answer, as a frame."""
        return encode_frame(code=code, opaque=self.next_opaque(), flag=FLAG_ONE_WAY, ext=ext, body=body)

    def request(self, code: int, ext: Mapping[str, str], body: Buffer = b"") -> tuple[int, bytes]:
        """A request of ours that will be answered: the number that its answer carries, and the frame."""
        opaque = self.next_opaque()
        return opaque, encode_frame(code=code, opaque=opaque, ext=ext, body=body)


def _bad_head(data: bytes | bytearray, at: int, length: int, mark: int, frame_bytes_max: int) -> RemoteProtocolError:
    start = bytes(data[at : at + 4])
    if start[:2] == b"\x16\x03":
        return RemoteProtocolError("a TLS hello on a port that speaks plain remoting")
    if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
        return RemoteProtocolError("an HTTP request on a port that speaks remoting")
    if not 4 <= length <= frame_bytes_max:
        return RemoteProtocolError(f"a frame of {length} bytes; allowed are 4 to {frame_bytes_max}")
    if mark >> 24 > 1:
        return RemoteProtocolError(f"unknown header serialization {mark >> 24}: known are 0 (JSON) and 1 (ROCKETMQ)")
    return RemoteProtocolError(f"a header of {mark & HEADER_BYTES_MASK} bytes in a frame of {length}")
