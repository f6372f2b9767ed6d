"""Queue locks of orderly consumers: one holder for each group and queue, for 60 s unless renewed.

Source: apache/rocketmq broker/.../RebalanceLockManager.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

LEASE_MS: Final = 60_000


class _Lease(NamedTuple):
    client_id: str
    expires_ms: int


class QueueLocks:
    """Leases by (group, topic, queue id). Time is monotonic."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str, int], _Lease] = {}

    def lock(self, group: str, client_id: str, queues: Sequence[tuple[str, int]], now_ms: int) -> list[tuple[str, int]]:
        """Take or renew locks; return the queues that this client now holds."""
        held = []
        for topic, queue_id in queues:
            key = (group, topic, queue_id)
            lease = self._leases.get(key)
            if lease is None or lease.client_id == client_id or lease.expires_ms <= now_ms:
                self._leases[key] = _Lease(client_id, now_ms + LEASE_MS)
                held.append((topic, queue_id))
        return held

    def unlock(self, group: str, client_id: str, queues: Sequence[tuple[str, int]]) -> None:
        """Give locks back; those that others hold stay."""
        for topic, queue_id in queues:
            key = (group, topic, queue_id)
            lease = self._leases.get(key)
            if lease is not None and lease.client_id == client_id:
                del self._leases[key]

    def is_group_locked(self, group: str, topic: str, queues: int, now_ms: int) -> bool:
        """Whether somebody of the group holds a queue of the topic now."""
        leases = (self._leases.get((group, topic, queue_id)) for queue_id in range(queues))
        return any(lease is not None and lease.expires_ms > now_ms for lease in leases)

    def expire(self, now_ms: int) -> None:
        """Forget leases that ran out."""
        for key in [key for key, lease in self._leases.items() if lease.expires_ms <= now_ms]:
            del self._leases[key]

    def __len__(self) -> int:
        return len(self._leases)
