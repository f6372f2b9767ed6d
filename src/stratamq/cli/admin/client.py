"""A connection to a cluster for commands: finds brokers through the name servers, asks, and reads the answers.

Blocking from the outside: each call runs the event loop until its answer is there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from stratamq.errors import InvalidArgument, NothingFound, PeerRefused, PeerUnreachable
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.codes import RequestCode, request_name
from stratamq.server.remoting_client import RemotingClient

MASTER = "0"


class Answer(NamedTuple):
    """What came back: code, extFields, remark, body."""

    code: int
    ext: dict[str, str]
    remark: str
    body: bytes

    @property
    def value(self) -> Any:
        """The body as JSON in any dialect; an empty object when there is none. Raises RemoteProtocolError."""
        return fastjson.loads(self.body) if self.body else {}


class Broker(NamedTuple):
    """One broker: its addresses by id, 0 for the master."""

    cluster: str
    name: str
    addresses: dict[str, str]

    @property
    def address(self) -> str:
        """The master's address, else that of the lowest id."""
        return self.addresses.get(MASTER) or self.addresses[min(self.addresses, key=int)]


class Queues(NamedTuple):
    """A topic's queues on one broker."""

    broker: str
    reads: int
    writes: int
    perm: int


class Route(NamedTuple):
    """Where a topic lives."""

    brokers: list[Broker]
    queues: list[Queues]


class AdminClient:
    """What commands use. A context manager; connections are made when they are needed."""

    def __init__(self, namesrv: Sequence[str], *, timeout_s: float = 10.0) -> None:
        if not namesrv:
            raise InvalidArgument("no name server given; name one with -n HOST:PORT")
        self.namesrv = list(namesrv)
        self._timeout_s = timeout_s
        self._runner = asyncio.Runner()
        self._clients: dict[str, RemotingClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def close() -> None:
            await asyncio.gather(*(client.close() for client in self._clients.values()))

        self._runner.run(close())
        self._runner.close()

    # --- asking ---

    def call(
        self,
        address: str,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Ask and return the answer, whatever its code. Blocks. Raises PeerUnreachable."""
        fields = {name: _text(value) for name, value in (ext or {}).items() if value is not None}

        async def ask() -> Answer:
            client = self._clients.get(address)
            if client is None or client.is_closed:
                client = self._clients[address] = await RemotingClient.connect(address)
            header, answer = await client.request(code, fields, body, timeout_s=timeout_s or self._timeout_s)
            found = {name: str(value) for name, value in json.loads(bytes(header.ext)).items()}
            return Answer(header.code, found, header.remark or "", answer)

        return self._runner.run(ask())

    def ask(
        self,
        address: str,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Ask; raises PeerRefused for any answer but success."""
        answer = self.call(address, code, ext, body, timeout_s=timeout_s)
        if answer.code != 0:
            raise PeerRefused(address, request_name(code), answer.code, answer.remark)
        return answer

    def ask_names(self, code: int, ext: Mapping[str, object] | None = None) -> Answer:
        """Ask the first name server that can be reached."""
        last: PeerUnreachable | None = None
        for address in self.namesrv:
            try:
                return self.ask(address, code, ext)
            except PeerUnreachable as error:
                last = error
        assert last is not None
        raise last

    def tell_names(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> list[Answer]:
        """Ask every name server; they do not know each other."""
        return [self.ask(address, code, ext, body) for address in self.namesrv]

    # --- finding ---

    def brokers(self) -> list[Broker]:
        """Every broker that the name server knows, by cluster and name."""
        info = self.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO).value
        table = info.get("brokerAddrTable") or {}
        found = []
        for cluster, names in sorted((info.get("clusterAddrTable") or {}).items()):
            for name in sorted(names):
                addresses = (table.get(name) or {}).get("brokerAddrs") or {}
                if addresses:
                    found.append(Broker(cluster, name, {str(number): text for number, text in addresses.items()}))
        return found

    def targets(self, broker: str | None, cluster: str | None) -> list[str]:
        """The addresses of an option pair: a broker's address or name, or the masters of a cluster.

        Raises InvalidArgument, NothingFound.
        """
        if broker:
            if ":" in broker:
                return [broker]
            found = [one.address for one in self.brokers() if one.name == broker]
            if not found:
                raise NothingFound(f"no broker {broker} is registered with {self.namesrv[0]}")
            return found
        found = [one.address for one in self.brokers() if cluster in (None, one.cluster)]
        if not found:
            known = ", ".join(sorted({one.cluster for one in self.brokers()})) or "none"
            raise NothingFound(f"no cluster {cluster} is registered with {self.namesrv[0]}; there are: {known}")
        return found

    def find_route(self, topic: str) -> Route | None:
        """Where a topic lives; None when no broker has it."""
        last: PeerUnreachable | None = None
        for address in self.namesrv:
            try:
                answer = self.call(
                    address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True}
                )
            except PeerUnreachable as error:
                last = error
                continue
            if answer.code == 17:
                return None
            if answer.code != 0:
                raise PeerRefused(address, "the route", answer.code, answer.remark)
            value = answer.value
            brokers = [
                Broker(one.get("cluster") or "", one["brokerName"], dict(one.get("brokerAddrs") or {}))
                for one in value.get("brokerDatas") or ()
                if one.get("brokerAddrs")
            ]
            queues = [
                Queues(one["brokerName"], one["readQueueNums"], one["writeQueueNums"], one["perm"])
                for one in value.get("queueDatas") or ()
            ]
            return Route(sorted(brokers), sorted(queues))
        assert last is not None
        raise last

    def route(self, topic: str) -> Route:
        """Where a topic lives. Raises NothingFound."""
        found = self.find_route(topic)
        if found is None:
            raise NothingFound(f"no broker that {self.namesrv[0]} knows has a topic {topic}")
        return found

    def read_queues(self, topic: str) -> Iterator[tuple[Broker, int]]:
        """Every queue of a topic that consumers read, with its broker."""
        route = self.route(topic)
        brokers = {one.name: one for one in route.brokers}
        for queues in route.queues:
            if queues.broker in brokers:
                yield from ((brokers[queues.broker], number) for number in range(queues.reads))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
