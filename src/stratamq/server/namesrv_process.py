"""A name server as a process of its own: port, timers, signals."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from stratamq.clock import Clock, SystemClock
from stratamq.config import ServerConfig, TlsConfig
from stratamq.files.durable import ConfigFile
from stratamq.server.live_settings import NAMES_FILE
from stratamq.server.namesrv import NameServer
from stratamq.server.process import every, run
from stratamq.server.sockets import advertised_host, bind, port_of, raise_file_limit
from stratamq.server.tls import open_tls

_log = logging.getLogger(__name__)
SWEEP_S: Final = 5.0


class NameServerProcess:
    """One name server on one port, with its timers."""

    def __init__(
        self, config: ServerConfig, data_dir: Path, *, tls: TlsConfig | None = None, clock: Clock | None = None
    ) -> None:
        """Reads the certificate's files. Raises ConfigError."""
        self._config = config
        self._tls = open_tls(tls or TlsConfig())
        self._clock = clock or SystemClock()
        self._file = ConfigFile(str(data_dir / "config" / "kvConfig.json"))
        self._kept = data_dir / "config" / NAMES_FILE
        self._task: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Bind the port and accept. Raises PortUnusable."""
        raise_file_limit()
        sock = bind(self._config.host, self._config.namesrv_port, "--port")
        self.names = NameServer(self._config, self._clock, self._file, self._kept, self._tls)
        self.address = f"{advertised_host(self._config.host, '')}:{port_of(sock)}"
        await self.names.listener.listen(sock)
        self._task = asyncio.create_task(every(SWEEP_S, self._sweep))
        _log.info("ready: name server %s", self.address)

    def ready(self) -> dict[str, str]:
        """Where clients reach it."""
        return {"namesrv": self.address}

    def _sweep(self) -> None:
        self.names.listener.sweep()
        self.names.expire()
        if self._tls is not None:
            self._tls.refresh()

    async def stop(self) -> None:
        """Close every connection, then the port."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.names.listener.close(self._config.stop_timeout_ms / 1000)


async def serve_names(
    config: ServerConfig, data_dir: Path, *, tls: TlsConfig | None = None, ready_file: Path | None = None
) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    await run(NameServerProcess(config, data_dir, tls=tls), ready_file=ready_file)
