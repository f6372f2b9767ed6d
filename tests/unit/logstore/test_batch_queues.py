"""Queues of batches (queue.type=BatchCQ): one record for many messages, read by offset, the same after any end."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from stratamq.config import FlushMode, RetentionConfig
from stratamq.errors import MessageRefused, OffsetOutOfRange, StrayFile
from stratamq.formats.batch_consume_queue import (
    BATCH_UNIT_BYTES,
    BatchUnit,
    decode_batch_units,
    encode_batch_unit,
    inner_properties,
    inner_span,
)
from stratamq.formats.java import tags_code
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.logstore.check import check_store
from stratamq.logstore.explain import explain_file
from stratamq.logstore.inspect import inspect_store
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.search import at_offsets, by_time
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import GetStatus, QueueKey
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import FOREVER, abandon, message, open_store, put, records_of, small_config

SMALL = small_config(batch_consume_queue_file_bytes=46 * 3, light_queues=True, multi_dispatch=True)


def entry(body, **properties):
    """One message in the body of a batch."""
    text = encode_properties(properties).encode()
    size = 20 + len(body) + 2 + len(text)
    return (
        size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big") + body + len(text).to_bytes(2, "big") + text
    )


def batch(*bodies, topic="B", queue_id=0, inner=None, **properties):
    """A message that is an inner batch."""
    inside = b"".join(entry(body.encode(), **(inner or {})) for body in bodies)
    properties = {"UNIQ_KEY": f"u-{bodies[0]}", "INNER_NUM": len(bodies)} | properties
    return message(inside, topic=topic, queue_id=queue_id, sys_flag=0xC0, **properties)


def unfold(record):
    """(queue offset, body) of every message in a record."""
    if not record.sys_flag & 0x80:
        return [(record.queue_offset, bytes(record.body))]
    known = decode_properties(record.properties)
    found, at, body = [], 0, bytes(record.body)
    while at < len(body):
        size, length = int.from_bytes(body[at : at + 4], "big"), int.from_bytes(body[at + 16 : at + 20], "big")
        found.append((int(known["INNER_BASE"]) + len(found), body[at + 20 : at + 20 + length]))
        at += size
    assert len(found) == int(known["INNER_NUM"])
    return found


def read(store, topic="B", queue_id=0, *, batch=4):
    """Bodies of a queue of batches, in order; checks that offsets follow each other."""
    found, offset = [], store.min_offset(topic, queue_id)
    first = offset
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, batch)
        assert result.status is GetStatus.FOUND, result
        inside = [pair for view in result.records for record in records_of(view) for pair in unfold(record)]
        assert result.message_count == len(inside)
        assert [at for at, _ in inside] == list(range(offset, result.next_offset))
        found += [body for _, body in inside]
        offset = result.next_offset
    assert len(found) == store.max_offset(topic, queue_id) - first
    return found


def fresh(directory, config=SMALL, **more):
    store = open_store(directory, config, **more)
    store.set_queue_type("B", is_batch=True)
    return store


def fill(store, seed=7, count=40):
    """Random messages; returns what each queue of B holds, and light queue x."""
    rng, expected, light = random.Random(seed), {0: [], 1: []}, []
    for number in range(count):
        queue_id, names = rng.randint(0, 1), {"INNER_MULTI_DISPATCH": "%LMQ%x"} if rng.random() < 0.3 else {}
        bodies = [f"{number}.{part}" for part in range(rng.choice([1, 1, 2, 5, 11]))]
        if rng.random() < 0.6:
            put(store, batch(*bodies, queue_id=queue_id, **names))
        else:
            bodies = bodies[:1]
            put(store, message(bodies[0], topic="B", queue_id=queue_id, KEYS=f"k{number}", **names))
        put(store, message(f"plain {number}", topic="T", KEYS=f"t{number}"))
        expected[queue_id] += [body.encode() for body in bodies]
        light += [number] if names else []
    return expected, light


def test_a_unit_has_46_bytes():
    unit = BatchUnit(4096, 335, -5, 1_700_000_000_000, 12, 3)
    raw = encode_batch_unit(unit)
    assert raw.hex(" ") == (
        "00 00 00 00 00 00 10 00 00 00 01 4f ff ff ff ff ff ff ff fb 00 00 01 8b cf e5 68 00 "
        "00 00 00 00 00 00 00 0c 00 03 ff ff ff ff 00 00 00 00"
    )
    assert decode_batch_units(raw + raw) == [unit, unit]
    assert (unit.end_offset, unit.is_valid, BatchUnit(0, 0, 0, 0, 0, 0).is_valid) == (15, True, False)


@pytest.mark.parametrize(
    ("properties", "span"),
    [
        ({"INNER_NUM": "3", "INNER_BASE": "9"}, (9, 3)),
        ({"INNER_NUM": "3"}, (5, 1)),
        ({"INNER_NUM": "0", "INNER_BASE": "9"}, (5, 1)),
        ({"INNER_NUM": "40000", "INNER_BASE": "9"}, (5, 1)),
        ({"INNER_NUM": "-3", "INNER_BASE": "9"}, (5, 1)),
        ({"INNER_NUM": "3", "INNER_BASE": "9" * 30}, (5, 1)),
        ({}, (5, 1)),
    ],
)
def test_how_many_messages_a_record_holds(properties, span):
    assert inner_span(encode_properties(properties), 5) == span


def test_properties_inside_are_read_as_far_as_they_go():
    good = entry(b"one", KEYS="a") + entry(b"", KEYS="b")
    assert [decode_properties(text) for text in inner_properties(good)] == [{"KEYS": "a"}, {"KEYS": "b"}]
    for cut in range(len(good)):
        assert len(list(inner_properties(good[:cut]))) <= 1
    assert list(inner_properties(b"\xff" * 64)) == []


def test_a_batch_is_one_record_and_many_offsets(tmp_path):
    store = fresh(tmp_path)
    store.append([batch("a", "b", "c"), message("d", topic="B"), batch("e", "f")])
    arrivals = store.commit().arrivals
    assert [(arrival.queue, arrival.max_offset, arrival.tags_codes) for arrival in arrivals] == [
        (QueueKey("B", 0), 6, ())
    ]
    assert read(store) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    for offset, following in enumerate([3, 3, 3, 4, 6, 6]):
        result = store.get("B", 0, offset, 1)
        assert (result.status, result.next_offset) == (GetStatus.FOUND, following)
    (view,) = store.get("B", 0, 5, 9).records
    known = decode_properties(next(records_of(view)).properties)
    assert (known["INNER_BASE"], known["INNER_NUM"]) == ("4", "2")
    assert store.get("B", 0, 6, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get("B", 0, 9, 1).status is GetStatus.OFFSET_OVERFLOW_BADLY
    store.close()
    units = decode_batch_units((tmp_path / "batchconsumequeue/B/0/00000000000000000000").read_bytes())
    assert [(unit.base_offset, unit.messages, unit.compacted_offset) for unit in units] == [
        (0, 3, -1),
        (3, 1, -1),
        (4, 2, -1),
    ]
    assert not (tmp_path / "consumequeue/B").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        batch("a", topic="T"),
        batch("a", INNER_NUM=0),
        batch("a", INNER_NUM=32768),
        batch("a", INNER_NUM="x"),
        message("a", topic="B", INNER_NUM=2),
        message("a", topic="B", sys_flag=0x40, INNER_NUM=1),
        message("a", topic="T", sys_flag=0x80),
    ],
)
def test_what_is_no_batch_for_a_topic_of_batches_is_refused(tmp_path, wrong):
    store = fresh(tmp_path)
    with pytest.raises(MessageRefused):
        store.append([batch("fine"), wrong])
    assert store.commit() is None
    put(store, batch("a", "b"))
    assert read(store) == [b"a", b"b"]
    store.close()


def test_tags_of_a_batch_are_left_to_the_consumer(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a"), message("red", topic="B", TAGS="red"), message("blue", topic="B", TAGS="blue"))
    result = store.get("B", 0, 0, 9, tags_codes=frozenset([tags_code("blue")]))
    assert [record.body for view in result.records for record in records_of(view)][1:] == [b"blue"]
    assert (result.message_count, result.next_offset) == (2, 3)
    result = store.get("B", 0, 1, 9, tags_codes=frozenset([tags_code("green")]))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)
    store.close()


class Wants:
    cost = 1

    def __init__(self, text):
        self.text = text

    def matches(self, properties):
        return self.text in properties


def test_a_filter_by_properties_looks_into_batches(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b", inner={"colour": "red"}), batch("c", inner={"colour": "blue"}))
    result = store.get("B", 0, 0, 9, matching=Wants("blue"))
    assert [pair for view in result.records for r in records_of(view) for pair in unfold(r)] == [(2, b"c")]
    assert result.next_offset == 3
    store.close()


def test_a_batch_that_was_not_synced_is_not_seen(tmp_path):
    store = fresh(tmp_path, small_config(flush_mode=FlushMode.SYNC))
    store.append([batch("a", "b")])
    token = store.commit()
    assert store.max_offset("B", 0) == 0
    store.sync(token)
    store.synced(token)
    assert read(store) == [b"a", b"b"]
    store.close()


def test_a_batch_taken_back_gives_its_offsets_back(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b"))
    store.append([batch("lost", "too"), batch("more")])
    store._batch.undo()
    put(store, batch("c"))
    assert read(store) == [b"a", b"b", b"c"]
    store.close()


def test_times(tmp_path):
    clock = ManualClock()
    store = fresh(tmp_path, clock=clock)
    times = []
    for number in range(9):
        times.append(clock.wall_ms())
        put(store, batch(f"{number}a", f"{number}b"))
        clock.advance(100)
    assert [store.offset_by_time("B", 0, ms) for ms in times] == list(range(0, 18, 2))
    assert store.offset_by_time("B", 0, times[3] + 1) == 8
    assert store.offset_by_time("B", 0, times[3] + 1, upper=True) == 7
    assert store.offset_by_time("B", 0, times[-1] + 1) == 18
    assert store.earliest_store_time("B", 0) == times[0]
    assert [unit.size > 0 for unit in store.units("B", 0, 3, 4)] == [True, True]
    store.close()


@pytest.mark.parametrize("by_blocks", [False, True])
@pytest.mark.parametrize(
    "victim", ["", "consumequeue", "batchconsumequeue", "batchconsumequeue/B/1", "checkpoint", "everything"]
)
@pytest.mark.parametrize("clean", [False, True])
def test_batches_are_the_same_after_any_end(tmp_path, monkeypatch, by_blocks, victim, clean):
    if by_blocks:
        monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)
    store = fresh(tmp_path)
    expected, light = fill(store)
    if clean:
        store.close()
    else:
        abandon(store)
    config = {"topicConfigTable": {"B": {"attributes": {"queue.type": "BatchCQ"}}}}
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/topics.json").write_text(json.dumps(config))
    if victim == "checkpoint":
        (tmp_path / victim).unlink()
    elif victim == "everything":
        for folder in ("consumequeue", "batchconsumequeue", "index"):
            shutil.rmtree(tmp_path / folder)
    elif victim:
        shutil.rmtree(tmp_path / victim)
    store = open_store(tmp_path, SMALL)
    assert {number: read(store, queue_id=number) for number in (0, 1)} == expected
    assert store.max_offset("%LMQ%x", 0) == len(light)
    put(store, batch("next", "one"))
    assert read(store)[-2:] == [b"next", b"one"]
    store.close()
    store = open_store(tmp_path, SMALL)
    assert store.recovery.clean
    assert read(store, queue_id=1) == expected[1]
    store.close()
    assert check_store(tmp_path).findings == []


def test_a_torn_end_takes_its_units_with_it(tmp_path):
    store = fresh(tmp_path)
    expected, _ = fill(store, count=12)
    end = store.max_physical_offset
    put(store, batch("torn", "away"))
    abandon(store)
    path = tmp_path / "commitlog" / f"{end - end % 4096:020d}"
    with open(path, "r+b") as file:
        file.seek(end % 4096 + 60)
        file.write(bytes(100))
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path, SMALL)
    assert store.recovery.end == end
    assert read(store) == expected[0]
    put(store, batch("instead"))
    assert read(store)[-1] == b"instead"
    store.close()


def test_a_deleted_topic_of_batches_begins_anew_as_whatever_is_said(tmp_path):
    store = fresh(tmp_path)
    fill(store, count=9)
    store.delete_topic("B")
    assert not (tmp_path / "batchconsumequeue/B").exists()
    put(store, message("plain", topic="B"))
    assert store.max_offset("B", 0) == 1
    assert (tmp_path / "consumequeue/B/0").is_dir()
    store.set_queue_type("B", is_batch=True)
    with pytest.raises(MessageRefused):
        store.append([batch("no")])
    store.close()
    store = open_store(tmp_path, SMALL)
    assert store.max_offset("B", 0) == 1
    store.close()


def test_a_topic_has_queues_of_one_kind(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a"))
    store.close()
    shutil.copytree(tmp_path / "batchconsumequeue/B", tmp_path / "consumequeue/B")
    for path in (tmp_path / "consumequeue/B/0").iterdir():
        path.write_bytes(bytes(200))
    with pytest.raises(StrayFile, match="queues lie at"):
        open_store(tmp_path, SMALL)


def test_files_keep_their_length_whatever_the_setting(tmp_path, caplog):
    store = fresh(tmp_path)
    put(store, batch("a", "b"))
    store.close()
    store = open_store(tmp_path, small_config())
    put(store, *(batch(f"{number}") for number in range(6)))
    assert len(read(store)) == 8
    store.close()
    assert "mapperFileSizeBatchConsumeQueue" in caplog.text
    sizes = [path.stat().st_size for path in sorted((tmp_path / "batchconsumequeue/B/0").iterdir())]
    assert sizes == [3 * BATCH_UNIT_BYTES] * 3


def test_tools_read_queues_of_batches(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b", "c"), message("d", topic="B"), batch("e", "f"))
    store.close()
    view = inspect_store(tmp_path)
    (queue,) = [queue for queue in view.queues if queue.topic == "B"]
    assert (queue.min_offset, queue.max_offset, queue.messages, queue.unconfirmed) == (0, 6, 6, 0)
    file = tmp_path / "batchconsumequeue/B/0/00000000000000000000"
    explained = explain_file(file, 50)
    assert explained.kind == "unit of queue offsets 3 to 3"
    assert [field.length for field in explained.fields] == [8, 4, 8, 8, 8, 2, 4, 4]
    with StoreSnapshot.open(tmp_path) as snapshot:
        assert [record.queue_offset for record in at_offsets(snapshot, "B", 0, 1, 5)] == [0, 3, 4]
        found = by_time(snapshot, "B", None, from_ms=0, until_ms=FOREVER, limit=2)
        assert (len(found.records), found.has_more) == (2, True)
        with pytest.raises(OffsetOutOfRange):
            at_offsets(snapshot, "B", 0, 5, 9)


@pytest.mark.parametrize(("at", "kind"), [(3, "unit-missing"), (11, "unit"), (30, "unit"), (37, "unit")])
def test_a_damaged_unit_is_found(tmp_path, at, kind):
    store = fresh(tmp_path)
    put(store, batch("a", "b"), batch("c"), message("d", topic="B"))
    store.close()
    path = tmp_path / "batchconsumequeue/B/0/00000000000000000000"
    raw = bytearray(path.read_bytes())
    raw[46 + at] ^= 4
    path.write_bytes(raw)
    report = check_store(tmp_path)
    assert report.is_damaged
    assert report.findings[0].kind == kind


def test_records_without_a_unit_are_found(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b"), message("other"), batch("c"))
    store.close()
    path = tmp_path / "batchconsumequeue/B/0/00000000000000000000"
    raw = path.read_bytes()
    path.write_bytes(raw[:46] + bytes(len(raw) - 46))
    assert [finding.kind for finding in check_store(tmp_path).findings] == ["unit-missing"]


def test_expired_files_go_and_the_queue_begins_later(tmp_path):
    clock = ManualClock(1_700_000_000_000)
    store = fresh(tmp_path, clock=clock)
    for number in range(60):
        put(store, batch(f"{number}a", f"{number}b"), message(bytes(300), topic="T"))
    clock.advance(100 * 3_600_000)
    put(store, batch("new"))
    service = RetentionService(
        store, RetentionConfig(delete_when=";".join(f"{hour:02d}" for hour in range(24))), clock=clock, offsets=dict
    )
    for _ in range(3):
        for step in service.round():
            if step.blocking is not None:
                step.blocking()
    low = store.min_physical_offset
    assert low > 0
    queue = store._queues["B", 0]
    assert queue.unit(queue.min_offset).physical_offset >= low
    assert queue.bases[0] > 0
    kept = read(store)
    assert kept[-1] == b"new"
    assert 121 - len(kept) == store.min_offset("B", 0)
    queue.min_offset = 1
    service._corrected_ms = None
    for step in service.round():
        if step.blocking is not None:
            step.blocking()
    assert read(store) == kept
    store.close()
    store = open_store(tmp_path, SMALL)
    assert read(store) == kept
    store.close()
    assert not check_store(tmp_path).is_damaged


def test_the_position_that_rocketmq_5_5_keeps_in_the_checkpoint_is_nothing_odd(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a"))
    store.close()
    with open(tmp_path / "checkpoint", "r+b") as file:
        file.seek(40)
        file.write((0x35FF).to_bytes(8, "big"))
    assert check_store(tmp_path).findings == []
