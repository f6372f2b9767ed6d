"""A cluster as its clients see it: which queues a topic has, where they begin and end, and their records.

One broker is read at a time, because queue numbers are its own: the address of a message is topic, queue and offset,
and two brokers of one topic both have a queue 0. So a `Cluster` is one for each broker; `brokers` says which those of a
topic are, and `pipeline.brokers` reads them all. A broker that does not answer is asked again, at the address that the
name server then gives, until ``retry_seconds`` have gone by.

Sources: apache/rocketmq remoting/.../RequestCode.java, PullMessageProcessor.java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from stratamq.errors import PeerRefused, PeerUnreachable, PipelineError, RemoteProtocolError
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.calling import Answer, Calls
from stratamq.pipeline.options import ReadOptions
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode

PAUSE_SECONDS: Final = 0.5
"""Between two tries."""
QUEUES_MAX: Final = 65_536
_READABLE: Final = 4
_HAS_SUBSCRIPTION: Final = 4
LATER: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE}
)
"""Answers of a broker that starts, stops or is flooded: it is asked again."""
MASTER: Final = 0
T = TypeVar("T")


class Route(NamedTuple):
    """Where a topic's queues are: addresses by the broker's number in its group (0: the master), and how many."""

    addresses: Mapping[int, str]
    queues: int


class Cluster:
    """Asks name servers and one broker. A context manager; calls block, and end when patience does.

    With ``trusts_topics`` a topic that no name server knows is waited for as well: it was there when the read was
    planned, and a name server that was started again learns of brokers by and by.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        trusts_topics: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.calls = Calls()
        self.options = options
        self._later = LATER | {ResponseCode.TOPIC_NOT_EXIST} if trusts_topics else LATER
        self._clock = clock
        self._sleep = sleep
        self._routes: dict[str, dict[str, Route]] = {}
        self._chosen: dict[str, Route] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calls.close()

    def topics(self) -> list[str]:
        """All topics that the name servers know, sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = self.patiently(None, lambda: self._ask_name_server(code, {}, "the list of topics"))
        document: Any = fastjson.loads(bytes(answer.body))
        found = document.get("topicList") if isinstance(document, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise RemoteProtocolError("a name server sent a list of topics that cannot be read")
        return sorted(found)

    def has_topic(self, topic: str) -> bool:
        """Whether the broker that is read has a topic to be read. False for one on other brokers alone."""
        try:
            return self.route(topic).queues > 0
        except PeerRefused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return False
            raise

    def route(self, topic: str) -> Route:
        """Where a topic is; kept until something goes wrong there.

        Raises:
            PeerUnreachable, PeerRefused: No name server answers, or none knows the topic.
            PipelineError: The topic is on several brokers, and none was named.
        """
        if topic not in self._chosen:
            self._chosen[topic] = self._choose(topic, self._route_of(topic))
        return self._chosen[topic]

    def brokers(self, topic: str) -> list[str]:
        """The names of all brokers where the topic has queues to be read, sorted; none when nobody knows it.

        Raises PeerUnreachable, PeerRefused: No name server answers.
        """
        try:
            return sorted(name for name, route in self._route_of(topic).items() if route.queues)
        except PeerRefused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            raise

    def ends(self, key: QueueKey) -> tuple[int, int]:
        """Lowest and next offset of a queue, as its master says."""
        ext = {"topic": key.topic, "queueId": str(key.queue_id)}

        def ask() -> tuple[int, int]:
            address = self.address(key.topic, MASTER)
            found = []
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
                answer = self.calls.call(address, code, ext)
                _check(address, answer, f"the ends of topic {key.topic}, queue {key.queue_id}")
                found += answer.numbers("offset")
            return max(0, found[0]), max(0, *found)

        return self.patiently(key.topic, ask)

    def address(self, topic: str, turn: int) -> str:
        """A broker's address: the master's first, then its slaves' in turn. Raises PeerUnreachable without any."""
        addresses = self.route(topic).addresses
        if not addresses or (turn == MASTER and MASTER not in addresses):
            self.forget(topic)
            raise PeerUnreachable(f"the master of topic {topic}", "the name server knows none at the moment")
        numbers = sorted(addresses)
        return addresses[numbers[turn % len(numbers)]]

    def ask_pull(self, address: str, key: QueueKey, offset: int, count: int) -> int:
        """Send a pull for up to ``count`` messages; the number of its answer."""
        ext = {
            "consumerGroup": self.options.group, "topic": key.topic, "queueId": str(key.queue_id),
            "queueOffset": str(offset), "maxMsgNums": str(count), "sysFlag": str(_HAS_SUBSCRIPTION),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        return self.calls.ask(address, RequestCode.PULL_MESSAGE, ext)

    def patiently(self, topic: str | None, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, or ``retry_seconds`` have gone by; then the last error is raised."""
        until = self._clock() + self.options.retry_seconds
        while True:
            try:
                return ask()
            except (PeerUnreachable, PeerRefused) as error:
                if not self.is_passing(error) or self._clock() >= until:
                    raise
            self.forget(topic)
            self._sleep(PAUSE_SECONDS)

    def is_passing(self, error: PeerUnreachable | PeerRefused) -> bool:
        """Whether asking again may help."""
        return isinstance(error, PeerUnreachable) or error.code in self._later

    def forget(self, topic: str | None) -> None:
        """Ask for a topic's route again when it is needed."""
        if topic is not None:
            self._routes.pop(topic, None)
            self._chosen.pop(topic, None)

    def pause(self) -> None:
        """Wait a little before the next try."""
        self._sleep(PAUSE_SECONDS)

    def now(self) -> float:
        """Seconds on the clock that patience is measured by."""
        return self._clock()

    def _ask_name_server(self, code: int, ext: Mapping[str, str], what: str) -> Answer:
        servers = self.options.namesrv
        for number, address in enumerate(servers):
            try:
                answer = self.calls.call(address, code, ext)
                _check(address, answer, what)
                return answer
            except (PeerUnreachable, PeerRefused):
                if number + 1 == len(servers):
                    raise
        raise PipelineError("there is no name server to ask")

    def _route_of(self, topic: str) -> dict[str, Route]:
        """Where a topic is on each broker, by name."""
        if topic not in self._routes:
            ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            answer = self.patiently(None, lambda: self._ask_name_server(code, ext, f"the route of topic {topic}"))
            self._routes[topic] = _routes(topic, fastjson.loads(bytes(answer.body)))
        return self._routes[topic]

    def _choose(self, topic: str, routes: Mapping[str, Route]) -> Route:
        """The route over the broker that was named, or the only one."""
        named = self.options.broker
        if named is None and len(routes) > 1:
            raise PipelineError(
                f"topic {topic} is on the brokers {', '.join(sorted(routes))}, each with queues from 0 on: name one "
                "with the option broker, and read the others in turn"
            )
        return routes.get(named if named is not None else next(iter(routes), ""), Route({}, 0))


def _routes(topic: str, document: Any) -> dict[str, Route]:
    """What a name server says of a topic, by broker. Raises RemoteProtocolError."""
    try:
        addresses = {
            str(one["brokerName"]): {int(number): str(address) for number, address in one["brokerAddrs"].items()}
            for one in document["brokerDatas"]
        }
        queues = {
            str(one["brokerName"]): int(one["readQueueNums"]) if int(one["perm"]) & _READABLE else 0
            for one in document["queueDatas"]
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RemoteProtocolError(f"a name server sent a route that cannot be read: {error!r}") from error
    for count in queues.values():
        if not 0 <= count <= QUEUES_MAX:
            raise RemoteProtocolError(f"a name server says that topic {topic} has {count} queues")
    return {name: Route(addresses.get(name, {}), count) for name, count in queues.items()}


def _check(address: str, answer: Answer, what: str) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise PeerRefused(address, what, answer.code, answer.remark)


def queue_keys(cluster: Cluster, topics: Sequence[str]) -> list[QueueKey]:
    """The queues of topics on the broker that is read, sorted; none of topics that it does not have."""
    there = [topic for topic in topics if cluster.has_topic(topic)]
    return sorted(QueueKey(topic, number) for topic in there for number in range(cluster.route(topic).queues))
