"""The timer's state on disk as a whole: wheel, log and checkpoint, opened, changed and synced together.

The checkpoint says up to where the timer's topic is in the log and up to which second slots are delivered, and it is
written last: whatever a kill leaves, the log is cut to what the checkpoint knows, the wheel is made anew from it, and
the topic is read on from there. So nothing is forgotten; what was delivered since the checkpoint may come twice.

One owner: all but `TimerStore.sync` is called from one thread.
"""

from __future__ import annotations

import os
import threading
from typing import Final, NamedTuple

from stratamq.errors import StoreFailed
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.timer import (
    CHECKPOINT_FILE_BYTES,
    MAGIC_DELETE,
    SLOTS,
    UNIT_BYTES,
    TimerCheckpoint,
    TimerUnit,
    decode_checkpoint_file,
    encode_checkpoint_file,
)
from stratamq.logstore.timer_files import Slot, TimerLog, TimerWheel, fill_wheel, open_wheel_file

WHEEL: Final = "timerwheel"
LOG: Final = "timerlog"
CHECKPOINT: Final = "timercheck"
STEPS_AHEAD_MAX: Final = SLOTS - 120
"""How far in front of the slot delivered next a slot may be filled: a little less than the wheel goes round."""


class TimerSync(NamedTuple):
    """What one sync writes: descriptors of full log files, the log's, pages of the wheel, the checkpoint."""

    full: list[int]
    log_fd: int
    pages: list[tuple[int, bytes]]
    checkpoint: TimerCheckpoint


class TimerStore:
    """An open timer. ``rebuilt_before`` is above 0 when the log was lost: the topic is read again from its beginning,
    and of messages before that offset those due before ``read_ms`` have been delivered."""

    def __init__(self, fs: FileSystem, directory: str, *, precision_ms: int, file_bytes: int) -> None:
        self._fs = fs
        self.precision_ms = precision_ms
        self.wheel = TimerWheel()
        folder = os.path.join(directory, "config")
        fs.make_directory(folder)
        self._checkpoint_path = os.path.join(folder, CHECKPOINT)
        self._checkpoint_fd = self._open_checkpoint()
        self._failure: StoreFailed | None = None
        self._syncing = threading.Lock()
        checkpoint = decode_checkpoint_file(fs.read(self._checkpoint_fd, CHECKPOINT_FILE_BYTES, 0))
        self.log = TimerLog(fs, os.path.join(directory, LOG), file_bytes)
        self._wheel_fd = open_wheel_file(fs, os.path.join(directory, WHEEL))
        self.log.open_end(checkpoint.log_end)
        self.rebuilt_before = 0
        if self.log.reached < checkpoint.log_end:
            self.log.forget_all()
            self.rebuilt_before = checkpoint.queue_offset
            checkpoint = checkpoint._replace(queue_offset=0, log_end=0, passed_ms=0, passed_position=0)
        self.checkpoint = checkpoint
        self.read_ms = checkpoint.read_ms // precision_ms * precision_ms
        self.queue_offset = checkpoint.queue_offset
        self._passed = (checkpoint.passed_ms, checkpoint.passed_position)
        fill_wheel(self.wheel, self.log, checkpoint, precision_ms)
        self.wheel.compare(fs, self._wheel_fd)

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        precision_ms: int = 1_000,
        file_bytes: int = 100 * 1024 * 1024,
        filesystem: FileSystem | None = None,
    ) -> TimerStore:
        """Open the timer of a store whose lock is held. Blocks for reading the log: 0.2 s a million units.

        Raises BadLength, StrayFile, OSError.
        """
        return cls(filesystem or LocalFileSystem(), directory, precision_ms=precision_ms, file_bytes=file_bytes)

    def _open_checkpoint(self) -> int:
        found = self._fs.stat(self._checkpoint_path)
        if found is None:
            return self._fs.create_durable(self._checkpoint_path, CHECKPOINT_FILE_BYTES)
        return self._fs.open(self._checkpoint_path)

    def last_unit(self) -> TimerUnit | None:
        """The newest unit of the log."""
        return self.log.read(self.log.end - UNIT_BYTES) if self.log.end else None

    # --- slots ---

    def place(self, due_ms: int, floor_ms: int) -> int | None:
        """The slot for a due time, none before ``floor_ms``; None when the wheel is not yet so far."""
        slot_ms = max(due_ms // self.precision_ms * self.precision_ms, floor_ms)
        from_step = self.read_ms // self.precision_ms
        if slot_ms // self.precision_ms - from_step > STEPS_AHEAD_MAX:
            return None
        return None if self.wheel.is_taken(slot_ms // self.precision_ms, from_step) else slot_ms

    def add(self, slot_ms: int, *, magic: int, write_ms: int, offset: int, size: int, topic_hash: int) -> None:
        """Note a message in a slot; `write` has to follow."""
        step = slot_ms // self.precision_ms
        old = self.wheel.slot(step)
        previous = old.last if old is not None else -1
        unit = TimerUnit(previous, magic, write_ms, slot_ms - write_ms, offset, size, topic_hash)
        position = self.log.append(unit)
        first, count = (old.first, old.messages) if old is not None else (position, 0)
        self.wheel.put(Slot(step, first, position, count + (-1 if magic & MAGIC_DELETE else 1)))

    def write(self) -> None:
        """Write units to the page cache. Raises StoreFailed."""
        try:
            self.log.write()
        except OSError as error:
            raise self._fail("write", error) from error

    def turn_back(self, now_ms: int) -> None:
        """The clock was set back: slots from ``now_ms`` on are delivered (again, if anything comes into them)."""
        if self.read_ms > self._passed[0]:
            self._passed = (self.read_ms, self.log.end)
        self.read_ms = now_ms // self.precision_ms * self.precision_ms

    # --- syncing ---

    def begin_sync(self) -> TimerSync:
        """What the next `sync` has to write, at this moment. Raises StoreFailed after a failed one."""
        if self._failure is not None:
            raise StoreFailed(*self._failure.args)
        self.write()
        old = self.checkpoint
        new = TimerCheckpoint(
            self.read_ms,
            self.log.end,
            self.queue_offset,
            self.queue_offset,
            old.state_version,
            old.version_ms,
            old.version_counter + 1,
            *self._passed,
        )
        return TimerSync(self.log.take_unsynced(), self.log.fd, self.wheel.take_dirty(), new)

    def sync(self, token: TimerSync) -> None:
        """Log, wheel, then checkpoint reach the disk. Blocks; may run in any thread, one at a time. Raises StoreFailed;
        it is not tried again then."""
        with self._syncing:
            self._sync(token)

    def _sync(self, token: TimerSync) -> None:
        try:
            for fd in token.full:
                self._fs.sync(fd)
                self._fs.close(fd)
            if token.log_fd >= 0:
                self._fs.sync(token.log_fd)
            for at, page in token.pages:
                self._fs.write(self._wheel_fd, [page], at)
            self._fs.sync(self._wheel_fd)
            self._fs.write(self._checkpoint_fd, [encode_checkpoint_file(token.checkpoint)], 0)
            self._fs.sync(self._checkpoint_fd)
        except OSError as error:
            raise self._fail("sync", error) from error
        self.checkpoint = token.checkpoint

    def _fail(self, operation: str, error: OSError) -> StoreFailed:
        self._failure = StoreFailed(operation, self.log.directory, error.strerror or str(error))
        return self._failure

    @property
    def failure(self) -> StoreFailed | None:
        """Why nothing is written any more; None while it is."""
        return self._failure

    def close(self) -> None:
        """Close the files. What was not synced is read again from the topic at the next open."""
        self.log.close()
        for fd in (self._wheel_fd, self._checkpoint_fd):
            self._fs.close(fd)
