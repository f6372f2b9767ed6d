"""Records of AMQP's quorum queues in a group's log: one record holds what one turn of the leader has decided.

Body of a record, big-endian: magic ``AQ`` | version u8 | zero u8 | first u64 | operations. ``first`` is the
offset, in the topic's queue, of the oldest record that a reader needs to know everything: who takes over begins there.
An operation: kind u8 | length u32 | payload of that length. Kinds and payloads: docs/formats/quorum-queues.md.

A *mark* says what became of a message in one queue: bit 0 that it is with a consumer, bit 1 that it was before, the
bits above how often it came back.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from stratamq.errors import CorruptionError
from stratamq.units import Buffer, MiB

TOPIC: Final = "rmq_sys_STRATAMQ_AMQP"
"""Where the records lie, in queue 0. Nobody but the group's leader may put messages there."""
HEADER: Final = struct.Struct(">2sBBQ")
OPERATION: Final = struct.Struct(">BI")
MAGIC: Final = b"AQ"
VERSION: Final = 1
TAKEN: Final = 1
REDELIVERED: Final = 2
DELIVERIES_SHIFT: Final = 2
DEFINITIONS_BYTES_MAX: Final = 256 * MiB
"""Length of the definitions' JSON above which they are taken for damaged."""

_OPEN, _DELETE, _PUT, _TAKE, _MARK, _SETTLE, _BEGIN, _DEFINITIONS, _CHANGES = range(1, 10)
_ID: Final = struct.Struct(">I")
_PUT_HEAD: Final = struct.Struct(">QI")
_TARGET: Final = struct.Struct(">II")
_RUN: Final = struct.Struct(">QI")
_MARK_AT: Final = struct.Struct(">IQI")
_TERM: Final = struct.Struct(">Q")


class Open(NamedTuple):
    """A queue's store is there from now on; its number is never used for another."""

    queue: int
    name: str


class Delete(NamedTuple):
    """A queue's store is gone with everything in it."""

    queue: int


class Put(NamedTuple):
    """A message: in which queues, with which mark in each, and where in the record's body its content lies.

    One whose number is known already lies here from now on, so that older records can go.
    """

    number: int
    targets: tuple[tuple[int, int], ...]
    start: int
    size: int


class Take(NamedTuple):
    """Messages went to consumers; ``runs`` are (first number, how many)."""

    queue: int
    runs: tuple[tuple[int, int], ...]


class Mark(NamedTuple):
    """A message's mark in one queue."""

    queue: int
    number: int
    mark: int


class Settle(NamedTuple):
    """Messages are gone from a queue: acknowledged, dropped, expired, purged or dead-lettered."""

    queue: int
    runs: tuple[tuple[int, int], ...]


class Begin(NamedTuple):
    """A leader begins: every message that was with a consumer comes back, and its count grows."""

    term: int


class Definitions(NamedTuple):
    """All definitions, and the numbers of all queues' stores by name."""

    value: dict[str, Any]
    queues: dict[str, int]


class Changes(NamedTuple):
    """Changes of the definitions, in order; what a change is: docs/formats/definitions.md."""

    changes: list[Any]


Operation = Open | Delete | Put | Take | Mark | Settle | Begin | Definitions | Changes


def encode_header(first: int) -> bytes:
    """What a record's body begins with."""
    return HEADER.pack(MAGIC, VERSION, 0, first)


def _operation(kind: int, *parts: bytes) -> bytes:
    return b"".join((OPERATION.pack(kind, sum(map(len, parts))), *parts))


def encode_open(queue: int, name: str) -> bytes:
    """See `Open`."""
    return _operation(_OPEN, _ID.pack(queue), name.encode())


def encode_delete(queue: int) -> bytes:
    """See `Delete`."""
    return _operation(_DELETE, _ID.pack(queue))


def encode_put(number: int, targets: Sequence[tuple[int, int]], content: bytes) -> bytes:
    """See `Put`; the content is the operation's end."""
    return _operation(_PUT, _PUT_HEAD.pack(number, len(targets)), *(_TARGET.pack(*one) for one in targets), content)


def encode_mark(queue: int, number: int, mark: int) -> bytes:
    """See `Mark`."""
    return _operation(_MARK, _MARK_AT.pack(queue, number, mark))


def encode_take(queue: int, numbers: Iterable[int]) -> bytes:
    """See `Take`; ``numbers`` in ascending order."""
    return _operation(_TAKE, _ID.pack(queue), *(_RUN.pack(*run) for run in runs_of(numbers)))


def encode_settle(queue: int, numbers: Iterable[int]) -> bytes:
    """See `Settle`; ``numbers`` in ascending order."""
    return _operation(_SETTLE, _ID.pack(queue), *(_RUN.pack(*run) for run in runs_of(numbers)))


def encode_begin(term: int) -> bytes:
    """See `Begin`."""
    return _operation(_BEGIN, _TERM.pack(term))


def encode_definitions(value: dict[str, Any], queues: dict[str, int]) -> bytes:
    """See `Definitions`: JSON, compressed."""
    text = json.dumps({"definitions": value, "queues": queues}, separators=(",", ":"))
    return _operation(_DEFINITIONS, zlib.compress(text.encode(), 1))


def encode_changes(changes: Sequence[Any]) -> bytes:
    """See `Changes`: a JSON array."""
    return _operation(_CHANGES, json.dumps(changes, separators=(",", ":")).encode())


def runs_of(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, how many follow each other)."""
    first = length = 0
    for number in numbers:
        if length and number == first + length and length < 0xFFFFFFFF:
            length += 1
            continue
        if length:
            yield first, length
        first, length = number, 1
    if length:
        yield first, length


def decode_first(body: Buffer, where: str) -> int:
    """Offset of the oldest record that is needed with this one. Raises CorruptionError."""
    try:
        magic, version, zero, first = HEADER.unpack_from(body)
    except struct.error as error:
        raise CorruptionError(where, 0, "a record of quorum queues", f"{len(body)} bytes") from error
    if (magic, version, zero) != (MAGIC, VERSION, 0):
        raise CorruptionError(where, 0, f"{MAGIC!r} version {VERSION}", f"{magic!r} version {version}")
    return int(first)


def decode_operations(body: bytes, where: str) -> Iterator[Operation]:
    """What a record says, in order. Raises CorruptionError at the first thing that cannot be understood."""
    decode_first(body, where)
    at = HEADER.size
    while at < len(body):
        try:
            kind, length = OPERATION.unpack_from(body, at)
            start, end = at + OPERATION.size, at + OPERATION.size + length
            if end > len(body):
                raise ValueError(f"{length} bytes")
            found = _decode(kind, body, start, end)
        except (struct.error, ValueError, KeyError, TypeError, zlib.error, RecursionError) as error:
            raise CorruptionError(where, at, "an operation of quorum queues", repr(error)[:80]) from error
        yield found
        at = end


def _decode(kind: int, body: bytes, start: int, end: int) -> Operation:
    payload = memoryview(body)[start:end]
    if kind == _PUT:
        number, count = _PUT_HEAD.unpack_from(payload)
        content = _PUT_HEAD.size + count * _TARGET.size
        if content > len(payload):
            raise ValueError(f"{count} targets")
        targets = tuple(_TARGET.iter_unpack(payload[_PUT_HEAD.size : content]))
        return Put(number, targets, start + content, len(payload) - content)
    if kind in (_TAKE, _SETTLE):
        (queue,) = _ID.unpack_from(payload)
        runs = tuple(_RUN.iter_unpack(payload[_ID.size :]))
        return Take(queue, runs) if kind == _TAKE else Settle(queue, runs)
    if kind == _MARK:
        return Mark(*_MARK_AT.unpack(payload))
    if kind == _OPEN:
        return Open(_ID.unpack_from(payload)[0], bytes(payload[_ID.size :]).decode())
    if kind == _DELETE:
        return Delete(*_ID.unpack(payload))
    if kind == _BEGIN:
        return Begin(*_TERM.unpack(payload))
    if kind == _DEFINITIONS:
        return _decode_definitions(payload)
    if kind == _CHANGES:
        changes = json.loads(bytes(payload))
        if not isinstance(changes, list):
            raise ValueError("no array of changes")
        return Changes(changes)
    raise ValueError(f"kind {kind}")


def _decode_definitions(payload: memoryview) -> Definitions:
    stream = zlib.decompressobj()
    text = stream.decompress(payload, DEFINITIONS_BYTES_MAX)
    if not stream.eof:
        raise ValueError("definitions that are cut off, or too long")
    found = json.loads(text)
    value, queues = found["definitions"], found["queues"]
    if not isinstance(value, dict) or not all(isinstance(number, int) for number in queues.values()):
        raise ValueError("no definitions")
    return Definitions(value, dict(queues))
