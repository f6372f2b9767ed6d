"""A group's log in memory: what is proposed is decided when a test says so, and a crash loses what is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from stratamq.errors import OffsetOutOfRange


class MemoryLog:
    """Fills `quorum_storage.RecordLog`."""

    def __init__(self, records: Sequence[bytes] = (), *, start: int = 0, body_bytes_max: int = 1 << 20) -> None:
        self.start = start
        self.records = dict(enumerate(records, start))
        self.decided_end = self.end = start + len(records)
        self.body_bytes_max = body_bytes_max
        self.proposals: deque[tuple[int, Callable[[str], None]]] = deque()

    def propose(self, bodies: Sequence[bytes], done: Callable[[str], None]) -> None:
        assert all(len(body) <= self.body_bytes_max for body in bodies)
        for body in bodies:
            self.records[self.end] = body
            self.end += 1
        self.proposals.append((self.end, done))

    def decide(self, count: int = -1) -> None:
        """Decide so many proposals, oldest first; all by default."""
        while self.proposals and count:
            self.decided_end, done = self.proposals.popleft()
            done("")
            count -= 1

    def read(self, offset: int) -> bytes:
        if not self.start <= offset < self.decided_end:
            raise OffsetOutOfRange(offset, self.start, self.decided_end)
        return self.records[offset]

    def next_leader(self, undecided: int, *, start: int = -1) -> MemoryLog:
        """The log as the next leader has it: what is decided, and so many of the other records."""
        begin = max(start, self.start)
        end = min(self.end, self.decided_end + undecided)
        records = [self.records[offset] for offset in range(begin, end)]
        return MemoryLog(records, start=begin, body_bytes_max=self.body_bytes_max)
