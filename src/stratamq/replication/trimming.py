"""Deleting the old part of a member's log, once the group has decided on it.

On the leader retention plans as on a single broker, and proposes what it would delete; every member deletes the same
when that record is decided. So queues have the same lowest offsets everywhere, whoever leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratamq.clock import Clock
from stratamq.config import RetentionConfig
from stratamq.logstore.retention_losses import Offsets
from stratamq.logstore.retention_service import RetentionService, Step
from stratamq.logstore.retention_values import Cause, Decision
from stratamq.replication.log_store import MemberStore


class Trimming(RetentionService):
    """Deletes what it is told, and decides nothing."""

    def __init__(self, store: MemberStore, clock: Clock) -> None:
        self.read_up_to: Callable[[], Offsets] | None = None
        """How far groups have come: the leader knows, and says who loses what. Others say nothing of it."""
        super().__init__(
            store, RetentionConfig(), clock=clock, offsets=self._groups, is_tiered=lambda topic: self.read_up_to is None
        )

    def _groups(self) -> Offsets:
        return {} if self.read_up_to is None else self.read_up_to()

    def delete_below(self, offset: int) -> Iterator[Step]:
        """Delete log files that end at or below ``offset``, then what follows from that, step by step as a round.

        A file that cannot be deleted ends it; the caller tries again later.
        """
        log = self._log
        while len(log.bases) > 1 and log.bases[0] + log.file_bytes <= offset:
            base = log.bases[0]
            reason = f"the group deletes its log below {offset}"
            decision = Decision(log.path_of(base), base, True, Cause.EXPIRED, reason, frees_bytes=log.file_bytes)
            if not (yield from self._delete(decision)):
                break
        yield from self._clean_queues(log.min_offset)
        yield from self._clean_index(log.min_offset)
        yield from self._correct()
