"""A file system that changes nothing: what is written, cut off or removed through it is remembered in memory alone.

Code that repairs while it reads can run on it, and what it would have changed is known afterwards. Memory: what is
written through it, and one small object for each file that was opened.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from stratamq.files.filesystem import FileStat, FileSystem
from stratamq.units import Buffer


class CutOff(NamedTuple):
    """A file that would have been made shorter: bytes [start, end) would have gone."""

    path: str
    start: int
    end: int


class _File:
    """One file as it looks through the overlay."""

    __slots__ = ("length", "path", "under", "written")

    def __init__(self, path: str, under: int) -> None:
        self.path = path
        self.under = under
        """How many bytes of the file below still show."""
        self.length = under
        self.written: list[tuple[int, bytes]] = []
        """What was written above it, oldest first."""


class OverlayFileSystem:
    """A `FileSystem` over another one, which is only read. Not thread-safe. New files and mappings are not offered."""

    def __init__(self, base: FileSystem) -> None:
        self.removed: list[str] = []
        """Files that would have been removed."""
        self.cut: list[CutOff] = []
        self._base = base
        self._gone: set[str] = set()
        self._made: set[str] = set()
        self._files: dict[str, _File] = {}
        self._open: dict[int, _File] = {}

    def hide(self, path: str) -> None:
        """From now on there is no file of this name. Not counted among what would have been removed."""
        self._gone.add(path)

    # --- FileSystem -------------------------------------------------------------------------------------------

    def open(self, path: str, *, writable: bool = True) -> int:
        if path in self._gone:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        fd = self._base.open(path, writable=False)
        file = self._files.get(path)
        if file is None:
            found = self._base.stat(path)
            file = self._files[path] = _File(path, found.size if found is not None else 0)
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]
        self._base.close(fd)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        file = self._open[fd]
        end = min(offset + length, file.length)
        if offset >= end:
            return b""
        data = self._base.read(fd, max(0, min(end, file.under) - offset), offset)
        if not file.written:
            return data
        mixed = bytearray(data.ljust(end - offset, b"\0"))
        for start, part in file.written:
            lo, hi = max(start, offset), min(start + len(part), end)
            if lo < hi:
                mixed[lo - offset : hi - offset] = part[lo - start : hi - start]
        return bytes(mixed)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        file = self._open[fd]
        data = b"".join(buffers)
        file.written.append((offset, data))
        file.length = max(file.length, offset + len(data))

    def truncate(self, fd: int, size: int) -> None:
        file = self._open[fd]
        if size < file.length:
            self.cut.append(CutOff(file.path, size, file.length))
        file.under = min(file.under, size)
        file.length = size
        file.written = [(start, part[: size - start]) for start, part in file.written if start < size]

    def remove(self, path: str) -> None:
        if self.stat(path) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._gone.add(path)
        self.removed.append(path)

    def remove_directory(self, path: str) -> None:
        self._gone.add(path)

    def make_directory(self, path: str) -> None:
        if self._base.stat(path) is None:
            self._made.add(path)

    def list(self, path: str) -> list[str]:
        if path in self._made:
            return []
        return [name for name in self._base.list(path) if os.path.join(path, name) not in self._gone]

    def stat(self, path: str) -> FileStat | None:
        if path in self._gone:
            return None
        found = self._base.stat(path)
        file = self._files.get(path)
        return found if found is None or file is None else found._replace(size=file.length)

    def sync(self, fd: int) -> None:
        """Nothing is to be synced."""

    def sync_directory(self, path: str) -> None:
        """Nothing is to be synced."""

    def create(self, path: str, size: int) -> int:
        _refuse(path)

    def create_durable(self, path: str, size: int) -> int:
        _refuse(path)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        _refuse(self._open[fd].path)

    def map(self, fd: int, length: int, *, writable: bool = False) -> mmap.mmap:
        _refuse(self._open[fd].path)

    def next_data(self, fd: int, offset: int) -> int | None:
        _refuse(self._open[fd].path)

    def rename(self, source: str, target: str) -> None:
        _refuse(source)

    def link(self, source: str, target: str) -> None:
        _refuse(source)


def _refuse(path: str) -> NoReturn:
    """What readers have no need of."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
