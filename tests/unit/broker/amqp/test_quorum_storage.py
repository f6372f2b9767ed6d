"""Quorum queues without a group: the state machine against a plain model, over crashes of the leader and trims.

The model is a dict of dicts; what of it is decided is a copy taken at each end of a turn.
"""

from __future__ import annotations

import copy
import tracemalloc

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratamq.broker.amqp import quorum_storage
from stratamq.broker.amqp.messages import Message, encode_address
from stratamq.broker.amqp.quorum_state import QuorumState
from stratamq.broker.amqp.quorum_storage import QuorumStorage
from stratamq.errors import CorruptionError, StoreFull
from stratamq.formats.quorum_record import decode_first
from stratamq.protocols.amqp.properties import Facts, encode_properties
from tests.unit.broker.amqp.quorum_log import MemoryLog

NAMES = ("a", "b", "c")
BODY_BYTES_MAX = 700
MARK = {(0, False): 0, (0, True): 2}


def message(body: bytes) -> Message:
    return Message("ex", "key", encode_address("ex", "key"), Facts(encode_properties({})), body, 1_600_000_000_000)


def leading(log: MemoryLog, term: int = 1) -> QuorumStorage:
    """A storage that has taken the log over."""
    storage = QuorumStorage(log)
    for _ in storage.load(term):
        pass
    return storage


def contents(storage: QuorumStorage, name: str) -> list[tuple[bytes, bool, int]]:
    """What a queue would deliver, from its first message on: body, whether delivered before, how often it came back."""
    found = storage.open_queue(name).fetch(-1, 1_000)
    return [(stored.message.body, stored.redelivered, stored.deliveries) for stored in found]


class QuorumMachine(RuleBasedStateMachine):
    """One leader after the other. A message of the model: [number, body, how often it came back, with a consumer]."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(quorum_storage, "GARBAGE_BYTES", 1_500)
        self.patch.setattr(quorum_storage, "CARRY_BYTES", 300)
        self.log = MemoryLog(body_bytes_max=BODY_BYTES_MAX)
        self.storage = leading(self.log)
        self.model: dict[str, list[list]] = {}
        self.definitions: list[str] = []
        self.bodies = 0
        self.term = 1
        self.turns: list[tuple[int, dict, list]] = []
        """(end of its records, the model) of turns that were proposed and are not decided."""
        self.decided: tuple[dict, list] = ({}, [])
        self.released: list[int] = []
        self.held = 0
        self.storage.note_definitions({"queues": []})

    def teardown(self) -> None:
        self.patch.undo()

    @rule(name=st.sampled_from(NAMES))
    def declare(self, name: str) -> None:
        self.storage.open_queue(name)
        self.model.setdefault(name, [])
        row = {"name": name, "vhost": "/", "turn": len(self.definitions)}
        self.storage.note_changes([["+", "queues", row]])
        self.definitions.append(name)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if self.model.pop(name, None) is not None:
            self.storage.open_queue(name).delete()

    @rule(size=st.integers(0, 300), names=st.sets(st.sampled_from(NAMES), min_size=1))
    def publish(self, size: int, names: set[str]) -> None:
        known = sorted(names & set(self.model))
        self.bodies += 1
        body = b"%d-" % self.bodies + bytes(size)
        numbers = self.storage.publish(message(body), True, [self.storage.open_queue(name) for name in known])
        for name, number in zip(known, numbers, strict=True):
            self.model[name].append([number, body, 0, 0, False])

    @rule(name=st.sampled_from(NAMES), at=st.integers(0, 5), count=st.integers(1, 4))
    def take(self, name: str, at: int, count: int) -> None:
        for row in self.model.get(name, [])[at : at + count]:
            if not row[4]:
                self.storage.open_queue(name).take(row[0])
                row[4] = True

    @rule(name=st.sampled_from(NAMES), at=st.integers(0, 5), counts=st.booleans())
    def give_back(self, name: str, at: int, counts: bool) -> None:
        taken = [row for row in self.model.get(name, []) if row[4]]
        for row in taken[at : at + 1]:
            row[2] += counts
            row[3], row[4] = 1, False
            self.storage.open_queue(name).note_deliveries(row[0], row[2])

    @rule(name=st.sampled_from(NAMES), at=st.integers(0, 5), count=st.integers(1, 6))
    def settle(self, name: str, at: int, count: int) -> None:
        rows = self.model.get(name, [])
        self.storage.open_queue(name).ack(row[0] for row in rows[at : at + count]) if name in self.model else None
        del rows[at : at + count]

    @rule()
    def end_turn(self) -> None:
        if self.storage.wants_definitions:
            self.storage.note_definitions({"queues": [{"name": n, "vhost": "/"} for n in self.definitions]})
        mine = self.held = self.held + 1
        self.storage.hold(lambda: self.released.append(mine))
        before = self.log.end
        self.storage.propose()
        if self.log.end > before:
            self.turns.append((self.log.end, copy.deepcopy(self.model), list(self.definitions)))

    @rule(count=st.integers(1, 2))
    def decide(self, count: int) -> None:
        self.log.decide(count)
        while self.turns and self.turns[0][0] <= self.log.decided_end:
            self.decided = self.turns.pop(0)[1:]

    @precondition(lambda self: True)
    @rule(survivors=st.integers(0, 2), trims=st.booleans())
    def crash(self, survivors: int, trims: bool) -> None:
        """Another member leads. It has what is decided, and perhaps turns that were not."""
        kept = self.turns[:survivors]
        end = kept[-1][0] if kept else self.log.decided_end
        start = self.storage.decided_first if trims else -1
        self.log = self.log.next_leader(end - self.log.decided_end, start=start)
        if kept:
            self.decided = kept[-1][1:]
        self.model, self.definitions = copy.deepcopy(self.decided[0]), list(self.decided[1])
        for row in (row for rows in self.model.values() for row in rows):
            if row[4]:
                row[2:] = [row[2] + 1, 1, False]
        self.turns, self.released, self.held = [], [], 0
        self.term += 1
        self.storage = leading(self.log, self.term)
        assert sorted(self.storage.queue_names()) == sorted(self.model)
        known = (self.storage.state.definitions() or {"queues": []})["queues"]
        assert {row["name"] for row in known} == set(self.definitions)
        if not self.definitions and not self.log.end:
            self.storage.note_definitions({"queues": []})

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for name, rows in getattr(self, "model", {}).items():
            expected = [(row[1], bool(row[3]), row[2]) for row in rows if not row[4]]
            taken = {row[1] for row in rows if row[4]}
            assert [one for one in contents(self.storage, name) if one[0] not in taken] == expected

    @invariant()
    def nothing_is_told_before_it_is_decided(self) -> None:
        released = getattr(self, "released", [])
        assert released == list(range(1, len(released) + 1))
        if getattr(self, "turns", None):
            assert len(released) < self.held


TestQuorumMachine = QuorumMachine.TestCase
TestQuorumMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def ended(storage: QuorumStorage, log: MemoryLog) -> None:
    storage.propose()
    log.decide()


def test_old_records_are_emptied_so_that_a_reader_begins_near_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_storage, "GARBAGE_BYTES", 10_000)
    log = MemoryLog()
    storage = leading(log)
    storage.note_definitions({"queues": []})
    queue = storage.open_queue("q")
    storage.publish(message(b"stays"), True, [queue])
    ended(storage, log)
    for _ in range(100):
        (number,) = storage.publish(message(bytes(1_000)), True, [queue])
        ended(storage, log)
        queue.ack([number])
        if storage.wants_definitions:
            storage.note_definitions({"queues": []})
        ended(storage, log)
    span = log.end - decode_first(log.read(log.end - 1), "here")
    assert span <= 30  # of 201 records
    later = leading(log.next_leader(0, start=storage.decided_first))
    assert contents(later, "q") == [(b"stays", False, 0)]


def test_a_trim_waits_until_the_records_below_are_emptied() -> None:
    log = MemoryLog()
    storage = leading(log)
    storage.note_definitions({"queues": []})
    queue = storage.open_queue("q")
    storage.publish(message(b"stays"), True, [queue])
    ended(storage, log)
    assert storage.decided_first == 0
    storage.carry_below = log.end
    ended(storage, log)
    assert storage.wants_definitions
    storage.note_definitions({"queues": []})
    ended(storage, log)
    storage.note_changes([])
    storage.publish(message(b"next"), True, [queue])
    ended(storage, log)
    assert storage.decided_first >= 1
    assert [body for body, _, _ in contents(leading(log.next_leader(0, start=storage.decided_first)), "q")] == [
        b"stays",
        b"next",
    ]


def test_a_message_longer_than_a_record_is_refused_and_nothing_else_is_lost() -> None:
    log = MemoryLog(body_bytes_max=1_000)
    storage = leading(log)
    queue = storage.open_queue("q")
    with pytest.raises(StoreFull):
        storage.publish(message(bytes(2_000)), True, [queue])
    storage.publish(message(b"short"), True, [queue])
    ended(storage, log)
    assert contents(storage, "q") == [(b"short", False, 0)]


def test_after_a_failure_nothing_is_told_to_anybody() -> None:
    log = MemoryLog()
    reasons: list[str] = []
    storage = QuorumStorage(log, on_failed=reasons.append)
    list(storage.load(1))
    told: list[str] = []
    storage.hold(lambda: told.append("early"))
    storage.propose()
    _, done = log.proposals.popleft()
    done("leadership was lost")
    storage.hold(lambda: told.append("late"))
    storage.propose()
    assert (told, reasons, storage.failure) == ([], ["leadership was lost"], "leadership was lost")


@pytest.mark.parametrize("record", [b"", b"AQ\x01\0", b"XX\x01\0" + bytes(8), b"AQ\x02\0" + bytes(8)])
def test_a_record_that_is_none_is_corruption(record: bytes) -> None:
    with pytest.raises(CorruptionError):
        leading(MemoryLog([record]))


def test_memory_of_a_message() -> None:
    state, count = QuorumState(), 20_000
    state.open(1, "first")
    state.open(2, "second")
    tracemalloc.start()
    try:
        for number in range(1, count + 1):
            state.put(number, ((1, 0),))
            state.place(number, number // 200, 10, 100)
        one = tracemalloc.get_traced_memory()[0]
        for number in range(1, count + 1):
            state.put(number, ((2, 0),))
        two = tracemalloc.get_traced_memory()[0] - one
    finally:
        tracemalloc.stop()
    assert one / count < 250
    assert two / count < 110
