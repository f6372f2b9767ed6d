"""A disk that is really full: a small file system in memory, filled under load.

Needs the right to mount; skipped where that is missing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratamq.clock import SystemClock
from stratamq.config import FlushMode, RetentionConfig
from stratamq.logstore.check import check_store
from stratamq.logstore.disk_usage import DiskUsage, LocalDiskProbe
from stratamq.logstore.group_commit import GroupCommitter
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import GetStatus, PutResult, PutStatus
from stratamq.server.retention import run_round
from tests.unit.logstore.stores import abandon, message, open_store, records_of, small_config

pytestmark = [pytest.mark.crash, pytest.mark.quick]

MIB = 1024 * 1024
CONFIG = small_config(
    commit_log_file_bytes=MIB, consume_queue_file_bytes=20_000, index_slots=1_000, index_entries=4_000
)
SYNC = small_config(
    commit_log_file_bytes=MIB,
    consume_queue_file_bytes=20_000,
    index_slots=1_000,
    index_entries=4_000,
    flush_mode=FlushMode.SYNC,
)
BODY = os.urandom(8_000)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if not hasattr(ctypes.CDLL(None), "mount") or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def retention(store: LogStore, **policy) -> RetentionService:
    return RetentionService(store, RetentionConfig(delete_log_pause_ms=0, **policy), clock=SystemClock(), offsets=dict)


async def send(committer: GroupCommitter, number: int) -> PutResult:
    return await committer.append(message(number.to_bytes(4, "big") + BODY, KEYS=f"k{number}"))


def numbers_in(store: LogStore) -> list[int]:
    """The numbers of all messages in the queue, in order; each body is whole."""
    found = []
    offset, end = store.min_offset("T", 0), store.max_offset("T", 0)
    while offset < end:
        result = store.get("T", 0, offset, 32)
        assert result.status is GetStatus.FOUND
        for view in result.records:
            for record in records_of(view):
                assert record.body[4:] == BODY
                found.append(int.from_bytes(record.body[:4], "big"))
        offset = result.next_offset
    return found


async def test_writes_are_refused_before_the_disk_is_full_and_taken_again_when_retention_made_room(small_disk):
    store = open_store(small_disk / "s", SYNC, clock=SystemClock())
    committer = GroupCommitter(store)
    committer.start()
    try:
        service = retention(store, clean_forcibly=False)
        acknowledged = []
        refused = None
        for number in range(5_000):
            if number % 8 == 0:
                service.watch()
            result = await send(committer, number)
            if result.status is not PutStatus.PUT_OK:
                refused = result
                break
            acknowledged.append(number)
        assert refused is not None
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "above 90 % (diskSpaceWarningLevelRatio)" in refused.remark
        assert numbers_in(store) == acknowledged
        await run_round(service)
        assert not store.status().is_writable, "nothing is expired, and force is off"
        service = retention(store)
        service.watch()
        await run_round(service)
        service.watch()
        assert (await send(committer, 9_999)).status is PutStatus.PUT_OK
        kept = numbers_in(store)
        assert kept == [*acknowledged[-len(kept) + 1 :], 9_999]
        assert kept[0] == store.min_offset("T", 0), "forced deletion took the oldest and nothing else"
        assert service.lost["", "T"][0] == kept[0]
    finally:
        await committer.close()
        store.close()
    store = open_store(small_disk / "s", SYNC, clock=SystemClock())
    assert numbers_in(store) == kept
    store.close()
    check_is_whole(small_disk / "s")


async def test_a_disk_that_is_full_to_the_last_byte_loses_nothing_acknowledged_and_heals(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 * MIB))
    store = open_store(small_disk / "s", SYNC, clock=SystemClock())
    committer = GroupCommitter(store)
    committer.start()
    acknowledged = []
    refusals = 0
    for number in range(5_000):
        result = await send(committer, number)
        if result.status is PutStatus.PUT_OK:
            acknowledged.append(number)
            continue
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "no space left" in result.remark
        refusals += 1
        if refusals == 20:
            break
    assert refusals == 20
    assert numbers_in(store) == acknowledged
    ballast.unlink()
    async with asyncio.timeout(100):
        while (await send(committer, 9_999)).status is not PutStatus.PUT_OK:
            await committer.checkpoint()
    acknowledged.append(9_999)
    assert numbers_in(store) == acknowledged
    await committer.close()
    abandon(store)  # as a kill would leave it
    store = open_store(small_disk / "s", SYNC, clock=SystemClock())
    assert numbers_in(store) == acknowledged
    store.close()
    check_is_whole(small_disk / "s")


async def test_a_full_disk_under_forced_retention_keeps_on_serving(small_disk):
    """Ten times what the disk holds goes through: the oldest makes room for the newest, and sends go on."""
    store = open_store(small_disk / "s", CONFIG, clock=SystemClock())
    committer = GroupCommitter(store)
    committer.start()
    try:
        service = retention(store)
        refused = 0
        for number in range(12_000):
            if number % 64 == 0:
                await run_round(service)
            refused += (await send(committer, number)).status is not PutStatus.PUT_OK
        assert refused == 0
        assert service.deleted_bytes > 2 * 24 * MIB
        kept = numbers_in(store)
        assert kept == list(range(kept[0], 12_000))
    finally:
        await committer.close()
        store.close()


def check_is_whole(directory: Path) -> None:
    """What ``store check`` says of the store."""
    assert check_store(directory).findings == []


async def test_a_log_over_two_disks_goes_on_when_one_is_full_and_survives_a_kill(small_disk, tmp_path):
    """The small disk passes the force mark: new files go to the other one, sends go on, and no file is deleted."""
    other = tmp_path / "other"
    config = small_config(
        commit_log_file_bytes=MIB,
        consume_queue_file_bytes=20_000,
        index_slots=1_000,
        index_entries=4_000,
        flush_mode=FlushMode.SYNC,
        commit_log_paths=f"{small_disk / 'log'},{other}",
    )
    root = tmp_path / "s"
    store = open_store(root, config, clock=SystemClock())
    committer = GroupCommitter(store)
    committer.start()
    service = RetentionService(
        store, RetentionConfig(delete_log_pause_ms=0), clock=SystemClock(), offsets=dict, probe=OnlyDisk(small_disk)
    )
    for number in range(6_000):
        if number % 64 == 0:
            await run_round(service)
        assert (await send(committer, number)).status is PutStatus.PUT_OK, number
    assert service.deleted_files == 0
    assert service.last_plan is not None
    assert service.last_plan.full_paths == [str(small_disk / "log")]
    there, elsewhere = len(list((small_disk / "log").iterdir())), len(list(other.iterdir()))
    assert 18 <= there <= 22, "85 % of 24 MiB"
    assert there + elsewhere == len(store.retained()[0].bases)
    await committer.close()
    abandon(store)  # as a kill would leave it
    store = open_store(root, config, clock=SystemClock())
    assert numbers_in(store) == list(range(6_000))
    store.close()
    check_is_whole(root)


class OnlyDisk:
    """Asks the machine about one disk; all others, which tests do not own, are half full."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def usage(self, path: str) -> DiskUsage:
        """The disk of ``path``, or one of 1 GB."""
        if Path(path).is_relative_to(self._place):
            return LocalDiskProbe().usage(path)
        return DiskUsage(path, 10**9, 5 * 10**8, 5 * 10**8, -1)
