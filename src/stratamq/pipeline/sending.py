"""A small blocking producer for Spark tasks: finds a topic's queues, sends batches, waits for each answer.

One connection a broker, one request at a time: a task's rows stay in order within a queue, and what `send` has returned
for is acknowledged. Never used by a broker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from stratamq.errors import PeerRefused, PipelineError, RemoteProtocolError
from stratamq.pipeline.calling import Calls
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.bodies import encode_batch
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode

GROUP: Final = "stratamq-pipeline"
WRITABLE: Final = 2
_STORED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT})


class Target(NamedTuple):
    """A queue that can be written: its broker's address and its number there."""

    address: str
    queue_id: int


class Producer:
    """Sends to the cluster that one name server knows. A context manager; blocks, at most ``timeout_s`` a request."""

    def __init__(self, namesrv: str, *, timeout_s: float = 10.0) -> None:
        self._namesrv = namesrv
        self._calls = Calls(timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.close()

    def queues(self, topic: str) -> list[Target]:
        """The queues of a topic that can be written, in the order of brokers and numbers.

        Raises:
            PeerUnreachable, PeerRefused: The name server is not there, or knows no such topic.
            PipelineError: No queue of the topic can be written.
        """
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        code, remark, _, body = self._calls.call(self._namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if code != ResponseCode.SUCCESS:
            raise PeerRefused(self._namesrv, f"the route of topic {topic}", code, remark)
        route: Any = fastjson.loads(bytes(body))
        try:
            masters = {one["brokerName"]: one["brokerAddrs"].get("0") for one in route["brokerDatas"]}
            found = [
                Target(masters[one["brokerName"]], number)
                for one in sorted(route["queueDatas"], key=lambda one: str(one["brokerName"]))
                if one["perm"] & WRITABLE and masters.get(one["brokerName"])
                for number in range(one["writeQueueNums"])
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise RemoteProtocolError(f"{self._namesrv} sent a route that cannot be read: {error!r}") from error
        if not found:
            raise PipelineError(f"topic {topic} has no queue that can be written")
        return found

    def send(self, topic: str, target: Target, messages: Sequence[tuple[int, bytes, str]]) -> None:
        """Send (flag, body, properties) triples into one queue, as one batch: all of them are stored, or none.

        Raises:
            PeerUnreachable: No answer came; they may be stored all the same.
            PeerRefused: The broker took none of them.
        """
        ext = {
            "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(target.queue_id), "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0", "m": "true",
        }  # fmt: skip
        batch = encode_batch(messages)
        code, remark, _, _ = self._calls.call(target.address, RequestCode.SEND_BATCH_MESSAGE, ext, batch)
        if code not in _STORED:
            raise PeerRefused(target.address, f"messages for topic {topic}, queue {target.queue_id}", code, remark)
