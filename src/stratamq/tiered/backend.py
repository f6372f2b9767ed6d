"""Where cold objects lie: one small interface, and the ways to it.

An object is written once, whole, under a name that must be free; it never changes, and is read in ranges. That is all
that folders and the object stores of all vendors have in common, and all that the tier needs.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from stratamq.config import TieredConfig
from stratamq.errors import BackendError, ConfigError, ObjectExists, ObjectMissing, TierError
from stratamq.units import Buffer

NAME_BYTES_MAX: Final = 1_000
_NAME: Final = re.compile(r"(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9_.=-]+)(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_.=-]+)*")
CLOUD_SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss")


class Entry(NamedTuple):
    """One object of a listing."""

    name: str
    size: int


class Backend(Protocol):
    """A place for objects. Calls block, and may come from several threads at once.

    All but what a docstring names end in BackendError: what was done is then unknown.
    """

    address: str
    """Where it is, for people."""

    def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write an object; it is durable when this returns, and nobody ever sees a part of it.

        Raises ObjectExists when the name is taken; so of several writers exactly one succeeds. An object that this very
        call wrote may be what is found there, when an answer was lost on the way.
        """
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A range of an object, to its end without ``length``; fewer bytes when it ends before. Raises
        ObjectMissing."""
        ...

    def size(self, name: str) -> int | None:
        """Length of an object; None when there is none."""
        ...

    def list(self, prefix: str, *, after: str = "") -> list[Entry]:
        """Objects whose names begin with ``prefix`` and sort behind ``after``, by name. New ones may be missing for a
        while."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object. It is no error when there is none."""
        ...

    def close(self) -> None:
        """Give up what is held."""
        ...


def check_name(name: str) -> str:
    """An object's name, when it is one. Raises TierError: manifests are read as if an enemy wrote them."""
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise TierError(f"{name[:200]!r} is not the name of an object")
    return name


class MemoryBackend:
    """Objects in this process's memory, gone with it: for tests and trying out."""

    def __init__(self) -> None:
        self.address = "memory:"
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        with self._lock:
            if check_name(name) in self.objects:
                raise ObjectExists(name)
            self.objects[name] = data

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.objects.get(check_name(name))
        if data is None:
            raise ObjectMissing(name)
        return data[start : None if length is None else start + length]

    def size(self, name: str) -> int | None:
        data = self.objects.get(check_name(name))
        return None if data is None else len(data)

    def list(self, prefix: str, *, after: str = "") -> list[Entry]:
        with self._lock:
            found = [(name, len(data)) for name, data in self.objects.items() if name.startswith(prefix)]
        return [Entry(name, size) for name, size in sorted(found) if name > after]

    def delete(self, name: str) -> None:
        with self._lock:
            self.objects.pop(check_name(name), None)

    def close(self) -> None:
        """Nothing is held."""


class PrefixedBackend:
    """A part of another backend: every name gets a prefix. Closing it closes the other."""

    def __init__(self, inner: Backend, prefix: str) -> None:
        self._inner = inner
        self._prefix = check_name(prefix) + "/"
        self.address = f"{inner.address.rstrip('/')}/{prefix}"

    def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        self._inner.put_new(self._prefix + check_name(name), parts)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._inner.read(self._prefix + check_name(name), start, length)

    def size(self, name: str) -> int | None:
        return self._inner.size(self._prefix + check_name(name))

    def list(self, prefix: str, *, after: str = "") -> list[Entry]:
        cut = len(self._prefix)
        found = self._inner.list(self._prefix + prefix, after=self._prefix + after if after else "")
        return [Entry(entry.name[cut:], entry.size) for entry in found]

    def delete(self, name: str) -> None:
        self._inner.delete(self._prefix + check_name(name))

    def close(self) -> None:
        self._inner.close()


def put_checked(backend: Backend, name: str, parts: list[bytes]) -> int:
    """Put an object under a name that is used once, and see that all of it is there. Returns its length."""
    size = sum(map(len, parts))
    with contextlib.suppress(ObjectExists):  # the answer to our own put was lost and it was tried again
        backend.put_new(name, parts)
    stored = backend.size(name)
    if stored != size:
        raise BackendError("put", name, f"{size} bytes were sent, the backend has {stored}")
    return size


def open_backend(config: TieredConfig) -> Backend:
    """The backend that the settings name. Asks it nothing yet. Raises ConfigError.

    For an object store ModuleNotFoundError tells that ``stratamq[cloud]`` is not installed.
    """
    address = config.address
    parts = urlsplit(address)
    if parts.scheme == "memory":
        return MemoryBackend()
    if parts.scheme == "file":
        from stratamq.tiered.folder import FolderBackend

        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ConfigError("--tier", address, "file:///DIRECTORY with an absolute path")
        return FolderBackend(path)
    if parts.scheme in CLOUD_SCHEMES and parts.netloc:
        from stratamq.tiered.objects import ObjectBackend

        return ObjectBackend(config)
    raise ConfigError(
        "--tier", address, "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX"
    )
