"""How far one follower is, as its leader sees it."""

from __future__ import annotations

from stratamq.replication.members import Member


class Progress:
    """``match``: the follower's log equals the leader's up to here, durably. ``next``: what is sent next.

    While probing, one message at a time asks where the logs part; while streaming, frames follow each other without
    waiting, up to the window.
    """

    __slots__ = (
        "alive_ms",
        "heard_ms",
        "is_probing",
        "is_waiting",
        "match",
        "member",
        "next",
        "probe_bytes",
        "received",
        "round",
    )

    def __init__(self, member: Member, next_offset: int, now_ms: int) -> None:
        self.member = member
        self.match = 0
        self.next = next_offset
        self.received = 0
        self.is_probing = True
        self.is_waiting = False
        """While probing: a probe is under way."""
        self.probe_bytes = 0
        """How much the probe under way carried."""
        self.heard_ms = now_ms
        self.alive_ms = now_ms
        self.round = 0

    def probe_from(self, offset: int) -> None:
        """Ask again where the logs part."""
        self.is_probing = True
        self.is_waiting = False
        self.next = max(self.match, offset)
