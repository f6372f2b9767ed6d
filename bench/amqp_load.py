"""AMQP load for benchmarks: publishers with windows on several connections, consumers, both at once.

Frames are encoded before the clock runs. What comes back has fixed sizes - an ack is 21 bytes, and all deliveries of a
queue whose bodies are equally long are too - so it is counted, hardly parsed, and the generator stays the fast side.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence

from bench.rabbitmq import AmqpConnection

_RECEIVE_BYTES = 1 << 18
_ACK = struct.Struct(">7sIQBB")
_ACK_FRAME = struct.Struct(">BHIHHQBB")
_BASIC_ACK = 60 << 16 | 80


class Publisher:
    """One connection that publishes the same frames round and round, some of them unconfirmed."""

    def __init__(self, port: int, frames: Sequence[bytes], count: int, window: int) -> None:
        self.connection = AmqpConnection(port)
        self.connection.confirms()
        self._frames = list(frames)
        self._count, self._window = count, window
        self._sent = self._up_to = 0
        self._single: set[int] = set()
        self._rest = b""

    @property
    def confirmed(self) -> int:
        """How many are confirmed."""
        return self._up_to + len(self._single)

    @property
    def is_done(self) -> bool:
        """Whether all are."""
        return self.confirmed >= self._count

    def fill(self) -> None:
        """Publish up to the window."""
        room = min(self._window - (self._sent - self.confirmed), self._count - self._sent)
        if room <= 0:
            return
        frames, at = self._frames, self._sent % len(self._frames)
        data = frames[0] * room if len(frames) == 1 else b"".join((frames * (room // len(frames) + 2))[at : at + room])
        self.connection.socket.sendall(data)
        self._sent += room

    def take(self) -> None:
        """Read acks."""
        data = self._rest + self.connection.socket.recv(_RECEIVE_BYTES)
        whole = len(data) - len(data) % _ACK.size
        self._rest = data[whole:]
        for _, kind, tag, multiple, _ in _ACK.iter_unpack(data[:whole]):
            if kind != _BASIC_ACK:
                raise ConnectionError(f"not an ack: {data[:64]!r}")
            if multiple:
                self._up_to = max(self._up_to, tag)
                self._single = {one for one in self._single if one > self._up_to}
            else:
                self._single.add(tag)


class Consumer:
    """One connection that consumes messages of one size and acknowledges."""

    def __init__(self, port: int, queue: str, count: int, ack_every: int, prefetch: int = 1000) -> None:
        self.connection = AmqpConnection(port)
        self._count, self._ack_every = count, ack_every
        self.seen = self._acked = 0
        self._size = 0
        self.connection.consume(queue, prefetch)
        early, self.connection._early = self.connection._early, []  # what came right behind the answer
        self._rest = b"".join(_frame_again(*frame) for frame in early) + self.connection._buffer

    @property
    def is_done(self) -> bool:
        """Whether all have come."""
        return self.seen >= self._count

    def take(self, *, wait: bool = True) -> None:
        """Read deliveries and acknowledge them."""
        if wait:
            self._rest += self.connection.socket.recv(_RECEIVE_BYTES)
        data = self._rest
        if not self._size:
            self._size = delivery_bytes(data)
            if not self._size:
                return
        new, rest = divmod(len(data), self._size)
        self._rest = data[len(data) - rest :] if rest else b""
        self.seen += new
        frames = []
        while self._acked + self._ack_every <= self.seen or (self.is_done and self._acked < self.seen):
            self._acked = min(self._acked + self._ack_every, self.seen)
            frames.append(_ACK_FRAME.pack(1, 1, 13, 60, 80, self._acked, 1, 0xCE))
        if frames:
            self.connection.socket.sendall(b"".join(frames))


def _frame_again(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def delivery_bytes(data: bytes) -> int:
    """Bytes of the delivery in front of ``data``: method, header and body frame; 0 while it is not whole."""
    at = 0
    for _ in range(3):
        if len(data) - at < 8:
            return 0
        at += 8 + int.from_bytes(data[at + 3 : at + 7], "big")
    return at if at <= len(data) else 0


def publish(
    port: int, keys: Sequence[str], body: bytes, count: int, *, exchange: str = "", window: int = 512, streams: int = 1
) -> float:
    """Confirmed messages a second, over so many connections with that window each."""
    connection = AmqpConnection(port)
    frames = [connection.publish_frames(key, body, exchange) for key in keys]
    connection.close()
    publishers = [Publisher(port, frames, count // streams, window) for _ in range(streams)]
    by_socket = {one.connection.socket: one for one in publishers}
    try:
        started = time.perf_counter()
        for one in publishers:
            one.fill()
        while by_socket:
            ready = list(by_socket) if streams == 1 else select.select(list(by_socket), [], [], 600)[0]
            for sock in ready:
                one = by_socket[sock]
                one.take()
                one.fill()
                if one.is_done:
                    del by_socket[sock]
        return count // streams * streams / (time.perf_counter() - started)
    finally:
        for one in publishers:
            one.connection.close()


def consume(port: int, queue: str, count: int, ack_every: int) -> float:
    """Messages a second out of a queue that was filled before."""
    started = time.perf_counter()
    consumer = Consumer(port, queue, count, ack_every)
    try:
        consumer.take(wait=False)
        while not consumer.is_done:
            consumer.take()
        return count / (time.perf_counter() - started)
    finally:
        consumer.connection.close()


def publish_and_consume(port: int, queue: str, body: bytes, count: int, *, window: int = 512) -> float:
    """Messages a second that are published, confirmed, delivered and acknowledged, all at the same time."""
    consumer = Consumer(port, queue, count, 50)
    publisher = Publisher(port, [consumer.connection.publish_frames(queue, body)], count, window)
    sockets = [publisher.connection.socket, consumer.connection.socket]
    try:
        started = time.perf_counter()
        publisher.fill()
        while not (publisher.is_done and consumer.is_done):
            ready = select.select(sockets, [], [], 600)[0]
            if sockets[0] in ready:
                publisher.take()
                publisher.fill()
            if sockets[1] in ready:
                consumer.take()
        return count / (time.perf_counter() - started)
    finally:
        publisher.connection.close()
        consumer.connection.close()
