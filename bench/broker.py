"""Sending and consuming over the wire: `stratamq serve` against a RabbitMQ node, in turn, in one run.

Both servers run at the same time on core 0, the load generator on core 1; only one is under load at a time. Messages
are persistent; RabbitMQ answers with publisher confirms. Its classic queue syncs before it confirms, so the row that
compares like with like is the one with sync flush. Queues are new for each measurement and deleted afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import rabbitmq
from bench.memory import serving
from bench.rows import Missing, Row, pairs

BODY_BYTES = 1024
SERVER_CPU = 0
GENERATOR_CPU = 1
COUNT = int(os.environ.get("STRATAMQ_BENCH_MESSAGES", "100000"))
_numbers = itertools.count()
Load = Callable[[], float]


def run(rounds: int) -> list[Row | Missing]:
    """All rows of this suite."""
    if rabbitmq.find_server() is None:
        return [Missing(job="broker", reason="RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)")]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-broker-"))
    try:
        os.sched_setaffinity(0, {GENERATOR_CPU})
        with ExitStack() as stack:
            port, version = stack.enter_context(rabbitmq.running_node(SERVER_CPU))
            peer = f"RabbitMQ {version} classic"
            addresses = {}
            for mode in ("ASYNC_FLUSH", "SYNC_FLUSH"):
                own = folder / mode
                own.mkdir()
                (own / "broker.conf").write_text(f"flushDiskType={mode}\n")
                more = ("--config", str(own / "broker.conf"))
                _, ready = stack.enter_context(serving(own / "data", own, *more, cpu=SERVER_CPU))
                addresses[mode] = ready["broker"]
            return _rows(rounds, addresses, port, peer)
    finally:
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        shutil.rmtree(folder, ignore_errors=True)


def _rows(rounds: int, addresses: dict[str, str], port: int, peer: str) -> list[Row | Missing]:
    sync, fast = addresses["SYNC_FLUSH"], addresses["ASYNC_FLUSH"]
    rows: list[Row | Missing] = []
    for job, ours, theirs, target in (
        ("send 1 KB, sync flush, window 512", _send(sync, 1, 512), _publish(port, 512), 4.0),
        ("send 1 KB, sync flush, 8 connections x 64", _send(sync, 8, 64), _publish(port, 512), 4.0),
        ("send 1 KB, async flush, window 512", _send(fast, 1, 512), _publish(port, 512), None),
        ("send 1 KB, one at a time, sync flush", _send(sync, 1, 1, 4000), _publish(port, 1, 4000), 1.0),
    ):
        measured = pairs(ours, theirs, rounds=rounds)
        rows.append(Row(job=job, peer=peer, unit="msg/s", ours=measured[0], theirs=measured[1], target=target))
    for ack_every, target in ((1, 3.0), (50, None)):
        measured = pairs(_pull(fast), _consume(port, ack_every), rounds=rounds)
        job = f"pull 1 KB in batches of 32; peer acknowledges every {ack_every}"
        rows.append(Row(job=job, peer=peer, unit="msg/s", ours=measured[0], theirs=measured[1], target=target))
    return rows


def _generator(*arguments: str) -> dict[str, float]:
    """Run the remoting load generator in its own process on its own core."""
    command = ["taskset", "-c", str(GENERATOR_CPU), sys.executable, "-m", "bench.remoting_load", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _send(address: str, connections: int, window: int, count: int = COUNT) -> Load:
    def measure() -> float:
        options = ["--connections", str(connections), "--window", str(window), "--count", str(count)]
        topic = f"bench-{next(_numbers)}"
        return _generator("send", address, *options, "--body", str(BODY_BYTES), "--topic", topic)["per_second"]

    return measure


def _pull(address: str) -> Load:
    topic = f"bench-pull-{next(_numbers)}"
    _generator("send", address, "--count", str(COUNT), "--body", str(BODY_BYTES), "--topic", topic)

    def measure() -> float:
        return _generator("pull", address, "--count", str(COUNT), "--topic", topic)["per_second"]

    return measure


def _publish(port: int, window: int, count: int = COUNT) -> Load:
    body = os.urandom(BODY_BYTES)

    def measure() -> float:
        queue = f"bench-{next(_numbers)}"
        rate = rabbitmq.publish_rate(port, queue=queue, body=body, count=count, window=window)
        _delete(port, queue)
        return rate

    return measure


def _consume(port: int, ack_every: int) -> Load:
    body = os.urandom(BODY_BYTES)

    def measure() -> float:
        queue = f"bench-{next(_numbers)}"
        rabbitmq.publish_rate(port, queue=queue, body=body, count=COUNT, window=512)
        rate = rabbitmq.consume_rate(port, queue=queue, count=COUNT, ack_every=ack_every)
        _delete(port, queue)
        return rate

    return measure


def _delete(port: int, queue: str) -> None:
    connection = rabbitmq.AmqpConnection(port)
    connection.delete(queue)
    connection.close()
