"""A name server and a group of brokers, each a process of its own, for tests and measurements of failover."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stratamq.errors import PeerUnreachable
from stratamq.replication.transport import ask
from tests.interop.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 150.0
STATUS_S = 10.0
"""How long a member may take to say how it is; a busy machine is slow, and one that is stopped never answers."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """Wait until a condition gives something true; returns that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds:g} s")


class ReplicaGroup:
    """Members n1, n2, ... of group ``g1``, and a name server. ``shares_port``: whoever leads listens on one port."""

    def __init__(
        self, directory: Path, count: int = 3, *, shares_port: bool = False, serves_amqp: bool = False
    ) -> None:
        self.directory = directory
        self.names = [f"n{number}" for number in range(1, count + 1)]
        ports = free_ports(2 * count + 1)
        self.namesrv = f"127.0.0.1:{ports[0]}"
        self.peers = {name: f"127.0.0.1:{port}" for name, port in zip(self.names, ports[1:], strict=False)}
        listens = ports[-1:] * count if shares_port else ports[1 + count :]
        self.broker_ports = dict(zip(self.names, listens, strict=True))
        self.amqp_ports = dict(zip(self.names, free_ports(count) if serves_amqp else count * [-1], strict=True))
        self.dial: dict[tuple[str, str], str] = {}
        """(from, to) -> where a member dials another instead of its own address."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> ReplicaGroup:
        self._run("names", "nameserver", f"--port={self.namesrv.rpartition(':')[2]}")
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def _run(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "stratamq.cli.main", *arguments, f"--data-dir={self.directory / name}"],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdout=log,
                stderr=log,
            )

    def start(self, name: str) -> None:
        """Start a member."""
        peers = {other: self.dial.get((name, other), address) for other, address in self.peers.items()}
        self._run(
            name,
            "broker",
            f"--broker-port={self.broker_ports[name]}",
            "--http-port=0",
            f"--amqp-port={self.amqp_ports[name]}",
            f"--namesrv={self.namesrv}",
            "--group=g1",
            f"--node={name}",
            "--peers=" + ",".join(f"{other}={address}" for other, address in peers.items()),
        )

    def join(self, name: str) -> None:
        """Start a node that is no member yet."""
        peer, broker = free_ports(2)
        self.names.append(name)
        self.peers[name] = f"127.0.0.1:{peer}"
        self.broker_ports[name] = broker
        self.amqp_ports[name] = -1
        self.start(name)

    def signal(self, name: str, number: int) -> None:
        """Send a signal; a kill waits for the end."""
        self.processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.processes[name].wait(WAIT_S)

    def wipe(self, name: str) -> None:
        """Take a stopped member's disk away."""
        shutil.rmtree(self.directory / name)

    def status(self, name: str) -> dict[str, Any]:
        """What a member says of itself; empty when it cannot be asked."""
        try:
            return asyncio.run(asyncio.wait_for(ask(self.peers[name], {"do": "status"}), STATUS_S))
        except (PeerUnreachable, TimeoutError):
            return {}

    def ask(self, name: str, **request: Any) -> dict[str, Any]:
        """Ask a member something."""
        return asyncio.run(ask(self.peers[name], request))

    def leader(self, among: Iterable[str] = ()) -> str:
        """The member that serves; waits for one."""

        def find() -> str:
            found = [(s["term"], s["node"]) for name in among or self.names if (s := self.status(name)).get("serves")]
            return max(found)[1] if found else ""

        return str(wait_for(find, "a leader"))

    def wait_equal(self) -> int:
        """Wait until all members have decided the same end; returns it."""

        def equal() -> int:
            ends = [self.status(name) for name in self.names]
            positions = {(s.get("log_end"), s.get("decided")) for s in ends}
            end = ends[0].get("log_end", 0)
            return end if len(positions) == 1 and positions == {(end, end)} else 0

        return int(wait_for(equal, "equal logs"))

    def log_bytes(self, name: str, end: int) -> bytes:
        """The commit log's bytes (of one file) up to ``end``."""
        with (self.directory / name / "commitlog" / f"{0:020d}").open("rb") as file:
            return file.read(end)

    def logs(self) -> str:
        """What all have logged."""
        return "\n".join(f"--- {name}\n{(self.directory / f'{name}.log').read_text()}" for name in self.processes)
