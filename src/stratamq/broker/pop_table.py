"""Open check-points: what is given out and until when, and how far back the revive topic has to be read again. Pure.

A check-point may have records in several queues of the revive topic; the oldest record of an open one holds the
reading position of its queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from stratamq.broker.pop_records import Key

HEAP_SLACK: Final = 1_000
"""Ends of check-points that are over may stay in the heap, up to this many more than are open."""


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Messages of one queue that were given out together."""

    key: Key
    left: set[int]
    """Offsets that nobody has acknowledged."""
    due_ms: int
    pending: int = 0
    """Acks that are being stored."""
    is_reviving: bool = False
    timer_ms: int = 0
    """For one that another broker's timer delivers: acks of it have come when the timer is behind this time."""
    ahead: set[int] | None = None
    """Not a check-point yet: offsets that were acknowledged before a timer delivered it."""
    records: list[tuple[int, int]] = field(default_factory=list)
    """Queue and offset of its records in the revive topic."""


class CheckpointTable:
    """The open check-points of one broker."""

    def __init__(self) -> None:
        self._open: dict[Key, Checkpoint] = {}
        self._places: dict[tuple[str, str, int], int] = {}
        self._due: list[tuple[int, int, Checkpoint]] = []
        self._number = 0
        self._needed: dict[int, set[int]] = {}
        self._oldest: dict[int, list[int]] = {}
        """By queue: a heap of the needed records' offsets, and of some that are not needed any more."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: Key) -> bool:
        return key in self._open

    def get(self, key: Key) -> Checkpoint | None:
        """The open check-point of this name."""
        return self._open.get(key)

    def is_open(self, one: Checkpoint) -> bool:
        """Whether this one is open still."""
        return self._open.get(one.key) is one

    def holds(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a group holds messages of a queue."""
        return (group, topic, queue_id) in self._places

    def add(self, one: Checkpoint) -> None:
        """A check-point begins."""
        self._open[one.key] = one
        place = one.key[:3]
        self._places[place] = self._places.get(place, 0) + 1
        if len(self._due) > 2 * len(self._open) + HEAP_SLACK:
            self._due = [item for item in self._due if self.is_open(item[2])]
            heapify(self._due)
        self.due_at(one, one.due_ms)

    def forget(self, one: Checkpoint) -> None:
        """Nothing of it is left."""
        if self.is_open(one):
            del self._open[one.key]
            place = one.key[:3]
            self._places[place] -= 1
            if not self._places[place]:
                del self._places[place]
        for queue, offset in one.records:
            self._needed[queue].discard(offset)
        one.records.clear()

    # --- records ---

    def note(self, one: Checkpoint, queue: int, offset: int) -> None:
        """A record of the revive topic is needed for as long as it is open."""
        if self.is_open(one):
            one.records.append((queue, offset))
            self._needed.setdefault(queue, set()).add(offset)
            heappush(self._oldest.setdefault(queue, []), offset)

    def oldest(self, queue: int) -> int | None:
        """The first record of a queue that is needed."""
        needed, heap = self._needed.get(queue, set()), self._oldest.get(queue, [])
        if len(heap) > 2 * len(needed) + HEAP_SLACK:
            heap[:] = sorted(needed)
        while heap and heap[0] not in needed:
            heappop(heap)
        return heap[0] if heap else None

    # --- ends ---

    def due_at(self, one: Checkpoint, due_ms: int) -> None:
        """Its time is over at another time than was thought."""
        self._number += 1
        one.due_ms = due_ms
        heappush(self._due, (due_ms, self._number, one))

    def next_end(self) -> int | None:
        """When the next check-point's time is over."""
        while self._due and not (self.is_open(self._due[0][2]) and self._due[0][2].due_ms == self._due[0][0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self) -> Checkpoint:
        """The one whose time is over next, after `next_end`; it has to get another end or be forgotten."""
        return heappop(self._due)[2]
