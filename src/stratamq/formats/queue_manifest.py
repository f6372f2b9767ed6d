"""Records of the queue store's manifest: what the queues are and which segments they have, in `queue_frame` frames.

All little-endian; the first byte is the kind. A later record of a queue or segment replaces the earlier one.

    1 store    kind u8 | zero u8 x 3 | entries of a segment u32 | next queue u32 | zero u32 | batch u64 | low u64
               | next id u64
    2 queue    kind u8 | zero u8 x 3 | queue u32 | name length u32 | zero u32 | next seq u64 | mark u64 | stamp u64
               | name
    3 segment  kind u8 | flags u8 | zero u16 | queue u32 | number u64 | first seq u64 | entries u32 | live u32
               | live bytes u64 | file bytes u64 | chunks u32 | gone bytes u32
               | chunks x (first seq u64, entries u32, offset u64) | gone: zlib of one bit an entry, none when none is
    4 dropped  kind u8 | zero u8 x 3 | queue u32 | number u64
    5 deleted  kind u8 | zero u8 x 3 | queue u32

``batch`` is the newest journal frame when the record was written, ``low`` the oldest still needed, and ``stamp`` the
newest whose changes to this queue are in the manifest. Segment flags: 1 some entry names a message store, 2 some
entry does not survive a restart.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from stratamq.errors import BadLength
from stratamq.units import Buffer

STORE: Final = struct.Struct("<BxxxIIIQQQ")
QUEUE: Final = struct.Struct("<BxxxIIIQQQ")
SEGMENT: Final = struct.Struct("<BBHIQQIIQQII")
CHUNK: Final = struct.Struct("<QIQ")
DROPPED: Final = struct.Struct("<BxxxIQ")
DELETED: Final = struct.Struct("<BxxxI")
HAS_STORED: Final = 1
HAS_TRANSIENT: Final = 2
GONE_BYTES_MAX: Final = 1 << 20


class StoreRecord(NamedTuple):
    """The store as a whole."""

    entry_count: int
    next_queue_id: int
    batch: int
    low: int
    next_message_id: int


class QueueRecord(NamedTuple):
    """One durable queue."""

    queue: int
    name: str
    next_seq: int
    mark: int
    stamp: int


class SegmentRecord(NamedTuple):
    """One segment of a queue. ``gone`` has a byte for each entry: 1 where the message is gone; empty when none is."""

    queue: int
    number: int
    first: int
    entries: int
    live: int
    live_bytes: int
    file_bytes: int
    flags: int
    chunks: Sequence[tuple[int, int, int]]
    gone: bytes


class DroppedRecord(NamedTuple):
    """A segment is gone."""

    queue: int
    number: int


class DeletedRecord(NamedTuple):
    """A queue is gone."""

    queue: int


ManifestRecord: TypeAlias = StoreRecord | QueueRecord | SegmentRecord | DroppedRecord | DeletedRecord


def encode_manifest_record(record: ManifestRecord) -> bytes:
    """The bytes of one record."""
    if isinstance(record, StoreRecord):
        return STORE.pack(1, record.entry_count, record.next_queue_id, 0, *record[2:])
    if isinstance(record, QueueRecord):
        name = record.name.encode("utf-8", "surrogatepass")
        return QUEUE.pack(2, record.queue, len(name), 0, record.next_seq, record.mark, record.stamp) + name
    if isinstance(record, SegmentRecord):
        gone = b""
        if record.gone:
            gone = zlib.compress(np.packbits(np.frombuffer(record.gone, "u1")).tobytes(), 1)
        head = SEGMENT.pack(
            3,
            record.flags,
            0,
            record.queue,
            record.number,
            record.first,
            record.entries,
            record.live,
            record.live_bytes,
            record.file_bytes,
            len(record.chunks),
            len(gone),
        )
        return head + b"".join([CHUNK.pack(*chunk) for chunk in record.chunks]) + gone
    if isinstance(record, DroppedRecord):
        return DROPPED.pack(4, *record)
    return DELETED.pack(5, record.queue)


def decode_manifest_records(data: Buffer, start: int, end: int, *, path: str) -> Iterator[ManifestRecord]:
    """The records of one frame's payload, ``data[start:end]``. Raises BadLength: bytes that are no record."""
    at = start
    while at < end:
        try:
            record, after = _decode(data, at)
        except (struct.error, zlib.error, UnicodeDecodeError, KeyError) as error:
            raise BadLength(path, at, "a manifest record", f"bytes that are none ({error})") from error
        if after > end:
            raise BadLength(path, at, f"a record that ends by {end}", f"one that ends at {after}")
        yield record
        at = after


def _decode(data: Buffer, at: int) -> tuple[ManifestRecord, int]:
    kind = data[at]
    if kind == 1:
        _, entry_count, next_queue_id, _, batch, low, next_id = STORE.unpack_from(data, at)
        return StoreRecord(entry_count, next_queue_id, batch, low, next_id), at + STORE.size
    if kind == 2:
        _, queue, length, _, next_seq, mark, stamp = QUEUE.unpack_from(data, at)
        at += QUEUE.size
        name = bytes(data[at : at + length]).decode("utf-8", "surrogatepass")
        return QueueRecord(queue, name, next_seq, mark, stamp), at + length
    if kind == 3:
        return _decode_segment(data, at)
    if kind == 4:
        _, queue, number = DROPPED.unpack_from(data, at)
        return DroppedRecord(queue, number), at + DROPPED.size
    if kind == 5:
        return DeletedRecord(DELETED.unpack_from(data, at)[1]), at + DELETED.size
    raise KeyError(f"kind {kind}")


def _decode_segment(data: Buffer, at: int) -> tuple[SegmentRecord, int]:
    (_, flags, _, queue, number, first, entries, live, live_bytes, file_bytes, chunk_count, gone_bytes) = (
        SEGMENT.unpack_from(data, at)
    )
    at += SEGMENT.size
    chunks = [CHUNK.unpack_from(data, at + CHUNK.size * i) for i in range(chunk_count)]
    at += CHUNK.size * chunk_count
    gone = b""
    if gone_bytes:
        unpacker = zlib.decompressobj()
        bits = unpacker.decompress(bytes(data[at : at + gone_bytes]), GONE_BYTES_MAX)
        gone = np.unpackbits(np.frombuffer(bits, "u1"), count=entries).tobytes()
    record = SegmentRecord(queue, number, first, entries, live, live_bytes, file_bytes, flags, chunks, gone)
    return record, at + gone_bytes
