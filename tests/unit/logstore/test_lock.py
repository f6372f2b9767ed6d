"""One owner a directory, also against other processes and against RocketMQ."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stratamq.errors import StoreLocked
from stratamq.logstore.lock import StoreLock
from tests.unit.logstore.stores import message, open_store, put

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_same_process_is_kept_out_and_does_not_drop_the_lock(tmp_path):
    store = open_store(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreLocked, match=str(os.getpid())):
            open_store(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreLocked):
        open_store(tmp_path / "link")
    taken = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path / "lock")], capture_output=True, input=b"")
    assert taken.returncode != 0
    assert b"BlockingIOError" in taken.stderr
    store.close()
    open_store(tmp_path).close()


def test_another_process_is_respected_and_nothing_is_touched(tmp_path):
    store = open_store(tmp_path)
    put(store, message())
    store.close()
    (tmp_path / "abort").write_text("4242")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match="process 4242"):
            open_store(tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        other.stdin.close()
        assert other.wait() == 0
    open_store(tmp_path).close()


def test_release_may_be_repeated(tmp_path):
    lock = StoreLock(str(tmp_path))
    lock.release()
    lock.release()
    assert (tmp_path / "lock").read_text() == "lock"


def test_a_failed_open_gives_the_lock_back(tmp_path):
    store = open_store(tmp_path)
    store.close()
    (tmp_path / "commitlog" / "stray").write_text("")
    for _ in range(2):
        with pytest.raises(Exception, match="stray"):
            open_store(tmp_path)
    (tmp_path / "commitlog" / "stray").unlink()
    open_store(tmp_path).close()
