"""A group of three members with real files and sockets, in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratamq.config import BrokerConfig, RetentionConfig, ServerConfig, StoreConfig
from stratamq.logstore.types import Message, PutResult, PutStatus
from stratamq.replication.node import MemberNode
from stratamq.replication.ports import RaftTimes
from stratamq.server.member import MemberProcess, Membership
from stratamq.server.settings import Settings
from tests.interop.ports import free_ports

HOST = bytes((127, 0, 0, 1, 0, 0, 0, 0))
FILE_BYTES = 16 * 1024
TIMES = RaftTimes(heartbeat_ms=100, election_min_ms=1_500, election_max_ms=2_500, retry_ms=500)


class Group:
    """Three members of one process."""

    def __init__(self, directory: Path, *, serves_amqp: bool = False) -> None:
        self.directory = directory
        names = ("n1", "n2", "n3")
        self.amqp_ports = dict(zip(names, free_ports(3) if serves_amqp else (-1, -1, -1), strict=True))
        self.peers = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True)}
        self.running: dict[str, MemberProcess] = {}

    async def start(self, name: str) -> None:
        settings = Settings(
            data_dir=self.directory / name,
            server=ServerConfig(
                host="127.0.0.1", broker_port=0, http_port=0, namesrv_port=-1, amqp_port=self.amqp_ports[name]
            ),
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
