"""Following: taking over the leader's bytes, giving up what was never decided, saying how far the disk is.

Two logs in which the bytes before a position have the same term are equal up to there: a term has one leader, which
writes one stream of bytes. So one look at the term table decides what is new, what is there already, and where the
logs part. Only from there on, and never below what is decided, is anything cut off.

Source: Raft, 5.3; the rules for positions in place of indices are argued in docs/design/raft.md.
"""

from __future__ import annotations

from stratamq.errors import StoreFull
from stratamq.replication.elections import Elections
from stratamq.replication.messages import Append, AppendReply, Install
from stratamq.replication.state import Role, SafetyViolation


class Following(Elections):
    """See the module's text."""

    def _on_append(self, message: Append) -> None:
        if self._is_old(message):
            self._reply(message, is_accepted=False)
            return
        self._hear(message.sender, message.term)
        if self.is_failed:
            return
        if not self._fits(message):
            self._refuse(message)
            return
        verified = message.prev
        if len(message.body):
            verified = self._take_body(message)
        self._verified = max(self._verified, verified)
        self._follow_commit(message)
        self._reply(message, is_accepted=True)

    def _hear(self, leader: str, term: int) -> None:
        """A leader has spoken."""
        if term > self.term:
            self._adopt(term)
        if self.role is Role.LEADER:
            raise SafetyViolation(f"{leader} and {self.node} both lead term {self.term}")
        if self.leader != leader or self.role is not Role.FOLLOWER:
            self._step_down(leader)
        self._heard_ms = self.now_ms
        self._draw_election_deadline()

    def _on_install(self, message: Install) -> None:
        """Begin anew where the leader's log begins, if something below that is missing here.

        What is given up was never decided, or stands in the snapshot. This core ends with it.
        """
        if message.term < self.term:
            return
        self._hear(message.sender, message.term)
        if not self.is_failed and self._lacks(message):
            self.log.install(message.start, message.snapshot)
            self.failed()

    def _lacks(self, message: Install) -> bool:
        """Whether the own log does not hold all that is decided below the leader's beginning."""
        start = message.start
        if start <= self.commit:
            return False
        return self.log.end < start or self.epochs.term_before(start) != message.start_term

    def due_trim(self) -> int:
        """Up to where the log may be deleted now; 0 when nothing may go.

        Said by a record that is decided: so everything below is, too. And it is on this disk: so a crash leaves no
        log that ends before it begins.
        """
        due = 0
        while self._trims and self._trims[0][0] <= self._trimmed_up_to():
            due = max(due, self._trims.pop(0)[1])
        return due if due > self.log.start else 0

    def _trimmed_up_to(self) -> int:
        """How far the records reach whose trims may be done."""
        return min(self.commit, self.durable)

    def _is_old(self, message: Append) -> bool:
        """Whether somebody who leads no more sent this."""
        return message.term < self.term

    def _fits(self, message: Append) -> bool:
        """Whether the log up to where the message begins is the leader's."""
        if not self.log.start <= message.prev <= self.log.end:
            return False
        return self.epochs.term_before(message.prev) == message.prev_term

    def _take_body(self, message: Append) -> int:
        """Write what is new of a body that fits. Returns up to where the log is the leader's."""
        start, end = message.prev, message.prev + len(message.body)
        known = self._known_up_to(message)
        if known >= end:
            return end
        if known < self.log.end:
            self._cut(known)
        body = message.body if known == start else message.body[known - start :]  # type: ignore[index]
        before = self.log.end
        try:
            controls = self.log.write(body)
        except StoreFull:
            return known
        if self.durable == before:
            self._synced_ms = self.now_ms
        for control in controls:
            self._note_control(control)
        if self.epochs.term_before(end) != message.body_term:
            raise SafetyViolation(f"bytes up to {end} came as term {message.body_term}, and do not say so themselves")
        return end

    def _known_up_to(self, message: Append) -> int:
        """Up to where the own log holds the same bytes as the body: the end of that term in it."""
        start = message.prev
        if start < self.log.end and self.epochs.term_of(start) == message.body_term:
            return self.epochs.end_of(message.body_term, self.log.end)
        return start

    def _cut(self, offset: int) -> None:
        """Give up everything from ``offset`` on."""
        if offset < self.commit:
            raise SafetyViolation(f"asked to cut the log at {offset}, below {self.commit}, which is decided")
        self.log.truncate(offset)
        self.generation += 1
        self.durable = min(self.durable, offset)
        self.epochs.truncate(offset)
        self.configs.truncate(offset)
        self._trims = [entry for entry in self._trims if entry[0] <= offset]

    def _follow_commit(self, message: Append) -> None:
        """What is decided, as far as the own log is known to be the leader's."""
        self.commit = max(self.commit, min(message.commit, self._verified))

    def _refuse(self, message: Append) -> None:
        """Say where the logs may part. Below the log's start only what is decided can be named: every leader has it."""
        hint_term = self.epochs.largest_up_to(message.prev_term)
        hint_end = self.epochs.end_of(hint_term, self.log.end)
        if message.prev < self.log.start or hint_end < self.log.start:
            hint_term, hint_end = self.epochs.term_before(self.commit), self.commit
        self._reply(message, is_accepted=False, hint_term=hint_term, hint_end=hint_end)

    def _reply(self, message: Append, *, is_accepted: bool, hint_term: int = 0, hint_end: int = 0) -> None:
        reply = AppendReply(
            self.term,
            self.node,
            self.me.incarnation,
            is_accepted,
            message.prev,
            self._acknowledged() if is_accepted else 0,
            self._verified if is_accepted else 0,
            message.round if is_accepted else 0,
            hint_term,
            hint_end,
        )
        self._send(message.sender, reply)

    def _acknowledged(self) -> int:
        """Up to where the log is the leader's and on the disk."""
        return min(self.durable, self._verified)

    def synced(self, end: int, generation: int) -> None:
        """A sync has ended: the log is on the disk up to ``end``, unless it was cut since the sync began."""
        if generation != self.generation or self.is_failed:
            return
        self._synced_ms = self.now_ms
        end = min(end, self.log.end)
        if end <= self.durable:
            return
        self.durable = end
        self._durable_moved()
        if self.role is Role.FOLLOWER and self.leader and self._verified:
            reply = AppendReply(
                self.term,
                self.node,
                self.me.incarnation,
                True,
                self._verified,
                self._acknowledged(),
                self._verified,
                0,
            )
            self._send(self.leader, reply)
