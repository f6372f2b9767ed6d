"""The index: messages found by key and time. Derived data, built in bulk behind the log.

Rows wait in memory, at most `ROWS_MAX` of them, and go into the file together: when enough wait, before a query, at
each tick and at close. A row lost in a crash is found again, because recovery indexes from the last synced position on.

When the disk is full, indexing stops (`behind_from` says where) and messages go on being stored; `LogStore` catches up
from the log when there is room again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import numpy as np

from stratamq.clock import Clock
from stratamq.config import StoreConfig
from stratamq.errors import StrayFile
from stratamq.files.filesystem import FileSystem
from stratamq.formats.checkpoint import Checkpoint, Progress
from stratamq.formats.java import index_key_hash, index_key_hashes
from stratamq.formats.message import SYS_TRANSACTION_MASK, SYS_TRANSACTION_ROLLBACK
from stratamq.formats.vector import Ints
from stratamq.logstore.batch import IndexRow
from stratamq.logstore.commit_log import SyncWork
from stratamq.logstore.dispatch import index_keys
from stratamq.logstore.index_file import IndexFile, TimeOf

ROWS_MAX: Final = 4096
_NAME_DIGITS: Final = 17
_logger = logging.getLogger(__name__)


class Index:
    """All index files of a store. Not thread-safe."""

    def __init__(self, fs: FileSystem, directory: str, config: StoreConfig, clock: Clock) -> None:
        self.directory = directory
        self._fs = fs
        self._clock = clock
        self._slots = config.index_slots
        self._entries = config.index_entries
        self.files: list[IndexFile] = []
        self._rows: list[IndexRow] = []
        self._unsynced: dict[str, IndexFile] = {}
        self._directory_unsynced = False
        self.behind_from: int | None = None
        """Records from this physical offset on are not indexed, because the disk was full; None when all are."""
        self.position = 0
        """Records below this physical offset are indexed or waiting in memory to be."""
        self._partly = (-1, 0)
        """A record and how many of its keys are in the index already."""

    def load(self) -> None:
        """Open the files. Raises StrayFile, BadLength, OSError."""
        if self._fs.stat(self.directory) is None:
            self._fs.make_directory(self.directory)
        for name in self._fs.list(self.directory):
            path = os.path.join(self.directory, name)
            if not (name.isascii() and name.isdigit()):
                raise StrayFile(path, f"index files are named by {_NAME_DIGITS} digits")
            found = self._fs.stat(path)
            if found is not None and found.is_file and found.size == 0:
                self._fs.remove(path)  # a crash between creation and sizing
                continue
            self.files.append(IndexFile(self._fs, path, self._slots, self._entries))

    def recover(
        self,
        checkpoint: Checkpoint,
        progress: Progress | None,
        time_of: TimeOf,
        before_repair: Callable[[int, int], None],
        *,
        clean: bool,
        log_min: int,
    ) -> int:
        """Keep what is known to be on the disk. Returns the physical offset from which records must be indexed again.

        ``before_repair`` is called with name and count of a file that is cut back without being the checkpoint's own.
        """
        if progress is not None:
            if clean and self.newest[:2] == (progress.index_file, progress.index_count):
                return max(log_min, progress.index_synced)
            return max(log_min, self._keep_synced(progress, time_of, before_repair))
        if not clean:
            for file in [f for f in self.files if f.header.end_timestamp > checkpoint.index_msg_timestamp]:
                self._remove(file)
        return max(log_min, self._end())

    def _keep_synced(self, progress: Progress, time_of: TimeOf, before_repair: Callable[[int, int], None]) -> int:
        """Drop entries of records that were not synced when the checkpoint was written. Returns where to go on."""
        named = not progress.index_file
        for file in reversed(self.files.copy()):
            name = int(os.path.basename(file.path))
            is_named = name == progress.index_file
            named = named or is_named
            count = progress.index_count if is_named else file.count_below(progress.index_synced)
            if name > progress.index_file or count <= 1:
                self._remove(file)
                continue
            if is_named or count < file.header.index_count:
                if not is_named:
                    before_repair(name, count)
                file.repair(count, time_of)
                self._unsynced[file.path] = file
            break
        return progress.index_synced if named else self._end()

    def _end(self) -> int:
        """The newest record that is in the index, perhaps not with all its keys: `_put` leaves out those it has."""
        if not self.files:
            return 0
        end = self.files[-1].header.end_physical_offset
        self._partly = (end, sum(file.count_of(end) for file in self.files[-2:]))
        return end

    def _remove(self, file: IndexFile) -> None:
        file.close()
        self._fs.remove(file.path)
        self.files.remove(file)
        self._unsynced.pop(file.path, None)
        self._directory_unsynced = True

    def detach_oldest(self) -> str:
        """Let the index begin one file later; returns the path, which the caller deletes. Never the last file."""
        assert len(self.files) > 1
        file = self.files.pop(0)
        file.close()
        self._unsynced.pop(file.path, None)
        return file.path

    def skip_to(self, physical_offset: int) -> None:
        """The log begins there now: what lies below need not be indexed any more."""
        if self.behind_from is not None and self.behind_from < physical_offset:
            self.behind_from = self.position = physical_offset

    def add(self, rows: list[IndexRow], position: int) -> None:
        """Take the rows of all records below ``position``. Costs next to nothing until `ROWS_MAX` wait."""
        if self.behind_from is not None:
            return
        self._rows += rows
        self.position = position
        if len(self._rows) >= ROWS_MAX:
            self.write_rows()

    def add_hashes(self, hashes: Ints, physical_offsets: Ints, store_timestamps: Ints, position: int) -> None:
        """Like `add`, with keys already hashed, in order; they are written at once."""
        if self.behind_from is not None:
            return
        self.write_rows()
        if self.behind_from is not None or not len(hashes):
            self.position = position if self.behind_from is None else self.position
            return
        begun = np.flatnonzero(physical_offsets == self._partly[0])[: self._partly[1]]
        if begun.size:
            keep = np.ones(len(hashes), dtype=np.bool_)
            keep[begun] = False
            hashes, physical_offsets, store_timestamps = hashes[keep], physical_offsets[keep], store_timestamps[keep]
        self.position = position
        try:
            self._put_hashes(hashes, physical_offsets, store_timestamps)
        except OSError as error:
            self._fall_behind(error, int(physical_offsets[0]))

    def write_rows(self) -> None:
        """Put the waiting rows into the files. A disk that refuses is not an error here: see ``behind_from``."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        try:
            self._put(rows)
        except OSError as error:
            self._fall_behind(error, rows[0][2])

    def _fall_behind(self, error: OSError, first_lost: int) -> None:
        self.behind_from = self.position = max(first_lost, self._end())
        _logger.error(
            "the index cannot be written (%s): messages from physical offset %d on cannot be found by key until it "
            "can be again; storing goes on",
            error.strerror,
            self.behind_from,
        )

    def can_write(self) -> bool:
        """Whether there is room for the next rows; costs a reservation of blocks at most."""
        try:
            self._file_with_room().reserve(ROWS_MAX)
        except OSError:
            return False
        return True

    def _put(self, rows: Iterable[IndexRow]) -> None:
        pairs: list[tuple[str, str]] = []
        offsets: list[int] = []
        times: list[int] = []
        for topic, properties, physical_offset, store_timestamp, sys_flag in rows:
            if not properties or sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
                continue
            keys = index_keys(properties)
            if physical_offset == self._partly[0]:
                keys = keys[self._partly[1] :]
            for key in keys:
                pairs.append((topic, key))
                offsets.append(physical_offset)
                times.append(store_timestamp)
        if not pairs:
            return
        hashes = np.array(index_key_hashes(pairs), dtype=np.int64)
        self._put_hashes(hashes, np.array(offsets, dtype=np.int64), np.array(times, dtype=np.int64))

    def _put_hashes(self, hashes: Ints, physical_offsets: Ints, store_timestamps: Ints) -> None:
        start = 0
        while start < len(hashes):
            file = self._file_with_room()
            end = min(start + file.room, len(hashes))
            file.reserve(end - start)
            file.put(hashes[start:end], physical_offsets[start:end], store_timestamps[start:end])
            self._unsynced[file.path] = file
            start = end

    def _file_with_room(self) -> IndexFile:
        if self.files and self.files[-1].room:
            return self.files[-1]
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000)  # noqa: DTZ006 - RocketMQ names files in local time
        name = int(now.strftime("%Y%m%d%H%M%S%f")[:_NAME_DIGITS])
        if self.files:
            name = max(name, int(os.path.basename(self.files[-1].path)) + 1)
        path = os.path.join(self.directory, f"{name:0{_NAME_DIGITS}d}")
        file = IndexFile(self._fs, path, self._slots, self._entries, create=True)
        if self.files:
            file.begin_after(self.files[-1].header)
        self.files.append(file)
        self._directory_unsynced = True
        return file

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int) -> list[int]:
        """Physical offsets of records that may carry the key (hashes can collide), newest first."""
        self.write_rows()
        key_hash = index_key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            header = file.header
            if header.begin_timestamp <= end_ms and header.end_timestamp >= begin_ms:
                found += file.find(key_hash, begin_ms - 999, end_ms, max_count - len(found))
            if len(found) >= max_count or header.begin_timestamp < begin_ms:
                break
        return found

    @property
    def newest(self) -> tuple[int, int, int, int]:
        """Name of the newest file as a number, its next free entry, and time and offset of its last record; zeros."""
        if not self.files:
            return 0, 0, 0, 0
        header = self.files[-1].header
        name = int(os.path.basename(self.files[-1].path))
        return name, header.index_count, header.end_timestamp, header.end_physical_offset

    def count_below(self, physical_offset: int) -> int:
        """Number of the newest file's first entry whose record is not below ``physical_offset``."""
        return self.files[-1].count_below(physical_offset) if self.files else 0

    def take_sync_work(self) -> SyncWork:
        """What must be synced now; it counts as clean from here on, so a failure of that sync must fail the store."""
        paths = list(self._unsynced)
        self._unsynced.clear()
        directories = [self.directory] if self._directory_unsynced else []
        self._directory_unsynced = False
        return SyncWork(paths, directories)

    def close(self) -> None:
        """Close all files. What waits in memory is dropped: call `write_rows` before."""
        self._rows.clear()
        for file in self.files:
            file.close()
