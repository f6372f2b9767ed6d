"""Cold objects as files below a directory, durably: file and directory are synced before a put returns.

An object is written under a temporary name, synced, and gets its name by `link`, which fails when the name is taken. So
a name is either absent or whole, and of two writers one wins, also on a shared file system that keeps these promises.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from stratamq.errors import BackendError, ObjectExists, ObjectMissing
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.tiered.backend import Entry, check_name
from stratamq.units import Buffer

TEMPORARY: Final = "tmp~"
"""Folder of unfinished objects. No object's name can begin like this."""
_DURABLE_MAX: Final = 100_000
"""Directories remembered as being named durably."""


class FolderBackend:
    """Objects below one directory, which is made when the first is put."""

    _numbers = itertools.count()

    def __init__(self, directory: str, filesystem: FileSystem | None = None) -> None:
        self.directory = os.path.abspath(directory)
        self.address = f"file://{self.directory}"
        self._fs = filesystem or LocalFileSystem()
        self._durable: set[str] = set()

    def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        path = self._path(name)
        temporary = os.path.join(self.directory, TEMPORARY, f"{os.getpid()}-{next(self._numbers)}")
        try:
            if self._fs.stat(path) is not None:
                raise ObjectExists(name)
            self._make_directory(os.path.dirname(temporary))
            self._make_directory(os.path.dirname(path))
            self._write(temporary, parts)
            try:
                self._fs.link(temporary, path)
            except FileExistsError:
                raise ObjectExists(name) from None
            self._fs.sync_directory(os.path.dirname(path))
        except OSError as error:
            raise _failed("put", name, error) from error
        finally:
            with contextlib.suppress(OSError):
                self._fs.remove(temporary)

    def _write(self, path: str, parts: Sequence[Buffer]) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(path)
        fd = self._fs.create(path, 0)
        try:
            at = 0
            for part in parts:
                if len(part):
                    self._fs.write(fd, [part], at)
                    at += len(part)
            self._fs.sync(fd)
        finally:
            self._fs.close(fd)

    def _make_directory(self, path: str) -> None:
        """Make a directory and what is missing above it; each is named durably in the one above.

        Also those that are there already, once in this process: who made them may have died before the sync.
        """
        if path in self._durable:
            return
        is_inside = path == self.directory or path.startswith(self.directory + os.sep)
        if not is_inside and self._fs.stat(path) is not None:
            return
        parent = os.path.dirname(path)
        self._make_directory(parent)
        self._fs.make_directory(path)
        self._fs.sync_directory(parent)
        if len(self._durable) >= _DURABLE_MAX:
            self._durable.clear()
        self._durable.add(path)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        try:
            fd = self._fs.open(path, writable=False)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(name) from None
        except OSError as error:
            raise _failed("read", name, error) from error
        try:
            found = self._fs.stat(path)
            size = found.size if found is not None else start
            wanted = size - start if length is None else min(length, size - start)
            return self._fs.read(fd, wanted, start) if wanted > 0 else b""
        except OSError as error:
            raise _failed("read", name, error) from error
        finally:
            self._fs.close(fd)

    def size(self, name: str) -> int | None:
        try:
            found = self._fs.stat(self._path(name))
        except OSError as error:
            raise _failed("size", name, error) from error
        return found.size if found is not None and found.is_file else None

    def list(self, prefix: str, *, after: str = "") -> list[Entry]:
        folder = prefix.rpartition("/")[0]
        if folder:
            check_name(folder)
        try:
            found = [entry for entry in self._walk(folder) if entry.name.startswith(prefix) and entry.name > after]
        except OSError as error:
            raise _failed("list", prefix, error) from error
        return sorted(found)

    def _walk(self, folder: str) -> Iterator[Entry]:
        top = os.path.join(self.directory, folder) if folder else self.directory
        try:
            names = self._fs.list(top)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name == TEMPORARY or not re.fullmatch(r"[A-Za-z0-9_.=-]+", name):
                continue
            found = self._fs.stat(os.path.join(top, name))
            whole = f"{folder}/{name}" if folder else name
            if found is not None and found.is_directory:
                yield from self._walk(whole)
            elif found is not None and found.is_file:
                yield Entry(whole, found.size)

    def delete(self, name: str) -> None:
        try:
            self._fs.remove(self._path(name))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise _failed("delete", name, error) from error

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, check_name(name))


def _failed(operation: str, name: str, error: OSError) -> BackendError:
    return BackendError(operation, name, error.strerror or str(error))
