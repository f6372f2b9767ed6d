"""TLS on the ports of a process: the context from its files, and connections taken off a port.

A connection is given to its protocol once it is clear what it speaks. A port that takes both looks at the first byte
without taking it: 22 begins a TLS hello, and neither remoting nor HTTP. Waiting for that byte and shaking hands are
bounded in time, and in number per port; nothing else waits for them.

Plain ports of a process without a certificate are asyncio's servers, as if this module were not there.

Source: RocketMQ, NettyRemotingServer.TlsModeHandler; RabbitMQ, deps/rabbit_common/src/rabbit_cert_info.erl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from stratamq.config import ClientAuth, LoginFrom, TlsConfig, TlsMode
from stratamq.errors import ConfigError

_log = logging.getLogger(__name__)

TLS_HELLO: Final = 0x16
BACKLOG: Final = 1024
ACCEPTS_AT_ONCE: Final = 64
ACCEPT_PAUSE_S: Final = 1.0
"""How long nothing is accepted after the process ran out of files."""
SHUTDOWN_TIMEOUT_S: Final = 3.0
"""How long a peer may take to say goodbye."""

_NAMES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}


class Port(Protocol):
    """Something that accepts connections until it is closed."""

    def close(self) -> None:
        """Accept no more; connections that are there go on."""
        ...


class Tls:
    """The certificate of a process, as its files have it now."""

    def __init__(self, config: TlsConfig) -> None:
        """Reads the files. Raises ConfigError when they are missing or do not fit together."""
        self.config = config
        self.context = load_context(config)
        self._stamps = self._look()

    def refresh(self) -> bool:
        """Read the files again when they have changed; what cannot be used is logged, and the old ones hold."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self.context = load_context(self.config)
        except ConfigError as error:
            _log.error("TLS: new files cannot be used, the old ones hold: %s", error)
            return False
        _log.info("TLS: %s read again", self.config.certificate)
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for path in (self.config.certificate, self.config.key, self.config.ca):
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return found


def open_tls(config: TlsConfig) -> Tls | None:
    """The process's certificate; None where it has none. Raises ConfigError."""
    return Tls(config) if config.certificate else None


def load_context(config: TlsConfig) -> ssl.SSLContext:
    """A server's context from the files that ``config`` names. Blocks. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.load_cert_chain(config.certificate, config.key or None, password=lambda: config.key_password)
    except (OSError, ValueError) as error:
        files = f"{config.certificate} with {config.key}" if config.key else config.certificate
        raise ConfigError(
            "tls.server.certPath", files, "a certificate and its private key", where=_why(error)
        ) from None
    if config.client_auth is not ClientAuth.NONE:
        is_needed = config.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_needed else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(config.ca)
        except (OSError, ValueError) as error:
            raise ConfigError("tls.server.trustCertPath", config.ca, "certificates", where=_why(error)) from None
    return context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def mode_of(tls: Tls | None) -> tuple[Tls | None, bool]:
    """The certificate of remoting ports, None where their mode is ``disabled``, and whether they take plain too."""
    if tls is None or tls.config.mode is TlsMode.DISABLED:
        return None, True
    return tls, tls.config.mode is TlsMode.PERMISSIVE


async def open_port(
    sock: socket.socket,
    factory: Callable[[], asyncio.BaseProtocol],
    tls: Tls | None = None,
    *,
    takes_plain: bool = False,
) -> Port:
    """Accept connections on a bound socket: plain without ``tls``, else TLS, and plain too where that is taken."""
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_server(factory, sock=sock, backlog=BACKLOG)
    return TlsPort(loop, sock, factory, tls, takes_plain=takes_plain)


class TlsPort:
    """A port of which connections are taken by hand, to know what they speak before their protocol begins."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: Tls,
        *,
        takes_plain: bool,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._factory = factory
        self._tls = tls
        self._takes_plain = takes_plain
        self._timeout_s = tls.config.handshake_timeout_ms / 1000
        self._pause: asyncio.TimerHandle | None = None
        self.pending: set[asyncio.Task[None]] = set()
        """Connections that have not shaken hands yet."""
        self.refused = 0
        self.failed = 0
        sock.setblocking(False)
        sock.listen(BACKLOG)
        loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more and drop who is in a handshake; connections behind it go on. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        for task in self.pending:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                connection, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("nothing can be accepted for a second: %s", error)
                self._loop.remove_reader(self._sock.fileno())
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._go_on)
                return
            connection.setblocking(False)
            if len(self.pending) >= self._tls.config.handshakes_max:
                self.refused += 1
                connection.close()
                continue
            task = self._loop.create_task(self._take(connection, f"{address[0]}:{address[1]}"))
            self.pending.add(task)
            task.add_done_callback(self.pending.discard)

    def _go_on(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _take(self, connection: socket.socket, address: str) -> None:
        """Find out what a connection speaks, shake hands, and give it to its protocol."""
        try:
            context: ssl.SSLContext | None = self._tls.context
            if self._takes_plain and await self._first_byte(connection) != TLS_HELLO:
                context = None
            await self._loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=context,
                ssl_handshake_timeout=self._timeout_s if context is not None else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S if context is not None else None,
            )
        except (OSError, EOFError) as error:
            self.failed += 1
            connection.close()
            _log.info("connection from %s ended before it began: %s", address, _why(error) or "it took too long")
        except BaseException:
            connection.close()
            raise

    async def _first_byte(self, connection: socket.socket) -> int:
        """Look at the first byte without taking it. Raises OSError, EOFError; TimeoutError when none comes."""
        ready = asyncio.Event()
        self._loop.add_reader(connection.fileno(), ready.set)
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    await ready.wait()
                    ready.clear()
                    with contextlib.suppress(BlockingIOError, InterruptedError):
                        seen = connection.recv(1, socket.MSG_PEEK)
                        if not seen:
                            raise EOFError("the peer closed it")
                        return seen[0]
        finally:
            self._loop.remove_reader(connection.fileno())


# --- who a peer is ---


def is_tls(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection is encrypted."""
    return transport.get_extra_info("ssl_object") is not None


def login_name(transport: asyncio.BaseTransport, login_from: LoginFrom) -> str | None:
    """The user that a peer's certificate names; "" where it showed none, None where certificates are no login."""
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None or login_from is LoginFrom.NONE:
        return None
    certificate: Mapping[str, Any] = ssl_object.getpeercert() or {}
    subject = certificate.get("subject", ())
    return common_name(subject) if login_from is LoginFrom.COMMON_NAME else distinguished_name(subject)


def common_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """The common names of a subject, joined by commas, as RabbitMQ takes them."""
    return ",".join(value for part in subject for key, value in part if key == "commonName")


def distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """A subject as one string, its last part first: ``CN=client,O=Example`` (RFC 4514, as RabbitMQ writes it)."""
    parts = ["+".join(f"{_NAMES.get(key, key)}={_escaped(value)}" for key, value in part) for part in subject]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text[:1] in (" ", "#"):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text
