"""Transactions against a plain model: what is sent, answered, asked about, restarted and crashed in any order.

A crash loses what was not saved: the marks that waited, and the reading positions since they were last written. Each
may repeat a committed message once, whatever was open in how many places.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.server.harness import Harness
from tests.unit.server.test_transactions import Producer, end, half, stored

COMMIT, ROLLBACK = 8, 12


class TransactionMachine(RuleBasedStateMachine):
    """A producer never changes its mind: what it answers first it answers always."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = None
        self.places: dict[str, tuple[int, int]] = {}
        self.decided: dict[str, int] = {}
        self.crashed = False
        self.before: Counter[str] = Counter()
        """What was delivered up to the last crash."""
        self._open()

    def _open(self) -> None:
        self.harness = Harness(self.folder, clock=self.clock)
        self.clock = self.harness.clock
        self.producer = self.harness.peer = Producer()
        self.harness.heartbeat("c")

    def _save(self) -> None:
        for file, value in self.harness.broker.unsaved(with_offsets=True):
            file.store(value)

    def _delivered(self) -> Counter[str]:
        return Counter(record.body.decode() for record in stored(self.harness, "T"))

    @rule()
    def send(self) -> None:
        number = len(self.places)
        self.places[f"m{number}"] = half(self.harness, number, g=self.clock.wall_ms())

    @rule(data=st.data(), what=st.sampled_from([COMMIT, ROLLBACK]))
    def answer(self, data: st.DataObject, what: int) -> None:
        if self.places:
            name = data.draw(st.sampled_from(sorted(self.places)))
            what = self.decided.setdefault(name, what)
            assert end(self.harness, self.places[name], what) == 0

    @rule(data=st.data(), what=st.sampled_from([0, COMMIT, ROLLBACK]))
    def answer_check(self, data: st.DataObject, what: int) -> None:
        if self.producer.asked:
            ext, record = data.draw(st.sampled_from(self.producer.asked))
            name = record.body.decode()
            if what:
                what = self.decided.setdefault(name, what)
            place = int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])
            assert end(self.harness, place, what, checked=True) == (0 if what else None)

    @rule(ms=st.sampled_from([1, 3_000, 7_000, 31_000]), steps=st.integers(1, 10))
    def run(self, ms: int, steps: int) -> None:
        self.clock.advance(ms)
        for _ in range(steps):
            self.harness.broker.run_due()

    @rule()
    def save(self) -> None:
        self._save()

    @rule()
    def crash(self) -> None:
        self.crashed = True
        self.before = self._delivered()
        self.harness.close()
        self._open()

    @invariant()
    def committed_is_there_and_nothing_else(self) -> None:
        delivered = self._delivered()
        assert set(delivered) == {name for name, what in self.decided.items() if what == COMMIT}
        assert set((delivered - self.before).values()) <= {1}
        if not self.crashed:
            assert self.harness.broker.half_counts.count("T") == len(self.places) - len(self.decided)

    def teardown(self) -> None:
        """At the end the producer answers everything; then nothing may stay open."""
        for _ in range(3):
            self.producer.asked.clear()
            self.clock.advance(40_000)
            for _ in range(4 * len(self.places) + 20):
                self.harness.broker.run_due()
            for ext, record in self.producer.asked:
                what = self.decided.setdefault(record.body.decode(), ROLLBACK)
                end(self.harness, (int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])), what, checked=True)
        self.committed_is_there_and_nothing_else()
        self.clock.advance(40_000)
        self.producer.asked.clear()
        for _ in range(100):
            self.harness.broker.run_due()
        assert self.producer.asked == []
        assert set(self.decided) == set(self.places)
        self.harness.close()
        shutil.rmtree(self.folder)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
