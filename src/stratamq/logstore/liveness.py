"""Is a store in use, and how did its last owner leave it? Found out without disturbing anybody.

A running broker, RocketMQ's or ours, holds a POSIX lock on byte 0 of the file ``lock``. Such a lock belongs to a
process, and the process loses it when it closes *any* descriptor of that file. So a reader inside the broker's own
process must not open and close it. Two ways are used, and neither ever takes the lock:

1. ``/proc/locks`` lists locks by device and inode, those of this process too; the file is not opened at all.
2. Where that shows nothing (another container's locks are hidden there) the kernel is asked with ``F_GETLK``. By then
   this process is known not to hold the lock; still the descriptor stays open for good, so that a lock taken in between
   cannot be lost.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple

from stratamq.logstore import layout
from stratamq.logstore.lock import is_held_here

_FLOCK: Final = struct.Struct("hhqqi4x")
"""``struct flock`` on 64-bit Linux: type, whence, start, length, pid."""
_probes: Final[dict[tuple[int, int], int]] = {}
_guard: Final = threading.Lock()


class Liveness(NamedTuple):
    """Whether a process holds the store's lock (and which, 0 when the kernel does not tell), and the abort file."""

    is_live: bool
    owner_pid: int
    has_abort: bool
    abort_pid: int

    @property
    def was_stopped_cleanly(self) -> bool:
        """Whether the last owner left in order: nobody is in, and no abort file is left behind."""
        return not self.is_live and not self.has_abort


def look(root: Path) -> Liveness:
    """Look at the lock and the abort file of a store directory. Changes nothing."""
    is_live, owner = _lock_owner(root / layout.LOCK)
    try:
        text = (root / layout.ABORT).read_bytes()[:32].strip()
    except OSError:
        return Liveness(is_live, owner, False, 0)
    abort_pid = int(text) if text.isdigit() else 0
    return Liveness(is_live, owner, True, abort_pid)


def _lock_owner(path: Path) -> tuple[bool, int]:
    try:
        found = path.stat()
    except OSError:
        return False, 0
    if _is_ours(path.parent):
        return True, os.getpid()
    owner = _listed_owner(found.st_dev, found.st_ino)
    if owner is not None:
        return True, owner
    return _asked_owner(path, (found.st_dev, found.st_ino))


def _is_ours(root: Path) -> bool:
    """Whether this process has the store open: its own lock is invisible to F_GETLK, and /proc/locks names files on
    stacked file systems differently than stat does."""
    found = root.stat()
    return is_held_here((found.st_dev, found.st_ino))


def _listed_owner(device: int, inode: int) -> int | None:
    """Who holds a write lock on the file's first byte according to /proc/locks; None when nobody is listed."""
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            lines = locks.readlines()
    except OSError:
        return None
    for line in lines:
        # "1: POSIX  ADVISORY  WRITE 3568 fd:00:2531452 0 EOF"; waiting ones have "->" behind the number
        fields = line.split()
        if (
            len(fields) == 8
            and fields[1] == "POSIX"
            and fields[3] == "WRITE"
            and fields[5] == name
            and fields[6] == "0"
        ):
            return max(0, int(fields[4]))
    return None


def _asked_owner(path: Path, identity: tuple[int, int]) -> tuple[bool, int]:
    with _guard:
        fd = _probes.get(identity)
        if fd is None:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False, 0
            _probes[identity] = fd
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
    except OSError:
        return False, 0
    return kind != fcntl.F_UNLCK, max(0, pid) if kind != fcntl.F_UNLCK else 0
