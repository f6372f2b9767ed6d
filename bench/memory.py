"""The broker's own memory (anonymous pages, not page cache) with a 10 GiB store and 1,000 idle connections.

The peer of this row is the budget of 200 MiB: a ratio above 1 means that the broker needs less.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Missing, Row
from stratamq.clock import SystemClock
from stratamq.config import StoreConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message
from stratamq.units import GiB, MiB

BUDGET_MIB = 200.0
STORE_BYTES = int(os.environ.get("STRATAMQ_BENCH_STORE_BYTES", 10 * GiB))
CONNECTIONS = 1000
_START_SECONDS = 300


def run(rounds: int) -> list[Row | Missing]:
    """One row; ``rounds`` is how often the memory is read after everything has settled."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < STORE_BYTES + 5 * GiB:
        return [Missing(job="own memory", reason=f"{free // GiB} GiB free, {STORE_BYTES // GiB + 5} GiB needed")]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-memory-"))
    try:
        fill_store(folder / "data", STORE_BYTES)
        with serving(folder / "data", folder) as (pid, addresses):
            used = asyncio.run(_with_idle_connections(pid, addresses["broker"], rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    job = f"own memory, {STORE_BYTES / GiB:.0f} GiB store, {CONNECTIONS} idle connections"
    budget = tuple(BUDGET_MIB for _ in used)
    # Higher is better in a row, so the budget stands where our rate would.
    return [Row(job=job, peer="our need", unit="MiB (budget)", ours=budget, theirs=used, target=1.0)]


def fill_store(directory: Path, size: int) -> None:
    """Write ``size`` bytes of 1 KB messages over 8 queues."""
    store = LogStore.open(directory, StoreConfig(), clock=SystemClock(), store_host=encode_host("127.0.0.1", 10911))
    body = os.urandom(1024)
    host = encode_host("127.0.0.1", 50000)
    number = 0
    while store.max_physical_offset < size:
        batch = [
            Message(
                topic="bench",
                queue_id=(number + i) % 8,
                body=body,
                properties=f"KEYS\x01k{number + i}\x02UNIQ_KEY\x01{number + i:032X}\x02",
                born_timestamp=1_700_000_000_000,
                born_host=host,
            )
            for i in range(256)
        ]
        store.append(batch)
        store.commit()
        number += len(batch)
    store.close()


@contextlib.contextmanager
def serving(data: Path, folder: Path, *more: str, cpu: int | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """`stratamq serve` on free ports; yields its process id and the addresses of its ready file."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "stratamq.cli.serve", "--data-dir", str(data), "--ready-file", str(ready)]
    command += ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", *more]
    if cpu is not None:
        command = ["taskset", "-c", str(cpu), *command]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker did not start: {(folder / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield process.pid, json.loads(ready.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def anonymous_mib(pid: int) -> float:
    """Resident anonymous memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / MiB
    raise RuntimeError("no RssAnon in /proc: not Linux?")


async def _with_idle_connections(pid: int, address: str, rounds: int) -> tuple[float, ...]:
    host, _, port = address.rpartition(":")
    sockets = [socket.create_connection((host, int(port)), timeout=10) for _ in range(CONNECTIONS)]
    try:
        readings = []
        for _ in range(rounds):
            await asyncio.sleep(1)
            readings.append(anonymous_mib(pid))
        return tuple(readings)
    finally:
        for one in sockets:
            one.close()
