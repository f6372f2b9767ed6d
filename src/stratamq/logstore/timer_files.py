"""The files ``timerwheel`` and ``timerlog/``: which messages are due in which second.

The log holds one unit a message, chained backwards by slot; the wheel holds the ends of the chains. The wheel is kept
in memory and its changed pages are written at each sync, so that a full disk cannot kill the process through a mapping.
What is written by whom is docs/formats/timer.md, why it is done like this docs/design/timers.md.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.errors import BadLength
from stratamq.files.filesystem import FileSystem
from stratamq.formats.timer import (
    BLANK_BYTES,
    MAGIC_DELETE,
    SLOT_BYTES,
    SLOT_DTYPE,
    SLOTS,
    UNIT_BYTES,
    UNIT_DTYPE,
    WHEEL_BYTES,
    TimerCheckpoint,
    TimerUnit,
    decode_unit,
    encode_blank,
    encode_unit,
    units_per_file,
)
from stratamq.logstore.commit_log import zero_file_from
from stratamq.logstore.layout import list_stream_files, stream_file_name

PAGE_BYTES: Final = 4096
COMPARED_BYTES: Final = 1024 * 1024
MAPPED_FILES_MAX: Final = 4
_SLOT: Final = struct.Struct(">qqqii")


class Slot(NamedTuple):
    """One filled slot. ``first`` and ``last`` are positions in the log; deletions count as minus one message."""

    step: int
    first: int
    last: int
    messages: int


class TimerWheel:
    """The slots of 14 days, in memory: 38.7 MB at most, of which untouched pages take nothing."""

    __slots__ = ("_bytes", "_dirty", "_slots")

    def __init__(self) -> None:
        self._bytes = bytearray(WHEEL_BYTES)
        self._slots: npt.NDArray[Any] = np.frombuffer(self._bytes, SLOT_DTYPE)
        self._dirty: set[int] = set()

    def slot(self, step: int) -> Slot | None:
        """The slot of a time, in steps of the precision; None when nothing is in it."""
        found = Slot(*_SLOT.unpack_from(self._bytes, step % SLOTS * SLOT_BYTES)[:4])
        return found if found.step == step and found.last >= 0 else None

    def is_taken(self, step: int, from_step: int) -> bool:
        """Whether the place of a time is taken by another time that is still to come."""
        found = Slot(*_SLOT.unpack_from(self._bytes, step % SLOTS * SLOT_BYTES)[:4])
        return found.step != step and found.step >= from_step

    def put(self, slot: Slot) -> None:
        """Replace the slot of its time."""
        at = slot.step % SLOTS * SLOT_BYTES
        _SLOT.pack_into(self._bytes, at, *slot, 0)
        self._dirty.add(at // PAGE_BYTES)

    def clear(self, step: int) -> None:
        """Nothing is in the slot of a time any more."""
        if self.slot(step) is not None:
            at = step % SLOTS * SLOT_BYTES
            self._bytes[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
            self._dirty.add(at // PAGE_BYTES)

    def next_filled(self, step: int, end: int) -> int | None:
        """The first filled slot from ``step`` on and before ``end``; None for none. Cost: 5 ms for all slots."""
        end = min(end, step + SLOTS)
        if step >= end:
            return None
        times = np.arange(step, end, dtype=np.int64)
        hits = np.nonzero(self._slots["time"][times % SLOTS] == times)[0]
        return int(times[hits[0]]) if len(hits) else None

    def pending(self) -> int:
        """Messages in all slots together."""
        return int(self._slots["count"].sum(dtype=np.int64))

    def add_many(self, steps: npt.NDArray[Any], positions: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
        """Add units in the order of their positions, all behind what the slots hold."""
        at = steps % SLOTS
        slots = self._slots
        fresh = slots["time"][at] != steps
        slots["first"][at[fresh][::-1]] = positions[fresh][::-1]
        slots["count"][at[fresh]] = 0
        slots["time"][at] = steps
        slots["last"][at] = positions
        np.add.at(slots["count"], at, counts)

    def compare(self, fs: FileSystem, fd: int) -> None:
        """Note which pages differ from the file's, to be written with the next sync."""
        for at in range(0, WHEEL_BYTES, COMPARED_BYTES):
            mine = memoryview(self._bytes)[at : at + COMPARED_BYTES]
            found = fs.read(fd, len(mine), at)
            if found != mine:
                pages = range(0, len(mine), PAGE_BYTES)
                self._dirty.update(
                    (at + page) // PAGE_BYTES
                    for page in pages
                    if found[page : page + PAGE_BYTES] != mine[page : page + PAGE_BYTES]
                )

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """Copies of the pages that changed since the last call, with their offsets in the file."""
        dirty, self._dirty = sorted(self._dirty), set()
        return [(page * PAGE_BYTES, bytes(self._bytes[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])) for page in dirty]


class TimerLog:
    """The files of ``timerlog/``, appended and read by position. Raises OSError, BadLength, StrayFile."""

    def __init__(self, fs: FileSystem, directory: str, file_bytes: int) -> None:
        self._fs = fs
        self._file_bytes = file_bytes
        self.directory = directory
        fs.make_directory(directory)
        self.bases = list_stream_files(fs, directory, file_bytes, setting="mappedFileSizeTimerLog")
        self._maps: dict[int, mmap.mmap] = {}
        self._fd = -1
        self._unsynced: list[int] = []
        """Descriptors of files that are full and not synced; the one that is written is not among them."""
        self._pending: list[bytes] = []
        self.end = 0
        """Where the next unit goes."""
        self._written = 0

    def open_end(self, limit: int) -> None:
        """Find the end: behind the last whole unit, but not behind ``limit``; what lies there is taken away."""
        if not self.bases:
            return
        per_file = units_per_file(self._file_bytes)
        while len(self.bases) > 1 and self.bases[-1] >= limit:
            self._fs.remove(self._path(self.bases.pop()))
        last = self.bases[-1]
        units = np.frombuffer(self._map(last), UNIT_DTYPE, per_file)
        good = (units["size"] == UNIT_BYTES) & (units["magic"] & 1 == 1) & (units["magic"] <= 7)
        count = per_file if good.all() else int(good.argmin())
        del units, good
        self.end = self._written = last + min(count, max(0, limit - last) // UNIT_BYTES) * UNIT_BYTES
        self._fd = self._fs.open(self._path(last))
        zero_file_from(self._fs, self._fd, self.end - last, self._file_bytes)
        if self.end - last == per_file * UNIT_BYTES:  # full: the next unit opens a file, which writes the blank again
            self._fs.write(self._fd, [encode_blank(self._file_bytes - per_file * UNIT_BYTES)], self.end - last)

    @property
    def reached(self) -> int:
        """Where the log ends for a reader that counts the blank of a full file too."""
        full = bool(self.bases) and self.end - self.bases[-1] == units_per_file(self._file_bytes) * UNIT_BYTES
        return self.bases[-1] + self._file_bytes if full else self.end

    def forget_all(self) -> None:
        """Start anew, without files."""
        self.close()
        while self.bases:
            self._fs.remove(self._path(self.bases.pop()))
        self.end = self._written = 0

    def append(self, unit: TimerUnit) -> int:
        """Add a unit, to be written by `write`; returns its position."""
        if not self.bases:
            self._roll(0)
        elif self.end + UNIT_BYTES + BLANK_BYTES > self.bases[-1] + self._file_bytes:
            self.write()
            left = self.bases[-1] + self._file_bytes - self.end
            self._fs.write(self._fd, [encode_blank(left)], self.end - self.bases[-1])
            self._roll(self.bases[-1] + self._file_bytes)
        position = self.end
        self._pending.append(encode_unit(unit))
        self.end += UNIT_BYTES
        return position

    def write(self) -> None:
        """Write what was appended to the page cache."""
        if self._pending:
            self._fs.write(self._fd, [b"".join(self._pending)], self._written - self.bases[-1])
            self._written = self.end
            self._pending = []

    def _roll(self, base: int) -> None:
        if self._fd >= 0:
            self._unsynced.append(self._fd)
        self._fd = self._fs.create_durable(self._path(base), self._file_bytes)
        self.bases.append(base)
        self.end = self._written = base

    def read(self, position: int) -> TimerUnit | None:
        """The unit at a position; None when there is none. Units must be written before they are read."""
        base = position // self._file_bytes * self._file_bytes
        if position < 0 or position >= self._written or base not in self.bases:
            return None
        return decode_unit(self._map(base), position - base)

    def units(self, base: int) -> npt.NDArray[Any]:
        """All units of one file, as `formats.timer.UNIT_DTYPE`. A view of the mapped file: hold it briefly."""
        count = min(units_per_file(self._file_bytes), max(0, self.end - base) // UNIT_BYTES)
        return np.frombuffer(self._map(base), UNIT_DTYPE, count)

    def remove_before(self, physical_offset: int) -> int:
        """Remove full files whose last message is gone from the commit log. Returns how many."""
        removed = 0
        while len(self.bases) > 1:
            base = self.bases[0]
            last = self.read(base + (units_per_file(self._file_bytes) - 1) * UNIT_BYTES)
            if last is None or last.physical_offset >= physical_offset:
                break
            self._drop_map(base)
            self._fs.remove(self._path(base))
            del self.bases[0]
            removed += 1
        return removed

    def take_unsynced(self) -> list[int]:
        """Descriptors of full files, to be synced and closed by the caller."""
        found, self._unsynced = self._unsynced, []
        return found

    @property
    def fd(self) -> int:
        """The file that is written; -1 for none."""
        return self._fd

    def close(self) -> None:
        """Close all files; nothing is written or synced."""
        for base in list(self._maps):
            self._drop_map(base)
        for fd in (*self.take_unsynced(), self._fd):
            if fd >= 0:
                self._fs.close(fd)
        self._fd = -1

    def _map(self, base: int) -> mmap.mmap:
        found = self._maps.get(base)
        if found is None:
            while len(self._maps) >= MAPPED_FILES_MAX:
                self._drop_map(next(iter(self._maps)))
            fd = self._fs.open(self._path(base), writable=False)
            try:
                found = self._maps[base] = self._fs.map(fd, self._file_bytes)
            finally:
                self._fs.close(fd)
        return found

    def _drop_map(self, base: int) -> None:
        found = self._maps.pop(base, None)
        if found is not None:
            found.close()

    def _path(self, base: int) -> str:
        return os.path.join(self.directory, stream_file_name(base))


def fill_wheel(wheel: TimerWheel, log: TimerLog, checkpoint: TimerCheckpoint, precision_ms: int) -> None:
    """Put every unit into the wheel that is not delivered yet. Cost: 0.2 s a million units."""
    for base in log.bases:
        units = log.units(base)
        slot_ms = units["write_ms"].astype(np.int64) + units["delay_ms"]
        positions = base + np.arange(len(units), dtype=np.int64) * UNIT_BYTES
        passed = (positions < checkpoint.passed_position) & (slot_ms < checkpoint.passed_ms)
        live = (slot_ms >= checkpoint.read_ms) & ~passed
        steps = slot_ms[live] // precision_ms
        counts = np.where(units["magic"][live] & MAGIC_DELETE, -1, 1)
        del units
        wheel.add_many(steps, positions[live], counts)


def open_wheel_file(fs: FileSystem, path: str) -> int:
    """Open or make ``timerwheel``; returns its descriptor. Raises BadLength for one of another length."""
    found = fs.stat(path)
    if found is None or found.size == 0:
        if found is not None:
            fs.remove(path)
        return fs.create_durable(path, WHEEL_BYTES)
    if found.size != WHEEL_BYTES:
        raise BadLength(
            path, 0, f"a file of {WHEEL_BYTES} bytes", f"{found.size} bytes", hint="move it away: it is made anew"
        )
    return fs.open(path)
