"""The ports of a broker's process, bound before anything is opened, so that one in use is said at once."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratamq.broker.broker import BrokerAddress
from stratamq.config import ServerConfig
from stratamq.formats.message import encode_host
from stratamq.server.replicating import Replication
from stratamq.server.secure_ports import SecurePorts
from stratamq.server.settings import Settings
from stratamq.server.sockets import PortUnusable, advertised_host, bind, port_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where clients reach the process. ``namesrv`` is the one of this process, or the ones it registers with."""

    namesrv: str
    broker: str
    http: str
    amqp: str = ""
    """Empty where AMQP is left out."""
    secure: Mapping[str, str] = field(default_factory=dict)
    """Ports that speak TLS alone, by name: ``amqps``, ``https``."""

    def named(self) -> dict[str, str]:
        """All that are served, by name."""
        found = {"namesrv": self.namesrv, "broker": self.broker, "http": self.http}
        if self.amqp:
            found["amqp"] = self.amqp
        return found | dict(self.secure)


class Ports:
    """Bound sockets; nothing is accepted on them yet. ``stack`` closes them."""

    def __init__(self, settings: Settings, replication: Replication, stack: contextlib.AsyncExitStack) -> None:
        """Bind every port that the settings ask for. Raises PortUnusable, ConfigError."""
        self._settings = settings
        self._stack = stack
        config = settings.server
        self.namesrv = self.bind(config.namesrv_port, "--namesrv-port") if config.namesrv_port >= 0 else None
        self.broker = self.bind(config.broker_port, "--broker-port")
        replication.bind(self.bind, config)
        self.http = self.bind(config.http_port, "--http-port")
        self.amqp = self._bind_amqp(config.amqp_port)
        self.secure = SecurePorts(settings.tls, config, self.bind, has_amqp=not settings.ha.is_slave)
        self.near = advertised_host(config.host, "")
        """The host under which this process names its own ports."""

    def bind(self, port: int, flag: str, *, listen: bool = False) -> socket.socket:
        """Bind one port. Raises PortUnusable."""
        sock = bind(self._settings.server.host, port, flag, listen=listen)
        self._stack.callback(sock.close)
        return sock

    def _bind_amqp(self, port: int) -> socket.socket | None:
        """The socket for AMQP; None without it. RabbitMQ on the same machine is no reason not to start."""
        if port < 0 or self._settings.ha.is_slave:  # what AMQP keeps besides the log is not copied
            return None
        try:
            return self.bind(port, "--amqp-port", listen=True)
        except PortUnusable as error:
            if port != ServerConfig().amqp_port or error.cause.errno != errno.EADDRINUSE:
                raise
            _log.warning("AMQP is off: %s", error)
            return None

    def bind_vip(self) -> socket.socket | None:
        """The port that RocketMQ's clients take for urgent requests, the broker's minus 2; None unless it is wanted."""
        port = port_of(self.broker)
        if not self._settings.server.vip_port or port <= 2:
            return None
        return self.bind(port - 2, "--broker-port (vip_port takes it minus 2)")

    @property
    def broker_address(self) -> BrokerAddress:
        """Where clients are told to reach the broker."""
        host, port = (
            advertised_host(self._settings.server.host, self._settings.broker.advertised_host),
            port_of(self.broker),
        )
        return BrokerAddress(host, port, encode_host(host, port))

    @property
    def wants_amqp(self) -> bool:
        """Whether AMQP is served at all."""
        return self.amqp is not None or self.secure.wants_amqp

    def addresses(self, secure: Mapping[str, str]) -> Addresses:
        """All addresses, with those that speak TLS alone."""
        return Addresses(
            self._settings.server.namesrv_addresses if self.namesrv is None else self._near(self.namesrv),
            str(self.broker_address),
            self._near(self.http),
            "" if self.amqp is None else self._near(self.amqp),
            secure,
        )

    def is_own_namesrv(self, address: str) -> bool:
        """Whether an address is that of this process's name server."""
        if self.namesrv is None:
            return False
        return address in (self._near(self.namesrv), f"localhost:{port_of(self.namesrv)}")

    def _near(self, sock: socket.socket) -> str:
        return f"{self.near}:{port_of(sock)}"
