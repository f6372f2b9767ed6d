"""Transactions: which half messages are finished, and asking producers about those that are not.

The reading positions are the committed offsets of group ``CID_RMQ_SYS_TRANS`` in the half topic and in the topic of the
marks, so a store may change hands between RocketMQ and StrataMQ. Everything before the half position is finished or has
been appended anew; marks before the mark position are about nothing behind the half position.

A finish counts at once in memory; its mark is written with others, after at most `transaction_op_interval_ms`. A crash
in between, or before the positions are saved, makes the check ask again: a committed message may be delivered again
then, once for each place where it lies open. What lies in memory are the finished halves behind the position, which is
as old as the oldest open half: the time-out and one interval.

Source: apache/rocketmq broker/.../transaction/queue/TransactionalMessageServiceImpl.java.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from stratamq.broker.half_messages import (
    Step,
    check_times,
    half_again,
    mark_message,
    marked_offsets,
    next_step,
    real_place,
)
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.broker.topics import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from stratamq.config import BrokerConfig
from stratamq.errors import ServiceUnavailable
from stratamq.formats.message import Record, decode_record
from stratamq.logstore.types import GetStatus, Message, PutResult, PutStatus

_log = logging.getLogger(__name__)

_V = TypeVar("_V")

GROUP: Final = "CID_RMQ_SYS_TRANS"
BATCH: Final = 32
"""Half messages looked at, and marks read, in one go."""
REMEMBERED_MAX: Final = 100_000
"""Finished halves before the position that are remembered, so that a second answer has no second effect."""
_STORED: Final = frozenset(
    {PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE}
)
_AT_END: Final = frozenset(
    {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE}
)


class Transactions:
    """The half messages of a broker. ``ask`` sends a check-back: it gets the half message as it is stored now."""

    def __init__(
        self,
        store: StoreSurface,
        committer: CommitterSurface,
        offsets: OffsetTable,
        config: BrokerConfig,
        *,
        host: bytes,
        now_ms: int,
    ) -> None:
        self._store, self._committer, self._offsets, self._host = store, committer, offsets, host
        self.config = config
        self.ask: Callable[[Record], None] = lambda record: None
        self._half = offsets.find(GROUP, HALF_TOPIC, 0) or 0
        self._read = offsets.find(GROUP, HALF_OP_TOPIC, 0) or 0
        self._marks: deque[tuple[int, int]] = deque()
        """(offset behind a mark, the highest half that it names), for marks that are still needed."""
        self._finished: set[int] = set()
        self._remembered: OrderedDict[int, None] = OrderedDict()
        self._moved: OrderedDict[int, int] = OrderedDict()
        self._ending: set[int] = set()
        self._unmarked: list[int] = []
        self._unmarked_bytes = 0
        self._mark_due_ms: int | None = None
        self._check_due_ms = now_ms + config.transaction_check_interval_ms
        self._round_end: int | None = None
        self._in_work = False
        self._moves_left = 0

    # --- answers of producers ---

    def newest(self, offset: int) -> int:
        """Where a half message lies now that may have been appended anew since its producer was told an offset."""
        while offset in self._moved:  # every step goes towards the end of the topic
            offset = self._moved[offset]
        return offset

    def read_marks(self) -> None:
        """Make sure that `is_finished` knows all marks. Raises ServiceUnavailable while there are more to read."""
        if self._read < self._store.max_offset(HALF_OP_TOPIC, 0) and not self._read_marks():
            raise ServiceUnavailable("the marks of earlier transactions are still being read")

    def is_finished(self, offset: int) -> bool:
        """Whether a half message is known to be committed or rolled back already."""
        return offset in self._finished or offset in self._remembered

    def begin_end(self, offset: int) -> None:
        """A commit or rollback begins. Raises ServiceUnavailable while another of the same half is stored."""
        if offset in self._ending:
            raise ServiceUnavailable("this transaction is just being ended")
        self._ending.add(offset)

    def end(self, offset: int, is_done: bool, now_ms: int) -> None:
        """The commit or rollback that `begin_end` announced took place, or failed."""
        self._ending.discard(offset)
        offset = self.newest(offset)
        self._ending.discard(offset)
        if not is_done or self.is_finished(offset):
            return
        self._note_finished(offset)
        self._unmarked.append(offset)
        self._unmarked_bytes += len(str(offset)) + 1
        if self._mark_due_ms is None:
            self._mark_due_ms = now_ms + self.config.transaction_op_interval_ms
        if self._unmarked_bytes >= self.config.transaction_op_bytes_max - 20:
            self._write_marks(now_ms)

    def _note_finished(self, offset: int) -> None:
        if offset >= self._half:
            self._finished.add(offset)
        else:
            _remember(self._remembered, offset, None)

    # --- marks ---

    def _write_marks(self, now_ms: int) -> None:
        offsets, self._unmarked, self._unmarked_bytes, self._mark_due_ms = self._unmarked, [], 0, None
        message = mark_message(offsets, now_ms=now_ms, host=self._host)
        self._committer.put((message,), partial(self._marked, offsets, now_ms))

    def _marked(self, offsets: list[int], now_ms: int, result: PutResult) -> None:
        if result.status in _STORED:
            return  # it is read back like any other mark
        _log.warning("a mark for %d finished transactions was not stored: %s", len(offsets), result.remark)
        self._unmarked = offsets + self._unmarked
        self._unmarked_bytes = sum(len(str(offset)) + 1 for offset in self._unmarked)
        self._mark_due_ms = now_ms + self.config.transaction_op_interval_ms

    def _read_marks(self) -> bool:
        """Read some marks; say whether all have been read."""
        found = self._store.get(HALF_OP_TOPIC, 0, self._read, BATCH)
        if found.status is not GetStatus.FOUND:
            if found.status not in _AT_END:
                self._read = found.next_offset
            return found.status in _AT_END
        for record in _records(found.records):
            self._read = record.queue_offset + 1
            offsets = marked_offsets(record)
            for offset in offsets:
                self._note_finished(offset)
            self._marks.append((self._read, max(offsets, default=-1)))
        return self._read >= found.max_offset

    def _forget_marks(self) -> None:
        read = None
        while self._marks and self._marks[0][1] < self._half:
            read = self._marks.popleft()[0]
        if read is not None:
            self._offsets.commit(GROUP, HALF_OP_TOPIC, 0, read)

    # --- the check ---

    def next_due_ms(self) -> int | None:
        """When to call `run_due` next."""
        if self._round_end is not None:
            return None if self._in_work else 0
        times = [self._check_due_ms]
        if self._mark_due_ms is not None:
            times.append(self._mark_due_ms)
        return min(times)

    def run_due(self, now_ms: int) -> None:
        """Write marks that are due, and look at the next half messages of a round."""
        if self._mark_due_ms is not None and self._mark_due_ms <= now_ms:
            self._write_marks(now_ms)
        if self._round_end is None and self._check_due_ms <= now_ms:
            self._round_end = self._store.max_offset(HALF_TOPIC, 0)
        if self._round_end is None or self._in_work or not self._read_marks():
            return
        self._moves_left = BATCH
        self._check(now_ms, self._round_end)

    def _check(self, now_ms: int, round_end: int) -> None:
        found = self._store.get(HALF_TOPIC, 0, self._half, BATCH)
        if found.status is not GetStatus.FOUND:
            if found.status not in _AT_END and found.next_offset > self._half:
                _log.warning("half messages %d to %d were cleaned away", self._half, found.next_offset - 1)
                self._advance(found.next_offset)
            else:
                self._end_round(now_ms)
            return
        for record in _records(found.records):
            offset = record.queue_offset
            if offset in self._finished:
                self._advance(offset + 1)
                continue
            if offset in self._ending or offset >= round_end:
                self._end_round(now_ms)
                return
            if real_place(record) is None:
                _log.warning("half message %d does not say where it belongs: left out", offset)
                self._advance(offset + 1)
                continue
            step = next_step(
                record,
                now_ms,
                timeout_ms=self.config.transaction_timeout_ms,
                times_max=self.config.transaction_check_max,
            )
            if step is Step.WAIT:
                self._end_round(now_ms)
            else:
                self._move(record, step, now_ms)
            return

    def _move(self, record: Record, step: Step, now_ms: int) -> None:
        self._in_work = True
        self._moves_left -= 1
        if step is Step.DISCARD:
            _log.warning("half message %d was asked about too often: to %s", record.queue_offset, CHECK_MAX_TOPIC)
            message: Message = half_again(record, topic=CHECK_MAX_TOPIC)
        else:
            message = half_again(record, check_times=check_times(record) + 1 if step is Step.ASK else None)
        self._committer.put((message,), partial(self._was_moved, record, step, now_ms))

    def _was_moved(self, record: Record, step: Step, now_ms: int, result: PutResult) -> None:
        self._in_work = False
        if result.status not in _STORED:
            _log.warning("half message %d could not be appended anew: %s", record.queue_offset, result.remark)
            self._end_round(now_ms)
            return
        old = record.queue_offset
        self._advance(old + 1)
        if step is not Step.DISCARD:
            self._follow(old, step, now_ms, result)
        if self._moves_left > 0 and self._round_end is not None:
            self._check(now_ms, self._round_end)

    def _follow(self, old: int, step: Step, now_ms: int, result: PutResult) -> None:
        """A half message has a copy now: whatever is known of it holds for the copy, or its producer is asked."""
        appended = result.appended[0]
        _remember(self._moved, old, appended.queue_offset)
        if old in self._ending:  # it is being ended: `end` finds the copy
            self._ending.add(appended.queue_offset)
        elif self.is_finished(old):  # ended while it was being moved
            self.end(old, True, now_ms)
        elif step is Step.ASK:
            view = self._store.record_at(appended.physical_offset)
            if view is not None:
                self.ask(decode_record(view))

    def _advance(self, offset: int) -> None:
        one = offset == self._half + 1
        for passed in [self._half] if one else [finished for finished in self._finished if finished < offset]:
            if passed in self._finished:
                self._finished.discard(passed)
                _remember(self._remembered, passed, None)
        self._half = offset
        self._offsets.commit(GROUP, HALF_TOPIC, 0, offset)
        self._forget_marks()

    def _end_round(self, now_ms: int) -> None:
        self._round_end = None
        self._check_due_ms = now_ms + self.config.transaction_check_interval_ms


def _remember(table: OrderedDict[int, _V], key: int, value: _V) -> None:
    table[key] = value
    if len(table) > REMEMBERED_MAX:
        table.popitem(last=False)


def _records(views: Sequence[memoryview]) -> list[Record]:
    found = []
    for view in views:
        at = 0
        while at < len(view):
            record = decode_record(view, at)
            found.append(record)
            at += record.size
    return found
