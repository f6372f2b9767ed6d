"""A whole replication group on one machine: a name server in this process, each member in one of its own.

For trying groups out, and for a machine whose disks fail one by one and not all at once. A member that ends by itself
is started again after a pause. All members have one broker port, because only the leader listens: clients find the next
leader where the last one was, without asking the name server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stratamq.server.namesrv_process import NameServerProcess
from stratamq.server.process import run
from stratamq.server.settings import Settings

_log = logging.getLogger(__name__)
PAUSE_S: Final = 2.0
STOP_S: Final = 20.0
PORTS_APART: Final = 10
PEER_PORT_ABOVE: Final = 5
"""The members' ports for each other lie so much above the broker port, and `PORTS_APART`."""
GROUP: Final = "replicas"


class Replicas:
    """``count`` members below one data directory: ``n1``, ``n2``, ... and ``names``."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._count = count
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._names: NameServerProcess | None = None
        self._is_stopping = False
        self.peers: dict[str, str] = {}
        self.brokers: dict[str, str] = {}

    async def start(self) -> None:
        """Start the name server, then every member. Raises PortUnusable."""
        settings = self._settings
        host = settings.server.host
        server = replace(settings.server, stop_timeout_ms=1_000)
        self._names = NameServerProcess(server, settings.data_dir / "names")
        await self._names.start()
        first = settings.server.broker_port
        free = [] if first else free_ports(host, self._count + 1)
        shared = first or free.pop()
        for number in range(1, self._count + 1):
            above = first + (number - 1) * PORTS_APART + PEER_PORT_ABOVE
            self.brokers[f"n{number}"] = f"{host}:{shared}"
            self.peers[f"n{number}"] = f"{host}:{above if first else free.pop()}"
        for node in self.brokers:
            self._tasks.append(asyncio.create_task(self._keep(node)))

    @property
    def namesrv(self) -> str:
        """Where clients ask for routes."""
        return "" if self._names is None else self._names.address

    def ready(self) -> dict[str, Any]:
        """Where the name server, the brokers and the members for each other are."""
        return {"namesrv": self.namesrv, "brokers": self.brokers, "peers": self.peers}

    async def _keep(self, node: str) -> None:
        """Run one member, again and again."""
        number = int(node[1:])
        settings = self._settings
        http = settings.server.http_port
        arguments = [
            "broker",
            f"--data-dir={settings.data_dir / node}",
            f"--host={settings.server.host}",
            f"--broker-port={self.brokers[node].rpartition(':')[2]}",
            f"--amqp-port={settings.server.amqp_port}",
            f"--http-port={http + number - 1 if http else 0}",
            f"--namesrv={self.namesrv}",
            f"--group={GROUP}",
            f"--node={node}",
            "--peers=" + ",".join(f"{name}={address}" for name, address in self.peers.items()),
        ]
        while not self._is_stopping:
            child = await asyncio.create_subprocess_exec(sys.executable, "-m", "stratamq.cli.main", *arguments)
            self._children[node] = child
            code = await child.wait()
            if self._has_to_stop():
                return
            _log.error("member %s has ended with code %d and is started again", node, code)
            await asyncio.sleep(PAUSE_S)

    def _has_to_stop(self) -> bool:
        return self._is_stopping

    async def stop(self) -> None:
        """Stop every member in order, then the name server."""
        self._is_stopping = True
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)
        running = [child.wait() for child in self._children.values()]
        try:
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*running)
        except TimeoutError:
            for child in self._children.values():
                if child.returncode is None:
                    child.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._names is not None:
            await self._names.stop()


def free_ports(host: str, count: int) -> list[int]:
    """So many ports, all different, that nobody listens on now. Raises OSError."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in held:
            sock.bind((host, 0))
        return [int(sock.getsockname()[1]) for sock in held]


async def serve_replicas(settings: Settings, count: int, *, ready_file: Path | None = None) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    await run(Replicas(settings, count), ready_file=ready_file)
