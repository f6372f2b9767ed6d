"""One owner for a store directory: an advisory lock on byte 0 of ``lock``, the same one that RocketMQ takes.

The lock is POSIX `fcntl`, which belongs to the process and is dropped when *any* descriptor of the file is closed, so
this process also keeps a list of the directories it has open and refuses a second opening before touching the file.
"""

from __future__ import annotations

import fcntl
import os
import threading
from typing import Final

from stratamq.errors import StoreLocked
from stratamq.logstore import layout

_held: Final[set[tuple[int, int]]] = set()
_held_guard: Final = threading.Lock()


def is_held_here(identity: tuple[int, int]) -> bool:
    """Whether this process holds the store whose directory has this device and inode."""
    with _held_guard:
        return identity in _held


class StoreLock:
    """The lock of one store directory, held from construction until `release`."""

    __slots__ = ("_fd", "_identity")

    def __init__(self, directory: str) -> None:
        """Take the lock, without waiting.

        Raises StoreLocked when somebody else has it, OSError when it cannot be made.
        """
        found = os.stat(directory)
        identity = (found.st_dev, found.st_ino)
        path = os.path.join(directory, layout.LOCK)
        with _held_guard:
            if identity in _held:
                raise StoreLocked(directory, str(os.getpid()))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except BlockingIOError:
                os.close(fd)
                raise StoreLocked(directory, _owner(directory)) from None
            except PermissionError:  # some systems answer EACCES for a taken lock
                os.close(fd)
                raise StoreLocked(directory, _owner(directory)) from None
            if os.fstat(fd).st_size == 0:
                os.pwrite(fd, b"lock", 0)
            _held.add(identity)
        self._fd = fd
        self._identity = identity

    def release(self) -> None:
        """Give the lock back. Harmless when called again."""
        if self._fd < 0:
            return
        with _held_guard:
            os.close(self._fd)
            self._fd = -1
            _held.discard(self._identity)


def _owner(directory: str) -> str:
    """Process number of who has the store open, as its abort file says; empty when it does not."""
    try:
        with open(os.path.join(directory, layout.ABORT), encoding="ascii", errors="replace") as file:
            text = file.read(20).strip()
    except OSError:
        return ""
    return text if text.isdigit() else ""
