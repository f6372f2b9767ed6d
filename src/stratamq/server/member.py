"""A broker that is a member of a replication group, as a process: it serves clients while it leads.

The member runs from start to stop: it takes part in elections and receives the log. While it leads, a `Server` runs on
its store, with the tables that the log holds; when it leads no more, that server is stopped and connections are closed,
so that clients ask the name server again. The new leader registers under the same name, with its term, which name
servers believe before any lower one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.broker.ports import SavedValue
from stratamq.clock import Clock, SystemClock
from stratamq.config import FlushMode, HaConfig, TieredConfig
from stratamq.errors import ConfigError, ServiceUnavailable, StoreError, StrataError
from stratamq.files.durable import ConfigFile
from stratamq.formats.message import encode_host
from stratamq.logstore.types import Arrival
from stratamq.replication.log_store import MemberStore
from stratamq.replication.node import MemberNode
from stratamq.replication.ports import RaftTimes
from stratamq.replication.snapshot import clear_for_install
from stratamq.server.amqp_front import AmqpFront
from stratamq.server.amqp_group import GroupAmqp
from stratamq.server.amqp_group_log import GroupLog, needed_from, record_at_or_above
from stratamq.server.lifecycle import Server
from stratamq.server.process import run
from stratamq.server.retention import offsets_of
from stratamq.server.settings import Settings
from stratamq.server.sockets import PortUnusable, advertised_host, bind, raise_file_limit
from stratamq.server.storage import OpenedStore

_log = logging.getLogger(__name__)
TABLES_INTERVAL_MS: Final = 1_000
"""How often changed tables (consumer offsets among them) go into the log."""
STOP_MS: Final = 200
"""How long requests in work are waited for when leadership is lost."""
START_RETRY_S: Final = 1.0
PORT_RETRY_S: Final = 0.1
PORT_TRIES: Final = 5
"""How often the broker's port is tried, before another one is taken, when a member on the same machine still has it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Which group, which node of it, and where its members listen for each other."""

    group: str
    node: str
    peers: dict[str, str]
    times: RaftTimes = dataclasses.field(default_factory=RaftTimes)


def parse_peers(text: str) -> dict[str, str]:
    """``n1=host:port,n2=host:port``. Raises ConfigError."""
    peers: dict[str, str] = {}
    for part in text.split(","):
        node, _, address = part.strip().partition("=")
        host, _, port = address.rpartition(":")
        if not node or not node.isascii() or len(node) > 64 or not host or not port.isdigit() or node in peers:
            raise ConfigError("--peers", text, "members as n1=host:port,n2=host:port, each once")
        peers[node] = address
    return peers


class ReplicatedFile:
    """A table of the broker that is kept in the group's log: what is stored is proposed, what is loaded is decided."""

    def __init__(self, node: MemberNode, name: str, local: ConfigFile) -> None:
        self._node = node
        self._name = name
        self._local = local
        self._loop = asyncio.get_running_loop()

    def load(self) -> Any | None:
        """The table as the log has it; what the local file holds when the log has none."""
        found = self._node.tables.get(self._name)
        return self._local.load() if found is None else found[1].value

    def modified_ms(self) -> int:
        """When the file was changed last; 0 when there is none."""
        return self._local.modified_ms()

    def store(self, value: Any) -> None:
        """Put the table into the log and into the local file. Called in a thread; blocks for two syncs."""
        self._loop.call_soon_threadsafe(self._node.propose_table, self._name, json.loads(json.dumps(value)))
        self._local.store(value)


def _refuse_what_groups_lack(settings: Settings) -> None:
    """Say so where somebody wants what a group does not have, instead of leaving it out. Raises ConfigError."""
    if settings.server.amqps_port >= 0:
        raise ConfigError("--amqps-port", settings.server.amqps_port, "left out: a group's AMQP has no TLS")
    if settings.tiered.address:
        raise ConfigError("the cold tier", settings.tiered.address, "left out: members of a group do not upload")


class MemberProcess:
    """See the module's text."""

    def __init__(self, settings: Settings, membership: Membership, *, clock: Clock | None = None) -> None:
        if membership.node not in membership.peers:
            raise ConfigError("--node", membership.node, f"one of {', '.join(membership.peers)}")
        _refuse_what_groups_lack(settings)
        self._membership = membership
        self._clock = clock or SystemClock()
        self.settings = dataclasses.replace(
            settings,
            server=dataclasses.replace(settings.server, amqps_port=-1, https_port=-1, stop_timeout_ms=STOP_MS),
            broker=dataclasses.replace(
                settings.broker, broker_name=membership.group, offsets_flush_interval_ms=TABLES_INTERVAL_MS
            ),
            store=dataclasses.replace(settings.store, flush_mode=FlushMode.SYNC),
            tiered=TieredConfig(),
            ha=HaConfig(port=-1),
        )
        self.server: Server | None = None
        self._wanted = 0
        self._has_to_reopen = False
        self._has_to_restart = False
        self._amqp: GroupAmqp | None = None
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.node: MemberNode | None = None
        self._store: MemberStore | None = None

    async def start(self) -> None:
        """Open the store and take part. Blocks while the store recovers. Raises StrataError."""
        raise_file_limit()
        await self._open()
        self._task = asyncio.create_task(self._follow_role())

    async def _open(self) -> None:
        """Open the store and take part. Raises StrataError, OSError."""
        membership, settings = self._membership, self.settings
        host, _, port = membership.peers[membership.node].rpartition(":")
        sock = bind(host, int(port), "--peers")
        try:
            address = encode_host(advertised_host(settings.server.host, settings.broker.advertised_host), 0)
            settings.data_dir.mkdir(parents=True, exist_ok=True)
            clear_for_install(str(settings.data_dir), settings.store)
            opened = MemberStore.open(
                settings.data_dir,
                settings.store,
                clock=self._clock,
                store_host=address,
                delay_levels=settings.broker.delay_levels,
            )
            assert isinstance(opened, MemberStore)
            self._store = opened
            self.node = MemberNode(
                node=membership.node,
                group=membership.group,
                peers=membership.peers,
                store=opened,
                host=address,
                clock=self._clock,
                times=membership.times,
                on_serving=self._serving_changed,
                on_arrivals=self._arrived,
                on_installed=self._installed,
            )
            await self.node.start(sock)
        except BaseException:
            sock.close()
            if self._store is not None:
                self._store.close()
            raise

    def _installed(self) -> None:
        self._has_to_reopen = True
        self._changed.set()

    async def _reopen(self) -> None:
        """A leader's snapshot is in place: close everything, and begin with it. Tried again until it works."""
        node, store = self.node, self._store
        assert node is not None
        assert store is not None
        await node.close()
        store.close()
        while not self._is_stopping:
            try:
                await self._open()
                return
            except (StrataError, OSError) as error:
                _log.error("cannot begin with the leader's snapshot, trying again: %s", error)
                await asyncio.sleep(START_RETRY_S)

    def _serving_changed(self, serves: bool, term: int) -> None:
        self._wanted = term if serves and not self._is_stopping else 0
        self._changed.set()

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        if self.server is not None:
            self.server.arrived(arrivals)

    async def _follow_role(self) -> None:
        """Start and stop the server, one after the other, as the role says; ends, without a server, when told to stop.

        It is never cancelled: half a start is hard to take back.
        """
        running = 0
        while running or not self._is_stopping:
            await self._changed.wait()
            self._changed.clear()
            if self._has_to_restart and running:
                await self._stop_server()
                running = 0
            self._has_to_restart = False
            while running != self._wanted:
                if running:
                    await self._stop_server()
                    running = 0
                    continue
                term = self._wanted
                try:
                    await self._start_server(term)
                    running = term
                except (StrataError, OSError) as error:
                    _log.error("cannot serve in term %d, trying again: %s", term, error)
                    await asyncio.sleep(START_RETRY_S)
            if self._has_to_reopen and not self._is_stopping:
                self._has_to_reopen = False
                await self._reopen()

    async def _start_server(self, term: int) -> None:
        """Serve on the broker's port, or on any free one when somebody who does not let go has it.

        Members on one machine may share a port, because only the leader listens: clients then find the new leader
        where the old one was. One that was stopped (SIGSTOP) still holds it.
        """
        for _ in range(PORT_TRIES):
            try:
                await self._start_server_on(self.settings, term)
                return
            except PortUnusable as error:
                if error.cause.errno != errno.EADDRINUSE or error.port != self.settings.server.broker_port:
                    raise
            await asyncio.sleep(PORT_RETRY_S)
        port = self.settings.server.broker_port
        _log.error("port %d is in use; taking any free one, which clients find through the name server", port)
        server = dataclasses.replace(self.settings.server, broker_port=0)
        await self._start_server_on(dataclasses.replace(self.settings, server=server), term)

    async def _start_server_on(self, settings: Settings, term: int) -> None:
        server = Server(
            settings,
            clock=self._clock,
            open_store=self._lend_store,
            open_file=self._open_file,
            state_version=term,
            open_amqp=lambda broker: self._open_amqp(broker, term),
        )
        self.server = server
        try:
            await server.start()
        except BaseException:
            self.server = None
            raise
        if server.retention is not None and self.node is not None:
            server.retention.hand_over = self._propose_trim
            self.node.trimming.read_up_to = offsets_of(server.broker.offsets, lambda: server.broker.delays.as_json())

    async def _open_amqp(self, broker: Broker, term: int) -> AmqpFront:
        """The AMQP side, from the group's log. Raises StoreError; ServiceUnavailable while the log is undecided."""
        assert self.node is not None
        assert self._store is not None
        committer = self.node.committer
        if committer is None:
            raise ServiceUnavailable("this member leads no more")
        log = GroupLog(self._store, committer, broker.address.host_bytes, self._clock)
        amqp = GroupAmqp(log, self.settings.data_dir, self._clock, self.settings.queues, on_failed=self._amqp_failed)
        await amqp.open(term)
        self._amqp = amqp
        return amqp

    def _amqp_failed(self, reason: str) -> None:
        """What AMQP knows is not what the log holds any more: begin anew with the log, if this member still leads."""
        self._has_to_restart = True
        self._changed.set()

    def _propose_trim(self, offset: int) -> None:
        """Let the group delete old log files, as far as quorum queues need nothing in them; what they need is moved."""
        assert self.node is not None
        assert self._store is not None
        try:
            needed = needed_from(self._store)
        except StoreError as error:
            _log.error("old parts of the log are not deleted: %s", error)
            return
        if needed is not None and needed < offset:
            if self._amqp is not None:
                self._amqp.empty_below(record_at_or_above(self._store, offset))
            offset = needed - needed % self._store.config.commit_log_file_bytes
        self.node.propose_trim(offset)

    async def _stop_server(self) -> None:
        server, self.server = self.server, None
        self._amqp = None
        if self.node is not None:
            self.node.trimming.read_up_to = None
        if server is not None:
            try:
                await server.stop()
            except StrataError as error:
                _log.error("not everything could be written: %s", error)

    def _open_file(self, name: str) -> SavedValue:
        assert self.node is not None
        return ReplicatedFile(self.node, name, ConfigFile(str(self.settings.data_dir / "config" / name)))

    def _lend_store(self, directory: Path, config: Any, *, store_host: bytes, **_: Any) -> OpenedStore:
        """The member's own store, which outlives the server."""
        assert self.node is not None
        assert self._store is not None
        self._store.set_store_host(store_host)
        committer = self.node.committer
        if committer is None:
            raise ConfigError("role", "follower", "a leader serves")

        async def close_committer() -> None:
            return

        return OpenedStore(self._store, committer, close_committer, lambda: None)

    async def stop(self) -> None:
        """Hand leadership on when somebody can take it, then take everything down in order."""
        self._is_stopping = True
        self._wanted = 0
        self._changed.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        node, store = self.node, self._store
        if node is None or store is None:
            return
        await self._hand_over(node)
        await node.close()
        store.close()

    async def _hand_over(self, node: MemberNode) -> None:
        core = node.core
        others = [m.node for m in core.config.voters if m.node != core.node]
        best = max(others, key=lambda name: node.status()["followers"].get(name, {}).get("match", 0), default="")
        if best and core.transfer(best):
            node.changed()
            for _ in range(50):
                if not core.is_leader:
                    return
                await asyncio.sleep(0.02)

    def ready(self) -> dict[str, str]:
        """What the ready file says."""
        return {"peer": self._membership.peers[self._membership.node], "node": self._membership.node}


async def serve_member(settings: Settings, membership: Membership, *, ready_file: Path | None = None) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    await run(MemberProcess(settings, membership), ready_file=ready_file)
