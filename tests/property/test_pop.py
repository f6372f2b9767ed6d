"""Pop consumption against a plain model: nothing is lost, what is acknowledged and stored never comes again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.server.harness import Harness, records
from tests.unit.server.test_pop import INVISIBLE, ack, change, fill, handles, later, pop


class PopMachine(RuleBasedStateMachine):
    """Random pops, acks, changes, time, and restarts with and without saved tables."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stratamq-pop-"))
        self.harness = Harness(self.folder)
        self.harness.broker.topics.ensure("T", queues=2)
        self.harness.broker.groups.get("g").retry_max_times = 10_000
        self.sent = 0
        self.acked: set[bytes] = set()
        self.held: list[tuple[bytes, tuple[str, int, str]]] = []

    @rule(count=st.integers(1, 5), queue=st.integers(0, 1))
    def send(self, count: int, queue: int) -> None:
        for _ in range(count):
            assert self.harness.send(body=b"%d" % self.sent, e=queue).code == 0
            self.sent += 1

    @rule(count=st.integers(1, 32), order=st.just("false"))
    def pop(self, count: int, order: str) -> None:
        answer = pop(self.harness, maxMsgNums=count, order=order)
        assert answer.code in (0, 210)
        found = [record.body for record in records(answer.body)]
        assert not self.acked & set(found), "an acknowledged message came again"
        if found:
            self.held += list(zip(found, handles(answer), strict=True))

    @rule(place=st.integers(0, 100))
    def ack(self, place: int) -> None:
        if self.held:
            body, handle = self.held.pop(place % len(self.held))
            before = self.is_held(handle)
            assert ack(self.harness, handle).code == 0
            if before:
                self.acked.add(body)

    def is_held(self, handle: tuple[str, int, str]) -> bool:
        """Whether the broker still counts the message as this handle's."""
        words = handle[2].split(" ")
        return any(
            (key.topic, key.queue_id, key.start, key.pop_ms) == (handle[0], int(words[6]), int(words[0]), int(words[1]))
            and handle[1] in one.left
            for key, one in self.harness.broker.pop._table._open.items()
        )

    @rule(place=st.integers(0, 100), invisible=st.sampled_from([0, 1, INVISIBLE, 3 * INVISIBLE]))
    def change(self, place: int, invisible: int) -> None:
        if self.held:
            body, handle = self.held.pop(place % len(self.held))
            self.held.append((body, change(self.harness, handle, invisible)))

    @rule(ms=st.sampled_from([1, 1_000, INVISIBLE // 2, INVISIBLE, 5 * INVISIBLE]))
    def wait(self, ms: int) -> None:
        later(self.harness, ms)

    @rule(saved=st.booleans())
    def restart(self, saved: bool) -> None:
        if saved:
            for file, value in self.harness.broker.unsaved(with_offsets=True):
                file.store(value)
        else:  # topics and groups are saved at once in a running broker, offsets now and then
            for file, value in self.harness.broker.unsaved(with_offsets=False):
                file.store(value)
        self.harness.close()
        self.harness = Harness(self.folder, clock=self.harness.clock)
        self.harness.broker.pop.check_loaded()
        self.harness.broker.groups.get("g").retry_max_times = 10_000

    @invariant()
    def nothing_runs_away(self) -> None:
        assert self.harness.broker.pop.open_count <= self.sent + len(self.held) + 1_000

    def teardown(self) -> None:
        """Everything that was not acknowledged comes, in the end."""
        seen: set[bytes] = set()
        for _ in range(60):
            later(self.harness, 6 * INVISIBLE)
            answer = pop(self.harness)
            found: list[Any] = [record.body for record in records(answer.body)]
            assert not self.acked & set(found)
            seen.update(found)
            if answer.code == 0:
                for handle in handles(answer):
                    assert ack(self.harness, handle).code == 0
            elif len(seen) + len(self.acked) >= self.sent:
                break
        self.harness.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert seen | self.acked == {b"%d" % number for number in range(self.sent)}


TestPop = PopMachine.TestCase
TestPop.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_the_machine_can_fail() -> None:
    """A broker that forgot an ack would be found out: the check is not empty."""
    machine = PopMachine()
    fill(machine.harness, 1)
    machine.sent = 1
    machine.acked.add(b"0")
    failed = False
    try:
        machine.pop(32, "false")
    except AssertionError:
        failed = True
    machine.harness.close()
    shutil.rmtree(machine.folder, ignore_errors=True)
    assert failed
