"""The checkpoint: the file, read at open and rewritten in place while the store runs, and what goes into it.

All fields lie in the first 128 bytes, so the one write that replaces them touches one disk sector.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from stratamq.errors import StrayFile
from stratamq.files.filesystem import FileSystem
from stratamq.formats.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    Progress,
    decode_checkpoint,
    decode_progress,
    encode_checkpoint,
)
from stratamq.logstore.commit_log import SyncWork
from stratamq.logstore.index import Index
from stratamq.logstore.queue_table import QueueTable

_FIELDS_BYTES = 40


class CheckpointFile:
    """One checkpoint file. `write` may run in another thread than the rest, one call at a time."""

    __slots__ = ("_fd", "_fs", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self._fs = fs
        self._fd = -1

    def read(self) -> tuple[Checkpoint | None, Progress | None]:
        """What the file says; (None, None) when it is missing or too short to say anything.

        Raises OSError, StrayFile.
        """
        found = self._fs.stat(self.path)
        if found is None:
            return None, None
        if not found.is_file:
            raise StrayFile(self.path, "the checkpoint is a file")
        fd = self._fs.open(self.path, writable=False)
        try:
            data = self._fs.read(fd, CHECKPOINT_BYTES, 0)
        finally:
            self._fs.close(fd)
        if len(data) < _FIELDS_BYTES:
            return None, None
        return decode_checkpoint(data), decode_progress(data)

    def write(self, checkpoint: Checkpoint, progress: Progress | None) -> None:
        """Put new values in place. Blocks for a sync. Raises OSError."""
        created = False
        if self._fd < 0:
            if self._fs.stat(self.path) is None:
                self._fd = self._fs.create(self.path, CHECKPOINT_BYTES)
                created = True
            else:
                self._fd = self._fs.open(self.path)
        self._fs.write(self._fd, [encode_checkpoint(checkpoint, progress)], 0)
        self._fs.sync(self._fd)
        if created:
            self._fs.sync_directory(os.path.dirname(self.path))

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1


class Trust:
    """The checkpoint that recovery began with. What it says is withdrawn, durably, before files that it vouches for are
    rewritten: a crash in the middle then looks like a crash, and the next recovery trusts nothing half-made.
    """

    __slots__ = ("_checkpoint", "_file", "_mark_open", "_progress")

    def __init__(
        self, file: CheckpointFile, checkpoint: Checkpoint, progress: Progress | None, mark_open: Callable[[], None]
    ) -> None:
        self._file = file
        self._checkpoint = checkpoint
        self._progress = progress
        self._mark_open = mark_open

    def withdraw_queues(self, log_min: int) -> None:
        """Queues are about to be rebuilt from the oldest record on. Syncs; raises OSError."""
        self._checkpoint = dataclasses.replace(self._checkpoint, logics_msg_timestamp=0)
        if self._progress is not None:
            self._progress = self._progress._replace(queues_synced=log_min, queue_count=0, queues_fingerprint=0)
        self._write()

    def withdraw_index(self, log_min: int) -> None:
        """The index is about to be rebuilt below what the checkpoint says of it. Syncs; raises OSError."""
        self._checkpoint = dataclasses.replace(self._checkpoint, index_msg_timestamp=0)
        if self._progress is not None:
            self._progress = self._progress._replace(index_synced=log_min, index_file=0, index_count=0)
        self._write()

    def name_index(self, name: int, count: int) -> None:
        """An index file that the checkpoint does not name is about to be cut back to ``count`` entries."""
        assert self._progress is not None
        self._progress = self._progress._replace(index_file=name, index_count=count)
        self._write()

    def _write(self) -> None:
        self._file.write(self._checkpoint, self._progress)
        self._mark_open()


class CheckpointToken(NamedTuple):
    """What one round of queue and index syncs brings to the disk, and the checkpoint that is true after it."""

    work: SyncWork
    checkpoint: Checkpoint
    progress: Progress


def checkpoint_token(
    flushed: int, flushed_timestamp: int, queues: QueueTable, index: Index | None, *, everything: bool, clean: bool
) -> CheckpointToken:
    """What to sync now, and what is true afterwards: nothing in it goes beyond what the log itself has on the disk.

    The files in the token count as clean from here on, so a failure of its sync must fail the store.

    Args:
        flushed: How far the commit log is synced, with the store time of the last record below.
        everything: Take all changed queue files, not only as many as one round may.
        clean: The store is being closed: note also where each queue ends.
    """
    work = queues.take_sync_work(everything=everything)
    position, timestamp = flushed, flushed_timestamp
    for dirty_position, dirty_timestamp in queues.dirty.values():
        position, timestamp = min(position, dirty_position), min(timestamp, dirty_timestamp - 1)
    for waiting_position, waiting_timestamp in islice(queues.waiting.values(), 1):  # the oldest come first
        position, timestamp = min(position, waiting_position), min(timestamp, waiting_timestamp - 1)
    index_position, name, count, index_timestamp = flushed, 0, 0, 0
    if index is not None:
        index_work = index.take_sync_work()
        work = SyncWork([*work.paths, *index_work.paths], [*work.directories, *index_work.directories])
        index_position = min(flushed, index.position)
        name, count, index_timestamp, _ = index.newest
        count = min(count, index.count_below(index_position))
    queue_count, queue_print = queues.prints_with_ends() if clean else queues.settle(position)
    return CheckpointToken(
        work,
        Checkpoint(
            physic_msg_timestamp=flushed_timestamp,
            logics_msg_timestamp=max(0, timestamp),
            index_msg_timestamp=min(index_timestamp, flushed_timestamp),
            confirm_physical_offset=flushed,
        ),
        Progress(flushed, position, index_position, name, count, queue_count, queue_print),
    )
