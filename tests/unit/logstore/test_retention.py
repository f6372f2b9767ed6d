"""The planner of retention: every rule by an example."""

from __future__ import annotations

import dataclasses

import pytest

from stratamq.config import RetentionConfig
from stratamq.errors import ConfigError
from stratamq.logstore.disk_usage import DiskUsage, LocalDiskProbe
from stratamq.logstore.retention import (
    describe_space,
    full_after,
    plan,
    plan_correction,
    plan_index,
    plan_queues,
)
from stratamq.logstore.retention_values import (
    Cause,
    Disks,
    Failure,
    IndexFileInfo,
    LogFile,
    Moment,
    QueueEnds,
    QueueFile,
    QueueFiles,
    RetentionState,
    StoreFiles,
)
from stratamq.logstore.types import QueueKey

HOUR = 3_600_000
NOW = 1_700_000_000_000
KEY = QueueKey("T", 0)


def disk(percent: int, path: str = "log", device: int = 1) -> DiskUsage:
    """A disk of 10,000 bytes."""
    return DiskUsage(path, 10_000, percent * 100, 10_000 - percent * 100, device)


UNKNOWN = DiskUsage("log", 0, 0, 0, error="gone")


def disks(percent: int = 50, queues: int | None = None) -> Disks:
    """One disk for all, or a second one for the queues."""
    if queues is None:
        return Disks([disk(percent)], disk(percent, "queues"))
    return Disks([disk(percent)], disk(queues, "queues", 2))


def log_file(number: int, *, hours_old: float = 100, size: int = 100, **fields) -> LogFile:
    """The ``number``-th file of 100 bytes."""
    return LogFile(number * 100, 100, f"log/{number}", int(NOW - hours_old * HOUR), 0, size, **fields)


def files(*ages: float, end: int | None = None, **fields) -> StoreFiles:
    """Files by the hours of their age, all of them full but the last."""
    log = [log_file(number, hours_old=age) for number, age in enumerate(ages)]
    return StoreFiles(log, len(ages) * 100 - 50 if end is None else end, **fields)


def decide(store, *, hour=12, usage=None, policy=None, state=None, monotonic=0, wall=NOW):
    """Plan with defaults: a quiet disk, no hour of deletion."""
    return plan(
        store,
        Moment(wall, monotonic, hour),
        usage or disks(),
        policy or RetentionConfig(),
        state or RetentionState(),
    )


def gone(decided) -> list[int]:
    return [decision.base // 100 for decision in decided.deletions]


# --- when a round deletes ------------------------------------------------------------------------------------------


def test_nothing_goes_at_another_hour():
    decided = decide(files(100, 90, 1))
    assert gone(decided) == []
    assert decided.log[0].cause is Cause.NOT_NOW
    assert "deleteWhen is 04" in decided.log[0].reason


@pytest.mark.parametrize(("when", "hour", "expected"), [("04", 4, [0]), ("04;16", 16, [0]), ("04;16", 5, [])])
def test_expired_files_go_in_the_hours_of_delete_when(when, hour, expected):
    assert gone(decide(files(100, 1, 0), hour=hour, policy=RetentionConfig(delete_when=when))) == expected


@pytest.mark.parametrize("bad", ["", "4", "24", "04,16", "04; 16", "04;", ";04", " 04", "4am", "004", "٠٤"])
def test_a_bad_delete_when_is_refused_at_start_with_the_allowed_form(bad):
    with pytest.raises(ConfigError, match="such as 04 or 04;16"):
        RetentionConfig(delete_when=bad)


@pytest.mark.parametrize(("percent", "expected"), [(75, []), (76, [0])])
def test_above_the_reclaim_mark_expired_files_go_at_any_hour(percent, expected):
    decided = decide(files(100, 1, 0), usage=disks(percent))
    assert gone(decided) == expected
    assert not decided.trigger.is_forced


def test_an_operator_gets_twenty_rounds():
    state = RetentionState(manual_rounds=20)
    decided = decide(files(100, 1, 0), state=state)
    assert gone(decided) == [0]
    assert decided.state.manual_rounds == 19
    for _ in range(30):
        decided = decide(files(100, 1, 0), state=decided.state)
    assert decided.state.manual_rounds == 0
    assert gone(decided) == []


def test_the_operators_request_spares_what_is_not_expired():
    assert gone(decide(files(71, 1, 0), state=RetentionState(manual_rounds=1))) == []


def test_the_age_is_that_of_the_newest_message_and_not_of_the_copied_file():
    store = files(100, 1, 0)
    copied = [file._replace(modified_ms=NOW) for file in store.log]
    assert gone(decide(store._replace(log=copied), hour=4)) == [0]
    unreadable = [file._replace(newest_ms=0, modified_ms=NOW - 100 * HOUR) for file in store.log]
    decided = decide(store._replace(log=unreadable), hour=4)
    assert gone(decided) == [0, 1]
    assert "cannot be read" in decided.log[0].reason


def test_a_clock_that_was_set_back_deletes_nothing_and_says_so():
    decided = decide(files(100, 90, 1), hour=4, wall=NOW - 200 * HOUR)
    assert gone(decided) == []
    assert "was it set back?" in decided.log[0].reason


def test_a_disk_that_cannot_be_asked_lets_expired_files_go_and_changes_no_flag():
    unknown = Disks([UNKNOWN], disk(10, "queues"))
    decided = decide(files(100, 1, 0), usage=unknown, state=RetentionState(is_full=True))
    assert gone(decided) == [0]
    assert decided.state.is_full
    assert "cannot be asked (gone)" in decided.trigger.reason
    assert "unknown" in describe_space(UNKNOWN)


# --- how many and which ----------------------------------------------------------------------------------------------


def test_ten_files_a_round_oldest_first():
    decided = decide(files(*[100] * 15, 0), hour=4)
    assert gone(decided) == list(range(10))
    assert decided.log[10].cause is Cause.LATER_ROUND
    assert {decision.pause_ms for decision in decided.deletions} == {100}


def test_the_first_that_may_not_go_ends_the_round():
    decided = decide(files(100, 10, 100, 0), hour=4)
    assert gone(decided) == [0]
    assert decided.log[2].cause is Cause.BEHIND_KEPT
    assert "1 stays" in decided.log[2].reason


def test_the_file_with_the_newest_message_never_goes():
    assert gone(decide(files(100), hour=4, usage=disks(99))) == []
    assert gone(decide(files(100, 100), hour=4, usage=disks(99))) == [0]


def test_a_file_made_ahead_does_not_make_the_newest_one_go():
    decided = decide(files(100, 100, 100, end=150), hour=4)
    assert gone(decided) == [0]
    assert [decision.cause for decision in decided.log[1:]] == [Cause.NEWEST, Cause.NEWEST]
    assert gone(decide(files(100, 100, end=100), hour=4)) == []


def test_an_empty_store_has_no_plan():
    decided = decide(StoreFiles([], 0), hour=4, usage=disks(99))
    assert decided.log == []
    assert "no commit-log files" in decided.warning


# --- pressure --------------------------------------------------------------------------------------------------------


def test_above_the_force_mark_the_oldest_go_whatever_their_age_until_the_mark_is_reached():
    decided = decide(files(*[1] * 9, 0), usage=disks(88))
    assert gone(decided) == [0, 1, 2]
    assert {decision.cause for decision in decided.deletions} == {Cause.FORCED}
    assert decided.disk_after[0].percent == 85
    assert "88 % full, above the force mark of 85 %" in decided.log[0].reason


def test_forced_deletion_takes_a_batch_at_most():
    assert gone(decide(files(*[1] * 30, 0), usage=disks(99))) == list(range(10))


def test_what_is_deleted_but_still_read_counts_as_free_already():
    state = RetentionState(unlinked_bytes=200)
    assert gone(decide(files(*[1] * 9, 0), usage=disks(88), state=state)) == [0]


def test_without_clean_file_forcibly_only_expired_files_go():
    policy = RetentionConfig(clean_forcibly=False)
    decided = decide(files(100, 1, 0), usage=disks(95), policy=policy)
    assert gone(decided) == [0]
    decided = decide(files(1, 1, 0), usage=disks(95), policy=policy)
    assert gone(decided) == []
    assert "nothing can be deleted" in decided.warning


def test_the_queues_disk_counts_too():
    assert gone(decide(files(1, 1, 0), usage=disks(10, queues=86))) == [0, 1]


def test_of_several_log_paths_the_emptiest_decides_and_full_ones_are_named():
    usage = Disks([disk(95, "a", 1), disk(50, "b", 2)], disk(50, "queues", 2))
    decided = decide(files(1, 1, 0), usage=usage)
    assert gone(decided) == []
    assert decided.full_paths == ["a"]


def test_brokers_that_share_a_disk_count_their_own_files():
    policy = RetentionConfig(replicas_per_disk=2)
    assert gone(decide(files(100, 1, 0, store_bytes=3_000), usage=disks(80), policy=policy)) == []
    assert gone(decide(files(100, 1, 0, store_bytes=3_900), usage=disks(80), policy=policy)) == [0]
    assert gone(decide(files(1, 1, 1, 0, store_bytes=4_090), usage=disks(80), policy=policy)) == [0]


def test_writes_are_refused_above_the_warning_mark_and_taken_again_at_the_force_mark():
    policy = RetentionConfig()
    seen = []
    is_full = False
    for percent in (85, 90, 91, 90, 86, 85, 86, 90):
        is_full = full_after(disks(percent), policy, is_full)
        seen.append(is_full)
    assert seen == [False, False, True, True, True, False, False, False]


def test_the_queues_disk_does_not_lose_its_flag_to_the_logs_disk():
    policy = RetentionConfig()
    assert full_after(disks(10, queues=91), policy, False)
    assert full_after(disks(10, queues=88), policy, True)
    assert not full_after(disks(10, queues=85), policy, True)


def test_ratios_out_of_bounds_are_moved_and_said():
    policy = RetentionConfig(warning_ratio=95, force_ratio=10, reclaim_ratio=99)
    assert (policy.reclaim_percent, policy.force_percent, policy.warning_percent) == (95, 30, 90)
    assert [text.partition("=")[0] for text in policy.clampings()] == [
        "diskMaxUsedSpaceRatio",
        "diskSpaceWarningLevelRatio",
        "diskSpaceCleanForciblyRatio",
    ]
    assert RetentionConfig().clampings() == []
    assert RetentionConfig(warning_ratio=80).force_percent == 80


def test_nothing_old_enough_between_reclaim_and_force_is_no_fault():
    assert decide(files(1, 1, 0), usage=disks(80)).warning == ""


# --- what is spared --------------------------------------------------------------------------------------------------


def test_the_cold_tier_is_waited_for():
    decided = decide(files(100, 100, 100, 0, keep_from=250), hour=4)
    assert gone(decided) == [0, 1]
    assert decided.log[2].cause is Cause.NOT_IN_COLD_TIER
    pressed = decide(files(100, 100, 0, keep_from=50), usage=disks(99))
    assert gone(pressed) == []
    assert "nothing can be deleted: 0: the cold tier has copied the log only up to 50" in pressed.warning


def test_a_gap_in_the_cold_tier_is_left_only_when_allowed_and_under_pressure_and_is_recorded():
    policy = RetentionConfig(cold_gap_allowed=True)
    assert gone(decide(files(100, 1, 0, keep_from=50), hour=4, policy=policy)) == []
    decided = decide(files(1, 1, 0, keep_from=50), usage=disks(86), policy=policy)
    assert gone(decided) == [0]
    assert decided.log[0].leaves_gap
    assert "leaves a gap" in decided.log[0].reason


def test_a_file_being_read_is_spared_for_two_minutes_and_then_goes():
    store = files(100, 100, 0)
    store = store._replace(log=[store.log[0]._replace(is_read=True), *store.log[1:]])
    first = decide(store, hour=4, monotonic=5_000)
    assert first.log[0].cause is Cause.READ
    assert gone(first) == []
    second = decide(store, hour=4, monotonic=124_999, state=first.state)
    assert gone(second) == []
    third = decide(store, hour=4, monotonic=125_000, state=second.state)
    assert gone(third) == [0, 1]
    assert "readers keep what they hold" in third.log[0].reason


def test_a_failed_deletion_is_tried_again_at_any_hour_after_its_pause():
    state = RetentionState(failures={"log/0": Failure("busy", 1, 1_000)})
    waiting = decide(files(100, 100, 0), hour=4, monotonic=120_999, state=state)
    assert waiting.log[0].cause is Cause.FAILED
    assert gone(waiting) == []
    again = decide(files(100, 100, 0), hour=12, monotonic=121_000, state=state)
    assert again.log[0].cause is Cause.RETRY
    assert gone(again) == [0]
    pressed = decide(files(1, 1, 0), usage=disks(86), monotonic=11_000, state=state)
    assert gone(pressed) == [0]


# --- what follows from the log ---------------------------------------------------------------------------------------


def queue_files(*lasts: int | None) -> QueueFiles:
    return QueueFiles(KEY, [QueueFile(n * 200, f"q/{n}", last, 10) for n, last in enumerate(lasts)])


def test_queue_files_go_when_all_their_messages_are_gone_but_never_the_last():
    assert [row.base for row in plan_queues([queue_files(10, 99, 100, 150)], 100)] == [0, 200]
    assert plan_queues([queue_files(10)], 100) == []
    assert plan_queues([queue_files(None, 10, 20)], 100) == []


def test_index_files_go_when_all_their_messages_are_gone_but_never_the_last():
    index = [IndexFileInfo("i/0", 50), IndexFileInfo("i/1", 99), IndexFileInfo("i/2", 60)]
    assert [row.path for row in plan_index(index, 100)] == ["i/0", "i/1"]
    assert plan_index(index[:1], 100) == []
    assert [row.path for row in plan_index(index, 99)] == ["i/0"]


def test_the_plan_holds_the_queue_and_index_files_that_follow():
    store = files(100, 100, 0)._replace(
        queues=[queue_files(50, 250)], index_files=[IndexFileInfo("i/0", 150, 7), IndexFileInfo("i/1", 250, 7)]
    )
    decided = decide(store, hour=4)
    assert decided.min_offset_after == 200
    assert [row.path for row in decided.queues] == ["q/0"]
    assert [row.path for row in decided.index_files] == ["i/0"]
    assert decided.frees_bytes == 217
    assert decided.disk_after[0].used_bytes == 5_000 - 217


@pytest.mark.parametrize(
    ("ends", "is_wrong"),
    [
        (QueueEnds(KEY, 5, 9, 200), False),
        (QueueEnds(KEY, 5, 9, 99), True),
        (QueueEnds(KEY, 5, 9, None), True),
        (QueueEnds(KEY, 9, 9, None), False),
        (QueueEnds(KEY, 10, 9, None), True),
    ],
)
def test_the_corrector_looks_at_ordinary_queues_too(ends, is_wrong):
    assert (plan_correction(ends, 100) is not None) is is_wrong


# --- the disk --------------------------------------------------------------------------------------------------------


def test_percent_is_rounded_up_and_leaves_out_what_is_reserved_for_root():
    assert DiskUsage("d", 1_000, 850, 150).percent == 85
    assert DiskUsage("d", 1_000, 851, 149).percent == 86
    assert DiskUsage("d", 1_000, 850, 50).percent == 95
    assert UNKNOWN.percent == -1


def test_the_local_probe_answers_and_never_raises(tmp_path):
    usage = LocalDiskProbe().usage(str(tmp_path))
    assert 0 <= usage.percent <= 100
    missing = LocalDiskProbe().usage(str(tmp_path / "missing"))
    assert missing.percent == -1
    assert missing.error


def test_settings_out_of_bounds_are_refused():
    for change in ({"file_reserved_hours": -1}, {"delete_batch_max": 0}, {"shared_force_ratio": "80"}):
        with pytest.raises(ConfigError):
            dataclasses.replace(RetentionConfig(), **change)
