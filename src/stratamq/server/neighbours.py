"""Asking other brokers: where one's master is, say the name servers; a connection to it is kept and shared.

Source: apache/rocketmq remoting/.../rpc/RpcClientImpl.java, ClientMetadata.java.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stratamq.broker.neighbours import Answered, NeighbourAnswer
from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.nameserver.routes import MASTER_ID, RouteTable
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.headers import text_fields
from stratamq.server.remoting_client import RemotingClient

_log = logging.getLogger(__name__)
ASKED_MAX: Final = 1_000
"""How many requests may be under way; further ones are answered SYSTEM_BUSY."""


class BrokerNeighbours:
    """`stratamq.broker.neighbours.Neighbours` over sockets. Made and used on the event loop.

    Args:
        routes: Of the name server in this process.
        namesrv: Addresses of name servers elsewhere; asked in turn for a broker that ``routes`` does not name.
        timeout_ms: How long one request may take.
    """

    def __init__(self, routes: RouteTable, namesrv: Sequence[str], timeout_ms: Callable[[], int]) -> None:
        self._routes = routes
        self._namesrv = tuple(namesrv)
        self._timeout_ms = timeout_ms
        self._found: dict[str, str] = {}
        self._connecting: dict[str, asyncio.Task[RemotingClient]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, broker_name: str, code: int, ext: Mapping[str, str], answered: Answered) -> None:
        """Send a request to a broker's master; ``answered`` is called once, also when it cannot be reached."""
        if len(self._tasks) >= ASKED_MAX:
            answered(NeighbourAnswer(ResponseCode.SYSTEM_BUSY, "too many requests to other brokers wait", {}, b""))
            return
        task = asyncio.create_task(self._ask(broker_name, code, ext, answered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is under way, unanswered, and end the connections."""
        tasks = [*self._tasks, *self._connecting.values()]
        for task in self._tasks:
            task.cancel()
        for client in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(client, RemotingClient):
                await client.close()

    async def _ask(self, broker_name: str, code: int, ext: Mapping[str, str], answered: Answered) -> None:
        try:
            async with asyncio.timeout(self._timeout_ms() / 1000):
                header, body = await (await self._client(broker_name)).request(code, ext)
            answer = NeighbourAnswer(header.code, header.remark, text_fields(header), body)
        except TimeoutError:
            answer = self._failure(broker_name, f"no answer within {self._timeout_ms()} ms")
        except (PeerUnreachable, RemoteProtocolError, ValueError) as error:
            answer = self._failure(broker_name, str(error))
        try:
            answered(answer)
        except Exception:
            _log.exception("the answer of broker %s could not be handed on", broker_name)

    def _failure(self, broker_name: str, reason: str) -> NeighbourAnswer:
        self._found.pop(broker_name, None)  # it may live elsewhere now
        remark = f"broker {broker_name} could not be asked: {reason}"
        return NeighbourAnswer(ResponseCode.SYSTEM_ERROR, remark, {}, b"")

    async def _client(self, broker_name: str) -> RemotingClient:
        address = self._found.get(broker_name)
        if address is None:
            address = self._found[broker_name] = await self._address(broker_name)
        task = self._connecting.get(address)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().is_closed)):
            task = self._connecting[address] = asyncio.create_task(RemotingClient.connect(address))
        return await asyncio.shield(task)

    async def _address(self, broker_name: str) -> str:
        """Where a broker's master is. Raises PeerUnreachable, RemoteProtocolError."""
        data = self._routes.broker(broker_name)
        if data is not None and MASTER_ID in data.addresses:
            return data.addresses[MASTER_ID]
        for namesrv in self._namesrv:
            with contextlib.suppress(PeerUnreachable, RemoteProtocolError):
                async with await RemotingClient.connect(namesrv) as client:
                    _, body = await client.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                address = _master_in(fastjson.loads(body), broker_name)
                if address:
                    return address
        raise PeerUnreachable(broker_name, "no name server knows its master")


def _master_in(cluster: object, broker_name: str) -> str:
    """The address of a broker's master in the answer to GET_BROKER_CLUSTER_INFO; empty when it is not there."""
    found: object = cluster
    for name in ("brokerAddrTable", broker_name, "brokerAddrs", str(MASTER_ID)):
        if not isinstance(found, dict):
            return ""
        found = found.get(name)
    return found if isinstance(found, str) else ""
