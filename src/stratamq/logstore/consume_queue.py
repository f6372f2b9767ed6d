"""One consume queue: 20-byte units that say where the messages of one queue lie in the commit log.

Units are collected in memory and go to the file many at a time; reading takes them from either place. The queue knows
its ends, which follow each other: ``next_offset`` (assigned) >= ``written_offset`` (its records are in the log) >=
``visible_offset`` (what consumers may see) >= ``min_offset`` (the oldest whose record still exists). ``filed_offset``,
up to which units are in the file, lies anywhere below ``written_offset``.

Derived data: what stands here can be rebuilt from the commit log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import ClassVar, Final

from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.consume_queue import PREFILL_UNIT, UNIT, UNIT_BYTES, Unit, decode_unit
from stratamq.formats.message import MAGIC_V1, MAGIC_V2, TOPIC_V1_BYTES_MAX, encode_topic
from stratamq.logstore import layout
from stratamq.logstore.commit_log import zero_file_from
from stratamq.logstore.dispatch import SCHEDULE_TOPIC
from stratamq.logstore.types import QueueKey

UNKNOWN: Final = 2**63 - 1
QUEUE_DIRECTORY: Final = re.compile(r"(0|[1-9][0-9]{0,9})\Z")


class ConsumeQueue:
    """The units of one (topic, queue id). Not thread-safe."""

    is_batch: ClassVar[bool] = False
    """Whether one unit may stand for several messages."""
    unit_messages_max: ClassVar[int] = 1
    """Most messages that one unit stands for."""
    __slots__ = (
        "_first_physical_offset",
        "_fs",
        "_handles",
        "_tail_base",
        "_tail_path",
        "bases",
        "batch_start",
        "codes",
        "directory",
        "file_bytes",
        "filed_offset",
        "is_scheduled",
        "key",
        "magic",
        "max_physical_offset",
        "min_offset",
        "next_offset",
        "pending",
        "topic_bytes",
        "topic_part",
        "visible_offset",
        "written_offset",
    )

    def __init__(
        self, key: QueueKey, directory: str, file_bytes: int, bases: list[int], fs: FileSystem, handles: HandleCache
    ) -> None:
        topic = key.topic.encode()
        self.key = key
        self.topic_part = encode_topic(topic)
        self.topic_bytes = len(self.topic_part)
        self.magic = MAGIC_V1 if len(topic) <= TOPIC_V1_BYTES_MAX else MAGIC_V2
        self.is_scheduled = key.topic == SCHEDULE_TOPIC
        self.directory = directory
        self.file_bytes = file_bytes
        self.bases = bases
        self._fs = fs
        self._handles = handles
        start = bases[0] // UNIT_BYTES if bases else 0
        self.min_offset = self.visible_offset = self.written_offset = self.next_offset = start
        self.filed_offset = start
        self._first_physical_offset = UNKNOWN
        self.max_physical_offset = -1
        """End of the last record that has a unit; -1 when there is none."""
        self._tail_base = -1
        self._tail_path = ""
        self.pending = bytearray()
        """Units from ``filed_offset`` to ``next_offset``."""
        self.codes: list[int] = []
        """Tags codes of the batch that is being collected."""
        self.batch_start = -1
        """``next_offset`` before the batch that is being collected; -1 when the batch has nothing for this queue."""

    def path_of(self, base: int) -> str:
        """Path of the file that begins at stream byte ``base``."""
        return os.path.join(self.directory, layout.stream_file_name(base))

    @property
    def first_physical_offset(self) -> int:
        """Where the record of the queue's oldest written unit begins; `UNKNOWN` while nothing is written."""
        if self._first_physical_offset == UNKNOWN and self.bases:
            first = self.first_offset_where(lambda unit: not unit.is_prefill, self.first_offset, self.filed_offset)
            unit = self.unit(first)
            if unit is not None and unit.is_valid:
                self._first_physical_offset = unit.physical_offset
        return self._first_physical_offset

    @property
    def waiting_units(self) -> int:
        """Units in memory only whose records are in the log."""
        return self.written_offset - self.filed_offset

    def add_unit(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, offset: int, count: int
    ) -> None:
        """Add the unit of a record that holds messages ``offset`` to ``offset + count - 1`` of this queue.

        Here a record is one message, and its store time is not kept.
        """
        self.pending += UNIT.pack(physical_offset, size, tags_code)
        self.next_offset = offset + count

    def skip_to(self, offset: int) -> None:
        """Leave the offsets up to ``offset``, which is ahead, without messages."""
        self.pending += PREFILL_UNIT * (offset - self.next_offset)
        self.next_offset = offset

    def end_batch(self, physical_offset: int) -> list[int]:
        """The batch is in the log, which now ends at ``physical_offset``. Returns the tags codes of its messages."""
        self.written_offset = self.next_offset
        self.batch_start = -1
        self.max_physical_offset = physical_offset
        codes, self.codes = self.codes, []
        return codes

    def write_pending(self) -> list[str]:
        """Write the pending units, those of a batch not yet in the log excepted. Returns the paths of the files
        touched.

        Raises OSError; what was not written stays pending, and calling again goes on where it stopped.
        """
        touched = []
        end = self.next_offset if self.batch_start < 0 else self.batch_start
        while self.filed_offset < end:
            start = self.filed_offset * UNIT_BYTES
            position = start % self.file_bytes
            if start - position != self._tail_base:
                self._tail_base = start - position
                self._tail_path = self.path_of(self._tail_base)
            fd = self._file_for(self._tail_base, self._tail_path, position)
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

    def _file_for(self, base: int, path: str, position: int) -> int:
        if self.bases and self.bases[0] <= base <= self.bases[-1]:
            return self._handles.get(path)
        if not self.bases:
            self._fs.make_directory(self.directory)
        fd = self._handles.create(path, self.file_bytes)
        if not self.bases and position:
            self._fs.write(fd, [PREFILL_UNIT * (position // UNIT_BYTES)], 0)
        self.bases.append(base)
        return fd

    def drop_batch(self) -> None:
        """Forget what the batch added: nothing of it was stored."""
        dropped = self.next_offset - self.batch_start
        if dropped > 0:
            del self.pending[-dropped * UNIT_BYTES :]
            del self.codes[-dropped:]
        self.next_offset = self.batch_start
        self.batch_start = -1

    def take_batch(self, other: ConsumeQueue) -> None:
        """This empty queue begins with the batch that ``other`` collects."""
        self.begin_at(other.batch_start)
        self.pending = other.pending[-(other.next_offset - other.batch_start) * UNIT_BYTES :]
        self.codes, other.codes = other.codes, []
        self.batch_start, self.next_offset = other.batch_start, other.next_offset

    def read_units(self, offset: int, count: int) -> bytes:
        """Up to ``count`` units from ``offset`` on; at most to the end of their file, or of what is written."""
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
        """The unit at ``offset``; None when it is not written."""
        data = self.read_units(offset, 1)
        return decode_unit(data) if len(data) == UNIT_BYTES else None

    def last_unit_of(self, base: int) -> Unit | None:
        """The last unit of the file that begins at stream byte ``base``, which must be full."""
        return self.unit((base + self.file_bytes) // UNIT_BYTES - 1)

    def first_offset_where(self, holds: Callable[[Unit], bool], start: int, end: int) -> int:
        """The first offset in [start, end) whose unit fulfils ``holds``, else ``end``; the units are ordered by it.

        Cost: one small read for each of log2(end - start) steps.
        """
        low, high = start, end
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and holds(unit):
                high = middle
            else:
                low = middle + 1
        return low

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move ``min_offset`` to the first unit whose record is not below ``min_physical_offset``.

        Prefill never counts.
        """
        start = max(self.min_offset, self.bases[0] // UNIT_BYTES if self.bases else 0)
        end = self.written_offset
        self.min_offset = self.first_offset_where(
            lambda unit: unit.physical_offset >= min_physical_offset and not unit.is_prefill, min(start, end), end
        )

    def truncate(self, physical_offset: int) -> bool:
        """Keep only units of records below ``physical_offset``; what follows is zeroed, later files are removed.

        Finds the end by itself, whatever ``written_offset`` says, so that recovery can use it to load the queue.
        Returns whether something was there to be cut.
        """
        if not self.bases:
            return False
        self.written_offset = self.filed_offset = (self.bases[-1] + self.file_bytes) // UNIT_BYTES
        end = self._find_end(physical_offset)
        base = end * UNIT_BYTES - end * UNIT_BYTES % self.file_bytes
        changed = False
        for later in [b for b in self.bases if b > base]:
            self._handles.forget(self.path_of(later))
            self._fs.remove(self.path_of(later))
            self.bases.remove(later)
            changed = True
        if base in self.bases:
            fd = self._handles.get(self.path_of(base))
            changed |= zero_file_from(self._fs, fd, end * UNIT_BYTES - base, self.file_bytes) > 0
        self.set_end(end)
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

    def set_end(self, end: int) -> None:
        """The queue ends at unit ``end``: all that is written is assigned and visible."""
        self.filed_offset = self.written_offset = self.next_offset = self.visible_offset = end
        self.min_offset = min(self.min_offset, end)
        last = self.unit(end - 1) if self.bases and end > self.bases[0] // UNIT_BYTES else None
        known = last is not None and last.is_valid and not last.is_prefill
        self.max_physical_offset = last.physical_offset + last.size if known and last is not None else -1

    def detach_oldest(self) -> str:
        """Let the queue begin one file later; returns the path of that file, which the caller deletes.

        The last file cannot be taken, nor one that holds offsets from ``min_offset`` on.
        """
        assert len(self.bases) > 1
        base = self.bases.pop(0)
        path = self.path_of(base)
        self._handles.forget(path)
        self._first_physical_offset = UNKNOWN
        self.min_offset = max(self.min_offset, self.first_offset)
        return path

    def attach_oldest(self, base: int) -> None:
        """Take back a detached file that could not be deleted; ``min_offset`` stays."""
        self.bases.insert(0, base)
        self._first_physical_offset = UNKNOWN

    def destroy(self) -> None:
        """Remove all files of this queue; it begins anew at 0."""
        for base in self.bases:
            self._handles.forget(self.path_of(base))
            self._fs.remove(self.path_of(base))
        self.bases.clear()
        self.pending.clear()
        self.codes.clear()
        self.batch_start = -1
        self.max_physical_offset = -1
        self._first_physical_offset = UNKNOWN
        self.begin_at(0)

    @property
    def first_offset(self) -> int:
        """Offset of the first unit that the files hold."""
        return self.bases[0] // UNIT_BYTES if self.bases else self.filed_offset

    def rewind(self, offset: int) -> None:
        """Drop all units from ``offset`` on; there must be none pending."""
        if not self.bases or offset <= self.first_offset:
            self.destroy()
            self.begin_at(offset)
            return
        start = offset * UNIT_BYTES
        keep = start - start % self.file_bytes
        for base in [b for b in self.bases if b > keep]:
            self._handles.forget(self.path_of(base))
            self._fs.remove(self.path_of(base))
            self.bases.remove(base)
        if keep in self.bases:
            zero_file_from(self._fs, self._handles.get(self.path_of(keep)), start - keep, self.file_bytes)
        self.set_end(offset)

    def begin_at(self, offset: int) -> None:
        """An empty queue begins at ``offset``: what was before is gone (its file is prefilled up to there)."""
        self.min_offset = self.visible_offset = self.written_offset = self.next_offset = offset
        self.filed_offset = offset
