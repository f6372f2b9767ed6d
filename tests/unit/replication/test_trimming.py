"""Groups of three members with real files and sockets, in one loop: old parts of the log go everywhere, or nowhere."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratamq.config import ServerConfig, TieredConfig
from stratamq.errors import ChecksumMismatch, ConfigError, RemoteProtocolError
from stratamq.replication import wire
from stratamq.replication.control import Table
from stratamq.replication.members import Config, Member
from stratamq.replication.messages import Install
from stratamq.replication.snapshot import Snapshot, decode_snapshot, encode_snapshot
from stratamq.server.member import MemberProcess, Membership
from stratamq.server.settings import Settings
from tests.unit.replication.groups import FILE_BYTES, Group, until


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
