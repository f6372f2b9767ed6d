"""A bounded set of open descriptors for many small files, the least recently used closed first."""

from __future__ import annotations

from collections import OrderedDict

from stratamq.files.filesystem import FileSystem


class HandleCache:
    """Descriptors by path. A descriptor that `get` returned is good until the next call of any method here."""

    __slots__ = ("_fs", "_handles_max", "_open")

    def __init__(self, filesystem: FileSystem, handles_max: int) -> None:
        self._fs = filesystem
        self._handles_max = max(1, handles_max)
        self._open: OrderedDict[str, int] = OrderedDict()

    def get(self, path: str) -> int:
        """The descriptor of an existing file, opened when needed. Raises OSError."""
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        return self._keep(path, self._fs.open(path))

    def create(self, path: str, size: int) -> int:
        """Create a file and keep it open. Raises OSError."""
        return self._keep(path, self._fs.create(path, size))

    def forget(self, path: str) -> None:
        """Close the descriptor of ``path`` when there is one."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._fs.close(fd)

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._fs.close(self._open.popitem()[1])

    def __len__(self) -> int:
        return len(self._open)

    def _keep(self, path: str, fd: int) -> int:
        while len(self._open) >= self._handles_max:
            self._fs.close(self._open.popitem(last=False)[1])
        self._open[path] = fd
        return fd
