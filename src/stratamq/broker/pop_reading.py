"""Reads the revive topic: at start from where check-points are open, later what another broker's timer brings.

What this broker writes goes to queue 0 and is known already. RocketMQ spreads check-points and acks over eight queues
and lets them wait in its timer until their time is over. A store of its that is opened here has them in the timer
still, which delivers them to the revive topic then.

The position of a queue is the committed offset of group ``CID_RMQ_SYS_REVIVE_GROUP``: that of the last record that
nobody needs any more, as RocketMQ counts it.

Source: apache/rocketmq broker/.../PopReviveService.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from stratamq.broker.offsets import OffsetTable
from stratamq.broker.pop_records import is_from_timer
from stratamq.broker.ports import StoreSurface
from stratamq.formats import properties as names
from stratamq.formats.message import Record, decode_record, decode_records
from stratamq.formats.properties import find_property
from stratamq.logstore.types import GetStatus

GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
OWN_QUEUE: Final = 0
QUEUES: Final = 8
"""RocketMQ's `reviveQueueNum`."""
BATCH: Final = 256
"""Records read in one step."""
_AT_END: Final = frozenset(
    {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE}
)
Take = Callable[[Record, int], None]
"""Gets a record and its queue."""


class ReviveReader:
    """Where reading of each queue of the revive topic is."""

    def __init__(self, store: StoreSurface, offsets: OffsetTable, topic: str) -> None:
        self._store, self._offsets, self._topic = store, offsets, topic
        self._next: dict[int, int] = {}
        """By queue: everything before this offset is read, or is this broker's own, or lies in a gap."""
        self._gaps: deque[tuple[int, int]] = deque()
        """What others wrote between this broker's own records, [begin, end) each."""
        self._left = list(range(QUEUES))
        """Queues to be read at start, the own one last: it may hold acks of what lies in the others."""

    @property
    def is_loading(self) -> bool:
        """Whether what was there at start is still being read."""
        return bool(self._left)

    def _first(self, queue: int) -> int:
        """Where to begin. Positions of StrataMQ's first versions were those of the first record still needed."""
        committed = self._offsets.find(GROUP, self._topic, queue)
        if committed is None:
            return 0
        found = self._store.get(self._topic, queue, committed, 1)
        if found.status in _AT_END:
            if committed:
                self._offsets.commit(GROUP, self._topic, queue, committed - 1)
            return committed
        if found.status is GetStatus.FOUND:
            record = decode_record(found.records[0])
            is_old = not is_from_timer(record) and find_property(record.properties, names.TIMER_DELIVER_MS) is None
            if record.queue_offset > committed or is_old:
                return committed
        return committed + 1

    def load(self, take: Take) -> None:
        """Read some of what was there at start."""
        queue = self._left[-1]
        if queue not in self._next:
            self._next[queue] = self._first(queue)
        if self._read(queue, take):
            self._left.pop()

    def _read(self, queue: int, take: Take) -> bool:
        """Read some of a queue; says whether its end is reached."""
        at = self._next[queue]
        found = self._store.get(self._topic, queue, at, BATCH)
        if found.status is not GetStatus.FOUND:
            if found.status in _AT_END or found.next_offset <= at:
                return True
            self._next[queue] = found.next_offset
            return False
        for record in decode_records(found.records):
            self._next[queue] = record.queue_offset + 1
            take(record, queue)
        return self._next[queue] >= found.max_offset

    def landed(self, offset: int) -> None:
        """A record of this broker was stored in the own queue."""
        if self.is_loading:
            return  # it is read with what was there
        behind = self._next[OWN_QUEUE]
        if offset > behind:
            self._gaps.append((behind, offset))
        self._next[OWN_QUEUE] = max(behind, offset + 1)

    def read_others(self, take: Take, *, is_quiet: bool) -> None:
        """Read what others wrote since. ``is_quiet`` says that none of this broker's own records is being stored."""
        for queue in range(QUEUES):
            if (queue != OWN_QUEUE or is_quiet) and self._next[queue] < self._store.max_offset(self._topic, queue):
                self._read(queue, take)
        while self._gaps:
            begin, end = self._gaps[0]
            found = self._store.get(self._topic, OWN_QUEUE, begin, min(BATCH, end - begin))
            if found.status is GetStatus.FOUND:
                for record in decode_records(found.records):
                    take(record, OWN_QUEUE)
                    begin = record.queue_offset + 1
            elif found.status in _AT_END:
                return
            else:
                begin = max(begin + 1, found.next_offset)
            self._gaps.popleft()
            if begin < end:
                self._gaps.appendleft((begin, end))
                return

    def commit(self, oldest: Callable[[int], int | None]) -> None:
        """Commit the positions; ``oldest`` says the first record of a queue that is still needed."""
        for queue, end in self._next.items():
            needed = oldest(queue)
            last = (end if needed is None else min(end, needed)) - 1
            if queue == OWN_QUEUE and self._gaps:
                last = min(last, self._gaps[0][0] - 1)
            if last >= 0 and self._offsets.find(GROUP, self._topic, queue) != last:
                self._offsets.commit(GROUP, self._topic, queue, last)
