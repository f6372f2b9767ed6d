"""A backend of the cold tier that fails as tests want: down, slow, before or after the deed, lying, forgetful."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratamq.errors import BackendError
from stratamq.tiered.backend import Backend, Entry
from stratamq.units import Buffer

OPERATIONS = ("put", "read", "size", "list", "delete")


class FaultyBackend:
    """Wraps a backend. All faults are off at first."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.address = inner.address
        self.is_down = False
        """Every call fails."""
        self.fail_before: list[str] = []
        """Operations whose next call fails without having done anything; each is used up by one call."""
        self.fail_after: list[str] = []
        """Operations whose next call does what it should, and then says that it failed."""
        self.half_puts = 0
        """So many puts store half of their bytes and say that all is well."""
        self.half_part = ""
        """Only names that hold this are put by half."""
        self.size_lie = 0
        """Added to every size that is told."""
        self.hidden: set[str] = set()
        """Names that listings do not show yet."""
        self.hide_new = False
        """Whether listings do not show what is put from now on."""
        self.on_call: Callable[[str, str], None] = lambda operation, name: None
        """Called before each operation, in its thread: to be slow, or to look."""
        self.calls: list[tuple[str, str]] = []

    def _before(self, operation: str, name: str) -> None:
        self.calls.append((operation, name))
        self.on_call(operation, name)
        if self.is_down:
            raise BackendError(operation, name, "503 service unavailable")
        if operation in self.fail_before:
            self.fail_before.remove(operation)
            raise BackendError(operation, name, "500 as the test wants, before")

    def _after(self, operation: str, name: str) -> None:
        if operation in self.fail_after:
            self.fail_after.remove(operation)
            raise BackendError(operation, name, "500 as the test wants, after")

    def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        self._before("put", name)
        if self.hide_new:
            self.hidden.add(name)
        if self.half_puts and self.half_part in name:
            self.half_puts -= 1
            data = b"".join(parts)
            parts = [data[: len(data) // 2]]
        self.inner.put_new(name, parts)
        self._after("put", name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._before("read", name)
        data = self.inner.read(name, start, length)
        self._after("read", name)
        return data

    def size(self, name: str) -> int | None:
        self._before("size", name)
        found = self.inner.size(name)
        self._after("size", name)
        return None if found is None else found + self.size_lie

    def list(self, prefix: str, *, after: str = "") -> list[Entry]:
        self._before("list", prefix)
        found = [entry for entry in self.inner.list(prefix, after=after) if entry.name not in self.hidden]
        self._after("list", prefix)
        return found

    def delete(self, name: str) -> None:
        self._before("delete", name)
        self.inner.delete(name)
        self._after("delete", name)

    def close(self) -> None:
        self.inner.close()
