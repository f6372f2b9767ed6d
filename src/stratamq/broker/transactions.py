"""Transactions: which half messages are finished, and asking producers about those that are not.

The reading positions are the committed offsets of group ``CID_RMQ_SYS_TRANS`` in the half topic and in the topic of the
marks, so a store may change hands between RocketMQ and StrataMQ. Everything before the half position is finished or has
been appended anew; marks before the mark position are about nothing behind the half position.

At start the marks and then the half messages behind the positions are read back, before anything is taken or asked:
what a kill left open in two places is one half message again, and only its newest copy is asked about.

A finish counts at once in memory; its mark is written with others, after at most `transaction_op_interval_ms`. A kill
in between makes the check ask again, so a committed message may be delivered a second time then.

Source: apache/rocketmq broker/.../transaction/queue/TransactionalMessageServiceImpl.java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from stratamq.broker.half_counts import HalfCounts
from stratamq.broker.half_messages import (
    Half,
    Step,
    check_times,
    copied,
    half_again,
    half_at,
    half_of,
    is_copy,
    mark_message,
    marked_offsets,
    next_step,
    real_place,
)
from stratamq.broker.half_table import HalfTable
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.ports import CommitterSurface, StoreSurface
from stratamq.broker.topics import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from stratamq.config import BrokerConfig, RetentionConfig
from stratamq.errors import CorruptionError, FlowControlled, ServiceUnavailable
from stratamq.formats.message import Record, decode_record, decode_records
from stratamq.logstore.types import Appended, GetStatus, Message, PutResult, PutStatus

_log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
BATCH: Final = 32
"""Half messages looked at, and marks read, in one go."""
READ_BACK: Final = 1_024
"""Half messages read back at start in one go."""
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
        counts: HalfCounts,
    ) -> None:
        self._store, self._committer, self._offsets, self._host = store, committer, offsets, host
        self.config = config
        self.counts = counts
        self.reserved_ms = RetentionConfig().file_reserved_hours * 3_600_000
        """`fileReservedTime`; older half messages are put aside."""
        self.ask: Callable[[Record], None] = lambda record: None
        self._table = HalfTable(offsets.find(GROUP, HALF_TOPIC, 0) or 0, limit=config.transaction_halves_max)
        self._read = offsets.find(GROUP, HALF_OP_TOPIC, 0) or 0
        self._marks: deque[tuple[int, int]] = deque()
        """(offset behind a mark, the highest half that it names), for marks that are still needed."""
        self._back_at: int | None = self._table.position
        self._back_end = store.max_offset(HALF_TOPIC, 0)
        self._unmarked: list[int] = []
        self._unmarked_bytes = 0
        self._mark_due_ms: int | None = None
        self._check_due_ms = now_ms + config.transaction_check_interval_ms
        self._round_end: int | None = None
        self._in_work = False
        self._looks_left = 0

    # --- answers of producers ---

    def check_ready(self) -> None:
        """Make sure that `is_finished` knows all marks. Raises ServiceUnavailable while there is more to read."""
        if not self._is_read_back():
            raise ServiceUnavailable("the half messages and marks of earlier transactions are still being read")

    def is_finished(self, half: Half) -> bool:
        """Whether a half message is known to be committed or rolled back already."""
        return self._table.is_finished(half)

    def begin_end(self, half: Half) -> None:
        """A commit or rollback begins.

        Raises:
            ServiceUnavailable: Another of the same half message is being stored.
            FlowControlled: Too many are finished behind one that is open (`transaction_halves_max`).
        """
        if self._table.finished_count >= self.config.transaction_halves_max:
            raise FlowControlled(
                f"{self._table.finished_count} finished transactions wait for an open one (transaction_halves_max); "
                "the producer will be asked about this one"
            )
        if not self._table.begin_end(half):
            raise ServiceUnavailable("this transaction is just being ended")

    def end(self, half: Half, is_done: bool, now_ms: int) -> None:
        """The commit or rollback that `begin_end` announced took place, or failed."""
        self._table.end(half)
        if is_done and not self._table.is_finished(half):
            self._finish(half, now_ms)

    def resumed(self, message: Message, appended: Appended, now_ms: int) -> None:
        """A half message that had been put aside was appended anew. It may have been ended meanwhile."""
        self._follow(half_at(message.properties, appended.queue_offset), appended.queue_offset, now_ms)

    def _finish(self, half: Half, now_ms: int) -> None:
        offset = self._table.finish(half)
        self._unmarked.append(offset)
        self._unmarked_bytes += len(str(offset)) + 1
        if self._mark_due_ms is None:
            self._mark_due_ms = now_ms + self.config.transaction_op_interval_ms
        if self._unmarked_bytes >= self.config.transaction_op_bytes_max - 20:
            self._write_marks(now_ms)

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
        end = self._store.max_offset(HALF_TOPIC, 0)
        for record in decode_records(found.records):
            self._read = record.queue_offset + 1
            offsets = [offset for offset in marked_offsets(record) if offset < end]
            for offset in offsets:
                self._table.finish_at(offset)
            self._marks.append((self._read, max(offsets, default=-1)))
        return self._read >= found.max_offset

    def _forget_marks(self) -> None:
        read = None
        while self._marks and self._marks[0][1] < self._table.position:
            read = self._marks.popleft()[0]
        if read is not None:
            self._offsets.commit(GROUP, HALF_OP_TOPIC, 0, read)

    # --- reading back ---

    def _is_read_back(self) -> bool:
        """Read some of what lies behind the positions; say whether all has been read."""
        if self._read < self._store.max_offset(HALF_OP_TOPIC, 0) and not self._read_marks():
            return False
        if self._back_at is None:
            return True
        begin = self._back_at
        while self._back_at < min(self._back_end, begin + READ_BACK):
            found = self._store.get(HALF_TOPIC, 0, self._back_at, READ_BACK)
            if found.status is not GetStatus.FOUND:
                if found.next_offset <= self._back_at:
                    self._back_at = self._back_end
                else:
                    self._back_at = found.next_offset
                continue
            for record in decode_records(found.records):
                self._back_at = record.queue_offset + 1
                place = real_place(record)
                if place is not None and self._table.learn(half_of(record)) and record.queue_offset < self._back_end:
                    self.counts.add(place[0], 1, record.store_timestamp)
        if self._back_at < self._back_end:
            return False
        self._back_at = None
        return True

    # --- the check ---

    @property
    def _is_crowded(self) -> bool:
        """Whether an open half message holds up so many finished ones that it must not any longer."""
        return self._table.finished_count > self.config.transaction_halves_max // 2

    def next_due_ms(self) -> int | None:
        """When to call `run_due` next."""
        if self._round_end is not None:
            return self._mark_due_ms if self._in_work else 0
        if self._is_crowded:
            return 0
        times = [self._check_due_ms]
        if self._mark_due_ms is not None:
            times.append(self._mark_due_ms)
        return min(times)

    def run_due(self, now_ms: int) -> None:
        """Write marks that are due, and look at the next half messages of a round."""
        if self._mark_due_ms is not None and self._mark_due_ms <= now_ms:
            self._write_marks(now_ms)
        if self._round_end is None and (self._check_due_ms <= now_ms or self._is_crowded):
            self._round_end = self._store.max_offset(HALF_TOPIC, 0)
        if self._round_end is None or self._in_work or not self._is_read_back():
            return
        self._looks_left = BATCH
        self._check(now_ms)

    def _check(self, now_ms: int) -> None:
        """Look at the half messages of a round, until one has to be stored anew or enough were looked at."""
        while self._looks_left > 0 and self._round_end is not None and not self._in_work:
            self._looks_left -= 1
            if self._table.pass_finished():
                self._moved_on()
            try:
                found = self._store.get(HALF_TOPIC, 0, self._table.position, 1)
            except CorruptionError as error:
                _log.error("half message %d is damaged, nobody can have it: %s", self._table.position, error)
                self._advance(self._table.position + 1)
                continue
            if found.status is GetStatus.FOUND:
                self._look(decode_record(found.records[0]), now_ms, self._round_end)
            elif found.status not in _AT_END and found.next_offset > self._table.position:
                _log.warning("half messages %d to %d were cleaned away", self._table.position, found.next_offset - 1)
                self._advance(found.next_offset)
            else:
                self._end_round(now_ms)

    def _look(self, record: Record, now_ms: int, round_end: int) -> None:
        """Decide about the half message at the position."""
        half, offset = half_of(record), record.queue_offset
        if self._table.is_finished(half) or self._has_copy(record):
            self._advance(offset + 1)
            return
        if self._table.is_ending(half) or offset >= round_end:
            self._end_round(now_ms)
            return
        if real_place(record) is None:
            _log.warning("half message %d does not say where it belongs: left out", offset)
            self._advance(offset + 1)
            return
        step = next_step(
            record,
            now_ms,
            timeout_ms=self.config.transaction_timeout_ms,
            times_max=self.config.transaction_check_max,
            reserved_ms=self.reserved_ms,
            is_crowded=self._is_crowded,
        )
        if step is Step.WAIT:
            self._end_round(now_ms)
        else:
            self._move(record, step, now_ms)

    def _has_copy(self, record: Record) -> bool:
        """Whether a newer copy of a half message lies behind it, as a kill may leave it."""
        newest = self._table.newest(half_of(record))
        if newest <= record.queue_offset:
            return False
        found = self._store.get(HALF_TOPIC, 0, newest, 1)
        return found.status is GetStatus.FOUND and is_copy(decode_record(found.records[0]), record)

    def _move(self, record: Record, step: Step, now_ms: int) -> None:
        self._in_work = True
        if step is Step.DISCARD:
            _log.warning(
                "half message %d was asked about %d times and never ended: to %s",
                record.queue_offset,
                check_times(record),
                CHECK_MAX_TOPIC,
            )
            message: Message = half_again(record, topic=CHECK_MAX_TOPIC)
        else:
            message = half_again(record, check_times=check_times(record) + 1 if step is Step.ASK else None)
        self._committer.put((message,), partial(self._was_moved, record, message.properties, step, now_ms))

    def _was_moved(self, record: Record, properties: str, step: Step, now_ms: int, result: PutResult) -> None:
        self._in_work = False
        if result.status not in _STORED:
            _log.warning("half message %d could not be appended anew: %s", record.queue_offset, result.remark)
            self._end_round(now_ms)
            return
        half, place = half_of(record), real_place(record)
        if step is Step.DISCARD:
            if place is not None and not self._table.is_finished(half):
                self.counts.add(place[0], -1, now_ms)
        else:
            appended = result.appended[0]
            is_open = self._follow(half, appended.queue_offset, now_ms)
            if is_open and step is Step.ASK and not self._table.is_ending(half):
                self.ask(copied(record, properties, appended))
        self._advance(half.offset + 1)
        self._check(now_ms)

    def _follow(self, half: Half, offset: int, now_ms: int) -> bool:
        """A half message has a copy now: whatever is known of it holds for the copy. Says whether it is open."""
        is_finished = self._table.is_finished(half)
        self._table.copied(half, offset)
        if is_finished:  # ended while it was being moved
            self._finish(half, now_ms)
        return not is_finished

    def _advance(self, offset: int) -> None:
        self._table.advance(offset)
        self._moved_on()

    def _moved_on(self) -> None:
        self._offsets.commit(GROUP, HALF_TOPIC, 0, self._table.position)
        self._forget_marks()

    def _end_round(self, now_ms: int) -> None:
        self._round_end = None
        self._check_due_ms = now_ms + self.config.transaction_check_interval_ms
