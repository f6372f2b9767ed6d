"""The index file: find messages by key and time through a hash table on disk.

``[header 40][slots: 4 bytes each][entries: 20 bytes each]``, big-endian.

Header: begin store time i64 | end store time i64 | begin physical offset i64 | end physical offset i64 |
used slots i32 | index count i32 (number of the next free entry; starts at 1, an untouched file holds 0).

A slot holds the number of its newest entry, 0 when empty. Entry n is at ``40 + 4*slots + 20*n``; entry 0 is never used.
Entry: key hash i32 (never negative) | physical offset i64 | seconds since the header's begin time i32 | number of the
previous entry of the same slot i32 (0 ends the chain).

Source: docs/formats/index.md; apache/rocketmq store/.../index/IndexFile.java, IndexHeader.java.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from stratamq.units import Buffer

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
TIME_DELTA_MAX: Final = 2**31 - 1


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    used_slots: int
    index_count: int


class IndexEntry(NamedTuple):
    """One 20-byte entry."""

    key_hash: int
    physical_offset: int
    time_delta_seconds: int
    previous: int


def index_file_bytes(slot_count: int, entry_count: int) -> int:
    """Length of an index file with so many slots and entries (entry 0 included)."""
    return HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * entry_count


def slot_position(slot_count: int, key_hash: int) -> int:
    """Byte position of the slot of a key hash."""
    return HEADER_BYTES + SLOT_BYTES * (key_hash % slot_count)


def entry_position(slot_count: int, number: int) -> int:
    """Byte position of entry ``number``."""
    return HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * number


def time_delta_seconds(store_timestamp: int, begin_timestamp: int) -> int:
    """Seconds from the file's begin to a record, clamped to what an entry can hold; 0 when there is no begin yet."""
    if begin_timestamp <= 0:
        return 0
    delta = store_timestamp - begin_timestamp
    return 0 if delta < 0 else min(delta // 1000, TIME_DELTA_MAX)


def encode_header(header: IndexHeader) -> bytes:
    """The header as 40 bytes."""
    return HEADER.pack(*header)


def decode_header(data: Buffer) -> IndexHeader:
    """Read a header; an index count of 0 (an untouched file) reads as 1."""
    header = IndexHeader._make(HEADER.unpack_from(data, 0))
    return header._replace(index_count=1) if header.index_count <= 0 else header


def decode_entry(data: Buffer, position: int) -> IndexEntry:
    """The entry at byte ``position``."""
    return IndexEntry._make(ENTRY.unpack_from(data, position))
