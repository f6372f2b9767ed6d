"""AMQP: `stratamq serve` against RabbitMQ's classic queues, the same load generator for both, in turn, in one run.

Both servers run at the same time on core 0, the generator on core 1. Messages are persistent and confirmed; both sync
before they confirm. Queues are new for each measurement and deleted afterwards.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import rabbitmq
from bench.memory import serving
from bench.rows import Missing, Row, pairs

SERVER_CPU = 0
GENERATOR_CPU = 1
COUNT = int(os.environ.get("STRATAMQ_BENCH_MESSAGES", "50000"))
_numbers = itertools.count()


def run(rounds: int) -> list[Row | Missing]:
    """All rows of this suite."""
    if rabbitmq.find_server() is None:
        return [Missing(job="amqp", reason="RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)")]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-amqp-"))
    try:
        os.sched_setaffinity(0, {GENERATOR_CPU})
        with ExitStack() as stack:
            theirs, version = stack.enter_context(rabbitmq.running_node(SERVER_CPU))
            more = ("--amqp-port", "0")
            _, ready = stack.enter_context(serving(folder / "data", folder, *more, cpu=SERVER_CPU))
            return _rows(rounds, int(ready["amqp"].rpartition(":")[2]), theirs, f"RabbitMQ {version} classic")
    finally:
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        shutil.rmtree(folder, ignore_errors=True)


def _rows(rounds: int, ours: int, theirs: int, peer: str) -> list[Row | Missing]:
    rows: list[Row | Missing] = []
    for job, load, target in (
        ("publish 128 B, confirmed, window 512", lambda port: publish(port, 128, 512, COUNT), 4.0),
        ("publish 1 KB, confirmed, window 512", lambda port: publish(port, 1024, 512, COUNT), 4.0),
        ("publish 1 KB, confirmed, one at a time", lambda port: publish(port, 1024, 1, 3000), 1.0),
        ("consume 1 KB, acknowledge each", lambda port: consume(port, 1), 1.5),
        ("consume 1 KB, acknowledge every 50", lambda port: consume(port, 50), 1.5),
    ):
        measured = pairs(_at(load, ours), _at(load, theirs), rounds=rounds)
        rows.append(Row(job=job, peer=peer, unit="msg/s", ours=measured[0], theirs=measured[1], target=target))
    return rows


def _at(load: Callable[[int], float], port: int) -> Callable[[], float]:
    return lambda: load(port)


def publish(port: int, body_bytes: int, window: int, count: int) -> float:
    """Confirmed messages a second."""
    queue = f"bench-{next(_numbers)}"
    rate = rabbitmq.publish_rate(port, queue=queue, body=os.urandom(body_bytes), count=count, window=window)
    delete(port, queue)
    return rate


def consume(port: int, ack_every: int) -> float:
    """Messages a second out of a queue that was filled before."""
    queue = f"bench-{next(_numbers)}"
    rabbitmq.publish_rate(port, queue=queue, body=os.urandom(1024), count=COUNT, window=512)
    rate = rabbitmq.consume_rate(port, queue=queue, count=COUNT, ack_every=ack_every)
    delete(port, queue)
    return rate


def delete(port: int, queue: str) -> None:
    """Delete a queue with what is left in it."""
    connection = rabbitmq.AmqpConnection(port)
    connection.delete(queue)
    connection.close()
