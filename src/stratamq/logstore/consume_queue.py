"""A consume queue, of either kind: where the messages of one queue lie in the commit log, and how far it goes.

Units are collected in memory and go to the file many at a time; reading takes them from either place. The queue knows
its ends, which follow each other: ``next_offset`` (assigned) >= ``written_offset`` (its records are in the log) >=
``visible_offset`` (what consumers may see) >= ``min_offset`` (the oldest whose record still exists). ``filed_offset``,
up to which units are in the file, lies anywhere below ``written_offset``.

How units lie in their files is what the two kinds differ in: `PlainConsumeQueue`, one message a unit, and
`BatchConsumeQueue`. Derived data: what stands here can be rebuilt from the commit log.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.consume_queue import Unit
from stratamq.formats.message import MAGIC_V1, MAGIC_V2, TOPIC_V1_BYTES_MAX, encode_topic
from stratamq.logstore import layout
from stratamq.logstore.commit_log import zero_file_from
from stratamq.logstore.dispatch import SCHEDULE_TOPIC
from stratamq.logstore.types import QueueKey

UNKNOWN: Final = 2**63 - 1
QUEUE_DIRECTORY: Final = re.compile(r"(0|[1-9][0-9]{0,9})\Z")


class ConsumeQueue(ABC):
    """The units of one (topic, queue id). Not thread-safe."""

    is_batch: ClassVar[bool]
    """Whether one unit may stand for several messages."""
    unit_messages_max: ClassVar[int]
    """Most messages that one unit stands for."""
    __slots__ = (
        "_first_physical_offset",
        "_fs",
        "_handles",
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
        self.min_offset = self.visible_offset = self.written_offset = self.next_offset = self.filed_offset = 0
        self._first_physical_offset = UNKNOWN
        self.max_physical_offset = -1
        """End of the last record that has a unit; -1 when there is none."""
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
    @abstractmethod
    def first_offset(self) -> int:
        """Offset of the first unit that the files hold."""

    @property
    @abstractmethod
    def first_physical_offset(self) -> int:
        """Where the record of the queue's oldest written unit begins; `UNKNOWN` while nothing is written."""

    @property
    @abstractmethod
    def waiting_units(self) -> int:
        """Units in memory only whose records are in the log."""

    # --- writing ---

    @abstractmethod
    def add_unit(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, offset: int, count: int
    ) -> None:
        """Add the unit of a record that holds messages ``offset`` to ``offset + count - 1`` of this queue."""

    @abstractmethod
    def skip_to(self, offset: int) -> None:
        """Leave the offsets up to ``offset``, which is ahead, without messages."""

    def end_batch(self, physical_offset: int) -> list[int]:
        """The batch is in the log, which now ends at ``physical_offset``. Returns the tags codes of its messages."""
        self.written_offset = self.next_offset
        self.batch_start = -1
        self.max_physical_offset = physical_offset
        codes, self.codes = self.codes, []
        return codes

    @abstractmethod
    def write_pending(self) -> list[str]:
        """Write the pending units, those of a batch not yet in the log excepted. Returns the paths of the files
        touched.

        Raises OSError; what was not written stays pending, and calling again goes on where it stopped.
        """

    def _file_for(self, base: int, path: str, head: bytes = b"") -> int:
        """The open file that begins at stream byte ``base``; when it is new, it begins with ``head``."""
        if self.bases and self.bases[0] <= base <= self.bases[-1]:
            return self._handles.get(path)
        if not self.bases:
            self._fs.make_directory(self.directory)
        fd = self._handles.create(path, self.file_bytes)
        if head:
            self._fs.write(fd, (head,), 0)
        self.bases.append(base)  # last: what fails before is tried again
        return fd

    @abstractmethod
    def drop_batch(self) -> None:
        """Forget what the batch added: nothing of it was stored."""

    @abstractmethod
    def take_batch(self, other: ConsumeQueue) -> None:
        """This empty queue begins with the batch that ``other``, of the same kind, collects."""

    # --- reading ---

    @abstractmethod
    def read_units(self, offset: int, count: int) -> bytes:
        """Up to ``count`` records from the one on that holds ``offset``, as 20-byte units; at most to the end of
        their file, or of what is written."""

    @abstractmethod
    def unit(self, offset: int) -> Unit | None:
        """The record that holds the message ``offset``; None when it is not written."""

    @abstractmethod
    def last_unit_of(self, base: int) -> Unit | None:
        """The last unit of the file that begins at stream byte ``base``, which must be full."""

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

    # --- moving the ends ---

    @abstractmethod
    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move ``min_offset`` to the first message whose record is not below ``min_physical_offset``."""

    @abstractmethod
    def truncate(self, physical_offset: int) -> bool:
        """Keep only units of records below ``physical_offset``; what follows is zeroed, later files are removed.

        Finds the end by itself, whatever ``written_offset`` says, so that recovery can use it to load the queue.
        Returns whether something was there to be cut.
        """

    @abstractmethod
    def rewind(self, offset: int) -> None:
        """Drop all units from ``offset`` on; there must be none pending."""

    def _cut_files(self, start: int) -> bool:
        """Zero what the files hold from stream byte ``start`` on, and remove later files.

        Returns whether something was there to be cut.
        """
        base = start - start % self.file_bytes
        later = [b for b in self.bases if b > base]
        for gone in later:
            self._handles.forget(self.path_of(gone))
            self._fs.remove(self.path_of(gone))
            self.bases.remove(gone)
        if base not in self.bases:
            return bool(later)
        fd = self._handles.get(self.path_of(base))
        return zero_file_from(self._fs, fd, start - base, self.file_bytes) > 0 or bool(later)

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

    def begin_at(self, offset: int) -> None:
        """An empty queue begins at ``offset``: what was before is gone (its file is prefilled up to there)."""
        self.min_offset = self.visible_offset = self.written_offset = self.next_offset = offset
        self.filed_offset = offset
