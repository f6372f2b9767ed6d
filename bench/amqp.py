"""AMQP: `stratamq serve` against RabbitMQ, the same load generator for both, in turn, in one run.

Both servers run at the same time on core 0, the generator on core 1. Messages are persistent and confirmed. RabbitMQ's
classic queues (version 1) and quorum queues sync before they confirm, its classic queues version 2 do not; StrataMQ
always does. Queues are new for each measurement and deleted afterwards. Beside the rates each row says what the job
cost: ``CPU 3 to 1`` means that RabbitMQ used three times our CPU time, filling and deleting of queues included; on a
machine with other work that is the steadier figure.

``STRATAMQ_BENCH_MESSAGES`` (50,000) is how many messages a measurement has; for the rows about backlogs see
`bench.amqp_backlog`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench import amqp_backlog, amqp_load, rabbitmq
from bench.memory import serving
from bench.rows import Missing, Row, pairs

SERVER_CPU = 0
GENERATOR_CPU = 1
COUNT = int(os.environ.get("STRATAMQ_BENCH_MESSAGES", "50000"))
FANNED = 10
_numbers = itertools.count()

_QUEUE_VERSION_2 = b"\x0fx-queue-versionI\0\0\0\x02"
_QUORUM = b"\x0cx-queue-typeS\0\0\0\x06quorum"
KINDS = {"classic v1": b"", "classic v2": _QUEUE_VERSION_2, "quorum": _QUORUM}
"""Arguments of a declare by what it makes in RabbitMQ 3.10."""
TARGETS = {"classic v1": 4.0, "classic v2": None, "quorum": 2.5}

Load = Callable[[int], float]
"""Runs on a port; returns messages a second."""


class Server(NamedTuple):
    """One of the two: its port, and what tells the CPU time that it has used."""

    port: int
    cpu_s: Callable[[], float]


def run(rounds: int) -> list[Row | Missing]:
    """All rows of this suite."""
    if rabbitmq.find_server() is None:
        return [Missing(job="amqp", reason="RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)")]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-amqp-"))
    rows: list[Row | Missing] = []
    try:
        os.sched_setaffinity(0, {GENERATOR_CPU})
        with ExitStack() as stack:
            node = stack.enter_context(rabbitmq.installed_node(SERVER_CPU))
            more = ("--amqp-port", "0")
            pid, ready = stack.enter_context(serving(folder / "data", folder, *more, cpu=SERVER_CPU))
            ours = Server(int(ready["amqp"].rpartition(":")[2]), lambda: rabbitmq.cpu_seconds(pid))
            theirs = Server(node.port, node.cpu_s)
            rows += _publish_rows(rounds, ours, theirs, node.version)
            rows += _other_rows(rounds, ours, theirs, node.version)
        rows += amqp_backlog.run(SERVER_CPU)
    finally:
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def _publish_rows(rounds: int, ours: Server, theirs: Server, version: str) -> list[Row | Missing]:
    """Confirmed publishes into each kind of queue."""
    rows: list[Row | Missing] = []
    for kind in KINDS:
        for body, streams, window in ((128, 1, 512), (1024, 1, 512), (1024, 8, 64)):
            load = _publish(kind, body, COUNT, window=window, streams=streams)
            shape = f"window {window}" if streams == 1 else f"{streams} x window {window}"
            job = f"publish {body} B, confirmed, {shape}"
            rows.append(_row(job, f"RabbitMQ {version} {kind}", load, load, ours, theirs, rounds, TARGETS[kind]))
    load = _publish("classic v1", 1024, 3000, window=1)
    job = "publish 1024 B, confirmed, one at a time"
    rows.append(_row(job, f"RabbitMQ {version} classic v1", load, load, ours, theirs, rounds, 1.0))
    return rows


def _other_rows(rounds: int, ours: Server, theirs: Server, version: str) -> list[Row | Missing]:
    rows: list[Row | Missing] = []
    for kind in ("classic v1", "classic v2"):
        peer = f"RabbitMQ {version} {kind}"
        for every in (1, 50):
            job = f"consume 1024 B, acknowledge {'each' if every == 1 else f'every {every}'}"
            load = _consume(kind, every)
            rows.append(_row(job, peer, load, load, ours, theirs, rounds, 1.5))
        both = _publish_and_consume(kind)
        rows.append(
            _row("publish 1024 B and consume at once, confirms and acks", peer, both, both, ours, theirs, rounds)
        )
    peer = f"RabbitMQ {version} classic v1"
    fan = _fan_out(1024)
    rows.append(_row(f"publish 1024 B to {FANNED} queues, confirmed", peer, fan, fan, ours, theirs, rounds))
    large = _fan_out(8192, COUNT // 5)
    rows.append(_row(f"publish 8192 B to {FANNED} queues, confirmed", peer, large, large, ours, theirs, rounds))
    few, many = _topics(10), _topics(10_000)
    rows.append(_row("publish 128 B, topic exchange of 10 bindings", peer, few, few, ours, theirs, rounds))
    rows.append(_row("publish 128 B, topic exchange of 10,000 bindings", peer, many, many, ours, theirs, rounds))
    itself = "StrataMQ with 10 bindings"
    rows.append(
        _row("publish 128 B, topic exchange of 10,000 bindings", itself, many, few, ours, ours, rounds, 1 / 1.2)
    )
    return rows


def _row(
    job: str,
    peer: str,
    load: Load,
    peer_load: Load,
    ours: Server,
    theirs: Server,
    rounds: int,
    target: float | None = None,
) -> Row:
    costs: dict[Server, list[float]] = {ours: [], theirs: []}

    def timed(server: Server, work: Load) -> float:
        before = server.cpu_s()
        rate = work(server.port)
        costs[server].append(server.cpu_s() - before)
        return rate

    measured = pairs(lambda: timed(ours, load), lambda: timed(theirs, peer_load), rounds=rounds)
    cost = [statistics.median(found[1:]) if ours != theirs else 0.0 for found in costs.values()]
    note = f"CPU {cost[-1] / cost[0]:.1f} to 1" if cost[0] else ""
    extra = {"cpu_s": cost[0], "peer_cpu_s": cost[-1]}
    return Row(
        job=job, peer=peer, unit="msg/s", ours=measured[0], theirs=measured[1], target=target, note=note, extra=extra
    )


def _publish(kind: str, body_bytes: int, count: int, *, window: int, streams: int = 1) -> Load:
    def load(port: int) -> float:
        queue = make_queue(port, kind)
        rate = amqp_load.publish(port, [queue], os.urandom(body_bytes), count, window=window, streams=streams)
        delete(port, queue)
        return rate

    return load


def _consume(kind: str, ack_every: int) -> Load:
    def load(port: int) -> float:
        queue = make_queue(port, kind)
        amqp_load.publish(port, [queue], os.urandom(1024), COUNT)
        rate = amqp_load.consume(port, queue, COUNT, ack_every)
        delete(port, queue)
        return rate

    return load


def _publish_and_consume(kind: str) -> Load:
    def load(port: int) -> float:
        queue = make_queue(port, kind)
        rate = amqp_load.publish_and_consume(port, queue, os.urandom(1024), COUNT)
        delete(port, queue)
        return rate

    return load


def _fan_out(body_bytes: int, count: int = COUNT // 2) -> Load:
    def load(port: int) -> float:
        queues = [make_queue(port, "classic v1") for _ in range(FANNED)]
        connection = rabbitmq.AmqpConnection(port)
        exchange = f"bench-fan-{next(_numbers)}"
        connection.declare_exchange(exchange, "fanout")
        for queue in queues:
            connection.bind(queue, exchange, [""])
        rate = amqp_load.publish(port, [""], os.urandom(body_bytes), count, exchange=exchange)
        connection.delete_exchange(exchange)
        connection.close()
        for queue in queues:
            delete(port, queue)
        return rate

    return load


def _topics(bindings: int) -> Load:
    """Keys of three words, each routed to the one queue by one binding of many; a thousand keys take turns."""

    def load(port: int) -> float:
        queue = make_queue(port, "classic v1")
        connection = rabbitmq.AmqpConnection(port)
        exchange = f"bench-topic-{next(_numbers)}"
        connection.declare_exchange(exchange, "topic")
        connection.bind(queue, exchange, [f"stock.{number}.*" for number in range(bindings)])
        keys = [f"stock.{number * 7919 % bindings}.w{number}" for number in range(1000)]
        rate = amqp_load.publish(port, keys, os.urandom(128), COUNT, exchange=exchange)
        connection.delete_exchange(exchange)
        connection.close()
        delete(port, queue)
        return rate

    return load


def make_queue(port: int, kind: str) -> str:
    """A new durable queue of that kind; its name."""
    queue = f"bench-{next(_numbers)}"
    connection = rabbitmq.AmqpConnection(port)
    connection.declare(queue, KINDS[kind])
    connection.close()
    return queue


def delete(port: int, queue: str) -> None:
    """Delete a queue with what is left in it."""
    connection = rabbitmq.AmqpConnection(port)
    connection.delete(queue)
    connection.close()
