"""Declaring durable queues: `stratamq serve` against RabbitMQ, in turn, in one run.

One client declares `QUEUES` durable queues one after the other, each when the one before is answered; then another does
the same with up to `WINDOW` of them under way. The queues are deleted between rounds, unmeasured. Both servers are on
core 0, the client on core 1. ``python -m bench.amqp_declares`` prints the rows.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import rabbitmq
from bench.memory import serving
from bench.rows import Missing, Row, pairs
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import method_frame

QUEUES = int(os.environ.get("STRATAMQ_BENCH_DECLARES", "1000"))
WINDOW = 50
_DECLARE_OK = b"\0\x32\0\x0b"
_DELETE_OK = b"\0\x32\0\x29"
_numbers = itertools.count()


def declares(port: int, window: int) -> float:
    """Declares a second of `QUEUES` new durable queues, ``window`` of them under way."""
    names = [f"declared-{next(_numbers)}" for _ in range(QUEUES)]
    frames = [method_frame(1, methods.QueueDeclare(name, False, True, False, False, False, {})) for name in names]
    connection = rabbitmq.AmqpConnection(port)
    started = time.perf_counter()
    _exchange(connection, frames, _DECLARE_OK, window)
    seconds = time.perf_counter() - started
    deletes = [method_frame(1, methods.QueueDelete(name, False, False, False)) for name in names]
    _exchange(connection, deletes, _DELETE_OK, 200)
    connection.close()
    return QUEUES / seconds


def _exchange(connection: rabbitmq.AmqpConnection, frames: list[bytes], answer: bytes, window: int) -> None:
    """Send all frames, at most ``window`` of them unanswered."""
    for at in range(0, len(frames), window):
        piece = frames[at : at + window]
        connection.socket.sendall(b"".join(piece))
        left = len(piece)
        while left:
            for _, payload in connection.frames():
                if payload[:4] != answer:
                    raise RuntimeError(f"answered with {payload[:200]!r}")
                left -= 1


def run(rounds: int) -> list[Row | Missing]:
    """All rows of this suite."""
    if rabbitmq.find_server() is None:
        return [Missing(job="amqp_declares", reason="RabbitMQ is not installed (apt-get install rabbitmq-server)")]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-declares-"))
    rows: list[Row | Missing] = []
    try:
        os.sched_setaffinity(0, {1})
        with ExitStack() as stack:
            theirs, version = stack.enter_context(rabbitmq.running_node(0))
            _, ready = stack.enter_context(serving(folder / "data", folder, "--amqp-port", "0", cpu=0))
            ours = int(ready["amqp"].rpartition(":")[2])
            for window, how in ((1, "one by one"), (WINDOW, f"{WINDOW} under way")):
                measured = pairs(
                    partial(declares, ours, window),
                    partial(declares, theirs, window),
                    rounds=rounds,
                    warm_up=False,
                )
                job = f"declare {QUEUES:,} durable queues, {how}"
                rows.append(
                    Row(job=job, peer=f"RabbitMQ {version}", unit="declares/s", ours=measured[0], theirs=measured[1])
                )
    finally:
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        shutil.rmtree(folder, ignore_errors=True)
    return rows


if __name__ == "__main__":
    for row in run(3):
        print(row.as_json())
