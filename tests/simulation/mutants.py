"""The production core with one rule broken each: the simulator must find every one of them.

A rule is a small method of the core; a mutant overrides it. `nodes` and `faults` say in which world it is looked for:
rare faults only bite when the world is biased towards them, which is what a world of only such faults is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from stratamq.replication.core import RaftCore
from stratamq.replication.messages import Append, AppendReply, Install, VoteRequest
from tests.simulation.deck import perform
from tests.simulation.faults import Faults, draw
from tests.simulation.world import World


class CutsAlways(RaftCore):
    """Cuts the log on every message, not only where logs differ."""

    def _known_up_to(self, message: Append) -> int:
        return message.prev


class IgnoresLogs(RaftCore):
    """Votes without looking at the candidate's log."""

    def _is_current(self, message: VoteRequest) -> bool:
        return True


class LowQuorum(RaftCore):
    """Decides with one voter too few."""

    def _majority(self) -> int:
        return max(1, self.config.majority - 1)


class VotesTwice(RaftCore):
    """Gives more than one vote a term."""

    def _may_vote_for(self, candidate: str) -> bool:
        return True


class TakesOldTerms(RaftCore):
    """Obeys a leader of a term that is over."""

    def _is_old(self, message: Append) -> bool:
        return False


class AcknowledgesEarly(RaftCore):
    """A follower acknowledges what its disk has not got yet."""

    def _acknowledged(self) -> int:
        return self._verified


class LeaderCountsEarly(RaftCore):
    """A leader counts its own disk before its sync has ended."""

    def _own_durable(self) -> int:
        return self.log.end


class SkipsPreviousTerm(RaftCore):
    """Takes bytes without looking at the term of what stands before them."""

    def _fits(self, message: Append) -> bool:
        return self.log.start <= message.prev <= self.log.end


class ComparesLengths(RaftCore):
    """Votes for the longer log, whatever its last term."""

    def _is_current(self, message: VoteRequest) -> bool:
        return message.end >= self.log.end


class ComparesNodeTerms(RaftCore):
    """Takes the term a member is in for the term of its log."""

    def _last_term(self) -> int:
        return min(self.term, self.epochs.last_term and self.term - 1)

    def _request_votes(self, term: int, *, is_pre: bool) -> None:
        request = VoteRequest(
            term, self.node, self.me.incarnation, term - 1 if self.epochs.last_term else 0, self.log.end, is_pre
        )
        for member in self.config.voters:
            if member.node != self.node:
                self._send(member.node, request)


class ForgetsVotes(RaftCore):
    """Sends votes before they are on the disk."""

    def _must_hold(self) -> bool:
        return False


class DecidesOldTerms(RaftCore):
    """Decides bytes of earlier terms by counting copies (figure 8)."""

    def _may_decide(self, decided: int) -> bool:
        return True


class BelievesCommit(RaftCore):
    """A follower takes its own end for the leader's log when it follows what is decided."""

    def _follow_commit(self, message: Append) -> None:
        self.commit = max(self.commit, min(message.commit, self.log.end))


class ProbesAnywhere(RaftCore):
    """A leader asks at the follower's offset even where the terms differ: that may lie inside a record."""

    def _parting(self, message: AppendReply) -> int:
        return min(message.hint_end, self.epochs.end_of(message.hint_term, self.log.end))


class BelievesOldSyncs(RaftCore):
    """Takes a sync that began before the log was cut for one of what was written since."""

    def synced(self, end: int, generation: int) -> None:
        super().synced(end, self.generation)


class ReadsAlone(RaftCore):
    """A leader answers reads without asking whether it still leads."""

    def read_index(self, context: object) -> None:
        self._reads_ready.append((context, self.commit if self.is_leader else -1))


class ReadsEarly(RaftCore):
    """A new leader answers reads before it has decided anything in its term."""

    @property
    def serves(self) -> bool:
        return self.is_leader


class ManyChanges(RaftCore):
    """Changes members while another change is under way."""

    def _change_is_settled(self) -> bool:
        return self.is_leader


class TrimsEarly(RaftCore):
    """Deletes old parts of the log as soon as a record says so, decided or not."""

    def _trimmed_up_to(self) -> int:
        return self.log.end


class InstallsAlways(RaftCore):
    """Begins anew when a leader says so, whatever the own log holds."""

    def _lacks(self, message: Install) -> bool:
        return True


class ReturnsEmpty(RaftCore):
    """A node whose disk was lost comes back as if nothing had happened."""

    keeps_identity = True


class TrustsRot(RaftCore):
    """Damage in the middle of the log is taken for a torn end and cut off."""

    trusts_rot = True


@dataclass(frozen=True)
class Hunt:
    """Where a mutant is looked for: group size, and the faults of each world."""

    mutant: type[RaftCore]
    nodes: int = 3
    faults: Callable[[Random], Faults] = draw
    script: str = ""
    """A script that finds it, where chance hardly ever does."""


def after_votes(random: Random) -> Faults:
    """Members stop right after they voted, and are back at once."""
    return Faults(
        loss=random.uniform(0, 0.3),
        crash=random.uniform(0, 0.03),
        crash_after_vote=0.9,
        crash_after_sync=0.3,
        restart=0.5,
        disk_ms=40,
        delay_ms=random.choice((2, 20)),
        tail=random.uniform(0, 0.3),
        skew=0.3,
    )


def leaders_fall(random: Random) -> Faults:
    """Leaders stop right after their own disk has got what they wrote, and nobody else (figure 8)."""
    return Faults(
        loss=random.uniform(0, 0.4),
        crash=random.uniform(0.0, 0.03),
        crash_after_sync=random.uniform(0.2, 0.9),
        restart=random.choice((0.05, 0.3)),
        delay_ms=random.choice((5, 40)),
        partition=random.uniform(0, 0.08),
        one_way=random.uniform(0, 0.08),
        heal=0.3,
        disk_ms=2,
        proposals=random.choice((0.1, 0.6)),
    )


def figure_8(random: Random) -> Faults:
    """As figure 8 has it: short reigns, and leaders that stop right after they have decided something."""
    return Faults(
        loss=random.uniform(0, 0.3),
        crash=random.uniform(0, 0.03),
        crash_after_sync=random.uniform(0.1, 0.5),
        crash_after_decision=random.uniform(0.3, 0.9),
        restart=random.choice((0.02, 0.06, 0.2)),
        delay_ms=random.choice((2, 10, 30)),
        one_way=random.uniform(0, 0.1),
        partition=random.uniform(0, 0.03),
        heal=0.1,
        disk_ms=random.choice((1, 10)),
        proposals=0.05,
    )


def members_change(random: Random) -> Faults:
    """Members come and go while the network is cut again and again."""
    return Faults(
        loss=random.uniform(0, 0.3),
        partition=random.uniform(0, 0.06),
        heal=0.1,
        members=0.5,
        crash=random.uniform(0, 0.02),
        restart=0.1,
        delay_ms=random.choice((5, 30)),
    )


def disks_go(random: Random) -> Faults:
    """Machines stop, and come back without their disk or with a damaged one."""
    return Faults(
        loss=random.uniform(0, 0.2),
        crash=random.uniform(0.005, 0.04),
        restart=random.choice((0.05, 0.3)),
        wipe=0.4,
        rot=0.5,
        partition=random.uniform(0, 0.04),
        delay_ms=random.choice((2, 20)),
        slow_disk=random.uniform(0, 0.02),
    )


def old_syncs(random: Random) -> Faults:
    """Slow disks under leaders that change often."""
    return Faults(
        loss=random.uniform(0, 0.2),
        crash=random.uniform(0, 0.03),
        restart=0.3,
        partition=random.uniform(0.02, 0.08),
        heal=0.3,
        disk_ms=120,
        delay_ms=random.choice((2, 20)),
        transfer=0.05,
        proposals=0.9,
        crash_after_sync=random.uniform(0, 0.3),
    )


HUNTS = [
    Hunt(CutsAlways),
    Hunt(IgnoresLogs),
    Hunt(LowQuorum),
    Hunt(VotesTwice),
    Hunt(TakesOldTerms),
    Hunt(AcknowledgesEarly),
    Hunt(LeaderCountsEarly),
    Hunt(SkipsPreviousTerm),
    Hunt(ComparesLengths),
    Hunt(ComparesNodeTerms, faults=leaders_fall),
    Hunt(ForgetsVotes, faults=after_votes),
    Hunt(DecidesOldTerms, nodes=5, script="figure-8-d"),
    Hunt(BelievesCommit, faults=leaders_fall),
    Hunt(ProbesAnywhere, faults=leaders_fall),
    Hunt(BelievesOldSyncs, faults=old_syncs),
    Hunt(ReadsAlone),
    Hunt(ReadsEarly),
    Hunt(ManyChanges, nodes=5, faults=members_change),
    Hunt(TrimsEarly),
    Hunt(InstallsAlways),
    Hunt(ReturnsEmpty, faults=disks_go),
    Hunt(TrustsRot, faults=disks_go),
]


def seeds_to_catch(hunt: Hunt, budget: int) -> tuple[int, str] | None:
    """How many schedules it takes until the mutant is found, and what is found; None when the budget is not enough.

    0 when a script finds it.
    """
    if hunt.script:
        path = Path(__file__).parent / "scripts" / f"{hunt.script}.txt"
        try:
            perform(path.read_text(encoding="utf-8"), hunt.mutant)
        except AssertionError as error:
            return 0, str(error)
    for seed in range(budget):
        world = World(seed, hunt.nodes, core_class=hunt.mutant, faults=hunt.faults(Random(seed)))
        try:
            world.run()
        except AssertionError as error:
            return seed + 1, str(error) or type(error).__name__
    return None
