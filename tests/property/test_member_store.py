"""The store of a group's member: a leader's bytes, cuts and crashes, compared with the leader's own."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.config import FlushMode
from stratamq.files.filesystem import FileSystem
from stratamq.logstore.types import QueueKey
from stratamq.replication.control import encode_deletion
from stratamq.replication.log_store import MemberStore
from stratamq.replication.store_log import StoreLog
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from tests.unit.logstore.stores import HOST, STORE_HOST, abandon, contents, message, small_config

CONFIG = small_config(flush_mode=FlushMode.SYNC, consume_queue_file_bytes=100)


def open_member(path: Path, fs: FileSystem | None = None) -> MemberStore:
    store = MemberStore.open(path, CONFIG, clock=ManualClock(), store_host=STORE_HOST, filesystem=fs)
    assert isinstance(store, MemberStore)
    store.trim_blank()
    return store


def lead(store: MemberStore, rng: random.Random, batches: int, name: str) -> None:
    """Put batches of messages as a leader does."""
    for number in range(batches):
        for at in range(rng.randint(1, 4)):
            body = f"{name}-{number}-{at}".ljust(rng.choice([10, 100, 900]), ".")
            store.append([message(body, topic=rng.choice("ABC"), queue_id=rng.randint(0, 1), KEYS=f"{name}{number}")])
        store.commit()


def follow(store: MemberStore, leader: MemberStore, rng: random.Random, end: int) -> None:
    """Take the leader's bytes up to ``end`` or one record further."""
    while store.max_physical_offset < end:
        at = store.max_physical_offset
        frame = leader.read_records(at, leader.max_physical_offset, rng.choice([1, 2000]))
        store.write_records(memoryview(bytes(frame)))


def decide(store: MemberStore) -> None:
    token = store.all_written()
    store.sync(token)
    store.decided(token.end)


def log_of(store: MemberStore) -> bytes:
    end = store.max_physical_offset
    data = b"".join(bytes(store._log.file_view(base)) for base in store._log.bases)
    assert not any(data[end:]), "something stands behind the log's end"
    return data[:end]


def ends(store: MemberStore) -> list[int]:
    """Every boundary between records."""
    found, at = [0], 0
    while at < store.max_physical_offset:
        at += len(store.read_records(at, store.max_physical_offset, 1))
        found.append(at)
    return found


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_member_that_is_cut_and_follows_another_leader_equals_it(seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        first, second, member = (open_member(Path(folder) / name) for name in ("first", "second", "member"))
        lead(first, rng, rng.randint(1, 8), "one")
        follow(member, first, rng, first.max_physical_offset)
        shared = rng.choice(ends(first))
        follow(second, first, rng, shared)
        shared = second.max_physical_offset
        lead(second, rng, rng.randint(1, 6), "two")
        if rng.random() < 0.5:
            member.sync(member.all_written())
        if shared < member.max_physical_offset:
            member.truncate(shared)
        follow(member, second, rng, second.max_physical_offset)
        for store in (member, second):
            decide(store)
        assert log_of(member) == log_of(second)
        assert contents(member) == contents(second)
        if rng.random() < 0.5:
            abandon(member)
        else:
            member.close()
        again = open_member(Path(folder) / "member")
        assert log_of(again) == log_of(second)
        assert contents(again) == contents(second)
        for store in (first, second, again):
            store.close()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_crash_while_the_log_is_cut_leaves_records_of_the_old_log_only(seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        leader = open_member(Path(folder) / "leader")
        lead(leader, rng, rng.randint(2, 8), "one")
        fs = FaultyFileSystem()
        member = open_member(Path(folder) / "member", fs)
        follow(member, leader, rng, leader.max_physical_offset)
        token = member.all_written()
        member.sync(token)
        keep = rng.choice(ends(leader)[:-1])
        if keep:
            member.decided(rng.choice([end for end in ends(leader) if end <= keep]))
        fs.crash_at(rng.randint(1, 40))
        crashed = False
        try:
            member.truncate(keep)
        except SimulatedCrash:
            crashed = True
        abandon(member)
        fs.lose_unsynced(rng)
        again = open_member(Path(folder) / "member")
        end = again.max_physical_offset
        assert end in ends(leader)
        assert end >= keep
        assert crashed or end == keep
        assert log_of(again) == log_of(leader)[:end]
        leader.close()
        again.close()


def test_what_is_not_decided_is_not_shown(tmp_path):
    leader, member = open_member(tmp_path / "leader"), open_member(tmp_path / "member")
    lead(leader, random.Random(1), 4, "one")
    follow(member, leader, random.Random(2), leader.max_physical_offset)
    token = member.all_written()
    member.sync(token)
    assert not any(contents(member).values())
    half = ends(leader)[len(ends(leader)) // 2]
    member.close()
    member = open_member(tmp_path / "member")
    member.show_up_to(half)
    shown = sum(map(len, contents(member).values()))
    assert 0 < shown < len(ends(leader)) - 1
    member.decided(member.max_physical_offset)
    decide(leader)
    assert contents(member) == contents(leader)
    leader.close()
    member.close()


def test_a_deleted_topic_goes_at_the_same_place_everywhere(tmp_path):
    leader, member = open_member(tmp_path / "leader"), open_member(tmp_path / "member")
    clock = ManualClock()
    log = StoreLog(leader, "n1", HOST, clock)
    StoreLog(member, "n2", HOST, clock)
    leader.on_delete = lambda topic: log.append_body(encode_deletion(topic))
    for topic in ("kept", "gone", "gone"):
        leader.append([message("before", topic=topic)])
    leader.commit()
    leader.delete_topic("gone")
    leader.append([message("after", topic="gone")])
    leader.commit()
    follow(member, leader, random.Random(1), leader.max_physical_offset)
    for store in (leader, member):
        decide(store)
        assert contents(store)[QueueKey("gone", 0)] == [b"after"]
    assert contents(member) == contents(leader)
    member.close()
    member = open_member(tmp_path / "member")
    assert contents(member) == contents(leader)
    leader.close()
    member.close()
