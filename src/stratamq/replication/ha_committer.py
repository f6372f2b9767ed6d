"""Puts on a SYNC_MASTER: stored by the store's own committer first, then answered when enough slaves have them.

A put that asks not to wait (property WAIT=false) is answered as on any master. Otherwise, once it is stored here:

* enough copies: the store's own answer;
* not enough slaves connected and near the end: SLAVE_NOT_AVAILABLE, at once;
* no acknowledgement within ``slaveTimeout``: FLUSH_SLAVE_TIMEOUT.

The message is stored here in all three cases. With fewer copies in sync than ``minInSyncReplicas`` a put is refused
before anything is stored.

Source: apache/rocketmq store/.../ha/GroupTransferService.java; the first two cases as RocketMQ 4 has them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from stratamq.config import HaConfig
from stratamq.logstore.types import Message, PutDone, PutResult, PutStatus

Put = Callable[[Sequence[Message], PutDone], None]
_STORED = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)


class Copies(Protocol):
    """Who has how much of the log."""

    def copied_up_to(self, copies: int) -> int:
        """How far so many brokers have the log, this one among them."""
        ...

    def in_sync_copies(self) -> int:
        """How many brokers have the log and are near its end, this one among them."""
        ...


class _Waiting(NamedTuple):
    end: int
    deadline: float
    done: PutDone
    result: PutResult


class SyncMasterCommitter:
    """See the module's text. ``put`` is the store's own; call `acked` when a slave has more."""

    def __init__(self, put: Put, copies: Copies, config: HaConfig) -> None:
        self._put = put
        self._copies = copies
        self._needed = config.in_sync_replicas
        self._least = config.min_in_sync_replicas
        self._timeout = config.slave_timeout_ms / 1000
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Puts that wait for a slave."""
        return len(self._waiting)

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        """Store messages together; ``done`` is called once with the outcome."""
        if self._needed <= 1 or (messages and not messages[0].wait_for_sync):
            self._put(messages, done)
            return
        if self._least > 1 and self._copies.in_sync_copies() < self._least:
            there = self._copies.in_sync_copies()
            remark = f"{there} copies are in sync, minInSyncReplicas asks for {self._least}; nothing was stored"
            done(PutResult(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, (), remark))
            return
        self._put(messages, partial(self._stored, done))

    def _stored(self, done: PutDone, result: PutResult) -> None:
        """The store has dealt with a put."""
        if result.status not in _STORED or not result.appended:
            done(result)
            return
        last = result.appended[-1]
        end = last.physical_offset + last.size
        if self._copies.copied_up_to(self._needed) >= end:
            done(result)
            return
        there = self._copies.in_sync_copies()
        if there < self._needed:
            remark = f"{there} copies are in sync, inSyncReplicas asks for {self._needed}"
            done(PutResult(PutStatus.SLAVE_NOT_AVAILABLE, result.appended, remark))
            return
        self._waiting.append(_Waiting(end, self._loop.time() + self._timeout, done, result))
        self._set_timer()

    def acked(self) -> None:
        """Answer what enough slaves have now."""
        if not self._waiting:
            return
        end = self._copies.copied_up_to(self._needed)
        while self._waiting and self._waiting[0].end <= end:
            entry = self._waiting.popleft()
            self._answer(entry, entry.result)

    def _answer(self, entry: _Waiting, result: PutResult) -> None:
        try:
            entry.done(result)
        except Exception as error:
            self._loop.call_exception_handler({"message": "a put's callback failed", "exception": error})

    def _set_timer(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline <= now:
            entry = self._waiting.popleft()
            remark = f"no acknowledgement by {self._needed - 1} slaves within {self._timeout:g} s"
            self._answer(entry, PutResult(PutStatus.FLUSH_SLAVE_TIMEOUT, entry.result.appended, remark))
        self._set_timer()

    def close(self) -> None:
        """Answer all that wait: they are stored here, and no slave is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            entry = self._waiting.popleft()
            result = PutResult(PutStatus.FLUSH_SLAVE_TIMEOUT, entry.result.appended, "the broker stops")
            self._answer(entry, result)
