"""The queue store: publishing against a bare loop of writes and syncs, memory of a long queue, and starts.

Rows: confirmed publishes in batches against ``os.pwrite`` and ``os.fdatasync`` of the same bytes; memory (anonymous
pages, peak) of ten million messages of 100 bytes against the budget of 1 GiB; starts with five million messages, after
``kill -9`` and after a clean stop, against reading all files of the store once.
``python -m bench.queuestore`` prints them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.rows import Row, pairs
from stratamq.clock import SystemClock
from stratamq.config import QueueStoreConfig
from stratamq.queuestore.store import QueueStore
from stratamq.units import MiB

BUDGET_MIB = 1024.0
MESSAGES = int(os.environ.get("STRATAMQ_BENCH_QUEUE_MESSAGES", 10_000_000))
"""How long the queue gets; starts are measured at half of it."""
BATCH = 512
PUBLISHES = 100_000


def publish_rate(body_bytes: int) -> float:
    """Confirmed publishes a second into one queue, `BATCH` to a sync."""
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        store = QueueStore.open(folder, QueueStoreConfig(), clock=SystemClock())
        queue = store.declare_queue("q", durable=True)
        body = os.urandom(body_bytes)
        started = time.perf_counter()
        for _ in range(PUBLISHES // BATCH):
            for _ in range(BATCH):
                store.publish(body, persistent=True, queues=[queue])
            store.tick()
        seconds = time.perf_counter() - started
        store.close()
    return PUBLISHES // BATCH * BATCH / seconds


def bare_rate(body_bytes: int) -> float:
    """The same bytes by a bare loop: join, write, sync."""
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        fd = os.open(os.path.join(folder, "log"), os.O_RDWR | os.O_CREAT)
        body = os.urandom(body_bytes)
        end = 0
        started = time.perf_counter()
        for _ in range(PUBLISHES // BATCH):
            parts = []
            for number in range(BATCH):
                parts.append(number.to_bytes(32, "little"))
                parts.append(body)
            data = b"".join(parts)
            os.pwrite(fd, data, end)
            os.fdatasync(fd)
            end += len(data)
        seconds = time.perf_counter() - started
        os.close(fd)
    return PUBLISHES // BATCH * BATCH / seconds


def anonymous_mib(field: str = "RssAnon") -> float:
    """This process's resident anonymous memory in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / MiB
    raise RuntimeError(f"no {field} in /proc/self/status")


def child(folder: str, until: int, end: str) -> dict[str, float]:
    """Open the store, fill the queue up to ``until`` messages, and stop by ``end``: killed or closed."""
    started = time.perf_counter()
    store = QueueStore.open(folder, QueueStoreConfig(), clock=SystemClock())
    opened = time.perf_counter() - started
    queue = store.declare_queue("q", durable=True)
    bodies = [os.urandom(92) for _ in range(BATCH)]
    peak = anonymous_mib()
    after_open = peak
    number = queue.counts().ready
    found = number
    started = time.perf_counter()
    while number < until:
        for body in bodies:
            store.publish(b"%s%08d" % (body, number), persistent=True, queues=[queue])  # an object of its own
            number += 1
        token = store.commit()
        if token is not None and number % (BATCH * 64) == 0:
            store.sync(token)
            store.synced(token)
            peak = max(peak, anonymous_mib())
        if store.step_due:
            store.tick()
    filled = time.perf_counter() - started
    store.tick()
    figures = {
        "open_s": opened,
        "found": found,
        "fill_s": filled,
        "peak_mib": peak,
        "after_open_mib": after_open,
        "clean": store.recovery.clean,
        "journal_mib": store.recovery.journal_bytes / MiB,
    }
    if end == "close":
        started = time.perf_counter()
        store.close()
        figures["close_s"] = time.perf_counter() - started
    return figures


def in_child(folder: str, until: int, end: str) -> dict[str, float]:
    """`child` in a process of its own, which ends without cleaning up."""
    command = [sys.executable, "-m", "bench.queuestore", "--child", folder, str(until), end]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def read_rate(folder: str) -> float:
    """Times a second that all files of the store could be read."""
    started = time.perf_counter()
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(MiB):
                    pass
    return 1 / (time.perf_counter() - started)


def run(rounds: int) -> list[Row]:
    """All rows."""
    rows = []
    for size in (128, 1024):
        ours, theirs = pairs(lambda s=size: publish_rate(s), lambda s=size: bare_rate(s), rounds=rounds)  # type: ignore[misc]
        job = f"queue store: confirmed publish {size} B, {BATCH} to a sync"
        rows.append(Row(job=job, peer="bare loop", unit="msg/s", ours=ours, theirs=theirs))
    folder = tempfile.mkdtemp(prefix="stratamq-bench-queuestore-")
    try:
        half = MESSAGES // 2
        first = in_child(folder, half, "kill")
        read = read_rate(folder)
        killed = in_child(folder, half, "close")
        clean = in_child(folder, half, "kill")
        longest = in_child(folder, MESSAGES, "close")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, figures in (("kill -9", killed), ("a clean stop", clean)):
        job = f"queue store: start with {half:,} messages after {name}"
        extra = {key: float(value) for key, value in figures.items()}
        rows.append(
            Row(
                job=job,
                peer="reading all files",
                unit="starts/s",
                ours=(1 / figures["open_s"],),
                theirs=(read,),
                extra=extra,
            )
        )
    peak = max(first["peak_mib"], longest["peak_mib"])
    extra = {
        f"{name}_{key}": float(value)
        for name, part in (("first", first), ("longest", longest))
        for key, value in part.items()
    }
    rows.append(
        Row(
            job=f"queue store: memory with {MESSAGES:,} messages of 100 B",
            peer="our need",
            unit="MiB (budget)",
            ours=(BUDGET_MIB,),
            theirs=(peak,),
            target=1.0,
            extra=extra,
        )
    )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], int(sys.argv[3]), sys.argv[4])), flush=True)
        os._exit(0)
    for row in run(3):
        print(json.dumps(row.as_json(), indent=1))
