"""What a group's quorum queues hold: a state machine over the records of `formats.quorum_record`, and nothing else.

It has no clock, socket or disk. The leader changes it through the same methods that `apply` calls for a record that was
written, so whoever reads the records has the same state: that is what a new leader does. Messages are numbered across
all queues in the order of their publishing, and a queue delivers in the order of numbers. Bodies stay in the log; here
is only where.

Memory: about 200 bytes for a message, and 80 more for each further queue that holds it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stratamq.broker.amqp.definition_rows import apply_changes
from stratamq.errors import CorruptionError, InvalidArgument
from stratamq.formats.quorum_record import (
    DELIVERIES_SHIFT,
    REDELIVERED,
    TAKEN,
    Begin,
    Changes,
    Definitions,
    Delete,
    Mark,
    Open,
    Operation,
    Put,
    Settle,
    Take,
    decode_operations,
)

UNPLACED = -1
"""Record of a message that is in no record yet."""


class Held:
    """A message that at least one queue holds: the record it lies in, where in its body, and how many queues it has."""

    __slots__ = ("record", "size", "start", "uses")

    def __init__(self) -> None:
        self.record = UNPLACED
        self.start = self.size = self.uses = 0


class QuorumQueue:
    """One queue's messages: their numbers in order, and the mark of each."""

    __slots__ = ("_order", "id", "marks", "name")

    def __init__(self, number: int, name: str) -> None:
        self.id = number
        self.name = name
        self.marks: dict[int, int] = {}
        self._order: list[int] = []
        """Ascending; numbers that are in no mark any more are taken out now and then."""

    def add(self, number: int, mark: int) -> None:
        """A message; one that lies below others (a leader has carried it to a newer record) finds its place."""
        order = self._order
        if order and number <= order[-1]:
            order.insert(bisect_right(order, number), number)
        else:
            order.append(number)
        self.marks[number] = mark

    def remove(self, number: int) -> None:
        """The message is gone."""
        del self.marks[number]
        if len(self._order) > 64 and len(self._order) > 2 * len(self.marks):
            self._order = [one for one in self._order if one in self.marks]

    def after(self, number: int) -> Iterator[int]:
        """Numbers above one, ascending."""
        order = self._order
        for at in range(bisect_right(order, number), len(order)):
            if order[at] in self.marks:
                yield order[at]

    def within(self, runs: Iterable[tuple[int, int]]) -> list[int]:
        """Which of the numbers in some runs are here. Cost: never more than the runs, or the queue, are long."""
        found: list[int] = []
        for first, count in runs:
            if count <= len(self.marks):
                found += [number for number in range(first, first + count) if number in self.marks]
            else:
                found += [number for number in self.marks if first <= number < first + count]
        return found


class QuorumState:
    """See the module's text."""

    def __init__(self) -> None:
        self.queues: dict[int, QuorumQueue] = {}
        self.ids: dict[str, int] = {}
        self.held: dict[int, Held] = {}
        self.held_bytes = 0
        """Bytes of the contents that have a place."""
        self.next_number = self.next_id = 1
        self.term = 0
        self.definitions_record = UNPLACED
        self._definitions: dict[str, Any] | None = None
        self._changes: list[Any] = []
        self._used: dict[int, int] = {}
        """By record: how many held messages lie in it."""
        self._records: deque[int] = deque()
        """The keys of that, oldest first, emptied ones as well."""

    # --- reading a log ---

    def apply(self, record: int, body: bytes, where: str) -> None:
        """Take a record that was written, by its offset. Raises CorruptionError; what came before it is taken."""
        for operation in decode_operations(body, where):
            try:
                self._apply(record, operation)
            except (ValueError, KeyError) as error:
                raise CorruptionError(where, 0, "an operation that fits what came before", repr(error)) from error

    def _apply(self, record: int, operation: Operation) -> None:
        match operation:
            case Put(number, targets, start, size):
                self.put(number, targets)
                self.place(number, record, start, size)
            case Take(queue, runs):
                self._each(queue, runs, self.take)
            case Settle(queue, runs):
                self._each(queue, runs, self.settle)
            case Mark(queue, number, mark):
                self.mark(queue, number, mark)
            case Open(queue, name):
                self.open(queue, name)
            case Delete(queue):
                self.delete(queue)
            case Begin(term):
                self.begin(term)
            case Definitions(value, queues):
                self.define(record, value, queues)
            case Changes(changes):
                self._changes += changes

    def _each(self, queue: int, runs: Sequence[tuple[int, int]], do: Any) -> None:
        known = self.queues.get(queue)
        for number in known.within(runs) if known is not None else ():
            do(queue, number)

    def definitions(self) -> dict[str, Any] | None:
        """The definitions as far as records have told; None before the first. Raises CorruptionError."""
        if self._definitions is None:
            return None
        try:
            self._definitions = apply_changes(self._definitions, self._changes)
        except InvalidArgument as error:
            raise CorruptionError("the group's log", 0, "changes of definitions", str(error)) from error
        self._changes = []
        return self._definitions

    # --- queues ---

    def open(self, queue: int, name: str) -> None:
        """A queue's store is there; one that messages were put into before its name was read gets its name."""
        self._queue(queue).name = name
        self.ids[name] = queue

    def _queue(self, queue: int) -> QuorumQueue:
        found = self.queues.get(queue)
        if found is None:
            found = self.queues[queue] = QuorumQueue(queue, "")
            self.next_id = max(self.next_id, queue + 1)
        return found

    def delete(self, queue: int) -> None:
        """A queue's store goes with what it holds."""
        found = self.queues.pop(queue, None)
        if found is None:
            return
        if self.ids.get(found.name) == queue:
            del self.ids[found.name]
        for number in found.marks:
            self._unuse(number)

    # --- messages ---

    def put(self, number: int, targets: Iterable[tuple[int, int]]) -> None:
        """A message is in these queues, with a mark in each."""
        held = self.held.get(number)
        if held is None:
            held = self.held[number] = Held()
            self.next_number = max(self.next_number, number + 1)
        for queue, mark in targets:
            known = self._queue(queue)
            if number in known.marks:
                known.marks[number] = mark
            else:
                known.add(number, mark)
                held.uses += 1
        if not held.uses:
            del self.held[number]

    def place(self, number: int, record: int, start: int, size: int) -> None:
        """A message's content lies there now."""
        held = self.held.get(number)
        if held is None:
            return
        self._leave(held)
        held.record, held.start, held.size = record, start, size
        self.held_bytes += size
        if record not in self._used:
            self._used[record] = 0
            self._records.append(record)
        self._used[record] += 1

    def _leave(self, held: Held) -> None:
        if held.record != UNPLACED:
            self._used[held.record] -= 1
            self.held_bytes -= held.size

    def unplace(self, number: int) -> None:
        """A message's content is on its way into another record."""
        held = self.held[number]
        self._leave(held)
        held.record = UNPLACED

    def take(self, queue: int, number: int) -> None:
        """A message goes to a consumer."""
        self.queues[queue].marks[number] |= TAKEN

    def mark(self, queue: int, number: int, mark: int) -> None:
        """What became of a message; nothing when it is not there."""
        known = self.queues.get(queue)
        if known is not None and number in known.marks:
            known.marks[number] = mark

    def settle(self, queue: int, number: int) -> None:
        """A message is gone from a queue; nothing when it is not there."""
        known = self.queues.get(queue)
        if known is not None and number in known.marks:
            known.remove(number)
            self._unuse(number)

    def _unuse(self, number: int) -> None:
        held = self.held[number]
        held.uses -= 1
        if not held.uses:
            self._leave(held)
            del self.held[number]

    def begin(self, term: int) -> None:
        """A leader begins: nobody has a message any more, and who had one counts as having failed."""
        self.term = term
        for queue in self.queues.values():
            for number, mark in queue.marks.items():
                if mark & TAKEN:
                    queue.marks[number] = ((mark >> DELIVERIES_SHIFT) + 1) << DELIVERIES_SHIFT | REDELIVERED

    # --- definitions ---

    def define(self, record: int, value: dict[str, Any], queues: dict[str, int]) -> None:
        """All definitions; queues that are not named are gone."""
        for name, queue in queues.items():
            self.open(queue, name)
        named = set(queues.values())
        for queue in [queue for queue in self.queues if queue not in named]:
            self.delete(queue)
        self._definitions, self._changes = value, []
        self.definitions_record = record

    # --- the log's oldest record that is needed ---

    def oldest(self) -> int:
        """The oldest record that somebody has to read who wants to know everything; `UNPLACED` when there is none."""
        records, used = self._records, self._used
        while records and not used[records[0]]:
            del used[records.popleft()]
        found = [record for record in (records[0] if records else UNPLACED, self.definitions_record) if record >= 0]
        return min(found, default=UNPLACED)

    def oldest_with_messages(self) -> int:
        """The oldest record in which a held message lies; `UNPLACED` when there is none."""
        self.oldest()
        return self._records[0] if self._records else UNPLACED
