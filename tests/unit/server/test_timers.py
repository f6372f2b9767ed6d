"""Messages for a set time, through the request handlers, on a real store with real timer files."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratamq.broker.topics import TIMER_TOPIC
from stratamq.config import BrokerConfig
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.formats.timer import CHECKPOINT_BYTES
from stratamq.logstore.timer_store import TimerStore
from stratamq.logstore.types import PutResult, PutStatus
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.testing.clock import ManualClock
from tests.unit.server.harness import Harness, records

START = 1_767_225_600_000
CONFIG = BrokerConfig(timer_log_file_bytes=52 * 20 + 16, recall_messages=True)


class TimerHarness(Harness):
    """A broker with an open timer, and steps of a tenth of a second."""

    def __init__(self, directory: Path, config: BrokerConfig = CONFIG, clock: ManualClock | None = None) -> None:
        super().__init__(directory, config, clock)
        self.files = TimerStore.open(str(directory), file_bytes=config.timer_log_file_bytes)
        self.broker.timers.attach(self.files, self.clock.wall_ms(), self.broker.topics.names())

    def run(self, ms: int = 0, step: int = 500) -> None:
        """Let time pass."""
        self.broker.run_due()
        for _ in range(0, ms, step):
            self.clock.advance(step)
            self.broker.run_due()

    def sync(self) -> None:
        """One sync of the timer's files, as the server does every second."""
        waiting = self.store.unsynced()
        if waiting is not None:
            self.store.sync(waiting)
            self.store.synced(waiting)
        token = self.broker.timers.begin_sync()
        if token is not None:
            self.broker.timers.sync(token)

    def at(self, ms: int, body: bytes = b"x", **more: str) -> None:
        """Send a message that is due ``ms`` after the start."""
        answer = self.send(body=body, properties=encode_properties({"TIMER_DELIVER_MS": str(START + ms), **more}))
        assert answer.code == 0, answer.remark

    def bodies(self) -> list[bytes]:
        """What was delivered so far."""
        bodies: list[bytes] = []
        while len(bodies) < self.store.max_offset("T", 0):
            found = self.store.get("T", 0, len(bodies), 32)
            bodies += [record.body for view in found.records for record in records(bytes(view))]
        return bodies

    def stop(self) -> None:
        """Stop in order."""
        self.sync()
        self.broker.timers.close()
        self.store.close()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[TimerHarness]:
    made = TimerHarness(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("name", "value"), [("TIMER_DELIVER_MS", START + 5_500), ("TIMER_DELAY_MS", 5_500), ("TIMER_DELAY_SEC", 5)]
)
def test_a_message_comes_when_it_is_due_and_not_before(harness: TimerHarness, name: str, value: int) -> None:
    answer = harness.send(properties=encode_properties({name: str(value), "KEYS": "k"}))
    assert answer.code == 0
    harness.run(4_500)
    assert harness.bodies() == []
    harness.run(1_500)
    found = harness.store.get("T", 0, 0, 10)
    (record,) = records(bytes(found.records[0]))
    noted = decode_properties(record.properties)
    assert noted[name] == str(value)
    assert int(noted["TIMER_OUT_MS"]) == START + (4_000 if name == "TIMER_DELAY_SEC" else 5_000)
    assert int(noted["TIMER_DEQUEUE_MS"]) - START in (5_000, 6_000)
    assert "REAL_TOPIC" not in noted
    assert harness.files.wheel.pending() == 0


def test_due_already_is_stored_at_once_and_too_far_or_no_number_is_refused(harness: TimerHarness) -> None:
    harness.at(0)
    harness.at(-5_000)
    assert harness.bodies() == [b"x", b"x"]
    for value in (str(START + 259_200_001), "soon", "1e3", "9" * 30):
        answer = harness.send(properties=f"TIMER_DELIVER_MS\x01{value}\x02")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, value
    answer = harness.send(properties=f"TIMER_DELIVER_MS\x01{START - 1}\x02TIMER_DEL_UNIQKEY\x01T+K\x02")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    harness.at(259_200_000)
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 1


def test_a_level_comes_before_a_time_and_batches_take_none(harness: TimerHarness) -> None:
    harness.send(properties=f"TIMER_DELIVER_MS\x01{START + 60_000}\x02DELAY\x011\x02")
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0
    harness.run(1_500)
    assert harness.bodies() == [b"hello"]


def test_without_a_wheel_messages_for_a_time_are_refused(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    answer = harness.send(properties="TIMER_DELAY_SEC\x015\x02")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "timerWheelEnable" in (answer.remark or "")
    assert harness.ask(RequestCode.GET_TIMER_CHECK_POINT).code == ResponseCode.SYSTEM_ERROR
    harness.close()


def test_many_of_one_second_come_in_bounded_steps_in_order(tmp_path: Path) -> None:
    harness = TimerHarness(tmp_path, replace(CONFIG, timer_messages_per_step=10))
    for n in range(95):
        harness.at(3_000 if n % 3 else 2_000, str(n).encode())
    for _ in range(10):
        harness.broker.run_due()
    assert harness.files.wheel.pending() == 95
    harness.clock.advance(3_000)
    counts = []
    for _ in range(40):
        before = len(harness.bodies())
        harness.broker.run_due()
        counts.append(len(harness.bodies()) - before)
    assert max(counts) <= 10
    order = [int(body) for body in harness.bodies()]
    assert order == [n for n in range(95) if n % 3 == 0] + [n for n in range(95) if n % 3]
    assert len(harness.files.log.bases) > 3
    harness.stop()


def test_a_far_message_rolls_and_comes_in_time(tmp_path: Path) -> None:
    harness = TimerHarness(tmp_path, replace(CONFIG, timer_roll_window_slots=10))
    for due in (11_000, 35_500, 35_501):
        harness.at(due, str(due).encode())
    harness.run(35_000)
    assert harness.bodies() == [b"11000"]
    harness.run(1_500)
    assert sorted(harness.bodies()) == [b"11000", b"35500", b"35501"]
    found = harness.store.get("T", 0, 1, 1)
    times = decode_properties(records(bytes(found.records[0]))[0].properties)["TIMER_ROLL_TIMES"]
    assert int(times) >= 3
    harness.stop()


def test_recall_takes_a_message_back_and_bad_handles_are_refused(harness: TimerHarness) -> None:
    properties = encode_properties({"TIMER_DELIVER_MS": str(START + 5_000), "UNIQ_KEY": "ID1"})
    handle = harness.send(properties=properties).ext["recallHandle"]
    assert base64.urlsafe_b64decode(handle).decode() == f"v1 T broker-a {START + 4_001} ID1"
    harness.at(5_000, b"stays")
    harness.run(500)

    def recall(text: str, topic: str = "T") -> int:
        return harness.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": text}).code

    def handle_of(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).decode()

    illegal = ResponseCode.ILLEGAL_OPERATION
    assert recall("%%%") == illegal
    assert recall(handle_of("v2 T broker-a 1 ID1")) == illegal
    assert recall(handle_of("v1 T other 1767225604001 ID1")) == illegal
    assert recall(handle_of(f"v1 T broker-a {START - 1} ID1")) == illegal
    assert recall(handle, topic="TBW102") == illegal
    assert recall(handle, topic="nowhere") == ResponseCode.TOPIC_NOT_EXIST
    answer = harness.ask(RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle})
    assert (answer.code, answer.ext["msgId"]) == (0, "ID1")
    harness.run(6_000)
    assert harness.bodies() == [b"stays"]
    assert harness.broker.timers.metrics.count("T") == 0
    assert recall(handle) == illegal


def test_recall_is_off_by_default(tmp_path: Path) -> None:
    harness = TimerHarness(tmp_path, BrokerConfig())
    assert harness.ask(RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": "x"}).code == 16
    harness.stop()


def test_a_full_second_is_refused(tmp_path: Path) -> None:
    harness = TimerHarness(tmp_path, replace(CONFIG, timer_congest_per_slot=1))
    for _ in range(2):
        harness.at(2_000)
        harness.run()
    answer = harness.send(properties=f"TIMER_DELIVER_MS\x01{START + 2_000}\x02")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    harness.at(3_000)
    harness.stop()


@pytest.mark.parametrize("how", ["stop", "kill", "kill unsynced", "log lost", "wheel lost", "checkpoint lost"])
def test_nothing_is_forgotten_whatever_ends_the_process(tmp_path: Path, how: str) -> None:
    harness = TimerHarness(tmp_path)
    for n in range(50):
        harness.at(1_000 + n % 7 * 1_000, b"a%d" % n)
    harness.run(2_500)
    before = harness.bodies()
    assert before
    if how != "kill unsynced":
        harness.sync()
    for n in range(5):
        harness.at(4_000, b"b%d" % n)
    harness.run()
    if how == "stop":
        harness.stop()
    else:
        harness.files.close()
        harness.broker.timers._files = None
        harness.store.close()
    if how == "log lost":
        for path in (tmp_path / "timerlog").iterdir():
            path.unlink()
    elif how == "wheel lost":
        (tmp_path / "timerwheel").unlink()
    elif how == "checkpoint lost":
        (tmp_path / "config" / "timercheck").unlink()
    again = TimerHarness(tmp_path, clock=harness.clock)
    again.run(10_000)
    wanted = {b"a%d" % n for n in range(50)} | {b"b%d" % n for n in range(5)}
    assert set(again.bodies()) == wanted
    if how not in ("kill unsynced", "checkpoint lost"):
        assert len(again.bodies()) == len(wanted)
    again.stop()


def test_a_clock_set_back_and_forward(harness: TimerHarness) -> None:
    harness.at(5_000, b"first")
    harness.run(6_500)
    assert harness.bodies() == [b"first"]
    harness.clock.set_wall(START + 1_000)
    harness.at(3_000, b"second")
    harness.run(1_500)
    assert harness.bodies() == [b"first"]
    harness.run(1_000)
    assert harness.bodies() == [b"first", b"second"]
    harness.at(86_400_000, b"tomorrow")
    harness.run()
    harness.clock.set_wall(START + 2 * 86_400_000)
    harness.run()
    assert harness.bodies() == [b"first", b"second", b"tomorrow"]


def test_what_a_clock_set_back_delivered_does_not_come_again_after_a_restart(tmp_path: Path) -> None:
    harness = TimerHarness(tmp_path)
    harness.at(5_000, b"once")
    harness.run(6_500)
    harness.clock.set_wall(START + 1_000)
    harness.run()
    harness.stop()
    again = TimerHarness(tmp_path, clock=harness.clock)
    again.run(8_000)
    assert again.bodies() == [b"once"]
    again.stop()


def test_a_put_that_fails_is_tried_again(harness: TimerHarness) -> None:
    harness.at(2_000)
    harness.run()
    harness.committer.refuse_with = PutResult(PutStatus.OS_PAGE_CACHE_BUSY)
    harness.run(3_000)
    assert harness.bodies() == []
    harness.committer.refuse_with = None
    harness.run(2_000)
    assert harness.bodies() == [b"x"]


def test_notes_are_left_out_where_properties_have_no_room(harness: TimerHarness) -> None:
    harness.at(2_000, filler="f" * 32_520)
    harness.run(3_000)
    (record,) = records(bytes(harness.store.get("T", 0, 0, 1).records[0]))
    assert "filler" in decode_properties(record.properties)


def test_operators_see_how_far_the_timer_is(harness: TimerHarness) -> None:
    for _ in range(3):
        harness.at(9_000)
    harness.run()
    table = harness.broker.timers.runtime_table(harness.clock.wall_ms())
    assert (table["timerCongestNum"], table["timerOffsetBehind"], table["timerReadBehind"]) == (3, 0, 0)
    harness.sync()
    answer = harness.ask(RequestCode.GET_TIMER_CHECK_POINT)
    assert len(answer.body) == CHECKPOINT_BYTES
    assert int.from_bytes(answer.body[16:24], "big") == 3
    assert b'"T":{"count":3' in harness.ask(RequestCode.GET_TIMER_METRICS).body
    assert harness.send(topic=TIMER_TOPIC).code == ResponseCode.NO_PERMISSION


def test_a_unit_whose_message_was_lost_is_left_out(harness: TimerHarness) -> None:
    """A commit log that lost its end holds something else at the place that a unit points to."""
    harness.send(body=b"not a timer message")
    harness.at(50_000, b"later")
    harness.run()
    later = harness.files.last_unit()
    assert later is not None
    step_ms = START + 2_000
    for offset, size in ((0, 100), (later.physical_offset, later.message_bytes), (later.physical_offset + 1, 100)):
        harness.files.add(step_ms, magic=1, write_ms=START, offset=offset, size=size, topic_hash=later.topic_hash)
    harness.files.write()
    harness.run(5_000)
    assert harness.bodies() == [b"not a timer message"]
    harness.run(50_000)
    assert harness.bodies() == [b"not a timer message", b"later"]


def test_the_checkpoint_waits_for_the_commit_log_that_it_counts_on(harness: TimerHarness) -> None:
    harness.at(5_000)
    harness.run(500)
    assert harness.broker.timers.begin_sync() is None
    waiting = harness.store.unsynced()
    assert waiting is not None
    harness.store.sync(waiting)
    assert harness.broker.timers.begin_sync() is None
    harness.store.synced(waiting)
    token = harness.broker.timers.begin_sync()
    assert token is not None
    assert token.checkpoint.queue_offset == 1


def test_a_batch_with_a_message_for_a_time_is_refused(harness: TimerHarness) -> None:
    def item(properties: bytes) -> bytes:
        body = b"x"
        rest = bytes(12) + len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties
        return (len(rest) + 4).to_bytes(4, "big") + rest

    answer = harness.send(body=item(b"TIMER_DELAY_MS\x015000\x02"), m="true")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
    assert "batch" in (answer.remark or "")
