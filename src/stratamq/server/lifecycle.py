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
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stratamq.broker.broker import TOPICS_FILE, Broker, BrokerAddress
from stratamq.broker.ports import SavedValue
from stratamq.broker.topics import TopicConfig
from stratamq.clock import Clock, SystemClock
from stratamq.config import BrokerConfig, RetentionConfig
from stratamq.errors import StrataError
from stratamq.files.durable import ConfigFile
from stratamq.logstore.types import Arrival
from stratamq.protocols.remoting.replies import SendReplies
from stratamq.server.amqp_front import AmqpFront
from stratamq.server.amqp_service import AmqpService
from stratamq.server.http import HttpServer
from stratamq.server.live_settings import KEPT_FILE, NAMES_FILE, LiveSettings, with_kept
from stratamq.server.namesrv import NameServer
from stratamq.server.neighbours import BrokerNeighbours
from stratamq.server.ports import Addresses, Ports
from stratamq.server.process import every, run, spare_collections
from stratamq.server.registering import Identity, Registrar, parse_addresses
from stratamq.server.remoting import RemotingListener
from stratamq.server.replicating import Replication
from stratamq.server.requests.base import SENDS
from stratamq.server.requests.families import BrokerFamilies
from stratamq.server.retention import retention_of, retention_tasks
from stratamq.server.secure_ports import SecurePorts
from stratamq.server.settings import Settings
from stratamq.server.sockets import raise_file_limit
from stratamq.server.storage import OpenedStore, open_log_store
from stratamq.server.stream_log import BrokerStreams
from stratamq.server.tables import keep_tables, write_all
from stratamq.server.tiering import Tiering, tiering_of
from stratamq.server.timing import open_timer, sync_timer
from stratamq.server.topic_queues import TopicQueues

_log = logging.getLogger(__name__)

TICK_S: Final = 0.1
SWEEP_S: Final = 5.0
EXPIRE_S: Final = 10.0


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
        self._open_file = open_file or (lambda name: ConfigFile(str(settings.config_dir / name)))
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
        self._requests: BrokerFamilies | None = None
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
        raise_file_limit()
        outside = parse_addresses(self.settings.server.namesrv_addresses)
        ports = Ports(self.settings, self.replication, self._stack)
        self._open(ports.broker_address)
        self._stack.push_async_callback(self.replication.close)
        self._compose(ports.secure)
        await self._listen(ports)
        self._register_outside([address for address in outside if not ports.is_own_namesrv(address)])
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

    def _compose(self, secure: SecurePorts) -> None:
        """Make the name server, the handlers and the listeners of an opened broker, and begin what runs beside them."""
        config, folder = self.settings.server, self.settings.config_dir
        kv_file = ConfigFile(str(folder / "kvConfig.json"))
        self.namesrv = NameServer(config, self.clock, kv_file, folder / NAMES_FILE, secure.tls)
        self.namesrv.register_own(self.broker)
        outside = parse_addresses(config.namesrv_addresses)
        neighbours = self.broker.neighbours = BrokerNeighbours(
            self.namesrv.routes, outside, lambda: self.settings.broker.forward_timeout_ms
        )
        self._stack.push_async_callback(neighbours.close)
        requests = self._requests = BrokerFamilies(
            self.broker,
            data_dir=self.settings.data_dir,
            live=self.live,
            retention=self.retention,
            ha_status=self.replication.status,
        )
        replies = SendReplies(region=self.settings.broker.region, trace_on=self.settings.broker.trace_on)
        self.broker_listener = RemotingListener(
            "broker",
            config,
            self.replication.limit(requests.by_code),
            on_lost=requests.lost,
            sends=SENDS,
            refused_ext=replies.refused_ext(),
            tls=secure.tls,
        )
        self._listeners = [self.broker_listener, self.namesrv.listener]
        self._stack.push_async_callback(self._close_listeners)
        self._start_tasks(self.namesrv, requests)
        self._tasks.append(asyncio.create_task(secure.refresh()))
        self.http = HttpServer(
            self.broker, self.namesrv.routes, self._listeners, amqp=lambda: self._amqp, retention=self.retention
        )
        self._stack.push_async_callback(self.http.close)

    async def _listen(self, ports: Ports) -> None:
        """Accept on every port; the broker's first, so that it can be reached when name servers name it."""
        assert self.namesrv is not None
        await self.broker_listener.listen(ports.broker)
        await self.replication.start(self.broker)
        vip = ports.bind_vip()
        if vip is not None:
            await self.broker_listener.listen(vip)
        if ports.namesrv is not None:
            await self.namesrv.listener.listen(ports.namesrv)
        await self.http.listen(ports.http)
        if ports.wants_amqp:
            await self._start_amqp(ports.amqp)
        self.addresses = ports.addresses(await ports.secure.start(self.http, self._amqp, ports.near))

    def _register_outside(self, addresses: Sequence[str]) -> None:
        """Register with name servers elsewhere, and take the broker away from them first thing at stop."""
        assert self.namesrv is not None
        queues = TopicQueues(addresses, self.namesrv.routes, self.clock)
        self._stack.push_async_callback(queues.close)
        self.broker.find_queues = queues.find
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
            mappings=self.broker.static_topics.infos(),
            mapping_version=self.broker.static_topics.version.as_json(),
            state_version=self._state_version,
        )

    async def _start_amqp(self, sock: socket.socket | None) -> None:
        """Open the AMQP side; accept on a bound socket where there is one without TLS."""
        if self._open_amqp is not None:
            service = await self._open_amqp(self.broker)
        else:
            streams = BrokerStreams(self.broker)
            service = AmqpService(self.settings.data_dir, self.clock, config=self.settings.queues, streams=streams)
        self._amqp = service
        self._stack.push_async_callback(service.close, self.settings.server.stop_timeout_ms / 1000)
        if sock is not None:
            await service.listen(sock)

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
        self.tiering = tiering_of(opened.store, settings, self.clock, lambda topic: self.broker.topics.find(topic))
        if self.tiering is not None:
            self._stack.push_async_callback(self.tiering.close)
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
            settings.shown(),
            settings.config_dir / KEPT_FILE,
            apply=self._take_changed,
            blacklist=settings.broker.config_blacklist,
        )
        if self.broker.topics_taken_back:
            _log.warning(
                "topics found in the store but not in %s: %s", TOPICS_FILE, ", ".join(self.broker.topics_taken_back)
            )

    def _take_kept(self) -> None:
        """Put what operators changed while the broker ran over what it is started with."""
        settings = self.settings
        self.settings = settings.changed(with_kept(settings.shown(), settings.config_dir / KEPT_FILE))

    def _take_changed(self, configs: Mapping[type[Any], Any]) -> None:
        """An operator has changed settings."""
        permission = self.settings.broker.permission
        self.settings = self.settings.changed(configs)
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

    def _start_tasks(self, namesrv: NameServer, requests: BrokerFamilies) -> None:
        for coroutine in (
            every(TICK_S, lambda: self._tick(requests)),
            every(SWEEP_S, lambda: self._sweep(requests)),
            every(SWEEP_S, namesrv.expire),
            every(EXPIRE_S, requests.expire_clients),
            keep_tables(self.broker, self._save_wanted, self.settings.broker.offsets_flush_interval_ms),
            sync_timer(self.broker.timers),
            *(retention_tasks(self.retention) if self.retention is not None else ()),
            *((self.tiering.run(),) if self.tiering is not None else ()),
        ):
            self._tasks.append(asyncio.create_task(coroutine))

    # --- what happens meanwhile ---

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages that can be read now: the store's committer tells, or the group's member."""
        self.replication.arrived()
        if self._requests is not None:
            self._requests.arrived(arrivals)

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

    def _tick(self, requests: BrokerFamilies) -> None:
        requests.expire()
        if self.broker.is_accepting:
            self.broker.run_due()
        if self.broker.has_unsaved_tables:
            self._save_wanted.set()

    def _sweep(self, requests: BrokerFamilies) -> None:
        for listener in self._listeners:
            listener.sweep()
        requests.check_behind()

    def ready(self) -> dict[str, str]:
        """Where clients reach the process, by name."""
        return self.addresses.named()

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
        if self._requests is not None:
            self._requests.release_all()
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
                write_all(self.broker.unsaved(with_offsets=True))
                self.broker.timers.close()
        except (OSError, StrataError) as error:
            _log.error("not everything could be written at stop: %s", error)
        finally:
            self._opened.close_store()


async def serve(settings: Settings, *, ready_file: Path | None = None, open_store: OpenStore = open_log_store) -> None:
    """Run until SIGTERM or SIGINT, then stop in order. Raises why it ended when it did so by itself."""
    server = Server(settings, open_store=open_store)
    await run(server, ready_file=ready_file, ended=server.ended, on_started=spare_collections)
    if server.failure is not None:
        raise server.failure
