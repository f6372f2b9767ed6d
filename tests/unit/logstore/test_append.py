"""Appending: what a record looks like, which limits hold, how files follow each other."""

from __future__ import annotations

import pytest

from stratamq.errors import FlowControlled, MessageRefused, StoreClosed
from stratamq.formats.java import tags_code
from stratamq.formats.message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    decode_host,
    decode_record,
    encode_host,
    encode_record,
)
from stratamq.logstore.types import GetStatus
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem
from tests.unit.logstore.stores import (
    HOST,
    STORE_HOST,
    abandon,
    bodies,
    message,
    open_store,
    put,
    read_all,
    small_config,
)


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path / "s")
    yield store
    store.close()


def record_at(store, physical_offset):
    view = store.record_at(physical_offset)
    assert view is not None
    return decode_record(view)


def test_a_record_is_what_the_codec_makes(store):
    one = message(b"body", topic="Orders", queue_id=3, KEYS="k", TAGS="a", flag=-7, reconsume_times=2)
    (appended,) = store.append((one,))
    assert appended == (0, appended.size, 0, ManualClock().wall_ms())
    assert store.record_at(0) is None  # nothing is written before the commit
    store.commit()
    view = store.record_at(0)
    assert bytes(view) == encode_record(
        body=b"body",
        topic=b"Orders",
        properties=one.properties.encode(),
        queue_id=3,
        flag=-7,
        queue_offset=0,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=one.born_timestamp,
        born_host=HOST,
        store_timestamp=ManualClock().wall_ms(),
        store_host=STORE_HOST,
        reconsume_times=2,
    )


@pytest.mark.parametrize("born", ["10.0.0.1", "::1"])
@pytest.mark.parametrize("stored", ["10.0.0.2", "fe80::2"])
def test_hosts_of_both_kinds(store, born, stored):
    store.set_store_host(encode_host(stored, 10911))
    one = message(b"x", queue_id=1)
    one.born_host = encode_host(born, 5)
    put(store, one)
    record = read_all(store, "T", 1)[0]
    assert str(decode_host(record.born_host)) == (f"[{born}]:5" if ":" in born else f"{born}:5")
    assert decode_host(record.store_host).address == stored
    assert record.body == b"x"


def test_offsets_count_per_queue(store):
    appended = [store.append((message(queue_id=number % 3),))[0].queue_offset for number in range(7)]
    assert appended == [0, 0, 0, 1, 1, 1, 2]
    store.commit()
    assert [store.max_offset("T", queue_id) for queue_id in range(4)] == [3, 2, 2, 0]


def test_bodies_are_copied_when_they_could_change(store):
    body = bytearray(b"before")
    one = message(b"")
    one.body = memoryview(body)
    store.append((one,))
    body[:] = b"behind"
    store.commit()
    assert bodies(store) == [b"before"]


def test_a_batch_lies_in_one_file_side_by_side(store):
    put(store, message(b"x" * 3000))
    appended = store.append([message(b"y" * 300) for _ in range(3)])
    store.commit()
    assert [entry.physical_offset for entry in appended] == [4096, 4096 + appended[0].size, 4096 + 2 * appended[0].size]
    first = record_at(store, 0)
    size, magic = SIZE_AND_MAGIC.unpack_from(store._log.file_view(0), first.size)
    assert (size, magic) == (4096 - first.size, MAGIC_BLANK)
    assert len(read_all(store)) == 4


def test_eight_bytes_stay_free_for_the_blank(store):
    overhead = store.append((message(b""),))[0].size
    put(store, message(b"x" * (4096 - 2 * overhead - 8)))
    assert store.max_physical_offset == 4096 - 8
    put(store, message(b"next"))
    assert read_all(store)[-1].physical_offset == 4096
    tight = 4096 - overhead - 8
    assert store.append((message(b"z" * tight),))[0].physical_offset == 8192
    with pytest.raises(MessageRefused, match="4089 bytes, allowed is at most 4088"):
        store.append((message(b"z" * (tight + 1)),))


def test_a_batch_that_fits_no_file_is_refused_whole(store):
    with pytest.raises(MessageRefused, match="record size"):
        store.append([message(b"y" * 1000) for _ in range(4)])
    assert store.append((message(),))[0] == (0, 93, 0, ManualClock().wall_ms())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a/b"}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "x\n"}, "topic"),
        ({"topic": "ü"}, "topic"),
        ({"topic": "a" * 128}, "topic"),
        ({"topic": "%RETRY%" + "a" * 249}, "topic"),
        ({"queue_id": -1}, "queue id"),
        ({"queue_id": 2**31}, "queue id"),
        ({"body": b"x" * 1001}, "body"),
        ({"PAD": "p" * 32768}, "properties"),
        ({"PAD": "\ud800"}, "properties"),
        ({"flag": 2**31}, "flag"),
        ({"sys_flag": 2**31}, "sys flag"),
        ({"sys_flag": 0x80}, "sys flag"),
        ({"reconsume_times": 2**31}, "reconsume"),
        ({"prepared_transaction_offset": 2**63}, "prepared"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path, change, field):
    store = open_store(tmp_path, small_config(message_body_bytes_max=1000, commit_log_file_bytes=1 << 20))
    for batch in ([message(**change)], [message(), message(**change)], [message(**change), message()]):
        with pytest.raises(MessageRefused) as caught:
            store.append(batch)
        assert field in caught.value.field
    assert store.commit() is None
    assert store.append((message(),))[0][:3] == (0, 93, 0)
    store.close()


@pytest.mark.parametrize("change", [{"born_timestamp": 2**63}, {"born_host": b"123"}])
def test_bad_times_and_hosts_are_refused(store, change):
    one = message()
    for name, value in change.items():
        setattr(one, name, value)
    with pytest.raises(MessageRefused):
        store.append((one,))
    assert store.append((message(),))[0].queue_offset == 0


def test_topics_as_long_as_allowed(tmp_path):
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 16))
    for topic, magic in (("t" * 127, MAGIC_V1), ("%RETRY%" + "g" * 121, MAGIC_V2), ("%RETRY%" + "g" * 248, MAGIC_V2)):
        put(store, message(b"x", topic=topic))
        assert read_all(store, topic)[0].magic == magic
    store.close()
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 16))
    assert len(store.queues()) == 3
    store.close()


def test_properties_as_long_as_allowed(tmp_path):
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 16))
    one = message(b"x")
    one.properties = "P\x01" + "ä" * 16382 + "\x02"
    assert len(one.properties.encode()) == 32767
    put(store, one)
    assert read_all(store)[0].properties == one.properties
    store.close()


def test_a_batch_without_commit_is_bounded(tmp_path):
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 20, pending_bytes_max=1 << 20))
    body = b"x" * 300_000
    for _ in range(3):
        store.append((message(body),))
    with pytest.raises(FlowControlled, match="commit first"):
        store.append((message(body),))
    store.commit()
    store.append((message(body),))
    store.close()


def test_tags_codes_reach_the_queue(store):
    put(store, message(TAGS="TagA"), message(), message(TAGS="标签"))
    codes = [store._queues["T", 0].unit(number).tags_code for number in range(3)]
    assert codes == [tags_code("TagA"), 0, tags_code("标签")]
    result = store.get("T", 0, 0, 10, tags_codes=frozenset([tags_code("标签")]))
    assert (result.status, result.message_count, result.next_offset) == (GetStatus.FOUND, 1, 3)


@pytest.mark.parametrize(
    ("level", "expected"), [("1", 1_000), ("18", 7_200_000), ("99", 7_200_000), ("0", 0), ("x", 0), ("-1", 0)]
)
def test_delayed_records_carry_their_time_of_delivery(store, level, expected):
    put(store, message(topic="SCHEDULE_TOPIC_XXXX", DELAY=level))
    code = store._queues["SCHEDULE_TOPIC_XXXX", 0].unit(0).tags_code
    assert code == (ManualClock().wall_ms() + expected if expected else 0)


def test_prepared_and_rolled_back_records_enter_no_queue(store):
    flags = [0x0, 0x4, 0x8, 0xC]
    appended = [store.append((message(str(flag), sys_flag=flag, KEYS=f"k{flag}"),))[0] for flag in flags]
    assert [entry.queue_offset for entry in appended] == [0, 0, 1, 0]
    store.commit()
    assert bodies(store) == [b"0", b"8"]
    found = [len(store.query("T", f"k{flag}", 9, 0, 2**62).records) for flag in flags]
    assert found == [1, 1, 1, 0]  # a rolled-back record is not found by key


def test_store_times_do_not_follow_small_steps_back(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    times = []
    for step in (0, 5, 2, -2_000, 60, -4_000_000):
        clock.set_wall(1_700_000_000_000 + step)
        times.append(store.append((message(),))[0].store_timestamp - 1_700_000_000_000)
    assert times == [0, 5, 5, 5, 60, -4_000_000]
    store.close()


def test_a_closed_store_takes_nothing(tmp_path):
    store = open_store(tmp_path)
    put(store, message(b"kept"))
    view = store.get("T", 0, 0, 1).records[0]
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.append((message(),))
    assert decode_record(view).body == b"kept"  # views outlive the store
    store = open_store(tmp_path)
    assert bodies(store) == [b"kept"]
    store.close()


def test_units_for_many_queues_wait_in_memory_and_are_read_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr("stratamq.logstore.store.WRITE_AT_ONCE_MAX", 2)
    monkeypatch.setattr("stratamq.logstore.store.WAITING_UNITS_MAX", 50)
    fs = FaultyFileSystem()
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 16), fs=fs)
    rounds = 0
    while store._queues.waiting_units < 45:
        put(store, *[message(f"{rounds} {queue_id}", queue_id=queue_id) for queue_id in range(5)])
        rounds += 1
        assert all(len(read_all(store, "T", queue_id, batch=4)) == rounds for queue_id in range(5))
    assert not [path for _, path in fs.calls if "consumequeue/T" in path]
    put(store, message("direct", queue_id=1))
    assert {path.split("/")[-2] for operation, path in fs.calls if operation == "write" and "queue/T" in path} == {"1"}
    put(store, *[message(queue_id=queue_id) for queue_id in range(40)])
    assert store._queues.waiting_units <= 25  # too many waited
    store.sync_checkpoint(store.begin_checkpoint())
    assert store._queues.waiting_units == 0
    assert store.offset_by_time("T", 1, 2**60) == rounds + 2
    abandon(store)
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 16))
    assert [len(bodies(store, "T", queue_id)) for queue_id in range(5)] == [rounds + 1 + (q == 1) for q in range(5)]
    store.close()


def test_what_is_appended_is_written_by_close(tmp_path):
    store = open_store(tmp_path)
    store.append((message(b"late"),))
    store.close()
    store = open_store(tmp_path)
    assert (store.recovery.clean, bodies(store)) == (True, [b"late"])
    store.close()
