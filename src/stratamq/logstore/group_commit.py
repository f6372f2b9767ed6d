"""Group commit: the asyncio shell round a `LogStore`.

Everything put during one turn of the event loop is one batch: one write, one dispatch. With ASYNC_FLUSH it is answered
right after the write, with SYNC_FLUSH after a sync that covers it. One sync is in flight at a time, in a thread of its
own; what is committed meanwhile waits for the next, so the slower the disk, the larger the groups.

A second thread syncs queues and index and writes the checkpoint, so that this never stands in a put's way.
Design and figures: docs/design/group-commit.md.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from stratamq.config import FlushMode
from stratamq.errors import FlowControlled, MessageRefused, StoreClosed, StoreError, StoreFailed
from stratamq.logstore.careful_append import LIGHT_QUEUES
from stratamq.logstore.store import CommitToken, LogStore
from stratamq.logstore.types import Appended, Arrival, Message, PutDone, PutResult, PutStatus

_logger = logging.getLogger(__name__)
_RELIEVED_AT: Final = 0.5
"""Congestion ends when so much of the allowed bytes is pending."""


class _Waiting(NamedTuple):
    """A put that is not answered yet."""

    done: PutDone
    appended: Sequence[Appended]
    wait_for_sync: bool


class _Unsynced(NamedTuple):
    """Puts that are committed and wait for the sync of everything below ``end``."""

    end: int
    deadline: float
    puts: list[_Waiting]


class GroupCommitter:
    """Takes puts from request handlers and answers them. Everything but its threads runs on one event loop.

    ``on_arrivals`` is told which queues can be read further; ``on_congested`` and ``on_relieved`` are called when more
    than ``pending_bytes_max`` bytes wait for a sync, and when half of that is reached again: stop and go on reading
    sockets. Callbacks must not raise; one that does is reported to the loop's exception handler.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        on_arrivals: Callable[[Sequence[Arrival]], None] | None = None,
        on_congested: Callable[[], None] | None = None,
        on_relieved: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self._on_arrivals = on_arrivals
        self._on_congested = on_congested
        self._on_relieved = on_relieved
        self._is_sync = store.config.flush_mode is FlushMode.SYNC
        self._pending_max = store.config.pending_bytes_max
        self._timeout = store.config.sync_flush_timeout_ms / 1000
        self._turn: list[_Waiting] = []
        self._unsynced: deque[_Unsynced] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sync_thread: _Thread | None = None
        self._checkpoint_thread: _Thread | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._syncing = False
        self._congested = False
        self._closing = False
        self._idle: asyncio.Event | None = None

    def start(self) -> None:
        """Begin background flushing. Call it on the running loop before the first put."""
        self._loop = loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sync_thread = _Thread("stratamq-sync", loop)
        self._checkpoint_thread = _Thread("stratamq-checkpoint", loop)
        config = self.store.config
        self._tasks = [loop.create_task(self._checkpoint_forever(config.flush_consume_queue_interval_ms / 1000))]
        if not self._is_sync:
            self._tasks.append(loop.create_task(self._flush_forever(config.flush_interval_ms / 1000)))

    @property
    def pending_bytes(self) -> int:
        """Bytes put that are not synced yet."""
        return self.store.pending_bytes

    @property
    def is_congested(self) -> bool:
        """Whether so much waits for the disk that no further puts should be read from sockets (SYNC_FLUSH)."""
        return self._congested

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        """Store messages as one batch; ``done`` is called once with the outcome, at once when they are refused.

        Bodies that are not ``bytes`` are copied, so the caller may reuse its buffer when this returns.
        """
        if self._closing or self._loop is None:
            done(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), str(StoreClosed())))
            return
        try:
            appended = self.store.append(messages)
        except (StoreError, FlowControlled) as error:
            done(PutResult(_status_of(error), (), str(error)))
            return
        if not self._turn:
            self._loop.call_soon(self._end_turn)
        self._turn.append(_Waiting(done, appended, not messages or messages[0].wait_for_sync))

    def append(self, message: Message) -> asyncio.Future[PutResult]:
        """Store one message; await what is returned for the outcome. For embedded use."""
        future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        self.put((message,), partial(_resolve, future))
        return future

    def _end_turn(self) -> None:
        """Commit what this turn of the loop brought."""
        puts, self._turn = self._turn, []
        try:
            token = self.store.commit()
        except StoreError as error:
            self._answer(puts, _status_of(error), str(error))
            return
        if token is None:
            self._answer(puts, PutStatus.PUT_OK)
            return
        if not self._is_sync:
            self._answer(puts, PutStatus.PUT_OK)
            self._arrived(token.arrivals)
            return
        waiting = [put for put in puts if put.wait_for_sync]
        if len(waiting) != len(puts):
            self._answer([put for put in puts if not put.wait_for_sync], PutStatus.PUT_OK)
        assert self._loop is not None
        if waiting:
            self._unsynced.append(_Unsynced(token.end, self._loop.time() + self._timeout, waiting))
            self._set_timer()
        if not self._syncing:
            self._start_sync(token)
        self._check_congestion()

    def _start_sync(self, token: CommitToken) -> None:
        assert self._sync_thread is not None
        assert self._idle is not None
        self._syncing = True
        self._idle.clear()
        self._sync_thread.submit(lambda: self.store.sync(token), lambda error: self._sync_ended(token, error))

    def _sync_ended(self, token: CommitToken, error: BaseException | None) -> None:
        assert self._idle is not None
        self._syncing = False
        if error is not None:
            self._idle.set()
            self._sync_failed(error)
            return
        arrivals = self.store.synced(token)
        following = self.store.unsynced()
        if following is not None and self._is_sync:
            self._start_sync(following)
        else:
            self._idle.set()
        while self._unsynced and self._unsynced[0].end <= token.end:
            self._answer(self._unsynced.popleft().puts, PutStatus.PUT_OK)
        self._arrived(arrivals)
        self._check_congestion()

    def _sync_failed(self, error: BaseException) -> None:
        """Nothing that waits for a sync can be called stored any more."""
        if not isinstance(error, StoreError):
            _logger.critical("sync thread: %r", error)
        while self._unsynced:
            self._answer(self._unsynced.popleft().puts, PutStatus.SERVICE_NOT_AVAILABLE, str(error))
        self._check_congestion()

    def _set_timer(self) -> None:
        if self._timer is None and self._unsynced:
            assert self._loop is not None
            self._timer = self._loop.call_at(self._unsynced[0].deadline, self._timed_out)

    def _timed_out(self) -> None:
        """Answer what has waited too long: it is stored, but not yet known to be on the disk."""
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        for entry in self._unsynced:
            if entry.deadline <= now and entry.puts:
                puts = entry.puts.copy()
                entry.puts.clear()
                self._answer(puts, PutStatus.FLUSH_DISK_TIMEOUT, f"not synced after {self._timeout:g} s")
        later = [entry.deadline for entry in self._unsynced if entry.puts]
        if later:
            self._timer = self._loop.call_at(later[0], self._timed_out)

    def _answer(self, puts: Sequence[_Waiting], status: PutStatus, remark: str = "") -> None:
        stored = status in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)
        for put in puts:
            try:
                put.done(PutResult(status, put.appended if stored else (), remark))
            except Exception as error:
                self._report("a put's callback failed", error)

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        if arrivals and self._on_arrivals is not None:
            try:
                self._on_arrivals(arrivals)
            except Exception as error:
                self._report("the arrivals callback failed", error)

    def _check_congestion(self) -> None:
        pending = self.store.pending_bytes
        if not self._congested and pending > self._pending_max and self.store.failure is None:
            self._congested = True
            callback = self._on_congested
        elif self._congested and (pending <= self._pending_max * _RELIEVED_AT or self.store.failure is not None):
            self._congested = False
            callback = self._on_relieved
        else:
            return
        if callback is not None:
            try:
                callback()
            except Exception as error:
                self._report("the congestion callback failed", error)

    def _report(self, text: str, error: Exception) -> None:
        assert self._loop is not None
        self._loop.call_exception_handler({"message": text, "exception": error})

    async def _flush_forever(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            token = self.store.unsynced()
            if token is not None and not self._syncing and not isinstance(self.store.failure, StoreFailed):
                self._start_sync(token)

    async def _checkpoint_forever(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            if isinstance(self.store.failure, StoreFailed):
                return
            try:
                await self.checkpoint()
            except StoreFailed:
                return  # logged by the store, which takes no more writes

    async def checkpoint(self) -> None:
        """Sync queues and index and write the checkpoint now. Raises StoreFailed."""
        assert self._loop is not None
        assert self._checkpoint_thread is not None
        token = self.store.begin_checkpoint()
        ended: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self._checkpoint_thread.submit(lambda: self.store.sync_checkpoint(token), done)
        await ended

    async def close(self) -> None:
        """Take no more puts, answer those that wait, stop the background work. The store stays open. Repeatable."""
        if self._loop is None or self._closing:
            return
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._turn:
            self._end_turn()
        assert self._idle is not None
        await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
        for thread in (self._sync_thread, self._checkpoint_thread):
            if thread is not None:
                await thread.stop()


def _status_of(error: StoreError | FlowControlled) -> PutStatus:
    """RocketMQ's status for why a put was not stored."""
    if isinstance(error, MessageRefused):
        if error.field == LIGHT_QUEUES:
            return PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        return PutStatus.PROPERTIES_SIZE_EXCEEDED if error.field == "properties" else PutStatus.MESSAGE_ILLEGAL
    return PutStatus.OS_PAGE_CACHE_BUSY if isinstance(error, FlowControlled) else PutStatus.SERVICE_NOT_AVAILABLE


def _resolve(future: asyncio.Future[PutResult], result: PutResult) -> None:
    """Give who awaits the outcome, unless nobody does any more."""
    if not future.done():
        future.set_result(result)


_Done = Callable[[BaseException | None], None]


class _Thread:
    """One thread that does blocking work in order and reports back on the loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], None], _Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], done: _Done) -> None:
        """Run ``work`` in the thread, then ``done`` with its error or None on the loop."""
        self._work.put((work, done))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as caught:
                error = caught
            self._loop.call_soon_threadsafe(done, error)

    async def stop(self) -> None:
        """End the thread after what was submitted."""
        ended: asyncio.Future[None] = self._loop.create_future()
        self.submit(lambda: None, lambda error: ended.set_result(None))
        await ended
        self._work.put(None)
        self._thread.join()
