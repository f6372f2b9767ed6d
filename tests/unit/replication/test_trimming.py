"""Groups of three members with real files and sockets, in one loop: old parts of the log go everywhere, or nowhere."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stratamq.config import BrokerConfig, RetentionConfig, ServerConfig, StoreConfig, TieredConfig
from stratamq.errors import ChecksumMismatch, ConfigError, RemoteProtocolError
from stratamq.logstore.types import Message, PutResult, PutStatus
from stratamq.replication import wire
from stratamq.replication.control import Table
from stratamq.replication.members import Config, Member
from stratamq.replication.messages import Install
from stratamq.replication.node import MemberNode
from stratamq.replication.ports import RaftTimes
from stratamq.replication.snapshot import Snapshot, decode_snapshot, encode_snapshot
from stratamq.server.member import MemberProcess, Membership
from stratamq.server.settings import Settings
from tests.interop.ports import free_ports

HOST = bytes((127, 0, 0, 1, 0, 0, 0, 0))
FILE_BYTES = 16 * 1024
TIMES = RaftTimes(heartbeat_ms=100, election_min_ms=1_500, election_max_ms=2_500, retry_ms=500)


class Group:
    """Three members of one process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        names = ("n1", "n2", "n3")
        self.peers = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True)}
        self.running: dict[str, MemberProcess] = {}

    async def start(self, name: str) -> None:
        settings = Settings(
            data_dir=self.directory / name,
            server=ServerConfig(host="127.0.0.1", broker_port=0, http_port=0, namesrv_port=-1, amqp_port=-1),
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
        """Store so many messages; on a busy machine leadership may go meanwhile, and then one may be stored twice."""
        for number in range(count):
            body = f"{topic}-{number}-".encode().ljust(1000, b"x")
            message = Message(topic=topic, queue_id=0, body=body, properties="", born_timestamp=1, born_host=HOST)
            while not await self._is_stored(message):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _is_stored(self, message: Message) -> bool:
        committer = self.node(await self.leader()).committer
        if committer is None:
            return False
        done: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        committer.put([message], done.set_result)
        return (await asyncio.wait_for(done, 60)).status is PutStatus.PUT_OK

    async def wait_equal(self) -> None:
        def equal() -> bool:
            found = [self.status(name) for name in self.running]
            return len({(s["log_end"], s["decided"], s["log_start"]) for s in found}) == 1 and all(
                s["decided"] == s["log_end"] for s in found
            )

        await until(equal)

    async def trim(self, offset: int) -> None:
        def is_done() -> bool:
            for name in self.running:
                self.node(name).propose_trim(offset)  # only the leader does, and once a term
            return all(self.status(name)["log_start"] == offset for name in self.running)

        await until(is_done)

    def votes(self, name: str, leader: str) -> bool:
        """Whether a member votes as it is now, and a majority knows that."""
        found, own = self.status(leader), self.status(name)["incarnation"]
        return (
            found["serves"]
            and found["members_decided"]
            and name in found["voters"]
            and found["incarnations"][name] == own
        )

    def offsets(self, name: str, topic: str) -> tuple[int, int]:
        store = self.node(name).store
        return store.min_offset(topic, 0), store.max_offset(topic, 0)

    async def ends(self, topic: str, at_least: int) -> int:
        """Where a queue ends on all members alike. Queues follow the log, so they may lag when the logs are equal."""

        def equal() -> set[int]:
            found = {self.offsets(name, topic)[1] for name in self.peers}
            return found if len(found) == 1 and min(found) >= at_least else set()

        return int(min(await until(equal)))

    async def same_offsets(self, topic: str, are_right: Callable[[int, int], bool]) -> tuple[int, int]:
        """Where a queue begins and ends, once that is so on all members and as it should be."""

        def same() -> tuple[int, int] | None:
            found = {self.offsets(name, topic) for name in self.peers}
            return found.pop() if len(found) == 1 and are_right(*min(found)) else None

        low, end = await until(same)
        return int(low), int(end)

    async def knowing_leader(self) -> str:
        """A leader that has heard from every member which disk it has."""

        def find() -> str:
            for name in self.running:
                status = self.status(name)
                if status["serves"] and status["members_decided"] and all(status["incarnations"].values()):
                    return name
            return ""

        return str(await until(find))


async def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
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
    old_end = await group.ends("old", 5)
    await until(lambda: {group.offsets(name, "old") for name in group.peers} == {(old_end, old_end)})
    low, end = await group.same_offsets("t", lambda low, end: low > 0 and end >= 60)
    assert low < end
    for name in group.peers:  # files go in a thread, after the log begins later
        folder = group.directory / name / "commitlog"
        await until(lambda folder=folder: min(path.name for path in folder.iterdir()) == f"{2 * FILE_BYTES:020d}")


async def test_a_trimmed_group_starts_again_and_goes_on(group: Group) -> None:
    await group.put("t", 60)
    await group.trim(2 * FILE_BYTES)
    before = group.status(await group.knowing_leader())
    for name in group.peers:
        await group.stop(name)
    for name in group.peers:
        await group.start(name)
    await group.put("t", 3)
    await group.wait_equal()
    after = group.status(await group.knowing_leader())
    assert after["log_start"] == 2 * FILE_BYTES
    assert after["term"] > before["term"]
    assert after["incarnations"] == before["incarnations"]
    await group.same_offsets("t", lambda low, end: low > 0 and end >= 63)


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
    leader = await group.leader()
    await until(lambda: any(group.votes(late, name) for name in group.peers))
    await group.wait_equal()
    await until(lambda: {group.offsets(name, "t") for name in group.peers} == {group.offsets(leader, "t")})
    end = await group.ends("ended", 3)  # a queue without messages goes on
    await until(lambda: set(group.node(late).tables) == set(group.node(leader).tables))

    def has_led() -> bool:
        for name in group.peers:
            if group.node(name).core.transfer(late):
                group.node(name).changed()
        return bool(group.status(late)["serves"])

    await until(has_led)
    await group.put("ended", 1)
    await group.wait_equal()
    assert await group.ends("ended", end + 1) > end


def test_snapshots_come_back_as_they_were() -> None:
    members = (77, Config((Member("n1", 5), Member("n2", 6)), (Member("n3", 7),)))
    snapshot = Snapshot(4096, [(1, 0), (3, 1000)], members, {"a": (50, Table("a", {"b": [1]}))}, [("t", 0, 9)], True)
    data = encode_snapshot(snapshot)
    assert decode_snapshot(data, "x") == snapshot
    assert decode_snapshot(encode_snapshot(snapshot._replace(members=None)), "x").members is None
    for bad in (b"", data[:-1], data.replace(b"4096", b"4097"), b"{}\n{}", b"[]\n"):
        with pytest.raises(ChecksumMismatch):
            decode_snapshot(bad, "x")


def test_a_message_to_begin_anew_survives_the_wire() -> None:
    message = Install(7, "n2", 99, 4096, 6, b"snapshot")
    pieces = b"".join(wire.encode_message(message))
    back = wire.decode_message(memoryview(pieces)[wire.HEAD.size :])
    assert isinstance(back, Install)
    assert back._replace(snapshot=bytes(back.snapshot)) == message  # type: ignore[call-overload]
    with pytest.raises(RemoteProtocolError):
        wire.decode_message(memoryview(pieces)[wire.HEAD.size : -len(b"snapshot") - 3])


@pytest.mark.parametrize(
    "wanted",
    [{"server": ServerConfig(amqps_port=5671)}, {"tiered": TieredConfig(url="memory:")}],
    ids=["AMQP", "cold tier"],
)
def test_what_a_group_lacks_is_refused(tmp_path: Path, wanted: dict[str, Any]) -> None:
    membership = Membership(group="g", node="n1", peers={"n1": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match="left out"):
        MemberProcess(Settings(data_dir=tmp_path, **wanted), membership)
