"""Alarms: the decision at its edges, the words, and who is told when."""

from __future__ import annotations

import pytest

from stratamq.config import QueueStoreConfig
from stratamq.queuestore.alarms import (
    Alarm,
    Alarms,
    DiskRoom,
    Measured,
    blocked_reason,
    decide_alarms,
    next_disk_check_ms,
)

CONFIG = QueueStoreConfig(vm_memory_high_watermark_percent=50, disk_free_limit_bytes=1000)


@pytest.mark.parametrize(
    ("memory", "free", "raised"),
    [
        (50, 1000, set()),
        (51, 1000, {Alarm.MEMORY}),
        (50, 999, {Alarm.DISK}),
        (100, 0, {Alarm.MEMORY, Alarm.DISK}),
    ],
)
def test_watermarks(memory, free, raised):
    assert decide_alarms(Measured(memory, 100, free), CONFIG) == raised


def test_listeners_hear_of_changes_only():
    alarms, heard = Alarms(CONFIG), []
    listener = lambda raised, reason: heard.append(reason)  # noqa: E731
    alarms.listen(listener)
    for memory, free in ((10, 2000), (90, 2000), (90, 2000), (90, 10), (10, 2000)):
        alarms.update(Measured(memory, 100, free))
    assert heard == ["low on memory", "low on memory & disk", ""]
    alarms.forget(listener)
    assert alarms.update(Measured(10, 100, 0))
    assert alarms.reason == "low on disk"
    assert len(heard) == 3


def test_words_and_pace():
    assert blocked_reason([]) == ""
    assert next_disk_check_ms(0, 1000) == 100
    assert next_disk_check_ms(10**12, 1000) == 10_000
    assert next_disk_check_ms(500_000_000, 0) == 4000


def test_publishes_leave_what_acknowledgements_need() -> None:
    free = [0]
    room = DiskRoom(QueueStoreConfig(), lambda: free[0])
    free[0] = room.reserve + 1_000
    assert [room.take(400, unwritten=0), room.take(400, unwritten=400)] == [True, True]
    assert not room.take(400, unwritten=800)
    assert room.is_short
    room.look()
    assert room.is_short, "nothing to speak of was freed"
    free[0] = room.reserve + room.reserve // 4
    room.look()
    assert not room.is_short
    taken = 0
    while room.take(100_000, unwritten=taken):
        taken += 100_000
        assert taken <= room.reserve // 4
    assert taken > room.reserve // 4 - 100_000
    assert not room.take(0, unwritten=0)
