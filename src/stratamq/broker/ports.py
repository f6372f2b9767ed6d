"""What a broker needs of its store, as protocols: the log store fills them, and so does the fake of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from stratamq.formats.consume_queue import Unit
from stratamq.logstore.types import GetResult, Message, PutDone, RecordFilter


class QueryAnswer(Protocol):
    """Messages found by key."""

    @property
    def records(self) -> Sequence[memoryview]:
        """Whole commit-log records."""
        ...

    @property
    def index_last_update_timestamp(self) -> int:
        """Store time of the newest indexed message."""
        ...

    @property
    def index_last_update_physical_offset(self) -> int:
        """Physical offset of the newest indexed message."""
        ...


class StoreSurface(Protocol):
    """Reads of a log store. Nothing here waits for a disk sync."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int | None = None,
        tags_codes: frozenset[int] | None = None,
        matching: RecordFilter | None = None,
    ) -> GetResult:
        """Read a queue from ``offset``; only messages with one of ``tags_codes``, or that ``matching`` wants."""
        ...

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset of a queue; 0 for one that is not there."""
        ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset behind the last message of a queue; 0 for one that is not there."""
        ...

    def queues(self) -> Iterable[tuple[str, int]]:
        """All queues that hold or held messages."""
        ...

    def is_in_memory(self, physical_offset: int) -> bool:
        """Whether a record is new enough to be in the page cache."""
        ...

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The whole record that begins at an offset; None when none does."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, ms: int, upper: bool = False) -> int:
        """First offset stored at or after a time; with ``upper`` the last one at or before it."""
        ...

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's first message; -1 when it is empty."""
        ...

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryAnswer:
        """Messages with a key, newest first."""
        ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[Unit]:
        """Up to ``count`` consume-queue units from an offset on, as far as consumers may read."""
        ...

    def set_queue_type(self, topic: str, *, is_batch: bool) -> None:
        """Say whether a topic has queues of batches, before its first message."""
        ...

    def delete_topic(self, topic: str) -> Any:
        """Remove all queues of a topic. Its records stay in the log until they expire."""
        ...

    def status(self) -> Any:
        """Positions and health of the store."""
        ...


class CommitterSurface(Protocol):
    """Writes to a log store."""

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        """Store messages together; ``done`` is called when they may be answered."""
        ...


class Worker(Protocol):
    """Part of a broker that does something when its time has come. It reads no clock and never waits."""

    def next_due_ms(self) -> int | None:
        """Wall time at which `run_due` has to be called next; None when nothing waits."""
        ...

    def run_due(self, now_ms: int) -> None:
        """Do what is due at a wall time."""
        ...


class SavedTable(Protocol):
    """A table of a broker that is written to its file now and then, as consumer offsets are."""

    is_dirty: bool
    """Whether it changed since it was last written; whoever writes it clears this."""

    def as_json(self) -> Any:
        """What its file holds."""
        ...


class SavedValue(Protocol):
    """A JSON value on disk."""

    def load(self) -> Any | None:
        """What was stored last; None when nothing was."""
        ...

    def store(self, value: Any) -> None:
        """Replace it, durably. Blocks."""
        ...

    def modified_ms(self) -> int:
        """Wall time at which it was stored last; 0 when it is not there."""
        ...


Json = Mapping[str, Any]
