"""The only door to the disk: every durable thing goes through a `FileSystem`, so that tests can break it.

Descriptors are plain ints, paths are text. Errors are `OSError`, untouched: who calls knows what a failure means.
`LocalFileSystem` is the machine's; `stratamq.testing.filesystem.FaultyFileSystem` wraps it and fails on demand.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from stratamq.units import Buffer

IOV_MAX: Final = 1024
"""Most buffers of one gather write on Linux."""


class FileStat(NamedTuple):
    """What `FileSystem.stat` tells: length in bytes, kind, blocks really used, time of the last change."""

    size: int
    is_file: bool
    is_directory: bool
    allocated_bytes: int
    modified_ms: int


class FileSystem(Protocol):
    """What the stores need of a file system. All calls block; those that sync say so."""

    def open(self, path: str, *, writable: bool = True) -> int:
        """Open an existing file. Returns its descriptor."""
        ...

    def create(self, path: str, size: int) -> int:
        """Create a file that must not exist, sparse, ``size`` bytes long. Not durable until it and its directory are
        synced. Returns its descriptor."""
        ...

    def create_durable(self, path: str, size: int) -> int:
        """Like `create`, and file, length and name are on the disk when it returns. Blocks for two syncs."""
        ...

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        ...

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after the other from ``offset`` on; goes on after short writes."""
        ...

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Read up to ``length`` bytes from ``offset`` on; fewer only at the end of the file."""
        ...

    def sync(self, fd: int) -> None:
        """Bring a file's data (and the metadata needed to read it) to the disk: fdatasync. Releases the interpreter
        lock. A failure must not be retried: what the disk holds is unknown then."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable: fsync of the directory."""
        ...

    def truncate(self, fd: int, size: int) -> None:
        """Set the length of a file."""
        ...

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Reserve disk blocks for a range (posix_fallocate): later writes into it cannot run out of space."""
        ...

    def map(self, fd: int, length: int, *, writable: bool = False) -> mmap.mmap:
        """Map the first ``length`` bytes, shared. A writable mapping is only safe over reserved blocks."""
        ...

    def next_data(self, fd: int, offset: int) -> int | None:
        """Where data begins at or after ``offset`` (holes are skipped); None when only holes follow."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing ``target``, in one step. Durable after `sync_directory`."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file's name."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make one directory; it is no error when it exists."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def stat(self, path: str) -> FileStat | None:
        """What is at ``path``; None when nothing is."""
        ...


class LocalFileSystem:
    """The machine's file system."""

    __slots__ = ()

    def open(self, path: str, *, writable: bool = True) -> int:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def create(self, path: str, size: int) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            if size:
                os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return fd

    def create_durable(self, path: str, size: int) -> int:
        fd = self.create(path, size)
        try:
            os.fsync(fd)
            self.sync_directory(os.path.dirname(path))
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        if len(buffers) == 1:
            written = os.pwrite(fd, buffers[0], offset)
            if written == len(buffers[0]):
                return
        else:
            written = os.pwritev(fd, buffers[:IOV_MAX], offset)
        write_rest(self._write_some, fd, buffers, offset, written)

    @staticmethod
    def _write_some(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing:
            data = os.pread(fd, missing, offset + length - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)

    def map(self, fd: int, length: int, *, writable: bool = False) -> mmap.mmap:
        prot = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        return mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=prot)

    def next_data(self, fd: int, offset: int) -> int | None:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but holes to the end; a file system without holes answers ``offset``
            return None

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(
            size=found.st_size,
            is_file=stat.S_ISREG(found.st_mode),
            is_directory=stat.S_ISDIR(found.st_mode),
            allocated_bytes=found.st_blocks * 512,
            modified_ms=found.st_mtime_ns // 1_000_000,
        )


class WriteSome(Protocol):
    """A gather write that may write less than it was given."""

    def __call__(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int: ...


def write_rest(write_some: WriteSome, fd: int, buffers: Sequence[Buffer], offset: int, written: int) -> None:
    """Go on with a gather write of which ``written`` bytes are done, `IOV_MAX` buffers at a time."""
    index = 0
    at = offset
    while True:
        at += written
        while index < len(buffers) and written >= len(buffers[index]):
            written -= len(buffers[index])
            index += 1
        if index == len(buffers):
            return
        chunk = list(buffers[index : index + IOV_MAX])
        if written:
            chunk[0] = memoryview(chunk[0])[written:]
            buffers = [*chunk, *buffers[index + IOV_MAX :]]
            index = 0
        written = write_some(fd, chunk, at)
