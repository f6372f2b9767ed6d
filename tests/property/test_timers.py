"""The timer against a plain list: any times, steps of the clock, restarts, kills, deletions, rolls."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratamq.formats.properties import encode_properties
from stratamq.logstore.timer_store import TimerStore
from stratamq.testing.clock import ManualClock
from tests.unit.server.test_timers import CONFIG, START, TimerHarness

STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 60_000)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("pass"), st.integers(1, 40)),
    st.tuples(st.just("jump"), st.integers(-30_000, 100_000)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("stop"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
)


class World:
    """A broker with a timer, and what has to come of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = replace(CONFIG, timer_roll_window_slots=20, timer_messages_per_step=7)
        self.harness = TimerHarness(directory, self.config)
        self.due: dict[bytes, int] = {}
        self.deleted: set[bytes] = set()
        self.seen_at: dict[bytes, int] = {}
        self.is_lossy = False

    @property
    def clock(self) -> ManualClock:
        return self.harness.clock

    def look(self) -> None:
        """What came: nothing before its time by the highest clock there was."""
        for body in self.harness.bodies():
            self.seen_at.setdefault(body, self.clock.wall_ms())

    def step(self, kind: str, value: int) -> None:
        """Do one thing."""
        harness = self.harness
        if kind == "send":
            body = b"%d" % len(self.due)
            due = self.clock.wall_ms() + value
            self.due[body] = due
            properties = encode_properties({"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": body.decode()})
            assert harness.send(body=body, properties=properties).code == 0
        elif kind == "delete":
            self.delete(b"%d" % value)
        elif kind == "pass":
            harness.run(value * 100, step=100)
        elif kind == "jump":
            self.clock.set_wall(max(START, self.clock.wall_ms() + value))
            harness.run()
        elif kind == "sync":
            harness.sync()
        else:
            self.restart(kind)
        self.look()

    def delete(self, body: bytes) -> None:
        """Ask for a deletion; it may come too late."""
        due = self.due.get(body, 0)
        if due > self.clock.wall_ms() + 1_000:
            key = {"TIMER_DELIVER_MS": str(due), "TIMER_DEL_UNIQKEY": "T+" + body.decode()}
            assert self.harness.send(body=b"d" + body, properties=encode_properties(key)).code == 0
            self.deleted.add(body)

    def restart(self, kind: str) -> None:
        """Stop in order, or leave everything as a kill does."""
        if kind == "stop":
            self.harness.stop()
        else:
            self.is_lossy = True
            self.harness.files.close()
            self.harness.store.close()
        self.harness = TimerHarness(self.directory, self.config, self.harness.clock)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=25))
def test_all_come_in_time_whatever_happens(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        early: set[bytes] = set()
        for kind, value in steps:
            world.step(kind, value)
            early |= {body for body, at in world.seen_at.items() if body in world.due and at < world.due[body]}
            if kind == "jump" and value < 0:
                early.clear()
        assert not early
        for _ in range(12):
            world.clock.advance(30_000)
            for _ in range(20):
                world.harness.broker.run_due()
        found = Counter(body for body in world.harness.bodies() if not body.startswith(b"d"))
        assert set(found) >= set(world.due) - world.deleted
        if not world.is_lossy:
            assert max(found.values(), default=1) == 1
        assert world.harness.files.wheel.pending() == 0
        world.harness.stop()


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(0, 400), st.integers(0, 200))
@settings(max_examples=20, deadline=None)
def test_the_wheel_made_anew_is_the_wheel(times: list[int], passed: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = TimerStore.open(folder, file_bytes=1056)
        files.read_ms = START
        for number, step in enumerate(times):
            magic = 5 if number % 5 == 4 else 1
            files.add(START + step * 1_000, magic=magic, write_ms=START, offset=number, size=1, topic_hash=0)
        files.write()
        files.read_ms = START + passed * 1_000
        files.sync(files.begin_sync())
        kept = {step: files.wheel.slot(START // 1_000 + step) for step in range(401)}
        for number in range(cut):  # not synced: a kill takes it away
            files.add(START + 400_000, magic=1, write_ms=START, offset=number, size=1, topic_hash=0)
        files.write()
        files.close()
        again = TimerStore.open(folder, file_bytes=1056)
        for step in range(401):
            wanted = kept[step] if step >= passed else None
            assert again.wheel.slot(START // 1_000 + step) == wanted
        again.close()
