"""What must hold in a simulated group, checked after every step from outside: the members are not asked.

The checker knows every record that was ever written, by term and place, and everything that was ever decided.
"""

from __future__ import annotations

from typing import NamedTuple

from stratamq.replication.members import Config


class Violation(AssertionError):
    """A property does not hold."""


class Rec(NamedTuple):
    """A record of a simulated log. ``value`` is unique for what clients write, 0 for control records."""

    size: int
    term: int
    value: int
    config: Config | None = None
    starts_term: bool = False
    trim: int = 0


class Ghost:
    """Everything that was written and decided in one schedule."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.streams: dict[tuple[int, int], tuple[Rec, int]] = {}
        """(term, offset) -> the record there, and the term before it: one of each, or logs do not match."""
        self.decided: list[Rec] = []
        self.decided_ends: list[int] = []
        self.acknowledged: list[int] = []
        self.acknowledged_end = 0

    def wrote(self, node: str, offset: int, rec: Rec, term_before: int) -> None:
        """Log matching: by induction, equal (term, offset) means equal prefixes."""
        known = self.streams.setdefault((rec.term, offset), (rec, term_before))
        if known != (rec, term_before):
            raise Violation(f"log matching: {node} has {rec} at {offset} after term {term_before}, others have {known}")

    def leads(self, node: str, term: int, recs: list[Rec]) -> None:
        """Election safety and leader completeness."""
        if self.leaders.setdefault(term, node) != node:
            raise Violation(f"election safety: {self.leaders[term]} and {node} both lead term {term}")
        if recs[: len(self.decided)] != self.decided:
            raise Violation(f"leader completeness: {node} leads term {term} without all that is decided")

    def decides(self, node: str, recs: list[Rec], ends: list[int], was: int, commit: int) -> int:
        """State machine safety. Returns how many records are newly decided.

        ``recs`` and ``ends`` are the node's log; everything below ``was`` has been looked at.
        """
        if commit < was:
            raise Violation(f"{node}: what is decided went back from {was} to {commit}")
        if ends and commit > ends[-1]:
            raise Violation(f"{node}: {commit} is decided, the log ends at {ends[-1]}")
        new = 0
        at = 0 if not was else _index(ends, was, node)
        while at < len(recs) and ends[at] <= commit:
            if at < len(self.decided):
                if self.decided[at] != recs[at]:
                    raise Violation(f"state machine safety: {node} decides {recs[at]}, others {self.decided[at]}")
            else:
                self.decided.append(recs[at])
                self.decided_ends.append(ends[at])
                new += 1
            at += 1
        if commit and (at == 0 or ends[at - 1] != commit):
            raise Violation(f"{node}: {commit} is decided and is no boundary between records")
        return new

    @property
    def decided_end(self) -> int:
        """Up to where anything was ever decided."""
        return self.decided_ends[-1] if self.decided_ends else 0

    def acknowledges(self, value: int, end: int) -> None:
        """A client was told that its record is stored."""
        self.acknowledged.append(value)
        self.acknowledged_end = max(self.acknowledged_end, end)

    def reads(self, node: str, needed: int, offset: int) -> None:
        """A linearizable read sees everything that was acknowledged before it was asked."""
        if 0 <= offset < needed:
            raise Violation(f"stale read: {node} answers from below {offset}, and {needed} was acknowledged before")

    def final(self, recs: list[Rec]) -> None:
        """Everything acknowledged is there once."""
        values = [rec.value for rec in recs if rec.value]
        if len(values) != len(set(values)):
            raise Violation("something is stored twice")
        lost = set(self.acknowledged) - set(values)
        if lost:
            raise Violation(f"durability: {len(lost)} acknowledged records are lost")


def _index(ends: list[int], end: int, node: str) -> int:
    from bisect import bisect_left

    at = bisect_left(ends, end)
    if at == len(ends) or ends[at] != end:
        raise Violation(f"{node}: what was decided up to {end} is not in its log any more")
    return at + 1
