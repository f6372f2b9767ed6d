"""The disk of a simulated member: a log of which only what was synced survives, and a hard state in flight.

A crash keeps what was synced and any number of whole records behind it (recovery drops a torn one). A cut is a step of
its own, durable when it returns, but a crash in the middle may leave more of the old log. Rot damages a record that
was synced before the last checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Sized
from itertools import accumulate
from random import Random

from stratamq.errors import StoreFull
from stratamq.replication.core import RaftCore
from stratamq.replication.members import Config, Control
from stratamq.replication.ports import HardState
from tests.simulation.ghost import Ghost, Rec, Violation

CONTROL_BYTES = 7


class Crash(BaseException):
    """The machine stops in the middle of what it is doing."""


class Body:
    """Whole records on their way."""

    __slots__ = ("recs", "size")

    def __init__(self, recs: Sequence[Rec]) -> None:
        self.recs = tuple(recs)
        self.size = sum(rec.size for rec in recs)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Body:
        skip, at = part.start, 0
        while skip > 0:
            skip -= self.recs[at].size
            at += 1
        if skip:
            raise Violation("a body is cut inside a record")
        return Body(self.recs[at:])


class SimLog:
    """A log as the core's port, with its disk behind it."""

    def __init__(self, node: str, ghost: Ghost, random: Random) -> None:
        self.node = node
        self.recs: list[Rec] = []
        self.ends: list[int] = []
        self.synced_end = 0
        self.checkpoint = 0
        self.is_full = False
        self.crash_in_cut = 0.0
        self.start = 0
        """Everything below was deleted. It is kept here, for the checker, and poisoned: nobody may read it."""
        self.core: RaftCore | None = None
        self._ghost = ghost
        self._random = random

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def _at(self, offset: int) -> int:
        """Index of the record that begins at ``offset``."""
        if not offset:
            return 0
        at = bisect_left(self.ends, offset)
        if at == len(self.ends) or self.ends[at] != offset:
            raise Violation(f"{self.node}: {offset} is no boundary between records")
        return at + 1

    def trim(self, offset: int) -> None:
        """Delete everything below."""
        self._at(offset)
        if offset > min(self.synced_end, self._ghost.decided_end):
            raise Violation(f"{self.node} deletes up to {offset}, synced is {self.synced_end}")
        self.start = max(self.start, offset)

    def snapshot(self) -> Sized:
        return Body(self.recs[: self._at(self.start)])

    def install(self, start: int, snapshot: Sized) -> None:
        assert isinstance(snapshot, Body)
        assert snapshot.size == start
        self.recs, self.ends = list(snapshot.recs), list(accumulate(rec.size for rec in snapshot.recs))
        self.start = self.synced_end = self.checkpoint = start
        raise Crash

    def read(self, start: int, limit: int, bytes_max: int) -> Sized:
        if start < self.start:
            raise Violation(f"{self.node} reads at {start}, and its log begins at {self.start}")
        at = first = self._at(start)
        while at < len(self.recs) and self.ends[at] <= limit and (at == first or self.ends[at] - start <= bytes_max):
            at += 1
        return Body(self.recs[first:at])

    def write(self, body: Sized) -> Sequence[Control]:
        assert isinstance(body, Body)
        if self.is_full:
            raise StoreFull(self.node)
        controls = []
        for rec in body.recs:
            control = self._add(rec)
            if rec.config is not None or rec.trim:
                controls.append(control)
        return controls

    def _add(self, rec: Rec) -> Control:
        start = self.end
        self._ghost.wrote(self.node, start, rec, self.recs[-1].term if self.recs else 0)
        self.recs.append(rec)
        self.ends.append(start + rec.size)
        return Control(start, start + rec.size, rec.term if rec.starts_term else 0, rec.config, rec.trim)

    def truncate(self, offset: int) -> None:
        if self.core is not None and self.core.is_leader:
            raise Violation(f"leader append-only: {self.node} cuts its log while it leads")
        at = self._at(offset)
        if at < len(self._ghost.decided) and self.recs[at : at + 1] == [self._ghost.decided[at]]:
            raise Violation(f"{self.node} cuts what is decided, at {offset}")
        if offset < self.start:
            raise Violation(f"{self.node} cuts at {offset}, and its log begins at {self.start}")
        if self._random.random() < self.crash_in_cut:
            self._cut(self._random.randint(at, len(self.recs)))
            raise Crash
        self._cut(at)

    def _cut(self, at: int) -> None:
        del self.recs[at:]
        del self.ends[at:]
        self.synced_end = min(self.synced_end, self.end)
        self.checkpoint = min(self.checkpoint, self.end)

    def append_control(self, term: int, config: Config, *, starts_term: bool) -> Control:
        if self.is_full:
            raise StoreFull(self.node)
        return self._add(Rec(CONTROL_BYTES, term, 0, config, starts_term))

    def append(self, term: int, size: int, value: int) -> int:
        """A client's record. Returns its end."""
        if self.is_full:
            raise StoreFull(self.node)
        return self._add(Rec(size, term, value)).end

    def append_trim(self, term: int, offset: int) -> Control:
        """A record by which everybody deletes what lies below ``offset``."""
        if self.is_full:
            raise StoreFull(self.node)
        return self._add(Rec(CONTROL_BYTES, term, 0, trim=offset))

    def lose_unsynced(self) -> None:
        """What a crash leaves: all that was synced, and by chance some more."""
        kept = self._at(self.synced_end)
        self._cut(self._random.randint(kept, len(self.recs)) if self._random.random() < 0.5 else kept)
        self.synced_end = self.end

    def holds(self, at: int, rec: Rec, end: int) -> bool:
        """Whether the record is on the disk, durably."""
        return at < len(self.recs) and self.recs[at] == rec and self.synced_end >= end

    def controls(self) -> list[Control]:
        """All control records, as a scan finds them."""
        return [
            Control(end - rec.size, end, rec.term if rec.starts_term else 0, rec.config, rec.trim)
            for rec, end in zip(self.recs, self.ends, strict=True)
            if rec.config is not None or rec.trim
        ]


class SimDisk:
    """Log and hard state of one node."""

    def __init__(self, node: str, ghost: Ghost, random: Random, incarnation: int) -> None:
        self.log = SimLog(node, ghost, random)
        self.hard = HardState(incarnation=incarnation)
        self.saving: HardState | None = None
