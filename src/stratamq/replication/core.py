"""One member of a replication group, without socket, clock, thread or disk: Raft over the bytes of a commit log.

The shell feeds it: `tick` with the time, `receive` with messages, `synced` and `hard_state_saved` when the disk has
done something, `appended` when the leader's broker has written records, and `pump` at the end of each turn. After any
of these it takes `take()` and does what that says: saves the hard state, then reports it; sends the messages. The log
is written through the `Log` it was given, in the order of the calls; syncing is the shell's business.

    core.receive(message)
    output = core.take()             # messages in it may leave at once
    disk.save(output.hard_state)     # may take its time
    core.hard_state_saved(output.hard_state_number)

What must be durable before what is sent is decided here, not in the shell: votes and raised terms wait inside for
their hard state, acknowledgements name only what `synced` has confirmed. ``commit`` is up to where the log is decided.
All randomness comes from the given source, all time from `tick`: the same calls give the same answers.

The parts: `state` (terms, outgoing messages), `elections`, `following`, `leading`; each a layer over the one before.

Source: Raft (Ongaro, Ousterhout 2014) and Ongaro's dissertation, with byte offsets in place of indices:
docs/design/raft.md.
"""

from __future__ import annotations

from stratamq.replication.leading import Leading
from stratamq.replication.messages import Append, AppendReply, Install, RaftMessage, TimeoutNow, VoteReply, VoteRequest
from stratamq.replication.state import Role


class RaftCore(Leading):
    """See the module's text."""

    def tick(self, now_ms: int) -> None:
        """Time has passed. Call it more often than heartbeats; after a gap as long as an election others may lead."""
        gap = now_ms - self._ticked_ms
        self.now_ms = self._ticked_ms = now_ms
        if self.is_failed:
            return
        if gap >= self.times.election_min_ms:
            if self.role is not Role.FOLLOWER:
                self._step_down()
            else:
                self._draw_election_deadline()
            return
        if self.is_leader:
            self._lead()
        elif now_ms >= self._election_deadline_ms:
            if self._may_stand():
                self._ask_around()
            else:
                self._draw_election_deadline()

    def receive(self, message: RaftMessage) -> None:
        """A message from another member has come."""
        if isinstance(message, Append):
            self._on_append(message)
        elif isinstance(message, AppendReply):
            self._on_append_reply(message)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteReply):
            self._on_vote_reply(message)
        elif isinstance(message, TimeoutNow):
            self._on_timeout_now(message)
        elif isinstance(message, Install):
            self._on_install(message)
