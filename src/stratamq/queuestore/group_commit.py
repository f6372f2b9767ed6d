"""The queue store on an event loop: one commit for everything of a loop turn, one sync at a time, then the confirms.

Housekeeping steps run between the syncs, and sync in the thread as well.

The sync runs in a thread; what is published meanwhile goes into the next one, so a single publisher waits for one sync
and many share one. Where nobody waits for a confirm (acknowledgements only) the sync comes ``sync_interval_ms`` later.

After every change of the store or its queues, call `GroupCommitter.schedule`; `publish` does so itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from stratamq.errors import StoreClosed, StoreError
from stratamq.queuestore.queue import Queue
from stratamq.queuestore.store import QueueStore
from stratamq.queuestore.types import CommitToken

Done = Callable[[StoreError | None], None]
"""Called once, on the loop: None when the message is durable (or need not be), else why it is not."""


class GroupCommitter:
    """Commits, syncs and confirms for one store. Used on one event loop."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "queuestore-sync")
        self._waiting: deque[tuple[int, Done]] = deque()
        self._is_scheduled = False
        self._syncing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Publishes that wait for their sync."""
        return len(self._waiting)

    def publish(
        self,
        content: bytes,
        *,
        persistent: bool,
        queues: Sequence[Queue],
        done: Done | None = None,
        priority: int = 0,
        expiry_ms: int = 0,
        size: int | None = None,
    ) -> list[int]:
        """`QueueStore.publish`, with ``done`` called when the message may be confirmed. Raises what that raises."""
        seqs = self.store.publish(
            content, persistent=persistent, queues=queues, priority=priority, expiry_ms=expiry_ms, size=size
        )
        if done is not None:
            if persistent and any(queue.durable for queue in queues):
                self._waiting.append((self.store.published, done))
            else:
                self._loop.call_soon(done, None)
        self.schedule()
        return seqs

    def schedule(self) -> None:
        """Something changed: commit at the end of this turn of the loop, or after the sync that runs."""
        if not self._is_scheduled and self._syncing is None and not self._closed:
            self._is_scheduled = True
            self._loop.call_soon(self._commit)
        elif self._syncing is not None:
            self._is_scheduled = True

    def _commit(self) -> None:
        self._is_scheduled = False
        if self._closed or self._syncing is not None:
            return
        try:
            step = self.store.begin_step()
            if step is not None:
                self._start(partial(self.store.sync_step, step), partial(self.store.finish_step, step))
                return
            token = self.store.commit()
        except StoreError as error:
            self._failed(error)
            return
        if token is not None and (token.is_urgent or self._waiting):
            self._start_sync(token)
        elif token is not None and self._timer is None:
            self._timer = self._loop.call_later(self.store.config.sync_interval_ms / 1000, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self._syncing is None and not self._closed:
            token = self.store.unsynced()
            if token is not None:
                self._start_sync(token)

    def _start_sync(self, token: CommitToken) -> None:
        self._start(partial(self.store.sync, token), partial(self.store.synced, token))

    def _start(self, sync: Callable[[], None], finish: Callable[[], int]) -> None:
        """Run one sync in the thread; ``finish`` is called on the loop and returns the newest durable publish."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._syncing = self._loop.run_in_executor(self._thread, sync)
        self._syncing.add_done_callback(partial(self._synced, finish))

    def _synced(self, finish: Callable[[], int], future: asyncio.Future[None]) -> None:
        self._syncing = None
        if future.cancelled():
            return
        try:
            future.result()
            durable = finish()
        except StoreError as error:
            self._failed(error)
            return
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            waiting.popleft()[1](None)
        if self._is_scheduled or self.store.step_due:
            self._is_scheduled = False
            self.schedule()

    def _failed(self, error: StoreError) -> None:
        """Nothing that waits was synced. With a full disk it may yet be: a later commit writes it again."""
        if error.retryable:
            if self._timer is None:
                self._timer = self._loop.call_later(self.store.config.sync_interval_ms / 1000, self._retry)
            return
        self._answer_all(error)

    def _retry(self) -> None:
        self._timer = None
        self.schedule()

    async def close(self) -> None:
        """Commit and sync what there is, answer everybody, stop the thread. The store stays open. Harmless again."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
            await asyncio.sleep(0)  # its callback has run then
        try:
            token = self.store.commit() or self.store.unsynced()
            if token is not None:
                await self._loop.run_in_executor(self._thread, self.store.sync, token)
                self.store.synced(token)
        except StoreError as error:
            self._answer_all(error)
            raise
        finally:
            self._thread.shutdown()
            self._answer_all(StoreClosed() if self._waiting and self.store.failure is not None else None)

    def _answer_all(self, error: StoreError | None) -> None:
        while self._waiting:
            self._waiting.popleft()[1](error)
