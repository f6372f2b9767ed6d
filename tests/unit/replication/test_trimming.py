"""Groups of three members with real files and sockets, in one loop: old parts of the log go everywhere, or nowhere."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stratamq.config import BrokerConfig, RetentionConfig, ServerConfig, StoreConfig
from stratamq.errors import ChecksumMismatch
from stratamq.logstore.types import Message, PutResult, PutStatus
from stratamq.replication.control import Table
from stratamq.replication.members import Config, Member
from stratamq.replication.node import MemberNode
from stratamq.replication.ports import RaftTimes
from stratamq.replication.snapshot import Snapshot, decode_snapshot, encode_snapshot
from stratamq.server.lifecycle import Settings
from stratamq.server.member import MemberProcess, Membership
from stratamq.server.replicas import free_port

HOST = bytes((127, 0, 0, 1, 0, 0, 0, 0))
FILE_BYTES = 16 * 1024
TIMES = RaftTimes(heartbeat_ms=50, election_min_ms=300, election_max_ms=600, retry_ms=200)


class Group:
    """Three members of one process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peers = {name: f"127.0.0.1:{free_port('127.0.0.1')}" for name in ("n1", "n2", "n3")}
        self.running: dict[str, MemberProcess] = {}

    async def start(self, name: str) -> None:
        settings = Settings(
            data_dir=self.directory / name,
            server=ServerConfig(host="127.0.0.1", broker_port=0, http_port=0, namesrv_port=-1),
            broker=BrokerConfig(timer_wheel=False),
            store=StoreConfig(commit_log_file_bytes=FILE_BYTES, consume_queue_file_bytes=2000, index_enabled=False),
            retention=RetentionConfig(),
        )
        process = MemberProcess(settings, Membership(group="g", node=name, peers=self.peers, times=TIMES))
        await process.start()
        self.running[name] = process

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop()

    def node(self, name: str) -> MemberNode:
        node = self.running[name].node
        assert node is not None
        return node

    def status(self, name: str) -> dict[str, Any]:
        return self.node(name).status()

    async def leader(self) -> str:
        def find() -> str:
            serving = [name for name, process in self.running.items() if process.server and self.status(name)["serves"]]
            return serving[0] if len(serving) == 1 else ""

        return str(await until(find))

    async def put(self, topic: str, count: int) -> None:
        committer = self.node(await self.leader()).committer
        assert committer is not None
        for number in range(count):
            done: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
            body = f"{topic}-{number}-".encode().ljust(1000, b"x")
            message = Message(topic=topic, queue_id=0, body=body, properties="", born_timestamp=1, born_host=HOST)
            committer.put([message], done.set_result)
            assert (await asyncio.wait_for(done, 60)).status is PutStatus.PUT_OK

    async def wait_equal(self) -> None:
        def equal() -> bool:
            found = [self.status(name) for name in self.running]
            return len({(s["log_end"], s["decided"], s["log_start"]) for s in found}) == 1 and all(
                s["decided"] == s["log_end"] for s in found
            )

        await until(equal)

    async def trim(self, offset: int) -> None:
        leader = self.node(await self.leader())
        leader.propose_trim(offset)
        await until(lambda: all(self.status(name)["log_start"] == offset for name in self.running))

    def votes(self, name: str, leader: str) -> bool:
        """Whether a member votes as it is now, and a majority knows that."""
        found, own = self.status(leader), self.status(name)["incarnation"]
        return found["members_decided"] and name in found["voters"] and found["incarnations"][name] == own

    def offsets(self, name: str, topic: str) -> tuple[int, int]:
        store = self.node(name).store
        return store.min_offset(topic, 0), store.max_offset(topic, 0)


async def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path)
    for name in made.peers:
        await made.start(name)
    yield made
    for name in list(made.running):
        await made.stop(name)


async def test_all_members_delete_the_same(group: Group) -> None:
    await group.put("old", 5)
    await group.put("t", 60)
    await group.trim(2 * FILE_BYTES)
    await group.wait_equal()
    await until(lambda: {group.offsets(name, "old") for name in group.peers} == {(5, 5)})
    await until(lambda: len({group.offsets(name, "t") for name in group.peers} - {(0, 60)}) == 1)
    low, end = group.offsets("n1", "t")
    assert 0 < low < end == 60
    for name in group.peers:
        names = sorted(path.name for path in (group.directory / name / "commitlog").iterdir())
        assert names[0] == f"{2 * FILE_BYTES:020d}"


async def test_a_trimmed_group_starts_again_and_goes_on(group: Group) -> None:
    await group.put("t", 60)
    await group.trim(2 * FILE_BYTES)
    before = group.status(await group.leader())
    for name in group.peers:
        await group.stop(name)
    for name in group.peers:
        await group.start(name)
    await group.put("t", 3)
    await group.wait_equal()
    after = group.status(await group.leader())
    assert after["log_start"] == 2 * FILE_BYTES
    assert after["term"] > before["term"]
    assert after["incarnations"] == before["incarnations"]
    await until(lambda: {group.offsets(name, "t") for name in group.peers} == {(group.offsets("n1", "t")[0], 63)})


@pytest.mark.parametrize("loses_disk", [True, False], ids=["empty", "behind"])
async def test_a_member_that_lacks_deleted_bytes_begins_at_the_first_file(group: Group, loses_disk: bool) -> None:
    await group.put("ended", 3)
    await group.wait_equal()
    leader = await group.leader()
    late = next(name for name in group.peers if name != leader)
    await group.stop(late)
    if loses_disk:
        shutil.rmtree(group.directory / late)
    await group.put("t", 60)
    await group.trim(3 * FILE_BYTES)
    await group.start(late)
    await until(lambda: group.votes(late, leader))
    await group.wait_equal()
    await until(lambda: {group.offsets(name, "t") for name in group.peers} == {group.offsets(leader, "t")})
    assert [group.offsets(name, "ended")[1] for name in group.peers] == [3, 3, 3], "a queue without messages goes on"
    assert set(group.node(late).tables) == set(group.node(leader).tables)
    assert group.node(leader).core.transfer(late)
    group.node(leader).changed()
    await until(lambda: group.status(late)["serves"])
    await group.put("ended", 1)
    await group.wait_equal()
    assert [group.offsets(name, "ended")[1] for name in group.peers] == [4, 4, 4]


def test_snapshots_come_back_as_they_were() -> None:
    members = (77, Config((Member("n1", 5), Member("n2", 6)), (Member("n3", 7),)))
    snapshot = Snapshot(4096, [(1, 0), (3, 1000)], members, {"a": (50, Table("a", {"b": [1]}))}, [("t", 0, 9)], True)
    data = encode_snapshot(snapshot)
    assert decode_snapshot(data, "x") == snapshot
    assert decode_snapshot(encode_snapshot(snapshot._replace(members=None)), "x").members is None
    for bad in (b"", data[:-1], data.replace(b"4096", b"4097"), b"{}\n{}", b"[]\n"):
        with pytest.raises(ChecksumMismatch):
            decode_snapshot(bad, "x")
