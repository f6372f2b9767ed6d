"""Elections: when to stand, whom to vote for, when to give up leading.

A pre-vote comes first, so that a member that cannot win (cut off, or behind) raises nobody's term. Members that heard
a leader within the shortest election timeout refuse both kinds of vote without looking at the term; a leader that has
not heard a majority for so long steps down, so that this never keeps a group without one.

The first election of a group, when no log has a term yet, wants every voter: from then on each voter's incarnation is
known, and a node that comes back without its disk cannot pose as the one it was.

Source: Raft (Ongaro, Ousterhout), 5.2 and 5.4.1; Ongaro's dissertation, 4.2.3, 6.4 and 9.6.
"""

from __future__ import annotations

from stratamq.errors import StoreFull
from stratamq.replication.members import Config, Member
from stratamq.replication.messages import TimeoutNow, VoteReply, VoteRequest
from stratamq.replication.state import CoreState, Role


class Elections(CoreState):
    """See the module's text."""

    # --- standing for election ---

    def _may_stand(self) -> bool:
        return self._is_voter_for_all_it_knows() and not self.is_failed and not self._is_stalled()

    def _is_voter_for_all_it_knows(self) -> bool:
        """Whether this member votes, or did until a change that may not be decided.

        Such a one must be able to lead the group through the change: perhaps nobody else holds its record. It then
        needs a majority of the others.
        """
        return self.is_voter or (self.configs.last_end > self.commit and self.configs.previous.has_voter(self.me))

    def _is_stalled(self) -> bool:
        """Whether the disk has brought nothing to an end for longer than an election takes."""
        return self.durable < self.log.end and self.now_ms - self._synced_ms > self.times.election_max_ms

    def _ask_around(self) -> None:
        """Find out whether an election could be won, without raising any term."""
        self.role = Role.CANDIDATE
        self.leader = ""
        self._is_standing = False
        self._is_transfer = False
        self._votes = {self.node: self.me} if self.is_voter else {}
        self._draw_election_deadline()
        if self._has_won():
            self._stand()
        else:
            self._request_votes(self.term + 1, is_pre=True)

    def _stand(self, *, is_transfer: bool = False) -> None:
        """Raise the term and vote for oneself; the vote counts, and the requests leave, once that is on the disk."""
        self._set_term(self.term + 1, self.node)
        self.role = Role.CANDIDATE
        self.leader = ""
        self._is_standing = True
        self._is_transfer = is_transfer
        self._votes = {}
        self._draw_election_deadline()
        self._request_votes(self.term, is_pre=False)
        if not self._must_hold():
            self._own_vote_counts()

    def _request_votes(self, term: int, *, is_pre: bool) -> None:
        request = VoteRequest(
            term, self.node, self.me.incarnation, self.epochs.last_term, self.log.end, is_pre, self._is_transfer
        )
        for member in self.config.voters:
            if member.node != self.node:
                self._send(member.node, request)

    def _own_vote_counts(self) -> None:
        if self.role is Role.CANDIDATE and self._is_standing and self.vote == self.node:
            if self.is_voter:
                self._votes[self.node] = self.me
            if self._has_won():
                self._win()

    def _has_won(self) -> bool:
        return len(self._votes) >= self._votes_needed()

    def _votes_needed(self) -> int:
        """More than half; all of them while no term was ever started, see the module's text."""
        return self.config.majority if self.epochs.last_term else len(self.config.voters)

    def _win(self) -> None:
        config = self.config
        if not config.is_settled:
            config = Config(tuple(sorted(self._votes.values())), config.learners)
        start = self.log.end
        try:
            control = self.log.append_control(self.term, config, starts_term=True)
        except StoreFull:
            self._step_down()
            return
        if self.durable == start:
            self._synced_ms = self.now_ms
        self.role = Role.LEADER
        self.leader = self.node
        self._note_control(control)
        self._term_start, self._term_start_end = control.start, control.end
        self._became_leader()

    def lost(self, node: str) -> None:
        """The connection from a member has broken, most likely with its process: a dead leader is not waited for.

        A false alarm costs nothing: the others, who still hear the leader, refuse the pre-vote.
        """
        if self.role is not Role.FOLLOWER or not node or node != self.leader:
            return
        self._heard_ms = min(self._heard_ms, self.now_ms - self.times.election_min_ms)
        soon = self.now_ms + self._random.randint(0, 2 * self.times.heartbeat_ms)
        self._election_deadline_ms = min(self._election_deadline_ms, soon)

    # --- voting ---

    def _on_vote_request(self, message: VoteRequest) -> None:
        if self.is_failed:
            return
        if self._is_content() and not message.is_transfer:
            self._answer_vote(message, is_granted=False)
            return
        if message.is_pre:
            granted = message.term > self.term and self._is_current(message)
            self._answer_vote(message, is_granted=granted)
            return
        if message.term > self.term:
            self._adopt(message.term)
        granted = message.term == self.term and self._may_vote_for(message.sender) and self._is_current(message)
        if granted:
            if self.vote != message.sender:
                self._set_term(self.term, message.sender)
            self._draw_election_deadline()
        self._answer_vote(message, is_granted=granted)

    def _is_content(self) -> bool:
        """Whether there is a leader that was heard a moment ago."""
        if self.is_leader:
            return True
        return bool(self.leader) and self.now_ms - self._heard_ms < self.times.election_min_ms

    def _may_vote_for(self, candidate: str) -> bool:
        """One vote a term."""
        return self.vote in ("", candidate)

    def _is_current(self, message: VoteRequest) -> bool:
        """Whether the candidate's log holds all that may have been decided, judged by the last byte's term first.

        Bytes from before any term are one broker's own: who has some votes for nobody else who might have others.
        """
        if not message.last_term and self.log.end > self.log.start:
            return False
        return (message.last_term, message.end) >= (self._last_term(), self.log.end)

    def _last_term(self) -> int:
        return self.epochs.last_term

    def _answer_vote(self, message: VoteRequest, *, is_granted: bool) -> None:
        reply = VoteReply(self.term, self.node, self.me.incarnation, message.term, message.is_pre, is_granted)
        self._send(message.sender, reply)

    def _on_vote_reply(self, message: VoteReply) -> None:
        if message.term > self.term and not (message.is_pre and message.is_granted):
            self._adopt(message.term)
            return
        wanted = self.term if self._is_standing else self.term + 1
        if self.role is not Role.CANDIDATE or message.is_pre == self._is_standing or message.asked_term != wanted:
            return
        voter = Member(message.sender, message.incarnation)
        if not message.is_granted or not self.config.has_voter(voter):
            return
        self._votes[message.sender] = voter
        if not self._has_won() or (self._is_standing and self._must_hold()):
            return
        if self._is_standing:
            self._win()
        else:
            self._stand()

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if message.term == self.term and message.sender == self.leader and self._may_stand():
            self._stand(is_transfer=True)
