"""What a slave stores of its master's bytes: the same log, the same queues, whatever the master did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratamq.config import FlushMode, StoreConfig
from stratamq.errors import DiskAboveMark, StoreError
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message
from stratamq.replication.ha_store import SlaveStore
from stratamq.replication.log_store import BadFrame
from stratamq.testing.clock import ManualClock

HOST = encode_host("127.0.0.1", 10911)
SMALL = StoreConfig(commit_log_file_bytes=16 * 1024, consume_queue_file_bytes=400, index_slots=50, index_entries=200)


def message(topic: str, number: int, queue_id: int = 0) -> Message:
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=b"%d" % number + bytes(100),
        properties=f"KEYS\x01k{number}\x02",
        born_timestamp=1,
        born_host=HOST,
    )


def master_in(folder: Path) -> LogStore:
    return LogStore.open(folder, SMALL, clock=ManualClock(1_000_000), store_host=HOST)


def slave_in(folder: Path, config: StoreConfig = SMALL) -> SlaveStore:
    opened = SlaveStore.open(folder, config, clock=ManualClock(1_000_000), store_host=HOST)
    assert isinstance(opened, SlaveStore)
    return opened


def put(store: LogStore, topic: str, count: int, *, queues: int = 1) -> None:
    store.append([message(topic, number, number % queues) for number in range(count)])
    store.commit()


def bytes_of(store: LogStore, start: int) -> bytes:
    """The log from ``start`` to the end of its file, or of all."""
    log = store.retained()[0]
    end = min(log.end, log.base_of(start) + log.file_bytes)
    view = log.view(start, end - start)
    assert view is not None
    return bytes(view)


def bodies(store: LogStore, topic: str, queue_id: int = 0) -> list[bytes]:
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    found = []
    for offset in range(low, high):
        (record,) = store.get(topic, queue_id, offset, 1).records
        found.append(bytes(record[88:90]).rstrip(b"\0"))
    return found


def test_a_topic_that_was_made_again_begins_anew_in_one_run(tmp_path):
    master = master_in(tmp_path / "m")
    put(master, "T", 5)
    master.delete_topic("T")
    put(master, "U", 40, queues=40)  # units of many queues wait in memory
    put(master, "T", 3)
    put(master, "U", 2)
    slave = slave_in(tmp_path / "s")
    slave.add(bytes_of(master, 0))
    slave.begin_checkpoint()
    for store in (slave, None):
        copy = store or slave_in(tmp_path / "copy")
        assert bodies(copy, "T") == bodies(master, "T") == [b"0", b"1", b"2"]
        assert bodies(copy, "U") == bodies(master, "U")
        if store is slave:
            shutil.copytree(tmp_path / "s", tmp_path / "copy", ignore=shutil.ignore_patterns("consumequeue", "lock"))
        else:
            copy.close()  # recovery made the queues again from the log alone
    slave.close()
    master.close()


def test_a_topic_that_was_made_again_while_its_units_wait_in_memory(tmp_path):
    master, slave = master_in(tmp_path / "m"), slave_in(tmp_path / "s")
    put(master, "T", 40, queues=40)
    slave.add(bytes_of(master, 0))
    assert slave.retained()[1].waiting
    at = master.max_physical_offset
    master.delete_topic("T")
    put(master, "T", 3)
    slave.add(bytes_of(master, at))
    assert bodies(slave, "T") == [b"0", b"1", b"2"]
    master.close()
    slave.close()


@pytest.mark.parametrize("mode", list(FlushMode))
def test_what_is_shown_follows_the_flush_mode(tmp_path, mode):
    master = master_in(tmp_path / "m")
    put(master, "T", 3)
    config = StoreConfig(
        commit_log_file_bytes=16 * 1024,
        consume_queue_file_bytes=400,
        index_slots=50,
        index_entries=200,
        flush_mode=mode,
    )
    slave = slave_in(tmp_path / "s", config)
    arrivals = slave.add(bytes_of(master, 0))
    shown = 3 if mode is FlushMode.ASYNC else 0
    assert slave.max_offset("T", 0) == shown
    assert [arrival.max_offset for arrival in arrivals] == ([3] if shown else [])
    token = slave.unsynced()
    assert token is not None
    slave.sync(token)
    arrivals = slave.synced(token)
    assert slave.max_offset("T", 0) == 3
    assert [arrival.max_offset for arrival in arrivals] == ([] if shown else [3])
    master.close()
    slave.close()


@pytest.mark.parametrize("place", [0, 30, 60, 95])
def test_a_flipped_byte_is_not_stored(tmp_path, place):
    master, slave = master_in(tmp_path / "m"), slave_in(tmp_path / "s")
    put(master, "T", 3)
    run = bytearray(bytes_of(master, 0))
    run[len(run) // 3 + place] ^= 0x40
    if place == 60:  # the store time: no checksum covers it, so it is only found when the log is compared
        slave.add(bytes(run))
        assert slave.max_physical_offset == master.max_physical_offset
    else:
        with pytest.raises(BadFrame):
            slave.add(bytes(run))
        assert slave.max_physical_offset == 0
    master.close()
    slave.close()


def test_nothing_is_taken_while_the_disk_is_too_full(tmp_path):
    master, slave = master_in(tmp_path / "m"), slave_in(tmp_path / "s")
    put(master, "T", 1)
    slave.refuse_writes(DiskAboveMark(str(tmp_path), 95, 90, 85))
    with pytest.raises(StoreError, match="95"):
        slave.add(bytes_of(master, 0))
    slave.refuse_writes(None)
    slave.add(bytes_of(master, 0))
    assert slave.max_physical_offset == master.max_physical_offset
    master.close()
    slave.close()


def test_an_empty_log_begins_where_it_is_told(tmp_path):
    master, slave = master_in(tmp_path / "m"), slave_in(tmp_path / "s")
    for _ in range(30):
        put(master, "T", 5)
    base = master.max_physical_offset - master.max_physical_offset % SMALL.commit_log_file_bytes
    assert base
    slave.begin_at(base)
    slave.add(bytes_of(master, base))
    slave.close()
    again = slave_in(tmp_path / "s")
    assert again.min_physical_offset == base
    assert bodies(again, "T") == bodies(master, "T")[-again.max_offset("T", 0) + again.min_offset("T", 0) :]
    assert again.max_offset("T", 0) == master.max_offset("T", 0)
    master.close()
    again.close()
