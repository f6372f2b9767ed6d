"""One consume queue of a topic with ``queue.type=BatchCQ``: 46-byte units, each of a record of one or many messages.

Units lie in ``batchconsumequeue/TOPIC/QUEUE`` one behind the other, so a queue offset has to be searched: by halves
over the offsets that the units name, beginning with the unit found last. Offsets, ends and the life of a unit are
those of `ConsumeQueue`; what that says of units by number holds here by the record that holds the message.

Derived data: what stands here can be rebuilt from the commit log.
Source: apache/rocketmq store/.../queue/BatchConsumeQueue.java.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.batch_consume_queue import (
    BATCH_MESSAGES_MAX,
    BATCH_UNIT_BYTES,
    BatchUnit,
    decode_batch_unit,
    decode_batch_units,
    encode_batch_unit,
)
from stratamq.formats.consume_queue import UNIT, Unit
from stratamq.logstore.consume_queue import UNKNOWN, ConsumeQueue
from stratamq.logstore.types import QueueKey


class BatchConsumeQueue(ConsumeQueue):
    """The units of one (topic, queue id) whose records may be batches. Not thread-safe."""

    is_batch: ClassVar[bool] = True
    unit_messages_max: ClassVar[int] = BATCH_MESSAGES_MAX
    __slots__ = ("_filed_units", "_hint")

    def __init__(
        self, key: QueueKey, directory: str, file_bytes: int, bases: list[int], fs: FileSystem, handles: HandleCache
    ) -> None:
        super().__init__(key, directory, file_bytes, bases, fs, handles)
        self._filed_units = 0
        """Units from the stream's beginning to the end of what is in files."""
        self._hint = 0
        self.begin_at(0)

    # --- units by number ---

    @property
    def waiting_units(self) -> int:
        return len(self.pending) // BATCH_UNIT_BYTES - (len(self.codes) if self.batch_start >= 0 else 0)

    @property
    def _first_unit(self) -> int:
        return self.bases[0] // BATCH_UNIT_BYTES if self.bases else self._filed_units

    @property
    def _end_unit(self) -> int:
        return self._filed_units + self.waiting_units

    def _read(self, number: int, count: int) -> bytes:
        """Up to ``count`` units from a number on, no further than their file, or than what is in the log."""
        if number >= self._filed_units:
            at = number - self._filed_units
            count = min(count, self.waiting_units - at)
            return bytes(self.pending[at * BATCH_UNIT_BYTES : (at + count) * BATCH_UNIT_BYTES]) if count > 0 else b""
        start = number * BATCH_UNIT_BYTES
        position = start % self.file_bytes
        count = min(count, self._filed_units - number, (self.file_bytes - position) // BATCH_UNIT_BYTES)
        base = start - position
        if count <= 0 or not self.bases or base < self.bases[0]:
            return b""
        return self._fs.read(self._handles.get(self.path_of(base)), count * BATCH_UNIT_BYTES, position)

    def _unit_at(self, number: int) -> BatchUnit | None:
        data = self._read(number, 1)
        return decode_batch_unit(data) if len(data) == BATCH_UNIT_BYTES else None

    def _first_where(self, holds: Callable[[BatchUnit], bool], start: int, end: int) -> int:
        """The first number in [start, end) whose unit fulfils ``holds``, else ``end``; units are ordered by it."""
        while start < end:
            middle = (start + end) // 2
            unit = self._unit_at(middle)
            if unit is not None and holds(unit):
                end = middle
            else:
                start = middle + 1
        return start

    def _number_of(self, offset: int) -> int:
        """Number of the first unit that ends behind a queue offset: the one that holds it, where one does."""
        low, end = self._first_unit, self._end_unit
        for number in (self._hint, self._hint + 1):
            unit = self._unit_at(number) if low <= number < end else None
            if unit is not None and unit.base_offset <= offset < unit.end_offset:
                self._hint = number
                return number
        self._hint = number = self._first_where(lambda unit: unit.end_offset > offset, low, end)
        return number

    # --- reading by queue offset ---

    def batch_units(self, offset: int, count: int) -> list[BatchUnit]:
        """Up to ``count`` units from the one on that holds ``offset``; at most to the end of their file."""
        data = self._read(self._number_of(offset), count)
        return decode_batch_units(data[: len(data) - len(data) % BATCH_UNIT_BYTES])

    def read_units(self, offset: int, count: int) -> bytes:
        """The records from the one on that holds ``offset``, one 20-byte unit each."""
        return b"".join([UNIT.pack(*unit.plain) for unit in self.batch_units(offset, count)])

    def unit(self, offset: int) -> Unit | None:
        """The record that holds the message ``offset``, or the next one; None behind the last."""
        found = self._unit_at(self._number_of(offset))
        return found.plain if found is not None else None

    def last_unit_of(self, base: int) -> Unit | None:
        found = self._unit_at((base + self.file_bytes) // BATCH_UNIT_BYTES - 1)
        return found.plain if found is not None else None

    @property
    def first_physical_offset(self) -> int:
        if self._first_physical_offset == UNKNOWN and self.bases:
            unit = self._unit_at(self._first_unit)
            if unit is not None and unit.is_valid:
                self._first_physical_offset = unit.physical_offset
        return self._first_physical_offset

    @property
    def first_offset(self) -> int:
        unit = self._unit_at(self._first_unit) if self.bases else None
        return unit.base_offset if unit is not None and unit.is_valid else self.filed_offset

    def correct_min_offset(self, min_physical_offset: int) -> None:
        first, end = self._first_unit, self._end_unit
        number = self._first_where(lambda unit: unit.physical_offset >= min_physical_offset, first, end)
        unit = self._unit_at(number) if number < end else None
        at = self.written_offset if unit is None else unit.base_offset
        self.min_offset = min(max(self.min_offset, at), self.written_offset)

    # --- writing ---

    def add_unit(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, offset: int, count: int
    ) -> None:
        unit = BatchUnit(physical_offset, size, tags_code, store_timestamp, offset, count)
        self.pending += encode_batch_unit(unit)
        self.next_offset = offset + count

    def skip_to(self, offset: int) -> None:
        self.next_offset = offset

    def write_pending(self) -> list[str]:
        touched = []
        while (left := self.waiting_units) > 0:
            start = self._filed_units * BATCH_UNIT_BYTES
            position = start % self.file_bytes
            path = self.path_of(start - position)
            fd = self._file_for(start - position, path)
            size = min(left * BATCH_UNIT_BYTES, self.file_bytes - position)
            chunk = bytes(self.pending[:size])
            self._fs.write(fd, (chunk,), position)
            touched.append(path)
            del self.pending[:size]
            self._filed_units += size // BATCH_UNIT_BYTES
            self.filed_offset = decode_batch_unit(chunk, size - BATCH_UNIT_BYTES).end_offset
        self.written_offset = max(self.written_offset, self.filed_offset)
        return touched

    def drop_batch(self) -> None:
        if self.codes:
            del self.pending[-len(self.codes) * BATCH_UNIT_BYTES :]
            self.codes.clear()
        self.next_offset = self.batch_start
        self.batch_start = -1

    def take_batch(self, other: ConsumeQueue) -> None:
        self.begin_at(other.batch_start)
        self.pending = other.pending[-len(other.codes) * BATCH_UNIT_BYTES :]
        self.codes, other.codes = other.codes, []
        self.batch_start, self.next_offset = other.batch_start, other.next_offset

    # --- cutting ---

    def truncate(self, physical_offset: int) -> bool:
        if not self.bases:
            return False
        self._filed_units = (self.bases[-1] + self.file_bytes) // BATCH_UNIT_BYTES
        return self._cut(self._find_unit_end(physical_offset), None)

    def rewind(self, offset: int) -> None:
        if not self.bases or offset <= self.first_offset:
            self.destroy()
            self.begin_at(offset)
            return
        self._cut(self._number_of(offset), offset)

    def _cut(self, end: int, offset: int | None) -> bool:
        """Keep the units below number ``end``; the queue goes on at ``offset``, or where the last unit kept ends."""
        following = self._unit_at(end)
        changed = self._cut_files(end * BATCH_UNIT_BYTES)
        self._filed_units = end
        last = self._unit_at(end - 1) if end > self._first_unit else None
        self.max_physical_offset = -1 if last is None else last.physical_offset + last.size
        self._first_physical_offset = UNKNOWN
        if offset is None and last is not None:
            offset = last.end_offset
        elif offset is None:
            offset = following.base_offset if following is not None and following.is_valid else 0
        self.filed_offset = self.written_offset = self.next_offset = self.visible_offset = offset
        self.min_offset = min(max(self.min_offset, self.first_offset), offset)
        return changed

    def _find_unit_end(self, physical_offset: int) -> int:
        """Number of the first unit that is unwritten or of a record at or behind ``physical_offset``."""

        def is_behind(unit: BatchUnit) -> bool:
            return not unit.is_valid or unit.physical_offset >= physical_offset

        for base in reversed(self.bases):
            start = base // BATCH_UNIT_BYTES
            first = self._unit_at(start)
            if base == self.bases[0] or (first is not None and not is_behind(first)):
                return self._first_where(is_behind, start, (base + self.file_bytes) // BATCH_UNIT_BYTES)
        return self._first_unit

    def begin_at(self, offset: int) -> None:
        super().begin_at(offset)
        if not self.bases:
            self._filed_units = self._hint = 0
