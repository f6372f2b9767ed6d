"""RabbitMQ as a peer: a private node started from Debian's package, and an AMQP load generator of our own.

The node keeps everything in a temporary folder, listens on loopback only, and is gone afterwards. The generator
sends pre-encoded frames in windows over plain sockets and only counts what comes back, so it is never the slow side.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.interop.ports import free_ports

SERVER_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server")
_START_SECONDS = 600
_RECEIVE_BYTES = 1 << 18


def find_server() -> str | None:
    """The server's start script, None where RabbitMQ is not installed."""
    for pattern in SERVER_SCRIPTS:
        for path in sorted(Path("/").glob(pattern.lstrip("/"))):
            return str(path)
    return None


class RabbitNode:
    """A node in a folder of its own, on a port that stays the same over restarts. ``cpu`` pins it to one core."""

    def __init__(self, cpu: int | None = None) -> None:
        script = find_server()
        if script is None:
            raise FileNotFoundError("RabbitMQ is not installed")
        self.folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-rabbit-"))
        self.port, dist_port = free_ports(2)
        self.version = ""
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.console = false\n")
        self._environment = os.environ | {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(dist_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1" if cpu is not None else "",
        }
        self._command = [script] if cpu is None else ["taskset", "-c", str(cpu), script]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; returns the seconds until clients can log in."""
        started = time.monotonic()
        with (self.folder / "out").open("wb") as out:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=out, stderr=out, start_new_session=True
            )
        self.version = _wait_until_up(self.port, self._process, self.folder)
        return time.monotonic() - started

    def stop(self, *, kill: bool = False) -> None:
        """Stop it in order, or kill it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9 if kill else 15)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()

    def memory_mib(self) -> float:
        """Resident anonymous memory of all its processes."""
        total = 0
        for pid in self._processes():
            with contextlib.suppress(OSError):
                found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
                total += int(found.group(1)) if found else 0
        return total / 1024

    def cpu_s(self) -> float:
        """CPU time that its processes have used."""
        return sum(map(cpu_seconds, self._processes()))

    def _processes(self) -> list[int]:
        assert self._process is not None
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(path.name)) == self._process.pid:
                    found.append(int(path.name))
        return found


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def installed_node(cpu: int | None = None) -> Iterator[RabbitNode]:
    """A running node, gone with its folder in the end."""
    node = RabbitNode(cpu)
    try:
        node.start()
        yield node
    finally:
        node.stop()
        shutil.rmtree(node.folder, ignore_errors=True)


@contextlib.contextmanager
def running_node(cpu: int | None = None) -> Iterator[tuple[int, str]]:
    """Start a node; yields (port, version). ``cpu`` pins it to one core."""
    with installed_node(cpu) as node:
        yield node.port, node.version


def _wait_until_up(port: int, process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"RabbitMQ did not start: {(folder / 'out').read_text()[-2000:]}")
        try:
            connection = AmqpConnection(port)
        except OSError:
            time.sleep(0.05)
            continue
        connection.close()
        return connection.server_version
    raise TimeoutError("RabbitMQ did not come up")


def _shortstr(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return _frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


class AmqpConnection:
    """One blocking AMQP 0-9-1 connection with channel 1 open; only what load needs."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._early: list[tuple[int, bytes]] = []
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        start = self._expect(10, 10)
        found = re.search(rb"\x07versionS(.{4})", start, re.DOTALL)
        size = struct.unpack(">I", found.group(1))[0] if found else 0
        self.server_version = start[found.end() : found.end() + size].decode() if found else "?"
        response = b"\0guest\0guest"
        start_ok = struct.pack(">I", 0) + _shortstr("PLAIN") + struct.pack(">I", len(response)) + response
        self.socket.sendall(_method(0, 10, 11, start_ok + _shortstr("en_US")))
        tune = self._expect(10, 30)
        channels, frame_max, _ = struct.unpack(">HIH", tune[4:12])
        self.socket.sendall(_method(0, 10, 31, struct.pack(">HIH", channels, frame_max, 0)))
        self.frame_max = frame_max
        self.socket.sendall(_method(0, 10, 40, _shortstr("/") + _shortstr("") + b"\0"))
        self._expect(10, 41)
        self.socket.sendall(_method(1, 20, 10, _shortstr("")))
        self._expect(20, 11)

    def declare(self, queue: str, arguments: bytes = b"") -> int:
        """A durable queue; returns how many messages are ready in it."""
        body = struct.pack(">H", 0) + _shortstr(queue) + b"\x02" + struct.pack(">I", len(arguments)) + arguments
        self.socket.sendall(_method(1, 50, 10, body))
        count: int = struct.unpack(">I", self._expect(50, 11)[5 + len(queue.encode()) :][:4])[0]
        return count

    def declare_exchange(self, name: str, kind: str) -> None:
        """An exchange that goes with the node."""
        self.socket.sendall(_method(1, 40, 10, struct.pack(">H", 0) + _shortstr(name) + _shortstr(kind) + bytes(5)))
        self._expect(40, 11)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings."""
        self.socket.sendall(_method(1, 40, 20, struct.pack(">H", 0) + _shortstr(name) + b"\0"))
        self._expect(40, 21)

    def bind(self, queue: str, exchange: str, keys: Sequence[str]) -> None:
        """Bind a queue with many keys, without waiting for each."""
        head = struct.pack(">H", 0) + _shortstr(queue) + _shortstr(exchange)
        last = len(keys) - 1
        frames = [
            _method(1, 50, 20, head + _shortstr(key) + (b"\0" if at == last else b"\x01") + struct.pack(">I", 0))
            for at, key in enumerate(keys)
        ]
        self.socket.sendall(b"".join(frames))
        self._expect(50, 21)

    def delete(self, queue: str) -> None:
        """Delete the queue with what is in it."""
        self.socket.sendall(_method(1, 50, 40, struct.pack(">H", 0) + _shortstr(queue) + b"\0"))
        self._expect(50, 41)

    def confirms(self) -> None:
        """Ask for publisher confirms."""
        self.socket.sendall(_method(1, 85, 10, b"\0"))
        self._expect(85, 11)

    def publish_frames(self, queue: str, body: bytes, exchange: str = "") -> bytes:
        """One persistent message to ``queue`` (or a key of an exchange) as the three frames of a publish."""
        method = _method(1, 60, 40, struct.pack(">H", 0) + _shortstr(exchange) + _shortstr(queue) + b"\0")
        header = _frame(2, 1, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2))
        return method + header + (_frame(3, 1, body) if body else b"")

    def consume(self, queue: str, prefetch: int) -> None:
        """Start a consumer that acknowledges, with a prefetch window."""
        self.socket.sendall(_method(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0)))
        self._expect(60, 11)
        arguments = struct.pack(">H", 0) + _shortstr(queue) + _shortstr("bench") + b"\0" + struct.pack(">I", 0)
        self.socket.sendall(_method(1, 60, 20, arguments))
        self._expect(60, 21)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """All complete frames that one receive brings (kind, payload); blocks until there is something."""
        if self._early:
            early, self._early = self._early, []
            yield from early
            return
        while True:
            data = self._buffer
            at, end = 0, len(data)
            while end - at >= 8:
                size = int.from_bytes(data[at + 3 : at + 7], "big")
                if end - at < size + 8:
                    break
                yield data[at], data[at + 7 : at + 7 + size]
                at += size + 8
            self._buffer = data[at:]
            if at:
                return
            more = self.socket.recv(_RECEIVE_BYTES)
            if not more:
                raise ConnectionError("closed by the server")
            self._buffer += more

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    def _expect(self, class_id: int, method_id: int) -> bytes:
        wanted = struct.pack(">HH", class_id, method_id)
        while True:
            pending = list(self.frames())
            for number, (kind, payload) in enumerate(pending):
                if kind == 1 and payload[:4] == wanted:
                    self._early = pending[number + 1 :]
                    return payload
                if kind == 1 and payload[:4] in (b"\0\x0a\0\x32", b"\0\x14\0\x28"):
                    raise ConnectionError(f"refused: {payload[4:]!r}")


def publish_rate(port: int, *, queue: str, body: bytes, count: int, window: int, arguments: bytes = b"") -> float:
    """Publish ``count`` persistent messages with at most ``window`` unconfirmed; confirmed messages a second."""
    connection = AmqpConnection(port)
    try:
        connection.declare(queue, arguments)
        connection.confirms()
        one = connection.publish_frames(queue, body)
        sent = confirmed = all_up_to = 0
        single: set[int] = set()
        started = time.perf_counter()
        while confirmed < count:
            room = min(window - (sent - confirmed), count - sent)
            if room > 0:
                connection.socket.sendall(one * room)
                sent += room
            for kind, payload in connection.frames():
                if kind == 1 and payload[:4] == b"\0\x3c\0\x50":
                    tag = int.from_bytes(payload[4:12], "big")
                    if payload[12] & 1:
                        all_up_to = max(all_up_to, tag)
                        single = {other for other in single if other > all_up_to}
                    else:
                        single.add(tag)
            confirmed = all_up_to + len(single)
        return count / (time.perf_counter() - started)
    finally:
        connection.close()


def consume_rate(port: int, *, queue: str, count: int, ack_every: int) -> float:
    """Consume ``count`` messages that are already there, acknowledging every ``ack_every``; messages a second."""
    connection = AmqpConnection(port)
    try:
        started = time.perf_counter()
        connection.consume(queue, prefetch=1000)
        seen = 0
        while seen < count:
            acks = []
            for kind, payload in connection.frames():
                if kind == 1 and payload[:4] == b"\0\x3c\0\x3c":
                    seen += 1
                    if seen % ack_every == 0 or seen == count:
                        tag_at = 4 + 1 + payload[4]
                        acks.append(_method(1, 60, 80, payload[tag_at : tag_at + 8] + b"\x01"))
            if acks:
                connection.socket.sendall(b"".join(acks))
        return count / (time.perf_counter() - started)
    finally:
        connection.close()
