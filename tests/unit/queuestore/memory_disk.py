"""A disk in memory that knows what was synced, loses the rest in a crash, and fails on demand."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Sequence

from stratamq.files.filesystem import FileStat
from stratamq.units import Buffer

SECTOR = 512


class Inode:
    """A file's bytes now and as of its last sync."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


class MemoryDisk:
    """A `FileSystem` over dictionaries. Directories are made on the real disk too, for the store's lock."""

    def __init__(self) -> None:
        self.directories: dict[str, dict[str, Inode]] = {}
        self.durable: dict[str, dict[str, Inode]] = {}
        self._open: dict[int, Inode] = {}
        self._next = 1000
        self.calls = 0
        self.fail_at = -1
        """Number of the call that fails."""
        self.fail_with = 0
        self.fail_from = False
        """Whether all further calls of the kind fail too."""
        self.fail_ops: frozenset[str] = frozenset({"write", "sync", "rename", "remove", "create", "sync_directory"})
        self.failed = ""

    def _step(self, name: str, path: str = "") -> None:
        if name not in self.fail_ops:
            return
        self.calls += 1
        if self.calls == self.fail_at or (self.fail_from and self.fail_at > 0 and self.calls > self.fail_at):
            self.failed = name
            raise OSError(self.fail_with, os.strerror(self.fail_with), path)

    def crash(self, rng: random.Random | None) -> MemoryDisk:
        """The disk after a crash: with ``rng`` unsynced bytes and names survive at random, else everything does."""
        after = MemoryDisk()
        made: dict[int, Inode] = {}
        for directory, names in self.directories.items():
            kept = after.directories[directory] = {}
            durable = self.durable.get(directory, {})
            for name in sorted({*names, *durable}):
                choices = [names.get(name), durable.get(name)]
                inode = choices[0] if rng is None else rng.choice(choices)
                if inode is not None:
                    kept[name] = made.setdefault(id(inode), _survivor(inode, rng))
        after.durable = {directory: dict(names) for directory, names in after.directories.items()}
        return after

    # --- FileSystem -------------------------------------------------------------------------------------------

    def _find(self, path: str) -> Inode | None:
        directory, _, name = path.rpartition("/")
        return self.directories.get(directory, {}).get(name)

    def _fd(self, inode: Inode) -> int:
        self._next += 1
        self._open[self._next] = inode
        return self._next

    def open(self, path: str, *, writable: bool = True) -> int:
        inode = self._find(path)
        if inode is None:
            raise FileNotFoundError(2, "no such file", path)
        return self._fd(inode)

    def create(self, path: str, size: int) -> int:
        self._step("create", path)
        directory, _, name = path.rpartition("/")
        if name in self.directories[directory]:
            raise FileExistsError(17, "file exists", path)
        inode = self.directories[directory][name] = Inode()
        inode.data = bytearray(size)
        return self._fd(inode)

    def create_durable(self, path: str, size: int) -> int:
        fd = self.create(path, size)
        self.sync(fd)
        self.sync_directory(path.rpartition("/")[0])
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        inode = self._open[fd]
        try:
            self._step("write")
        except OSError:
            inode.data[offset : offset + len(data) // 2] = data[: len(data) // 2]
            raise
        if len(inode.data) < offset:
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset : offset + len(data)] = data

    def read(self, fd: int, length: int, offset: int) -> bytes:
        return bytes(self._open[fd].data[offset : offset + length])

    def sync(self, fd: int) -> None:
        self._step("sync")
        inode = self._open[fd]
        inode.synced = bytes(inode.data)

    def sync_directory(self, path: str) -> None:
        self._step("sync_directory", path)
        self.durable[path] = dict(self.directories[path])

    def truncate(self, fd: int, size: int) -> None:
        del self._open[fd].data[size:]

    def allocate(self, fd: int, offset: int, length: int) -> None:
        raise NotImplementedError

    def map(self, fd: int, length: int, *, writable: bool = False) -> mmap.mmap:
        raise NotImplementedError

    def next_data(self, fd: int, offset: int) -> int | None:
        raise NotImplementedError

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source)
        directory, _, name = source.rpartition("/")
        inode = self.directories[directory].pop(name)
        directory, _, name = target.rpartition("/")
        self.directories[directory][name] = inode

    def link(self, source: str, target: str) -> None:
        raise NotImplementedError

    def remove(self, path: str) -> None:
        self._step("remove", path)
        directory, _, name = path.rpartition("/")
        if name not in self.directories.get(directory, {}):
            raise FileNotFoundError(2, "no such file", path)
        del self.directories[directory][name]

    def remove_directory(self, path: str) -> None:
        if self.directories[path]:
            raise OSError(39, "not empty", path)
        del self.directories[path]

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.directories.setdefault(path, {})

    def list(self, path: str) -> list[str]:
        inside = {other[len(path) + 1 :].split("/")[0] for other in self.directories if other.startswith(path + "/")}
        return sorted({*self.directories[path], *inside})

    def stat(self, path: str) -> FileStat | None:
        if path in self.directories:
            return FileStat(0, False, True, 0, 0)
        inode = self._find(path)
        return None if inode is None else FileStat(len(inode.data), True, False, len(inode.data), 0)


def _survivor(inode: Inode, rng: random.Random | None) -> Inode:
    after = Inode()
    if rng is None or bytes(inode.data) == inode.synced:
        after.data = bytearray(inode.data)
    else:
        longest, shortest = max(len(inode.data), len(inode.synced)), min(len(inode.data), len(inode.synced))
        size = rng.choice([len(inode.data), len(inode.synced), rng.randint(shortest, longest)])
        new, old = bytes(inode.data).ljust(longest, b"\0"), inode.synced.ljust(longest, b"\0")
        chance = rng.choice([0.0, 0.5, 0.9, 1.0])
        for at in range(0, longest, SECTOR):
            after.data += (new if rng.random() < chance else old)[at : at + SECTOR]
        del after.data[size:]
    after.synced = bytes(after.data)
    return after
