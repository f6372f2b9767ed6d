"""The local file system: whole writes, holes, mappings that see writes."""

from __future__ import annotations

import os

import pytest

from stratamq.files.filesystem import IOV_MAX, LocalFileSystem, write_rest


@pytest.fixture
def fs():
    return LocalFileSystem()


def test_a_created_file_has_its_length_and_no_blocks(fs, tmp_path):
    path = str(tmp_path / "a")
    fd = fs.create(path, 1 << 20)
    found = fs.stat(path)
    assert (found.size, found.is_file, found.allocated_bytes) == (1 << 20, True, 0)
    with pytest.raises(FileExistsError):
        fs.create(path, 1)
    fs.close(fd)


def test_a_durable_creation_leaves_the_same_file(fs, tmp_path):
    path = str(tmp_path / "a")
    fs.close(fs.create_durable(path, 4096))
    assert fs.stat(path).size == 4096


def test_a_creation_that_cannot_be_sized_leaves_nothing(fs, tmp_path):
    path = str(tmp_path / "a")
    with pytest.raises(OSError, match=r".*"):
        fs.create(path, 2**63 - 1)
    assert fs.stat(path) is None


def test_more_buffers_than_one_call_takes_are_all_written(fs, tmp_path):
    fd = fs.create(str(tmp_path / "a"), 0)
    buffers = [bytes([number % 256]) * (number % 5) for number in range(3 * IOV_MAX)]
    fs.write(fd, buffers, 7)
    expected = b"".join(buffers)
    assert fs.read(fd, 7 + len(expected), 0) == bytes(7) + expected
    fs.close(fd)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_short_writes_are_gone_on_with(step):
    target = bytearray(60)

    def write_some(fd, buffers, offset):
        data = b"".join(buffers)[:step]
        target[offset : offset + len(data)] = data
        return len(data)

    buffers = [b"abc", b"", b"defgh", b"ij", memoryview(b"klmnop")]
    write_rest(write_some, 0, buffers, 10, 0)
    assert bytes(target[10:26]) == b"abcdefghijklmnop"


def test_reading_ends_at_the_end_of_the_file(fs, tmp_path):
    fd = fs.create(str(tmp_path / "a"), 10)
    assert fs.read(fd, 20, 4) == bytes(6)
    assert fs.read(fd, 20, 10) == b""
    fs.close(fd)


def test_a_mapping_shows_later_writes_and_outlives_the_descriptor(fs, tmp_path):
    fd = fs.create(str(tmp_path / "a"), 4096)
    view = memoryview(fs.map(fd, 4096))
    fs.write(fd, [b"hello"], 100)
    fs.close(fd)
    assert bytes(view[100:105]) == b"hello"
    with pytest.raises(TypeError):
        view[0] = 1


def test_holes_are_found(fs, tmp_path):
    fd = fs.create(str(tmp_path / "a"), 1 << 20)
    fs.write(fd, [b"x"], 512 * 1024)
    assert fs.next_data(fd, 0) == 512 * 1024
    assert fs.next_data(fd, 600 * 1024) is None
    fs.close(fd)


def test_names(fs, tmp_path):
    fs.make_directory(str(tmp_path / "d" / "e"))
    fs.make_directory(str(tmp_path / "d" / "e"))
    fs.close(fs.create(str(tmp_path / "d" / "b"), 1))
    fs.link(str(tmp_path / "d" / "b"), str(tmp_path / "d" / "a"))
    assert fs.list(str(tmp_path / "d")) == ["a", "b", "e"]
    fs.rename(str(tmp_path / "d" / "b"), str(tmp_path / "d" / "a2"))
    fs.sync_directory(str(tmp_path / "d"))
    fs.remove(str(tmp_path / "d" / "a"))
    fs.remove_directory(str(tmp_path / "d" / "e"))
    assert os.listdir(tmp_path / "d") == ["a2"]
    assert fs.stat(str(tmp_path / "d" / "a2" / "x")) is None


def test_reserved_blocks_are_real(fs, tmp_path):
    path = str(tmp_path / "a")
    fd = fs.create(path, 1 << 20)
    fs.allocate(fd, 0, 1 << 16)
    assert fs.stat(path).allocated_bytes >= 1 << 16
    fs.sync(fd)
    fs.truncate(fd, 10)
    assert fs.stat(path).size == 10
    fs.close(fd)
