"""Ready messages of one queue, one `Level` per priority: in order of sequence, with only the front in memory.

A message is *returned* (it was delivered and came back, so it goes before everything that was not), in the *window*
(next in line, in memory), or *beyond* it (only in the store; counted). The window takes new messages while nothing is
beyond it, and is filled from the store when it runs empty. So memory is bounded however long a queue gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from stratamq.broker.amqp.messages import Message
from stratamq.broker.amqp.storage import QueueStorage

WINDOW_MESSAGES: Final = 4096
WINDOW_BYTES: Final = 16 * 1024 * 1024
FETCH_MESSAGES: Final = 512


class Entry:
    """A message in one queue."""

    __slots__ = ("deliveries", "expires_ms", "level", "message", "redelivered", "seq")

    def __init__(self, seq: int, message: Message, level: Level, expires_ms: int | None) -> None:
        self.seq = seq
        self.message = message
        self.level = level
        self.expires_ms = expires_ms
        self.redelivered = False
        self.deliveries = 0
        """How often it came back after a delivery."""

    def __lt__(self, other: Entry) -> bool:
        return self.seq < other.seq


class Level:
    """The ready messages of one priority."""

    __slots__ = ("_bytes", "_last_seq", "beyond", "returned", "store", "window")

    def __init__(self, store: QueueStorage) -> None:
        self.store = store
        self.returned: list[Entry] = []
        self.window: deque[Entry] = deque()
        self.beyond = store.count
        self._bytes = 0
        self._last_seq = -1

    def __len__(self) -> int:
        return len(self.returned) + len(self.window) + self.beyond

    def append(self, seq: int, message: Message, expires_ms: int | None) -> None:
        """A new message at the end."""
        if self.beyond or self._bytes > WINDOW_BYTES or len(self.window) >= WINDOW_MESSAGES:
            self.beyond += 1
            return
        self.window.append(Entry(seq, message, self, expires_ms))
        self._last_seq = seq
        self._bytes += len(message.body)

    def give_back(self, entry: Entry) -> None:
        """A delivered message returns to its place."""
        heappush(self.returned, entry)

    def peek(self, ttl_ms: int | None) -> Entry | None:
        """The first message; None when there is none. ``ttl_ms`` is the queue's, for messages read from the store."""
        if self.returned:
            return self.returned[0]
        if not self.window and self.beyond:
            self._fill(ttl_ms)
        return self.window[0] if self.window else None

    def pop(self) -> Entry:
        """Take the first message, which `peek` has just shown."""
        if self.returned:
            return heappop(self.returned)
        entry = self.window.popleft()
        self._bytes -= len(entry.message.body)
        return entry

    def drain(self) -> Iterator[int]:
        """Empty the level; yields the sequence number of every message that was ready."""
        for entry in self.returned:
            yield entry.seq
        for entry in self.window:
            yield entry.seq
        self.returned.clear()
        self.window.clear()
        self._bytes = 0
        while self.beyond:
            found = self.store.fetch(self._last_seq, FETCH_MESSAGES)
            if not found:
                self.beyond = 0
                break
            self._last_seq = found[-1].seq
            self.beyond = max(0, self.beyond - len(found))
            for stored in found:
                yield stored.seq

    def _fill(self, ttl_ms: int | None) -> None:
        found = self.store.fetch(self._last_seq, FETCH_MESSAGES)
        for seq, message, redelivered, deliveries in found:
            entry = Entry(seq, message, self, expiry(message, message.born_ms, ttl_ms))
            entry.redelivered = redelivered
            entry.deliveries = deliveries
            self.window.append(entry)
            self._bytes += len(message.body)
            self._last_seq = seq
        self.beyond = max(0, self.beyond - len(found)) if found else 0


def expiry(message: Message, now_ms: int, ttl_ms: int | None) -> int | None:
    """When a message that is enqueued now expires; None for never."""
    own = message.ttl_ms
    if own is None:
        return None if ttl_ms is None else now_ms + ttl_ms
    return now_ms + (own if ttl_ms is None or own < ttl_ms else ttl_ms)
