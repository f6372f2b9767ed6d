"""One index segment in memory: a byte of state for each entry, and the entries that no file holds yet.

An entry is either *recent* (in the lists here, and if it must survive in the journal) or *flushed* (in a chunk of the
segment's file, `formats.queue_segment`). Recent entries follow the flushed ones. What a flushed entry says is in
``table`` while the cache keeps it.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

BODY_HERE: Final = 1
"""Kind bit: the body is in the index."""
IN_PERSISTENT: Final = 2
"""Kind bit: the body is in the persistent message store."""
IN_TRANSIENT: Final = 4
"""Kind bit: the body is in the transient message store."""
SURVIVES: Final = 8
"""Kind bit: the entry outlives a restart (persistent message, durable queue); acknowledging it is journaled."""


class Chunk(NamedTuple):
    """A run of flushed entries: first sequence number, how many, where in the file their entries begin."""

    first: int
    entries: int
    offset: int


class Segment:
    """Entries [first, end) of one queue. All numbers are sequence numbers of the queue."""

    __slots__ = (
        "chunks",
        "contents",
        "dirty",
        "expiries",
        "file_bytes",
        "first",
        "flushed",
        "kinds",
        "live",
        "live_bytes",
        "number",
        "priorities",
        "sizes",
        "states",
        "stored",
        "table",
        "transient",
    )

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.states = bytearray()
        """READY, UNACKED or GONE for each entry from ``first`` on."""
        self.live = 0
        self.live_bytes = 0
        self.flushed = first
        """Entries below are in the file."""
        self.contents: list[bytes | int | None] = []
        """Bodies, or ids in a message store, of the recent entries; None where the message is gone."""
        self.sizes = array("I")
        self.expiries = array("Q")
        self.priorities = bytearray()
        self.kinds = bytearray()
        self.chunks: list[Chunk] = []
        self.file_bytes = 0
        self.table: bytes | None = None
        self.dirty = False
        """Whether the manifest does not know the states as they are."""
        self.stored = False
        """Whether some flushed entry names a message store."""
        self.transient = False
        """Whether some flushed entry does not survive a restart."""

    @property
    def end(self) -> int:
        """One more than the newest entry."""
        return self.first + len(self.states)

    def drop_recent(self, upto: int) -> int:
        """Forget recent entries below ``upto``, which the file now holds. Returns the bytes of bodies let go."""
        count = upto - self.flushed
        if count <= 0:
            return 0
        released = sum([len(content) for content in self.contents[:count] if type(content) is bytes])
        del self.contents[:count], self.sizes[:count], self.expiries[:count]
        del self.priorities[:count], self.kinds[:count]
        self.flushed = upto
        return released
