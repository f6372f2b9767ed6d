"""A broker's part in master/slave replication: which store it opens, which port it has, what it refuses.

A master gives its log to slaves; a SYNC_MASTER waits for them. A slave copies its master's log and tables, serves
consumers where `slaveReadEnable` says so, and refuses everything that would write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from stratamq.broker.broker import Broker
from stratamq.clock import Clock
from stratamq.config import BrokerRole, HaConfig, ServerConfig, StoreConfig
from stratamq.errors import ConfigError, ServiceUnavailable, StrataError
from stratamq.logstore.store import LogStore
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.replication.ha_committer import SyncMasterCommitter
from stratamq.replication.ha_store import REFUSAL, SlaveCommitter, SlaveStore
from stratamq.server.ha_master import HaMaster
from stratamq.server.ha_slave import HaSlave
from stratamq.server.ha_tables import MasterTables
from stratamq.server.registering import Registered
from stratamq.server.requests.base import SENDS, Handler, Peer
from stratamq.server.sockets import PortUnusable, port_of
from stratamq.server.storage import OpenedStore

_log = logging.getLogger(__name__)
REFUSED_ON_SLAVES: Final = SENDS | {
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
}
"""What would write to the log or to a table that is the master's."""


class Bind(Protocol):
    """Binds a port of the broker's host."""

    def __call__(self, port: int, flag: str, *, listen: bool = False) -> Any:
        """A socket. Raises PortUnusable."""
        ...


class Replication:
    """See the module's text. ``on_failed`` is told when a slave cannot go on."""

    def __init__(self, config: HaConfig, clock: Clock, *, on_failed: Callable[[StrataError], None]) -> None:
        self.config = config
        self._clock = clock
        self._on_failed = on_failed
        self._socket: Any = None
        self._opened: OpenedStore | None = None
        self._sync: SyncMasterCommitter | None = None
        self.master: HaMaster | None = None
        self.slave: HaSlave | None = None
        self.tables: MasterTables | None = None
        self.ask_again: Callable[[], None] = lambda: None
        """Called when a slave does not reach its master: name servers may know it elsewhere by now."""
        self.port = 0
        """Where slaves fetch the log; 0 for nowhere."""

    def bind(self, bind: Bind, server: ServerConfig) -> None:
        """Take the port for slaves, where there is to be one. Raises PortUnusable, ConfigError."""
        config, has_names = self.config, server.namesrv_port >= 0
        if config.is_slave and has_names:
            raise ConfigError(
                "brokerRole", "SLAVE", "a master's role in stratamq serve; a slave runs as stratamq broker"
            )
        is_wanted = config.port > 0 or not has_names or config.role is BrokerRole.SYNC_MASTER
        if config.is_slave or config.port < 0 or not is_wanted:
            return
        port = config.port or (server.broker_port + 1 if server.broker_port else 0)
        try:
            self._socket = bind(port, "haListenPort", listen=True)
            self.port = port_of(self._socket)
        except PortUnusable as error:
            if config.port or config.role is BrokerRole.SYNC_MASTER:
                raise
            _log.warning("no slave can fetch the log: %s", error)

    def open(self, open_store: Callable[..., OpenedStore], *place: Any, **rest: Any) -> OpenedStore:
        """Open the store for this role, as ``open_store`` does it for a master."""
        if self.config.is_slave:
            opened = open_slave_store(*place, **rest)
        else:
            opened = open_store(*place, **rest)
            if isinstance(opened.store, LogStore) and self._socket is not None:
                self.master = HaMaster(opened.store, self.config, self._clock, on_acked=self._acked)
                if self.config.role is BrokerRole.SYNC_MASTER:
                    self._sync = SyncMasterCommitter(opened.committer.put, self.master, self.config)
                    opened = replace(opened, committer=self._sync)
        self._opened = opened
        return opened

    def take_role(self, broker: Broker, store: StoreConfig) -> None:
        """Tell a broker what it is."""
        config, replica = self.config, broker.replica
        replica.is_slave = config.is_slave
        replica.facts = self.facts
        replica.refuses_reads = config.is_slave and not config.slave_reads
        if config.slave_reads:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            replica.far_behind_bytes = memory * store.memory_ratio_percent // 100

    async def start(self, broker: Broker) -> None:
        """Begin to give the log to slaves, or to follow the master."""
        if self.master is not None:
            await self.master.listen(self._socket)
        if self.config.is_slave and self._opened is not None:
            store, committer = self._opened.store, self._opened.committer
            assert isinstance(store, SlaveStore)
            assert isinstance(committer, SlaveCommitter)
            self.slave = HaSlave(
                store, committer, self.config, self._clock, on_failed=self._on_failed, on_lost=lambda: self.ask_again()
            )
            self.slave.start()
            self.tables = MasterTables(broker, self.config.tables_interval_ms, store.directory)
            self.tables.start()

    def registered(self, answer: Registered) -> None:
        """A name server has said where the master is."""
        if self.slave is not None:
            self.slave.learn(answer.ha_address)
        if self.tables is not None:
            self.tables.learn(answer.master_address)

    def arrived(self) -> None:
        """The log has grown."""
        if self.master is not None:
            self.master.wake()

    def _acked(self) -> None:
        if self._sync is not None:
            self._sync.acked()

    def status(self) -> dict[str, Any]:
        """The body of GET_BROKER_HA_STATUS."""
        if self.slave is not None:
            return self.slave.status()
        if self.master is not None:
            return self.master.status()
        end = 0 if self._opened is None else self._opened.store.status().max_physical_offset
        return {"master": True, "masterCommitLogMaxOffset": end, "inSyncSlaveNums": 0, "haConnectionInfo": []}

    def facts(self) -> dict[str, Any]:
        """What brokerStatus and the metrics show of replication."""
        facts: dict[str, Any] = {"brokerRole": self.config.role.value, "brokerId": self.config.broker_id}
        if self.master is not None:
            facts |= {
                "haSlaves": len(self.master.links),
                "haSlavesInSync": self.master.in_sync_copies() - 1,
                "haSlaveBehindBytes": max((self.master.log_end - link.acked for link in self.master.links), default=0),
            }
        if self.slave is not None:
            facts |= {
                "haFollowsMaster": self.slave.is_connected,
                "haBehindMasterBytes": max(0, self.slave.master_end - self.slave.stored),
                "haTablesCopied": 0 if self.tables is None else self.tables.rounds,
            }
        return facts

    def limit(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The handlers that this role serves; the others refuse."""
        if not self.config.is_slave:
            return handlers
        return handlers | {int(code): _refuse for code in REFUSED_ON_SLAVES if code in handlers}

    async def close(self) -> None:
        """Follow no more, give nothing to slaves any more, answer who waits for them."""
        if self.tables is not None:
            await self.tables.close()
        if self.slave is not None:
            await self.slave.close()
        if self._sync is not None:
            self._sync.close()
        if self.master is not None:
            await self.master.close()


def _refuse(peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
    raise ServiceUnavailable(REFUSAL)


def open_slave_store(directory: Any, config: Any, *, clock: Clock, **rest: Any) -> OpenedStore:
    """Open a slave's store; takes and raises what `storage.open_log_store` does."""
    callbacks = {name: rest.pop(name) for name in ("on_arrivals", "on_congested", "on_relieved")}
    store = SlaveStore.open(directory, config, clock=clock, **rest)
    assert isinstance(store, SlaveStore)
    store.trim_blank()
    committer = SlaveCommitter(store, **callbacks)
    committer.start()
    return OpenedStore(store, committer, committer.close, store.close)
