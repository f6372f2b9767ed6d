"""Frames: ``type u8 | channel u16 | size u32 | payload[size] | end u8 (0xCE)``, big-endian, and how contents are made.

Source: AMQP 0-9-1, section 4.2.3.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from stratamq.protocols.amqp.codec import encode_method
from stratamq.units import KiB

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_BYTE: Final = b"\xce"
FRAME_OVERHEAD: Final = 8
"""Bytes of a frame besides its payload."""
FRAME_BYTES_MIN: Final = 4 * KiB
"""The smallest limit that may be negotiated; what holds before anything is."""
SIZE_TOLERANCE: Final = 8
"""Clients count the overhead wrongly; RabbitMQ lets this many bytes pass."""

PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"

HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"

FRAME_HEAD: Final = struct.Struct(">BHI")
CONTENT_HEAD: Final = struct.Struct(">HHQ")
"""Class, weight and body size at the front of a content header."""
CONTENT_HEAD_BYTES: Final = CONTENT_HEAD.size

_pack_head = FRAME_HEAD.pack
_CONTENT_FRAME: Final = struct.Struct(">BHIIQ")


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return _pack_head(kind, channel, len(payload)) + payload + FRAME_END_BYTE


def method_frame(channel: int, arguments: Any) -> bytes:
    """The frame of a method, from a value of one of the classes in `methods`."""
    return encode_frame(FRAME_METHOD, channel, encode_method(arguments))


def content_frames(channel: int, method_payload: bytes, block: bytes, body: bytes, frame_max: int) -> bytes:
    """A method with its content: header frame, and the body cut to what the peer takes.

    Args:
        channel: Channel number.
        method_payload: Class, method and arguments.
        block: Property block, flags first.
        body: The body; may be empty, then there is no body frame.
        frame_max: Negotiated size of a whole frame; 0 for no limit.
    """
    size = len(body)
    room = frame_max - FRAME_OVERHEAD
    head = (
        _pack_head(1, channel, len(method_payload)),
        method_payload,
        b"\xce",
        _CONTENT_FRAME.pack(2, channel, 12 + len(block), 0x3C0000, size),
        block,
    )
    if not size:
        return b"".join((*head, b"\xce"))
    if size <= room or not frame_max:
        return b"".join((*head, b"\xce", _pack_head(3, channel, size), body, b"\xce"))
    parts = [*head, b"\xce"]
    for at in range(0, size, room):
        piece = body[at : at + room]
        parts += (_pack_head(3, channel, len(piece)), piece, b"\xce")
    return b"".join(parts)
