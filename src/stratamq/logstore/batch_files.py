"""One queue of batches read from its files: units by number or by queue offset, and how far the log bears them out.

For readers of a store that nobody serves, as `queue_files` is for ordinary queues. Reads with ``pread``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.errors import OffsetOutOfRange, QueueNotFound
from stratamq.formats import vector
from stratamq.formats.batch_consume_queue import (
    BATCH_UNIT_BYTES,
    BATCH_UNIT_DTYPE,
    BatchUnit,
    decode_batch_unit,
    decode_batch_units,
    inner_span,
)
from stratamq.logstore import layout, listing
from stratamq.logstore.listing import Stream
from stratamq.logstore.queue_files import first_false
from stratamq.logstore.snapshot import QueueRange, StoreFiles, StoreSnapshot
from stratamq.logstore.types import QueueKey

_PAGE_UNITS: Final = 1 << 20


class BatchStream:
    """The files of one queue of batches. Unit numbers count from the first file that is there."""

    def __init__(self, stream: Stream) -> None:
        self.files = stream.newest_run()
        self._per_file = stream.file_bytes // BATCH_UNIT_BYTES if stream.file_bytes else 0
        self.count = self._written()
        """How many units are written, assuming that written ones come first."""

    def unit(self, number: int) -> BatchUnit:
        """The unit with a number below what the files hold."""
        path, position = self.place(number)
        return decode_batch_unit(_read(path, BATCH_UNIT_BYTES, position))

    def units(self, start: int, end: int) -> npt.NDArray[Any]:
        """Units ``[start, end)`` as an array of `BATCH_UNIT_DTYPE`, a copy."""
        parts = []
        while start < end:
            path, position = self.place(start)
            count = min(end - start, self._per_file - position // BATCH_UNIT_BYTES)
            parts.append(_read(path, count * BATCH_UNIT_BYTES, position))
            start += count
        return np.frombuffer(b"".join(parts), dtype=BATCH_UNIT_DTYPE)

    def place(self, number: int) -> tuple[str, int]:
        """File and byte position of a unit."""
        file, row = divmod(number, self._per_file)
        return self.files[file].path, row * BATCH_UNIT_BYTES

    def _written(self) -> int:
        for number in reversed(range(len(self.files))):
            start = number * self._per_file
            if self.unit(start).is_valid:
                return first_false(start, start + self._per_file, lambda at: self.unit(at).is_valid)
        return 0


def is_batch_queue(root: Path, topic: str, queue_id: int) -> bool:
    """Whether a store has files of a queue of batches by that name. Cost: one look at a directory."""
    return bool(listing.list_stream(_directory(root, topic, queue_id), multiple_of=BATCH_UNIT_BYTES).files)


def _directory(root: Path, topic: str, queue_id: int) -> str:
    return str(root / layout.BATCH_CONSUME_QUEUE / topic / str(queue_id))


def open_batches(store: StoreFiles, topic: str, queue_id: int) -> BatchStream:
    """The files of a queue of batches. Raises QueueNotFound, StrayFile, BadLength."""
    directory = _directory(store.path, topic, queue_id)
    if not os.path.isdir(directory):
        raise QueueNotFound(f"{store.path} has no queue of batches {queue_id} of topic {topic}")
    stream = listing.list_stream(directory, multiple_of=BATCH_UNIT_BYTES)
    if stream.problems:
        raise stream.problems[0]
    return BatchStream(stream)


def confirms(snapshot: StoreSnapshot, key: QueueKey, unit: BatchUnit) -> bool:
    """Whether the log has the record that a unit names: place, size, topic, queue, offsets and count of messages."""
    file = snapshot.file_of(unit.physical_offset)
    if file is None or not unit.is_valid or unit.physical_offset + unit.size > snapshot.max_physical_offset:
        return False
    log = snapshot.bytes_of(file)
    position = np.array([unit.physical_offset - file.base], dtype=np.int64)
    heads, parts, flaws = vector.check_records(log, position, end=file.length, physical_base=file.base)
    if flaws[0] != vector.OK or heads["size"][0] != unit.size or int(heads["queue_id"][0]) != key.queue_id:
        return False
    topic_at, properties_at = int(parts.topic_at[0]), int(parts.properties_at[0])
    topic = log[topic_at : topic_at + int(parts.topic_bytes[0])].tobytes()
    properties = log[properties_at : properties_at + int(parts.properties_bytes[0])].tobytes()
    span = inner_span(properties.decode("utf-8", "replace"), int(heads["queue_offset"][0]))
    return topic == key.topic.encode() and span == (unit.base_offset, unit.messages)


class Believed(NamedTuple):
    """The units ``[first, end)`` of a queue whose records are in the log."""

    first: int
    end: int


def believed(snapshot: StoreSnapshot, key: QueueKey, stream: BatchStream) -> Believed:
    """Search the believable part, from both ends. Cost: some 20 small reads, and one or two records of the log."""
    low = snapshot.min_physical_offset

    def holds(number: int) -> bool:
        unit = stream.unit(number)
        return unit.physical_offset < low or confirms(snapshot, key, unit)

    end = stream.count
    if end and not holds(end - 1):
        end = first_false(0, end - 1, holds)
    return Believed(first_false(0, end, lambda number: stream.unit(number).physical_offset < low), end)


class BelievedBatches:
    """The units of one queue of batches that the log bears out, fixed when this is made. Offsets are of messages."""

    def __init__(self, snapshot: StoreSnapshot, topic: str, queue_id: int) -> None:
        """Search them; see `believed` for the cost. Raises QueueNotFound, StrayFile, BadLength."""
        stream = open_batches(snapshot, topic, queue_id)
        first, end = believed(snapshot, QueueKey(topic, queue_id), stream)
        self._stream, self._first, self._end = stream, first, end
        stop = stream.unit(end - 1).end_offset if end else 0
        start = stream.unit(first).base_offset if first < end else stop
        self.range = QueueRange(topic, queue_id, start, stop, stream.count - end)

    def units(self, lo: int, hi: int) -> npt.NDArray[Any]:
        """The units that hold the messages ``[lo, hi)``, an array of `BATCH_UNIT_DTYPE`. Raises OffsetOutOfRange."""
        return self._stream.units(*self._numbers(lo, hi))

    def bytes_of(self, lo: int, hi: int) -> int:
        """Bytes of the records that hold the messages ``[lo, hi)``. Raises OffsetOutOfRange."""
        start, stop = self._numbers(lo, hi)
        size = 0
        for at in range(start, stop, _PAGE_UNITS):
            size += int(self._stream.units(at, min(at + _PAGE_UNITS, stop))["size"].sum(dtype=np.int64))
        return size

    def _numbers(self, lo: int, hi: int) -> tuple[int, int]:
        topic, queue_id, low, high, _ = self.range
        for asked in (lo, hi):
            if not low <= asked <= high:
                raise OffsetOutOfRange(asked, low, high, where=f"topic {topic}, queue {queue_id}")
        start = self._number_where(lambda unit: unit.end_offset > lo)
        return start, max(start, self._number_where(lambda unit: unit.base_offset >= hi))

    def offset_where(self, holds: Callable[[BatchUnit], bool]) -> int:
        """Offset of the first message whose unit fulfils ``holds``, else the queue's end; units are ordered by it."""
        number = self._number_where(holds)
        return self._stream.unit(number).base_offset if number < self._end else self.range.max_offset

    def _number_where(self, holds: Callable[[BatchUnit], bool]) -> int:
        return number_of(self._stream, lambda unit: not holds(unit), self._first, self._end)


def batch_range(snapshot: StoreSnapshot, topic: str, queue_id: int) -> QueueRange:
    """The range of one queue of batches, in messages. Raises QueueNotFound, StrayFile, BadLength."""
    return BelievedBatches(snapshot, topic, queue_id).range


def batch_queues(snapshot: StoreSnapshot) -> list[QueueRange]:
    """Every queue of batches with its range, sorted."""
    return [batch_range(snapshot, *key) for key, _ in listing.list_batch_queues(str(snapshot.path))]


def units_between(snapshot: StoreSnapshot, topic: str, queue_id: int, lo: int, hi: int) -> list[BatchUnit]:
    """The units that hold the messages ``[lo, hi)`` of a queue of batches. Raises OffsetOutOfRange, QueueNotFound."""
    return decode_batch_units(BelievedBatches(snapshot, topic, queue_id).units(lo, hi).tobytes())


def number_of(stream: BatchStream, holds: Callable[[BatchUnit], bool], start: int, end: int) -> int:
    """The first unit in ``[start, end)`` that does not fulfil ``holds``, which changes once."""
    return first_false(start, end, lambda number: holds(stream.unit(number)))


def _read(path: str, length: int, position: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, length, position).ljust(length, b"\0")
    finally:
        os.close(fd)
