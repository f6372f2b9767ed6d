"""Masters and slaves that are killed: what a SYNC_MASTER answered is on its slave, and a slave goes on where it was."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratamq.protocols.remoting.codes import RequestCode
from tests.interop.rocketmq_java.targets import file_sizes, wait_until
from tests.interop.test_cluster import Cluster, Process
from tests.interop.test_master_slave import log_bytes, log_end
from tests.unit.server.harness import records
from tests.unit.server.test_lifecycle import Connection, pull_ext, send_ext

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]
WAIT_S = 180


class World(Cluster):
    """A name server and brokers of one name, on ports that the system gives."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.namesrv = self.names("names").addresses["namesrv"]

    def start(self, name: str, **settings: Any) -> Process:
        conf = self.folder / f"{name}.conf"
        values = {"brokerName": "b", "ha_retry_ms": 50, **file_sizes(), **settings}
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        (self.folder / f"{name}.json").unlink(missing_ok=True)  # what a kill left
        ports = ["--broker-port", "0", "--http-port", "0", "--amqp-port", "-1"]
        self.processes.append(
            Process(self.folder, name, "broker", *ports, "--namesrv", self.namesrv, "--config", str(conf))
        )
        return self.processes[-1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


def kill(process: Process) -> None:
    """End a process without warning."""
    process.process.send_signal(signal.SIGKILL)
    process.process.wait()


class Load:
    """Sends one message after the other, until told to stop or the broker goes; remembers which were answered OK."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.good: list[bytes] = []

    async def run(self, stop: asyncio.Event) -> None:
        client = await Connection.open(self._address)
        number = 0
        try:
            while not stop.is_set():
                body = b"%d:" % number + bytes(300)
                if (await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), body)).code == 0:
                    self.good.append(body)
                number += 1
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            client.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that is found out in a thread."""
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_all(address: str) -> list[bytes]:
    """The bodies of all messages in the one queue that is used."""
    client = await Connection.open(address)
    found: list[bytes] = []
    while True:
        answer = await client.ask(RequestCode.PULL_MESSAGE, pull_ext(queueOffset=len(found), sysFlag=4))
        if answer.code != 0:
            client.close()
            return found
        found += [record.body for record in records(answer.body)]


def test_a_slave_that_is_killed_again_and_again_goes_on(world):
    random = Random(11)
    master = world.start("master", ha_from_first_file="true")
    load, stop = Load(master.addresses["broker"]), asyncio.Event()

    async def drive() -> Process:
        sending = asyncio.create_task(load.run(stop))
        try:
            for _ in range(5):
                slave = await asyncio.to_thread(world.start, "slave", brokerRole="SLAVE", brokerId=1)
                before = await asyncio.to_thread(log_end, slave.addresses["broker"])
                await until(lambda: log_end(slave.addresses["broker"]) > before)  # noqa: B023 - awaited here
                await asyncio.sleep(random.uniform(0.0, 0.3))  # a kill at any moment is what this test is about
                await asyncio.to_thread(kill, slave)
            return await asyncio.to_thread(world.start, "slave", brokerRole="SLAVE", brokerId=1)
        finally:
            stop.set()
            await sending

    slave = asyncio.run(drive())
    ends = [process.addresses["broker"] for process in (master, slave)]
    wait_until("the slave has all", lambda: len({log_end(address) for address in ends}) == 1, timeout_s=WAIT_S)
    assert slave.stop() == 0
    assert master.stop() == 0
    assert log_bytes(world.folder / "slave") == log_bytes(world.folder / "master")
    assert len(load.good) > 100


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_a_sync_master_answered_is_on_its_slave(world, flush):
    master = world.start("master", brokerRole="SYNC_MASTER", flushDiskType=flush)
    slave = world.start("slave", brokerRole="SLAVE", brokerId=1, flushDiskType=flush)
    load, stop = Load(master.addresses["broker"]), asyncio.Event()

    async def drive() -> None:
        sending = asyncio.create_task(load.run(stop))
        await until(lambda: len(load.good) >= 200)
        kill(master)
        await sending

    asyncio.run(drive())
    assert len(load.good) >= 200
    kill(slave)
    master = world.start("slave", flushDiskType=flush)
    found = asyncio.run(read_all(master.addresses["broker"]))
    assert set(load.good) <= set(found)
