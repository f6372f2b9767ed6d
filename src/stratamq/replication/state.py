"""The state of one member, and what all its parts need: terms, votes that must not be forgotten, outgoing messages.

`core` says how the parts fit. A message that promises something (a vote, a higher term) is held here until the promise
is on the disk: the shell writes what `take` hands it and reports `hard_state_saved`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from stratamq.replication.members import Config, Configs, Control, Epochs, Member
from stratamq.replication.messages import Append, AppendReply, Install, RaftMessage, TimeoutNow, VoteReply, VoteRequest
from stratamq.replication.ports import HardState, Log, RaftTimes
from stratamq.replication.progress import Progress


class Role(enum.Enum):
    """What a member is at the moment."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Output(NamedTuple):
    """What the shell has to do: save the hard state (if any) under its number, send the messages (in any order)."""

    hard_state: HardState | None
    hard_state_number: int
    messages: list[tuple[str, RaftMessage]]
    reads: list[tuple[object, int]]
    """Reads that may be answered once everything below the offset is applied; the offset is -1 for "ask again"."""


class SafetyViolation(AssertionError):
    """Something that cannot happen in a group whose members keep the rules: going on would lose decided data."""


class Member0(NamedTuple):
    """How a member begins: from what it found on its disk."""

    node: str
    hard_state: HardState
    epochs: Epochs
    configs: Configs
    trims: Sequence[tuple[int, int]] = ()
    """(end of the record, position) of trims in the log."""


class CoreState(ABC):
    """Base of the core: see the module's text. Public attributes are for reading."""

    def __init__(self, begin: Member0, log: Log, times: RaftTimes, random: Random, now_ms: int) -> None:
        hard = begin.hard_state
        self.node = begin.node
        self.me = Member(begin.node, hard.incarnation)
        self.term = hard.term
        self.vote = hard.vote
        self.epochs = begin.epochs
        self.configs = begin.configs
        self.log = log
        self.times = times
        self.now_ms = now_ms
        self.role = Role.FOLLOWER
        self.leader = ""
        self.commit = max(log.start, min(hard.commit, log.end))
        self.durable = log.end
        self.generation = 0
        """Counts truncations: a sync that began before one says nothing about what was written after it."""
        self.is_failed = False
        """The disk refused to work: nothing is acknowledged, voted or led any more until restart."""
        self._trims = list(begin.trims)
        self._random = random
        self._heard_ms = now_ms - times.election_max_ms
        self._ticked_ms = now_ms
        self._synced_ms = now_ms
        self._verified = 0
        self._votes: dict[str, Member] = {}
        self._is_standing = False
        """A candidate of this term; else, as candidate, still asking whether standing makes sense."""
        self._is_transfer = False
        self._term_start = 0
        self._term_start_end = 0
        self._round = 0
        self._progress: dict[str, Progress] = {}
        self._strangers: dict[str, Member] = {}
        self._transferee = ""
        self._transfer_deadline_ms = 0
        self._reads: list[tuple[int, object, int]] = []
        self._reads_ready: list[tuple[object, int]] = []
        self._out: list[tuple[str, RaftMessage]] = []
        self._held: list[tuple[int, str, RaftMessage]] = []
        self._hard_number = 0
        self._hard_saved = 0
        self._hard_taken = 0
        self._election_deadline_ms = 0
        self._heartbeat_due_ms = 0
        self._draw_election_deadline()
        if self.term < self.epochs.last_term:
            # Bytes of a new term reached the disk before the hard state did. No vote can have left in that term.
            self._set_term(self.epochs.last_term, "")

    @property
    def config(self) -> Config:
        """The members in force."""
        return self.configs.last

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its term."""
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """Whether this member, in this incarnation, votes."""
        return self.config.has_voter(self.me)

    # --- what goes out ---

    def take(self) -> Output:
        """Everything that is to be done since the last call. See `Output` and the module's text."""
        hard = None
        if self._hard_taken < self._hard_number:
            self._hard_taken = self._hard_number
            hard = HardState(self.term, self.vote, self.me.incarnation, self.commit)
        messages, self._out = self._out, []
        reads, self._reads_ready = self._reads_ready, []
        return Output(hard, self._hard_number, messages, reads)

    def _send(self, to: str, message: RaftMessage) -> None:
        """Send once everything is durable that the message promises: the term it carries, the vote it gives."""
        if self._must_hold():
            self._held.append((self._hard_number, to, message))
        else:
            self._out.append((to, message))

    def _must_hold(self) -> bool:
        return self._hard_saved < self._hard_number

    def hard_state_saved(self, number: int) -> None:
        """The hard state with this number is on the disk."""
        self._hard_saved = max(self._hard_saved, number)
        ready = [entry for entry in self._held if entry[0] <= self._hard_saved]
        self._held = [entry for entry in self._held if entry[0] > self._hard_saved]
        self._out += [(to, message) for _, to, message in ready]
        if self._hard_saved == self._hard_number:
            self._own_vote_counts()

    def _set_term(self, term: int, vote: str) -> None:
        self.term = term
        self.vote = vote
        self._hard_number += 1

    # --- roles ---

    def _adopt(self, term: int) -> None:
        """A higher term was seen: follow it."""
        self._set_term(term, "")
        self._step_down()

    def _step_down(self, leader: str = "") -> None:
        """Become follower, of nobody unless a leader is named."""
        self.role = Role.FOLLOWER
        if self.leader != leader:
            self._verified = 0
        self.leader = leader
        self._is_standing = False
        self._votes.clear()
        self._progress.clear()
        self._strangers.clear()
        self._transferee = ""
        self._reads_ready += [(context, -1) for _, context, _ in self._reads]
        self._reads.clear()
        self._draw_election_deadline()

    def _draw_election_deadline(self) -> None:
        times = self.times
        self._election_deadline_ms = self.now_ms + self._random.randint(times.election_min_ms, times.election_max_ms)

    def failed(self) -> None:
        """The disk failed or cannot be trusted: stop taking part, until the process starts anew."""
        self.is_failed = True
        self._step_down()

    def _note_control(self, control: Control) -> None:
        """A control record is in the log now."""
        if control.term and control.start >= self.log.start:  # else the snapshot has it: a blank began the term
            self.epochs.add(control.term, control.start)
        if control.trim:
            self._trims.append((control.end, control.trim))
        if control.config is not None:
            self.configs.add(control.end, control.config)

    # --- what the other parts bring ---

    @abstractmethod
    def _own_vote_counts(self) -> None:
        """The vote for oneself is on the disk."""

    @abstractmethod
    def _became_leader(self) -> None:
        """A majority has voted for this member."""

    @abstractmethod
    def _durable_moved(self) -> None:
        """More of the log is on the disk."""

    @abstractmethod
    def _on_vote_request(self, message: VoteRequest) -> None:
        """Somebody wants to lead."""

    @abstractmethod
    def _on_vote_reply(self, message: VoteReply) -> None:
        """Somebody has voted."""

    @abstractmethod
    def _on_append(self, message: Append) -> None:
        """The leader sends part of its log."""

    @abstractmethod
    def _on_install(self, message: Install) -> None:
        """The leader no longer has what this member lacks."""

    @abstractmethod
    def _on_append_reply(self, message: AppendReply) -> None:
        """A follower says how far it is."""

    @abstractmethod
    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """The leader hands over."""
