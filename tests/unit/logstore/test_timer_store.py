"""The timer's files: rolling, removing, damage, failing disks."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from stratamq.errors import BadLength, StoreFailed, StrayFile
from stratamq.formats.timer import SLOTS, WHEEL_BYTES, TimerCheckpoint, encode_checkpoint
from stratamq.logstore.timer_store import STEPS_AHEAD_MAX, TimerStore
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash

START = 1_767_225_600_000
FILE_BYTES = 52 * 20 + 16


def add(files: TimerStore, count: int, *, first: int = 0, step: int = 5) -> None:
    """Units of messages at physical offsets 0, 100, 200 ..."""
    for number in range(first, first + count):
        due = START + step * 1_000
        files.add(due, magic=1, write_ms=START, offset=number * 100, size=100, topic_hash=0)
    files.write()


def open_timer(folder: Path, filesystem: FaultyFileSystem | None = None) -> TimerStore:
    files = TimerStore.open(str(folder), file_bytes=FILE_BYTES, filesystem=filesystem)
    files.read_ms = files.read_ms or START
    return files


def test_full_files_end_with_a_blank_and_chains_cross_them(tmp_path: Path) -> None:
    files = open_timer(tmp_path)
    add(files, 45)
    names = sorted(path.name for path in (tmp_path / "timerlog").iterdir())
    assert names == ["0" * 20, f"{FILE_BYTES:020d}", f"{2 * FILE_BYTES:020d}"]
    first = (tmp_path / "timerlog" / names[0]).read_bytes()
    assert first[1040:] == bytes.fromhex("000000100000000000000000cbd43194")
    slot = files.wheel.slot(START // 1_000 + 5)
    assert slot is not None
    at, offsets = slot.last, []
    while at >= 0:
        unit = files.log.read(at)
        assert unit is not None
        offsets.append(unit.physical_offset)
        at = unit.previous
    assert offsets == [number * 100 for number in reversed(range(45))]
    files.close()


def test_files_go_with_the_commit_log(tmp_path: Path) -> None:
    files = open_timer(tmp_path)
    add(files, 45)
    assert files.log.remove_before(1_900) == 0
    assert files.log.remove_before(1_901) == 1
    assert files.log.remove_before(10**9) == 1
    files.sync(files.begin_sync())
    files.close()
    again = open_timer(tmp_path)
    assert again.log.bases == [2 * FILE_BYTES]
    assert again.wheel.pending() == 5
    add(again, 30, first=45)
    assert again.wheel.pending() == 35
    again.close()


@pytest.mark.parametrize("count", [19, 20, 21, 40])
def test_a_log_that_ends_anywhere_goes_on(tmp_path: Path, count: int) -> None:
    files = open_timer(tmp_path)
    add(files, count)
    files.sync(files.begin_sync())
    add(files, 7, first=count)
    files.close()
    again = open_timer(tmp_path)
    assert (again.rebuilt_before, again.wheel.pending()) == (0, count)
    add(again, 25, first=count)
    assert again.wheel.pending() == count + 25
    again.close()


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_process_that_dies_while_it_opens_leaves_what_the_next_one_can_open(tmp_path: Path, nth: int) -> None:
    """What lies behind the checkpoint is taken away at opening, and the file never has another length meanwhile."""
    files = open_timer(tmp_path)
    add(files, 23)
    files.sync(files.begin_sync())
    add(files, 7, first=23)
    files.close()
    disk = FaultyFileSystem()
    disk.crash_at(nth)
    with contextlib.suppress(SimulatedCrash):
        open_timer(tmp_path, disk).close()
    again = open_timer(tmp_path)
    assert (again.rebuilt_before, again.wheel.pending()) == (0, 23)
    again.close()


def test_damage_is_named(tmp_path: Path) -> None:
    open_timer(tmp_path).close()
    (tmp_path / "timerwheel").write_bytes(b"x")
    with pytest.raises(BadLength, match="timerwheel"):
        open_timer(tmp_path)
    (tmp_path / "timerwheel").unlink()
    (tmp_path / "timerlog" / "notes.txt").write_text("x")
    with pytest.raises(StrayFile, match=r"notes\.txt"):
        open_timer(tmp_path)


def test_any_bytes_in_log_and_checkpoint_are_survived(tmp_path: Path) -> None:
    files = open_timer(tmp_path)
    add(files, 3)
    files.sync(files.begin_sync())
    files.close()
    path = tmp_path / "timerlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[52 + 14] = 0xFF  # magic bits of the second unit
    path.write_bytes(data)
    again = open_timer(tmp_path)
    assert again.queue_offset == 0  # the topic is read again from its beginning
    assert again.wheel.pending() == 0
    again.close()
    (tmp_path / "config" / "timercheck").write_bytes(encode_checkpoint(TimerCheckpoint(-5, -1, -1)))
    open_timer(tmp_path).close()


def test_no_place_beyond_the_wheel(tmp_path: Path) -> None:
    files = open_timer(tmp_path)
    assert files.place(START + 1_500, START) == START + 1_000
    assert files.place(START - 5_000, START) == START
    assert files.place(START + (STEPS_AHEAD_MAX + 1) * 1_000, START) is None
    add(files, 1, step=5)
    assert files.place(START + (5 - SLOTS) * 1_000, START - SLOTS * 1_000) is None
    files.close()
    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_BYTES


@pytest.mark.parametrize("part", ["timerlog", "timerwheel", "timercheck"])
def test_a_failed_sync_ends_it(tmp_path: Path, part: str) -> None:
    disk = FaultyFileSystem()
    files = open_timer(tmp_path, disk)
    add(files, 1)
    disk.fail("sync", path_part=part)
    with pytest.raises(StoreFailed):
        files.sync(files.begin_sync())
    with pytest.raises(StoreFailed):
        files.begin_sync()
    assert files.checkpoint.log_end == 0
    files.close()
