"""A commit log in several directories: where new files go, what is read, what a start refuses."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.config import RetentionConfig, StoreConfig
from stratamq.errors import ConfigError, CorruptionError, StrayFile
from stratamq.logstore.check import check_store
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.listing import list_log
from stratamq.logstore.log_paths import PATHS_MAX, LogPaths, configured_paths, recorded_paths
from stratamq.logstore.retention_offline import OfflineStore
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.store import LogStore
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import abandon, bodies, message, open_store, put, small_config

BODY = b"x" * 900


def spread(*writable: Path, read_only: tuple[Path, ...] = ()) -> StoreConfig:
    """Settings that name these directories."""
    return small_config(
        commit_log_paths=",".join(map(str, writable)), commit_log_read_only_paths=",".join(map(str, read_only))
    )


def fill(store: LogStore, count: int, start: int = 0) -> None:
    """About four messages a file of the log."""
    for number in range(start, start + count):
        put(store, message(BODY + str(number).encode()))


def names(directory: Path) -> list[int]:
    """Numbers of the files in one directory."""
    return sorted(int(path.name) // 4096 for path in directory.iterdir())


def all_bodies(count: int) -> list[bytes]:
    """What `fill` wrote, in order."""
    return [BODY + str(number).encode() for number in range(count)]


@pytest.mark.parametrize(
    ("full", "places"),
    [
        ((), ["/a", "/b", "/c", "/a"]),
        (("/b",), ["/a", "/c", "/a", "/c"]),
        (("/a", "/b", "/c"), ["/a", "/b", "/c", "/a"]),
    ],
)
def test_new_files_go_to_the_directories_in_turn(full, places):
    paths = LogPaths(("/c", "/a", "/b"), ("/0",))
    assert [paths.place(number * 4096, 4096, full) for number in range(4)] == places


def test_a_log_over_two_directories_is_written_read_and_checked(tmp_path):
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "s"
    store = open_store(root, spread(a, b))
    fill(store, 20)
    store.close()
    assert names(a) == [0, 2, 4]
    assert names(b) == [1, 3]
    assert not (root / "commitlog").exists()
    again = open_store(root, spread(b, a))  # the order in which they are named does not count
    assert bodies(again) == all_bodies(20)
    again.close()
    with StoreSnapshot.open(root) as snapshot:
        assert [file.base // 4096 for file in snapshot.files] == [0, 1, 2, 3, 4]
        assert snapshot.queue("T", 0).max_offset == 20
    assert not check_store(root).is_damaged
    offline = OfflineStore(root)
    assert [usage.path for usage in offline.disks().log] == [str(b), str(a)]
    assert [Path(file.directory).name for file in offline.files().log] == ["a", "b", "a", "b", "a"]


def test_files_of_read_only_directories_are_read_but_none_is_made_there(tmp_path):
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "s"
    store = open_store(root, spread(a, b))
    fill(store, 20)
    store.close()
    store = open_store(root, spread(a, b, read_only=(b,)))
    fill(store, 20, 20)
    assert bodies(store) == all_bodies(40)
    store.close()
    assert names(b) == [1, 3]
    assert recorded_paths(str(root)) == LogPaths((str(a),), (str(b),))


def test_a_directory_with_files_of_the_log_is_not_left_out(tmp_path):
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "s"
    store = open_store(root, spread(a, b))
    fill(store, 8)
    store.close()
    for config in (small_config(), spread(a), spread(b, tmp_path / "c")):
        with pytest.raises(ConfigError, match="storePathCommitLog"):
            open_store(root, config)
    assert not (tmp_path / "c").exists()
    plain = tmp_path / "plain"
    store = open_store(plain)
    fill(store, 8)
    store.close()
    with pytest.raises(ConfigError, match="commitlog, where files of this log lie"):
        open_store(plain, spread(tmp_path / "d"))
    store = open_store(plain, spread(tmp_path / "d", plain / "commitlog"))
    assert bodies(store) == all_bodies(8)
    store.close()
    assert json.loads((plain / "commitLogPaths.json").read_text())["paths"] == [str(tmp_path / "d"), "commitlog"]


def test_an_emptied_directory_may_be_left_out(tmp_path):
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "s"
    store = open_store(root, spread(a, b))
    fill(store, 3)
    store.close()
    assert names(b) == []
    store = open_store(root, spread(a))
    assert bodies(store) == all_bodies(3)
    store.close()


def test_a_directory_that_is_gone_is_a_disk_that_is_not_mounted(tmp_path):
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "s"
    store = open_store(root, spread(a, b))
    fill(store, 8)
    store.close()
    a.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is its disk mounted"):
        open_store(root, spread(a, b))
    assert not a.exists()


def test_a_file_that_lies_in_two_directories_is_refused(tmp_path):
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "s"
    store = open_store(root, spread(a, b))
    fill(store, 8)
    store.close()
    (b / f"{0:020d}").write_bytes((a / f"{0:020d}").read_bytes())
    with pytest.raises(StrayFile, match="lies in"):
        open_store(root, spread(a, b))
    assert any(isinstance(problem, StrayFile) for problem in list_log(str(root)).problems)
    assert check_store(root).is_damaged


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"version": 2, "paths": ["a"], "readOnly": []}']
    + [f'{{"version": 1, "paths": {paths}, "readOnly": []}}' for paths in ("[]", "[1]", '"a"', '["\\u0000"]', "null")]
    + [json.dumps({"version": 1, "paths": ["a"] * (PATHS_MAX + 1), "readOnly": []}), '{"version": 1, "paths": ["a"]}'],
)
def test_a_list_of_directories_that_makes_no_sense_is_named(tmp_path, text):
    (tmp_path / "commitLogPaths.json").write_text(text)
    with pytest.raises(CorruptionError, match=r"commitLogPaths\.json"):
        open_store(tmp_path)
    with pytest.raises(CorruptionError, match=r"commitLogPaths\.json"):
        StoreSnapshot.open(tmp_path)


def test_settings_that_leave_no_directory_to_write_to_are_refused():
    for config in (spread(Path("/a"), read_only=(Path("/a"),)), spread(*(Path(f"/{n}") for n in range(PATHS_MAX + 1)))):
        with pytest.raises(ConfigError, match="storePathCommitLog"):
            configured_paths("/s", config)
    assert configured_paths("/s", small_config()) == LogPaths(("/s/commitlog",))
    assert configured_paths("/s", small_config(commit_log_paths=" /a/ ,, /b,/a")) == LogPaths(("/a", "/b"))


class Disks:
    """Disks as full as a test says, by the name of the directory; 50 % otherwise."""

    def __init__(self, **percents: int) -> None:
        self.percents = percents

    def usage(self, path: str) -> DiskUsage:
        """A disk of 10 MB."""
        percent = self.percents.get(Path(path).name, 50)
        return DiskUsage(path, 10_000_000, percent * 100_000, (100 - percent) * 100_000, hash(path))


def retention_over(store: LogStore, disks: Disks, clock: ManualClock) -> RetentionService:
    """Retention with defaults."""
    return RetentionService(store, RetentionConfig(), clock=clock, offsets=dict, probe=disks)


def carry_out(service: RetentionService) -> None:
    """One round."""
    for step in service.round():
        if step.blocking is not None:
            step.blocking()


def test_no_new_file_goes_to_a_full_disk_and_nothing_is_refused_while_another_has_room(tmp_path):
    a, b, clock = tmp_path / "a", tmp_path / "b", ManualClock()
    store = open_store(tmp_path / "s", spread(a, b), clock=clock)
    disks = Disks(a=95)
    service = retention_over(store, disks, clock)
    fill(store, 4)
    carry_out(service)
    assert not service.state.is_full
    assert service.deleted_files == 0  # nothing goes by force either: new files have a place
    fill(store, 16, 4)
    assert (names(a), names(b)) == ([0], [1, 2, 3, 4])
    disks.percents = {"a": 95, "b": 95}
    service.watch()
    assert service.state.is_full
    disks.percents = {"b": 95}
    service.watch()
    fill(store, 8, 20)
    assert (names(a), names(b)) == ([0, 5, 6], [1, 2, 3, 4])
    store.close()


def test_expired_files_go_oldest_first_from_both_directories(tmp_path):
    a, b, clock = tmp_path / "a", tmp_path / "b", ManualClock()
    store = open_store(tmp_path / "s", spread(a, b), clock=clock)
    fill(store, 20)
    service = retention_over(store, Disks(), clock)
    clock.advance(73 * 3_600_000)
    service.request()
    carry_out(service)
    assert (names(a), names(b)) == ([4], [])
    fill(store, 8, 20)
    store.close()
    store = open_store(tmp_path / "s", spread(a, b), clock=clock)
    assert bodies(store) == all_bodies(28)[16:]
    store.close()


ROUNDS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abcd"), min_size=1),
        st.sets(st.sampled_from("abcd")),
        st.sets(st.sampled_from("abcd")),
        st.integers(0, 12),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(ROUNDS)
@settings(max_examples=40, deadline=None)
def test_any_directories_over_restarts_and_kills(rounds):
    """Whatever is writable, read-only and full, every message is there, and no new file is where none may be."""
    with tempfile.TemporaryDirectory() as folder:
        top, written = Path(folder), 0
        used: set[str] = set()
        for writable, read_only, full, count, kill in rounds:
            barred = read_only - writable
            rest = used - writable - barred
            config = spread(*(top / n for n in writable), read_only=tuple(top / n for n in sorted(barred | rest)))
            store = open_store(top / "s", config)
            assert bodies(store) == all_bodies(written)
            store.retained()[0].full_paths = frozenset(str(top / n) for n in full)
            before = {n: names(top / n) for n in "abcd" if (top / n).exists()}
            fill(store, count, written)
            written += count
            allowed = (writable - full) or writable
            for name in "abcd":
                if name not in allowed and name in before:
                    assert names(top / name) == before[name]
            if kill:
                abandon(store)
            else:
                store.close()
            used |= {n for n in "abcd" if (top / n).exists() and names(top / n)}
        with StoreSnapshot.open(top / "s") as snapshot:
            assert sum(queue.max_offset for queue in snapshot.queues()) == written
