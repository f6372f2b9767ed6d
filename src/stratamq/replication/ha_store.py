"""A slave's log store: a master's bytes are added as they are; nothing else is written.

Unlike a group's member, a slave shows its consumers what it has stored: at once with ASYNC_FLUSH, after the sync with
SYNC_FLUSH.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratamq.logstore.group_commit import GroupCommitter
from stratamq.logstore.store import CommitToken
from stratamq.logstore.types import Arrival, Message, PutDone, PutResult, PutStatus
from stratamq.replication.log_store import Added, MemberStore

REFUSAL = "this broker is a slave; messages go to its master"


class SlaveStore(MemberStore):
    """See the module's text."""

    def __init__(self, *args: object, **rest: object) -> None:
        super().__init__(*args, **rest)  # type: ignore[arg-type]
        self._written: list[Arrival] = []

    def commit(self) -> CommitToken | None:
        """See `LogStore.commit`."""
        token = super().commit()
        if token is not None:
            self._written += token.arrivals
        return token

    def add(self, run: bytes) -> list[Arrival]:
        """Add a run of whole records behind the log's end. Returns who can read more now (ASYNC_FLUSH).

        Raises BadFrame, StoreFull, StoreFailed, StoreClosed as `write_records` does; and what refuses writes now.
        """
        refusal = self.failure
        if refusal is not None:
            raise type(refusal)(*refusal.args)
        self.write_records(memoryview(run))
        written, self._written = self._written, []
        return written

    def write_records(self, data: memoryview) -> list[Added]:
        """See `MemberStore.write_records`. A queue that goes on elsewhere does so in a write of its own.

        Its topic was deleted and made again by the master; no control record says so here, as one does in a group.
        """
        self.drop_batch()
        start = self._log.end
        found, split = self._check(data, start)
        begin = 0
        part: list[Added] = []
        ends: dict[tuple[str, int], int] = {}
        for added in found:
            scanned = added.scanned
            for key, offset, count in self.places_of(scanned):
                queue = self._queues.get(key)
                expected = ends.get(key, offset if queue is None else queue.next_offset)
                if offset != expected:
                    if part:
                        end = scanned.physical_offset - start
                        self._write_part(data, begin, end, split, part)
                        begin, part, ends = end, [], {}
                        queue = self._queues.get(key)
                    if queue is not None and queue.pending:
                        self._write_units([queue])
                ends[key] = offset + count
            part.append(added)
        self._write_part(data, begin, len(data), split, part)
        return found

    def read_bytes(self, offset: int, size: int) -> memoryview:
        """Log bytes from ``offset`` on: at most ``size``, within one file, at least one below the log's end."""
        base = self._log.base_of(offset)
        stop = min(offset + size, base + self._log.file_bytes, self._log.end)
        return self._log.file_view(base)[offset - base : stop - base]


class SlaveCommitter(GroupCommitter):
    """Flushing for a slave: as `GroupCommitter` does it, for what the master sends. Puts are refused.

    ``on_synced`` is called when more of the log is on the disk.
    """

    on_synced: Callable[[], None] = staticmethod(lambda: None)

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        """Refuse: a slave takes messages from its master only."""
        done(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), REFUSAL))

    def added(self, arrivals: Sequence[Arrival]) -> None:
        """Bytes of the master were added to the store: sync them, or show them."""
        self._arrived(arrivals)
        token = self.store.unsynced()
        if self._is_sync and not self._syncing and token is not None:
            self._start_sync(token)

    def _sync_ended(self, token: CommitToken, error: BaseException | None) -> None:
        super()._sync_ended(token, error)
        self.on_synced()
