"""A small blocking AMQP client for load: it pipelines publishes, counts confirms, and hands out deliveries."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import decode_method
from stratamq.protocols.amqp.frames import method_frame
from tests.unit.protocols.amqp import peers

WAIT_S = 120
PUBLISHING = 1
"""The channel that publishes; others consume."""


class Delivery(NamedTuple):
    """One message as it came."""

    channel: int
    tag: int
    redelivered: bool
    body: bytes


class LoadClient:
    """One connection with some channels open, the first one confirming."""

    def __init__(self, port: int, channels: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.published = 0
        """The number of the newest publish, as confirms name it."""
        self.unconfirmed: dict[int, None] = {}
        self.refused: list[int] = []
        """Numbers of publishes that were answered with a nack."""
        self.is_blocked = False
        self._buffer = b""
        self._partial: list[Any] = []
        self._deliveries: list[Delivery] = []
        self.send(peers.handshake())
        opened = [method_frame(number, methods.ChannelOpen()) for number in range(1, channels + 1)]
        self.send(b"".join(opened) + method_frame(PUBLISHING, methods.ConfirmSelect(False)))
        self.wait_for(methods.ConfirmSelectOk)

    def send(self, data: bytes) -> None:
        """Send frames. Raises OSError when the broker is gone."""
        self.socket.sendall(data)

    def call(self, arguments: Any, channel: int = PUBLISHING) -> None:
        """Send a method and wait for its answer."""
        self.send(method_frame(channel, arguments))
        self.wait_for(getattr(methods, type(arguments).__name__ + "Ok"))

    def publish(self, exchange: str, key: str, body: bytes, *, persistent: bool = True) -> bytes:
        """The frames of the next publish, which count as sent."""
        self.published += 1
        self.unconfirmed[self.published] = None
        return peers.publish(PUBLISHING, exchange, key, body, delivery_mode=2 if persistent else 1)

    def wait_for(self, kind: type[Any]) -> None:
        """Read until a method of that kind has come."""
        while not self._read(lambda method: isinstance(method, kind)):
            pass

    def receive(self) -> list[Delivery] | None:
        """Read once and take in what came; the new deliveries, None when the broker is gone. Blocks."""
        try:
            self._read(lambda method: False)
        except ConnectionError:
            return None
        found, self._deliveries = self._deliveries, []
        return found

    def drain(self) -> list[Delivery]:
        """Read to the end of what a broker that is gone had sent."""
        found = []
        while (more := self.receive()) is not None:
            found += more
        return found

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    def _read(self, is_wanted: Callable[[Any], bool]) -> bool:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker is gone")
        wanted = False
        for kind, channel, payload in self._frames(self._buffer + data):
            if kind == 1:
                method = decode_method(payload)
                self._take(channel, method)
                wanted = wanted or is_wanted(method)
            elif kind == 2:
                self._partial += [int.from_bytes(payload[4:12], "big"), b""]
            elif kind == 3:
                self._partial[-1] += payload
            self._finish_delivery()
        return wanted

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        at = 0
        while len(data) - at >= 8:
            end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
            if end > len(data):
                break
            yield data[at], int.from_bytes(data[at + 1 : at + 3], "big"), data[at + 7 : end - 1]
            at = end
        self._buffer = data[at:]

    def _take(self, channel: int, method: Any) -> None:
        if isinstance(method, methods.BasicDeliver):
            self._partial = [channel, method]
        elif isinstance(method, methods.BasicAck | methods.BasicNack):
            tags = [method.delivery_tag]
            if method.multiple:
                tags = [tag for tag in self.unconfirmed if tag <= method.delivery_tag]
            for tag in tags:
                del self.unconfirmed[tag]
            if isinstance(method, methods.BasicNack):
                self.refused += tags
        elif isinstance(method, methods.ConnectionBlocked | methods.ConnectionUnblocked):
            self.is_blocked = isinstance(method, methods.ConnectionBlocked)
        elif isinstance(method, methods.ChannelClose | methods.ConnectionClose):
            raise AssertionError(f"closed by the broker: {method}")

    def _finish_delivery(self) -> None:
        if len(self._partial) == 4 and len(self._partial[3]) == self._partial[2]:
            channel, method, _, body = self._partial
            self._deliveries.append(Delivery(channel, method.delivery_tag, method.redelivered, body))
            self._partial = []
