"""One suite for all backends of the cold tier, and what is special about each."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from stratamq.config import TieredConfig
from stratamq.errors import BackendError, ConfigError, ObjectExists, ObjectMissing, TierError
from stratamq.testing.backend import FaultyBackend
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from stratamq.tiered.backend import MemoryBackend, PrefixedBackend, open_backend
from stratamq.tiered.folder import FolderBackend


@pytest.fixture(params=["memory", "folder", "s3", "prefixed", "faulty"])
def backend(request, tmp_path):
    if request.param == "memory":
        made = MemoryBackend()
    elif request.param == "folder":
        made = open_backend(TieredConfig(url=f"file://{tmp_path}/deep/er"))
    elif request.param == "s3":
        made = open_backend(request.getfixturevalue("s3_config"))
    elif request.param == "prefixed":
        made = PrefixedBackend(MemoryBackend(), "broker-a/x")
    else:
        made = FaultyBackend(MemoryBackend())
    yield made
    made.close()


def names(entries):
    return [entry.name for entry in entries]


def test_an_object_is_read_back_whole_and_in_ranges(backend):
    backend.put_new("m/T/1", [b"hello", b"", memoryview(b" world")])
    assert backend.read("m/T/1") == b"hello world"
    assert backend.read("m/T/1", 6) == b"world"
    assert backend.read("m/T/1", 2, 3) == b"llo"
    assert backend.read("m/T/1", 6, 100) == b"world"
    assert backend.read("m/T/1", 100, 5) == b""
    assert backend.read("m/T/1", 0, 0) == b""
    assert backend.size("m/T/1") == 11


def test_an_empty_object_is_an_object(backend):
    backend.put_new("e", [])
    assert backend.size("e") == 0
    assert backend.read("e") == b""
    assert backend.list("") == [("e", 0)]


def test_what_is_not_there_is_missing(backend):
    assert backend.size("m/none") is None
    assert backend.list("m/") == []
    for arguments in ((), (1,), (0, 5)):
        with pytest.raises(ObjectMissing):
            backend.read("m/none", *arguments)
    backend.delete("m/none")


def test_a_name_is_given_once(backend):
    backend.put_new("a", [b"first"])
    with pytest.raises(ObjectExists):
        backend.put_new("a", [b"second"])
    assert backend.read("a") == b"first"
    backend.delete("a")
    backend.put_new("a", [b"third"])
    assert backend.read("a") == b"third"


def test_listings_are_sorted_and_begin_behind_a_name(backend):
    for name in ("m/T/1/03", "m/T/1/01", "m/T/1/02", "m/T.41/1/01", "m/T-x/9", "m/T/10/01", "s/T", "m/T/1/02x"):
        backend.put_new(name, [b"x"])
    assert names(backend.list("m/T/1/")) == ["m/T/1/01", "m/T/1/02", "m/T/1/02x", "m/T/1/03"]
    assert names(backend.list("m/T/1/", after="m/T/1/02")) == ["m/T/1/02x", "m/T/1/03"]
    assert names(backend.list("m/T/1")) == ["m/T/1/01", "m/T/1/02", "m/T/1/02x", "m/T/1/03", "m/T/10/01"]
    whole = names(backend.list(""))
    assert whole == sorted(whole)
    assert len(whole) == 8
    assert names(backend.list("s")) == ["s/T"]
    assert backend.list("m/T/1/", after="m/T/9") == []


def test_of_racing_writers_one_wins(backend):
    won = []
    barrier = threading.Barrier(6)

    def race(number):
        barrier.wait()
        try:
            backend.put_new("race", [b"%d" % number])
        except ObjectExists:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert backend.read("race") == b"%d" % won[0]


def test_large_objects_come_back(backend):
    data = bytes(range(256)) * 4096 * 9
    backend.put_new("large", [data[:1000], data[1000:]])
    assert backend.read("large", 5_000_000, 70_000) == data[5_000_000:5_070_000]
    assert backend.read("large") == data


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "a b", "a\n", "ä", "tmp~/a", "x" * 1001]
)
def test_names_that_lead_elsewhere_are_refused(backend, name):
    for call in (lambda: backend.put_new(name, [b"x"]), lambda: backend.read(name), lambda: backend.size(name)):
        with pytest.raises(TierError):
            call()
    with pytest.raises(TierError):
        backend.delete(name)
    assert backend.list("") == []


# --- addresses ---


@pytest.mark.parametrize(
    "url", ["nonsense", "file://relative/path", "s3://", "ftp://x/y", "file:relative", "http://a/b"]
)
def test_addresses_that_name_no_backend_are_refused(url):
    with pytest.raises(ConfigError, match="--tier"):
        open_backend(TieredConfig(url=url))


def test_a_folder_can_be_named_as_rocketmq_does(tmp_path):
    found = open_backend(TieredConfig(folder=str(tmp_path / "cold")))
    found.put_new("a", [b"x"])
    assert (tmp_path / "cold" / "a").read_bytes() == b"x"


# --- the folder ---


@pytest.mark.parametrize("seed", range(5))
def test_a_put_is_durable_when_it_returns(tmp_path, seed):
    disk = FaultyFileSystem()
    FolderBackend(str(tmp_path / "t"), disk).put_new("m/T/1/a", [b"x" * 9000])
    disk.lose_unsynced(random.Random(seed), keep=0)
    assert FolderBackend(str(tmp_path / "t")).read("m/T/1/a") == b"x" * 9000


@pytest.mark.parametrize("nth", range(1, 13))
def test_a_put_that_a_crash_ends_leaves_all_or_nothing(tmp_path, nth):
    disk = FaultyFileSystem()
    disk.crash_at(nth)
    try:
        FolderBackend(str(tmp_path / "t"), disk).put_new("m/a", [b"x" * 9000])
        finished = True
    except SimulatedCrash:
        finished = False
    disk.lose_unsynced(random.Random(nth))
    backend = FolderBackend(str(tmp_path / "t"))
    found = backend.list("")
    assert found == [("m/a", 9000)] or (found == [] and not finished)
    if not found:
        backend.put_new("m/a", [b"y"])
    assert backend.size("m/a") in (9000, 1)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "link", "sync_directory", "make_directory"])
def test_a_disk_that_refuses_is_an_error_and_leaves_nothing_half(tmp_path, operation):
    disk = FaultyFileSystem()
    backend = FolderBackend(str(tmp_path / "t"), disk)
    disk.fail(operation, error=errno.ENOSPC, partial=operation == "write")
    with pytest.raises(BackendError, match="No space left"):
        backend.put_new("m/a", [b"x" * 9000])
    assert backend.size("m/a") in (None, 9000)


def test_a_temporary_file_is_no_object(tmp_path):
    backend = FolderBackend(str(tmp_path))
    backend.put_new("a", [b"x"])
    (tmp_path / "tmp~" / "left").write_bytes(b"half")
    (tmp_path / "not a name").write_bytes(b"x")
    assert names(backend.list("")) == ["a"]


# --- the object store ---


def test_a_store_that_does_not_answer_is_an_error_in_time(s3_config):
    import dataclasses
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        backend = open_backend(dataclasses.replace(s3_config, endpoint=endpoint, backend_timeout_ms=300))
        for call in (  # without a limit of its own the first would wait for ever
            lambda: backend.put_new("a", [b"x"]),
            lambda: backend.read("a"),
            lambda: backend.size("a"),
            lambda: backend.list("a"),
        ):
            with pytest.raises(BackendError):
                call()


# --- the faults themselves ---


def test_faults_do_what_they_say():
    backend = FaultyBackend(MemoryBackend())
    backend.fail_before.append("put")
    with pytest.raises(BackendError):
        backend.put_new("a", [b"x"])
    assert backend.size("a") is None
    backend.fail_after.append("put")
    with pytest.raises(BackendError):
        backend.put_new("a", [b"xyzt"])
    assert backend.read("a") == b"xyzt"
    backend.half_puts = 1
    backend.put_new("b", [b"xyzt"])
    assert backend.read("b") == b"xy"
    backend.size_lie = 2
    assert backend.size("b") == 4
    backend.hide_new = True
    backend.put_new("c", [b"x"])
    assert names(backend.list("")) == ["a", "b"]
    backend.is_down = True
    with pytest.raises(BackendError):
        backend.list("")
