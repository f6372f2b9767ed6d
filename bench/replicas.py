"""What a majority's answer costs: a group of three brokers against one broker, and against a RabbitMQ quorum queue.

All processes run on this machine, over its disk, and share its cores with the load generator: three members do three
times the work of one broker, so on few cores the first row says more about the machine than about the protocol. The
RabbitMQ node is alone (its quorum queue has one member), which makes the second row's peer the cheaper of the two.

Bytes written are what the kernel says that each member has caused (``write_bytes`` in ``/proc/PID/io``), from before
the first send until all logs are equal after the last, over the bytes of the messages' bodies.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import rabbitmq
from bench.memory import serving
from bench.rows import Missing, Row, pairs
from tests.interop.replica_group import ReplicaGroup, wait_for

BODY_BYTES = 1024
WINDOW = 512
COUNT = min(30_000, int(os.environ.get("STRATAMQ_BENCH_MESSAGES", "30000")))
WRITTEN_MAX = 1.3
"""Target: bytes written to each disk for a byte sent."""
QUORUM = b"\x0cx-queue-typeS\0\0\0\x06quorum"
JOB = "send 1 KB, window 512, on the disks of two of three"
_numbers = itertools.count()


def run(rounds: int) -> list[Row | Missing]:
    """All rows of this suite."""
    rows: list[Row | Missing] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratamq-bench-replicas-")))
        group = stack.enter_context(ReplicaGroup(folder, shares_port=True))
        group.leader()
        address = f"127.0.0.1:{group.broker_ports['n1']}"
        _wait_until_open(address)
        single = folder / "single"
        single.mkdir()
        (single / "broker.conf").write_text("flushDiskType=SYNC_FLUSH\n")
        more = ("--config", str(single / "broker.conf"))
        _, ready = stack.enter_context(serving(single / "data", single, *more))
        written: list[float] = []

        def replicated() -> float:
            before = [_written_bytes(group.processes[name].pid) for name in group.names]
            rate = _send(address)
            group.wait_equal()
            after = [_written_bytes(group.processes[name].pid) for name in group.names]
            written.append(max(b - a for a, b in zip(before, after, strict=True)) / (COUNT * BODY_BYTES))
            return rate

        ours, theirs = pairs(replicated, lambda: _send(ready["broker"]), rounds=rounds)
        amount = statistics.median(written)
        note = f"{amount:.2f} bytes written a byte sent, by the member that wrote most; target {WRITTEN_MAX:g}"
        extra = {"written_per_byte": amount}
        rows.append(
            Row(job=JOB, peer="one broker, sync flush", unit="msg/s", ours=ours, theirs=theirs, note=note, extra=extra)
        )
        rows.append(_against_rabbitmq(stack, replicated, rounds))
    return rows


def _against_rabbitmq(stack: ExitStack, replicated: Callable[[], float], rounds: int) -> Row | Missing:
    if rabbitmq.find_server() is None:
        return Missing(job=JOB, reason="RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)")
    port, version = stack.enter_context(rabbitmq.running_node())
    body = os.urandom(BODY_BYTES)

    def publish() -> float:
        queue = f"bench-{next(_numbers)}"
        return rabbitmq.publish_rate(port, queue=queue, body=body, count=COUNT, window=WINDOW, arguments=QUORUM)

    ours, theirs = pairs(replicated, publish, rounds=rounds)
    peer = f"RabbitMQ {version} quorum queue, one node"
    return Row(job=JOB, peer=peer, unit="msg/s", ours=ours, theirs=theirs)


def _send(address: str) -> float:
    """Messages a second, by a load generator in a process of its own."""
    command = [sys.executable, "-m", "bench.remoting_load", "send", address, "--window", str(WINDOW)]
    command += ["--count", str(COUNT), "--body", str(BODY_BYTES), "--topic", f"bench-{next(_numbers)}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["per_second"])


def _written_bytes(pid: int) -> int:
    """How many bytes a process has caused to be written to disks."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    raise LookupError(pid)


def _wait_until_open(address: str) -> None:
    host, _, port = address.rpartition(":")

    def answers() -> bool:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return True

    wait_for(answers, f"somebody listens on {address}")
