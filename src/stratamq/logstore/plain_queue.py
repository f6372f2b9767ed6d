"""One plain consume queue: 20-byte units, one for each message, at the place that its queue offset says.

Offsets that never had a message, below the first one or in between, are filled with prefill units.

Source: docs/formats/consume-queue.md; apache/rocketmq store/.../ConsumeQueue.java.
"""

from __future__ import annotations

from typing import ClassVar

from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.consume_queue import PREFILL_UNIT, UNIT, UNIT_BYTES, Unit, decode_unit
from stratamq.logstore.consume_queue import UNKNOWN, ConsumeQueue
from stratamq.logstore.types import QueueKey


class PlainConsumeQueue(ConsumeQueue):
    """The units of one (topic, queue id) of which every record is one message. Not thread-safe."""

    is_batch: ClassVar[bool] = False
    unit_messages_max: ClassVar[int] = 1
    __slots__ = ("_tail_base", "_tail_path")

    def __init__(
        self, key: QueueKey, directory: str, file_bytes: int, bases: list[int], fs: FileSystem, handles: HandleCache
    ) -> None:
        super().__init__(key, directory, file_bytes, bases, fs, handles)
        self._tail_base = -1
        self._tail_path = ""
        self.begin_at(bases[0] // UNIT_BYTES if bases else 0)

    # --- reading ---

    @property
    def first_offset(self) -> int:
        return self.bases[0] // UNIT_BYTES if self.bases else self.filed_offset

    @property
    def first_physical_offset(self) -> int:
        if self._first_physical_offset == UNKNOWN and self.bases:
            first = self.first_offset_where(lambda unit: not unit.is_prefill, self.first_offset, self.filed_offset)
            unit = self.unit(first)
            if unit is not None and unit.is_valid:
                self._first_physical_offset = unit.physical_offset
        return self._first_physical_offset

    @property
    def waiting_units(self) -> int:
        return self.written_offset - self.filed_offset

    def read_units(self, offset: int, count: int) -> bytes:
        start = offset * UNIT_BYTES
        position = start % self.file_bytes
        count = min(count, self.written_offset - offset, (self.file_bytes - position) // UNIT_BYTES)
        if offset >= self.filed_offset:
            at = (offset - self.filed_offset) * UNIT_BYTES
            return bytes(self.pending[at : at + count * UNIT_BYTES]) if count > 0 else b""
        count = min(count, self.filed_offset - offset)
        base = start - position
        if count <= 0 or not self.bases or base < self.bases[0]:
            return b""
        return self._fs.read(self._handles.get(self.path_of(base)), count * UNIT_BYTES, position)

    def unit(self, offset: int) -> Unit | None:
        data = self.read_units(offset, 1)
        return decode_unit(data) if len(data) == UNIT_BYTES else None

    def last_unit_of(self, base: int) -> Unit | None:
        return self.unit((base + self.file_bytes) // UNIT_BYTES - 1)

    # --- writing ---

    def add_unit(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, offset: int, count: int
    ) -> None:
        # Here a record is one message, and its store time is not kept.
        self.pending += UNIT.pack(physical_offset, size, tags_code)
        self.next_offset = offset + count

    def skip_to(self, offset: int) -> None:
        self.pending += PREFILL_UNIT * (offset - self.next_offset)
        self.next_offset = offset

    def write_pending(self) -> list[str]:
        touched = []
        end = self.next_offset if self.batch_start < 0 else self.batch_start
        while self.filed_offset < end:
            start = self.filed_offset * UNIT_BYTES
            position = start % self.file_bytes
            if start - position != self._tail_base:
                self._tail_base = start - position
                self._tail_path = self.path_of(self._tail_base)
            head = b"" if self.bases else PREFILL_UNIT * (position // UNIT_BYTES)
            fd = self._file_for(self._tail_base, self._tail_path, head)
            size = min((end - self.filed_offset) * UNIT_BYTES, self.file_bytes - position)
            chunk = self.pending if size == len(self.pending) else self.pending[:size]
            self._fs.write(fd, (chunk,), position)
            touched.append(self._tail_path)
            self.filed_offset += size // UNIT_BYTES
            if chunk is self.pending:
                self.pending = bytearray()
            else:
                del self.pending[:size]
        self.written_offset = max(self.written_offset, self.filed_offset)
        return touched

    def drop_batch(self) -> None:
        dropped = self.next_offset - self.batch_start
        if dropped > 0:
            del self.pending[-dropped * UNIT_BYTES :]
            del self.codes[-dropped:]
        self.next_offset = self.batch_start
        self.batch_start = -1

    def take_batch(self, other: ConsumeQueue) -> None:
        self.begin_at(other.batch_start)
        self.pending = other.pending[-(other.next_offset - other.batch_start) * UNIT_BYTES :]
        self.codes, other.codes = other.codes, []
        self.batch_start, self.next_offset = other.batch_start, other.next_offset

    # --- moving the ends ---

    def correct_min_offset(self, min_physical_offset: int) -> None:
        start = max(self.min_offset, self.bases[0] // UNIT_BYTES if self.bases else 0)
        end = self.written_offset
        self.min_offset = self.first_offset_where(
            lambda unit: unit.physical_offset >= min_physical_offset and not unit.is_prefill, min(start, end), end
        )

    def truncate(self, physical_offset: int) -> bool:
        if not self.bases:
            return False
        self.written_offset = self.filed_offset = (self.bases[-1] + self.file_bytes) // UNIT_BYTES
        return self._cut(self._find_end(physical_offset))

    def rewind(self, offset: int) -> None:
        if not self.bases or offset <= self.first_offset:
            self.destroy()
            self.begin_at(offset)
            return
        self._cut(offset)

    def _cut(self, end: int) -> bool:
        """Keep the units below ``end``: all that is written is assigned and visible."""
        changed = self._cut_files(end * UNIT_BYTES)
        self.filed_offset = self.written_offset = self.next_offset = self.visible_offset = end
        self.min_offset = min(self.min_offset, end)
        last = self.unit(end - 1) if self.bases and end > self.bases[0] // UNIT_BYTES else None
        known = last is not None and last.is_valid and not last.is_prefill
        self.max_physical_offset = last.physical_offset + last.size if known and last is not None else -1
        return changed

    def _find_end(self, physical_offset: int) -> int:
        """The first unit that is unwritten or belongs to a record at or behind ``physical_offset``."""

        def is_behind(unit: Unit) -> bool:
            if unit.is_prefill:
                return False
            return not unit.is_valid or unit.physical_offset >= physical_offset

        for base in reversed(self.bases[1:]):
            first = self.unit(base // UNIT_BYTES)
            if first is not None and not is_behind(first):
                return self.first_offset_where(is_behind, base // UNIT_BYTES, (base + self.file_bytes) // UNIT_BYTES)
        base = self.bases[0]
        return self.first_offset_where(is_behind, base // UNIT_BYTES, (base + self.file_bytes) // UNIT_BYTES)
