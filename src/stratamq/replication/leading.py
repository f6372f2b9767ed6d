"""Leading: sending the log to every follower, deciding what a majority holds, reads, changes of members, handing over.

Decided is what lies on the disks of a majority of voters, once that includes the record that started the leader's own
term: bytes of earlier terms are never decided by counting them alone. The leader's own disk counts like any other,
and the leader sends bytes before its own sync has ended.

Source: Raft, 5.3, 5.4.2 (figure 8), 8; Ongaro's dissertation, 3.10, 4.1, 6.4, 10.2.1.
"""

from __future__ import annotations

from typing import Final

from stratamq.errors import StoreFull
from stratamq.replication.following import Following
from stratamq.replication.members import ANY, Config, Control, Member, voters_changed
from stratamq.replication.messages import Append, AppendReply, Install, TimeoutNow
from stratamq.replication.progress import Progress
from stratamq.replication.state import SafetyViolation

CAUGHT_UP_BYTES: Final = 1024 * 1024
"""A learner that lacks no more than this may vote."""


class Leading(Following):
    """See the module's text."""

    def _became_leader(self) -> None:
        self._round = 0
        self._progress = {}
        self._add_progress()
        self._heartbeat_due_ms = self.now_ms
        self._durable_moved()
        self.pump()

    def _add_progress(self) -> None:
        for member in self.config.voters + self.config.learners:
            if member.node != self.node and member.node not in self._progress:
                self._progress[member.node] = Progress(member, self._term_start, self.now_ms)

    # --- sending ---

    def appended(self, before: int, control: Control | None = None) -> None:
        """The shell has put records of this leader's term into the log, which ended at ``before``.

        ``control``: the last one deletes old parts of the log.
        """
        if not self.is_leader:
            raise SafetyViolation(f"{self.node} wrote at {before} and does not lead")
        if self.durable >= before:
            self._synced_ms = self.now_ms
        if control is not None:
            self._note_control(control)

    def pump(self) -> None:
        """End of a turn: send every follower what it has not been sent, and heartbeats when they are due."""
        if not self.is_leader:
            return
        if self.now_ms >= self._heartbeat_due_ms:
            self._round += 1
            self._heartbeat_due_ms = self.now_ms + self.times.heartbeat_ms
            for progress in self._progress.values():
                self._heartbeat(progress)
        for progress in self._progress.values():
            self._stream(progress)

    def _heartbeat(self, progress: Progress) -> None:
        """An empty message at the follower's position, or, after long silence, one from what it acknowledged."""
        if self.now_ms - progress.heard_ms > self.times.retry_ms:
            progress.heard_ms = self.now_ms  # for the next retry; whether it is alive is told by `alive_ms`
            progress.probe_from(progress.match or progress.next)
        if progress.is_probing:
            progress.is_waiting = False
        elif progress.next >= self.log.start:
            self._send_append(progress, progress.next, bytes_max=0)

    def _stream(self, progress: Progress) -> None:
        times = self.times
        if progress.next < self.log.start:
            if not (progress.is_probing and progress.is_waiting):
                self._send_install(progress)
            return
        if progress.is_probing:
            if not progress.is_waiting:
                progress.is_waiting = True
                progress.probe_bytes = self._send_append(progress, progress.next, bytes_max=times.frame_bytes_max)
            return
        while progress.next < self.log.end and progress.next - progress.received < times.window_bytes:
            progress.next += self._send_append(progress, progress.next, bytes_max=times.frame_bytes_max)

    def _send_append(self, progress: Progress, prev: int, *, bytes_max: int) -> int:
        """Send up to so many bytes from ``prev`` on. Returns how many."""
        term = self.epochs.term_of(prev) if prev < self.log.end else self.term
        body: object = b""
        if bytes_max and prev < self.log.end:
            body = self.log.read(prev, self.epochs.end_of(term, self.log.end), bytes_max)
        message = Append(
            self.term,
            self.node,
            self.me.incarnation,
            prev,
            self.epochs.term_before(prev),
            term,
            body,  # type: ignore[arg-type]
            self.commit,
            self._round,
        )
        self._send(progress.member.node, message)
        return len(body)  # type: ignore[arg-type]

    def _send_install(self, progress: Progress) -> None:
        """The follower needs bytes that retention took: it shall begin behind them. A probe tells whether it did.

        Not more often than heartbeats: a snapshot may be long.
        """
        start = self.log.start
        snapshot = self.log.snapshot()
        message = Install(self.term, self.node, self.me.incarnation, start, self.epochs.term_before(start), snapshot)
        self._send(progress.member.node, message)
        progress.probe_from(start)
        progress.is_waiting = True
        progress.probe_bytes = 0

    # --- answers ---

    def _on_append_reply(self, message: AppendReply) -> None:
        if message.term > self.term:
            self._adopt(message.term)
            return
        progress = self._progress.get(message.sender)
        if not self.is_leader or message.term != self.term or progress is None:
            return
        member = Member(message.sender, message.incarnation)
        if progress.member != member:
            progress = Progress(member, min(progress.next, self.log.end), self.now_ms)
            self._progress[message.sender] = progress
        progress.heard_ms = self.now_ms
        progress.alive_ms = self.now_ms
        if message.is_accepted:
            self._accepted(progress, message)
        else:
            self._refused(progress, message)

    def _accepted(self, progress: Progress, message: AppendReply) -> None:
        progress.round = max(progress.round, message.round)
        progress.received = max(progress.received, message.received, message.durable)
        if progress.is_probing and message.prev == progress.next:
            # One that took nothing of what the probe carried has no room: it is asked again with the next heartbeat.
            progress.is_probing = progress.probe_bytes > 0 and message.received <= message.prev
            if not progress.is_probing:
                progress.next = max(progress.match, message.received)
        if message.durable > progress.match:
            progress.match = message.durable
            self._advance()
        if not self.is_leader:
            return
        self._check_reads()
        self._stream(progress)
        if self._transferee == message.sender and progress.match == self.log.end:
            self._send(message.sender, TimeoutNow(self.term, self.node, self.me.incarnation))

    def _refused(self, progress: Progress, message: AppendReply) -> None:
        """Ask again further back; late answers to what has been settled meanwhile are not looked at."""
        if message.prev < progress.match or (progress.is_probing and message.prev != progress.next):
            return
        parting = max(progress.match, min(message.prev, self._parting(message)))
        is_below = parting < self.log.start
        if progress.is_probing and parting == progress.next:
            return  # nothing new: the next heartbeat asks again, so that copies of an answer do not multiply
        progress.probe_from(parting)
        progress.is_waiting = is_below  # so the next heartbeat sends an `Install`
        self._stream(progress)

    def _parting(self, message: AppendReply) -> int:
        """The furthest place where the logs may part, always a boundary between records of the own log."""
        term, end = message.hint_term, message.hint_end
        own = self.epochs.largest_up_to(term)
        own_end = self.epochs.end_of(own, self.log.end)
        if own == term:
            return min(end, own_end)
        return own_end if own_end <= end else self.epochs.boundary_up_to(end)

    # --- deciding ---

    def _durable_moved(self) -> None:
        if self.is_leader:
            self._advance()

    def _own_durable(self) -> int:
        return self.durable

    def _advance(self) -> None:
        """Decide what a majority holds on its disks."""
        config = self.config
        ends = []
        for voter in config.voters:
            if voter == self.me:
                ends.append(self._own_durable())
            else:
                progress = self._progress.get(voter.node)
                ends.append(progress.match if progress is not None and config.has_voter(progress.member) else 0)
        ends.sort(reverse=True)
        decided = ends[self._majority() - 1]
        if decided > self.commit and self._may_decide(decided):
            self.commit = decided
            self._heartbeat_due_ms = min(self._heartbeat_due_ms, self.now_ms + self.times.heartbeat_ms // 4)
            if self.configs.last_end <= self.commit and not self.is_voter:
                self._step_down()

    def _majority(self) -> int:
        return self.config.majority

    def _may_decide(self, decided: int) -> bool:
        """Only together with a record of the own term."""
        return decided >= self._term_start_end

    @property
    def serves(self) -> bool:
        """Whether this member leads and has decided something in its term: all that was decided before is known."""
        return self.is_leader and self.commit >= self._term_start_end

    @property
    def may_append(self) -> bool:
        """Whether the shell may put records into the log now."""
        return self.serves and not self._transferee and not self.is_failed

    # --- reads ---

    def read_index(self, context: object) -> None:
        """Ask up to where a read must look that sees everything decided by now; the answer comes with `take`.

        It takes one round of heartbeats, which shows that nobody else leads.
        """
        if not self.serves:
            self._reads_ready.append((context, -1))
            return
        self._reads.append((self._round + 1, context, self.commit))
        self._heartbeat_due_ms = self.now_ms
        self._check_reads()

    def _check_reads(self) -> None:
        if not self._reads:
            return
        config = self.config
        rounds = [0] * len(config.voters)
        for at, voter in enumerate(config.voters):
            progress = self._progress.get(voter.node)
            if voter == self.me:
                rounds[at] = self._round + 1
            elif progress is not None and config.has_voter(progress.member):
                rounds[at] = progress.round
        rounds.sort(reverse=True)
        confirmed = rounds[self._majority() - 1]
        while self._reads and self._reads[0][0] <= confirmed:
            _, context, offset = self._reads.pop(0)
            self._reads_ready.append((context, offset))

    # --- leading on, or not ---

    def _lead(self) -> None:
        """What a leader looks at with every tick."""
        if not self._hears_majority_of(self.config) or self._is_stalled():
            self._step_down()
            return
        if self._transferee and self.now_ms >= self._transfer_deadline_ms:
            self._transferee = ""
        self._tend_members()
        self.pump()

    def _hears_majority_of(self, config: Config) -> bool:
        """Whether a majority of these voters has answered within the shortest election."""
        heard = 0
        for voter in config.voters:
            progress = self._progress.get(voter.node)
            if voter == self.me or (
                progress is not None
                and progress.member in (voter, Member(voter.node, ANY))
                and self.now_ms - progress.alive_ms < self.times.election_min_ms
            ):
                heard += 1
        return heard >= config.majority

    def transfer(self, node: str) -> bool:
        """Hand leadership to a voter: nothing is accepted until it leads, or an election's time has passed."""
        if not self.serves or node == self.node or not any(voter.node == node for voter in self.config.voters):
            return False
        self._transferee = node
        self._transfer_deadline_ms = self.now_ms + self.times.election_max_ms
        progress = self._progress[node]
        if progress.match == self.log.end:
            self._send(node, TimeoutNow(self.term, self.node, self.me.incarnation))
        return True

    # --- members ---

    def _change_is_settled(self) -> bool:
        """Whether members may be changed: the own term has begun, and no other change is under way."""
        return self.serves and self.configs.last_end <= self.commit

    def change_members(self, config: Config) -> bool:
        """Put new members into the log; at most one voter may come or go. False when that is not possible now."""
        if not self._change_is_settled() or voters_changed(self.config, config) > 1 or not config.voters:
            return False
        if not config.is_settled or not self._hears_majority_of(config):
            return False
        before, gone = self.log.end, set(self.config.nodes) - set(config.nodes)
        try:
            control = self.log.append_control(self.term, config, starts_term=False)
        except StoreFull:
            return False
        self.appended(before)
        self._note_control(control)
        for node in gone:
            self._progress.pop(node, None)
        self._add_progress()
        self._durable_moved()
        return True

    def add(self, node: str) -> None:
        """Begin to send the log to a node that is no member; once it has answered it becomes a learner."""
        if node != self.node and node not in self._progress:
            self._progress[node] = Progress(Member(node, ANY), self._term_start, self.now_ms)

    def _tend_members(self) -> None:
        """Take in nodes that came back without their disk or were added, and let learners vote that have caught up."""
        if not self._change_is_settled():
            return
        config = self.config
        for progress in list(self._progress.values()):
            member = progress.member
            if member.incarnation == ANY or config.has_voter(member):
                continue
            if member not in config.learners:
                self.change_members(config.with_learner(member))
                return
            lacks = self.log.end - progress.match
            if progress.match >= self._term_start_end and lacks <= CAUGHT_UP_BYTES:
                self.change_members(config.with_voter(member))
                return
