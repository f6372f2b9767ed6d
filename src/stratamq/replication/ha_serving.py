"""A master's side of replication without socket, clock or disk: where each slave is, and who has acknowledged what.

Times are monotonic milliseconds that the caller passes in; offsets are bytes of the commit log.

Source: apache/rocketmq store/.../ha/DefaultHAConnection.java, GroupTransferService.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from stratamq.errors import RemoteProtocolError

_SECOND_MS: Final = 1_000


class SlaveRefused(RemoteProtocolError):
    """A slave asks for, or acknowledges, what the master's log does not hold. ``offset`` is what it is told before the
    connection ends: the nearest offset that the log has."""

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset


@dataclass(slots=True, eq=False)
class SlaveLink:
    """One connection of a slave, as the master sees it.

    Args:
        from_first_file: An empty slave gets the whole log, not only the last file.
        bytes_per_second: Most bytes a second; 0 for no limit.
    """

    address: str
    now_ms: int
    file_bytes: int
    from_first_file: bool = False
    bytes_per_second: int = 0
    next_offset: int = -1
    """Where the next frame begins; -1 before the first report."""
    acked: int = 0
    heard_ms: int = field(init=False)
    sent_ms: int = field(init=False)
    _window_ms: int = field(init=False)
    _window_bytes: int = 0
    rate: int = 0
    """Bytes sent in the last whole second."""

    def __post_init__(self) -> None:
        self.heard_ms = self.sent_ms = self._window_ms = self.now_ms

    def reported(self, offset: int, *, log_start: int, log_end: int, now_ms: int) -> None:
        """The slave's log ends at ``offset``. Raises SlaveRefused."""
        if offset > log_end:
            raise SlaveRefused(f"slave {self.address} reports {offset}, and this log ends at {log_end}", log_end)
        self.heard_ms = now_ms
        if self.next_offset >= 0:
            self.acked = max(self.acked, offset)
            return
        if offset == 0:
            last_file = log_end - log_end % self.file_bytes
            self.next_offset = log_start if self.from_first_file else max(log_start, last_file)
            return
        if offset < log_start:
            raise SlaveRefused(f"slave {self.address} asks for {offset}, and this log begins at {log_start}", log_start)
        self.next_offset = self.acked = offset

    def sent(self, size: int, now_ms: int) -> None:
        """So many log bytes were sent; 0 for a heartbeat."""
        self.next_offset += size
        self.sent_ms = now_ms
        self._turn(now_ms)
        self._window_bytes += size

    def may_send(self, now_ms: int) -> int:
        """How many log bytes may be sent now, a large number without a limit."""
        if not self.bytes_per_second:
            return 2**31
        self._turn(now_ms)
        return max(0, self.bytes_per_second - self._window_bytes)

    def _turn(self, now_ms: int) -> None:
        passed = now_ms - self._window_ms
        if passed >= _SECOND_MS:
            self.rate = self._window_bytes if passed < 2 * _SECOND_MS else 0
            self._window_ms, self._window_bytes = now_ms, 0

    def is_heartbeat_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether nothing was sent for so long."""
        return self.next_offset >= 0 and now_ms - self.sent_ms >= interval_ms

    def is_silent(self, now_ms: int, limit_ms: int) -> bool:
        """Whether nothing was heard for so long."""
        return now_ms - self.heard_ms > limit_ms

    def is_in_sync(self, log_end: int, gap_max: int) -> bool:
        """Whether the slave is close enough to be waited for."""
        return self.next_offset >= 0 and log_end - self.acked < gap_max


def copied_up_to(links: Iterable[SlaveLink], copies: int) -> int:
    """How far the log is held by ``copies`` brokers, the master among them; 0 when there are not so many.

    Everything for a single copy: the master has what it has.
    """
    if copies <= 1:
        return 2**63 - 1
    acked = sorted((link.acked for link in links if link.next_offset >= 0), reverse=True)
    return acked[copies - 2] if len(acked) >= copies - 1 else 0


def in_sync_copies(links: Iterable[SlaveLink], log_end: int, gap_max: int) -> int:
    """How many brokers have the log, the master among them, and are less than ``gap_max`` bytes behind."""
    return 1 + sum(link.is_in_sync(log_end, gap_max) for link in links)
