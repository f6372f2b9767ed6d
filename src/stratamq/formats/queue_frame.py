"""Frames of the queue store's append-only files (journal, manifest): bytes with a number, a checksum and a horizon.

Header of a file, little-endian: magic 4 | version u16 | zero u16 | salt u32 | crc u32 | file number u64 | first u64
Frame: magic 4 | crc u32 | payload length u64 | number u64 | durable u64 | payload | zeros up to a multiple of 8

Numbers of neighbouring frames differ by one. ``durable`` is the newest frame number that its writer knew to be synced:
a damaged frame that some later frame calls durable is corruption, any other one is what a crash left of an unsynced
tail. The checksum starts from the file's random salt, so that no message body can imitate a frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.errors import BadMagic, ChecksumMismatch
from stratamq.units import Buffer

FILE_HEADER: Final = struct.Struct("<4sHHIIQQ")
FRAME: Final = struct.Struct("<4sIQQQ")
FRAME_MAGIC: Final = b"SQfr"
JOURNAL_MAGIC: Final = b"SQjn"
MANIFEST_MAGIC: Final = b"SQmf"
VERSION: Final = 1
_CRC_FROM: Final = 8


class FileHeader(NamedTuple):
    """What a file says of itself: checksum salt, its own number, the number of its first frame."""

    salt: int
    number: int
    first: int


class FrameAt(NamedTuple):
    """A frame that was found: its number, its horizon, and where its payload lies."""

    number: int
    durable: int
    start: int
    end: int


class FrameScan(NamedTuple):
    """The good frames from the front of a file, where they end, and the highest horizon seen behind a bad one."""

    frames: list[FrameAt]
    end: int
    durable_beyond: int


def encode_file_header(magic: bytes, header: FileHeader) -> bytes:
    """The 32 bytes at the front of a file."""
    salt, number, first = header
    bare = FILE_HEADER.pack(magic, VERSION, 0, salt, 0, number, first)
    return FILE_HEADER.pack(magic, VERSION, 0, salt, zlib.crc32(bare), number, first)


def decode_file_header(data: Buffer, magic: bytes, *, path: str) -> FileHeader | None:
    """Read a file header; None when the file is too short or all zeros there (it was never finished).

    Raises BadMagic, ChecksumMismatch.
    """
    if len(data) < FILE_HEADER.size or not any(data[: FILE_HEADER.size]):
        return None
    found, version, zero, salt, crc, number, first = FILE_HEADER.unpack_from(data)
    if found != magic or version != VERSION:
        raise BadMagic(path, 0, f"{magic!r} version {VERSION}", f"{found!r} version {version}")
    expected = zlib.crc32(FILE_HEADER.pack(found, version, zero, salt, 0, number, first))
    if crc != expected:
        raise ChecksumMismatch(path, 0, hex(expected), hex(crc))
    return FileHeader(salt, number, first)


def encode_frame(salt: int, number: int, durable: int, parts: Sequence[Buffer]) -> bytes:
    """One frame around the joined ``parts``."""
    payload = b"".join(parts)
    length = len(payload)
    tail = struct.pack("<QQQ", length, number, durable)
    crc = zlib.crc32(payload, zlib.crc32(tail, salt))
    return b"".join((FRAME_MAGIC, crc.to_bytes(4, "little"), tail, payload, bytes(-length % 8)))


def _frame_at(data: Buffer, at: int, salt: int) -> FrameAt | None:
    start = at + FRAME.size
    if start > len(data):
        return None
    magic, crc, length, number, durable = FRAME.unpack_from(data, at)
    if magic != FRAME_MAGIC or start + length > len(data):
        return None
    view = memoryview(data)
    if zlib.crc32(view[start : start + length], zlib.crc32(view[at + _CRC_FROM : start], salt)) != crc:
        return None
    return FrameAt(number, durable, start, start + length)


def scan_frames(data: Buffer, header: FileHeader) -> FrameScan:
    """Find the frames of a whole file, its header included. Never raises for what is in the data.

    Cost: one checksum over the data; behind a bad frame every multiple of 8 is looked at.
    """
    frames: list[FrameAt] = []
    at = FILE_HEADER.size
    expected = header.first
    while (frame := _frame_at(data, at, header.salt)) is not None and frame.number == expected:
        frames.append(frame)
        expected += 1
        at = frame.end + -frame.end % 8
    end = min(at, len(data))
    durable = 0
    raw = data if isinstance(data, bytes) else bytes(data)
    probe = raw.find(FRAME_MAGIC, at)
    while probe >= 0:
        found = _frame_at(data, probe, header.salt) if probe % 8 == 0 else None
        if found is not None and found.number > expected:
            durable = max(durable, found.durable)
        probe = raw.find(FRAME_MAGIC, probe + 4)
    return FrameScan(frames, end, durable)
