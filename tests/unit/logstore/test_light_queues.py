"""Light queues (%LMQ%name): offsets given out, units in every queue named, the same again after any end."""

from __future__ import annotations

import shutil

import pytest

from stratamq.errors import MessageRefused
from stratamq.formats.properties import decode_properties
from stratamq.logstore.check import check_store
from stratamq.logstore.light_queues import is_light_name, light_units
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import Arrival, GetStatus, QueueKey
from tests.unit.logstore.stores import FOREVER, abandon, bodies, message, open_store, put, records_of, small_config

LIGHT = small_config(light_queues=True, multi_dispatch=True)


def light(body, *names, topic="P", **fields):
    return message(body, topic=topic, INNER_MULTI_DISPATCH=",".join(f"%LMQ%{name}" for name in names), **fields)


def read(store, name, *, batch=3):
    """Bodies of a light queue; checks that no offset is skipped."""
    topic, found = f"%LMQ%{name}", []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        result = store.get(topic, 0, offset, batch)
        assert result.status is GetStatus.FOUND
        assert result.next_offset == offset + result.message_count
        found += [record.body for view in result.records for record in records_of(view)]
        offset = result.next_offset
    return found


def properties_at(store, topic, offset):
    (view,) = store.get(topic, 0, offset, 1).records
    return decode_properties(next(records_of(view)).properties)


def fill(store, count=60):
    for number in range(count):
        names = [name for name, every in (("a", 1), ("b", 2), ("c", 7)) if number % every == 0]
        put(store, light(f"{number}", *names, KEYS=f"k{number}"), message(f"plain {number}", topic="P"))


def expected(count=60):
    return {name: [str(n).encode() for n in range(0, count, every)] for name, every in (("a", 1), ("b", 2), ("c", 7))}


def test_a_message_is_stored_once_and_found_in_every_queue_it_names(tmp_path):
    store = open_store(tmp_path, LIGHT)
    store.append([light("one", "a", "b"), light("two", "b"), light("three", "a")])
    token = store.commit()
    arrivals = {arrival.queue: arrival for arrival in token.arrivals}
    assert arrivals[QueueKey("%LMQ%a", 0)] == Arrival(QueueKey("%LMQ%a", 0), 2, [0, 0])
    assert arrivals[QueueKey("%LMQ%b", 0)].max_offset == 2
    assert bodies(store, "P") == [b"one", b"two", b"three"]
    assert read(store, "a") == [b"one", b"three"]
    assert read(store, "b") == [b"one", b"two"]
    assert properties_at(store, "P", 0)["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
    assert properties_at(store, "P", 1)["INNER_MULTI_QUEUE_OFFSET"] == "1"
    assert properties_at(store, "P", 2)["INNER_MULTI_QUEUE_OFFSET"] == "1"
    store.close()


def test_offsets_that_a_client_made_up_are_replaced(tmp_path):
    store = open_store(tmp_path, LIGHT)
    put(store, light("x", "a", INNER_MULTI_QUEUE_OFFSET=77))
    put(store, message("y", topic="P", INNER_MULTI_QUEUE_OFFSET=5))
    assert properties_at(store, "P", 0)["INNER_MULTI_QUEUE_OFFSET"] == "0"
    assert "INNER_MULTI_QUEUE_OFFSET" not in properties_at(store, "P", 1)
    store.close()


def test_a_name_that_comes_twice_gets_one_unit(tmp_path):
    store = open_store(tmp_path, LIGHT)
    put(store, light("x", "a", "b", "a"), light("y", "a"))
    assert properties_at(store, "P", 0)["INNER_MULTI_QUEUE_OFFSET"] == "0,0,0"
    assert read(store, "a") == [b"x", b"y"]
    store.close()


@pytest.mark.parametrize(
    "topic", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC"]
)
def test_a_message_that_waits_somewhere_goes_into_no_light_queue_yet(tmp_path, topic):
    store = open_store(tmp_path, LIGHT)
    put(store, light("x", "a", topic=topic, INNER_MULTI_QUEUE_OFFSET=3))
    assert store.max_offset("%LMQ%a", 0) == 0
    assert "INNER_MULTI_QUEUE_OFFSET" not in properties_at(store, topic, 0)
    store.close()


def test_without_the_settings_it_is_a_message_like_any_other(tmp_path):
    store = open_store(tmp_path, small_config(multi_dispatch=True))
    put(store, light("x", "a"))
    assert store.queues() == [QueueKey("P", 0)]
    store.close()


@pytest.mark.parametrize("name", ["plain", "%LMQ%", "%LMQ%a/b", "%LMQ%" + "x" * 260, "%LMQ%a\0"])
def test_what_cannot_be_a_light_queue_is_refused_and_changes_nothing(tmp_path, name):
    store = open_store(tmp_path, LIGHT)
    with pytest.raises(MessageRefused) as caught:
        store.append([light("fine", "a"), message("x", topic="P", INNER_MULTI_DISPATCH=f"%LMQ%b,{name}")])
    assert caught.value.field == "INNER_MULTI_DISPATCH"
    assert store.commit() is None
    assert store.queues() == []
    store.close()


def test_no_more_light_queues_than_allowed(tmp_path):
    store = open_store(tmp_path, small_config(light_queues=True, multi_dispatch=True, light_queues_max=2))
    put(store, light("x", "a", "b"))
    with pytest.raises(MessageRefused, match="maxLmqConsumeQueueNum"):
        store.append([light("y", "a", "c")])
    put(store, light("z", "b", "a"))
    assert read(store, "a") == [b"x", b"z"]
    store.delete_topic("%LMQ%b")
    put(store, light("w", "c"))
    assert read(store, "c") == [b"w"]
    store.close()


def test_a_batch_that_finds_no_room_gives_all_offsets_back(tmp_path):
    store = open_store(tmp_path, LIGHT)
    put(store, light("x", "a"))
    store.append([light("lost", "a", "b")])
    store._batch.undo()
    put(store, light("y", "a", "b"))
    assert (read(store, "a"), read(store, "b")) == ([b"x", b"y"], [b"y"])
    store.close()


@pytest.mark.parametrize("by_blocks", [False, True])
@pytest.mark.parametrize("victim", ["", "consumequeue", "consumequeue/%LMQ%b", "checkpoint"])
@pytest.mark.parametrize("clean", [False, True])
def test_light_queues_are_the_same_after_any_end(tmp_path, monkeypatch, by_blocks, victim, clean):
    if by_blocks:
        monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)
    store = open_store(tmp_path, LIGHT)
    fill(store)
    if clean:
        store.close()
    else:
        abandon(store)
    if victim == "checkpoint":
        (tmp_path / victim).unlink()
    elif victim:
        shutil.rmtree(tmp_path / victim)
    store = open_store(tmp_path, LIGHT)
    assert {name: read(store, name) for name in "abc"} == expected()
    put(store, light("next", "a", "b", "c"))
    assert {name: read(store, name)[-1] for name in "abc"} == dict.fromkeys("abc", b"next")
    assert len(store.query("P", "k14", 5, 0, FOREVER).records) == 1
    store.close()
    assert check_store(tmp_path).findings == []


def test_a_topic_of_a_light_queue_s_name_shares_its_offsets(tmp_path, monkeypatch):
    monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)
    store = open_store(tmp_path, LIGHT)
    for number in range(9):
        store.append([message(f"direct {number}", topic="%LMQ%a", KEYS="k"), light(f"named {number}", "a")])
    put(store)
    found = read(store, "a")
    assert found[:3] == [b"direct 0", b"named 0", b"direct 1"]
    abandon(store)
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path, LIGHT)
    assert read(store, "a") == found
    store.close()
    assert check_store(tmp_path).findings == []


def test_a_deleted_light_queue_stays_deleted_and_begins_anew(tmp_path):
    store = open_store(tmp_path, LIGHT)
    fill(store, 10)
    store.delete_topic("%LMQ%b")
    put(store, light("new", "b"))
    abandon(store)
    store = open_store(tmp_path, LIGHT)
    assert read(store, "b") == [b"new"]
    assert len(read(store, "a")) == 10
    store.close()
    assert check_store(tmp_path).findings == []


def test_offsets_forged_while_nothing_was_given_out_do_not_keep_a_store_from_opening(tmp_path):
    forged = [light("f", "a", INNER_MULTI_QUEUE_OFFSET=offset) for offset in (2**50, 3, 2**58)]
    store = open_store(tmp_path, LIGHT)
    put(store, light("x", "a"))
    store._batch.dispatches_to_light_queues = False
    for one in forged:  # the plain way keeps what the client wrote
        prepared = store._batch.prepare(one, store._batch.queue_of(one))
        store._batch._add(prepared, store._batch.begin_together(prepared[4]))
    put(store)
    store._batch.dispatches_to_light_queues = True
    put(store, light("y", "a"))
    abandon(store)
    store = open_store(tmp_path, LIGHT)
    assert read(store, "a")[-1] == b"y"
    store.close()


def test_a_snapshot_reads_light_queues(tmp_path):
    store = open_store(tmp_path, LIGHT)
    fill(store)
    store.close()
    with StoreSnapshot.open(tmp_path) as snapshot:
        assert snapshot.queue("%LMQ%b", 0)[2:] == (0, 30, 0)
        assert len(snapshot.units("%LMQ%c", 0, 2, 5)) == 3


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("%LMQ%a", True),
        ("%LMQ%a%b+#", True),
        ("%LMQ%标签", True),
        ("%LMQ%", False),
        ("a", False),
        ("%LMQ%\udcff", False),
    ],
)
def test_names(name, is_one):
    assert is_light_name(name) is is_one


@pytest.mark.parametrize(
    ("names", "offsets", "found"),
    [
        ("%LMQ%a,%LMQ%b", "3,4", [("%LMQ%a", 3), ("%LMQ%b", 4)]),
        ("%LMQ%a,%LMQ%a", "3,3", [("%LMQ%a", 3)]),
        ("%LMQ%a,", "3", [("%LMQ%a", 3)]),
        ("%LMQ%a", "3,4", []),
        ("%LMQ%a,b", "3,4", [("%LMQ%a", 3)]),
        ("%LMQ%a", "x", []),
        ("%LMQ%a", "-1", []),
        ("%LMQ%a", "9" * 19, []),
    ],
)
def test_units_of_a_stored_record(names, offsets, found):
    text = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    assert light_units("P", text) == found
    assert light_units("%RETRY%g", text) == []
