"""The overlay: what is changed through it shows, and the files below stay as they are."""

from __future__ import annotations

import pytest

from stratamq.files.filesystem import LocalFileSystem
from stratamq.files.overlay import CutOff, OverlayFileSystem


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    return str(tmp_path / "a")


@pytest.fixture
def fs():
    return OverlayFileSystem(LocalFileSystem())


def test_writes_and_cuts_show_through_the_overlay_alone(fs, path):
    fd = fs.open(path)
    fs.truncate(fd, 4)
    fs.write(fd, [b"AB", b"C"], 6)
    assert fs.read(fd, 100, 0) == b"0123\0\0ABC"
    assert fs.read(fd, 2, 7) == b"BC"
    fs.truncate(fd, 7)
    fs.close(fd)
    fd = fs.open(path, writable=False)
    assert fs.read(fd, 100, 1) == b"123\0\0A"
    fs.close(fd)
    assert fs.stat(path).size == 7
    assert fs.cut == [CutOff(path, 4, 10), CutOff(path, 7, 9)]
    with open(path, "rb") as file:
        assert file.read() == b"0123456789"


def test_what_is_removed_is_gone_here_and_there_below(fs, path, tmp_path):
    (tmp_path / "b").write_bytes(b"")
    fs.remove(path)
    fs.hide(str(tmp_path / "b"))
    assert (fs.list(str(tmp_path)), fs.stat(path), fs.removed) == ([], None, [path])
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    with pytest.raises(FileNotFoundError):
        fs.remove(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_a_directory_that_is_made_is_empty_and_not_on_the_disk(fs, tmp_path):
    fs.make_directory(str(tmp_path / "new"))
    assert fs.list(str(tmp_path / "new")) == []
    assert not (tmp_path / "new").exists()


def test_new_files_are_refused(fs, path, tmp_path):
    with pytest.raises(OSError, match="Read-only"):
        fs.create(str(tmp_path / "b"), 0)
    with pytest.raises(OSError, match="Read-only"):
        fs.rename(path, str(tmp_path / "b"))
