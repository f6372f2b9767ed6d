"""Quorum queues as the broker's `Storage`: what a turn has changed goes into the group's log, and waits for a majority.

The leader decides: it changes its `QuorumState` at once and gathers what that means for others. At the end of a turn
`propose` makes records of it, and everything the turn wants to tell clients is held back (`hold`) until those records
are decided. So no client ever hears of something that a next leader does not know: neither a confirm, nor a delivery,
nor that a queue was declared. At most `FLYING_TURNS` turns wait for the majority; what happens meanwhile is gathered
into the next one.

Records that hold few living messages are emptied: their messages are put into new records with the same numbers, so
their place in the queues does not change, and the old records are not needed any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from stratamq.broker.amqp.messages import Message, MessageDecoder, encode_message
from stratamq.broker.amqp.quorum_state import UNPLACED, QuorumQueue, QuorumState
from stratamq.broker.amqp.storage import QueueStorage, Stored
from stratamq.errors import CorruptionError, StoreError, StoreFull
from stratamq.formats.quorum_record import (
    DELIVERIES_SHIFT,
    HEADER,
    REDELIVERED,
    TAKEN,
    TOPIC,
    Put,
    decode_first,
    decode_operations,
    encode_begin,
    encode_changes,
    encode_definitions,
    encode_delete,
    encode_header,
    encode_mark,
    encode_open,
    encode_put,
    encode_settle,
    encode_take,
)
from stratamq.units import KiB, MiB

_log = logging.getLogger(__name__)

FLYING_TURNS: Final = 2
UNDECIDED_BYTES_MAX: Final = 64 * MiB
"""Bytes that are gathered or wait for the majority, above which publishers are held back."""
GARBAGE_BYTES: Final = 64 * MiB
"""Records from the oldest one needed may take so much more than twice their living messages before they are emptied."""
RECORD_BYTES: Final = 256 * KiB
"""Length of a body that is not exceeded unless one message is longer."""
CARRY_BYTES: Final = 256 * KiB
"""So much is carried in one turn at least, and twice what the turn itself writes."""
CHANGES_MAX: Final = 10_000
"""Changes of definitions in the log after which all of them are written anew."""
_WHOLE: Final = -1
"""Stands for a message's number where an operation holds all definitions."""


class RecordLog(Protocol):
    """The records of `TOPIC`, on the leader. Offsets have no gaps."""

    @property
    def start(self) -> int:
        """Offset of the oldest record that is there."""
        ...

    @property
    def end(self) -> int:
        """Offset of the next record, when everything that was proposed is decided."""
        ...

    @property
    def body_bytes_max(self) -> int:
        """Length of the longest body."""
        ...

    def propose(self, bodies: Sequence[bytes], done: Callable[[str], None]) -> None:
        """Append records; ``done`` gets an empty text when they are decided, else why nobody knows that."""
        ...

    def read(self, offset: int) -> bytes:
        """Body of a decided record. Raises StoreError."""
        ...


class QuorumQueueStorage:
    """One queue, or one priority of it."""

    __slots__ = ("_decode", "_storage", "queue")
    notes_takes = True

    def __init__(self, storage: QuorumStorage, queue: QuorumQueue) -> None:
        self._storage = storage
        self._decode = MessageDecoder().decode
        self.queue = queue

    @property
    def count(self) -> int:
        return len(self.queue.marks)

    def fetch(self, after: int, count: int) -> list[Stored]:
        found: list[Stored] = []
        for number in self.queue.after(after):
            mark = self.queue.marks[number]
            message = self._message(number)
            if message is not None:
                found.append(Stored(number, message, mark & REDELIVERED != 0, mark >> DELIVERIES_SHIFT))
                if len(found) == count:
                    break
        return found

    def _message(self, number: int) -> Message | None:
        try:
            return self._decode(self._storage.content(number))
        except StoreError as error:
            _log.error("queue %r, message %d: %s", self.queue.name, number, error)
            return None

    def body_bytes(self) -> int:
        messages = (self._message(number) for number in self.queue.after(-1))
        return sum(len(message.body) for message in messages if message is not None)

    def ack(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._storage.state.settle(self.queue.id, seq)
            self._storage.touch(self.queue.id, seq)

    def take(self, seq: int) -> None:
        """A message goes to a consumer."""
        self._storage.state.take(self.queue.id, seq)
        self._storage.touch(self.queue.id, seq)

    def note_deliveries(self, seq: int, count: int) -> None:
        self._storage.state.mark(self.queue.id, seq, count << DELIVERIES_SHIFT | REDELIVERED)
        self._storage.touch(self.queue.id, seq)

    def delete(self) -> None:
        self._storage.delete_queue(self.queue)


class _Turn:
    """Records on their way, what waits for them, and the messages whose contents are in no decided record yet."""

    __slots__ = ("end", "first", "numbers", "size", "waiting")

    def __init__(self, first: int, end: int, size: int, numbers: list[int], waiting: list[Callable[[], None]]) -> None:
        self.first = first
        self.end = end
        self.size = size
        self.numbers = numbers
        self.waiting = waiting


class QuorumStorage:
    """All quorum queues of a group, on its leader. ``on_failed`` is told why nothing can be decided any more."""

    def __init__(self, log: RecordLog, *, on_failed: Callable[[str], None] = lambda reason: None) -> None:
        self.state = QuorumState()
        self.on_synced: Callable[[int], None] = lambda number: None
        self.on_decided: Callable[[], None] = lambda: None
        """Called when something was decided: publishers may go on, and there is room for another turn."""
        self.on_wanting: Callable[[], None] = lambda: None
        """Called when `wants_definitions` becomes true, possibly in a turn after which nothing is decided."""
        self.on_relieved: Callable[[], None] = lambda: None
        """Called when publishers need not be held back any more."""
        self.failure = ""
        self.decided_first = 0
        """The oldest record that the last decided one needs: older ones may be deleted."""
        self.wants_definitions = False
        """Whether `note_definitions` should be called soon, though nothing was declared."""
        self.carry_below = 0
        """Records below this offset are to be emptied, whatever they hold."""
        self._log = log
        self._on_failed = on_failed
        self._opens: list[bytes] = []
        self._puts: list[tuple[int, list[tuple[int, int]], bytes]] = []
        self._touched: dict[int, dict[int, None]] = {}
        self._deletes: list[bytes] = []
        self._definitions: list[Any] = []
        """One whole, then changes; or changes alone."""
        self._has_whole = False
        self._changes_since_whole = 0
        self._fresh: dict[int, bytes] = {}
        """Contents that are in no decided record."""
        self._gathered_bytes = self._flying_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self._flying: deque[_Turn] = deque()
        self._cached: tuple[int, bytes] = (UNPLACED, b"")
        self._sizes: deque[tuple[int, int]] = deque()
        self._span_bytes = 0
        self._next_record = self._decided_end = self._first = log.end

    # --- beginning ---

    def load(self, term: int) -> Iterator[None]:
        """Read what the log holds and begin to lead, a record a step. Cost: the records from the oldest one needed.

        Raises StoreError.
        """
        log, end = self._log, self._log.end
        if end > log.start:
            self._first = decode_first(log.read(end - 1), TOPIC)
            if not log.start <= self._first < end:
                expected = f"a first record in [{log.start}, {end})"
                raise CorruptionError(TOPIC, end - 1, expected, self._first)
            for offset in range(self._first, end):
                body = log.read(offset)
                self.state.apply(offset, body, f"{TOPIC} at {offset}")
                self._note_size(offset, len(body))
                yield
        self.decided_first = self._first
        self.state.begin(term)
        self._opens.append(encode_begin(term))

    # --- the storage ---

    def open_queue(self, name: str) -> QuorumQueueStorage:
        state = self.state
        number = state.ids.get(name)
        if number is None:
            number = state.next_id
            state.open(number, name)
            self._opens.append(encode_open(number, name))
        return QuorumQueueStorage(self, state.queues[number])

    def queue_names(self) -> list[str]:
        """Names of all stores."""
        return list(self.state.ids)

    def delete_queue(self, queue: QuorumQueue) -> None:
        """A store goes with what it holds."""
        if self.state.queues.get(queue.id) is queue:
            self.state.delete(queue.id)
            self._touched.pop(queue.id, None)
            self._deletes.append(encode_delete(queue.id))

    def publish(
        self, message: Message, persistent: bool, queues: Sequence[QueueStorage], forced: bool = False
    ) -> Sequence[int]:
        content = encode_message(message)
        targets = [(queue.queue.id, 0) for queue in queues if isinstance(queue, QuorumQueueStorage)]
        if len(content) + 8 * len(targets) + 64 > self._log.body_bytes_max:
            raise StoreFull(f"a message of {len(content)} bytes, longer than a record of the group may be")
        number = self.state.next_number
        self.state.put(number, targets)
        self._puts.append((number, targets, content))
        self._fresh[number] = content
        self._gathered_bytes += len(content)
        return [number] * len(targets)

    def touch(self, queue: int, number: int) -> None:
        """A message's mark has changed, or it is gone."""
        if queue in self.state.queues:
            self._touched.setdefault(queue, {})[number] = None

    def commit(self) -> int:
        return 0  # nobody waits for a batch here: answers are held back as a whole

    @property
    def is_congested(self) -> bool:
        return self._gathered_bytes + self._flying_bytes > UNDECIDED_BYTES_MAX

    def content(self, number: int) -> bytes:
        """A message's content. Raises StoreError."""
        fresh = self._fresh.get(number)
        if fresh is not None:
            return fresh
        held = self.state.held[number]
        body = self._read(held.record)
        return body[held.start : held.start + held.size]

    def _read(self, record: int) -> bytes:
        if self._cached[0] != record:
            self._cached = (record, self._log.read(record))
        return self._cached[1]

    # --- definitions ---

    def note_definitions(self, value: dict[str, Any]) -> None:
        """All definitions as they are now."""
        self._definitions = [value]
        self._has_whole, self.wants_definitions = True, False
        self._changes_since_whole = 0

    def note_changes(self, changes: Sequence[Any]) -> None:
        """Changes of the definitions."""
        self._definitions += changes
        self._changes_since_whole += len(changes)
        if self._changes_since_whole > CHANGES_MAX and not self.wants_definitions:
            self.wants_definitions = True
            self.on_wanting()

    # --- the end of a turn ---

    def hold(self, release: Callable[[], None]) -> None:
        """Call ``release`` when everything until now is decided, in order; at once when it is."""
        if self.failure:
            return
        if self._has_gathered or self._waiting:
            self._waiting.append(release)
        elif self._flying:
            self._flying[-1].waiting.append(release)
        else:
            release()

    @property
    def _has_gathered(self) -> bool:
        return bool(self._opens or self._puts or self._touched or self._deletes or self._definitions)

    @property
    def _has_to_say_first(self) -> bool:
        """Whether somebody waits for old records to be needed no more, and only a record can say so."""
        return not self._flying and self.decided_first < self.carry_below <= self._first

    def propose(self) -> None:
        """Make records of what was gathered, unless enough of them are on their way."""
        if self.failure or len(self._flying) >= FLYING_TURNS:
            return
        try:
            self._carry()
        except StoreError as error:
            self.fail(f"old records cannot be emptied: {error}")
            return
        if not self._has_gathered and not self._has_to_say_first:
            return
        bodies, numbers = self._make_records()
        first, self._first = self._first, self.state.oldest()
        if self._first == UNPLACED:
            self._first = self._next_record
        turn = _Turn(first, self._next_record, sum(map(len, bodies)), numbers, self._waiting)
        self._waiting = []
        self._gathered_bytes = 0
        self._flying_bytes += turn.size
        self._flying.append(turn)
        self._log.propose(bodies, lambda failure: self._decided(turn, failure))

    def _make_records(self) -> tuple[list[bytes], list[int]]:
        """The bodies, and which messages are in them. What the state knows of places is set here."""
        operations: list[tuple[bytes, int, int]] = [(data, 0, 0) for data in self._opens]
        operations += self._encode_definitions()
        operations += [
            (encode_put(number, targets, content), number, len(content)) for number, targets, content in self._puts
        ]
        operations += [(data, 0, 0) for data in (*self._encode_touched(), *self._deletes)]
        numbers = [number for number, _, _ in self._puts]
        self._opens, self._puts, self._deletes, self._definitions = [], [], [], []
        self._touched, self._has_whole = {}, False
        bodies: list[bytes] = []
        bytes_max = min(RECORD_BYTES, self._log.body_bytes_max)
        parts, size = [encode_header(self._first)], HEADER.size
        for data, number, content in operations:
            if size + len(data) > bytes_max and len(parts) > 1:
                bodies.append(b"".join(parts))
                parts, size = parts[:1], HEADER.size
            parts.append(data)
            size += len(data)
            record = self._next_record + len(bodies)
            if number > 0:
                self.state.place(number, record, size - content, content)
            elif number == _WHOLE:
                self.state.definitions_record = record
        bodies.append(b"".join(parts))
        for body in bodies:
            self._note_size(self._next_record, len(body))
            self._next_record += 1
        return bodies, numbers

    def _encode_definitions(self) -> list[tuple[bytes, int, int]]:
        found, changes = [], self._definitions
        if self._has_whole:
            found.append((encode_definitions(changes[0], dict(self.state.ids)), _WHOLE, 0))
            changes = changes[1:]
        if changes:
            found.append((encode_changes(changes), 0, 0))
        return found

    def _encode_touched(self) -> list[bytes]:
        """What became of messages, as it is at the end of the turn."""
        taken, marked, gone = [], [], []
        for queue, numbers in self._touched.items():
            marks = self.state.queues[queue].marks
            settled = sorted(number for number in numbers if number not in marks)
            took = sorted(number for number in numbers if marks.get(number) == TAKEN)
            marked += [encode_mark(queue, n, marks[n]) for n in sorted(numbers) if marks.get(n, TAKEN) != TAKEN]
            if took:
                taken.append(encode_take(queue, took))
            if settled:
                gone.append(encode_settle(queue, settled))
        return [*taken, *marked, *gone]

    def _decided(self, turn: _Turn, failure: str) -> None:
        if self.failure:
            return
        if failure:
            self.fail(failure)
            return
        for number in turn.numbers:
            self._fresh.pop(number, None)
        was_congested = self.is_congested
        self._flying_bytes -= turn.size
        self._flying.remove(turn)
        self.decided_first, self._decided_end = turn.first, turn.end
        for release in turn.waiting:
            release()
        if was_congested and not self.is_congested:
            self.on_relieved()
        self.on_decided()

    def fail(self, reason: str) -> None:
        """Nothing more is decided here, and what was held back is not told to anybody."""
        if not self.failure:
            self.failure = reason
            self._waiting.clear()
            self._flying.clear()
            self._on_failed(reason)

    # --- emptying old records ---

    def _note_size(self, record: int, size: int) -> None:
        self._sizes.append((record, size))
        self._span_bytes += size

    def _has_garbage(self) -> bool:
        while self._sizes and self._sizes[0][0] < self._first:
            self._span_bytes -= self._sizes.popleft()[1]
        return self._span_bytes > 2 * self.state.held_bytes + GARBAGE_BYTES or self._first < self.carry_below

    def _carry(self) -> None:
        """Put living messages of the oldest records into this turn's."""
        if not self._has_garbage():
            return
        state = self.state
        left = max(CARRY_BYTES, 2 * self._gathered_bytes)
        while left > 0:
            oldest = state.oldest()
            if oldest == UNPLACED or oldest >= self._decided_end:
                return
            if oldest == state.definitions_record and not self._has_whole and not self.wants_definitions:
                self.wants_definitions = True
                self.on_wanting()
            record = state.oldest_with_messages()
            if record != oldest:
                return
            left -= self._carry_record(record)

    def _carry_record(self, record: int) -> int:
        """Empty one record; how many bytes it takes."""
        state, carried = self.state, 0
        body = self._read(record)
        for operation in decode_operations(body, f"{TOPIC} at {record}"):
            if not isinstance(operation, Put):
                continue
            held = state.held.get(operation.number)
            if held is None or held.record != record:
                continue
            targets = [
                (queue.id, queue.marks[operation.number])
                for queue in (state.queues.get(number) for number, _ in operation.targets)
                if queue is not None and operation.number in queue.marks
            ]
            content = body[held.start : held.start + held.size]
            self._puts.append((operation.number, targets, content))
            self._fresh[operation.number] = content
            state.unplace(operation.number)
            carried += len(content)
        return carried or 1
