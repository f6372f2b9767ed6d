"""Pulls that wait for messages, by queue.

A waiter is woken when messages with matching tags arrive in its queue, when its time is up, or when its connection is
gone (then it is only forgotten). Whoever wakes it runs the pull again, without the right to wait. The number of
waiters is bounded.

Expired waiters are found through a heap; entries of waiters that were woken before stay in it until they come up, or
until they outnumber the living.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

_COMPACT_FROM: Final = 1024


@dataclass(slots=True, eq=False)
class Waiter:
    """One waiting pull. ``request`` is the caller's; ``offset`` is where it wants to read on."""

    connection: Hashable
    topic: str
    queue_id: int
    offset: int
    tags_codes: frozenset[int] | None
    deadline_ms: int
    request: Any
    is_waiting: bool = True


class WaitingPulls:
    """All waiting pulls of a broker. Time is monotonic."""

    def __init__(self, *, waiters_max: int) -> None:
        self._waiters_max = waiters_max
        self._queues: dict[tuple[str, int], dict[Waiter, None]] = {}
        self._of_connection: dict[Hashable, set[Waiter]] = {}
        self._heap: list[tuple[int, int, Waiter]] = []
        self._serial = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no further pull may wait."""
        return self._count >= self._waiters_max

    def park(self, waiter: Waiter) -> None:
        """Let a pull wait. The caller has looked at `is_full`."""
        self._queues.setdefault((waiter.topic, waiter.queue_id), {})[waiter] = None
        self._of_connection.setdefault(waiter.connection, set()).add(waiter)
        self._serial += 1
        heapq.heappush(self._heap, (waiter.deadline_ms, self._serial, waiter))
        self._count += 1

    def wake(self, topic: str, queue_id: int, tags_codes: Sequence[int]) -> list[Waiter]:
        """Take out the waiters of a queue that one of the arrived ``tags_codes`` matches; none given match all."""
        waiting = self._queues.get((topic, queue_id))
        if not waiting:
            return []
        woken = [waiter for waiter in waiting if _matches(waiter.tags_codes, tags_codes)]
        for waiter in woken:
            self._take_out(waiter)
        return woken

    def expire(self, now_ms: int) -> list[Waiter]:
        """Take out the waiters whose time is up."""
        due = []
        while self._heap and (not self._heap[0][2].is_waiting or self._heap[0][0] <= now_ms):
            waiter = heapq.heappop(self._heap)[2]
            if waiter.is_waiting:
                self._take_out(waiter)
                due.append(waiter)
        return due

    def next_deadline_ms(self) -> int | None:
        """When `expire` has to be called next; may be earlier than needed."""
        return self._heap[0][0] if self._heap else None

    def drop_connection(self, connection: Hashable) -> None:
        """Forget the waiters of a connection that is gone."""
        for waiter in list(self._of_connection.get(connection, ())):
            self._take_out(waiter)

    def behind(self, max_offsets: dict[tuple[str, int], int]) -> list[Waiter]:
        """Take out waiters whose queue can be read beyond their offset; they should have been woken."""
        late = [
            waiter
            for key, waiting in self._queues.items()
            for waiter in waiting
            if waiter.tags_codes is None and max_offsets.get(key, 0) > waiter.offset
        ]
        for waiter in late:
            self._take_out(waiter)
        return late

    def queues(self) -> list[tuple[str, int]]:
        """Queues that somebody waits for."""
        return list(self._queues)

    def _take_out(self, waiter: Waiter) -> None:
        waiter.is_waiting = False
        self._count -= 1
        key = (waiter.topic, waiter.queue_id)
        waiting = self._queues[key]
        del waiting[waiter]
        if not waiting:
            del self._queues[key]
        mine = self._of_connection[waiter.connection]
        mine.discard(waiter)
        if not mine:
            del self._of_connection[waiter.connection]
        if len(self._heap) > _COMPACT_FROM and len(self._heap) > 2 * self._count:
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapq.heapify(self._heap)


def _matches(wanted: frozenset[int] | None, arrived: Sequence[int]) -> bool:
    return wanted is None or not arrived or not wanted.isdisjoint(arrived)
