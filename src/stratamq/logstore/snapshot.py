"""A log store opened for reading only, with a fixed end: ours or RocketMQ's, running, stopped, killed, or a copy.

Nothing is written, no lock is taken and no file is created. `StoreSnapshot.open` fixes the end of the commit log once;
whatever is appended later is not seen, so the same question always has the same answer. A queue's range is looked up
when it is asked for and kept: units are believed only as far as the commit log, below that end, confirms them.

`StoreFiles` is the part that needs no end: it reads ranges that somebody has fixed before (a Spark worker), and costs
one directory listing to open.

A commit log that is spread over several directories is found as the store's `commitLogPaths.json` names them.

Not seen: batch consume queues, RocksDB consume queues.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stratamq.errors import OffsetOutOfRange, QueueNotFound, StoreError
from stratamq.formats import vector
from stratamq.formats.checkpoint import Checkpoint, decode_checkpoint
from stratamq.formats.consume_queue import UNIT_BYTES, UNIT_DTYPE, Unit
from stratamq.formats.vector import Bytes
from stratamq.logstore import layout, listing, liveness, mappings
from stratamq.logstore.light_queues import LMQ_PREFIX, light_units
from stratamq.logstore.listing import StreamFile
from stratamq.logstore.log_end import LogEnd, find_end
from stratamq.logstore.queue_files import QueueEnds, QueueFiles, first_false
from stratamq.logstore.types import QueueKey


class QueueRange(NamedTuple):
    """The records ``[min_offset, max_offset)`` of one queue. ``unconfirmed`` counts units behind that the log does not
    bear out: what a truncation leaves behind, or a damaged or misaligned queue; ``store check`` tells which."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    unconfirmed: int = 0


class StoreFiles:
    """The files of a store directory. Opening lists the commit log; all else is looked up when it is needed."""

    def __init__(self, path: Path) -> None:
        """List the commit log at ``path``. Raises NotAStore, and StrayFile or BadLength for the first wrong file."""
        listing.require_store(path)
        self.path = path
        self.log = listing.list_log(str(path))
        self._refuse(self.log.problems)
        self._bases = [file.base for file in self.log.files]
        self._unit_file_bytes: int | None = None
        mappings.drop_stale_mappings()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is held. Mappings stay cached for the next reader in this process (`logstore.mappings`)."""

    @property
    def files(self) -> Sequence[StreamFile]:
        """The commit-log files in order."""
        return self.log.files

    @property
    def min_physical_offset(self) -> int:
        """First byte of the commit log that is there."""
        return self._bases[0] if self._bases else 0

    def file_of(self, physical_offset: int) -> StreamFile | None:
        """The commit-log file in which a physical offset lies, None when that is not there."""
        number = bisect.bisect_right(self._bases, physical_offset) - 1
        if number < 0:
            return None
        file = self.log.files[number]
        return file if physical_offset < file.base + file.length else None

    def bytes_of(self, file: StreamFile) -> Bytes:
        """The mapped bytes of a commit-log file."""
        return vector.byte_view(mappings.map_read_only(file.path))

    def buffer_of(self, physical_offset: int) -> tuple[Bytes, int]:
        """The mapped file in which a physical offset lies, and the position in it.

        Raises OffsetOutOfRange when there is no such file (any more).
        """
        file = self.file_of(physical_offset)
        if file is None:
            last = self.log.files[-1] if self.log.files else None
            end = last.base + last.length if last else 0
            where = f"the commit log {self.path / layout.COMMIT_LOG}"
            raise OffsetOutOfRange(physical_offset, self.min_physical_offset, end, where=where)
        return self.bytes_of(file), physical_offset - file.base

    def queue_files(self, topic: str, queue_id: int) -> QueueFiles:
        """The files of one queue, to be used in a ``with``. Raises StrayFile or BadLength for the first wrong file."""
        directory = os.path.join(self.path, layout.CONSUME_QUEUE, topic, str(queue_id))
        stream = listing.list_stream(directory, multiple_of=UNIT_BYTES, file_bytes=self._queue_file_bytes())
        self._refuse(stream.problems)
        return QueueFiles(stream)

    def raw_units(self, topic: str, queue_id: int, lo: int, hi: int) -> npt.NDArray[Any]:
        """Units ``[lo, hi)`` as they are in the files, none of them looked at; fewer when files do not reach so far.

        Returns units from ``lo`` on only when the queue's first file reaches down to it, else none.
        """
        with self.queue_files(topic, queue_id) as queue:
            if lo < queue.start or lo >= min(hi, queue.stop):
                return np.zeros(0, dtype=UNIT_DTYPE)
            return queue.units(lo, min(hi, queue.stop))

    def _refuse(self, problems: Sequence[StoreError]) -> None:
        """What to do about wrong files: here the first one is raised."""
        if problems:
            raise problems[0]

    def _queue_file_bytes(self) -> int | None:
        if self._unit_file_bytes is None:
            self._unit_file_bytes = listing.unit_file_bytes(listing.list_some_queues(str(self.path)))
        return self._unit_file_bytes


class StoreSnapshot(StoreFiles):
    """A store as it is at one moment. See the module's text; make one with `open`."""

    def __init__(self, path: Path) -> None:
        """Use `open`."""
        super().__init__(path)
        self.liveness = liveness.look(path)
        self.checkpoint = read_checkpoint(path)
        self._ends: dict[QueueKey, QueueRange] = {}

    @classmethod
    def open(cls, path: Path) -> StoreSnapshot:
        """Open the store directory ``path`` and fix its end.

        Cost: a walk over the newest commit-log file, about 50 ns a record of it (`log_end.find_end`).

        Raises:
            NotAStore: No directory, or none with a commit log.
            StrayFile, BadLength: A file that does not belong, or of another length than the others. Those of consume
                queues show when the queue is asked for.
        """
        snapshot = cls(Path(path))
        snapshot.end  # noqa: B018 - fixed now, not at the first question
        return snapshot

    @cached_property
    def end(self) -> LogEnd:
        """Where the commit log ends, and why there."""
        killed = not self.is_live and self.liveness.has_abort
        trusted_ms = (self.checkpoint.min_timestamp if self.checkpoint else 0) if killed else None
        return find_end(self.files, self.bytes_of, trusted_ms=trusted_ms, check_tail=self.is_live)

    @property
    def max_physical_offset(self) -> int:
        """One above the last byte of the last record."""
        return self.end.physical_offset

    @property
    def is_live(self) -> bool:
        """Whether a running process has the store open."""
        return self.liveness.is_live

    @property
    def was_stopped_cleanly(self) -> bool:
        """Whether the last owner left in order."""
        return self.liveness.was_stopped_cleanly

    def queues(self, topics: Iterable[str] | None = None) -> list[QueueRange]:
        """Every queue (of some topics) with its range, sorted. About 150 us a queue, once."""
        found = []
        for key, _ in listing.list_queues(str(self.path), topics):
            found.append(self.queue(*key))
        return found

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """The range of one queue. Raises QueueNotFound, and what `queue_files` raises."""
        key = QueueKey(topic, queue_id)
        known = self._ends.get(key)
        if known is not None:
            return known
        if not (self.path / layout.CONSUME_QUEUE / topic / str(queue_id)).is_dir():
            raise QueueNotFound(f"{self.path} has no queue {queue_id} of topic {topic}")
        with self.queue_files(topic, queue_id) as files:
            ends = files.ends(
                self.min_physical_offset,
                self.max_physical_offset,
                lambda offset, unit: self.confirms(key, offset, unit),
            )
        found = self._ends[key] = _range_of(key, ends)
        return found

    def confirms(self, queue: QueueKey, offset: int, unit: Unit) -> bool:
        """Whether the commit log has the record that a unit names: its size, place, topic, queue and queue offset."""
        file = self.file_of(unit.physical_offset)
        if file is None or not unit.is_valid or unit.physical_offset + unit.size > self.max_physical_offset:
            return False
        log = self.bytes_of(file)
        position = np.array([unit.physical_offset - file.base], dtype=np.int64)
        heads, parts, flaws = vector.check_records(log, position, end=file.length, physical_base=file.base)
        if flaws[0] != vector.OK or heads["size"][0] != unit.size:
            return False
        topic_at = int(parts.topic_at[0])
        topic = log[topic_at : topic_at + int(parts.topic_bytes[0])].tobytes()
        if queue.topic.startswith(LMQ_PREFIX) and topic != queue.topic.encode():
            at = int(parts.properties_at[0])
            properties = log[at : at + int(parts.properties_bytes[0])].tobytes().decode("utf-8", "replace")
            return any(name == queue.topic for name, _ in light_units(topic.decode("ascii", "replace"), properties))
        return (
            topic == queue.topic.encode()
            and int(heads["queue_id"][0]) == queue.queue_id
            and int(heads["queue_offset"][0]) == offset
        )

    def units(self, topic: str, queue_id: int, lo: int, hi: int) -> npt.NDArray[Any]:
        """Units ``[lo, hi)`` as an array of `consume_queue.UNIT_DTYPE`, a copy. Raises OffsetOutOfRange,
        QueueNotFound."""
        there = self.queue(topic, queue_id)
        for asked in (lo, hi):
            if not there.min_offset <= asked <= there.max_offset:
                where = f"topic {topic}, queue {queue_id}"
                raise OffsetOutOfRange(asked, there.min_offset, there.max_offset, where=where)
        return self.raw_units(topic, queue_id, lo, hi)

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """Offset of the first record stored at or after ``ms``; the queue's end when there is none.

        Searches by halves, so it takes store times to ascend, as they do unless the broker's clock was set back.
        """
        there = self.queue(topic, queue_id)
        with self.queue_files(topic, queue_id) as files:
            return first_false(
                there.min_offset,
                there.max_offset,
                lambda offset: self.store_timestamp_at(files.unit(offset).physical_offset) < ms,
            )

    def store_timestamp_at(self, physical_offset: int) -> int:
        """Store time of the record at a physical offset. Raises OffsetOutOfRange."""
        log, position = self.buffer_of(physical_offset)
        return int(vector.gather_heads(log, np.array([position], dtype=np.int64))["store_timestamp"][0])


def read_checkpoint(root: Path) -> Checkpoint | None:
    """The checkpoint of a store, None when there is none or it is too short."""
    try:
        data = (root / layout.CHECKPOINT).read_bytes()[:40]
    except OSError:
        return None
    return decode_checkpoint(data) if len(data) == 40 else None


def _range_of(key: QueueKey, ends: QueueEnds) -> QueueRange:
    return QueueRange(key.topic, key.queue_id, ends.min_offset, ends.max_offset, ends.unconfirmed)
