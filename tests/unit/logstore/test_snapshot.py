"""Snapshots: the end of the log and of queues, whoever left the store and however."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys

import pytest

from stratamq.errors import BadLength, NotAStore, OffsetOutOfRange, QueueNotFound, StrayFile
from stratamq.formats.consume_queue import UNIT_BYTES, encode_unit
from stratamq.logstore.snapshot import QueueRange, StoreSnapshot
from tests.unit.logstore.tiny_store import T0, TinyStore, flip


def filled(root, count=60, **settings):
    store = TinyStore(root, **settings)
    for number in range(count):
        store.put(queue_id=number % 3, body=b"x" * (number * 7 % 90), properties=f"TAGS\x01t{number % 2}\x02")
    return store


def test_queues_and_units_of_a_store(tmp_path):
    store = filled(tmp_path / "s").write()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.queues() == [QueueRange("orders", queue, 0, 20) for queue in range(3)]
        assert snapshot.min_physical_offset == 0
        assert snapshot.max_physical_offset == store.end
        assert not snapshot.is_live
        assert snapshot.was_stopped_cleanly
        units = snapshot.units("orders", 1, 2, 20)
        assert units["physical_offset"].tolist() == [store.queues["orders", 1][q][0] for q in range(2, 20)]
        log, at = snapshot.buffer_of(store.records[-1].physical_offset)
        assert log[at : at + 4].tobytes() == store.records[-1].size.to_bytes(4, "big")
        assert snapshot.checkpoint is not None
        assert snapshot.checkpoint.physic_msg_timestamp == T0 + 59


def test_nothing_is_written(tmp_path):
    filled(tmp_path / "s").write()
    root = tmp_path / "s"

    def state():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in root.rglob("*")}

    before = state()
    with StoreSnapshot.open(root) as snapshot:
        snapshot.queues()
        snapshot.offset_by_time("orders", 0, T0 + 5)
    assert state() == before


def test_a_log_that_begins_later_gives_queues_that_begin_later(tmp_path):
    store = TinyStore(tmp_path / "s", first_base=8192, queue_starts={("orders", 0): 37})
    for _ in range(5):
        store.put()
    store.write()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.queues() == [QueueRange("orders", 0, 37, 42)]
        assert snapshot.min_physical_offset == 8192
        with pytest.raises(OffsetOutOfRange):
            snapshot.units("orders", 0, 36, 42)
        with pytest.raises(OffsetOutOfRange, match="commit log"):
            snapshot.buffer_of(0)


def test_prefilled_units_are_below_the_beginning_even_when_the_log_begins_at_0(tmp_path):
    store = TinyStore(tmp_path / "s", queue_starts={("orders", 0): 5})
    store.put()
    store.write()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.queues() == [QueueRange("orders", 0, 5, 6)]


def test_units_whose_file_is_gone_are_below_the_beginning(tmp_path):
    store = filled(tmp_path / "s").write()
    (tmp_path / "s/commitlog/00000000000000000000").unlink()
    gone = sum(1 for record in store.records if record.physical_offset < 4096 and record.queue_id == 0)
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.min_physical_offset == 4096
        assert snapshot.queue("orders", 0) == QueueRange("orders", 0, gone, 20)


def test_preallocated_and_empty_last_files(tmp_path):
    store = filled(tmp_path / "s").write(spare_files=2)
    last = sorted((tmp_path / "s/commitlog").iterdir())[-1]
    os.truncate(last, 0)
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.max_physical_offset == store.end
        assert len(snapshot.files) == 1 + store.end // 4096 + 1


def test_stale_units_behind_the_end_are_not_believed(tmp_path):
    store = filled(tmp_path / "s").write()
    queue = tmp_path / "s/consumequeue/orders/0"
    last = sorted(queue.iterdir())[-1]
    with last.open("r+b") as file:
        file.seek(4 * UNIT_BYTES)
        for number in range(5):  # behind the log, into the middle of a record, at a record of another queue
            places = (store.end + 100 * number, store.records[7].physical_offset + 8, store.records[7].physical_offset)
            file.write(encode_unit(places[number % 3], store.records[7].size, 0))
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.queue("orders", 0) == QueueRange("orders", 0, 0, 20, 5)


def test_a_cut_log_cuts_its_queues(tmp_path):
    store = filled(tmp_path / "s").write()
    cut = store.records[56].physical_offset
    assert cut > store.end // 4096 * 4096, "not in the newest file"
    flip(tmp_path / "s/commitlog" / f"{cut // 4096 * 4096:020d}", cut % 4096 + 4)
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.max_physical_offset == cut
        assert [queue.max_offset for queue in snapshot.queues()] == [19, 19, 18]
        assert [queue.unconfirmed for queue in snapshot.queues()] == [1, 1, 2]
        assert "damaged" in snapshot.end.reason or "no record" in snapshot.end.reason


def test_a_torn_body_at_the_end_ends_a_killed_store_but_not_a_clean_one(tmp_path):
    store = filled(tmp_path / "killed").write(abort="123", checkpoint=False)
    at = store.records[-1].physical_offset + 88
    flip(tmp_path / "killed/commitlog" / f"{at // 4096 * 4096:020d}", at % 4096)
    shutil.copytree(tmp_path / "killed", tmp_path / "clean")
    (tmp_path / "clean/abort").unlink()
    with StoreSnapshot.open(tmp_path / "killed") as snapshot:
        assert snapshot.liveness.abort_pid == 123
        assert not snapshot.was_stopped_cleanly
        assert snapshot.max_physical_offset == store.records[-1].physical_offset
    with StoreSnapshot.open(tmp_path / "clean") as snapshot:
        assert snapshot.max_physical_offset == store.end


def test_a_killed_store_is_walked_from_where_the_checkpoint_says(tmp_path):
    store = filled(tmp_path / "s", count=200).write(abort="1", checkpoint=False)
    early = store.records[20]
    assert early.physical_offset < 4096
    flip(tmp_path / "s/commitlog/00000000000000000000", early.physical_offset + 8)
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert snapshot.max_physical_offset == early.physical_offset


def test_offset_by_time(tmp_path):
    store = TinyStore(tmp_path / "s")
    for second in (1, 2, 2, 2, 5):
        store.put(stored=T0 + 1000 * second)
    store.write()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        found = [snapshot.offset_by_time("orders", 0, T0 + 1000 * second) for second in range(7)]
        assert found == [0, 0, 1, 4, 4, 4, 5]
        with pytest.raises(QueueNotFound, match="no queue 4 of topic orders"):
            snapshot.offset_by_time("orders", 4, 0)


def test_an_empty_store(tmp_path):
    (tmp_path / "s/commitlog").mkdir(parents=True)
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert (snapshot.queues(), snapshot.max_physical_offset) == ([], 0)


def test_what_is_no_store(tmp_path):
    with pytest.raises(NotAStore, match="no such directory"):
        StoreSnapshot.open(tmp_path / "none")
    with pytest.raises(NotAStore, match=r"has no directory commitlog$"):
        StoreSnapshot.open(tmp_path)
    (tmp_path / "consumequeue").mkdir()
    with pytest.raises(NotAStore, match="perhaps commitlog was moved"):
        StoreSnapshot.open(tmp_path)


def test_strays_and_wrong_lengths_are_named(tmp_path):
    store = filled(tmp_path / "s").write()
    stray = tmp_path / "s/commitlog/.DS_Store"
    stray.write_bytes(b"x")
    with pytest.raises(StrayFile) as caught:
        StoreSnapshot.open(tmp_path / "s")
    assert caught.value.path == str(stray)
    stray.unlink()

    short = tmp_path / "s/commitlog/00000000000000004096"
    os.truncate(short, 4000)
    with pytest.raises(BadLength) as wrong:
        StoreSnapshot.open(tmp_path / "s")
    assert (wrong.value.path, wrong.value.expected, wrong.value.found) == (
        str(short),
        "a file of 4096 bytes",
        "4000 bytes",
    )
    os.truncate(short, 4096)

    queue = tmp_path / "s/consumequeue/orders/0/00000000000000000320"
    os.truncate(queue, 319)
    with StoreSnapshot.open(tmp_path / "s") as snapshot, pytest.raises(BadLength) as wrong:
        snapshot.queues()
    assert (wrong.value.path, wrong.value.found) == (str(queue), "319 bytes")
    assert store.records


def test_a_missing_file_in_the_middle_is_named(tmp_path):
    filled(tmp_path / "s", count=100).write()
    (tmp_path / "s/commitlog/00000000000000004096").unlink()
    with pytest.raises(BadLength, match=r"00000000000000004096 .* no file; the next one is 00000000000000008192"):
        StoreSnapshot.open(tmp_path / "s")


HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process_is_seen(tmp_path):
    filled(tmp_path / "s").write(abort="77")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "s/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with StoreSnapshot.open(tmp_path / "s") as snapshot:
                assert snapshot.is_live
                assert snapshot.liveness.owner_pid == holder.pid
                assert not snapshot.was_stopped_cleanly
        finally:
            holder.communicate()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        assert not snapshot.is_live


def test_looking_does_not_drop_this_process_own_lock(tmp_path):
    filled(tmp_path / "s").write()
    lock = tmp_path / "s/lock"
    fd = os.open(lock, os.O_RDWR)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        with StoreSnapshot.open(tmp_path / "s") as snapshot:
            assert snapshot.is_live
            assert snapshot.liveness.owner_pid == os.getpid()
        attempt = subprocess.run([sys.executable, "-c", HOLD, str(lock)], input=b"", capture_output=True, check=False)
        assert b"BlockingIOError" in attempt.stderr
    finally:
        os.close(fd)
