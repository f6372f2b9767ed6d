"""A file system that fails on demand and forgets what was not synced, over real files in a test's directory.

Three ways to break things:

* `FaultyFileSystem.fail` makes the n-th call of one kind raise an OSError, a write perhaps after half of its bytes;
* `FaultyFileSystem.crash_at` makes the n-th changing call raise `SimulatedCrash`, and every call after it too;
* `FaultyFileSystem.lose_unsynced` then takes from the disk what was not synced: any subset of the changed pages (also
  those changed through a mapping) and of the names created, renamed or removed without a directory sync.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stratamq.files.filesystem import FileStat, LocalFileSystem
from stratamq.units import Buffer

PAGE: Final = 4096
CHANGING: Final = frozenset(
    {"create", "write", "sync", "sync_directory", "truncate", "allocate", "rename", "link", "remove", "make_directory"}
)


class SimulatedCrash(BaseException):
    """The process is dead from here on. A BaseException, so that no handler for errors swallows it."""


@dataclass
class _Fault:
    """The ``countdown``-th matching call fails; ``times`` calls in a row do, -1 for all that follow."""

    operation: str
    countdown: int
    error: int
    path_part: str
    partial: bool
    times: int


class FaultyFileSystem:
    """A `stratamq.files.filesystem.FileSystem` for tests. Remembers every changing call in ``calls``."""

    def __init__(self) -> None:
        self._real = LocalFileSystem()
        self._paths: dict[int, str] = {}
        self._faults: list[_Fault] = []
        self._crash_in = -1
        self._crashed = False
        self.calls: list[tuple[str, str]] = []
        """Every changing call so far: operation and path."""
        self._synced: dict[str, bytes] = {}
        """What each file that was opened holds on the disk for sure."""
        self._names_before: dict[str, bytes | None] = {}
        """Names changed since their directory was synced: what was there before, None for nothing."""

    def fail(
        self,
        operation: str,
        *,
        nth: int = 1,
        error: int = errno.EIO,
        path_part: str = "",
        partial: bool = False,
        times: int = 1,
    ) -> None:
        """Let the ``nth`` call of ``operation`` from now on, on a path that contains ``path_part``, raise OSError.

        With ``partial`` a write puts down half of its bytes first. ``times`` = -1: it goes on failing until `heal`.
        """
        self._faults.append(_Fault(operation, nth, error, path_part, partial, times))

    def heal(self) -> None:
        """No more failures."""
        self._faults.clear()

    def crash_at(self, nth: int) -> None:
        """Let the ``nth`` changing call from now on be the one that the process dies in, a write after half of it."""
        self._crash_in = nth

    def lose_unsynced(self, rng: random.Random, *, keep: float = 0.5) -> None:
        """Take from the disk what was not synced; each page and name stays with probability ``keep``."""
        for path, before in self._names_before.items():
            if rng.random() < keep:
                continue
            if before is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            elif not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(before)
        for path, image in self._synced.items():
            if not os.path.exists(path):
                continue
            with open(path, "r+b") as file:
                now = file.read()
                for at in range(0, len(now), PAGE):
                    old = image[at : at + PAGE].ljust(len(now[at : at + PAGE]), b"\0")
                    if now[at : at + PAGE] != old and rng.random() >= keep:
                        file.seek(at)
                        file.write(old)

    def _step(self, operation: str, path: str) -> bool:
        """Count a call; raise what was ordered. True: do half of the write, then call `_break`."""
        if self._crashed:
            raise SimulatedCrash
        if operation in CHANGING:
            self.calls.append((operation, path))
            if self._crash_in > 0:
                self._crash_in -= 1
                if self._crash_in == 0:
                    if operation == "write":
                        return True
                    self._crashed = True
                    raise SimulatedCrash
        for fault in self._faults:
            if fault.operation != operation or fault.path_part not in path:
                continue
            fault.countdown -= 1
            if fault.countdown > 0 or fault.times == 0:
                continue
            if fault.partial and operation == "write":
                return True
            self._use(fault)
            raise OSError(fault.error, os.strerror(fault.error), path)
        return False

    @staticmethod
    def _use(fault: _Fault) -> None:
        if fault.times > 0:
            fault.times -= 1

    def _break(self, path: str) -> None:
        if self._crash_in == 0:
            self._crashed = True
            raise SimulatedCrash
        for fault in self._faults:
            if fault.partial and fault.countdown <= 0 and fault.times != 0:
                self._use(fault)
                raise OSError(fault.error, os.strerror(fault.error), path)

    def _note_name(self, path: str) -> None:
        """Remember what stands under a name before it changes, unless that is remembered."""
        if path not in self._names_before:
            self._names_before[path] = _content(path)

    # --- the seam ---------------------------------------------------------------------------------------------

    def open(self, path: str, *, writable: bool = True) -> int:
        self._step("open", path)
        fd = self._real.open(path, writable=writable)
        self._paths[fd] = path
        if path not in self._synced:
            self._synced[path] = _content(path) or b""
        return fd

    def create(self, path: str, size: int) -> int:
        self._step("create", path)
        self._note_name(path)
        fd = self._real.create(path, size)
        self._paths[fd] = path
        self._synced[path] = b""
        return fd

    def create_durable(self, path: str, size: int) -> int:
        fd = self.create(path, size)
        try:
            self.sync(fd)
            self.sync_directory(os.path.dirname(path))
        except OSError:
            self.close(fd)
            os.unlink(path)
            raise
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._real.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        path = self._paths[fd]
        if self._step("write", path):
            data = b"".join(buffers)
            self._real.write(fd, [data[: len(data) // 2]], offset)
            self._break(path)
        self._real.write(fd, buffers, offset)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        self._step("read", self._paths[fd])
        return self._real.read(fd, length, offset)

    def sync(self, fd: int) -> None:
        path = self._paths[fd]
        self._step("sync", path)
        self._synced[path] = _content(path) or b""

    def sync_directory(self, path: str) -> None:
        self._step("sync_directory", path)
        for name in [name for name in self._names_before if os.path.dirname(name) == path]:
            del self._names_before[name]

    def truncate(self, fd: int, size: int) -> None:
        self._step("truncate", self._paths[fd])
        self._real.truncate(fd, size)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._step("allocate", self._paths[fd])
        self._real.allocate(fd, offset, length)

    def map(self, fd: int, length: int, *, writable: bool = False) -> mmap.mmap:
        self._step("map", self._paths[fd])
        return self._real.map(fd, length, writable=writable)

    def next_data(self, fd: int, offset: int) -> int | None:
        self._step("next_data", self._paths[fd])
        return self._real.next_data(fd, offset)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source)
        self._note_name(source)
        self._note_name(target)
        self._real.rename(source, target)
        self._synced[target] = self._synced.pop(source, b"")

    def link(self, source: str, target: str) -> None:
        self._step("link", source)
        self._note_name(target)
        self._real.link(source, target)
        self._synced[target] = self._synced.get(source, _content(source) or b"")

    def remove(self, path: str) -> None:
        self._step("remove", path)
        self._note_name(path)
        self._real.remove(path)
        self._synced.pop(path, None)

    def remove_directory(self, path: str) -> None:
        self._step("remove", path)
        self._real.remove_directory(path)

    def make_directory(self, path: str) -> None:
        self._step("make_directory", path)
        self._real.make_directory(path)

    def list(self, path: str) -> list[str]:
        self._step("list", path)
        return self._real.list(path)

    def stat(self, path: str) -> FileStat | None:
        self._step("stat", path)
        return self._real.stat(path)


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
