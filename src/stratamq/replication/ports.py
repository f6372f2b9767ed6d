"""What the core asks of its surroundings: the log it works on, and its settings. No code but checks of bounds."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stratamq.errors import ConfigError
from stratamq.replication.members import Config, Control
from stratamq.units import KiB, MiB


class HardState(NamedTuple):
    """What a member must never forget: its term, whom it voted for in that term ("" for nobody), who it is.

    ``commit`` is a hint from a moment before; what lies below was decided.
    """

    term: int = 0
    vote: str = ""
    incarnation: int = 0
    commit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimes:
    """Times in milliseconds and windows in bytes. Source: docs/design/raft.md, which says why these."""

    heartbeat_ms: int = 250
    election_min_ms: int = 1_500
    election_max_ms: int = 3_000
    retry_ms: int = 1_000
    """A follower that answered nothing for so long is asked anew from what it has acknowledged."""
    frame_bytes_max: int = 256 * KiB
    window_bytes: int = 8 * MiB
    """So many bytes may be under way to a follower that it has not acknowledged as received."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * 3 <= self.election_min_ms < self.election_max_ms:
            raise ConfigError(
                "raft_election_min_ms", self.election_min_ms, "at least three heartbeats, and below the maximum"
            )


class Log(Protocol):
    """The log's bytes. Writes reach the page cache; syncing is the shell's affair, which reports `RaftCore.synced`.

    `write`, `append_control` raise StoreFull when there is no room, and have then changed nothing.
    """

    @property
    def start(self) -> int:
        """The first byte that is still there."""
        ...

    @property
    def end(self) -> int:
        """Behind the last byte."""
        ...

    def read(self, start: int, limit: int, bytes_max: int) -> Sized:
        """Whole records from ``start`` on, at least one, at most ``bytes_max`` bytes if more; none behind ``limit``."""
        ...

    def write(self, body: Sized) -> Sequence[Control]:
        """Add records that came from the leader at the end. Returns the control records among them."""
        ...

    def truncate(self, offset: int) -> None:
        """Cut the log at ``offset``, durably, before anything else is written. Blocks."""
        ...

    def snapshot(self) -> Sized:
        """What stands for everything below ``start``: terms, members, tables, where queues go on."""
        ...

    def install(self, start: int, snapshot: Sized) -> None:
        """Forget everything and begin at ``start`` with a leader's snapshot, durably. Blocks.

        The core is of no more use afterwards: the member starts anew, from what is on the disk then.
        """
        ...

    def append_control(self, term: int, config: Config, *, starts_term: bool) -> Control:
        """Add a control record of the leader's own at the end."""
        ...
