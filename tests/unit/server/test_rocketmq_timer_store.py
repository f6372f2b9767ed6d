"""Messages that wait in a store of RocketMQ 5.5.0: its wheel and timer log are read, and each comes at its time."""

from __future__ import annotations

import json

import pytest

from stratamq.config import BrokerConfig, StoreConfig
from stratamq.formats.timer import MAGIC_DELETE, decode_checkpoint_file, encode_checkpoint
from stratamq.testing.clock import ManualClock
from tests.golden.archives import GOLDEN, unpack_store
from tests.unit.server import harness as harness_module
from tests.unit.server.harness import records
from tests.unit.server.test_timers import TimerHarness

NAME = "rocketmq-5.5-timers"
SIZES = StoreConfig(commit_log_file_bytes=128 << 10, consume_queue_file_bytes=800, index_slots=64, index_entries=256)
RECALLED = {"timed 7", "timed 8"}
SECOND = 1_000


@pytest.fixture
def manifest():
    return json.loads((GOLDEN / NAME / "MANIFEST.json").read_text(encoding="utf-8"))


@pytest.fixture
def harness(tmp_path, monkeypatch, manifest):
    monkeypatch.setattr(harness_module, "SMALL", SIZES)
    last_ms = max(record["storeTimestamp"] for record in manifest["records"])
    config = BrokerConfig(timer_log_file_bytes=4 << 10)
    made = TimerHarness(unpack_store(NAME, tmp_path), config, ManualClock(last_ms + SECOND))
    yield made
    made.stop()


def timed(manifest):
    """Topic and due time by text, of what had not come when RocketMQ stopped."""
    return {row["text"]: (row["topic"], row["deliverMs"]) for row in manifest["sent"] if row.get("deliverMs")}


def delivered(harness):
    """Texts by topic."""
    found = {}
    for topic in ("Timed", "Later"):
        count, texts = harness.store.max_offset(topic, 0), []
        while len(texts) < count:
            views = harness.store.get(topic, 0, len(texts), 32).records
            texts += [record.body.decode() for view in views for record in records(bytes(view))]
        found[topic] = texts
    return found


def test_the_wheel_and_the_log_hold_what_was_sent(harness, manifest):
    sent, files = timed(manifest), harness.files
    slots = {(due - 1) // SECOND for _, due in sent.values()}
    counts = {slot: sum((due - 1) // SECOND == slot for _, due in sent.values()) for slot in slots}
    deletions = 0
    for slot in slots:
        position, length = files.wheel.slot(slot).last, 0
        while position >= 0:
            unit = files.log.read(position)
            assert unit.slot_ms // SECOND == slot
            deletions += bool(unit.magic & MAGIC_DELETE)
            position, length = unit.previous, length + 1
        assert length >= counts[slot]
    assert deletions == len(RECALLED)
    assert len(files.log.bases) > 1


def test_the_checkpoint_is_read_as_it_was_written(tmp_path):
    store = unpack_store(NAME, tmp_path)
    data = (store / "config" / "timercheck").read_bytes()
    found = decode_checkpoint_file(data)
    assert data.startswith(encode_checkpoint(found))


def test_each_message_comes_in_its_second_and_the_recalled_ones_never(harness, manifest):
    sent = timed(manifest)
    came = {text: None for texts in delivered(harness).values() for text in texts}
    assert set(came) == {"now", "soon 0", "soon 1"}
    first, last = min(due for _, due in sent.values()), max(due for _, due in sent.values())
    harness.clock.advance((first - 1) // SECOND * SECOND - harness.clock.wall_ms() - 1)
    harness.run(0)
    while harness.clock.wall_ms() < last + 2 * SECOND:
        for topic, texts in delivered(harness).items():
            for text in texts:
                if text not in came:
                    came[text] = (topic, harness.clock.wall_ms())
        harness.clock.advance(SECOND // 2)
        for _ in range(3):
            harness.broker.run_due()
    times = {text: place for text, place in came.items() if place}
    assert set(times) == set(sent) - RECALLED
    for text, (topic, ms) in times.items():
        assert topic == sent[text][0]
        assert -SECOND <= ms - sent[text][1] <= 2 * SECOND, text
