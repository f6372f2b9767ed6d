"""The readable queues of a topic on every broker that has it, for a broker that shares them out.

Name servers elsewhere are asked, each question of many waiting requests once, and what they said counts for
`KEPT_MS`. Where none answers, what was said before counts: what this broker knows of itself would take the queues of
all others away from its clients. Without name servers elsewhere the one in this process knows.

Source: apache/rocketmq broker/.../TopicRouteInfoManager.java.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from stratamq.broker.assignments import Queue, Told
from stratamq.broker.topics import PERM_READ
from stratamq.clock import Clock
from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.nameserver.routes import RouteTable
from stratamq.protocols.remoting.bodies import load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.server.remoting_client import RemotingClient

KEPT_MS: Final = 30_000
"""RocketMQ asks as often (``loadBalancePollNameServerInterval``)."""
TOPICS_KEPT_MAX: Final = 10_000
TOPICS_ASKED_MAX: Final = 64
"""So many topics are asked for at a time; who wants another is told what was said before."""
ANSWER_S: Final = 3.0
QUEUES_MAX: Final = 65_536
"""A route with more is refused."""


class TopicQueues:
    """`broker.assignments.FindQueues` of a server. Used on its event loop."""

    def __init__(self, addresses: Sequence[str], routes: RouteTable, clock: Clock) -> None:
        self._addresses = addresses
        self._routes = routes
        self._clock = clock
        self._known: dict[str, tuple[int, Sequence[Queue]]] = {}
        self._waiting: dict[str, list[Told]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, topic: str, told: Told) -> None:
        """Call ``told`` with the queues, None when nobody knows the topic: at once, or within `ANSWER_S` a server."""
        if not self._addresses:
            told(self._here(topic))
            return
        known = self._known.get(topic)
        is_fresh = known is not None and self._clock.monotonic_ms() - known[0] < KEPT_MS
        if is_fresh or (topic not in self._waiting and len(self._waiting) >= TOPICS_ASKED_MAX):
            told(self._before(topic))
            return
        waiting = self._waiting.setdefault(topic, [])
        waiting.append(told)
        if len(waiting) == 1:
            task = asyncio.get_running_loop().create_task(self._ask(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask no more; who waits is told what was said before."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for topic in list(self._waiting):  # whose task was not begun
            self._tell(topic, self._before(topic))

    def _before(self, topic: str) -> Sequence[Queue] | None:
        """What was said last; None when nothing was."""
        known = self._known.get(topic)
        return None if known is None else known[1]

    def _here(self, topic: str) -> Sequence[Queue] | None:
        route = self._routes.route(topic)
        if route is None:
            return None
        readable = [(name, data.read_queues) for name, data in route.queues.items() if data.perm & PERM_READ]
        return [(name, number) for name, count in readable for number in range(count)]

    async def _ask(self, topic: str) -> None:
        queues = self._before(topic)
        try:
            for address in self._addresses:
                with contextlib.suppress(PeerUnreachable, RemoteProtocolError):
                    queues = await ask_name_server(address, topic)
                    self._keep(topic, queues)
                    break
        finally:
            self._tell(topic, queues)

    def _tell(self, topic: str, queues: Sequence[Queue] | None) -> None:
        for told in self._waiting.pop(topic):
            told(queues)

    def _keep(self, topic: str, queues: Sequence[Queue] | None) -> None:
        """Remember an answer, unless a topic may be made at any moment: then it is asked for again."""
        self._known.pop(topic, None)
        if queues and len(self._known) < TOPICS_KEPT_MAX:
            self._known[topic] = (self._clock.monotonic_ms(), queues)


async def ask_name_server(address: str, topic: str) -> Sequence[Queue] | None:
    """The readable queues of a topic as a name server knows them; None when it does not know the topic.

    Raises PeerUnreachable, RemoteProtocolError.
    """
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    async with await RemotingClient.connect(address, timeout_s=ANSWER_S) as client:
        header, body = await client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, timeout_s=ANSWER_S)
    if header.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if header.code != ResponseCode.SUCCESS:
        raise PeerUnreachable(address, f"it answers the question for a route with code {header.code}")
    return readable_queues(load_object(memoryview(body)).get("queueDatas"))


def readable_queues(rows: Any) -> list[Queue]:
    """The readable queues of a route's ``queueDatas``. Raises RemoteProtocolError."""
    found: list[Queue] = []
    for row in rows if isinstance(rows, list) else ():
        fields = row if isinstance(row, dict) else {}
        name, count, perm = (fields.get(key) for key in ("brokerName", "readQueueNums", "perm"))
        if not isinstance(name, str) or type(count) is not int or type(perm) is not int:
            raise RemoteProtocolError(f"a route has queues {row!r}; brokerName, readQueueNums and perm are needed")
        if len(found) + count > QUEUES_MAX:
            raise RemoteProtocolError(f"a route has more than {QUEUES_MAX} queues")
        if perm & PERM_READ:
            found += [(name, number) for number in range(count)]
    return found
