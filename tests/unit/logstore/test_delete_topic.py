"""A topic's queues go, in an open store: nothing brings them back, and a topic of that name may be made anew."""

from __future__ import annotations

import errno
import json
import os
import random

import pytest

from stratamq.config import FlushMode
from stratamq.errors import CorruptionError, StoreClosed, StoreFailed, StoreFull
from stratamq.findings import Severity
from stratamq.logstore.check import check_store
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from tests.unit.logstore.stores import abandon, bodies, contents, message, open_store, put, small_config

MARKS = "deletedTopics.json"


@pytest.fixture(autouse=True, params=["by blocks", "one by one"])
def _both_ways(request, monkeypatch):
    if request.param == "by blocks":
        monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)


def fill(store, count=30, first=0):
    put(store, *(message(f"{n}", topic="AB"[n % 2], queue_id=n % 3, KEYS=f"k{n}") for n in range(first, first + count)))


def end(store, clean):
    if clean:
        store.close()
    else:
        abandon(store)


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_topic_stays_away(tmp_path, clean):
    store = open_store(tmp_path)
    fill(store)
    others = {key: found for key, found in contents(store).items() if key.topic == "B"}
    store.delete_topic("A")
    assert contents(store) == others
    assert not (tmp_path / "consumequeue/A").exists()
    assert store.max_offset("A", 0) == 0
    end(store, clean)
    store = open_store(tmp_path)
    assert contents(store) == others
    assert store.queues() == sorted(others)
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_made_again_begins_at_0_and_holds_only_what_is_new(tmp_path, clean):
    store = open_store(tmp_path)
    fill(store)
    store.delete_topic("A")
    put(store, message(b"new", topic="A"), message(b"newer", topic="A"))
    assert bodies(store, "A") == [b"new", b"newer"]
    assert (store.min_offset("A", 0), store.max_offset("A", 0)) == (0, 2)
    expected = contents(store)
    end(store, clean)
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()
    report = check_store(tmp_path)
    assert [f for f in report.findings if f.severity is Severity.ERROR] == []


def test_it_stays_away_when_every_derived_file_is_made_again(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    store.delete_topic("A")
    expected = contents(store)
    store.close()
    for path in sorted((tmp_path / "consumequeue").rglob("0*"), reverse=True):
        if path.is_file():
            path.unlink()
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()


def test_a_checkpoint_after_it_is_a_good_one(tmp_path):
    """The next start reads only what is new: the checkpoint's print of the queues leaves the deleted ones out."""
    store = open_store(tmp_path)
    fill(store, 200)
    store.sync_checkpoint(store.begin_checkpoint())
    store.delete_topic("A")
    put(store, message(b"after", topic="B"))
    store.sync_checkpoint(store.begin_checkpoint())
    abandon(store)
    store = open_store(tmp_path)
    assert store.recovery.start > 0
    assert store.recovery.records < 60
    store.close()


def test_queues_brought_back_by_another_program_go_at_the_next_start(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    store.close()
    saved = {p: p.read_bytes() for p in (tmp_path / "consumequeue/A").rglob("0*") if p.is_file()}
    store = open_store(tmp_path)
    store.delete_topic("A")
    store.close()
    for path, data in saved.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    store = open_store(tmp_path)
    assert {key.topic for key in store.queues()} == {"B"}
    store.close()


@pytest.mark.parametrize("mode", list(FlushMode))
def test_messages_between_append_and_commit_begin_a_new_queue(tmp_path, mode):
    store = open_store(tmp_path, small_config(flush_mode=mode))
    put(store, message(b"old", topic="A"), message(b"old", topic="A"))
    store.append([message(b"young", topic="A"), message(b"other", topic="B")])
    store.delete_topic("A")
    put(store)
    assert bodies(store, "A") == [b"young"]
    assert bodies(store, "B") == [b"other"]
    assert (store.min_offset("A", 0), store.max_offset("A", 0)) == (2, 3)
    abandon(store)
    store = open_store(tmp_path)
    assert bodies(store, "A") == [b"young"]
    store.close()


def test_messages_that_wait_for_their_sync_are_not_shown_in_the_topic_made_again(tmp_path):
    store = open_store(tmp_path, small_config(flush_mode=FlushMode.SYNC))
    store.append([message(b"old", topic="A")])
    token = store.commit()
    store.delete_topic("A")
    store.append([message(b"new", topic="A")])
    store.commit()
    store.sync(token)
    assert store.synced(token) == []
    assert store.max_offset("A", 0) == 0
    store.close()


def test_units_that_wait_in_memory_go_too(tmp_path):
    store = open_store(tmp_path)
    store.append([message(b"x", topic=f"T{n}") for n in range(40)])
    put(store)
    assert store._queues.waiting_units == 40
    store.delete_topic("T7")
    assert store._queues.waiting_units == 39
    store.sync_checkpoint(store.begin_checkpoint())
    assert not (tmp_path / "consumequeue/T7").exists()
    store.close()


def test_what_is_not_there_and_what_is_no_name_changes_nothing(tmp_path):
    outside = tmp_path / "out"
    (outside / "0").mkdir(parents=True)
    store = open_store(tmp_path / "s")
    fill(store)
    before = contents(store)
    for name in ("C", "", "..", "../../out", "A/0"):
        store.delete_topic(name)
    assert contents(store) == before
    assert outside.exists()
    assert not (tmp_path / "s" / MARKS).exists()
    store.close()
    with pytest.raises(StoreClosed):
        store.delete_topic("A")


def test_extension_and_batch_queues_go_with_it(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    for parent in ("consumequeue_ext", "batchconsumequeue"):
        (tmp_path / parent / "A/0").mkdir(parents=True)
        (tmp_path / parent / "A/0/00000000000000000000").write_bytes(b"x")
    store.delete_topic("A")
    assert os.listdir(tmp_path / "consumequeue_ext") == os.listdir(tmp_path / "batchconsumequeue") == []
    store.close()


def test_a_mark_goes_when_the_log_begins_behind_it(tmp_path):
    store = open_store(tmp_path)
    fill(store, 10)
    store.delete_topic("A")
    mark = json.loads((tmp_path / MARKS).read_text())["topics"]["A"]
    assert mark == store.max_physical_offset
    fill(store, 100, first=10)
    while store._log.min_offset <= mark:
        os.remove(store._log.detach_oldest().path)
    store.close()
    open_store(tmp_path).close()
    assert json.loads((tmp_path / MARKS).read_text())["topics"] == {}


def test_a_mark_behind_the_end_of_a_cut_log_is_drawn_back(tmp_path):
    """Else records written there later would be taken for the deleted topic's."""
    store = open_store(tmp_path)
    fill(store, 10)
    store.delete_topic("A")
    log_end = store.max_physical_offset
    store.close()
    (tmp_path / MARKS).write_text(json.dumps({"version": 1, "topics": {"A": log_end + 5000}}))
    store = open_store(tmp_path)
    put(store, message(b"new", topic="A"))
    abandon(store)
    store = open_store(tmp_path)
    assert bodies(store, "A") == [b"new"]
    store.close()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 2, "topics": {}}', '{"version": 1, "topics": {"../x": 1}}', "[" * 100_000]
)
def test_a_file_that_cannot_be_understood_is_named(tmp_path, text):
    open_store(tmp_path).close()
    (tmp_path / MARKS).write_text(text)
    with pytest.raises(CorruptionError, match=MARKS):
        open_store(tmp_path)
    assert any(MARKS in str(f) for f in check_store(tmp_path).findings)
    (tmp_path / MARKS).unlink()
    open_store(tmp_path).close()


def test_a_full_disk_changes_nothing(tmp_path):
    fs = FaultyFileSystem()
    store = open_store(tmp_path, fs=fs)
    fill(store)
    before = contents(store)
    fs.fail("write", error=errno.ENOSPC, path_part=MARKS)
    with pytest.raises(StoreFull):
        store.delete_topic("A")
    fs.heal()
    assert contents(store) == before
    fill(store)
    store.close()


def test_files_that_cannot_be_removed_stop_the_store_and_go_at_the_next_start(tmp_path):
    fs = FaultyFileSystem()
    store = open_store(tmp_path, fs=fs)
    fill(store)
    fs.fail("remove", error=errno.EIO, path_part="/A/")
    with pytest.raises(StoreFailed):
        store.delete_topic("A")
    with pytest.raises(StoreFailed):
        store.append([message()])
    fs.heal()
    store.close()
    store = open_store(tmp_path)
    assert {key.topic for key in store.queues()} == {"B"}
    store.close()


@pytest.mark.parametrize("nth", range(1, 40, 2))
def test_a_crash_at_any_step_leaves_the_topic_or_takes_it(tmp_path, nth):
    fs, clock = FaultyFileSystem(), ManualClock()
    store = open_store(tmp_path, fs=fs, clock=clock)
    fill(store, 70)
    store.sync_checkpoint(store.begin_checkpoint())
    before = contents(store)
    fs.crash_at(nth)
    try:
        store.delete_topic("A")
        put(store, message(b"new", topic="A"), message(b"newer", topic="A"))
    except SimulatedCrash:
        pass
    else:
        assert nth > 20
    abandon(store)
    fs.lose_unsynced(random.Random(nth))
    store = open_store(tmp_path, clock=clock)
    found = contents(store)
    a = {key: found[key] for key in found if key.topic == "A" and found[key]}
    assert {key: found[key] for key in found if key.topic == "B"} == {k: v for k, v in before.items() if k.topic == "B"}
    new = [[b"new"], [b"new", b"newer"]]
    assert a in ({}, {key: before[key] for key in before if key.topic == "A"}) or list(a.values()) in ([n] for n in new)
    put(store, message(b"after", topic="A", queue_id=1))
    assert bodies(store, "A", 1)[-1] == b"after"
    store.close()
