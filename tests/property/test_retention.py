"""The planner of retention against a slow obvious model, over random files, clocks, disks and settings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.config import RetentionConfig
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.retention import full_after, plan
from stratamq.logstore.retention_values import Disks, Failure, LogFile, Moment, RetentionState, StoreFiles

HOUR = 3_600_000
START = 1_700_000_000_000


@st.composite
def policies(draw) -> RetentionConfig:
    return RetentionConfig(
        delete_when=draw(st.sampled_from(["04", "04;16", "00;12;23"])),
        file_reserved_hours=draw(st.integers(0, 100)),
        clean_forcibly=draw(st.booleans()),
        delete_batch_max=draw(st.integers(1, 5)),
        reclaim_ratio=draw(st.integers(0, 100)),
        force_ratio=draw(st.integers(0, 100)),
        warning_ratio=draw(st.integers(0, 100)),
        cold_gap_allowed=draw(st.booleans()),
    )


@st.composite
def stores(draw) -> StoreFiles:
    count = draw(st.integers(0, 12))
    log = [
        LogFile(
            number * 100,
            100,
            f"log/{number}",
            draw(st.sampled_from([0, 1])) * (START + draw(st.integers(-100, 20)) * HOUR),
            START + draw(st.integers(-100, 20)) * HOUR,
            draw(st.integers(0, 200)),
            draw(st.booleans()),
        )
        for number in range(count)
    ]
    end = draw(st.integers(0, count * 100)) if count else 0
    return StoreFiles(log, end, keep_from=draw(st.none() | st.integers(0, 1_200)))


def disks_at(used: int) -> Disks:
    usage = DiskUsage("d", 10_000, used, 10_000 - used, 1)
    return Disks([usage], usage)


def states(draw) -> RetentionState:
    return RetentionState(
        manual_rounds=draw(st.integers(0, 2)),
        is_full=draw(st.booleans()),
        failures={
            f"log/{number}": Failure("busy", 1, draw(st.integers(0, 200_000)))
            for number in draw(st.sets(st.integers(0, 3)))
        },
        read_since_ms={
            number * 100: draw(st.integers(0, 200_000)) for number in draw(st.sets(st.integers(0, 5), max_size=3))
        },
    )


def model(files: StoreFiles, now: Moment, used: int, policy: RetentionConfig, state: RetentionState) -> list[int]:
    """Bases that go, told as plainly as possible."""
    gone: list[int] = []
    start_percent = -(-used // 100)
    for file in files.log:
        holds_newest = file.base <= files.end - 1 < file.end or file.base >= files.end
        if holds_newest or all(other.base >= files.end for other in files.log):
            return gone
        percent = -(-used // 100)
        expired = now.wall_ms >= (file.newest_ms or file.modified_ms) + policy.file_reserved_hours * HOUR
        pressed = policy.clean_forcibly and percent > policy.force_percent
        timely = (
            now.local_hour in policy.delete_hours
            or state.manual_rounds > 0
            or start_percent > policy.reclaim_percent
            or start_percent > policy.force_percent
        )
        if files.keep_from is not None and file.end > files.keep_from and not (pressed and policy.cold_gap_allowed):
            return gone
        failure = state.failures.get(file.path)
        if failure is not None:
            pause = 10_000 if pressed else 120_000
            if now.monotonic_ms < failure.last_ms + pause or not (expired or pressed):
                return gone
        elif not (pressed or (expired and timely)):
            return gone
        elif len(gone) < policy.delete_batch_max and file.is_read:
            since = state.read_since_ms.get(file.base, now.monotonic_ms)
            if now.monotonic_ms - since < 120_000:
                return gone
        if len(gone) == policy.delete_batch_max:
            return gone
        gone.append(file.base)
        used -= min(file.allocated_bytes, used)
    return gone


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_the_plan_is_what_the_model_says(data):
    files, policy = data.draw(stores()), data.draw(policies())
    state = states(data.draw)
    used = data.draw(st.integers(0, 10_000))
    hour = data.draw(st.integers(0, 23))
    now = Moment(START + data.draw(st.integers(-200, 200)) * HOUR, data.draw(st.integers(0, 400_000)), hour)
    decided = plan(files, now, disks_at(used), policy, state)
    assert [decision.base for decision in decided.deletions] == model(files, now, used, policy, state)
    assert len(decided.log) == len(files.log)
    assert all(decision.reason for decision in decided.log)
    assert plan(files, now, disks_at(used), policy, state) == decided
    going = [decision.goes for decision in decided.log]
    assert going == sorted(going, reverse=True), "only the oldest go"
    assert len(decided.deletions) <= policy.delete_batch_max
    assert decided.state.manual_rounds == max(0, state.manual_rounds - 1)


@settings(max_examples=200, deadline=None)
@given(policies(), st.lists(st.integers(0, 10_000), max_size=30))
def test_the_flag_follows_the_marks_with_hysteresis(policy, story):
    is_full = False
    for used in story:
        percent = -(-used // 100)
        before, is_full = is_full, full_after(disks_at(used), policy, is_full)
        if percent > policy.warning_percent:
            assert is_full
        elif percent <= policy.force_percent:
            assert not is_full
        else:
            assert is_full == before


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rounds_end_and_leave_the_newest_file(data):
    """Whatever the clock does between rounds, deletion goes on from the oldest and ends before the newest file."""
    files, policy = data.draw(stores()), data.draw(policies())
    state, used = RetentionState(), data.draw(st.integers(0, 10_000))
    for number in range(15):
        wall = START + data.draw(st.integers(-300, 300)) * HOUR
        now = Moment(wall, number * 60_000, data.draw(st.integers(0, 23)))
        decided = plan(files, now, disks_at(used), policy, state)
        count = len(decided.deletions)
        used -= min(used, decided.frees_bytes)
        files = files._replace(log=files.log[count:])
        state = decided.state
        if files.log:
            assert decided.min_offset_after == files.log[0].base
    if any(file.base < files.end for file in files.log):
        assert any(file.base <= files.end - 1 < file.end for file in files.log)
