"""Messages between members as bytes. Byte table: docs/formats/raft.md.

A frame is u32 length of what follows, u32 CRC-32 of it, u8 kind, payload. Every bound is checked before memory is
taken, and whatever is wrong is one error: the connection is then closed.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from stratamq.errors import RemoteProtocolError
from stratamq.replication.messages import (
    Append,
    AppendReply,
    Install,
    RaftMessage,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest record, a blank before it, and room for the head."""
HEAD: Final = struct.Struct(">II")
_COMMON: Final = struct.Struct(">BqqB")
_VOTE_REQUEST: Final = struct.Struct(">qqBB")
_VOTE_REPLY: Final = struct.Struct(">qBB")
_APPEND: Final = struct.Struct(">qqqqq")
_REPLY: Final = struct.Struct(">Bqqqqqq")
_INSTALL: Final = struct.Struct(">qq")
VOTE_REQUEST, VOTE_REPLY, APPEND, APPEND_REPLY, TIMEOUT_NOW, HELLO, ADMIN, INSTALL = range(1, 9)


def encode_message(message: RaftMessage) -> list[bytes | memoryview]:
    """The pieces of a frame, to be written one after the other; a body is not copied."""
    name = message.sender.encode()
    body: bytes | memoryview = b""
    if isinstance(message, VoteRequest):
        kind = VOTE_REQUEST
        fields = _VOTE_REQUEST.pack(message.last_term, message.end, message.is_pre, message.is_transfer)
    elif isinstance(message, VoteReply):
        kind = VOTE_REPLY
        fields = _VOTE_REPLY.pack(message.asked_term, message.is_pre, message.is_granted)
    elif isinstance(message, Append):
        kind = APPEND
        fields = _APPEND.pack(message.prev, message.prev_term, message.body_term, message.commit, message.round)
        assert isinstance(message.body, bytes | memoryview)
        body = message.body
    elif isinstance(message, AppendReply):
        kind = APPEND_REPLY
        fields = _REPLY.pack(message.is_accepted, *message[4:])
    elif isinstance(message, Install):
        kind, fields = INSTALL, _INSTALL.pack(message.start, message.start_term)
        assert isinstance(message.snapshot, bytes | memoryview)
        body = message.snapshot
    else:
        kind, fields = TIMEOUT_NOW, b""
    head = _COMMON.pack(kind, message.term, message.incarnation, len(name)) + name + fields
    return frame(head, body)


def frame(head: bytes, body: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """Length and CRC before the two parts."""
    crc = zlib.crc32(body, zlib.crc32(head))
    return [HEAD.pack(len(head) + len(body), crc) + head, body] if len(body) else [HEAD.pack(len(head), crc) + head]


def decode_message(data: memoryview) -> RaftMessage:
    """The message in a frame whose length and CRC were checked. Raises RemoteProtocolError."""
    try:
        kind, term, incarnation, name_bytes = _COMMON.unpack_from(data)
        at = _COMMON.size + name_bytes
        if at > len(data):
            raise RemoteProtocolError("a member's name goes beyond its frame")
        sender = str(data[_COMMON.size : at], "utf-8")
        if kind == VOTE_REQUEST:
            last_term, end, is_pre, is_transfer = _VOTE_REQUEST.unpack_from(data, at)
            return VoteRequest(term, sender, incarnation, last_term, end, bool(is_pre), bool(is_transfer))
        if kind == VOTE_REPLY:
            asked, is_pre, is_granted = _VOTE_REPLY.unpack_from(data, at)
            return VoteReply(term, sender, incarnation, asked, bool(is_pre), bool(is_granted))
        if kind == APPEND:
            prev, prev_term, body_term, commit, number = _APPEND.unpack_from(data, at)
            body = data[at + _APPEND.size :]
            return Append(term, sender, incarnation, prev, prev_term, body_term, body, commit, number)
        if kind == APPEND_REPLY:
            accepted, *rest = _REPLY.unpack_from(data, at)
            return AppendReply(term, sender, incarnation, bool(accepted), *rest)
        if kind == INSTALL:
            start, start_term = _INSTALL.unpack_from(data, at)
            return Install(term, sender, incarnation, start, start_term, data[at + _INSTALL.size :])
        if kind == TIMEOUT_NOW:
            return TimeoutNow(term, sender, incarnation)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a message of a member is malformed: {error}") from None
    raise RemoteProtocolError(f"a message of unknown kind {kind}")


def check_frame(length: int) -> None:
    """Refuse a length before memory is taken for it. Raises RemoteProtocolError."""
    if not 0 < length <= FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a frame of {length} bytes from a member, allowed are {FRAME_BYTES_MAX}")


def check_crc(data: bytes | memoryview, crc: int) -> None:
    """Raises RemoteProtocolError."""
    if zlib.crc32(data) != crc:
        raise RemoteProtocolError("a frame of a member does not match its checksum")
