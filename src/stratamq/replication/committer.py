"""Takes puts on the leader and answers them when they are decided: what `logstore.group_commit` is to one broker.

Everything put in one turn of the event loop is one batch. What waits when leadership is lost, or for longer than
``syncFlushTimeout``, is answered with UNKNOWN_ERROR and ``outcome=unknown``: it may be decided yet, or never.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratamq.errors import FlowControlled, MessageRefused, StoreError
from stratamq.formats.quorum_record import TOPIC
from stratamq.logstore.types import Appended, Message, PutDone, PutResult, PutStatus
from stratamq.replication.control import CONTROL_TOPIC
from stratamq.replication.core import RaftCore
from stratamq.replication.log_store import MemberStore

_logger = logging.getLogger(__name__)
_Put = tuple[PutDone, Sequence[Appended]]
UNKNOWN = "outcome=unknown"
GROUP_TOPICS: Final = frozenset({CONTROL_TOPIC, TOPIC})


class _Waiting(NamedTuple):
    end: int
    deadline: float
    puts: list[_Put]


class MemberCommitter:
    """One for each time that a member leads. ``changed`` is called when the log has grown."""

    def __init__(self, store: MemberStore, core: RaftCore, changed: Callable[[], None]) -> None:
        self._store = store
        self._core = core
        self._changed = changed
        self._term = core.term
        self._loop = asyncio.get_running_loop()
        self._timeout = store.config.sync_flush_timeout_ms / 1000
        self._turn: list[_Put] = []
        self._waiting: deque[_Waiting] = deque()
        self._is_closed = False

    @property
    def _leads(self) -> bool:
        return not self._is_closed and self._core.may_append and self._core.term == self._term

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        """Store messages together; ``done`` is called when they are decided, or at once when they are refused."""
        own = next((message.topic for message in messages if message.topic in GROUP_TOPICS), "")
        if own:
            done(PutResult(PutStatus.MESSAGE_ILLEGAL, (), f"topic {own} belongs to the group itself"))
            return
        self.put_own(messages, done)

    def put_own(self, messages: Sequence[Message], done: PutDone) -> None:
        """The same for records of the group itself, which no client may put."""
        if not self._leads:
            leader = self._core.leader
            hint = f"; the leader is {leader}" if leader and leader != self._core.node else ""
            done(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), f"this broker does not lead its group now{hint}"))
            return
        if self._store.pending_bytes > self._store.config.pending_bytes_max:
            done(PutResult(PutStatus.OS_PAGE_CACHE_BUSY, (), "too much waits for a majority of the group"))
            return
        try:
            appended = self._store.append(messages)
        except MessageRefused as error:
            status = PutStatus.PROPERTIES_SIZE_EXCEEDED if error.field == "properties" else PutStatus.MESSAGE_ILLEGAL
            done(PutResult(status, (), str(error)))
            return
        except (StoreError, FlowControlled) as error:
            busy = isinstance(error, FlowControlled)
            status = PutStatus.OS_PAGE_CACHE_BUSY if busy else PutStatus.SERVICE_NOT_AVAILABLE
            done(PutResult(status, (), str(error)))
            return
        if not self._turn:
            self._loop.call_soon(self._end_turn)
        self._turn.append((done, appended))

    def _end_turn(self) -> None:
        puts, self._turn = self._turn, []
        if not puts:
            return
        if not self._leads:
            self._store.drop_batch()
            self._answer(puts, PutStatus.SERVICE_NOT_AVAILABLE, "this broker does not lead its group any more")
            return
        before = self._store.max_physical_offset
        try:
            self._store.commit()
        except StoreError as error:
            self._answer(puts, PutStatus.SERVICE_NOT_AVAILABLE, str(error))
            return
        self._core.appended(before)
        self._waiting.append(_Waiting(self._store.max_physical_offset, self._loop.time() + self._timeout, puts))
        self._changed()

    def decided(self, end: int) -> None:
        """Answer what is decided."""
        while self._waiting and self._waiting[0].end <= end:
            self._answer(self._waiting.popleft().puts, PutStatus.PUT_OK)

    def expire(self) -> None:
        """Answer what has waited too long. It may be decided yet."""
        now = self._loop.time()
        for entry in self._waiting:
            if entry.deadline > now:
                return
            puts = entry.puts.copy()
            entry.puts.clear()
            self._answer(puts, PutStatus.UNKNOWN_ERROR, f"no majority after {self._timeout:g} s; {UNKNOWN}")

    def close(self) -> None:
        """Leadership is lost: nobody who waits can be told more than that."""
        self._is_closed = True
        puts, self._turn = self._turn, []
        self._store.drop_batch()
        self._answer(puts, PutStatus.SERVICE_NOT_AVAILABLE, "this broker does not lead its group any more")
        while self._waiting:
            self._answer(self._waiting.popleft().puts, PutStatus.UNKNOWN_ERROR, f"leadership was lost; {UNKNOWN}")

    def _answer(self, puts: Sequence[_Put], status: PutStatus, remark: str = "") -> None:
        for done, appended in puts:
            try:
                done(PutResult(status, appended if status is PutStatus.PUT_OK else (), remark))
            except Exception as error:
                self._loop.call_exception_handler({"message": "a put's callback failed", "exception": error})
