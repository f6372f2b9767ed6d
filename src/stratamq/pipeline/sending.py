"""A small blocking producer for Spark tasks: finds a topic's queues, sends batches, waits for each answer.

One connection a broker, one request at a time: a task's rows stay in order within a queue, and what `send` has returned
for is acknowledged. Never used by a broker.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from stratamq.errors import PeerRefused, PeerUnreachable, PipelineError, RemoteProtocolError
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.bodies import encode_batch
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.connection import RemotingConnection

RECEIVE_BYTES: Final = 65536
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
        self._timeout_s = timeout_s
        self._links: dict[str, tuple[socket.socket, RemotingConnection]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link, _ in self._links.values():
            link.close()

    def queues(self, topic: str) -> list[Target]:
        """The queues of a topic that can be written, in the order of brokers and numbers.

        Raises:
            PeerUnreachable, PeerRefused: The name server is not there, or knows no such topic.
            PipelineError: No queue of the topic can be written.
        """
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        code, remark, body = self._call(self._namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if code != ResponseCode.SUCCESS:
            raise PeerRefused(self._namesrv, f"the route of topic {topic}", code, remark)
        route: Any = fastjson.loads(body)
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
        code, remark, _ = self._call(target.address, RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(messages))
        if code not in _STORED:
            raise PeerRefused(target.address, f"messages for topic {topic}, queue {target.queue_id}", code, remark)

    def _call(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> tuple[int, str, bytes]:
        """Ask once. A connection that failed is dropped, so the next call makes a new one."""
        try:
            link, connection = self._links.get(address) or self._connect(address)
            opaque, frame = connection.request(code, ext, body)
            link.sendall(frame)
            while True:
                chunk = link.recv(RECEIVE_BYTES)
                if not chunk:
                    raise ConnectionError("it closed the connection")
                for header, answer in connection.receive_data(chunk):
                    if header.is_response and header.opaque == opaque:
                        return header.code, header.remark or "", bytes(answer)
                if connection.fault is not None:
                    raise connection.fault
        except (OSError, RemoteProtocolError) as error:
            dropped = self._links.pop(address, None)
            if dropped is not None:
                dropped[0].close()
            if isinstance(error, RemoteProtocolError):
                raise
            raise PeerUnreachable(address, str(error) or type(error).__name__) from error

    def _connect(self, address: str) -> tuple[socket.socket, RemotingConnection]:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise PipelineError(f"{address!r} is no address; it has to be HOST:PORT")
        link = socket.create_connection((host, int(port)), self._timeout_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links[address] = link, RemotingConnection()
        return self._links[address]
