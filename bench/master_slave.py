"""Sending to a SYNC_MASTER that waits for its slave: against the same broker alone, and against RocketMQ's pair.

Masters run on core 0, slaves and the load generator on core 1; one pair is under load at a time. Every answer has to
be a success, so every message counted is on both brokers. RocketMQ waits for its slave with ``inSyncReplicas=2``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.broker import COUNT, GENERATOR_CPU, SERVER_CPU, Load, _send
from bench.rows import Missing, Row, pairs
from tests.interop.rocketmq_java.runner import RocketServer, Unavailable, classpath, free_broker_port
from tests.interop.test_cluster import Cluster, Process
from tests.interop.test_master_slave import log_end

VERSION = "5.5.0"
READY_S = 120.0


class World(Cluster):
    """Our brokers, on chosen cores."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.namesrv = self.names("names").addresses["namesrv"]

    def start(self, name: str, cpu: int, **settings: Any) -> Process:
        """Start a broker with settings as in ``broker.conf``."""
        conf = self.folder / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        options = ["--http-port", "0", "--amqp-port", "-1", "--namesrv", self.namesrv, "--config", str(conf)]
        os.sched_setaffinity(0, {cpu})
        try:
            self.processes.append(Process(self.folder, name, "broker", *options))
        finally:
            os.sched_setaffinity(0, {GENERATOR_CPU})
        return self.processes[-1]


def run(rounds: int) -> list[Row | Missing]:
    """All rows of this suite."""
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-slave-"))
    rows: list[Row | Missing] = []
    try:
        os.sched_setaffinity(0, {GENERATOR_CPU})
        with ExitStack() as stack:
            world = World(folder)
            stack.callback(world.close)
            for mode in ("ASYNC_FLUSH", "SYNC_FLUSH"):
                both, alone = _ours(world, mode)
                for window, count in ((512, COUNT), (1, 2000)):
                    job = f"send 1 KB, SYNC_MASTER with a slave, {mode}, window {window}"
                    ours = _send(both, 1, window, count)
                    measured = pairs(ours, _send(alone, 1, window, count), rounds=rounds)
                    rows.append(Row(job=job, peer="alone", unit="msg/s", ours=measured[0], theirs=measured[1]))
                    if mode == "ASYNC_FLUSH":
                        rows.append(_against_rocketmq(stack, folder, world.namesrv, job, ours, window, count, rounds))
        return rows
    finally:
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        shutil.rmtree(folder, ignore_errors=True)


def _ours(world: World, mode: str) -> tuple[str, str]:
    """A pair and a broker alone; their addresses."""
    common = {"flushDiskType": mode, "brokerRole": "SYNC_MASTER", "brokerName": f"pair-{mode}"}
    master = world.start(f"master-{mode}", SERVER_CPU, listenPort=free_broker_port(), **common)
    slave = {**common, "brokerRole": "SLAVE", "brokerId": 1}
    copy = world.start(f"slave-{mode}", GENERATOR_CPU, listenPort=free_broker_port(), **slave)
    alone = {"flushDiskType": mode, "brokerName": f"alone-{mode}", "listenPort": free_broker_port()}
    single = world.start(f"alone-{mode}", SERVER_CPU, **alone)
    _wait(master.addresses["broker"], copy.addresses["broker"])
    return master.addresses["broker"], single.addresses["broker"]


def _wait(master: str, slave: str) -> None:
    """Send one message at a time until the pair works together."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            _send(master, 1, 1, 1)()
        except Exception:
            time.sleep(0.2)  # SLAVE_NOT_AVAILABLE until the slave is connected
            continue
        if log_end(slave):
            return
    raise RuntimeError(f"the slave {slave} does not follow {master}")


_rockets: dict[str, str] = {}


def _against_rocketmq(
    stack: ExitStack, folder: Path, namesrv: str, job: str, ours: Load, window: int, count: int, rounds: int
) -> Row | Missing:
    try:
        classpath(VERSION, kind="server")
    except Unavailable as missing:
        return Missing(job=job, reason=str(missing))
    if namesrv not in _rockets:
        common = {"mappedFileSizeCommitLog": 1 << 30, "inSyncReplicas": 2, "totalReplicas": 2, "brokerName": "rocket"}
        servers = []
        for name, cpu, role, number in (("rm", SERVER_CPU, "SYNC_MASTER", 0), ("rs", GENERATOR_CPU, "SLAVE", 1)):
            settings = {**common, "brokerRole": role, "brokerId": number}
            os.sched_setaffinity(0, {cpu})
            server = RocketServer(
                folder / name, folder / f"{name}-w", version=VERSION, settings=settings, namesrv=namesrv, heap="1g"
            )
            servers.append(stack.enter_context(server))
        os.sched_setaffinity(0, {GENERATOR_CPU})
        _wait(servers[0].broker, servers[1].broker)
        _rockets[namesrv] = servers[0].broker
    measured = pairs(ours, _send(_rockets[namesrv], 1, window, count), rounds=rounds)
    peer = f"RocketMQ {VERSION}, same roles"
    return Row(
        job=job, peer=peer, unit="msg/s", ours=measured[0], theirs=measured[1], note=json.dumps({"count": count})
    )
