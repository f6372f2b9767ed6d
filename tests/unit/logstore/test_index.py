"""The index: same bytes as inserting one by one, full files, chains, repair."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from stratamq.errors import BadLength, StrayFile
from stratamq.files.filesystem import LocalFileSystem
from stratamq.formats.index import (
    ENTRY,
    HEADER,
    SLOT,
    IndexHeader,
    decode_header,
    entry_position,
    index_file_bytes,
    slot_position,
    time_delta_seconds,
)
from stratamq.formats.java import index_key_hash
from stratamq.logstore.index import Index
from stratamq.logstore.index_file import IndexFile
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import FOREVER, abandon, message, open_store, put, records_of, small_config

T0 = 1_700_000_000_000


class PlainIndexFile:
    """RocketMQ's insertion, one key after the other, as docs/formats/index.md tells it."""

    def __init__(self, slots, entries):
        self.slots, self.entries = slots, entries
        self.data = bytearray(index_file_bytes(slots, entries))

    def put(self, key_hash, physical_offset, store_timestamp):
        header = decode_header(self.data)
        at = slot_position(self.slots, key_hash)
        (previous,) = SLOT.unpack_from(self.data, at)
        count = header.index_count
        if previous <= 0 or previous > count:
            previous = 0
        delta = time_delta_seconds(store_timestamp, header.begin_timestamp)
        ENTRY.pack_into(self.data, entry_position(self.slots, count), key_hash, physical_offset, delta, previous)
        SLOT.pack_into(self.data, at, count)
        begin = (header.begin_timestamp, header.begin_physical_offset)
        if count <= 1:
            begin = (store_timestamp, physical_offset)
        used = header.used_slots + (previous == 0)
        new = IndexHeader(begin[0], store_timestamp, begin[1], physical_offset, used, count + 1)
        HEADER.pack_into(self.data, 0, *new)


def put_rows(file, rows):
    arrays = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    file.reserve(len(rows))
    file.put(*arrays)


@pytest.mark.parametrize("seed", range(20))
def test_many_at_once_give_the_bytes_of_one_by_one(tmp_path, seed):
    rng = random.Random(seed)
    slots, entries = rng.choice([1, 3, 17, 1000]), 200
    file = IndexFile(LocalFileSystem(), str(tmp_path / "i"), slots, entries, create=True)
    plain = PlainIndexFile(slots, entries)
    if rng.random() < 0.5:
        before = IndexHeader(T0 - 9_000, T0 - 5_000, 1, 2, 3, 4)
        file.begin_after(before)
        HEADER.pack_into(plain.data, 0, T0 - 5_000, T0 - 5_000, 2, 2, 0, 1)
    offset, time = 0, T0
    while file.room > 0:
        rows = []
        for _ in range(rng.randint(1, min(40, file.room))):
            offset += rng.randint(0, 300)
            time += rng.choice([0, 1, 700, 3_000, -500])
            rows.append((rng.randint(0, 30), offset, time))
        put_rows(file, rows)
        for row in rows:
            plain.put(*row)
        assert bytes(file._map) == bytes(plain.data)
    file.close()


def test_times_far_away_are_clamped(tmp_path):
    file = IndexFile(LocalFileSystem(), str(tmp_path / "i"), 4, 10, create=True)
    put_rows(file, [(1, 0, 1000), (1, 1, 2**50), (1, 2, 0)])
    assert [int(delta) for delta in file._entries["delta"][1:4]] == [0, 2**31 - 1, 0]
    file.close()


def test_chains_survive_nonsense(tmp_path):
    file = IndexFile(LocalFileSystem(), str(tmp_path / "i"), 1, 10, create=True)
    put_rows(file, [(5, number, T0) for number in range(4)])
    assert file.find(5, 0, FOREVER, 9) == [3, 2, 1, 0]
    assert file.find(5, 0, FOREVER, 2) == [3, 2]
    file._entries[4] = (5, 3, 0, 4)  # its own predecessor
    assert file.find(5, 0, FOREVER, 9) == [3]
    file._entries[4] = (5, 3, 0, 9)
    assert file.find(5, 0, FOREVER, 9) == [3]
    file._slots[0] = 77
    assert file.find(5, 0, FOREVER, 9) == []
    file.close()


@pytest.mark.parametrize("kept", [0, 1, 2, 30, 60])
def test_repair_keeps_what_is_known_and_computes_the_rest(tmp_path, kept):
    rng = random.Random(kept)
    rows = [(rng.randint(0, 40), 100 * number, T0 + 10 * number) for number in range(60)]
    file = IndexFile(LocalFileSystem(), str(tmp_path / "i"), 8, 100, create=True)
    put_rows(file, rows)
    file._slots[:] = 12345
    file.repair(kept + 1, {offset: time for _, offset, time in rows}.get)
    assert file.header.index_count == kept + 1
    if kept < 60:
        put_rows(file, rows[kept:])
    plain = PlainIndexFile(8, 100)
    for row in rows:
        plain.put(*row)
    assert bytes(file._map)[HEADER.size :] == bytes(plain.data)[HEADER.size :]
    for key_hash in range(41):
        expected = [offset for row_hash, offset, _ in reversed(rows) if row_hash == key_hash]
        assert file.find(key_hash, 0, FOREVER, 99) == expected
    file.close()


def test_wrong_length_and_stray_names(tmp_path):
    (tmp_path / "20231114221320000").write_bytes(b"x")
    index = Index(LocalFileSystem(), str(tmp_path), small_config(), ManualClock())
    with pytest.raises(BadLength, match="maxHashSlotNum"):
        index.load()
    os.rename(tmp_path / "20231114221320000", tmp_path / "2023x")
    with pytest.raises(StrayFile, match="2023x"):
        Index(LocalFileSystem(), str(tmp_path), small_config(), ManualClock()).load()


def test_files_follow_each_other_and_all_keys_are_found(tmp_path):
    store = open_store(tmp_path, small_config(index_entries=10))
    put(store, *[message(str(number), KEYS=f"k{number} all", UNIQ_KEY=f"u{number}") for number in range(20)])
    assert len(store.query("T", "all", 64, 0, FOREVER).records) == 20
    names = sorted(os.listdir(tmp_path / "index"))
    assert len(names) == 7  # 60 keys, nine to a file
    assert names == sorted(set(names))
    for number in range(20):
        for key in (f"k{number}", f"u{number}"):
            (view,) = store.query("T", key, 9, 0, FOREVER).records
            assert [record.body for record in records_of(view)] == [str(number).encode()]
    abandon(store)
    store = open_store(tmp_path, small_config(index_entries=10))
    assert len(store.query("T", "all", 64, 0, FOREVER).records) == 20
    store.close()


def test_names_grow_though_the_clock_steps_back(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path, small_config(index_entries=3), clock=clock)
    for number in range(6):
        clock.set_wall(T0 - number * 1000)
        put(store, message(KEYS=f"k{number}"))
        store.query("T", "x", 1, 0, 1)
    names = sorted(os.listdir(tmp_path / "index"))
    assert len(names) == 3
    assert [len(store.query("T", f"k{number}", 9, 0, FOREVER).records) for number in range(6)] == [1] * 6
    store.close()


def test_keys_are_found_after_any_number_of_unclean_ends(tmp_path):
    for life in range(4):
        store = open_store(tmp_path)
        put(store, *[message(KEYS=f"k{life}-{number} all") for number in range(5)])
        store.sync_checkpoint(store.begin_checkpoint())
        put(store, *[message(KEYS=f"l{life}-{number}") for number in range(5)])
        abandon(store)
    store = open_store(tmp_path)
    for life in range(4):
        for number in range(5):
            assert len(store.query("T", f"k{life}-{number}", 9, 0, FOREVER).records) == 1
            assert len(store.query("T", f"l{life}-{number}", 9, 0, FOREVER).records) == 1
    assert len(store.query("T", "all", 64, 0, FOREVER).records) == 20
    total = sum(file.header.index_count - 1 for file in store._index.files)
    assert total == 4 * 5 * 3  # nothing twice
    store.close()


def test_key_hashes_of_the_reference(tmp_path):
    assert index_key_hash("TopicTest", "key-1") == 204089217
