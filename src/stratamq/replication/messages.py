"""What members of a group say to each other, as values. Their bytes are in `wire`.

Every message carries its sender's term, name and incarnation. A receiver looks at the term first: a lower one is
answered with the own term and otherwise ignored, a higher one is made durable and then followed.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple


class VoteRequest(NamedTuple):
    """Asks for a vote, or, as a pre-vote, whether there would be one. ``term`` is the term that is stood for.

    The candidate's log ends at ``end``, with a byte of term ``last_term``. ``is_transfer``: the old leader asked for
    this election, so that a voter does not wait for its silence.
    """

    term: int
    sender: str
    incarnation: int
    last_term: int
    end: int
    is_pre: bool
    is_transfer: bool = False


class VoteReply(NamedTuple):
    """The answer. ``term`` is the voter's own, ``asked_term`` the one that was stood for."""

    term: int
    sender: str
    incarnation: int
    asked_term: int
    is_pre: bool
    is_granted: bool


class Append(NamedTuple):
    """Log bytes from ``prev`` on, whose predecessor has term ``prev_term``; without a body a heartbeat.

    The body consists of whole records of one term. ``commit``: everything below is decided. ``round`` numbers the
    leader's rounds of heartbeats and comes back in the reply.
    """

    term: int
    sender: str
    incarnation: int
    prev: int
    prev_term: int
    body_term: int
    body: Sized
    commit: int
    round: int


class AppendReply(NamedTuple):
    """What became of an `Append`, or, unasked, how far the log is on the disk.

    Accepted: ``durable`` and ``received`` say up to where the log equals the leader's, on the disk and at all.
    Refused: the log holds nothing at ``prev`` or something else; ``hint_term`` is the largest term in it up to the
    one that was asked for, ``hint_end`` where that term ends.
    """

    term: int
    sender: str
    incarnation: int
    is_accepted: bool
    prev: int
    durable: int
    received: int
    round: int
    hint_term: int = 0
    hint_end: int = 0


class TimeoutNow(NamedTuple):
    """The leader asks its receiver to stand for election at once."""

    term: int
    sender: str
    incarnation: int


class Install(NamedTuple):
    """The leader no longer has what its receiver lacks: begin anew at ``start``, with what stands for the rest.

    ``start_term`` is the term of the byte before ``start``; all below ``start`` is decided. ``snapshot``: see `Log`.
    """

    term: int
    sender: str
    incarnation: int
    start: int
    start_term: int
    snapshot: Sized


RaftMessage = VoteRequest | VoteReply | Append | AppendReply | TimeoutNow | Install
