"""What every AMQP side of a process has, wherever its messages are kept: listener, alarms, rates."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.clock import Clock
from stratamq.config import QueueStoreConfig
from stratamq.protocols.amqp.connection import Limits
from stratamq.queuestore.alarms import next_disk_check_ms
from stratamq.server.amqp import AmqpListener, Holding
from stratamq.server.management.objects import all_totals
from stratamq.server.management.rates import ObjectSampler, Rates
from stratamq.server.tls import Tls

_log = logging.getLogger(__name__)

ALARM_S: Final = 1.0


class AmqpFront(ABC):
    """The AMQP side of one process, on the running loop."""

    def __init__(
        self,
        broker: AmqpBroker,
        directory: Path,
        clock: Clock,
        config: QueueStoreConfig,
    ) -> None:
        """``directory`` is on the disk whose free space is watched."""
        self._clock = clock
        self.broker = broker
        self.directory = directory
        self.config = config
        self.started_ms = clock.wall_ms()
        self.memory_limit = _memory_bytes() * config.vm_memory_high_watermark_percent // 100
        self.rates = Rates()
        self.sampler = ObjectSampler(broker)
        self._ports: list[dict[str, Any]] = []
        self._loop = asyncio.get_running_loop()

    def open_listener(
        self, *, save_definitions: Callable[[], None], limits: Limits | None = None, holding: Holding | None = None
    ) -> None:
        """Let turns end from now on; connections are accepted with `listen`."""
        self.listener = AmqpListener(
            self.broker, self._clock, limits=limits, save_definitions=save_definitions, holding=holding
        )

    async def listen(self, sock: socket.socket, tls: Tls | None = None) -> None:
        """Accept connections on a bound socket; TLS alone where there is a certificate."""
        host, port = sock.getsockname()[:2]
        name = "amqp" if tls is None else "amqp/ssl"
        self._ports.append({"node": "", "protocol": name, "ip_address": host, "port": port, "socket_opts": {}})
        await self.listener.listen(sock, tls)

    def listeners(self) -> list[dict[str, Any]]:
        """The ports that AMQP clients connect to."""
        return [dict(row) for row in self._ports]

    async def turn_ended(self) -> None:
        """Wait until the turn that runs has ended: what it changed has taken effect and is written down."""
        self.listener.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def sample(self) -> bool:
        """Take a sample for the rates of the overview, when one is due, and begin with those of single objects.

        False: none is due. True: `ObjectSampler.step` is to be called until it is done.
        """
        now_ms = self._clock.monotonic_ms()
        if not self.rates.is_due(now_ms):
            return False
        self.rates.sample(now_ms, all_totals(self.broker))
        self.sampler.begin()
        return True

    async def take_samples(self) -> None:
        """Take all samples that are due; clients have their turns in between."""
        is_sampling = self.sample()
        while is_sampling:
            is_sampling = self.sampler.step(self._clock.monotonic_ms())
            await asyncio.sleep(0)

    @property
    def is_full(self) -> bool:
        """Whether the last write found no room on the disk."""
        return False

    def check_alarms(self) -> float:
        """Raise or clear the alarms for memory and disk; returns in how many seconds the disk could be full."""
        free = shutil.disk_usage(self.directory).free
        self._set_alarm("disk", free < self.config.disk_free_limit_bytes or self.is_full)
        self._set_alarm("memory", 0 < self.memory_limit < _own_memory_bytes())
        return next_disk_check_ms(free, self.config.disk_free_limit_bytes) / 1000

    def _set_alarm(self, name: str, raised: bool) -> None:
        if raised != (name in self.broker.alarms):
            _log.warning("alarm: low on %s %s", name, "raised, publishers are blocked" if raised else "cleared")
            self.broker.set_alarm(name, raised)
            self.listener.set_congested(raised)

    @abstractmethod
    async def close(self, timeout_s: float) -> None:
        """Close connections, and what was opened. Raises StoreError from the last writes."""


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _own_memory_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
