"""A disk that is full or broken: what is refused, what goes on, what is kept."""

from __future__ import annotations

import contextlib
import errno

import pytest

from stratamq.config import FlushMode
from stratamq.errors import StoreFailed, StoreFull
from stratamq.testing.filesystem import FaultyFileSystem
from tests.unit.logstore.stores import (
    FOREVER,
    abandon,
    bodies,
    contents,
    message,
    open_store,
    put,
    small_config,
)

FULL = errno.ENOSPC


@pytest.fixture
def fs():
    return FaultyFileSystem()


@pytest.fixture
def store(tmp_path, fs):
    store = open_store(tmp_path / "s", fs=fs)
    yield store
    abandon(store)


def reopened(store):
    abandon(store)
    return open_store(store.directory)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("partial", [False, True])
def test_a_full_disk_takes_the_batch_back_and_the_store_goes_on(store, fs, error, partial):
    put(store, message(b"before"))
    end = store.max_physical_offset
    fs.fail("write", path_part="commitlog", error=error, partial=partial)
    lost = [store.append((message(f"lost{number}", queue_id=number % 2),))[0] for number in range(4)]
    with pytest.raises(StoreFull, match="commitlog"):
        store.commit()
    assert store.max_physical_offset == end
    assert store.status().is_writable
    again = [store.append((message(f"kept{number}", queue_id=number % 2),))[0] for number in range(4)]
    assert [entry[:3] for entry in again] == [entry[:3] for entry in lost]
    put(store)
    assert contents(store) == {("T", 0): [b"before", b"kept0", b"kept2"], ("T", 1): [b"kept1", b"kept3"]}


def test_what_a_full_disk_took_back_is_not_found_after_a_crash(store, fs):
    put(store, message(b"0"))
    fs.fail("write", path_part="commitlog", error=FULL, partial=True)
    for number in range(1, 30):
        store.append((message(str(number)),))
    with pytest.raises(StoreFull):
        store.commit()
    put(store, message(b"1"))  # of the same size as what was taken back: its neighbours would fit behind it
    store = reopened(store)
    assert bodies(store) == [b"0", b"1"]
    store.close()


def test_a_disk_too_full_for_a_new_file(store, fs):
    put(store, message(b"x" * 3000))
    fs.fail("create", path_part="commitlog", error=FULL)
    store.append((message(b"fits"),))
    store.append((message(b"y" * 3000),))
    with pytest.raises(StoreFull):
        store.commit()
    put(store, message(b"y" * 3000))
    assert bodies(store) == [b"x" * 3000, b"y" * 3000]
    store = reopened(store)
    assert bodies(store) == [b"x" * 3000, b"y" * 3000]
    store.close()


def test_any_other_write_error_stops_writes_for_good(store, fs):
    put(store, message(b"kept"))
    fs.fail("write", path_part="commitlog")
    store.append((message(b"lost"),))
    with pytest.raises(StoreFailed, match=r"Input/output error.*restart"):
        store.commit()
    for call in (lambda: store.append((message(),)), store.commit, store.begin_checkpoint):
        with pytest.raises(StoreFailed):
            call()
    assert not store.status().is_writable
    assert "commitlog" in store.status().failure
    assert bodies(store) == [b"kept"]  # reads go on
    store.close()
    store = open_store(store.directory)
    assert (store.recovery.clean, bodies(store)) == (False, [b"kept"])
    store.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_never_tried_again(store, fs, error):
    store.append((message(b"unknown"),))
    token = store.commit()
    fs.fail("sync", error=error)
    with pytest.raises(StoreFailed, match="sync"):
        store.sync(token)
    syncs = fs.calls.count(("sync", store._log.path_of(0)))
    with pytest.raises(StoreFailed):
        store.sync(token)
    store.close()
    assert fs.calls.count(("sync", store._log.path_of(0))) == syncs
    store = open_store(store.directory)
    assert bodies(store) == [b"unknown"]
    store.close()


def test_in_sync_mode_nothing_is_shown_after_a_failed_sync(tmp_path):
    fs = FaultyFileSystem()
    store = open_store(tmp_path, small_config(flush_mode=FlushMode.SYNC), fs=fs)
    store.append((message(),))
    token = store.commit()
    fs.fail("sync")
    with pytest.raises(StoreFailed):
        store.sync(token)
    assert store.max_offset("T", 0) == 0
    abandon(store)


@pytest.mark.parametrize("operation", ["create", "write"])
def test_queue_units_wait_for_room_and_no_message_is_lost(store, fs, operation):
    put(store, *[message(f"a{number}") for number in range(10)])  # fills the queue's first file
    fs.fail(operation, path_part="consumequeue/T/0", error=FULL, times=-1)
    for number in range(3):
        store.append((message(f"b{number}"),))
        store.append((message(f"c{number}", queue_id=1),))
    token = store.commit()  # the messages are stored
    assert token is not None
    assert {(arrival.queue.queue_id, arrival.max_offset) for arrival in token.arrivals} == {(0, 13), (1, 3)}
    assert bodies(store)[10:] == [b"b0", b"b1", b"b2"]  # read from memory
    for _ in range(2):
        with pytest.raises(StoreFull, match="consumequeue"):
            store.append((message(),))
        assert store.commit() is None  # tried again, in vain
        assert not store.status().is_writable
    fs.heal()
    assert store.commit() is None
    assert store.status().is_writable
    put(store, message(b"after"))
    assert bodies(store)[10:] == [b"b0", b"b1", b"b2", b"after"]
    assert bodies(store, "T", 1) == [b"c0", b"c1", b"c2"]


def test_waiting_units_are_found_by_recovery(store, fs):
    put(store, message(b"a"))
    store.sync_checkpoint(store.begin_checkpoint())
    fs.fail("write", path_part="consumequeue", error=FULL, times=-1)
    store.append((message(b"b"),))
    token = store.commit()
    store.sync(token)
    store.synced(token)
    store.sync_checkpoint(store.begin_checkpoint())  # must not claim that the unit is there
    store = reopened(store)
    assert bodies(store) == [b"a", b"b"]
    store.close()


def test_a_close_that_cannot_write_its_units_leaves_the_marker(store, fs):
    fs.fail("write", path_part="consumequeue", error=FULL, times=-1)
    store.append((message(b"a"),))
    store.commit()
    store.close()
    store = open_store(store.directory)
    assert (store.recovery.clean, bodies(store)) == (False, [b"a"])
    store.close()


def test_a_broken_queue_file_stops_writes(store, fs):
    fs.fail("write", path_part="consumequeue")
    store.append((message(b"a"),))
    with pytest.raises(StoreFailed, match="consumequeue"):
        store.commit()


@pytest.mark.parametrize("operation", ["allocate", "create", "map"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_index_that_cannot_be_written_catches_up_later(store, fs, operation, error, caplog):
    fs.fail(operation, path_part="/index/", error=error, times=-1)
    put(store, *[message(str(number), KEYS=f"k{number}") for number in range(10)])
    assert len(store.query("T", "k3", 9, 0, FOREVER).records) == 0
    assert store.status().index_behind
    assert "cannot be found by key" in caplog.text
    put(store, message(b"10", KEYS="k10"))
    store.sync_checkpoint(store.begin_checkpoint())
    assert store.status().index_behind
    assert caplog.text.count("cannot be found by key") == 1
    fs.heal()
    store.sync_checkpoint(store.begin_checkpoint())
    assert not store.status().index_behind
    put(store, message(b"11", KEYS="k11"))
    for number in range(12):
        assert len(store.query("T", f"k{number}", 9, 0, FOREVER).records) == 1, number


def test_an_index_that_is_behind_is_made_whole_by_recovery(store, fs):
    put(store, message(b"0", KEYS="k0"))
    store.sync_checkpoint(store.begin_checkpoint())
    fs.fail("allocate", path_part="/index/", error=FULL, times=-1)
    put(store, *[message(str(number), KEYS=f"k{number}") for number in range(1, 200)])
    store.sync_checkpoint(store.begin_checkpoint())
    assert store.status().index_behind
    store.close()
    store = open_store(store.directory)
    assert all(len(store.query("T", f"k{number}", 9, 0, FOREVER).records) == 1 for number in range(200))
    store.close()


@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory"])
def test_a_failing_checkpoint_stops_writes(store, fs, operation):
    put(store, message())
    part = "checkpoint" if operation != "sync_directory" else "consumequeue"
    token = store.begin_checkpoint()
    fs.fail(operation, path_part=part)
    with pytest.raises(StoreFailed):
        store.sync_checkpoint(token)
    with pytest.raises(StoreFailed):
        store.append((message(),))


def test_a_file_that_is_gone_needs_no_sync(store):
    put(store, message())
    token = store.begin_checkpoint()
    store._queues["T", 0].destroy()
    store.sync_checkpoint(token)


@pytest.mark.parametrize("nth", range(1, 60))
def test_an_error_at_any_call_of_opening_is_an_error_and_the_next_open_succeeds(tmp_path, nth):
    """Whatever fails while a store is opened after a crash, or closed: a plain error, the lock free, nothing lost."""
    store = open_store(tmp_path)
    put(store, *[message(str(number), KEYS=f"k{number}") for number in range(30)])
    abandon(store)
    fs = FaultyFileSystem()
    operations = ["create", "write", "sync", "sync_directory", "allocate", "remove", "open", "read", "map", "list"]
    operation = operations[nth % len(operations)]
    fs.fail(operation, nth=1 + nth // len(operations))
    with contextlib.suppress(OSError, StoreFailed):
        open_store(tmp_path, fs=fs).close()
    store = open_store(tmp_path)
    assert len(bodies(store)) == 30
    assert len(store.query("T", "k7", 9, 0, FOREVER).records) == 1
    store.close()
