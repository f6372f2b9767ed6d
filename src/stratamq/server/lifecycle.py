"""Starting and stopping a broker with its name server, in order.

Start: ports are bound (so that one in use is said at once), the store is opened and recovered, the tables are loaded,
the broker is registered, the ports accept, the ready file is written.

Stop: the ready file goes, nothing is accepted any more, waiting pulls are refused, requests in work are finished or
refused, connections are closed, what is unwritten is written and synced, the tables are saved, the store writes its
checkpoint and drops its marker of an unclean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from stratamq.broker.broker import (
    TOPICS_FILE,
    Broker,
    BrokerAddress,
)
from stratamq.broker.ports import SavedValue
from stratamq.broker.timers import Timers
from stratamq.broker.topics import TopicConfig
from stratamq.clock import Clock, SystemClock
from stratamq.config import BrokerConfig, QueueStoreConfig, RetentionConfig, ServerConfig, StoreConfig, TieredConfig
from stratamq.errors import StoreFailed, StrataError
from stratamq.files.durable import ConfigFile, replace_file
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.timer_store import TimerStore
from stratamq.logstore.types import Arrival
from stratamq.protocols.remoting.replies import SendReplies
from stratamq.replication.ha_config import HaConfig
from stratamq.server.amqp_front import AmqpFront
from stratamq.server.amqp_service import AmqpService
from stratamq.server.http import HttpServer
from stratamq.server.live_settings import KEPT_FILE, NAMES_FILE, LiveSettings, with_kept
from stratamq.server.namesrv import NameServer
from stratamq.server.registering import Identity, Registrar, parse_addresses
from stratamq.server.remoting import RemotingListener, RemotingPeer
from stratamq.server.replicating import Replication
from stratamq.server.requests.assignment import AssignmentRequests
from stratamq.server.requests.base import SENDS, collect
from stratamq.server.requests.families import admin_families
from stratamq.server.requests.ha import HaRequests
from stratamq.server.requests.members import MemberRequests
from stratamq.server.requests.messages import MessageRequests
from stratamq.server.requests.offsets import OffsetRequests
from stratamq.server.requests.pop import PopRequests
from stratamq.server.requests.pop_acks import PopAckRequests
from stratamq.server.requests.pull import PullRequests
from stratamq.server.requests.reply import ReplyRequests
from stratamq.server.requests.retention import RetentionRequests
from stratamq.server.requests.send import SendRequests
from stratamq.server.requests.send_back import SendBackRequests
from stratamq.server.requests.settings import SettingsRequests
from stratamq.server.requests.timers import TimerRequests
from stratamq.server.requests.transactions import TransactionRequests
from stratamq.server.retention import retention_of, retention_tasks
from stratamq.server.secure_ports import SecurePorts
from stratamq.server.sockets import PortUnusable, advertised_host, bind, port_of, raise_file_limit
from stratamq.server.storage import OpenedStore, open_log_store
from stratamq.server.stream_log import BrokerStreams
from stratamq.server.tiering import Tiering
from stratamq.server.tls_config import TlsConfig

_log = logging.getLogger(__name__)

TICK_S: Final = 0.1
TIMER_SYNC_S: Final = 1.0
SWEEP_S: Final = 5.0
EXPIRE_S: Final = 10.0
SAVE_DELAY_S: Final = 0.05
"""How long a changed table waits for further changes before it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one process."""

    data_dir: Path
    server: ServerConfig = field(default_factory=ServerConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    tiered: TieredConfig = field(default_factory=TieredConfig)
    queues: QueueStoreConfig = field(default_factory=QueueStoreConfig)
    ha: HaConfig = field(default_factory=HaConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)


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


OpenStore = Callable[..., OpenedStore]
OpenFile = Callable[[str], SavedValue]
"""Where a table of the broker is kept, by the name of its file; below ``config`` unless a group keeps it in its log."""
OpenAmqp = Callable[[Broker], Awaitable[AmqpFront]]
"""Opens the AMQP side of a broker that does not keep it in files of its own."""


class Server:
    """A broker with its embedded name server and its HTTP page, in one event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        open_store: OpenStore = open_log_store,
        open_file: OpenFile | None = None,
        state_version: int = 0,
        open_amqp: OpenAmqp | None = None,
    ) -> None:
        self.settings = settings
        self._open_file = open_file or (lambda name: ConfigFile(str(settings.data_dir / "config" / name)))
        self._state_version = state_version
        self._open_amqp = open_amqp
        self.clock = clock or SystemClock()
        self._open_store = open_store
        self._tasks: list[asyncio.Task[None]] = []
        self._save_wanted = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self.addresses = Addresses("", "", "")
        self._opened: OpenedStore | None = None
        self.tiering: Tiering | None = None
        """The cold tier, where there is one."""
        self._pulls: PullRequests | None = None
        self._listeners: list[RemotingListener] = []
        self.namesrv: NameServer | None = None
        self.registrar: Registrar | None = None
        self._amqp: AmqpFront | None = None
        self.replication = Replication(settings.ha, self.clock, on_failed=self._failed)
        self.failure: StrataError | None = None
        """Why the process cannot go on; `ended` is set then."""
        self.ended = asyncio.Event()

    def _failed(self, error: StrataError) -> None:
        self.failure = error
        self.ended.set()

    # --- start ---

    async def start(self) -> None:
        """Bring everything up. What was begun is taken back when it fails. Blocks while the store recovers."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        self._take_kept()
        config = self.settings.server
        raise_file_limit()
        outside = parse_addresses(config.namesrv_addresses)
        has_namesrv = config.namesrv_port >= 0
        namesrv_socket = self._bind(config.namesrv_port, "--namesrv-port") if has_namesrv else None
        broker_socket = self._bind(config.broker_port, "--broker-port")
        self.replication.bind(self._bind, config)
        http_socket = self._bind(config.http_port, "--http-port")
        amqp_socket = self._bind_amqp(config.amqp_port)
        secure = SecurePorts(self.settings.tls, config, self._bind, has_amqp=not self.settings.ha.is_slave)
        host = advertised_host(config.host, self.settings.broker.advertised_host)
        port = port_of(broker_socket)
        address = BrokerAddress(host, port, encode_host(host, port))
        self._open(address)
        self._stack.push_async_callback(self.replication.close)
        folder = self.settings.data_dir / "config"
        kv_file = ConfigFile(str(folder / "kvConfig.json"))
        self.namesrv = NameServer(config, self.clock, kv_file, folder / NAMES_FILE, secure.tls)
        self.namesrv.register_own(self.broker)
        replies = SendReplies(region=self.settings.broker.region, trace_on=self.settings.broker.trace_on)
        self.broker_listener = RemotingListener(
            "broker",
            config,
            self._handlers(),
            on_lost=self._peer_lost,
            sends=SENDS,
            refused_ext=replies.refused_ext(),
            tls=secure.tls,
        )
        self._listeners = [self.broker_listener, self.namesrv.listener]
        self._stack.push_async_callback(self._close_listeners)
        self._start_tasks(self.namesrv)
        self._tasks.append(asyncio.create_task(secure.refresh()))
        self.http = HttpServer(
            self.broker, self.namesrv.routes, self._listeners, amqp=lambda: self._amqp, retention=self.retention
        )
        self._stack.push_async_callback(self.http.close)
        await self.broker_listener.listen(broker_socket)
        await self.replication.start(self.broker)
        if config.vip_port and port > 2:
            await self.broker_listener.listen(self._bind(port - 2, "--broker-port (vip_port takes it minus 2)"))
        if namesrv_socket is not None:
            await self.namesrv.listener.listen(namesrv_socket)
        await self.http.listen(http_socket)
        near = advertised_host(config.host, "")
        amqp = await self._start_amqp(amqp_socket, near) if amqp_socket is not None or secure.wants_amqp else ""
        also = await secure.start(self.http, self._amqp, near)
        namesrv = config.namesrv_addresses if namesrv_socket is None else f"{near}:{port_of(namesrv_socket)}"
        self.addresses = Addresses(namesrv, str(address), f"{near}:{port_of(http_socket)}", amqp, also)
        own = () if namesrv_socket is None else (self.addresses.namesrv, f"localhost:{port_of(namesrv_socket)}")
        self._register_outside([address for address in outside if address not in own])
        _log.info(
            "ready: name server %s, broker %s (%s in %s), http %s, AMQP %s, data in %s",
            self.addresses.namesrv,
            self.addresses.broker,
            self.settings.broker.broker_name,
            self.settings.broker.cluster_name,
            self.addresses.http,
            self.addresses.amqp or "off",
            self.settings.data_dir,
        )

    def _register_outside(self, addresses: Sequence[str]) -> None:
        """Register with name servers elsewhere, and take the broker away from them first thing at stop."""
        if addresses:
            answered = self.replication.registered
            self.registrar = Registrar(
                addresses, self._identity, on_registered=lambda address, answer: answered(answer)
            )
            self.replication.ask_again = self.registrar.changed
            self.registrar.start()

    def _identity(self) -> Identity:
        config = self.settings.broker
        port, host = self.replication.port, self.settings.ha.advertised_host or self.broker.address.host
        return Identity(
            cluster=config.cluster_name,
            name=config.broker_name,
            address=str(self.broker.address),
            broker_id=self.settings.ha.broker_id,
            ha_address=f"{host}:{port}" if port else "",
            topics=self.broker.topics.as_json(config.permission),
            state_version=self._state_version,
        )

    def _bind(self, port: int, flag: str, *, listen: bool = False) -> Any:
        sock = bind(self.settings.server.host, port, flag, listen=listen)
        self._stack.callback(sock.close)
        return sock

    def _bind_amqp(self, port: int) -> Any:
        """The socket for AMQP; None without it. RabbitMQ on the same machine is no reason not to start."""
        if port < 0 or self.settings.ha.is_slave:  # what AMQP keeps besides the log is not copied
            return None
        try:
            return self._bind(port, "--amqp-port", listen=True)
        except PortUnusable as error:
            if port != ServerConfig().amqp_port or error.cause.errno != errno.EADDRINUSE:
                raise
            _log.warning("AMQP is off: %s", error)
            return None

    async def _start_amqp(self, sock: Any, host: str) -> str:
        """Open the AMQP side, on a bound socket where there is one; returns its address."""
        if self._open_amqp is not None:
            service = await self._open_amqp(self.broker)
        else:
            streams = BrokerStreams(self.broker)
            service = AmqpService(self.settings.data_dir, self.clock, config=self.settings.queues, streams=streams)
        self._amqp = service
        self._stack.push_async_callback(service.close, self.settings.server.stop_timeout_ms / 1000)
        if sock is None:
            return ""
        await service.listen(sock)
        return f"{host}:{port_of(sock)}"

    def _open(self, address: BrokerAddress) -> None:
        """Open the store first: it takes the lock that keeps other processes from the tables too."""
        settings = self.settings
        opened = self.replication.open(
            self._open_store,
            settings.data_dir,
            settings.store,
            clock=self.clock,
            store_host=address.host_bytes,
            delay_levels=settings.broker.delay_levels,
            on_arrivals=self.arrived,
            on_congested=lambda: self._set_congested(True),
            on_relieved=lambda: self._set_congested(False),
        )
        self._opened = opened
        self._stack.push_async_callback(self._close_store)
        self.tiering = self._open_tier(opened)
        folder = settings.data_dir / "config"
        self.broker = Broker(
            config=settings.broker,
            store_config=settings.store,
            address=address,
            store=opened.store if self.tiering is None else self.tiering.store,
            committer=opened.committer,
            open_file=self._open_file,
            clock=self.clock,
            process_id=os.getpid(),
            on_topic_changed=self._topic_changed,
            on_topic_deleted=self._topic_deleted,
        )
        self.retention = retention_of(
            opened.store,
            settings.retention,
            self.broker.offsets,
            self.clock,
            delays=lambda: self.broker.delays.as_json(),
            keep_from=None if self.tiering is None else self.tiering.service.keep_from,
            is_tiered=(lambda topic: False) if self.tiering is None else self.tiering.keeps,
        )
        self.replication.take_role(self.broker, settings.store)
        if settings.broker.timer_wheel and not settings.ha.is_slave:
            self.broker.timers.attach(open_timer(settings), self.clock.wall_ms(), self.broker.topics.names())
        self.broker.transactions.reserved_ms = settings.retention.file_reserved_hours * 3_600_000
        self.live = LiveSettings(
            self._configs(), folder / KEPT_FILE, apply=self._take_changed, blacklist=settings.broker.config_blacklist
        )
        if self.broker.topics_taken_back:
            _log.warning(
                "topics found in the store but not in %s: %s", TOPICS_FILE, ", ".join(self.broker.topics_taken_back)
            )

    def _open_tier(self, opened: OpenedStore) -> Tiering | None:
        """The cold tier behind a log store; None without one."""
        settings = self.settings
        if not settings.tiered.address or not isinstance(opened.store, LogStore) or settings.ha.is_slave:
            return None
        tiering = Tiering(
            opened.store,
            settings.tiered,
            settings.broker,
            settings.data_dir,
            self.clock,
            find_topic=lambda topic: self.broker.topics.find(topic),
        )
        self._stack.push_async_callback(tiering.close)
        return tiering

    def _configs(self) -> dict[type[Any], Any]:
        settings = self.settings
        return {type(part): part for part in (settings.server, settings.broker, settings.store, settings.retention)}

    def _take_kept(self) -> None:
        """Put what operators changed while the broker ran over what it is started with."""
        kept = with_kept(self._configs(), self.settings.data_dir / "config" / KEPT_FILE)
        self.settings = replace(self.settings, broker=kept[BrokerConfig], retention=kept[RetentionConfig])

    def _take_changed(self, configs: Mapping[type[Any], Any]) -> None:
        """An operator has changed settings."""
        permission = self.settings.broker.permission
        self.settings = replace(self.settings, broker=configs[BrokerConfig], retention=configs[RetentionConfig])
        self.broker.reconfigure(configs[BrokerConfig])
        if self.settings.broker.permission != permission:
            self.broker.topics.republish()  # routes of all topics show it
            if self.namesrv is not None:
                self.namesrv.register_own(self.broker)
            if self.registrar is not None:
                self.registrar.changed()
        if self.retention is not None:
            self.retention.policy = configs[RetentionConfig]
        self.broker.transactions.reserved_ms = configs[RetentionConfig].file_reserved_hours * 3_600_000

    def _handlers(self) -> dict[int, Any]:
        broker = self.broker
        self._pulls = PullRequests(broker)
        self._pops = PopRequests(broker)
        self._members = MemberRequests(broker)
        handlers = collect(
            SendRequests(broker),
            self._pulls,
            MessageRequests(broker),
            self._members,
            OffsetRequests(broker),
            ReplyRequests(broker),
            SendBackRequests(broker),
            TimerRequests(broker),
            TransactionRequests(broker),
            self._pops,
            PopAckRequests(broker, self._pops.waiting.arrived),
            AssignmentRequests(broker),
            RetentionRequests(self.retention),
            *admin_families(broker, self._pulls, str(self.settings.data_dir)),
            SettingsRequests(self.live, lambda: json.dumps(broker.topics.version.as_json())),
            HaRequests(self.replication.status),
        )
        return self.replication.limit(handlers)

    def _start_tasks(self, namesrv: NameServer) -> None:
        for coroutine in (
            every(TICK_S, self._tick),
            every(SWEEP_S, self._sweep),
            every(SWEEP_S, namesrv.expire),
            every(EXPIRE_S, self._expire),
            self._save_loop(),
            timer_loop(self.broker.timers),
            *(retention_tasks(self.retention) if self.retention is not None else ()),
            *((self.tiering.run(),) if self.tiering is not None else ()),
        ):
            self._tasks.append(asyncio.create_task(coroutine))

    # --- what happens meanwhile ---

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages that can be read now: the store's committer tells, or the group's member."""
        self.replication.arrived()
        if self._pulls is not None:
            self._pulls.arrived(arrivals)

    def _set_congested(self, congested: bool) -> None:
        for listener in self._listeners[:1]:
            listener.set_congested(congested)

    def _topic_changed(self, config: TopicConfig) -> None:
        self._save_wanted.set()
        if self.namesrv is not None:
            self.namesrv.update_own(self.broker, config)
        if self.registrar is not None:
            self.registrar.changed()

    def _topic_deleted(self, topic: str) -> None:
        self._save_wanted.set()
        if self.namesrv is not None:
            self.namesrv.forget_own(self.settings.broker.broker_name, topic)
        if self.registrar is not None:
            self.registrar.changed()

    def _peer_lost(self, peer: RemotingPeer) -> None:
        self._members.notify_groups(self.broker.drop_connection(peer))

    def _tick(self) -> None:
        assert self._pulls is not None
        self._pulls.expire()
        self._pops.waiting.expire()
        if self.broker.is_accepting:
            self.broker.run_due()
        if self.broker.has_unsaved_tables:
            self._save_wanted.set()

    def _sweep(self) -> None:
        assert self._pulls is not None
        for listener in self._listeners:
            listener.sweep()
        self._pulls.check_behind()

    def _expire(self) -> None:
        self._members.notify_groups(self.broker.expire_clients())

    async def _save_loop(self) -> None:
        interval = self.settings.broker.offsets_flush_interval_ms / 1000
        loop = asyncio.get_running_loop()
        next_offsets = loop.time() + interval
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._save_wanted.wait(), max(0.0, next_offsets - loop.time()))
                await asyncio.sleep(SAVE_DELAY_S)
            self._save_wanted.clear()
            with_offsets = loop.time() >= next_offsets
            if with_offsets:
                next_offsets = loop.time() + interval
            await self._save(with_offsets=with_offsets)

    async def _save(self, *, with_offsets: bool) -> None:
        unsaved = self.broker.unsaved(with_offsets=with_offsets)
        if not unsaved:
            return
        try:
            await asyncio.to_thread(_write_all, unsaved)
        except OSError as error:
            self.broker.mark_unsaved()
            _log.error("tables cannot be saved, trying again in a while: %s", error)

    # --- stop ---

    async def stop(self) -> None:
        """Take everything down in order. Raises what the last writes raise, after all is closed."""
        if not hasattr(self, "broker"):
            return
        _log.info("stopping")
        if self.registrar is not None:
            await self.registrar.close()
        for listener in self._listeners:
            listener.stop_accepting()
        self.broker.is_accepting = False
        if self._pulls is not None:
            self._pulls.release_all()
            self._pops.waiting.release_all()
        for listener in self._listeners:
            listener.close_quiet_peers()
        await self._stack.aclose()
        _log.info("stopped")

    async def _close_listeners(self) -> None:
        timeout = self.settings.server.stop_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self.broker_listener.unanswered() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for listener in self._listeners:
            await listener.close(max(0.5, deadline - loop.time()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close_store(self) -> None:
        assert self._opened is not None
        try:
            await self._opened.close_committer()
            if hasattr(self, "broker"):
                _write_all(self.broker.unsaved(with_offsets=True))
                self.broker.timers.close()
        except (OSError, StrataError) as error:
            _log.error("not everything could be written at stop: %s", error)
        finally:
            self._opened.close_store()


def _write_all(unsaved: Sequence[tuple[SavedValue, Any]]) -> None:
    for file, value in unsaved:
        file.store(value)


def open_timer(settings: Settings) -> TimerStore:
    """The files of the timer, in a store that is open. Blocks; raises StoreError, OSError."""
    config = settings.broker
    return TimerStore.open(
        str(settings.data_dir), precision_ms=config.timer_precision_ms, file_bytes=config.timer_log_file_bytes
    )


async def timer_loop(timers: Timers) -> None:
    """Sync the timer's files every second, in a thread, until one sync fails."""
    while True:
        await asyncio.sleep(TIMER_SYNC_S)
        try:
            token = timers.begin_sync()
            if token is not None:
                await asyncio.to_thread(timers.sync, token)
        except StoreFailed as error:
            _log.critical("the timer's files cannot be synced, timers stand still until a restart: %s", error)
            return


async def every(seconds: float, work: Callable[[], None]) -> None:
    """Do ``work`` again and again; an error is logged and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            work()
        except Exception:
            _log.exception("periodic work failed")


async def serve(settings: Settings, *, ready_file: Path | None = None, open_store: OpenStore = open_log_store) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    wanted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, wanted.set)
    server = Server(settings, open_store=open_store)
    await server.start()
    spare_collections()
    try:
        if ready_file is not None:
            write_ready_file(ready_file, server.addresses)
        await first_of(wanted, server.ended)
    finally:
        if ready_file is not None:
            remove_ready_file(ready_file)
        await server.stop()
    if server.failure is not None:
        raise server.failure


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def spare_collections() -> None:
    """Let the cyclic collector run less often and look at less.

    Requests in work are many young objects without cycles; at the interpreter's defaults looking through them again
    and again takes a tenth of the time of a send.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def write_ready_file(path: Path, addresses: Addresses) -> None:
    """Say in one JSON object where clients reach the process. A reader sees the whole file or none."""
    found = {"namesrv": addresses.namesrv, "broker": addresses.broker, "http": addresses.http}
    if addresses.amqp:
        found["amqp"] = addresses.amqp
    found |= addresses.secure
    replace_file(str(path), json.dumps(found).encode() + b"\n")


def remove_ready_file(path: Path) -> None:
    """Take the ready file away; clients may no longer connect."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
