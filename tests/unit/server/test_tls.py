"""TLS on real sockets: who may come in and under which name, slow and broken handshakes, ports that take both."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratamq.broker.amqp.access import Permission
from stratamq.clock import SystemClock
from stratamq.config import ClientAuth, LoginFrom, ServerConfig, TlsConfig, TlsMode
from stratamq.errors import ConfigError
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import PROTOCOL_HEADER, method_frame
from stratamq.server.amqp_service import AmqpService
from stratamq.server.remoting import RemotingListener
from stratamq.server.sockets import bind, port_of
from stratamq.server.tls import Tls, TlsPort, distinguished_name, mode_of, open_port
from tests.certificates import Authority
from tests.unit.protocols.amqp import peers
from tests.unit.server.test_amqp_shell import SocketClient
from tests.unit.server.test_lifecycle import until
from tests.unit.server.test_remoting_shell import World, read_answer, request

SECONDS = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_files(authority) -> tuple[Path, Path]:
    return authority.issue("server")


def config_of(authority: Authority, files: tuple[Path, Path], **settings) -> TlsConfig:
    return TlsConfig(certificate=str(files[0]), key=str(files[1]), ca=str(authority.path), **settings)


class Broker:
    """The AMQP side with one port that speaks TLS."""

    def __init__(self, directory: Path, tls: Tls) -> None:
        self.service = AmqpService(directory, SystemClock())
        self.tls = tls
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, context: ssl.SSLContext | None) -> SocketClient:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, **({"server_hostname": "127.0.0.1"} if context else {})
        )
        self.writers.append(writer)
        return SocketClient(reader, writer)

    async def served(self, context: ssl.SSLContext) -> None:
        """A newcomer is served."""
        client = await self.connect(context)
        client.writer.write(peers.handshake())
        for _ in range(3):
            await client.method()

    async def wait_for_handshakes(self, number: int) -> None:
        await until(lambda: len(self.port_of_tls().pending) == number)

    def port_of_tls(self) -> TlsPort:
        (port,) = self.service.listener._ports
        assert isinstance(port, TlsPort)
        return port


def be_patient(port: TlsPort) -> None:
    """Give the connections that follow more time than those that are there."""
    port._timeout_s = SECONDS


@contextlib.asynccontextmanager
async def running(directory: Path, config: TlsConfig) -> AsyncIterator[Broker]:
    broker = Broker(directory, Tls(config))
    sock = bind("127.0.0.1", 0, "--amqps-port")
    broker.port = port_of(sock)
    await broker.service.listen(sock, broker.tls)
    try:
        yield broker
    finally:
        for writer in broker.writers:
            writer.transport.abort()
        await broker.service.close(1.0)


def external(response: bytes = b"") -> bytes:
    start = methods.ConnectionStartOk({"capabilities": peers.CAPABILITIES}, "EXTERNAL", response, "en_US")
    tune = method_frame(0, methods.ConnectionTuneOk(2047, 131_072, 0))
    return PROTOCOL_HEADER + method_frame(0, start) + tune + method_frame(0, methods.ConnectionOpen("/"))


async def test_large_messages_come_back_over_tls(tmp_path, authority, server_files):
    async with running(tmp_path, config_of(authority, server_files)) as broker:
        client = await broker.connect(authority.client_context())
        client.writer.write(peers.handshake() + method_frame(1, methods.ChannelOpen()))
        for _ in range(4):
            await client.method()
        await client.call(methods.QueueDeclare("q", False, True, False, False, False, {}))
        await client.call(methods.ConfirmSelect(False))
        body = bytes(range(256)) * 12_000
        client.writer.write(peers.publish(1, "", "q", body, delivery_mode=2))
        assert await client.method() == methods.BasicAck(1, False)
        assert isinstance(await client.call(methods.BasicGet("q", True)), methods.BasicGetOk)
        assert (await client.frame())[0] == 2
        found = b""
        while len(found) < len(body):
            found += (await client.frame())[1]
        assert found == body
        assert broker.service.listeners()[0]["protocol"] == "amqp/ssl"


@pytest.mark.parametrize(
    ("login_from", "user"),
    [(LoginFrom.COMMON_NAME, "reader"), (LoginFrom.DISTINGUISHED_NAME, "CN=reader,O=Example\\, Ltd")],
)
async def test_external_takes_the_name_in_the_certificate(tmp_path, authority, server_files, login_from, user):
    config = config_of(authority, server_files, client_auth=ClientAuth.OPTIONAL, login_from=login_from)
    shown = authority.issue("reader", organization="Example, Ltd")
    async with running(tmp_path, config) as broker:
        broker.service.broker.users.add(user, "never used")
        broker.service.broker.users.permit(user, "/", Permission(".*", ".*", ".*"))
        client = await broker.connect(authority.client_context(shown))
        client.writer.write(external())
        assert (await client.method()).mechanisms == b"PLAIN AMQPLAIN EXTERNAL"
        assert isinstance(await client.method(), methods.ConnectionTune)
        assert isinstance(await client.method(), methods.ConnectionOpenOk)
        (session,) = broker.service.broker.sessions
        assert (session.core.user, session.mechanism) == (user, "EXTERNAL")


async def test_external_without_a_certificate_or_its_user_is_refused(tmp_path, authority, server_files):
    config = config_of(
        authority, server_files, client_auth=ClientAuth.OPTIONAL, login_from=LoginFrom.DISTINGUISHED_NAME
    )
    async with running(tmp_path, config) as broker:
        for shown in (None, authority.issue("stranger")):
            client = await broker.connect(authority.client_context(shown))
            client.writer.write(external(b"guest"))
            await client.method()
            close = await client.method()
            assert (close.code, "EXTERNAL" in close.text) == (403, True)


async def test_plain_connections_are_not_offered_external(tmp_path):
    service = AmqpService(tmp_path, SystemClock())
    sock = bind("127.0.0.1", 0, "--amqp-port")
    port = port_of(sock)
    await service.listen(sock)
    client = SocketClient(*await asyncio.open_connection("127.0.0.1", port))
    client.writer.write(external())
    assert (await client.method()).mechanisms == b"PLAIN AMQPLAIN"
    assert (await client.method()).code == 503
    client.writer.close()
    await service.close(1.0)


async def test_external_is_not_offered_unless_asked_for(tmp_path, authority, server_files):
    config = config_of(authority, server_files, client_auth=ClientAuth.OPTIONAL)
    async with running(tmp_path, config) as broker:
        client = await broker.connect(authority.client_context(authority.issue("guest")))
        client.writer.write(external())
        assert (await client.method()).mechanisms == b"PLAIN AMQPLAIN"
        assert (await client.method()).code == 503
        (session,) = [peer.session for peer in broker.service.listener.peers]
        assert session.is_secure


async def test_who_must_show_a_certificate_and_does_not_is_cut(tmp_path, authority, server_files):
    config = config_of(authority, server_files, client_auth=ClientAuth.REQUIRE)
    async with running(tmp_path, config) as broker:
        stranger = Authority(tmp_path, "stranger").issue("client")
        for shown in (None, stranger):
            with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
                await broker.served(authority.client_context(shown))
        await broker.served(authority.client_context(authority.issue("known")))
        assert broker.port_of_tls().failed == 2


async def test_slow_and_broken_handshakes_end_and_disturb_nobody(tmp_path, authority, server_files):
    config = config_of(authority, server_files, handshake_timeout_ms=300)
    async with running(tmp_path, config) as broker:
        port = broker.port_of_tls()
        silent = await broker.connect(None)
        await until(lambda: port.pending or port.failed)
        be_patient(port)
        broken = await broker.connect(None)
        broken.writer.write(b"\x16\x03\x01\x00\x05hello" * 10)
        assert await broken.ended()
        await broker.served(authority.client_context())
        assert await silent.ended()
        await broker.wait_for_handshakes(0)
        assert port.failed == 2


async def test_handshakes_are_bounded_in_number(tmp_path, authority, server_files):
    config = config_of(authority, server_files, handshakes_max=2, handshake_timeout_ms=60_000)
    async with running(tmp_path, config) as broker:
        slow = [await broker.connect(None) for _ in range(2)]
        await broker.wait_for_handshakes(2)
        assert await (await broker.connect(None)).ended()
        assert broker.port_of_tls().refused == 1
        for client in slow:
            client.writer.close()
        await broker.wait_for_handshakes(0)
        await broker.served(authority.client_context())


async def test_a_stop_does_not_wait_for_a_handshake(tmp_path, authority, server_files):
    async with running(tmp_path, config_of(authority, server_files, handshake_timeout_ms=600_000)) as broker:
        client = await broker.connect(None)
        await broker.wait_for_handshakes(1)
        broker.service.listener.stop_accepting()
        assert await client.ended()


async def test_versions_before_1_2_are_refused(tmp_path, authority, server_files):
    assert Tls(config_of(authority, server_files)).context.minimum_version is ssl.TLSVersion.TLSv1_2
    async with running(tmp_path, config_of(authority, server_files)) as broker:
        old = authority.client_context()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await broker.connect(old)
        await broker.served(authority.client_context())


async def test_new_files_hold_for_new_connections_and_bad_ones_do_not(tmp_path, authority):
    files = authority.issue("renewed")
    async with running(tmp_path, config_of(authority, files)) as broker:
        assert not broker.tls.refresh()
        other = Authority(tmp_path, "other")
        for old, new in zip(files, other.issue("renewed-too"), strict=True):
            old.write_bytes(new.read_bytes())
        assert broker.tls.refresh()
        await broker.served(other.client_context())
        files[1].write_bytes(b"no key")
        assert not broker.tls.refresh()
        await broker.served(other.client_context())


# --- remoting ports ---


@contextlib.asynccontextmanager
async def remoting(config: TlsConfig) -> AsyncIterator[World]:
    made = World(ServerConfig())
    made.listener = RemotingListener("test", ServerConfig(), made.listener.handlers, tls=Tls(config))
    sock = bind("127.0.0.1", 0, "test")
    made.port = port_of(sock)
    await made.listener.listen(sock)
    try:
        yield made
    finally:
        await made.listener.close(0.2)


async def ask(port: int, context: ssl.SSLContext | None) -> bytes:
    """What the echo answers; empty when the connection ends instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(request(body=b"x" * 100_000))
        return (await asyncio.wait_for(read_answer(reader), SECONDS)).body
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("mode", "plain", "secure"),
    [(TlsMode.PERMISSIVE, True, True), (TlsMode.ENFORCING, False, True), (TlsMode.DISABLED, True, False)],
)
async def test_the_mode_says_what_a_remoting_port_takes(authority, server_files, mode, plain, secure):
    async with remoting(config_of(authority, server_files, mode=mode)) as world:
        assert (len(await ask(world.port, None)) == 100_000) is plain
        try:
            answer = await ask(world.port, authority.client_context())
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert (len(answer) == 100_000) is secure


async def test_a_port_that_takes_both_waits_for_the_first_byte_but_not_for_ever(authority, server_files):
    config = config_of(authority, server_files, handshake_timeout_ms=300)
    async with remoting(config) as world:
        (port,) = world.listener._ports
        assert isinstance(port, TlsPort)
        silent, writer = await world.connect()
        await until(lambda: port.pending or port.failed)
        be_patient(port)
        closed, closing = await world.connect()
        closing.write_eof()
        assert await asyncio.wait_for(closed.read(), SECONDS) == b""
        assert len(await ask(world.port, None)) == 100_000
        assert len(await ask(world.port, authority.client_context())) == 100_000
        assert await asyncio.wait_for(silent.read(), SECONDS) == b""
        writer.close()
        closing.close()


# --- settings ---


def test_files_that_do_not_fit_are_refused_with_their_names(tmp_path, authority, server_files):
    other = authority.issue("another")
    locked = authority.issue("locked", password=b"secret")
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    for certificate, key, ca, word in (
        ("/nowhere.pem", "", "", "/nowhere.pem"),
        (str(server_files[0]), str(other[1]), "", "another.key"),
        (str(locked[0]), str(locked[1]), "", "locked.key"),
        (str(server_files[0]), str(server_files[1]), str(rubbish), "rubbish.pem"),
    ):
        auth = ClientAuth.REQUIRE if ca else ClientAuth.NONE
        with pytest.raises(ConfigError, match=word):
            Tls(TlsConfig(certificate=certificate, key=key, ca=ca, client_auth=auth))
    Tls(TlsConfig(certificate=str(locked[0]), key=str(locked[1]), key_password="secret"))


def test_settings_that_promise_what_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="certPath"):
        TlsConfig(mode=TlsMode.ENFORCING)
    with pytest.raises(ConfigError, match="trustCertPath"):
        TlsConfig(certificate="c.pem", client_auth=ClientAuth.REQUIRE)
    assert mode_of(None) == (None, True)


async def test_without_a_certificate_a_port_is_asyncios_own():
    port = await open_port(bind("127.0.0.1", 0, "test"), asyncio.Protocol)
    assert isinstance(port, asyncio.Server)
    port.close()


def test_distinguished_names_are_written_as_rabbitmq_writes_them():
    subject = ((("countryName", "DE"),), (("organizationName", "a+b"), ("commonName", " x ")), (("userId", "#7"),))
    assert distinguished_name(subject) == "UID=\\#7,O=a\\+b+CN=\\ x\\ ,C=DE"
