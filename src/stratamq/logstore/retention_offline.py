"""Retention of a store directory that no broker has open: what the planner needs, read from the files; and the deed.

Reading changes nothing and works beside a running broker too. Deleting takes the store's lock. Only commit-log and
index files are deleted here; consume-queue files whose messages are gone are left to the broker, which removes them a
minute after its next start: its note of a clean stop counts them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from stratamq.files.durable import ConfigFile
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.batch_consume_queue import BATCH_UNIT_BYTES
from stratamq.formats.consume_queue import UNIT_BYTES, decode_unit
from stratamq.formats.index import HEADER_BYTES, decode_header
from stratamq.logstore import layout, listing
from stratamq.logstore.batch_files import BelievedBatches
from stratamq.logstore.disk_usage import DiskProbe, LocalDiskProbe
from stratamq.logstore.lock import StoreLock
from stratamq.logstore.log_paths import recorded_paths
from stratamq.logstore.retention_losses import Offsets, delivery_offsets, loss_ranges, measure_loss, read_offsets
from stratamq.logstore.retention_reading import first_record_ms
from stratamq.logstore.retention_values import (
    Disks,
    IndexFileInfo,
    LogFile,
    Loss,
    Plan,
    QueueFile,
    QueueFiles,
    StoreFiles,
)
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import QueueKey

OFFSETS_FILE: Final = "consumerOffset.json"
DELAYS_FILE: Final = "delayOffset.json"
_MEASURE_UNITS: Final = 1 << 20


class OfflineStore:
    """A store directory as retention sees it. A `retention_losses.QueueReader`."""

    def __init__(self, path: Path, *, filesystem: FileSystem | None = None) -> None:
        """Open for reading. Raises NotAStore, StrayFile, BadLength."""
        self.snapshot = StoreSnapshot.open(path)
        self.path = self.snapshot.path
        self._fs = filesystem or LocalFileSystem()
        self._queue_files: list[QueueFiles] | None = None
        self._batches: dict[QueueKey, BelievedBatches] = {}

    def disks(self, probe: DiskProbe | None = None) -> Disks:
        """The disks of log and queues."""
        probe = probe or LocalDiskProbe()
        queues = self.path / layout.CONSUME_QUEUE
        logs = recorded_paths(str(self.path)).every
        return Disks([probe.usage(log) for log in logs], probe.usage(str(queues) if queues.is_dir() else logs[0]))

    def files(self) -> StoreFiles:
        """All files. Cost: one small read for each log and index file and for each queue file but the last."""
        end = self.snapshot.max_physical_offset
        log = []
        for file in self.snapshot.files:
            following = self.snapshot.file_of(file.base + file.length)
            newest_ms = 0
            if following is not None and following.base < end:
                newest_ms = first_record_ms(self._fs, following.path, following.base)
            found = self._fs.stat(file.path)
            modified_ms = found.modified_ms if found else 0
            row = LogFile(file.base, file.length, file.path, newest_ms, modified_ms, file.allocated_bytes)
            log.append(row._replace(directory=os.path.dirname(file.path)))
        queues = self.queue_files()
        index = [
            IndexFileInfo(file.path, self._index_end(file.path), file.allocated_bytes)
            for file in listing.list_index_files(str(self.path))
            if file.length >= HEADER_BYTES
        ]
        size = sum(file.length for file in log)
        return StoreFiles(log, end, queues, index, store_bytes=size)

    def queue_files(self) -> list[QueueFiles]:
        """The files of all queues, of both kinds."""
        if self._queue_files is None:
            plain = listing.list_queues(str(self.path))
            file_bytes = listing.unit_file_bytes(plain)
            found = [QueueFiles(key, self._files_of(path, UNIT_BYTES, file_bytes)) for key, path in plain]
            for key, path in listing.list_batch_queues(str(self.path)):
                found.append(QueueFiles(key, self._files_of(path, BATCH_UNIT_BYTES, None)))
                self._batches[key] = BelievedBatches(self.snapshot, *key)
            self._queue_files = found
        return self._queue_files

    def _files_of(self, directory: str, unit_bytes: int, file_bytes: int | None) -> list[QueueFile]:
        stream = listing.list_stream(directory, multiple_of=unit_bytes, file_bytes=file_bytes)
        found = []
        for file in stream.newest_run():
            last = None
            if file is not stream.files[-1]:
                # A unit of either kind begins with the place and the size of its record.
                unit = decode_unit(self._read(file.path, UNIT_BYTES, file.length - unit_bytes))
                last = unit.physical_offset if unit.is_valid else None
            found.append(QueueFile(file.base, file.path, last, file.allocated_bytes))
        return found

    def _index_end(self, path: str) -> int:
        return decode_header(self._read(path, HEADER_BYTES, 0)).end_physical_offset

    def _read(self, path: str, length: int, at: int) -> bytes:
        fd = self._fs.open(path, writable=False)
        try:
            return self._fs.read(fd, length, at).ljust(length, b"\0")
        finally:
            self._fs.close(fd)

    # --- what groups lose -------------------------------------------------------------------------------------

    def offsets(self) -> Offsets:
        """What groups had committed when the broker last saved it. Raises CorruptionError for an unusable file."""
        config = self.path / layout.CONFIG
        groups = read_offsets(ConfigFile(str(config / OFFSETS_FILE)).load())
        return groups | delivery_offsets(ConfigFile(str(config / DELAYS_FILE)).load())

    def losses(self, plan: Plan) -> list[Loss]:
        """What each group loses when the plan is carried out."""
        start = self.snapshot.min_physical_offset
        ranges = loss_ranges(self, self.keys(), self.offsets(), start, plan.min_offset_after)
        return [measure_loss(self, lost) for lost in ranges if lost is not None]

    def keys(self) -> Iterable[QueueKey]:
        """All queues."""
        return [queue.key for queue in self.queue_files()]

    def span(self, key: QueueKey) -> tuple[int, int] | None:
        batches = self._batches.get(key)
        found = self.snapshot.queue(*key) if batches is None else batches.range
        return found.min_offset, found.max_offset

    def physical_offset(self, key: QueueKey, offset: int) -> int | None:
        batches = self._batches.get(key)
        find = partial(self.snapshot.raw_units, *key) if batches is None else batches.units
        units = find(offset, offset + 1)
        return int(units["physical_offset"][0]) if len(units) else None

    def first_at(self, key: QueueKey, physical_offset: int) -> int:
        batches = self._batches.get(key)
        if batches is not None:
            return batches.offset_where(lambda unit: unit.physical_offset >= physical_offset)
        low, high = self.span(key) or (0, 0)
        while low < high:
            middle = (low + high) // 2
            where = self.physical_offset(key, middle)
            if where is not None and where >= physical_offset:
                high = middle
            else:
                low = middle + 1
        return low

    def measure(self, key: QueueKey, first_offset: int, end_offset: int) -> tuple[int, int]:
        batches = self._batches.get(key)
        if batches is None:
            size = self._plain_bytes(key, first_offset, end_offset)
        else:
            size = batches.bytes_of(first_offset, end_offset)
        where = self.physical_offset(key, first_offset)
        return size, self.snapshot.store_timestamp_at(where) if where is not None else 0

    def _plain_bytes(self, key: QueueKey, first_offset: int, end_offset: int) -> int:
        size = 0
        for at in range(first_offset, end_offset, _MEASURE_UNITS):
            units = self.snapshot.raw_units(*key, at, min(at + _MEASURE_UNITS, end_offset))
            size += int(units["size"].sum(dtype=np.int64))
        return size


def delete_offline(
    path: Path,
    decide: Callable[[OfflineStore], Plan],
    *,
    filesystem: FileSystem | None = None,
    on_deleted: Callable[[str], None] | None = None,
) -> Sequence[str]:
    """Take the store's lock, plan again, delete what the plan names. Returns the paths that are gone.

    Files go oldest first, each made durable before the next, so that a crash leaves no gap.

    Raises StoreLocked when a broker has the store; OSError at the first file that cannot be deleted: all before it are
    gone, it and all behind are there.
    """
    fs = filesystem or LocalFileSystem()
    lock = StoreLock(str(path))
    try:
        store = OfflineStore(path, filesystem=fs)
        decided = decide(store)
        gone = []
        for decision in [*decided.deletions, *(row for row in decided.index_files if row.goes)]:
            fs.remove(decision.path)
            fs.sync_directory(os.path.dirname(decision.path))
            gone.append(decision.path)
            if on_deleted is not None:
                on_deleted(decision.path)
        return gone
    finally:
        lock.release()
