"""Who belongs to a group, and which bytes of the log belong to which term. Plain values and two small tables.

A member is a node and its *incarnation*: a number drawn when its hard state was first written. A node that lost its
disk comes back with the same name and another incarnation, so it is another member, whose votes and acknowledgements
count for nothing until the group has taken it in. Incarnation 0 stands in the settings of a group that has no log yet
and means "whichever".

Positions are byte offsets in the commit log; ranges are half open. The first entry of an epoch is the record that
starts the term. Bytes before the first such record have term 0: a store that was a single broker's until now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

ANY: Final = 0
"""Incarnation that is not known yet."""


class Member(NamedTuple):
    """A node and its incarnation."""

    node: str
    incarnation: int = ANY


class Config(NamedTuple):
    """Members of a group: those who vote, and learners, who only receive the log. Both sorted."""

    voters: tuple[Member, ...]
    learners: tuple[Member, ...] = ()

    @property
    def majority(self) -> int:
        """How many voters are more than half."""
        return len(self.voters) // 2 + 1

    @property
    def nodes(self) -> list[str]:
        """All nodes, voters first."""
        return [member.node for member in self.voters + self.learners]

    @property
    def is_settled(self) -> bool:
        """Whether every voter's incarnation is known."""
        return all(member.incarnation != ANY for member in self.voters)

    def has_voter(self, member: Member) -> bool:
        """Whether this node in this incarnation votes."""
        return member in self.voters or Member(member.node) in self.voters

    def knows(self, member: Member) -> bool:
        """Whether this node in this incarnation is voter or learner."""
        return self.has_voter(member) or member in self.learners

    def with_voter(self, member: Member) -> Config:
        """This node votes from now on, and is no learner."""
        return Config(_replaced(self.voters, member), _without(self.learners, member.node))

    def with_learner(self, member: Member) -> Config:
        """This node learns from now on, and does not vote."""
        return Config(_without(self.voters, member.node), _replaced(self.learners, member))

    def without(self, node: str) -> Config:
        """Neither voter nor learner."""
        return Config(_without(self.voters, node), _without(self.learners, node))


def initial_config(nodes: Iterable[str]) -> Config:
    """Voters of a group that has no log yet."""
    return Config(tuple(sorted(Member(node) for node in nodes)))


def voters_changed(old: Config, new: Config) -> int:
    """How many voters come or go; the same node in another incarnation counts twice."""
    return len(set(old.voters) ^ set(new.voters))


def _without(members: Sequence[Member], node: str) -> tuple[Member, ...]:
    return tuple(member for member in members if member.node != node)


def _replaced(members: Sequence[Member], member: Member) -> tuple[Member, ...]:
    return tuple(sorted((*_without(members, member.node), member)))


class Control(NamedTuple):
    """A control record as the core sees it: where it lies, the term it starts (0: none), the members from here on.

    ``trim``: every member deletes its log below this position (0: no).
    """

    start: int
    end: int
    term: int
    config: Config | None
    trim: int = 0


class Epochs:
    """(term, start) of every term in the log, ascending in both. Lookups are binary searches."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._terms: list[int] = []
        self._starts: list[int] = []
        for term, start in entries:
            self.add(term, start)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._terms, self._starts, strict=True))

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def last_term(self) -> int:
        """Term of the log's last byte; 0 when no term was ever started."""
        return self._terms[-1] if self._terms else 0

    def add(self, term: int, start: int) -> None:
        """A term begins. Raises ValueError when that goes backwards."""
        if self._terms and (term <= self._terms[-1] or start <= self._starts[-1]):
            raise ValueError(f"term {term} at {start} cannot follow term {self._terms[-1]} at {self._starts[-1]}")
        self._terms.append(term)
        self._starts.append(start)

    def truncate(self, offset: int) -> None:
        """Forget terms that begin at ``offset`` or behind."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._terms.pop()

    def term_before(self, offset: int) -> int:
        """Term of the byte before ``offset``; 0 at the log's beginning."""
        return self.term_of(offset - 1)

    def term_of(self, offset: int) -> int:
        """Term of the byte at ``offset``."""
        at = bisect_right(self._starts, offset)
        return self._terms[at - 1] if at else 0

    def end_of(self, term: int, log_end: int) -> int:
        """Where the bytes of the largest term up to ``term`` end."""
        at = bisect_right(self._terms, term)
        return self._starts[at] if at < len(self._starts) else log_end

    def largest_up_to(self, term: int) -> int:
        """The largest term in the log that is at most ``term``; 0 when there is none."""
        at = bisect_right(self._terms, term)
        return self._terms[at - 1] if at else 0

    def boundary_up_to(self, offset: int) -> int:
        """The largest start of a term that is at most ``offset``; 0 when there is none."""
        at = bisect_right(self._starts, offset)
        return self._starts[at - 1] if at else 0


class Configs:
    """The members at every position of the log: what the settings say, then what control records say.

    A configuration counts as soon as its record is in the log, committed or not.
    """

    def __init__(self, initial: Config, entries: Iterable[tuple[int, Config]] = ()) -> None:
        self._entries: list[tuple[int, Config]] = [(0, initial), *entries]

    @property
    def last(self) -> Config:
        """The configuration in force."""
        return self._entries[-1][1]

    @property
    def last_end(self) -> int:
        """Where the record of the configuration in force ends."""
        return self._entries[-1][0]

    @property
    def previous(self) -> Config:
        """The configuration before the one in force; the same when there was none."""
        return self._entries[max(0, len(self._entries) - 2)][1]

    def up_to(self, offset: int) -> tuple[int, Config] | None:
        """The newest record that ends at or below ``offset``: its end and members. None: only the settings say."""
        found = [entry for entry in self._entries[1:] if entry[0] <= offset]
        return found[-1] if found else None

    def add(self, end: int, config: Config) -> None:
        """A record that ends at ``end`` names the members from here on."""
        if config != self.last:
            self._entries.append((end, config))

    def truncate(self, offset: int) -> None:
        """The log was cut at ``offset``: go back to the configuration that its remaining records name."""
        while len(self._entries) > 1 and self._entries[-1][0] > offset:
            self._entries.pop()
