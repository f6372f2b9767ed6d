"""Registering a broker with name servers elsewhere: at once, when a topic changes, and every 30 seconds.

Name servers do not know each other, so each has a task of its own here; one that cannot be reached holds up nobody.
What is said of the broker is asked for at the moment it is sent, so a change of role needs one call of
`Registrar.changed`.

Source: apache/rocketmq broker/.../BrokerOuterAPI.java, remoting/.../RegisterBrokerBody.java.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stratamq.errors import ConfigError, PeerUnreachable, RemoteProtocolError
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.remoting_client import RemotingClient, Reply, split_address

_log = logging.getLogger(__name__)
PERIOD_S: Final = 30.0
RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between attempts to reach a name server; the last one again and again."""
CHANGE_DELAY_S: Final = 0.02
"""How long a change waits for further ones."""
ANSWER_S: Final = 24.0
GOODBYE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a broker says of itself. ``topics`` is what ``topics.json`` holds; ``broker_id`` is 0 for a master."""

    cluster: str
    name: str
    address: str
    broker_id: int = 0
    ha_address: str = ""
    topics: Mapping[str, Any] = field(default_factory=dict)
    mappings: Mapping[str, Any] = field(default_factory=dict)
    """By static topic which of its queues are led here (`StaticTopics.infos`)."""
    mapping_version: Mapping[str, int] = field(
        default_factory=lambda: {"counter": 0, "stateVersion": 0, "timestamp": 0}
    )
    state_version: int = 0
    """Of two that claim one id, name servers believe the one with the higher version: the term of a group's leader."""
    timeout_ms: int | None = None
    """After how much silence name servers shall forget the broker; None for their own 120 s."""

    def header(self) -> dict[str, str]:
        """The members that every request about a broker carries."""
        return {
            "brokerName": self.name,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }

    def request(self) -> tuple[dict[str, str], bytes]:
        """Header and body of a registration."""
        version = {**self.topics.get("dataVersion", {}), "stateVersion": self.state_version}
        wrapper = {
            "dataVersion": version,
            "mappingDataVersion": self.mapping_version,
            "topicConfigTable": self.topics.get("topicConfigTable", {}),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": self.mappings,
        }
        body = dump({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
        ext = self.header() | {
            "haServerAddr": self.ha_address or self.address,
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }
        if self.timeout_ms is not None:
            ext["heartbeatTimeoutMillis"] = str(self.timeout_ms)
        return ext, body


@dataclass(frozen=True, slots=True)
class Registered:
    """What a name server answered: only slaves are told about their master."""

    master_address: str = ""
    ha_address: str = ""


def parse_addresses(text: str) -> list[str]:
    """The addresses of a ``namesrvAddr``: ``host:port`` joined by semicolons. Raises ConfigError."""
    found = [address.strip() for address in text.split(";") if address.strip()]
    for address in found:
        try:
            split_address(address)
        except RemoteProtocolError:
            raise ConfigError("namesrvAddr", text, "host:port, several joined by semicolons") from None
    return list(dict.fromkeys(found))


class Registrar:
    """Keeps one broker known to some name servers. Made and used on the event loop.

    Args:
        addresses: Of the name servers, ``host:port``.
        identity: What the broker is now; None while it should not be known (a candidate, say).
        on_registered: Told the name server's address and its answer.
        period_s: Time between two registrations when nothing changes.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        identity: Callable[[], Identity | None],
        *,
        on_registered: Callable[[str, Registered], None] = lambda address, answer: None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._identity = identity
        self._on_registered = on_registered
        self._period_s = period_s
        self._changed = {address: asyncio.Event() for address in addresses}
        self._last: dict[str, Identity] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.reached: dict[str, bool] = dict.fromkeys(addresses, False)
        """By name server: whether the last registration was taken."""

    def start(self) -> None:
        """Begin to register."""
        self._tasks = [asyncio.create_task(self._keep(address)) for address in self._changed]

    def changed(self) -> None:
        """Something about the broker is different now: say so soon."""
        for event in self._changed.values():
            event.set()

    async def close(self) -> None:
        """Take the broker away from every name server that can be reached, and stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._leave(address) for address in self._last))

    async def _leave(self, address: str) -> None:
        with contextlib.suppress(PeerUnreachable, RemoteProtocolError):
            async with await RemotingClient.connect(address, timeout_s=GOODBYE_S) as client:
                header = self._last[address].header()
                await client.request(RequestCode.UNREGISTER_BROKER, header, timeout_s=GOODBYE_S)

    async def _keep(self, address: str) -> None:
        failures = 0
        while True:
            try:
                async with await RemotingClient.connect(address) as client:
                    async for _ in self._registrations(address, client):
                        failures = 0
            except (PeerUnreachable, RemoteProtocolError) as error:
                if not failures:
                    _log.warning("not registered with name server %s: %s", address, error)
            except Exception:
                _log.exception("registering with name server %s failed", address)
            self.reached[address] = False
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _registrations(self, address: str, client: RemotingClient) -> Any:
        event = self._changed[address]
        while True:
            event.clear()
            identity = self._identity()
            if identity is not None:
                await self._register(address, client, identity)
                yield identity
            await self._wait(event, client)

    async def _wait(self, event: asyncio.Event, client: RemotingClient) -> None:
        """Until something changed, the period is over, or the name server has gone."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(client.closed())]
        try:
            await asyncio.wait(waits, timeout=self._period_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if client.is_closed:
            raise PeerUnreachable(address=client.address, reason="it closed the connection")
        if event.is_set():
            await asyncio.sleep(CHANGE_DELAY_S)

    async def _register(self, address: str, client: RemotingClient, identity: Identity) -> None:
        ext, body = identity.request()
        self._last[address] = identity
        answer = await client.request(RequestCode.REGISTER_BROKER, ext, body, timeout_s=ANSWER_S)
        if answer[0].code != 0:
            raise RemoteProtocolError(
                f"name server {address} refused broker {identity.name}: "
                f"code {answer[0].code}, {answer[0].remark or 'without a remark'}"
            )
        if not self.reached[address]:
            _log.info("registered with name server %s as %s, id %d", address, identity.name, identity.broker_id)
        self.reached[address] = True
        self._on_registered(address, _registered(answer))


def _registered(answer: Reply) -> Registered:
    ext = json.loads(bytes(answer[0].ext))
    return Registered(str(ext.get("masterAddr") or ""), str(ext.get("haServerAddr") or ""))
