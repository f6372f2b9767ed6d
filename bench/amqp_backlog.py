"""AMQP with a long queue: built, drained, its memory, and starts with it, `stratamq serve` against RabbitMQ.

``STRATAMQ_BENCH_BACKLOG`` (1,000,000) is how long the queue gets that is built and drained, ``STRATAMQ_BENCH_RESTART``
(500,000; the full run is 5,000,000) how long the one with which both are started again. Bodies have 100 bytes. One pair
each: what takes minutes is not repeated. Rows whose unit is a time or a size state its inverse, so that more is better.

A start is timed from starting the process until a client has logged in and been told the right number of messages; an
empty RabbitMQ needs some seconds for that by itself, which the rows state (``empty``).

``python -m bench.amqp_backlog --messages 10000000`` does it for StrataMQ alone and prints the peak of its memory, which
has a budget of 1 GiB. What bounds it: ``amqp_recent_bytes_max``, ``amqp_index_cache_bytes_max``,
``amqp_body_cache_bytes_max``, and a byte a message; ``--setting NAME=VALUE`` sets these and others.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench import amqp_load, rabbitmq
from bench.memory import anonymous_mib
from bench.rows import Missing, Row
from stratamq.units import MiB
from tests.interop.ports import free_ports

BACKLOG = int(os.environ.get("STRATAMQ_BENCH_BACKLOG", "1000000"))
RESTART = int(os.environ.get("STRATAMQ_BENCH_RESTART", "500000"))
BODY = bytes(range(100))
QUEUE = "bench-backlog"
BUDGET_MIB = 1024.0
PREFETCH = 1000
_START_SECONDS = 600


class Node(Protocol):
    """A server that can be started again."""

    folder: Path
    port: int
    version: str

    def start(self) -> float:
        """Seconds until clients can log in."""
        ...

    def stop(self, *, kill: bool = False) -> None:
        """End it."""
        ...

    def memory_mib(self) -> float:
        """Anonymous memory."""
        ...


class StrataNode:
    """`stratamq serve` with its data in a folder of its own."""

    def __init__(self, cpu: int | None = None, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
        (self.port,) = free_ports(1)
        self.version = ""
        (self.folder / "broker.conf").write_text("\n".join(settings))
        self._command = [] if cpu is None else ["taskset", "-c", str(cpu)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; returns the seconds until clients can log in."""
        started = time.monotonic()
        command = [*self._command, sys.executable, "-m", "stratamq.cli.serve", "--data-dir", str(self.folder / "data")]
        command += ["--config", str(self.folder / "broker.conf"), "--amqp-port", str(self.port)]
        command += ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        while time.monotonic() < started + _START_SECONDS:
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker did not start: {(self.folder / 'log').read_text()[-2000:]}")
            try:
                rabbitmq.AmqpConnection(self.port).close()
            except OSError:
                time.sleep(0.02)
                continue
            return time.monotonic() - started
        raise TimeoutError("the broker did not come up")

    def stop(self, *, kill: bool = False) -> None:
        """Stop it in order, or kill it."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(_START_SECONDS)

    def memory_mib(self) -> float:
        """Resident anonymous memory."""
        assert self._process is not None
        return anonymous_mib(self._process.pid)


def run(cpu: int) -> list[Row | Missing]:
    """All rows; nothing else may run meanwhile."""
    ours, theirs = measure(StrataNode(cpu)), measure(rabbitmq.RabbitNode(cpu))
    peer = f"RabbitMQ {theirs.version} classic v1"
    rows: list[Row | Missing] = []

    def add(job: str, unit: str, pick: Callable[[Backlog], float], target: float | None = None, note: str = "") -> None:
        rows.append(
            Row(job=job, peer=peer, unit=unit, ours=(pick(ours),), theirs=(pick(theirs),), target=target, note=note)
        )

    add(f"build a backlog of {BACKLOG:,} of 100 B, confirmed", "msg/s", lambda one: one.build)
    add(f"drain a backlog of {BACKLOG:,} of 100 B, ack every 50", "msg/s", lambda one: one.drain)
    bytes_each = f"{ours.bytes_each:.0f} B a message, theirs {theirs.bytes_each:.0f} B"
    add(f"memory of a backlog of {BACKLOG:,} of 100 B", "msg/MiB", lambda one: 2**20 / one.bytes_each, note=bytes_each)
    for name, pick in (("a clean stop", lambda one: one.clean_s), ("kill -9", lambda one: one.killed_s)):
        note = f"{pick(ours):.2f} s, theirs {pick(theirs):.2f} s; empty: {ours.empty_s:.2f} s, {theirs.empty_s:.2f} s"
        job = f"start with {RESTART:,} messages after {name}"
        add(job, "starts/min", lambda one, pick=pick: 60 / pick(one), note=note)  # type: ignore[misc]
    return rows


class Backlog:
    """What one server did."""

    version = ""
    build = drain = bytes_each = empty_s = clean_s = killed_s = 0.0


def measure(node: Node) -> Backlog:
    """All figures of one server, which is gone afterwards."""
    found = Backlog()
    try:
        node.start()
        node.stop()
        found.empty_s = node.start()
        found.version = node.version
        before = node.memory_mib()
        found.build = fill(node.port, BACKLOG)
        found.bytes_each = max(node.memory_mib() - before, 0.1) * 2**20 / BACKLOG
        found.drain = amqp_load.consume(node.port, QUEUE, BACKLOG, 50)
        fill(node.port, RESTART)
        node.stop(kill=True)
        found.killed_s = start_with(node, RESTART)
        node.stop()
        found.clean_s = start_with(node, RESTART)
    finally:
        node.stop(kill=True)
        shutil.rmtree(node.folder, ignore_errors=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure one long queue; 1 when it needs more memory than the budget."""
    parser = argparse.ArgumentParser(prog="bench.amqp_backlog", description=main.__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="a line of broker.conf")
    options = parser.parse_args(arguments)
    node = StrataNode(None, *options.setting)
    try:
        node.start()
        empty = node.memory_mib()
        with Peak(node) as peak:
            build = fill(node.port, options.messages)
            held = node.memory_mib()
            drain = amqp_load.consume(node.port, QUEUE, options.messages // 10, 50)
            fill(node.port, 1)  # once this is confirmed, so are the acknowledgements before it
            node.stop(kill=True)
        killed = start_with(node, options.messages - options.messages // 10 + 1, unsynced=PREFETCH)
        started = node.memory_mib()
    finally:
        node.stop(kill=True)
        shutil.rmtree(node.folder, ignore_errors=True)
    figures = {"messages": options.messages, "settings": options.setting, "empty_mib": empty, "held_mib": held}
    figures |= {"peak_mib": peak.mib, "bytes_each": (held - empty) * MiB / options.messages, "build_msg_s": build}
    figures |= {"drain_msg_s": drain, "start_after_kill_s": killed, "after_start_mib": started}
    print(json.dumps(figures, indent=1))
    return int(peak.mib > BUDGET_MIB)


class Peak:
    """Looks at a server's memory every now and then."""

    def __init__(self, node: Node) -> None:
        self.mib = 0.0
        self._node = node
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.2):
            try:
                self.mib = max(self.mib, self._node.memory_mib())
            except (OSError, AssertionError, RuntimeError):
                return  # it has just ended


def fill(port: int, count: int) -> float:
    """Put so many messages into the queue; confirmed messages a second."""
    connection = rabbitmq.AmqpConnection(port)
    connection.declare(QUEUE)
    connection.close()
    return amqp_load.publish(port, [QUEUE], BODY, count)


def start_with(node: Node, count: int, *, unsynced: int = 0) -> float:
    """Seconds of a start, until the queue's length is told. Fails when it is not ``count``.

    So many acknowledgements may have been on their way when it was killed, and so many more than counted.
    """
    started = time.monotonic()
    node.start()
    connection = rabbitmq.AmqpConnection(node.port)
    found = connection.declare(QUEUE)
    connection.close()
    if abs(found - count) > unsynced:
        raise RuntimeError(f"{found} messages after the start, {count} before it")
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
