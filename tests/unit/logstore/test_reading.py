"""Reading queues: every status, every bound, filters, times, keys."""

from __future__ import annotations

import gc

import pytest

from stratamq.config import FlushMode
from stratamq.errors import BadLength, BadMagic
from stratamq.formats.java import tags_code
from stratamq.formats.message import decode_record
from stratamq.logstore.types import GetStatus, QueueKey
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import FOREVER, bodies, message, open_store, put, read_all, records_of, small_config


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


def test_statuses_of_an_unknown_and_an_empty_queue(store):
    assert store.get("T", 0, 5, 1) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, (), 0, 0, False)
    store.append((message(),))
    assert store.get("T", 0, 5, 1)[:2] == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert (store.min_offset("T", 9), store.max_offset("T", 9), store.queues()) == (0, 0, [QueueKey("T", 0)])


def test_statuses_at_the_ends(store):
    put(store, *[message(str(number)) for number in range(3)])
    assert store.get("T", 0, 3, 1)[:4] == (GetStatus.OFFSET_OVERFLOW_ONE, 3, 0, 3)
    assert store.get("T", 0, 9, 1)[:4] == (GetStatus.OFFSET_OVERFLOW_BADLY, 3, 0, 3)
    assert store.get("T", 0, -1, 1)[:4] == (GetStatus.OFFSET_TOO_SMALL, 0, 0, 3)
    store._queues["T", 0].min_offset = 2
    assert store.get("T", 0, 1, 1)[:4] == (GetStatus.OFFSET_TOO_SMALL, 2, 2, 3)


def test_adjacent_records_are_one_view(store):
    put(store, *[message(str(number)) for number in range(5)])
    result = store.get("T", 0, 1, 3)
    assert (len(result.records), result.message_count, result.next_offset) == (1, 3, 4)
    assert result.total_bytes == len(result.records[0])
    assert result.records[0].readonly


def test_records_of_mixed_queues_are_views_of_their_own(store):
    for number in range(6):
        put(store, message(str(number), queue_id=number % 2))
    result = store.get("T", 1, 0, 9)
    assert [decode_record(view).body for view in result.records] == [b"1", b"3", b"5"]


def test_a_read_goes_over_commit_log_files_but_not_over_queue_files(store):
    put(store, *[message("x" * 900) for _ in range(15)])
    first = store.get("T", 0, 0, 32)
    assert (first.message_count, first.next_offset) == (10, 10)  # 200-byte queue files hold ten units
    assert len(first.records) == 3
    assert len(read_all(store)) == 15


def test_bounds(tmp_path):
    config = small_config(transfer_messages_max=6, transfer_bytes_max=1024, commit_log_file_bytes=1 << 16)
    store = open_store(tmp_path, config)
    put(store, *[message(b"") for _ in range(10)])
    size = store.get("T", 0, 0, 1).total_bytes
    assert store.get("T", 0, 0, 99).message_count == 6
    assert store.get("T", 0, 0, 0).message_count == 1
    assert store.get("T", 0, 0, 99, max_bytes=3 * size).message_count == 3
    assert store.get("T", 0, 0, 99, max_bytes=1).message_count == 1
    put(store, *[message(b"x" * 500, queue_id=1) for _ in range(5)])
    assert store.get("T", 1, 0, 99).message_count == 1
    store.close()


def test_old_records_come_in_smaller_portions(tmp_path):
    config = small_config(transfer_messages_on_disk_max=2, commit_log_file_bytes=1 << 16)
    store = open_store(tmp_path, config)
    put(store, *[message(b"x" * 100) for _ in range(10)])
    assert store.is_in_memory(0)
    store._limits = type(store._limits)(
        memory_bytes=1 << 18, memory_messages=32, disk_bytes=1 << 16, disk_messages=2, page_cache_bytes=500
    )
    assert not store.is_in_memory(0)
    result = store.get("T", 0, 0, 9)
    assert (result.message_count, result.suggest_slave) == (2, True)
    result = store.get("T", 0, 8, 9)
    assert (result.message_count, result.suggest_slave) == (2, False)
    store.close()


def test_tag_filters(store):
    put(store, *[message(str(number), TAGS="ABC"[number % 3]) for number in range(9)])
    wanted = frozenset([tags_code("A"), tags_code("C")])
    result = store.get("T", 0, 0, 2, tags_codes=wanted)
    assert [r.body for v in result.records for r in records_of(v)] == [b"0", b"2"]
    assert result.next_offset == 3
    result = store.get("T", 0, 3, 9, tags_codes=frozenset([tags_code("none")]))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 9)


def test_a_filtering_read_looks_at_800_units(tmp_path):
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 20, consume_queue_file_bytes=60_000))
    for _ in range(10):
        put(store, *[message() for _ in range(100)])
    result = store.get("T", 0, 10, 9, tags_codes=frozenset([1]))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 810)
    store.close()


def test_filters_compare_the_low_32_bits(store):
    put(store, message(topic="SCHEDULE_TOPIC_XXXX", DELAY="1"))
    code = store._queues["SCHEDULE_TOPIC_XXXX", 0].unit(0).tags_code
    low = code & 0xFFFFFFFF
    signed = low - 2**32 if low >= 2**31 else low
    assert store.get("SCHEDULE_TOPIC_XXXX", 0, 0, 1, tags_codes=frozenset([signed])).message_count == 1
    assert store.get("SCHEDULE_TOPIC_XXXX", 0, 0, 1, tags_codes=frozenset([1])).message_count == 0


def test_an_address_into_an_extension_file_asks_the_record(store):
    put(store, message(b"x", TAGS="A"))
    queue = store._queues["T", 0]
    fd = queue._handles.get(queue.path_of(0))
    store._fs.write(fd, [(-(2**63)).to_bytes(8, "big", signed=True)], 12)
    assert store.get("T", 0, 0, 1, tags_codes=frozenset([tags_code("A")])).message_count == 1
    assert store.get("T", 0, 0, 1, tags_codes=frozenset([tags_code("B")])).message_count == 0


def damage(store, at, data):
    fd = store._fs.open(store._log.path_of(0))
    store._fs.write(fd, [data], at)
    store._fs.close(fd)


def test_a_damaged_record_is_named_and_what_is_good_before_it_is_given_out(store):
    put(store, *[message(str(number)) for number in range(4)])
    size = store.get("T", 0, 0, 1).total_bytes
    damage(store, 2 * size, b"\0\0\0\1")
    assert store.get("T", 0, 0, 9).message_count == 2
    with pytest.raises(BadLength) as caught:
        store.get("T", 0, 2, 9)
    assert (caught.value.offset, caught.value.found) == (2 * size, "1 bytes")
    damage(store, 2 * size, size.to_bytes(4, "big") + b"gone")
    with pytest.raises(BadMagic) as caught:
        store.get("T", 0, 2, 9)
    assert caught.value.path.endswith("00000000000000000000")
    assert store.get("T", 0, 3, 9).message_count == 1


def test_units_that_point_nowhere_are_passed_over(store):
    put(store, *[message(str(number)) for number in range(3)])
    queue = store._queues["T", 0]
    fd = queue._handles.get(queue.path_of(0))
    store._fs.write(fd, [(1 << 40).to_bytes(8, "big")], 0)
    result = store.get("T", 0, 0, 1)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 1)
    assert store.get("T", 0, 0, 9).message_count == 2


def test_views_stay_good_when_the_mapping_goes(store):
    put(store, message(b"held"))
    view = store.get("T", 0, 0, 1).records[0]
    store._log._views.clear()
    gc.collect()
    assert decode_record(view).body == b"held"


def test_sync_mode_shows_messages_only_after_their_sync(tmp_path):
    store = open_store(tmp_path, small_config(flush_mode=FlushMode.SYNC))
    store.append((message(b"one"),))
    first = store.commit()
    assert first.arrivals == ()
    store.append((message(b"two"), message(b"three", queue_id=0)))
    second = store.commit()
    assert store.max_offset("T", 0) == 0
    assert store.record_at(0) is None
    store.sync(first)
    (arrival,) = store.synced(first)
    assert (arrival.queue, arrival.max_offset, list(arrival.tags_codes)) == (QueueKey("T", 0), 1, [0])
    assert bodies(store) == [b"one"]
    assert store.flushed_physical_offset == first.end
    store.sync(second)
    assert [entry.max_offset for entry in store.synced(second)] == [3]
    assert store.synced(first) == []
    assert bodies(store) == [b"one", b"two", b"three"]
    assert store.unsynced() is None
    store.close()


def test_async_mode_shows_messages_after_the_commit(store):
    store.append((message(b"one", TAGS="A"),))
    token = store.commit()
    assert token.arrivals == [(QueueKey("T", 0), 1, [tags_code("A")])]
    assert bodies(store) == [b"one"]
    assert store.flushed_physical_offset == 0
    assert store.status().pending_bytes == token.end
    store.sync(token)
    assert store.synced(token) == []
    assert store.flushed_physical_offset == token.end


@pytest.mark.parametrize(
    ("ms", "lower", "upper"),
    [(-1, 0, 0), (0, 0, 0), (1, 1, 0), (10, 1, 3), (11, 4, 3), (20, 4, 4), (29, 5, 4), (30, 5, 5), (31, 6, 5)],
)
def test_offset_by_time(tmp_path, ms, lower, upper):
    clock = ManualClock(1000)
    store = open_store(tmp_path, clock=clock)
    for step in (0, 10, 0, 0, 10, 10):
        clock.advance(step)
        put(store, message())
    assert store.offset_by_time("T", 0, 1000 + ms) == lower
    assert store.offset_by_time("T", 0, 1000 + ms, upper=True) == upper
    assert (store.earliest_store_time("T", 0), store.earliest_store_time("T", 5)) == (1000, -1)
    assert store.offset_by_time("T", 5, 1) == 0
    store.close()


def test_records_by_offset(store):
    put(store, message(b"a"), message(b"b"))
    size = len(store.record_at(0))
    assert decode_record(store.record_at(size)).body == b"b"
    for wrong in (-1, 1, size - 1, 2 * size, 4096, 10**12):
        assert store.record_at(wrong) is None
    damage(store, 88, b"X")
    assert store.record_at(0) is None  # its checksum is wrong now


def test_queries(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    for number in range(40):
        clock.advance(1000)
        put(store, message(str(number), KEYS=f"all k{number % 4}", UNIQ_KEY=f"u{number}", topic="AB"[number % 2]))
    found = [decode_record(view).body for view in store.query("A", "k2", 64, 0, FOREVER).records]
    assert found == [str(number).encode() for number in range(40) if number % 4 == 2]
    start = ManualClock().wall_ms()
    ranged = store.query("A", "all", 64, start + 5_000, start + 9_000).records
    assert [decode_record(view).body for view in ranged] == [b"4", b"6", b"8"]
    assert [decode_record(view).body for view in store.query("B", "all", 2, 0, FOREVER).records] == [b"37", b"39"]
    assert len(store.query("B", "u7", 64, 0, FOREVER).records) == 1
    for topic, key in (("A", "u7"), ("C", "all"), ("A", "al"), ("A", "all k1")):
        assert not store.query(topic, key, 64, 0, FOREVER).records
    result = store.query("A", "all", 64, 0, FOREVER)
    assert result.index_last_update_timestamp == start + 40_000
    assert result.index_last_update_physical_offset == read_all(store, "B")[-1].physical_offset
    store.close()


def test_hash_collisions_are_left_out(store):
    put(store, message(b"1", KEYS="Aa"), message(b"2", KEYS="BB"))  # one Java hash
    assert [decode_record(view).body for view in store.query("T", "BB", 9, 0, FOREVER).records] == [b"2"]


def test_without_an_index_nothing_is_found_by_key(tmp_path):
    store = open_store(tmp_path, small_config(index_enabled=False))
    put(store, message(KEYS="k"))
    assert store.query("T", "k", 9, 0, FOREVER) == ((), 0, 0)
    assert not (tmp_path / "index").exists()
    store.close()
