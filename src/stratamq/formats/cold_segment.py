"""Segments of the cold tier: blocks of records, and the index that finds messages in them by offset, time and key.

All numbers little-endian. A flat segment is one object::

    magic "SQcs" | version u32 = 1
    blocks: each a zstd frame of whole commit-log records, one after the other, byte for byte as they were stored
    index

The index of a Parquet segment is an object of its own with the same magic and version in front; its blocks are row
groups::

    keys:   count x (hash u32, row u32), ascending; row counts from the segment's first offset
    blocks: count x 48 bytes: first offset i64 | position u64 (a row group's number) | min store time i64
            | max store time i64 | count u32 | stored bytes u32 | raw bytes u32 | CRC-32 of the raw bytes u32
    filter: a Bloom filter over the key hashes
    trailer, 64 bytes: keys at u64 | key count u32 | block count u32 | filter bytes u32 | filter hashes u32
            | first offset i64 | raw bytes u64 | count u64 | zero 8 | CRC-32 u32 (of keys, blocks, filter and trailer up
            to here) | magic "SQix"

The hash of a key is that of the index file: `formats.java.index_key_hash` of topic and key.
Byte tables: docs/formats/cold-segment.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from stratamq.errors import BadLength, BadMagic, ChecksumMismatch, CorruptionError, MisplacedRecord
from stratamq.formats import vector
from stratamq.formats.java import hash_units, utf16_units
from stratamq.formats.message import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, SIZE_AND_MAGIC
from stratamq.formats.vector import Ints, byte_view
from stratamq.formats.vector_keys import index_keys
from stratamq.formats.vector_properties import clean_utf8, split_properties
from stratamq.units import Buffer, MiB

HEAD: Final = struct.Struct("<4sI")
MAGIC: Final = b"SQcs"
TRAILER: Final = struct.Struct("<QIIIIqQQ8xI4s")
INDEX_MAGIC: Final = b"SQix"
VERSION: Final = 1
BLOCK: Final = np.dtype(
    [
        ("first", "<i8"),
        ("position", "<u8"),
        ("min_ms", "<i8"),
        ("max_ms", "<i8"),
        ("count", "<u4"),
        ("stored_bytes", "<u4"),
        ("raw_bytes", "<u4"),
        ("crc", "<u4"),
    ]
)
KEY: Final = np.dtype([("hash", "<u4"), ("row", "<u4")])
BLOCK_RAW_MAX: Final = 1024 * MiB
"""No block claims to be longer: what an index says is not believed without bounds."""
KEYS_MAX: Final = 64_000_000
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_MAGIC_V1_BYTES: Final = struct.pack(">i", MAGIC_V1)
_FILTER_BITS_A_KEY: Final = 10
_FILTER_HASHES: Final = 7
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

Blocks = npt.NDArray[Any]
"""Rows of `BLOCK`."""
Keys = npt.NDArray[Any]
"""Rows of `KEY`, ascending."""


class RawBlock(NamedTuple):
    """Records that follow each other in a queue, not yet compressed, and what the index says of them."""

    data: bytes
    first: int
    messages: int
    min_ms: int
    max_ms: int
    hashes: npt.NDArray[np.uint32]
    """Hashes of all keys."""
    rows: npt.NDArray[np.uint32]
    """Which record of the block each key belongs to."""


class SegmentIndex(NamedTuple):
    """The index of one segment. Key table and filter stay as they lie in the object."""

    first: int
    messages: int
    raw_bytes: int
    blocks: Blocks
    keys: Keys
    filter: bytes
    filter_hashes: int

    @property
    def last(self) -> int:
        """Offset of the last message."""
        return self.first + self.messages - 1

    def block_of(self, offset: int) -> int:
        """Number of the block that holds an offset of this segment."""
        return int(np.searchsorted(self.blocks["first"], offset, side="right")) - 1

    def may_have(self, key_hash: int) -> bool:
        """Whether a key may be in here: one in a hundred answers "maybe" is wrong, "no" never."""
        return not self.filter or bool(_filter_bits(self.filter, self.filter_hashes, np.array([key_hash]))[0])

    def offsets_of(self, key_hash: int) -> list[int]:
        """Offsets of the messages one of whose keys has this hash, ascending. Collisions are the caller's to see."""
        low = int(np.searchsorted(self.keys["hash"], key_hash, side="left"))
        high = int(np.searchsorted(self.keys["hash"], key_hash, side="right"))
        return sorted({self.first + int(row) for row in self.keys["row"][low:high]})


# --- from records to blocks -------------------------------------------------------------------------------------


def make_block(records: Sequence[Buffer], first: int, topic: str, *, path: str) -> RawBlock:
    """A block of whole records, given as buffers that hold one or more each; the first has queue offset ``first``.

    Raises CorruptionError when the bytes are not records whose queue offsets follow each other. Cost: about 1 us a
    record.
    """
    data = b"".join(records)
    log = byte_view(data)
    positions, stop = _walk(data)
    if stop != len(data) or not len(positions):
        raise BadLength(path, stop, "a whole record", f"{len(data) - stop} bytes")
    checked = vector.check_records(log, positions, end=len(data), physical_base=None)
    flawed = np.flatnonzero(checked.flaws != vector.OK)
    if flawed.size:
        raise CorruptionError(path, int(positions[flawed[0]]), "a record", "lengths that do not fit")
    offsets = checked.heads["queue_offset"].astype(np.int64)
    wrong = np.flatnonzero(offsets != first + np.arange(len(offsets)))
    if wrong.size:
        row = int(wrong[0])
        raise MisplacedRecord(path, int(positions[row]), f"queue offset {first + row}", int(offsets[row]))
    times = checked.heads["store_timestamp"].astype(np.int64)
    rows, hashes = _keys_of(log, checked.parts, topic)
    return RawBlock(data, first, len(offsets), int(times.min()), int(times.max()), hashes, rows)


def _keys_of(
    log: vector.Bytes, parts: vector.Parts, topic: str
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Row and hash of every key of every record."""
    data = vector.gather_bytes(log, parts.properties_at, parts.properties_bytes)
    offsets: Ints = np.concatenate((np.zeros(1, np.int64), np.cumsum(parts.properties_bytes)))
    found = split_properties(*clean_utf8(data, offsets))
    prefixes = np.full(len(parts.body_at), hash_units(utf16_units(topic + "#")), dtype=np.uint32)
    rows, hashes = index_keys(found, prefixes)
    return rows.astype(np.uint32), hashes.astype(np.uint32)


class SegmentBuilder:
    """Puts blocks together into a flat segment. Holds what it was given until `finish`."""

    def __init__(self, *, level: int = 3) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)
        self._parts: list[bytes] = [HEAD.pack(MAGIC, VERSION)]
        self._at = HEAD.size
        self._index = IndexBuilder()

    @property
    def stored_bytes(self) -> int:
        """Length so far."""
        return self._at

    def add(self, block: RawBlock) -> None:
        """Compress one more block. Lets other threads run meanwhile."""
        self.add_stored(self._compressor.compress(block.data), block)

    def add_stored(self, stored: bytes, block: RawBlock) -> None:
        """Add a block whose compressed form is known."""
        self._index.add(block, self._at, len(stored))
        self._parts.append(stored)
        self._at += len(stored)

    def finish(self) -> tuple[list[bytes], int, int]:
        """The whole object in pieces, where its index begins, and how long the index is."""
        tail = self._index.encode(self._at)
        return [*self._parts, tail], self._at, len(tail)


class IndexBuilder:
    """Collects what the index of a segment says of its blocks."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._hashes: list[npt.NDArray[np.uint32]] = []
        self._key_rows: list[npt.NDArray[np.uint32]] = []
        self.count = 0
        self.raw_bytes = 0

    def add(self, block: RawBlock, position: int, stored_bytes: int) -> None:
        """Note one more block."""
        crc = zlib.crc32(block.data)
        row = (block.first, position, block.min_ms, block.max_ms, block.messages, stored_bytes, len(block.data), crc)
        self._rows.append(row)
        self._hashes.append(block.hashes)
        self._key_rows.append(block.rows + np.uint32(self.count))
        self.count += block.messages
        self.raw_bytes += len(block.data)

    def encode(self, keys_at: int) -> bytes:
        """The index as it follows at byte ``keys_at`` of an object."""
        blocks = np.array(self._rows, dtype=BLOCK)
        keys = np.zeros(sum(map(len, self._hashes)), dtype=KEY)
        if len(keys):
            keys["hash"], keys["row"] = np.concatenate(self._hashes), np.concatenate(self._key_rows)
            keys = keys[np.lexsort((keys["row"], keys["hash"]))]
        bloom = make_filter(keys["hash"])
        body = keys.tobytes() + blocks.tobytes() + bloom
        head = (keys_at, len(keys), len(blocks), len(bloom), _FILTER_HASHES, int(blocks["first"][0]))
        trailer = TRAILER.pack(*head, self.raw_bytes, self.count, 0, INDEX_MAGIC)
        crc = zlib.crc32(trailer[:-8], zlib.crc32(body))
        return body + TRAILER.pack(*head, self.raw_bytes, self.count, crc, INDEX_MAGIC)


# --- reading ----------------------------------------------------------------------------------------------------


def decode_index(data: bytes, *, path: str, at: int = 0) -> SegmentIndex:
    """Read an index from the bytes that hold it, and nothing else. Raises CorruptionError; ``path`` and ``at`` (where
    ``data`` lies in the object) are for that."""
    if len(data) < TRAILER.size:
        raise BadLength(path, at, f"an index of at least {TRAILER.size} bytes", f"{len(data)} bytes")
    trailer_at = len(data) - TRAILER.size
    keys_at, keys, blocks, bloom, hashes, first, raw_bytes, count, crc, magic = TRAILER.unpack_from(data, trailer_at)
    if magic != INDEX_MAGIC:
        raise BadMagic(path, at + len(data) - 4, INDEX_MAGIC, magic)
    if keys > KEYS_MAX or keys * KEY.itemsize + blocks * BLOCK.itemsize + bloom != trailer_at:
        raise BadLength(path, at, f"{keys} keys and {blocks} blocks in {trailer_at} bytes", "another length")
    if zlib.crc32(data[:-8]) != crc:
        raise ChecksumMismatch(path, at, f"{crc:08x}", f"{zlib.crc32(data[:-8]):08x}")
    if keys_at != at:
        raise MisplacedRecord(path, at, f"an index made for byte {at}", keys_at)
    key_table = np.frombuffer(data, dtype=KEY, count=keys)
    table = np.frombuffer(data, dtype=BLOCK, count=blocks, offset=keys * KEY.itemsize)
    ends = table["first"] + table["count"]
    if not blocks or int(table["first"][0]) != first or (ends[:-1] != table["first"][1:]).any():
        raise CorruptionError(path, at, "blocks without holes", "other offsets")
    if int(table["count"].sum()) != count or (table["count"] == 0).any() or (table["raw_bytes"] > BLOCK_RAW_MAX).any():
        raise CorruptionError(path, at, f"blocks of {count} messages", "impossible counts")
    bloom_at = trailer_at - bloom
    return SegmentIndex(first, count, raw_bytes, table, key_table, data[bloom_at:trailer_at], hashes)


def decode_block(stored: bytes, index: SegmentIndex, number: int, *, path: str) -> bytes:
    """The records of a block of a flat segment. Raises CorruptionError. Lets other threads run meanwhile."""
    row = index.blocks[number]
    position, raw_bytes = int(row["position"]), int(row["raw_bytes"])
    if len(stored) != int(row["stored_bytes"]):
        raise BadLength(path, position, f"{int(row['stored_bytes'])} bytes", f"{len(stored)} bytes")
    try:
        size = zstandard.frame_content_size(stored)
        if size != raw_bytes:
            raise BadLength(path, position, f"{raw_bytes} bytes of records", f"{size} bytes")
        data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_bytes)
    except zstandard.ZstdError as error:
        raise CorruptionError(path, position, "a zstd frame", str(error)) from error
    check_block(data, index, number, path=path)
    return data


def check_block(data: bytes, index: SegmentIndex, number: int, *, path: str) -> None:
    """Raise ChecksumMismatch when the records of a block are not those that were stored."""
    row = index.blocks[number]
    if len(data) != int(row["raw_bytes"]) or zlib.crc32(data) != int(row["crc"]):
        raise ChecksumMismatch(path, int(row["position"]), f"{int(row['crc']):08x}", f"{zlib.crc32(data):08x}")


def check_head(data: bytes, *, path: str) -> None:
    """Raise BadMagic unless an object begins like a segment."""
    magic, version = HEAD.unpack_from(data) if len(data) >= HEAD.size else (data[:4], 0)
    if magic != MAGIC or version != VERSION:
        raise BadMagic(path, 0, f"{MAGIC!r} version {VERSION}", f"{magic!r} version {version}")


def record_positions(data: bytes) -> Ints:
    """Where the records of a block begin. About 100 ns a record."""
    return _walk(data)[0]


def _walk(data: bytes) -> tuple[Ints, int]:
    """Where records begin, and where what looks like records ends. `vector.walk` is for logs, whose records say where
    they lie; these lay elsewhere."""
    whole = _by_magic(data)
    if whole is not None:
        return whole, len(data)
    found: list[int] = []
    at, end = 0, len(data)
    unpack = SIZE_AND_MAGIC.unpack_from
    while at + RECORD_BYTES_MIN <= end:
        size, magic = unpack(data, at)
        if magic not in _MAGICS or size < RECORD_BYTES_MIN or at + size > end:
            break
        found.append(at)
        at += size
    return np.array(found, dtype=np.int64), at


def _by_magic(data: bytes) -> Ints | None:
    """The records of a block by their magic number alone, when they lead from one to the next up to the end; None when
    they do not: the number may stand in a body, and there is a second one."""
    lengths = np.fromiter(map(len, data.split(_MAGIC_V1_BYTES)), dtype=np.int64)
    starts = np.cumsum(lengths[:-1] + len(_MAGIC_V1_BYTES)) - 2 * len(_MAGIC_V1_BYTES)
    if not len(starts) or starts[0] != 0 or len(data) < RECORD_BYTES_MIN:
        return None
    ends = starts + vector.window(byte_view(data), ">i4")[starts]
    is_chain = bool((ends[:-1] == starts[1:]).all()) and int(ends[-1]) == len(data)
    return starts if is_chain and bool((ends - starts >= RECORD_BYTES_MIN).all()) else None


# --- the filter -------------------------------------------------------------------------------------------------


def make_filter(hashes: npt.NDArray[Any]) -> bytes:
    """A Bloom filter over key hashes: 10 bits a key. Empty when there are none."""
    if not len(hashes):
        return b""
    size = -(-len(hashes) * _FILTER_BITS_A_KEY // 64) * 8
    bits = np.zeros(size * 8, dtype=np.bool_)
    for places in _places(np.asarray(hashes, dtype=np.uint64), size * 8, _FILTER_HASHES):
        bits[places] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _filter_bits(data: bytes, hashes: int, wanted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    bits = np.frombuffer(data, dtype=np.uint8)
    found = np.ones(len(wanted), dtype=np.bool_)
    for places in _places(wanted.astype(np.uint64), len(data) * 8, min(hashes, 64)):
        found &= (bits[places >> np.uint64(3)] >> (places & np.uint64(7)).astype(np.uint8)) & 1 != 0
    return found


def _places(values: npt.NDArray[np.uint64], bits: int, hashes: int) -> Iterator[npt.NDArray[np.uint64]]:
    one = values * _MIX
    one ^= one >> np.uint64(29)
    two = (one * _MIX) | np.uint64(1)
    for number in range(hashes):
        yield (one + np.uint64(number) * two) % np.uint64(bits)
