"""The route table: which brokers there are, and which topics they own. Pure data; time comes in as an argument.

Name servers do not talk to each other; every broker registers with each of them, again every 30 s. A broker that is
silent for its timeout (120 s unless it asks for another), or whose connection closed, loses its address here. Its
topics keep their queues until the last address of its name is gone.

Order of things on registration, as in RocketMQ: the same address under another id of the same name goes first; an
address that would push out another one with a newer state version is ignored; only the master (or the smallest id,
with acting masters) says what topics there are, and only when its data version moved or it is new.

Source: apache/rocketmq namesrv/.../RouteInfoManager.java.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stratamq.errors import InvalidArgument

BROKER_TIMEOUT_MS: Final = 120_000
MASTER_ID: Final = 0
PERM_READ: Final = 4
PERM_WRITE: Final = 2


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How new a broker's topic table is. Two that differ in any member are different."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class QueueData(NamedTuple):
    """A topic's queues on one broker."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


class QueueMapping(NamedTuple):
    """Which logical queues of a static topic one broker leads: pairs of logical and physical queue."""

    total_queues: int
    epoch: int
    scope: str
    is_dirty: bool
    led: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class BrokerData:
    """One broker name: its cluster and the addresses by id (0 is the master)."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    is_acting_master_enabled: bool = False
    zone: str | None = None


@dataclass(slots=True)
class Liveness:
    """What is known of one broker address."""

    address: str
    cluster: str
    name: str
    broker_id: int
    expires_ms: int | None
    timeout_ms: int
    version: DataVersion
    ha_address: str = ""
    connection: Hashable = None


class Route(NamedTuple):
    """Where a topic lives: brokers that have it, and its queues on each of them, by broker name.

    A static topic has mappings besides, by broker name too.
    """

    brokers: list[BrokerData]
    queues: dict[str, QueueData]
    mappings: dict[str, QueueMapping]


class Registered(NamedTuple):
    """Answer to a registration: only slaves are told about their master."""

    master_address: str = ""
    ha_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    cluster: str
    name: str
    address: str
    broker_id: int = MASTER_ID
    ha_address: str = ""
    version: DataVersion = DataVersion()
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    mappings: Mapping[str, QueueMapping] = field(default_factory=dict)
    """Of those topics the static ones."""
    timeout_ms: int = BROKER_TIMEOUT_MS
    is_acting_master_enabled: bool = False
    zone: str | None = None


class RouteTable:
    """All routes of one name server. ``generation`` moves with every change that clients can see."""

    def __init__(self) -> None:
        self._clusters: dict[str, set[str]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, QueueMapping]] = {}
        self._live: dict[tuple[str, str], Liveness] = {}
        self.generation = 0

    # --- registration ---

    def register(
        self, broker: Registration, *, now_ms: int, connection: Hashable = None, permanent: bool = False
    ) -> Registered:
        """Take a broker's registration. ``permanent`` is for the broker in this very process: it does not expire.

        Raises InvalidArgument for a broker that was never seen and carries a single topic.
        """
        known = self._live.get((broker.cluster, broker.address))
        data = self._brokers.get(broker.name)
        holder = data.addresses.get(broker.broker_id) if data is not None else None
        if holder is not None and holder != broker.address:
            other = self._live.get((broker.cluster, holder))
            if other is not None and other.version.state_version > broker.version.state_version:
                self._live.pop((broker.cluster, broker.address), None)
                return Registered()
        if known is None and len(broker.topics) == 1:
            raise InvalidArgument(f"broker {broker.name} is not known here and registers a single topic")
        if data is None:
            data = self._brokers[broker.name] = BrokerData(broker.cluster, broker.name)
            self.generation += 1
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        self._place_address(data, broker)
        is_prime = broker.broker_id == MASTER_ID or (
            broker.is_acting_master_enabled
            and MASTER_ID not in data.addresses
            and broker.broker_id == min(data.addresses)
        )
        if is_prime and (known is None or known.version != broker.version):
            self._take_topics(broker)
        self._live[broker.cluster, broker.address] = Liveness(
            address=broker.address,
            cluster=broker.cluster,
            name=broker.name,
            broker_id=broker.broker_id,
            expires_ms=None if permanent else now_ms + broker.timeout_ms,
            timeout_ms=broker.timeout_ms,
            version=broker.version,
            ha_address=broker.ha_address,
            connection=connection,
        )
        return self._answer_slave(broker, data)

    def _place_address(self, data: BrokerData, broker: Registration) -> None:
        before = dict(data.addresses), data.is_acting_master_enabled, data.zone
        for broker_id in [i for i, address in data.addresses.items() if address == broker.address]:
            if broker_id != broker.broker_id:
                del data.addresses[broker_id]
        data.addresses[broker.broker_id] = broker.address
        data.is_acting_master_enabled = broker.is_acting_master_enabled
        data.zone = broker.zone
        if before != (data.addresses, data.is_acting_master_enabled, data.zone):
            self.generation += 1

    def _take_topics(self, broker: Registration) -> None:
        for topic, queues in broker.topics.items():
            owners = self._topics.setdefault(topic, {})
            if owners.get(broker.name) != queues:
                owners[broker.name] = queues
                self.generation += 1
            self.set_mapping(topic, broker.name, broker.mappings.get(topic))

    def _answer_slave(self, broker: Registration, data: BrokerData) -> Registered:
        master = data.addresses.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return Registered()
        live = self._live.get((broker.cluster, master))
        return Registered(master, live.ha_address if live is not None else "")

    def unregister(self, cluster: str, name: str, address: str, broker_id: int) -> None:
        """Take an address away; with the last one of its name go the broker and its queues."""
        live = self._live.get((cluster, address))
        if live is not None and live.name == name:
            del self._live[cluster, address]
        data = self._brokers.get(name)
        if data is None or data.addresses.get(broker_id) != address:
            return
        del data.addresses[broker_id]
        self.generation += 1
        if data.addresses:
            return
        del self._brokers[name]
        names = self._clusters.get(data.cluster, set())
        names.discard(name)
        if not names:
            self._clusters.pop(data.cluster, None)
        for topic in [topic for topic, owners in self._topics.items() if name in owners]:
            self._forget_owner(topic, name)

    def _forget_owner(self, topic: str, name: str) -> None:
        owners = self._topics[topic]
        owners.pop(name, None)
        if not owners:
            del self._topics[topic]
        self.set_mapping(topic, name, None)

    def touch(self, cluster: str, address: str, *, now_ms: int) -> None:
        """A light heartbeat: the address lives on for its timeout."""
        live = self._live.get((cluster, address))
        if live is not None and live.expires_ms is not None:
            live.expires_ms = now_ms + live.timeout_ms

    def expire(self, now_ms: int) -> list[str]:
        """Drop brokers that were silent too long; return their addresses."""
        late = [live for live in self._live.values() if live.expires_ms is not None and live.expires_ms <= now_ms]
        return self._drop(late)

    def drop_connection(self, connection: Hashable) -> list[str]:
        """Drop the brokers that registered over a connection that is gone; return their addresses."""
        return self._drop([live for live in self._live.values() if live.connection == connection])

    def _drop(self, gone: list[Liveness]) -> list[str]:
        for live in gone:
            self.unregister(live.cluster, live.name, live.address, live.broker_id)
        return [live.address for live in gone]

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """The version a broker registered last; None for one that is not known."""
        live = self._live.get((cluster, address))
        return live.version if live is not None else None

    # --- reading ---

    def route(self, topic: str) -> Route | None:
        """Where ``topic`` lives; None when no live broker has it."""
        owners = self._topics.get(topic)
        if not owners:
            return None
        brokers = [self._brokers[name] for name in sorted(owners) if name in self._brokers]
        if not brokers:
            return None
        mappings = self._mappings.get(topic, {})
        return Route(
            brokers,
            {data.name: owners[data.name] for data in brokers},
            {data.name: mappings[data.name] for data in brokers if data.name in mappings},
        )

    def topics(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics that some broker of ``cluster`` has, sorted."""
        names = self._clusters.get(cluster, set())
        return sorted(topic for topic, owners in self._topics.items() if names & owners.keys())

    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster."""
        return {cluster: sorted(names) for cluster, names in sorted(self._clusters.items())}

    def brokers(self) -> list[BrokerData]:
        """All brokers by name."""
        return [self._brokers[name] for name in sorted(self._brokers)]

    def broker(self, name: str) -> BrokerData | None:
        """One broker name; None when it is not known."""
        return self._brokers.get(name)

    # --- an operator's changes ---

    def set_write_perm(self, name: str, *, writable: bool) -> int:
        """Give or take the write bit of a broker's queues, here only; return how many topics it has."""
        count = 0
        for owners in self._topics.values():
            queues = owners.get(name)
            if queues is not None:
                perm = queues.perm | PERM_READ | PERM_WRITE if writable else queues.perm & ~PERM_WRITE
                owners[name] = queues._replace(perm=perm)
                count += 1
        self.generation += bool(count)
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or on the brokers of one cluster."""
        owners = self._topics.get(topic)
        if owners is None:
            return
        names = (
            list(owners) if cluster is None else [name for name in owners if name in self._clusters.get(cluster, ())]
        )
        for name in names:
            self._forget_owner(topic, name)
        self.generation += bool(names)

    def forget_queues(self, topic: str, name: str) -> None:
        """One broker has no longer anything of a topic."""
        if name in self._topics.get(topic, ()):
            self._forget_owner(topic, name)
            self.generation += 1

    def set_mapping(self, topic: str, name: str, mapping: QueueMapping | None) -> None:
        """Say which logical queues of a topic one broker leads; None when the topic is not static there."""
        known = self._mappings.get(topic, {})
        if known.get(name) == mapping:
            return
        self.generation += 1
        if mapping is not None:
            self._mappings.setdefault(topic, {})[name] = mapping
            return
        del known[name]
        if not known:
            del self._mappings[topic]

    def add_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Take a topic as an operator states it; queues of unknown brokers are left out."""
        known = {name: data for name, data in queues.items() if name in self._brokers}
        if known:
            self._topics.setdefault(topic, {}).update(known)
            self.generation += 1
