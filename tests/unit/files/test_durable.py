"""Small files that survive: replaced whole, with a backup, at whatever moment the process dies."""

from __future__ import annotations

import random

import pytest

from stratamq.errors import CorruptionError
from stratamq.files.durable import (
    ConfigFile,
    read_file,
    read_with_backup,
    replace_file,
    replace_with_backup,
)
from stratamq.files.filesystem import LocalFileSystem
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash


def test_replace_and_read(tmp_path):
    path = str(tmp_path / "f")
    assert read_file(path) is None
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert read_file(path) == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_the_previous_content_is_kept(tmp_path):
    path = str(tmp_path / "config" / "topics.json")
    replace_with_backup(path, "1")
    assert read_file(path + ".bak") is None
    replace_with_backup(path, "2")
    replace_with_backup(path, "3")
    assert (read_file(path), read_file(path + ".bak")) == (b"3", b"2")


def test_the_backup_is_used_when_the_newest_is_not_usable(tmp_path):
    path = str(tmp_path / "f")
    replace_with_backup(path, "good")
    replace_with_backup(path, "bad")
    assert read_with_backup(path, accept=lambda text: text == "good") == "good"
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    assert read_with_backup(path) == "good"
    (tmp_path / "f").unlink()
    assert read_with_backup(path) == "good"
    assert read_with_backup(path, accept=lambda text: False) is None


def test_an_empty_file_does_not_drive_out_the_backup(tmp_path):
    path = str(tmp_path / "f")
    replace_with_backup(path, "good")
    replace_with_backup(path, "newer")
    (tmp_path / "f").write_bytes(b"")
    replace_with_backup(path, "newest")
    assert (read_file(path), read_file(path + ".bak")) == (b"newest", b"good")


def test_a_file_system_without_links_gets_a_copy(tmp_path):
    fs = FaultyFileSystem()
    path = str(tmp_path / "f")
    replace_with_backup(path, "1", filesystem=fs)
    fs.fail("link", error=1)
    replace_with_backup(path, "2", filesystem=fs)
    assert (read_file(path), read_file(path + ".bak")) == (b"2", b"1")


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_at_any_call_leaves_the_old_or_the_new(tmp_path, seed):
    path = str(tmp_path / "f")
    replace_with_backup(path, "zero")
    replace_with_backup(path, "one")
    fs = FaultyFileSystem()
    fs.crash_at(1 + seed % 10)
    try:
        replace_with_backup(path, "two", filesystem=fs)
        expected = {"two"}
    except SimulatedCrash:
        expected = {"one", "two"}
    fs.lose_unsynced(random.Random(seed))
    assert read_with_backup(path, accept=lambda text: text in ("zero", "one", "two")) in expected
    replace_with_backup(path, "three")
    assert read_with_backup(path) == "three"


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_refusing_disk_is_an_error_and_loses_nothing(tmp_path, operation):
    path = str(tmp_path / "f")
    replace_with_backup(path, "one")
    fs = FaultyFileSystem()
    fs.fail(operation)
    with pytest.raises(OSError, match="Input/output"):
        replace_with_backup(path, "two", filesystem=fs)
    assert read_with_backup(path) in ("one", "two")
    replace_with_backup(path, "three")
    assert read_file(path) == b"three"


def test_config_files(tmp_path):
    file = ConfigFile(str(tmp_path / "config" / "x.json"), LocalFileSystem())
    assert file.load() is None
    file.store({"a": {0: 1}})
    assert file.load() == {"a": {"0": 1}}
    file.store({"a": 2})
    (tmp_path / "config" / "x.json").write_text("{")
    assert file.load() == {"a": {"0": 1}}
    (tmp_path / "config" / "x.json.bak").write_text("[")
    with pytest.raises(CorruptionError) as caught:
        file.load()
    assert caught.value.path.endswith("x.json")
    assert "a JSON value" in str(caught.value)
