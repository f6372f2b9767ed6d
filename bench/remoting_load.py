"""A load generator for the remoting port: pre-encoded frames, windowed pipelined connections, almost no parsing.

Meant to run in a process of its own, so that it does not share an interpreter with what it measures::

    python -m bench.remoting_load send 127.0.0.1:10911 --connections 1 --window 512 --count 200000 --body 1024
    python -m bench.remoting_load pull 127.0.0.1:10911 --count 200000
    python -m bench.remoting_load latency 127.0.0.1:10911 --connections 8 --seconds 10

Prints one JSON object. Answers are counted by searching for what every answer begins with, which costs the generator
about 0.1 us each; all send frames of a run have one length, so the next ones to send are a slice of one block.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import struct
import time
from dataclasses import asdict, dataclass

from stratamq.protocols.remoting.command import encode_frame

QUEUES = 4
ANSWER = b'{"code":'
GOOD_ANSWER = b'{"code":0,'
RECEIVE_BYTES = 1 << 20
FRAME = struct.Struct(">II")
NEXT_OFFSET = re.compile(rb'"nextBeginOffset":"(\d+)"')


@dataclass(frozen=True)
class Load:
    """What one run did: messages, wall time, this process's CPU time; per message in microseconds."""

    messages: int
    seconds: float
    generator_cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


def send_frame(topic: str, queue_id: int, body: bytes, unique_key: str) -> bytes:
    """One SEND_MESSAGE_V2 as a Java producer writes it."""
    properties = f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01order-{unique_key[-8:]}\x02"
    ext = {
        "a": "bench-producer",
        "b": topic,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(queue_id),
        "f": "0",
        "g": "1767225600000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "l": "0",
        "m": "false",
        "n": "broker-a",
    }
    return encode_frame(code=310, opaque=1, ext=ext, body=body, language="JAVA", version=475)


def send_block(topic: str, body_bytes: int, frames: int) -> tuple[bytes, int]:
    """A block of frames that go round the queues, and the length of each."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    made = [
        send_frame(topic, number % QUEUES, body[:body_bytes], f"7F0000010001{number:020X}") for number in range(frames)
    ]
    assert len({len(frame) for frame in made}) == 1
    return b"".join(made), len(made[0])


class _Sender:
    """One connection with a window of unanswered sends."""

    def __init__(self, sock: socket.socket, block: bytes, frame_bytes: int, window: int, count: int) -> None:
        self.sock = sock
        self._block = memoryview(block * 2)
        self._frame_bytes = frame_bytes
        self._window = window
        self.left_to_send = count
        self.unanswered = 0
        self._pending: memoryview = memoryview(b"")
        self._tail = b""
        self._sent = 0

    def top_up(self) -> None:
        """Send as many frames as the window allows."""
        while True:
            if not self._pending:
                room = min(self._window - self.unanswered, self.left_to_send)
                if room <= 0:
                    return
                start = (self._sent % self._window) * self._frame_bytes
                self._pending = self._block[start : start + room * self._frame_bytes]
                self.left_to_send -= room
                self.unanswered += room
                self._sent += room
            try:
                sent = self.sock.send(self._pending)
            except BlockingIOError:
                return
            self._pending = self._pending[sent:]

    @property
    def wants_to_write(self) -> bool:
        """Whether the socket took less than was to be sent."""
        return bool(self._pending)

    def read(self) -> int:
        """Count what was answered. Raises ValueError on an answer that is no success."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ValueError("the broker closed the connection")
        text = self._tail + data
        answers = text.count(ANSWER)
        if text.count(GOOD_ANSWER) != answers and ANSWER + text[-1:] != text[-len(ANSWER) - 1 :]:
            bad = re.search(rb'{"code":[^0][^}]*', text)
            if bad:
                raise ValueError(f"an answer is no success: {bad[0]!r}")
        cut = len(GOOD_ANSWER) - 1
        tail = text[-cut:]
        at = tail.find(ANSWER)
        if at >= 0:
            answers -= 1
        self._tail = tail
        if at < 0:
            self._tail = tail[1 - len(ANSWER) :]
        self.unanswered -= answers
        return answers


def run_send(
    host: str, port: int, connections: int, window: int, count: int, body: int, *, topic: str = "bench"
) -> Load:
    """Send ``count`` messages of ``body`` bytes in all, ``window`` of them unanswered on each connection."""
    block, frame_bytes = send_block(topic, body, window)
    share = count // connections
    with socket.create_connection((host, port)) as sock:
        first, _ = send_block(topic, body, 1)
        sock.sendall(first)
        sock.recv(65536)
    selector = selectors.DefaultSelector()
    senders = []
    for _ in range(connections):
        sock = socket.create_connection((host, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        senders.append(_Sender(sock, block, frame_bytes, window, share))
    started, cpu = time.perf_counter(), time.process_time()
    for sender in senders:
        sender.top_up()
        selector.register(sender.sock, _events(sender), sender)
    open_senders = len(senders)
    while open_senders:
        for key, events in selector.select():
            sender = key.data
            if events & selectors.EVENT_READ:
                sender.read()
            sender.top_up()
            if not sender.unanswered and not sender.left_to_send:
                selector.unregister(sender.sock)
                open_senders -= 1
            elif key.events != _events(sender):
                selector.modify(sender.sock, _events(sender), sender)
    done = Load(share * connections, time.perf_counter() - started, time.process_time() - cpu)
    for sender in senders:
        sender.sock.close()
    selector.close()
    return done


def _events(sender: _Sender) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.wants_to_write else 0)


def run_latency(
    host: str, port: int, connections: int, seconds: float, body: int, *, topic: str = "bench"
) -> list[tuple[float, float]]:
    """Send one message at a time on each connection; return when each was sent and how long it took.

    Both in seconds; the first by `time.monotonic`, which all processes of a machine share. The list is in the order of
    answers.
    """
    block, frame_bytes = send_block(topic, body, QUEUES)
    selector = selectors.DefaultSelector()
    sent_at: dict[socket.socket, float] = {}
    for number in range(connections):
        sock = socket.create_connection((host, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ, number % QUEUES * frame_bytes)
    end = time.monotonic() + seconds
    for key in list(selector.get_map().values()):
        sock = key.fileobj  # type: ignore[assignment]
        sent_at[sock] = time.monotonic()
        sock.sendall(block[key.data : key.data + frame_bytes])
    found: list[tuple[float, float]] = []
    while sent_at:
        for key, _ in selector.select(end - time.monotonic() + 30):
            sock = key.fileobj  # type: ignore[assignment]
            answer = sock.recv(65536)
            now = time.monotonic()
            if GOOD_ANSWER not in answer:
                raise ValueError(f"an answer is no success: {answer[:300]!r}")
            found.append((sent_at[sock], now - sent_at[sock]))
            if now > end:
                selector.unregister(sock)
                sock.close()
                del sent_at[sock]
                continue
            sent_at[sock] = now
            sock.sendall(block[key.data : key.data + frame_bytes])
    selector.close()
    return found


def pull_frame(topic: str, queue_id: int, offset: int, batch: int) -> bytes:
    """One PULL_MESSAGE with its subscription, as consumers send it."""
    ext = {
        "consumerGroup": "bench-consumer",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(batch),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return encode_frame(code=11, opaque=1, ext=ext, language="JAVA", version=475)


class _Puller:
    """One connection that reads one queue from its start."""

    def __init__(self, sock: socket.socket, topic: str, queue_id: int, batch: int) -> None:
        self.sock = sock
        self._topic, self._queue_id, self._batch = topic, queue_id, batch
        self.offset = 0
        self._have = 0
        self._head = b""
        self._need = 0
        self.pulls = 0

    def ask(self) -> None:
        """Send the next pull."""
        self._have, self._head, self._need = 0, b"", 0
        self.pulls += 1
        self.sock.sendall(pull_frame(self._topic, self._queue_id, self.offset, self._batch))

    def read(self) -> bool:
        """Take what came; True when the answer is whole and brought messages, else False at the queue's end."""
        while True:
            data = self.sock.recv(RECEIVE_BYTES)
            if not data:
                raise ValueError("the broker closed the connection")
            if len(self._head) < 1024:
                self._head += data[: 1024 - len(self._head)]
            self._have += len(data)
            if not self._need and self._have >= 8:
                self._need = 4 + FRAME.unpack_from(self._head)[0]
            if self._need and self._have >= self._need:
                break
        found = NEXT_OFFSET.search(self._head)
        if found is None:
            raise ValueError(f"not an answer to a pull: {self._head[:300]!r}")
        before, self.offset = self.offset, int(found[1])
        return self.offset > before


def run_pull(host: str, port: int, count: int, *, topic: str = "bench", batch: int = 32, queues: int = QUEUES) -> Load:
    """Read up to ``count`` messages, one connection a queue, one pull at a time on each."""
    selector = selectors.DefaultSelector()
    pullers = []
    for queue_id in range(queues):
        sock = socket.create_connection((host, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pullers.append(_Puller(sock, topic, queue_id, batch))
    started, cpu = time.perf_counter(), time.process_time()
    for puller in pullers:
        puller.ask()
        selector.register(puller.sock, selectors.EVENT_READ, puller)
    reading = len(pullers)
    while reading:
        for key, _ in selector.select():
            puller = key.data
            if puller.read() and sum(one.offset for one in pullers) < count:
                puller.ask()
            else:
                selector.unregister(puller.sock)
                reading -= 1
    done = Load(sum(one.offset for one in pullers), time.perf_counter() - started, time.process_time() - cpu)
    for puller in pullers:
        puller.sock.close()
    selector.close()
    return done


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("send", "pull", "latency"))
    parser.add_argument("address", help="host:port of the broker")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the job latency")
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    if options.job == "latency":
        connections, seconds = options.connections, options.seconds
        print(json.dumps(run_latency(host, int(port), connections, seconds, options.body, topic=options.topic)))
        return
    if options.job == "send":
        load = run_send(
            host, int(port), options.connections, options.window, options.count, options.body, topic=options.topic
        )
    else:
        load = run_pull(host, int(port), options.count, topic=options.topic, batch=options.batch)
    print(json.dumps(asdict(load) | {"per_second": load.per_second}))


if __name__ == "__main__":
    main()
