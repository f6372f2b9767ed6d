"""Recovery: what a crash, a hand or a bad disk did to the files, and what becomes of it."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from stratamq.config import FlushMode
from stratamq.errors import (
    BadLength,
    BadMagic,
    ChecksumMismatch,
    CorruptionError,
    MisplacedRecord,
    StrayFile,
)
from stratamq.formats.checkpoint import Checkpoint, decode_checkpoint, decode_progress, encode_checkpoint
from stratamq.formats.consume_queue import PREFILL_UNIT
from stratamq.formats.message import PHYSICAL_OFFSET_AT
from stratamq.logstore.layout import stream_file_name
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from tests.unit.logstore.stores import FOREVER, abandon, bodies, contents, message, open_store, put, small_config

FILE = 4096


@pytest.fixture(autouse=True, params=["by blocks", "one by one"])
def _both_ways(request, monkeypatch):
    """Recovery reads large files by blocks and small ones record by record: here it reads the same files both ways."""
    if request.param == "by blocks":
        monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)
        monkeypatch.setattr("stratamq.logstore.recovery._ONE_BY_ONE", 3)
        monkeypatch.setattr("stratamq.logstore.block_scan.BLOCK_ROWS", 7)


def filled(tmp_path, count=60, *, close=True, **config):
    """A store with ``count`` messages in three queues over some files; closed, or dropped as by a kill."""
    clock = ManualClock()
    store = open_store(tmp_path, small_config(**config), clock=clock)
    for number in range(count):
        clock.advance(100)
        body = f"{number}".ljust(number % 90, ".")
        put(store, message(body, topic="AB"[number % 2], queue_id=number % 3, KEYS=f"k{number}", TAGS="t"))
    expected = contents(store)
    if close:
        store.close()
    else:
        abandon(store)
    return expected


def checked(tmp_path, expected, count=60, **config):
    """Open, compare with what must be there, close. Returns the recovery's report."""
    store = open_store(tmp_path, small_config(**config))
    assert contents(store) == expected
    for number in range(0, count, 7):
        found = store.query("AB"[number % 2], f"k{number}", 9, 0, FOREVER).records
        assert len(found) == 1, number
    report = store.recovery
    store.close()
    return report


def log_file(tmp_path, base=0):
    return tmp_path / "commitlog" / stream_file_name(base)


def overwrite(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path, at, bit=0):
    data = path.read_bytes()
    overwrite(path, at, bytes([data[at] ^ 1 << bit]))


def without_progress(tmp_path):
    """Make the checkpoint what RocketMQ would have written: no exact positions."""
    path = tmp_path / "checkpoint"
    path.write_bytes(encode_checkpoint(decode_checkpoint(path.read_bytes())))


# --- nothing wrong -----------------------------------------------------------------------------------------------


def test_a_new_store_has_the_shape_of_rocketmq(tmp_path):
    store = open_store(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["abort", "checkpoint", "commitlog", "consumequeue", "index", "lock"]
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    assert (tmp_path / "lock").read_text() == "lock"
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    put(store, message(topic="T", queue_id=2, KEYS="k"))
    store.close()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "commitlog", "consumequeue", "index", "lock"]
    assert os.listdir(tmp_path / "commitlog") == ["00000000000000000000"]
    assert os.listdir(tmp_path / "consumequeue" / "T" / "2") == ["00000000000000000000"]
    assert (tmp_path / "consumequeue" / "T" / "2" / "00000000000000000000").stat().st_size == 200
    (index,) = os.listdir(tmp_path / "index")
    assert len(index) == 17


def test_a_clean_stop_needs_no_scan(tmp_path):
    expected = filled(tmp_path)
    report = checked(tmp_path, expected)
    assert (report.clean, report.records, report.cut_bytes) == (True, 0, 0)


def test_opening_twice_changes_nothing(tmp_path):
    expected = filled(tmp_path, close=False)
    checked(tmp_path, expected)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    checked(tmp_path, expected)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_after_a_kill_only_what_the_checkpoint_does_not_cover_is_read(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    for number in range(60):
        put(store, message(str(number).ljust(60), KEYS=f"k{number}"))
        if number == 49:
            store.sync_checkpoint(store.begin_checkpoint())
    expected = contents(store)
    abandon(store)
    store = open_store(tmp_path)
    assert contents(store) == expected
    assert not store.recovery.clean
    assert store.recovery.start == store._log.base_of(store.recovery.start) > 0
    assert store.recovery.records < 40
    assert [len(store.query("T", f"k{number}", 9, 0, FOREVER).records) for number in range(60)] == [1] * 60
    store.close()


def test_a_checkpoint_claims_only_what_is_synced(tmp_path):
    store = open_store(tmp_path)
    put(store, message(KEYS="a"))
    synced = store.max_physical_offset
    put(store, message(KEYS="b"), sync=False)
    token = store.begin_checkpoint()
    store.sync_checkpoint(token)
    written = (tmp_path / "checkpoint").read_bytes()
    progress = decode_progress(written)
    assert progress == token.progress
    assert (progress.log_synced, progress.queues_synced, progress.index_synced) == (synced,) * 3
    assert progress.index_count == 2
    assert decode_checkpoint(written).physic_msg_timestamp == ManualClock().wall_ms()
    store.close()


def test_only_some_queue_files_are_synced_in_one_round(tmp_path, monkeypatch):
    monkeypatch.setattr("stratamq.logstore.queue_table.SYNC_FILES_MAX", 3)
    store = open_store(tmp_path)
    ends = []
    for number in range(8):
        put(store, message(queue_id=number))
        ends.append(store.max_physical_offset)
    for covered in (3, 6, 8):
        token = store.begin_checkpoint()
        store.sync_checkpoint(token)
        assert token.progress.queues_synced == ends[covered - 1]
        assert token.progress.queue_count == covered
    abandon(store)
    store = open_store(tmp_path)
    assert len(store.queues()) == 8
    store.close()


# --- torn tails --------------------------------------------------------------------------------------------------


def test_a_torn_record_at_the_end_is_cut_at_every_length(tmp_path):
    expected = filled(tmp_path / "a", 12, close=False)
    data = log_file(tmp_path / "a").read_bytes()
    store = open_store(tmp_path / "a")
    end = store.max_physical_offset
    last = max(store._queues.values(), key=lambda queue: queue.max_physical_offset)
    size = last.unit(last.written_offset - 1).size
    start = end - size
    store.close()
    without_last = {key: list(value) for key, value in expected.items()}
    without_last[last.key].pop()
    for torn in range(0, size, 5):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        store = open_store(tmp_path / "b")
        abandon(store)
        log_file(tmp_path / "b").write_bytes(data[: start + torn].ljust(FILE, b"\0"))
        store = open_store(tmp_path / "b")
        assert store.max_physical_offset == start
        assert contents(store) == without_last
        assert not any(log_file(tmp_path / "b").read_bytes()[start:])
        store.close()


def test_stale_records_behind_a_cut_never_come_back(tmp_path):
    """Records of one size behind a bad one line up with whatever is appended later: they must be erased."""
    store = open_store(tmp_path)
    store.append([message(str(number)) for number in range(10)])
    store.commit()  # not synced
    size = store.get("T", 0, 0, 1).total_bytes
    abandon(store)
    flip(log_file(tmp_path), 3 * size + 88)
    store = open_store(tmp_path)
    assert bodies(store) == [b"0", b"1", b"2"]
    assert store.recovery.cut_bytes > 0
    assert "crc" in store.recovery.cut_because
    put(store, message("3"), message("4"))
    abandon(store)
    store = open_store(tmp_path)
    assert bodies(store) == [b"0", b"1", b"2", b"3", b"4"]
    store.close()


def test_a_file_that_was_only_created_is_used(tmp_path):
    expected = filled(tmp_path, close=False)
    store = open_store(tmp_path)
    last = store._log.bases[-1]
    abandon(store)
    log_file(tmp_path, last + FILE).write_bytes(bytes(FILE))
    checked(tmp_path, expected)
    log_file(tmp_path, last + FILE).write_bytes(b"")
    os.close(os.open(tmp_path / "abort", os.O_CREAT))
    checked(tmp_path, expected)
    assert not log_file(tmp_path, last + FILE).exists()


def test_a_log_that_ends_with_a_blank_goes_on_in_the_next_file(tmp_path):
    store = open_store(tmp_path)
    put(store, message(b"x" * 3000), message(b"y" * 3000))
    abandon(store)
    os.unlink(log_file(tmp_path, FILE))
    progress = tmp_path / "checkpoint"
    progress.unlink()
    store = open_store(tmp_path)
    assert store.max_physical_offset == FILE
    put(store, message(b"z"))
    assert bodies(store) == [b"x" * 3000, b"z"]
    store.close()


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", ["size", "magic", "crc", "offset", "body", "topic"])
def test_a_flipped_bit_in_synced_data_is_corruption_and_nothing_is_changed(tmp_path, region):
    store = open_store(tmp_path)
    put(store, *[message(str(number), TAGS="x") for number in range(9)])
    store.sync_checkpoint(store.begin_checkpoint())
    size = store.get("T", 0, 0, 1).total_bytes
    abandon(store)
    at = {"size": 2, "magic": 4, "crc": 9, "offset": PHYSICAL_OFFSET_AT + 6, "body": 88, "topic": 89}[region]
    errors = {"magic": BadMagic, "crc": ChecksumMismatch, "body": ChecksumMismatch, "offset": MisplacedRecord}
    flip(log_file(tmp_path), 3 * size + at, bit=3 if region != "topic" else 7)
    before = log_file(tmp_path).read_bytes()
    for _ in range(2):
        with pytest.raises(errors.get(region, CorruptionError)) as caught:
            open_store(tmp_path)
        assert caught.value.path == str(log_file(tmp_path))
        assert 3 * size <= caught.value.offset < 4 * size
        assert caught.value.expected != caught.value.found
        assert "nothing was changed" in str(caught.value)
    assert log_file(tmp_path).read_bytes() == before


def test_a_flipped_bit_in_what_was_never_synced_ends_the_log(tmp_path):
    store = open_store(tmp_path)
    put(store, message("0"), message("1"))
    store.sync_checkpoint(store.begin_checkpoint())
    put(store, message("2"), message("3"), sync=False)
    size = store.get("T", 0, 0, 1).total_bytes
    abandon(store)
    flip(log_file(tmp_path), 2 * size + 88)
    store = open_store(tmp_path)
    assert bodies(store) == [b"0", b"1"]
    store.close()


def test_checksums_can_be_left_out(tmp_path):
    store = open_store(tmp_path)
    put(store, message("0"))
    abandon(store)
    flip(log_file(tmp_path), 88)
    store = open_store(tmp_path, small_config(check_crc_on_recovery=False))
    assert bodies(store) == [b"1"]
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_damage_before_good_records_is_corruption_in_a_store_without_exact_positions(tmp_path, clean):
    filled(tmp_path, close=clean)
    if not clean:
        checkpoint = Checkpoint(physic_msg_timestamp=2**50, logics_msg_timestamp=1)
        (tmp_path / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    else:
        without_progress(tmp_path)
        shutil.rmtree(tmp_path / "consumequeue")  # so that all of the log is read
    flip(log_file(tmp_path, FILE), 5)
    with pytest.raises(BadMagic, match="good records follow"):
        open_store(tmp_path)


def test_damage_before_a_later_file_is_corruption_even_without_a_checkpoint(tmp_path):
    filled(tmp_path, close=False)
    os.unlink(tmp_path / "checkpoint")
    flip(log_file(tmp_path, 0), 88)
    with pytest.raises(ChecksumMismatch):
        open_store(tmp_path)


@pytest.mark.parametrize("last", [True, False])
def test_a_missing_commit_log_file_is_told(tmp_path, last):
    filled(tmp_path)
    bases = sorted(os.listdir(tmp_path / "commitlog"))
    missing = bases[-1] if last else bases[1]
    os.unlink(tmp_path / "commitlog" / missing)
    with pytest.raises(BadLength) as caught:
        open_store(tmp_path)
    assert caught.value.path.endswith(missing)
    assert caught.value.found == "no file"


def test_a_log_cut_short_by_hand_is_told(tmp_path):
    store = open_store(tmp_path)
    put(store, *[message(str(number)) for number in range(5)])
    size = store.get("T", 0, 0, 1).total_bytes
    store.sync_checkpoint(store.begin_checkpoint())
    abandon(store)
    overwrite(log_file(tmp_path), 3 * size, bytes(2 * size))
    with pytest.raises(BadMagic) as caught:
        open_store(tmp_path)
    assert caught.value.offset == 3 * size + 4
    os.unlink(tmp_path / "checkpoint")  # what the message advises for going on without
    store = open_store(tmp_path)
    assert bodies(store) == [b"0", b"1", b"2"]
    store.close()


@pytest.mark.parametrize("size", [1, 4095, 4097])
def test_a_file_of_another_length_is_told(tmp_path, size):
    filled(tmp_path)
    with open(log_file(tmp_path, FILE), "r+b") as file:
        file.truncate(size)
    with pytest.raises(BadLength) as caught:
        open_store(tmp_path)
    error = caught.value
    assert (error.path, error.expected, error.found) == (
        str(log_file(tmp_path, FILE)),
        "a file of 4096 bytes",
        f"{size} bytes",
    )


@pytest.mark.parametrize(
    "name", ["commitlog/.DS_Store", "commitlog/1", "commitlog/00000000000000000007", "consumequeue/A/0/x", "index/old"]
)
def test_stray_files_are_named(tmp_path, name):
    filled(tmp_path)
    (tmp_path / name).write_bytes(b"x" * (FILE if name.endswith("7") else 1))
    with pytest.raises(StrayFile, match=os.path.basename(name)):
        open_store(tmp_path)
    os.unlink(tmp_path / name)
    open_store(tmp_path).close()


def test_directories_of_others_are_left_alone(tmp_path):
    expected = filled(tmp_path)
    for path in ("commitlog/sub", "consumequeue/A/notes", "consumequeue/with space/0", "batchconsumequeue/B/0"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "consumequeue" / "file").write_bytes(b"")
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()


# --- queues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "victim", ["consumequeue", "consumequeue/A", "consumequeue/A/0", "consumequeue/B/1", "index", "checkpoint"]
)
def test_what_is_deleted_by_hand_is_rebuilt(tmp_path, victim, clean):
    store = open_store(tmp_path)
    store.close()
    expected = filled(tmp_path, close=False)
    if clean:
        checked(tmp_path, expected)
    else:
        store = open_store(tmp_path)
        store.sync_checkpoint(store.begin_checkpoint())
        abandon(store)
    path = tmp_path / victim
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    checked(tmp_path, expected)
    checked(tmp_path, expected)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_queue_file_deleted_by_hand_is_rebuilt(tmp_path, which):
    expected = filled(tmp_path, 90)
    directory = tmp_path / "consumequeue" / "A" / "0"
    names = sorted(os.listdir(directory))
    assert len(names) > 1
    os.unlink(directory / names[which])
    checked(tmp_path, expected, 90)


@pytest.mark.parametrize("victim", ["consumequeue", "consumequeue/A/0", "index"])
def test_a_store_without_exact_positions_rebuilds_too(tmp_path, victim):
    expected = filled(tmp_path, 70)
    without_progress(tmp_path)
    shutil.rmtree(tmp_path / victim)
    if victim == "consumequeue/A/0":
        # Seen when a record of it is: then the queue does not line up, and is rebuilt from the whole log.
        store = open_store(tmp_path, small_config())
        assert store.recovery.rebuilt_queues == ["A/0"]
        assert contents(store) == expected
        store.close()
    else:
        checked(tmp_path, expected, 70)


def test_queue_units_that_do_not_line_up_are_rebuilt(tmp_path):
    expected = filled(tmp_path, close=False)
    queue = tmp_path / "consumequeue" / "A" / "0" / stream_file_name(0)
    overwrite(queue, 100, bytes(100))
    os.unlink(tmp_path / "checkpoint")
    checked(tmp_path, expected)


def test_units_of_lost_records_are_cut(tmp_path):
    store = open_store(tmp_path)
    put(store, message("0"))
    store.sync_checkpoint(store.begin_checkpoint())
    put(store, *[message(str(number)) for number in range(1, 30)], sync=False)
    end = store.flushed_physical_offset
    abandon(store)
    overwrite(log_file(tmp_path), end, bytes(FILE - end))
    store = open_store(tmp_path)
    assert (store.max_offset("T", 0), bodies(store)) == (1, [b"0"])
    store.close()
    assert os.listdir(tmp_path / "consumequeue" / "T" / "0") == [stream_file_name(0)]


def test_a_queue_whose_beginning_is_gone_is_prefilled(tmp_path):
    expected = filled(tmp_path, 90)
    store = open_store(tmp_path)
    bases = list(store._log.bases)
    store.close()
    for base in bases[:2]:
        os.unlink(log_file(tmp_path, base))
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    found = contents(store)
    for key, kept in found.items():
        assert kept == expected[key][-len(kept) :]
        assert 0 < store.min_offset(*key) == len(expected[key]) - len(kept)
    first = store._queues["A", 0]
    units = first.read_units(first.first_offset, 99)
    assert units.startswith(PREFILL_UNIT * (first.min_offset - first.first_offset))
    store.close()
    store = open_store(tmp_path)
    assert contents(store) == found
    store.close()


def test_min_offsets_follow_the_oldest_file(tmp_path):
    expected = filled(tmp_path, 90)
    os.unlink(log_file(tmp_path, 0))
    store = open_store(tmp_path)
    for key, kept in contents(store).items():
        assert len(kept) < len(expected[key])
        assert kept == expected[key][-len(kept) :]
    assert store.min_physical_offset == FILE
    store.close()


def test_a_topic_that_was_deleted_and_made_again_begins_anew(tmp_path):
    store = open_store(tmp_path)
    put(store, *[message(f"old{number}") for number in range(15)])
    store._queues["T", 0].destroy()
    put(store, *[message(f"new{number}") for number in range(3)])
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert bodies(store) == [b"new0", b"new1", b"new2"]
    store.close()


def test_sync_mode_shows_everything_after_recovery(tmp_path):
    expected = filled(tmp_path, close=False, flush_mode=FlushMode.SYNC)
    report = checked(tmp_path, expected, flush_mode=FlushMode.SYNC)
    assert report.end > 0


def test_recovery_reports_progress(tmp_path):
    filled(tmp_path, close=False)
    seen = []
    from stratamq.logstore.store import LogStore
    from tests.unit.logstore.stores import STORE_HOST

    store = LogStore.open(
        tmp_path,
        small_config(),
        clock=ManualClock(),
        store_host=STORE_HOST,
        progress=lambda text, done, total: seen.append((text, done, total)),
    )
    store.close()
    assert seen[-1][0] == "checking the commit log"
    assert seen[-1][1] == seen[-1][2] > 0


# --- crashes inside recovery ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["", "consumequeue", "consumequeue/A/0", "index"])
def test_recovery_can_be_interrupted_anywhere(tmp_path, victim):
    """Crash at every changing call of recovery, lose what was not synced, and open again."""
    expected = filled(tmp_path / "origin", 40, close=False)
    if victim:
        shutil.rmtree(tmp_path / "origin" / victim)
    nth = 0
    while True:
        nth += 1
        shutil.copytree(tmp_path / "origin", tmp_path / "s")
        fs = FaultyFileSystem()
        fs.crash_at(nth)
        try:
            store = open_store(tmp_path / "s", fs=fs)
        except SimulatedCrash:
            pass
        else:
            abandon(store)
            break
        fs.lose_unsynced(random.Random(nth))
        checked(tmp_path / "s", expected, 40)
        shutil.rmtree(tmp_path / "s")
    assert nth > 5
