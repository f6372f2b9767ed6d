"""The ports of one process that speak TLS alone, and the certificate that its other ports use as well."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from stratamq.config import ServerConfig, TlsConfig
from stratamq.errors import ConfigError
from stratamq.server.amqp_front import AmqpFront
from stratamq.server.http import HttpServer
from stratamq.server.sockets import port_of
from stratamq.server.tls import open_tls

_log = logging.getLogger(__name__)


class SecurePorts:
    """Binds at once, accepts with `start`."""

    def __init__(
        self, config: TlsConfig, server: ServerConfig, bind: Callable[[int, str], socket.socket], *, has_amqp: bool
    ) -> None:
        """Raises ConfigError for files that cannot be used or a port without certificate, PortUnusable."""
        self.tls = open_tls(config)
        self._amqps = self._https = None
        for port, flag in ((server.amqps_port, "--amqps-port"), (server.https_port, "--https-port")):
            if port >= 0 and self.tls is None:
                raise ConfigError("tls.server.certPath", "", f"a file, because of {flag}")
        if server.amqps_port >= 0 and has_amqp:
            self._amqps = bind(server.amqps_port, "--amqps-port")
        if server.https_port >= 0:
            self._https = bind(server.https_port, "--https-port")

    @property
    def wants_amqp(self) -> bool:
        """Whether there is a port for AMQP over TLS."""
        return self._amqps is not None

    async def start(self, http: HttpServer, amqp: AmqpFront | None, host: str) -> dict[str, str]:
        """Accept; returns the addresses, by what they are called in the ready file."""
        found: dict[str, str] = {}
        if self.tls is None:
            return found
        if self._amqps is not None and amqp is not None:
            await amqp.listen(self._amqps, self.tls)
            found["amqps"] = f"{host}:{port_of(self._amqps)}"
        if self._https is not None:
            await http.listen_tls(self._https, self.tls)
            found["https"] = f"{host}:{port_of(self._https)}"
        _log.info("TLS with %s: %s", self.tls.config.certificate, found or "on the remoting ports")
        return found

    async def refresh(self) -> None:
        """Read the files again whenever they change, until cancelled."""
        while self.tls is not None:
            await asyncio.sleep(self.tls.config.reload_interval_ms / 1000)
            self.tls.refresh()
