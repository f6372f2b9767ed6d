"""Records of the queue store's journal: what happened to durable queues, in order, inside `queue_frame` frames.

All little-endian, one after the other without padding; the first byte is the kind:

    1 publish, body here   kind u8 | priority u8 | zero u16 | targets u32 | size u32 | expiry ms u64
                           | targets x (queue u32, seq u64) | body[size]
    2 publish, body in the message store: the same, with the message id u64 in place of the body
    3 ack                  kind u8 | zero u8 x 3 | queue u32 | runs u32 | runs x (first seq u64, count u32)
    4 deliver mark         kind u8 | zero u8 x 3 | queue u32 | mark u64        (everything below was delivered once)
    5 declare              kind u8 | zero u8 x 3 | queue u32 | name length u32 | name, UTF-8
    6 delete               kind u8 | zero u8 x 3 | queue u32
    7 purge                kind u8 | zero u8 x 3 | queue u32 | upto u64 | runs u32 | runs of what stays
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from stratamq.errors import BadLength
from stratamq.units import Buffer

PUBLISH: Final = 1
PUBLISH_STORED: Final = 2
ACK: Final = 3
MARK: Final = 4
DECLARE: Final = 5
DELETE: Final = 6
PURGE: Final = 7

PUBLISH_HEAD: Final = struct.Struct("<BBHIIQ")
TARGET: Final = struct.Struct("<IQ")
PUBLISH_ONE: Final = struct.Struct("<BBHIIQIQ")
"""A publish to exactly one queue, which is what nearly all are: head and target in one call."""
STORED_ID: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<BxxxI")
_COUNTED: Final = struct.Struct("<BxxxII")
_MARK: Final = struct.Struct("<BxxxIQ")
_PURGE: Final = struct.Struct("<BxxxIQI")
RUN: Final = struct.Struct("<QI")

Run: TypeAlias = tuple[int, int]
"""First sequence number and how many follow each other."""


class Publish(NamedTuple):
    """A message for some queues. ``content`` is the body, or None when it is in the message store as ``stored_id``."""

    targets: Sequence[tuple[int, int]]
    content: bytes | None
    stored_id: int
    size: int
    expiry_ms: int
    priority: int


class Ack(NamedTuple):
    """Messages of a queue that are done with."""

    queue: int
    runs: Sequence[Run]


class Mark(NamedTuple):
    """Everything below ``mark`` was delivered at least once."""

    queue: int
    mark: int


class Declare(NamedTuple):
    """A durable queue came to be."""

    queue: int
    name: str


class Delete(NamedTuple):
    """A queue is gone with all it held."""

    queue: int


class Purge(NamedTuple):
    """Everything below ``upto`` is done with, except ``kept``."""

    queue: int
    upto: int
    kept: Sequence[Run]


Record: TypeAlias = Publish | Ack | Mark | Declare | Delete | Purge


def to_runs(seqs: Iterable[int]) -> list[Run]:
    """Ascending runs of the numbers given in any order; doubles count once."""
    runs: list[Run] = []
    first = expected = -1
    for seq in sorted(seqs):
        if seq == expected:
            expected += 1
        elif seq != expected - 1 or first < 0:
            if first >= 0:
                runs.append((first, expected - first))
            first, expected = seq, seq + 1
    if first >= 0:
        runs.append((first, expected - first))
    return runs


def encode_publish(record: Publish) -> bytes:
    """The bytes of a publish, body included."""
    kind = PUBLISH if record.content is not None else PUBLISH_STORED
    head = PUBLISH_HEAD.pack(kind, record.priority, 0, len(record.targets), record.size, record.expiry_ms)
    targets = b"".join([TARGET.pack(queue, seq) for queue, seq in record.targets])
    body = record.content if record.content is not None else STORED_ID.pack(record.stored_id)
    return b"".join((head, targets, body))


def encode_ack(queue: int, runs: Sequence[Run]) -> bytes:
    """The bytes of an ack."""
    return _COUNTED.pack(ACK, queue, len(runs)) + b"".join([RUN.pack(*run) for run in runs])


def encode_mark(queue: int, mark: int) -> bytes:
    """The bytes of a deliver mark."""
    return _MARK.pack(MARK, queue, mark)


def encode_declare(queue: int, name: str) -> bytes:
    """The bytes of a declare."""
    raw = name.encode("utf-8", "surrogatepass")
    return _COUNTED.pack(DECLARE, queue, len(raw)) + raw


def encode_delete(queue: int) -> bytes:
    """The bytes of a delete."""
    return _HEAD.pack(DELETE, queue)


def encode_purge(queue: int, upto: int, kept: Sequence[Run]) -> bytes:
    """The bytes of a purge."""
    return _PURGE.pack(PURGE, queue, upto, len(kept)) + b"".join([RUN.pack(*run) for run in kept])


def decode_records(data: Buffer, start: int, end: int, *, path: str) -> Iterator[Record]:
    """The records of one frame's payload, ``data[start:end]``, in order.

    Raises BadLength: A record is of an unknown kind or does not fit; the frame's checksum was right, so this is a
    fault of the writer.
    """
    at = start
    while at < end:
        try:
            record, after = _decode(data, at)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise BadLength(path, at, "a journal record", f"bytes that are none ({error})") from error
        if after > end:
            raise BadLength(path, at, f"a record that ends by {end}", f"one that ends at {after}")
        yield record
        at = after


def _decode(data: Buffer, at: int) -> tuple[Record, int]:
    kind = data[at]
    if kind in (PUBLISH, PUBLISH_STORED):
        _, priority, _, count, size, expiry = PUBLISH_HEAD.unpack_from(data, at)
        at += PUBLISH_HEAD.size
        targets = [TARGET.unpack_from(data, at + TARGET.size * i) for i in range(count)]
        at += TARGET.size * count
        if kind == PUBLISH:
            return Publish(targets, bytes(data[at : at + size]), 0, size, expiry, priority), at + size
        return Publish(targets, None, STORED_ID.unpack_from(data, at)[0], size, expiry, priority), at + STORED_ID.size
    if kind == ACK:
        _, queue, count = _COUNTED.unpack_from(data, at)
        runs, at = _runs(data, at + _COUNTED.size, count)
        return Ack(queue, runs), at
    if kind == MARK:
        _, queue, mark = _MARK.unpack_from(data, at)
        return Mark(queue, mark), at + _MARK.size
    if kind == DECLARE:
        _, queue, length = _COUNTED.unpack_from(data, at)
        at += _COUNTED.size
        return Declare(queue, bytes(data[at : at + length]).decode("utf-8", "surrogatepass")), at + length
    if kind == DELETE:
        return Delete(_HEAD.unpack_from(data, at)[1]), at + _HEAD.size
    if kind == PURGE:
        _, queue, upto, count = _PURGE.unpack_from(data, at)
        runs, at = _runs(data, at + _PURGE.size, count)
        return Purge(queue, upto, runs), at
    raise KeyError(f"kind {kind}")


def _runs(data: Buffer, at: int, count: int) -> tuple[list[Run], int]:
    return [RUN.unpack_from(data, at + RUN.size * i) for i in range(count)], at + RUN.size * count
