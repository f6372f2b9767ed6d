"""Master and slave where one of them, or the client, is RocketMQ's: same bytes, same offsets, same answers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratamq.errors import PeerUnreachable
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.remoting_client import RemotingClient
from tests.interop.rocketmq_java.runner import JavaClient, RocketServer, free_broker_port
from tests.interop.rocketmq_java.targets import file_sizes, need_java, wait_until
from tests.interop.test_cluster import Cluster, Process

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
VERSION = "5.5.0"
WAIT_S = 180
COUNT = 621


class World(Cluster):
    """A name server, and brokers of ours and of RocketMQ's that are called ``broker-a``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.namesrv = self.names("names").addresses["namesrv"]
        self.rockets: list[RocketServer] = []

    def ours(self, name: str, **settings: Any) -> Process:
        """A broker of ours; settings as in ``broker.conf``."""
        values = {"brokerName": "broker-a", "listenPort": free_broker_port(), **file_sizes(), **settings}
        conf = self.folder / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        options = ["--http-port", "0", "--amqp-port", "-1", "--namesrv", self.namesrv, "--config", str(conf)]
        self.processes.append(Process(self.folder, name, "broker", *options))
        return self.processes[-1]

    def rocket(self, name: str, **settings: Any) -> RocketServer:
        """A broker of RocketMQ's."""
        server = RocketServer(
            self.folder / name, self.folder / f"{name}-work", version=VERSION, settings=settings, namesrv=self.namesrv
        )
        self.rockets.append(server)
        return server.start()

    def close(self) -> None:
        for server in self.rockets:
            server.kill()
        super().close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    need_java(VERSION, "server")
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    need_java(VERSION, "server")
    with JavaClient(tmp_path_factory.mktemp("java"), version=VERSION) as client:
        yield client


def ask(address: str, code: RequestCode) -> dict[str, Any]:
    """A broker's answer to a request without fields."""

    async def request() -> dict[str, Any]:
        async with await RemotingClient.connect(address, timeout_s=WAIT_S) as client:
            return dict(fastjson.loads((await client.request(code, timeout_s=WAIT_S))[1]))

    return asyncio.run(request())


def log_end(address: str) -> int:
    """Where a broker's log ends."""
    return int(ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]["commitLogMaxOffset"])


def offsets(address: str, group: str) -> dict[str, Any]:
    """A group's committed offsets, by topic."""
    table = ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]
    return {name: {int(q): int(o) for q, o in queues.items()} for name, queues in table.items() if name.endswith(group)}


def follows(master: str, slave: str) -> None:
    """Wait until a slave has all that its master has."""

    def is_done() -> bool:
        end = log_end(master)
        return end > 0 and log_end(slave) == end

    wait_until("the slave has the whole log", is_done, timeout_s=WAIT_S)


def log_bytes(folder: Path) -> bytes:
    """All bytes of a commit log but the zeros behind its end."""
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir())).rstrip(b"\0")


def traffic(java: JavaClient, namesrv: str, *, group: str) -> list[dict[str, Any]]:
    """Send what makes records of several kinds, consume some of it; returns what was sent to T."""
    java.producer(namesrv, id=group)
    rows = java.send(
        [{"topic": "T", "len": 2_000, "seed": n, "keys": f"k{n}", "tags": f"t{n % 3}"} for n in range(600)], id=group
    )
    java.send([{"topic": "T", "text": "later", "delay": 1}], id=group)
    java.send([{"topic": "T", "text": f"{n}"} for n in range(20)], id=group, mode="batch")
    java.send([{"topic": "Half", "text": "half"}], id=group)
    java.push(namesrv, "T", id=f"{group}-c", group=group)
    got: list[Any] = []

    def all_came() -> bool:
        got.extend(java.poll(f"{group}-c", min=1))
        return len(got) >= COUNT

    wait_until("all is consumed", all_came, timeout_s=WAIT_S)
    java.stop(f"{group}-c")
    java.stop(group)
    assert all(row["status"] == "SEND_OK" for row in rows)
    return list(rows)


def read_all(java: JavaClient, namesrv: str, *, id: str) -> list[tuple[int, int, str]]:
    """Queue, offset and digest of every message in T, as a new group gets them."""
    java.push(namesrv, "T", id=id, group=f"{id}-group")
    rows: list[dict[str, Any]] = []

    def all_read() -> bool:
        rows.extend(java.poll(id, min=1))
        return len(rows) >= COUNT

    wait_until("all is read", all_read, timeout_s=WAIT_S)
    java.stop(id)
    return sorted({(row["queueId"], row["queueOffset"], row["bodyMd5"]) for row in rows})


def test_rocketmqs_slave_follows_our_master(world, java):
    # RocketMQ's slaves ask for topics at the port minus 2, and for all tables a minute after their start only.
    master = world.ours("master", vip_port="true", ha_from_first_file="true")
    slave = world.rocket("slave", brokerRole="SLAVE", brokerId=1, slaveReadEnable="true")
    traffic(java, world.namesrv, group="G1")
    address = master.addresses["broker"]
    follows(address, slave.broker)
    before = read_all(java, world.namesrv, id="r1")
    wanted = offsets(address, "@G1")
    assert sum(wanted["T@G1"].values()) == COUNT
    assert "127.0.0.1" in java.mqadmin("haStatus", "-b", address)
    wait_until("RocketMQ's slave has the offsets", lambda: offsets(slave.broker, "@G1") == wanted, timeout_s=WAIT_S)
    assert master.stop() == 0
    assert read_all(java, world.namesrv, id="r2") == before
    slave.stop()
    assert log_bytes(world.folder / "slave") == log_bytes(world.folder / "master")


def test_our_slave_follows_rocketmqs_master(world, java):
    master = world.rocket("master", brokerRole="ASYNC_MASTER")
    slave = world.ours("slave", brokerRole="SLAVE", brokerId=1, slaveReadEnable="true", ha_tables_interval_ms=500)
    traffic(java, world.namesrv, group="G2")
    address = slave.addresses["broker"]
    follows(master.broker, address)
    before = read_all(java, world.namesrv, id="r3")
    wanted = offsets(master.broker, "@G2")
    assert sum(wanted["T@G2"].values()) == COUNT
    wait_until("our slave has the offsets", lambda: offsets(address, "@G2") == wanted, timeout_s=WAIT_S)
    master.kill()
    wait_until("the master is gone", lambda: not ask_silently(master.broker), timeout_s=WAIT_S)
    assert read_all(java, world.namesrv, id="r4") == before
    assert slave.stop() == 0
    assert log_bytes(world.folder / "slave") == log_bytes(world.folder / "master")


def ask_silently(address: str) -> bool:
    """Whether a broker answers."""
    try:
        ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    except PeerUnreachable:
        return False
    return True


def test_what_the_java_client_is_told_by_a_sync_master(world, java):
    master = world.ours("master", brokerRole="SYNC_MASTER", slaveTimeout=500)
    slave = world.ours("slave", brokerRole="SLAVE", brokerId=1)
    java.producer(world.namesrv, id="s")

    def status() -> str:
        return str(java.send([{"topic": "T", "text": "x"}], id="s")[0]["status"])

    def connected(count: int) -> Callable[[], bool]:
        return lambda: ask(master.addresses["broker"], RequestCode.GET_BROKER_HA_STATUS)["inSyncSlaveNums"] == count

    wait_until("the slave is connected", connected(1), timeout_s=WAIT_S)
    wait_until("it is waited for", lambda: status() == "SEND_OK", timeout_s=WAIT_S)
    slave.process.send_signal(signal.SIGSTOP)
    try:
        assert status() == "FLUSH_SLAVE_TIMEOUT"
    finally:
        slave.process.send_signal(signal.SIGCONT)
    wait_until("it goes on", lambda: status() == "SEND_OK", timeout_s=WAIT_S)
    assert slave.stop() == 0
    wait_until("the slave is gone", connected(0), timeout_s=WAIT_S)
    assert status() == "SLAVE_NOT_AVAILABLE"
    java.stop("s")
