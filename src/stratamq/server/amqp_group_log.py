"""The records of quorum queues in a member's log, as `QuorumStorage` wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stratamq.clock import Clock
from stratamq.errors import OffsetOutOfRange, ServiceUnavailable
from stratamq.formats.message import decode_record
from stratamq.formats.quorum_record import TOPIC, decode_first
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import GetStatus, Message, PutResult, PutStatus
from stratamq.replication.committer import MemberCommitter

QUEUE: Final = 0


class GroupLog:
    """Fills `quorum_storage.RecordLog`, on the leader. Raises ServiceUnavailable while something is undecided."""

    def __init__(self, store: LogStore, committer: MemberCommitter, host: bytes, clock: Clock) -> None:
        _, queues, _ = store.retained()
        queue = queues.get((TOPIC, QUEUE))
        if queue is not None and queue.visible_offset < queue.written_offset:
            raise ServiceUnavailable("records of quorum queues wait for a majority; trying again in a moment")
        self._store = store
        self._committer = committer
        self._host = host
        self._clock = clock
        self.start = store.min_offset(TOPIC, QUEUE)
        self.end = store.max_offset(TOPIC, QUEUE)

    @property
    def body_bytes_max(self) -> int:
        """See `RecordLog`."""
        return self._store.config.message_body_bytes_max

    def propose(self, bodies: Sequence[bytes], done: Callable[[str], None]) -> None:
        """See `RecordLog`."""
        expected, self.end = self.end, self.end + len(bodies)

        def answered(result: PutResult) -> None:
            if result.status is not PutStatus.PUT_OK:
                done(result.remark or result.status.value)
            elif result.appended[0].queue_offset != expected:
                done(f"topic {TOPIC} has records of somebody else")
            else:
                done("")

        self._committer.put_own([self._message(body) for body in bodies], answered)

    def _message(self, body: bytes) -> Message:
        return Message(
            topic=TOPIC,
            queue_id=QUEUE,
            body=body,
            properties="",
            born_timestamp=self._clock.wall_ms(),
            born_host=self._host,
        )

    def read(self, offset: int) -> bytes:
        """See `RecordLog`."""
        return read_body(self._store, offset)


def read_body(store: LogStore, offset: int) -> bytes:
    """Body of one decided record. Raises StoreError."""
    found = store.get(TOPIC, QUEUE, offset, 1)
    if found.status is not GetStatus.FOUND:
        raise OffsetOutOfRange(offset, found.min_offset, found.max_offset, where=TOPIC)
    return bytes(decode_record(found.records[0]).body)


def needed_from(store: LogStore) -> int | None:
    """The position in the log below which quorum queues need nothing; None where there are none. Raises StoreError."""
    end = store.max_offset(TOPIC, QUEUE)
    if end <= store.min_offset(TOPIC, QUEUE):
        return None
    first = decode_first(read_body(store, end - 1), TOPIC)
    units = store.units(TOPIC, QUEUE, first, 1)
    return units[0].physical_offset if units else 0


def record_at_or_above(store: LogStore, position: int) -> int:
    """Offset of the first record that begins at ``position`` in the log or behind it. Cost: some small reads."""
    _, queues, _ = store.retained()
    queue = queues.get((TOPIC, QUEUE))
    if queue is None:
        return 0
    return queue.first_offset_where(
        lambda unit: unit.physical_offset >= position, queue.min_offset, queue.visible_offset
    )
