"""Files of the queue store's shared message store (``N.rdq``): records, and the footer of a sealed file.

Record, little-endian, padded with zeros to a multiple of 8:
    magic 4 | crc u32 (from id on, zeros left out) | id u64 | length u32 | zero u32 | body[length]
Footer, behind the last record:
    count x (id u64, offset u32, length u32) | magic 4 | crc u32 (of the table and of what follows here)
    | table bytes u64 | covers up to file u64

Recovery file, written by a clean stop: magic 4 | crc u32 (of the rest) | batch u64 | next id u64 | next file u64
    | files u64 | files x (number u64, covers u64, first id u64, rows u64, the columns id u64, offset u32, length u32,
    count u32 one after the other)

Ids ascend within a file and from file to file. A file whose last 24 bytes are a good footer is sealed: it is never
written again, and what it holds is known without reading the bodies. A sealed file stands for all files from its own
number up to ``covers``; files in between are left-overs of a collection that a crash interrupted.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from typing import Final, NamedTuple

import numpy as np

from stratamq.errors import BadLength, BadMagic, ChecksumMismatch, MisplacedRecord, TruncatedRecord
from stratamq.units import Buffer

RECORD: Final = struct.Struct("<4sIQII")
RECORD_MAGIC: Final = b"SQms"
TRAILER: Final = struct.Struct("<4sIQQ")
TRAILER_MAGIC: Final = b"SQft"
ENTRY: Final = np.dtype([("id", "<u8"), ("offset", "<u4"), ("length", "<u4")])
TABLES_MAGIC: Final = b"SQrc"
_TABLES: Final = struct.Struct("<QQQQ")
_TABLE: Final = struct.Struct("<QQQQ")
_PADS: Final = tuple(bytes(n) for n in range(8))


class MessageTable(NamedTuple):
    """What a file holds, three columns of equal length in ascending order of ids and offsets."""

    ids: array[int]
    offsets: array[int]
    lengths: array[int]


def empty_table() -> MessageTable:
    """A table without rows."""
    return MessageTable(array("Q"), array("I"), array("I"))


def record_bytes(length: int) -> int:
    """Bytes that a body of ``length`` takes in a file."""
    return RECORD.size + length + -length % 8


def encode_record(message_id: int, body: bytes) -> tuple[bytes, bytes, bytes]:
    """Head, body and padding of one record, to be written one after the other."""
    length = len(body)
    crc = zlib.crc32(body, zlib.crc32(struct.pack("<QII", message_id, length, 0)))
    return RECORD.pack(RECORD_MAGIC, crc, message_id, length, 0), body, _PADS[-length % 8]


def decode_record(data: Buffer, message_id: int, *, path: str, offset: int) -> bytes:
    """The body of the record that ``data`` begins with.

    Raises TruncatedRecord, BadMagic, MisplacedRecord, ChecksumMismatch; ``path`` and ``offset`` are for their text.
    """
    if len(data) < RECORD.size:
        raise TruncatedRecord(path, offset, f"{RECORD.size} bytes", f"{len(data)} bytes")
    magic, crc, found, length, zero = RECORD.unpack_from(data)
    if magic != RECORD_MAGIC or zero:
        raise BadMagic(path, offset, RECORD_MAGIC, magic)
    if found != message_id:
        raise MisplacedRecord(path, offset, f"message {message_id}", f"message {found}")
    if len(data) < RECORD.size + length:
        raise TruncatedRecord(path, offset, f"{RECORD.size + length} bytes", f"{len(data)} bytes")
    body = bytes(data[RECORD.size : RECORD.size + length])
    expected = zlib.crc32(body, zlib.crc32(struct.pack("<QII", found, length, 0)))
    if crc != expected:
        raise ChecksumMismatch(path, offset, hex(expected), hex(crc))
    return body


def encode_footer(table: MessageTable, covers: int) -> bytes:
    """The footer of a file that holds ``table`` and stands for all files up to ``covers``."""
    columns = np.empty(len(table.ids), ENTRY)
    columns["id"], columns["offset"], columns["length"] = table
    rows = columns.tobytes()
    rest = struct.pack("<QQ", len(rows), covers)
    return rows + TRAILER.pack(TRAILER_MAGIC, zlib.crc32(rest, zlib.crc32(rows)), len(rows), covers)


def decode_trailer(data: Buffer, file_bytes: int, *, path: str) -> tuple[int, int] | None:
    """Table bytes and ``covers`` out of the last bytes of a file; None when they are not a trailer at all.

    Raises BadLength: It is one, but its table cannot fit.
    """
    if len(data) < TRAILER.size:
        return None
    magic, _, length, covers = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    if magic != TRAILER_MAGIC:
        return None
    if length % ENTRY.itemsize or length + TRAILER.size > file_bytes:
        raise BadLength(path, file_bytes - TRAILER.size, f"a table within {file_bytes} bytes", f"{length} bytes")
    return length, covers


def decode_footer(data: Buffer, *, path: str, offset: int) -> tuple[MessageTable, int]:
    """Table and ``covers`` out of a whole footer that begins at ``offset`` of its file. Raises ChecksumMismatch."""
    rows = memoryview(data)[: len(data) - TRAILER.size]
    _, crc, length, covers = TRAILER.unpack_from(data, len(rows))
    expected = zlib.crc32(struct.pack("<QQ", length, covers), zlib.crc32(rows))
    if crc != expected:
        raise ChecksumMismatch(path, offset, hex(expected), hex(crc))
    columns = np.frombuffer(rows, ENTRY)
    table = empty_table()
    for column, name in zip(table, ("id", "offset", "length"), strict=True):
        column.frombytes(columns[name].tobytes())
    return table, covers


def scan_records(data: Buffer, *, path: str) -> tuple[MessageTable, int]:
    """Records from the front of an unsealed file up to the first that is not whole: their table, and where they end."""
    table = empty_table()
    at = 0
    last = -1
    while at + RECORD.size <= len(data):
        magic, _, message_id, length, _ = RECORD.unpack_from(data, at)
        end = at + record_bytes(length)
        if magic != RECORD_MAGIC or message_id <= last or end > len(data):
            break
        try:
            decode_record(memoryview(data)[at:end], message_id, path=path, offset=at)
        except (ChecksumMismatch, BadMagic):
            break
        table.ids.append(message_id)
        table.offsets.append(at)
        table.lengths.append(length)
        last = message_id
        at = end
    return table, at


class StoredFile(NamedTuple):
    """One file in a recovery file: its table and the reference counts."""

    number: int
    covers: int
    first_id: int
    table: MessageTable
    refs: array[int]


class StoredTables(NamedTuple):
    """What a clean stop knew of the message store. ``batch`` is the newest journal frame."""

    batch: int
    next_id: int
    next_number: int
    files: list[StoredFile]


def encode_tables(tables: StoredTables) -> bytes:
    """The bytes of a recovery file."""
    parts = [_TABLES.pack(tables.batch, tables.next_id, tables.next_number, len(tables.files))]
    for file in tables.files:
        parts.append(_TABLE.pack(file.number, file.covers, file.first_id, len(file.refs)))
        parts += [column.tobytes() for column in (*file.table, file.refs)]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([TABLES_MAGIC, crc.to_bytes(4, "little"), *parts])


def decode_tables(data: Buffer, *, path: str) -> StoredTables:
    """Read a recovery file. Raises BadMagic, ChecksumMismatch, TruncatedRecord."""
    if bytes(data[:4]) != TABLES_MAGIC:
        raise BadMagic(path, 0, TABLES_MAGIC, bytes(data[:4]))
    view = memoryview(data)
    crc = zlib.crc32(view[8:])
    if crc != int.from_bytes(view[4:8], "little"):
        raise ChecksumMismatch(path, 8, hex(int.from_bytes(view[4:8], "little")), hex(crc))
    try:
        batch, next_id, next_number, count = _TABLES.unpack_from(view, 8)
        at = 8 + _TABLES.size
        files = []
        for _ in range(count):
            number, covers, first_id, rows = _TABLE.unpack_from(view, at)
            at += _TABLE.size
            columns = [*empty_table(), array("I")]
            for column in columns:
                column.frombytes(view[at : at + rows * column.itemsize])
                at += rows * column.itemsize
            table = MessageTable(*columns[:3])
            files.append(StoredFile(number, covers, first_id, table, columns[3]))
    except (struct.error, ValueError) as error:
        raise TruncatedRecord(path, 8, "whole tables", str(error)) from error
    return StoredTables(batch, next_id, next_number, files)
