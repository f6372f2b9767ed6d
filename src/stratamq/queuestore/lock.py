"""One owner for a queue store: an advisory lock on the file ``lock``, dropped by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
import os

from stratamq.errors import StoreLocked
from stratamq.queuestore import layout


class QueueStoreLock:
    """Held from construction until `release`; a second one in the same process is refused as well."""

    __slots__ = ("_fd",)

    def __init__(self, directory: str) -> None:
        """Take the lock, without waiting. Raises StoreLocked when it is taken, OSError when it cannot be made."""
        fd = os.open(os.path.join(directory, layout.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise StoreLocked(directory, owner if owner.isdigit() else "") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back. Harmless when called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
