"""Files of the queue index (``N.idx``): chunks, each a run of entries with the bodies that are kept in the index.

Chunk, little-endian: magic 4 | crc u32 (of the rest of this header and of the entries) | first seq u64 | entries u32
    | zero u32 | bytes of bodies u64 | entries x 32 bytes | bodies, one behind the other
Entry, 32 bytes: kind u8 | priority u8 | zero u16 | size u32 | crc u32 of the body (0: not here) | zero u32
    | locator u64 | expiry ms u64

Kind 0 is a gap: the message was gone before it was written. Other kinds are a body's place (1 here, 2 persistent store,
4 transient store) plus 8 when the entry survives a restart. The locator is the body's offset in this file, or its id.
Entries are found by arithmetic. Chunks are only named by the manifest after they were synced.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stratamq.errors import BadMagic, ChecksumMismatch, TruncatedRecord
from stratamq.units import Buffer

CHUNK: Final = struct.Struct("<4sIQIIQ")
CHUNK_MAGIC: Final = b"SQix"
ENTRY: Final = struct.Struct("<BBHIIIQQ")
ENTRY_COLUMNS: Final = np.dtype(
    [
        ("kind", "u1"),
        ("priority", "u1"),
        ("zero", "<u2"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("zero2", "<u4"),
        ("locator", "<u8"),
        ("expiry", "<u8"),
    ]
)


class Entry(NamedTuple):
    """What the index says of one message."""

    kind: int
    priority: int
    size: int
    crc: int
    locator: int
    expiry_ms: int


class ChunkHeader(NamedTuple):
    """What a chunk says of itself."""

    crc: int
    first: int
    entries: int
    body_bytes: int


def encode_chunk(first: int, entries: Sequence[Entry], bodies: Sequence[Buffer]) -> list[bytes]:
    """A chunk in two parts, header with entries, and the bodies joined. Locators must be right already."""
    rows = b"".join([ENTRY.pack(e[0], e[1], 0, e[2], e[3], 0, e[4], e[5]) for e in entries])
    blob = b"".join(bodies)
    rest = struct.pack("<QIIQ", first, len(entries), 0, len(blob))
    crc = zlib.crc32(rows, zlib.crc32(rest))
    return [CHUNK.pack(CHUNK_MAGIC, crc, first, len(entries), 0, len(blob)) + rows, blob]


def bodies_offset(chunk_offset: int, count: int) -> int:
    """Where the bodies of a chunk with ``count`` entries begin."""
    return chunk_offset + CHUNK.size + ENTRY.size * count


def decode_chunk_header(data: Buffer, *, path: str, offset: int) -> ChunkHeader:
    """Read a chunk's header. Raises TruncatedRecord, BadMagic."""
    if len(data) < CHUNK.size:
        raise TruncatedRecord(path, offset, f"{CHUNK.size} bytes", f"{len(data)} bytes")
    magic, crc, first, count, _, body_bytes = CHUNK.unpack_from(data)
    if magic != CHUNK_MAGIC:
        raise BadMagic(path, offset, CHUNK_MAGIC, magic)
    return ChunkHeader(crc, first, count, body_bytes)


def check_chunk(header: ChunkHeader, rows: Buffer, *, path: str, offset: int) -> None:
    """Compare entries with the checksum in their chunk's header. Raises TruncatedRecord, ChecksumMismatch."""
    if len(rows) != ENTRY.size * header.entries:
        raise TruncatedRecord(path, offset, f"{header.entries} entries", f"{len(rows)} bytes")
    rest = struct.pack("<QIIQ", header.first, header.entries, 0, header.body_bytes)
    crc = zlib.crc32(rows, zlib.crc32(rest))
    if crc != header.crc:
        raise ChecksumMismatch(path, offset, hex(crc), hex(header.crc))


def entry_at(table: Buffer, row: int) -> Entry:
    """One entry of a table of 32-byte rows."""
    kind, priority, _, size, crc, _, locator, expiry = ENTRY.unpack_from(table, row * ENTRY.size)
    return Entry(kind, priority, size, crc, locator, expiry)
