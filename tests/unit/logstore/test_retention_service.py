"""Retention of an open store: what is deleted, what is said, what happens when the disk refuses."""

from __future__ import annotations

import errno
import logging

import pytest

from stratamq.config import RetentionConfig
from stratamq.errors import DiskAboveMark, StoreFull
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.retention_values import Cause
from stratamq.logstore.types import GetStatus
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem
from tests.unit.logstore.stores import abandon, bodies, message, open_store, put, records_of

HOUR = 3_600_000
BODY = b"x" * 900


class Probe:
    """A disk as full as a test says."""

    def __init__(self, percent: int = 50) -> None:
        self.percent = percent

    def usage(self, path: str) -> DiskUsage:
        """A disk of 10 MB."""
        return DiskUsage(path, 10_000_000, self.percent * 100_000, (100 - self.percent) * 100_000, 1)


class Bench:
    """A store with small files, a clock and a disk that a test moves, and retention over it."""

    def __init__(self, directory, **policy) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.probe = Probe()
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.keep_from: int | None = None
        self.directory = directory
        self.store = open_store(directory, fs=self.fs, clock=self.clock)
        self.service = self.retention(**policy)

    def retention(self, **policy) -> RetentionService:
        return RetentionService(
            self.store,
            RetentionConfig(**policy),
            clock=self.clock,
            offsets=lambda: self.offsets,
            probe=self.probe,
            filesystem=self.fs,
            keep_from=lambda: self.keep_from,
        )

    def fill(self, count: int = 20, *, topic: str = "T") -> None:
        """About four messages a file."""
        for number in range(count):
            put(self.store, message(BODY + str(number).encode(), topic=topic, KEYS=f"k{number}"))

    def expire(self) -> None:
        self.clock.advance(73 * HOUR)
        self.service.request()

    def round(self) -> list[int]:
        """Carry a round out; returns its pauses."""
        pauses = []
        for step in self.service.round():
            if step.blocking is not None:
                step.blocking()
            if step.pause_ms:
                pauses.append(step.pause_ms)
        return pauses

    def log_names(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "commitlog").iterdir())

    def queue_names(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "consumequeue" / "T" / "0").iterdir())


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path / "s")
    yield bench
    abandon(bench.store)


def test_expired_files_go_and_the_rest_stays_readable(bench):
    bench.fill(60)
    before = len(bench.log_names())
    assert before > 11
    bench.expire()
    pauses = bench.round()
    assert len(bench.log_names()) == before - 10
    assert pauses.count(100) >= 10
    low = bench.store.min_offset("T", 0)
    assert low > 0
    kept = bodies(bench.store)
    assert kept == [BODY + str(number).encode() for number in range(low, 60)]
    assert bench.store.get("T", 0, 0, 8).status is GetStatus.OFFSET_TOO_SMALL
    assert bench.service.deleted_files == 10


def test_queue_and_index_files_follow_the_log(bench):
    bench.fill(100)
    index_before = len(list((bench.directory / "index").iterdir()))
    bench.store.begin_checkpoint()
    queue_before = bench.queue_names()
    bench.expire()
    for _ in range(20):
        bench.round()
    assert len(bench.log_names()) == 1
    assert len(bench.queue_names()) < len(queue_before)
    assert bench.queue_names()[-1] == queue_before[-1]
    assert len(list((bench.directory / "index").iterdir())) <= max(1, index_before)
    low = bench.store.min_offset("T", 0)
    assert bodies(bench.store) == [BODY + str(number).encode() for number in range(low, 100)]
    found = bench.store.query("T", "k99", 10, 0, 2**62)
    assert len(found.records) == 1
    assert bench.store.query("T", "k1", 10, 0, 2**62).records == []


def test_a_store_opens_again_after_cleaning_stopped_or_killed(bench):
    bench.fill(60)
    bench.expire()
    bench.round()
    expected = bodies(bench.store)
    abandon(bench.store)
    bench.store = open_store(bench.directory, clock=bench.clock)
    assert bodies(bench.store) == expected
    bench.store.close()
    bench.store = open_store(bench.directory, clock=bench.clock)
    assert bodies(bench.store) == expected


def test_a_queue_whose_messages_are_all_gone_is_empty_and_goes_on(bench):
    bench.fill(4, topic="Silent")
    bench.fill(40)
    bench.expire()
    bench.round()
    assert bench.store.min_offset("Silent", 0) == bench.store.max_offset("Silent", 0) == 4
    put(bench.store, message(b"again", topic="Silent"))
    assert bodies(bench.store, "Silent") == [b"again"]


# --- what groups lose ------------------------------------------------------------------------------------------------


def test_forced_deletion_says_which_groups_lose_what_before_and_after(bench, caplog):
    bench.fill(20)
    bench.offsets = {("T", "slow"): {0: 1}, ("T", "fast"): {0: 20}}
    bench.probe.percent = 88
    with caplog.at_level(logging.INFO):
        bench.round()
    low = bench.store.min_offset("T", 0)
    lines = [record for record in caplog.records if "commitlog" in record.message]
    before = [record for record in lines if record.message.startswith("deleting ")]
    after = [record for record in lines if record.message.startswith("deleted ")]
    assert len(before) == len(after) == bench.service.deleted_files
    assert all(record.levelno == logging.WARNING for record in (*before, *after))
    assert all("group slow loses" in record.message for record in (*before, *after))
    assert not any("fast" in record.message for record in lines)
    messages, size = bench.service.lost["slow", "T"]
    assert list(bench.service.lost) == [("slow", "T")]
    assert size > messages * 900
    # With every file's own loss added up, nothing is counted twice and nothing forgotten.
    assert messages == low - 1


def test_a_topic_that_nobody_has_read_is_told_apart(bench, caplog):
    bench.fill(20)
    bench.expire()
    with caplog.at_level(logging.INFO):
        bench.round()
    assert "nobody has read: topic T" in caplog.text


# --- the disk --------------------------------------------------------------------------------------------------------


def test_the_watch_refuses_writes_and_takes_them_again_by_itself(bench, caplog):
    bench.fill(4)
    bench.probe.percent = 91
    bench.service.watch()
    with pytest.raises(DiskAboveMark, match="above 90 %"):
        bench.store.append((message(),))
    with pytest.raises(StoreFull):
        bench.store.append((message(),))
    assert not bench.store.status().is_writable
    assert len(bodies(bench.store)) == 4
    bench.probe.percent = 86
    bench.service.watch()
    assert not bench.store.status().is_writable
    bench.probe.percent = 85
    bench.service.watch()
    assert bench.store.status().is_writable
    put(bench.store, message(b"after"))
    assert bodies(bench.store)[-1] == b"after"
    assert "no messages are taken" in caplog.text
    assert "messages are taken again" in caplog.text


def test_the_watch_does_not_wait_for_a_long_deletion(bench):
    """RocketMQ looks at the disk again only when the files of a round are deleted."""
    bench.fill(60)
    bench.expire()
    steps = bench.service.round()
    step = next(step for step in steps if step.blocking is not None)
    bench.probe.percent = 95
    bench.service.watch()
    with pytest.raises(DiskAboveMark):
        bench.store.append((message(),))
    step.blocking()
    bench.probe.percent = 60
    bench.service.watch()
    put(bench.store, message(b"during"))
    for step in steps:
        if step.blocking is not None:
            step.blocking()
    assert bodies(bench.store)[-1] == b"during"


def test_forced_deletion_ends_at_the_mark(bench):
    bench.fill(60)
    bench.probe.percent = 86
    allocated = bench.fs.stat(bench.store._log.path_of(0)).allocated_bytes
    bench.round()
    # One percent of the disk of 10 MB is 100,000 bytes: a batch of ten small files is not enough for that.
    assert bench.service.deleted_files == (10 if 100_000 / allocated > 10 else 100_000 // allocated + 1)


def test_nothing_to_delete_is_said_once_and_not_every_round(bench, caplog):
    bench.fill(2)
    bench.probe.percent = 88
    for _ in range(3):
        bench.round()
    assert caplog.text.count("nothing can be deleted") == 1


# --- what refuses to go ----------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_unlinked_stays_readable_and_is_tried_again(bench):
    bench.fill(40)
    names = bench.log_names()
    everything = bodies(bench.store)
    bench.expire()
    bench.fs.fail("remove", error=errno.EBUSY, path_part="commitlog", times=-1)
    bench.round()
    assert bench.log_names() == names
    assert bodies(bench.store) == everything
    path = bench.store._log.path_of(0)
    assert bench.service.state.failures[path].attempts == 1
    bench.clock.advance(60_000)
    bench.round()
    assert bench.service.last_plan.log[0].cause is Cause.FAILED
    bench.clock.advance(60_000)
    bench.fs.heal()
    bench.round()
    assert len(bench.log_names()) == len(names) - min(10, len(names) - 1)
    assert bench.service.state.failures == {}


def test_a_queue_file_that_cannot_be_unlinked_is_tried_again_though_the_log_has_not_moved(bench):
    bench.fill(44)
    bench.expire()
    bench.fs.fail("remove", path_part="consumequeue", times=-1)
    names = bench.queue_names()
    bench.round()
    bench.service.state = type(bench.service.state)()
    assert bench.queue_names() == names
    expected = bodies(bench.store)
    bench.fs.heal()
    bench.clock.advance(120_000)
    bench.round()
    assert len(bench.queue_names()) < len(names)
    assert bodies(bench.store) == expected


def test_an_index_file_that_cannot_be_unlinked_is_tried_again(bench):
    bench.fill(150)
    bench.store.begin_checkpoint()
    count = len(list((bench.directory / "index").iterdir()))
    assert count > 1
    bench.expire()
    bench.fs.fail("remove", path_part="/index/", times=-1)
    bench.round()
    assert len(list((bench.directory / "index").iterdir())) == count
    bench.fs.heal()
    for _ in range(4):
        bench.clock.advance(120_000)
        bench.round()
    assert len(list((bench.directory / "index").iterdir())) < count


def test_a_directory_that_cannot_be_synced_ends_the_round(bench):
    bench.fill(40)
    bench.expire()
    bench.fs.fail("sync_directory", path_part="commitlog")
    bench.round()
    assert bench.service.deleted_files == 1
    bench.round()
    assert bench.service.deleted_files > 1


def test_a_file_being_read_is_spared_and_then_let_go_with_its_views_intact(bench):
    bench.fill(40)
    bench.expire()
    held = bench.store.get("T", 0, 0, 2).records
    seen = [record.body for view in held for record in records_of(view)]
    bench.round()
    assert bench.service.deleted_files == 0
    assert bench.service.last_plan.log[0].cause is Cause.READ
    bench.clock.advance(120_000)
    bench.round()
    assert bench.service.deleted_files > 0
    assert [record.body for view in held for record in records_of(view)] == seen
    assert sum(size for _, size in bench.service._unlinked) > 0
    del held
    bench.round()
    assert bench.service._unlinked == []


def test_the_cold_tier_is_never_overtaken_and_an_allowed_gap_is_recorded(tmp_path, caplog):
    bench = Bench(tmp_path / "s", cold_gap_allowed=True)
    try:
        bench.fill(40)
        bench.expire()
        bench.keep_from = 5_000
        bench.round()
        assert bench.store.min_physical_offset == 4096
        bench.probe.percent = 88
        bench.round()
        assert bench.store.min_physical_offset > 4096
        assert bench.service.gaps[0] == (5_000, 8192)
        assert "the cold tier will never have physical offsets 5000 to 8192" in caplog.text
    finally:
        abandon(bench.store)


def test_a_wrong_beginning_of_a_queue_is_corrected(bench, caplog):
    bench.fill(40)
    bench.expire()
    bench.round()
    queue = bench.store._queues["T", 0]
    right = queue.min_offset
    for wrong in (0, 10_000):
        queue.min_offset = wrong
        bench.clock.advance(300_000)
        with caplog.at_level(logging.INFO):
            bench.round()
        assert queue.min_offset >= right
        assert queue.min_offset <= queue.written_offset
    assert "begins at" in caplog.text


def test_clamped_ratios_are_said_at_start(bench, caplog):
    bench.retention(warning_ratio=99)
    assert "diskSpaceWarningLevelRatio=99 is outside 35 to 90: 90 is used" in caplog.text
