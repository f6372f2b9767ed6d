"""A million messages waiting for their time: memory and steps of the timer wheel against a heap in memory.

``STRATAMQ_BENCH_TIMERS`` sets how many. A tenth of them, at most 100,000, is due in one and the same second.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.rows import Missing, Row
from stratamq.broker.timers import Timers
from stratamq.broker.topics import TIMER_TOPIC
from stratamq.clock import SystemClock
from stratamq.config import BrokerConfig, StoreConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.timer_store import TimerStore
from stratamq.logstore.types import Message, PutDone, PutResult, PutStatus
from stratamq.units import MiB

PENDING = int(os.environ.get("STRATAMQ_BENCH_TIMERS", 1_000_000))
ONE_SECOND = min(100_000, PENDING // 10)
STEP_BUDGET_MS = 250.0
BODY = bytes(200)
BATCH = 1_000
HOST = encode_host("127.0.0.1", 50_000)


def run(rounds: int) -> list[Row | Missing]:
    """Two rows: memory, and the longest step. Each round is a process of its own, ours and the peer's in turn."""
    ours, theirs = [], []
    for _ in range(min(rounds, 3)):
        ours.append(_child("ours"))
        theirs.append(_child("heap"))
    extra = {name: ours[-1][name] for name in ours[-1]}
    memory = Row(
        job=f"{PENDING:,} messages of {len(BODY)} B wait for their time",
        peer="heapq of messages",
        unit="messages a MiB of own memory",
        ours=tuple(PENDING / row["own_mib"] for row in ours),
        theirs=tuple(PENDING / row["own_mib"] for row in theirs),
        target=2.0,
        extra=extra,
    )
    steps = Row(
        job=f"longest step while {ONE_SECOND:,} are due in one second",
        peer=f"budget of {STEP_BUDGET_MS:.0f} ms",
        unit="steps a second",
        ours=tuple(1000 / row["longest_step_ms"] for row in ours),
        theirs=tuple(1000 / STEP_BUDGET_MS for _ in ours),
        target=1.0,
        extra=extra,
    )
    return [memory, steps]


def _child(which: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.timers", which]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def own_mib() -> float:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


def due_of(number: int, start_ms: int) -> int:
    """Due times: one second has many, the others lie within two hours."""
    return start_ms + (600_000 if number < ONE_SECOND else 700_000 + number * 7_919 % 6_500_000) // 1_000 * 1_000


class _Committer:
    """Puts into the store, committed once a step as the server does once a turn of its loop."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._waiting: list[tuple[PutDone, PutResult]] = []

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        self._waiting.append((done, PutResult(PutStatus.PUT_OK, self._store.append(messages))))

    def flush(self) -> None:
        """Commit and answer."""
        self._store.commit()
        waiting, self._waiting = self._waiting, []
        for done, result in waiting:
            done(result)


def _fill(store: LogStore, start_ms: int) -> None:
    template = Message(topic=TIMER_TOPIC, queue_id=0, body=b"", properties="", born_timestamp=start_ms, born_host=HOST)
    for first in range(0, PENDING, BATCH):
        numbers = range(first, min(first + BATCH, PENDING))
        properties = [
            f"TIMER_OUT_MS\x01{due_of(n, start_ms)}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02UNIQ_KEY\x01{n:032X}\x02"
            for n in numbers
        ]
        store.append_many(template, [BODY] * len(numbers), properties)
        store.commit()


def _ours(folder: str) -> dict[str, float]:
    config = StoreConfig(commit_log_file_bytes=256 * MiB, index_enabled=False)
    store = LogStore.open(folder, config, clock=SystemClock(), store_host=HOST)
    start_ms = SystemClock().wall_ms() // 1_000 * 1_000
    _fill(store, start_ms)
    committer = _Committer(store)
    gc.collect()
    before = own_mib()
    timers, files, opened_s = _opened(folder, store, committer, start_ms)
    began = time.perf_counter()
    longest_read = 0.0
    while files.queue_offset < PENDING:
        at = time.perf_counter()
        timers.run_due(start_ms)
        longest_read = max(longest_read, time.perf_counter() - at)
    reading_s = time.perf_counter() - began
    used = own_mib() - before
    files.sync(files.begin_sync())
    files.close()
    timers, files, opened_s = _opened(folder, store, committer, start_ms)
    now = start_ms + 601_000
    longest, began = longest_read, time.perf_counter()
    lengths = []
    while store.max_offset("T", 0) < ONE_SECOND:
        at = time.perf_counter()
        timers.run_due(now)
        committer.flush()
        lengths.append(time.perf_counter() - at)
        longest = max(longest, lengths[-1])
    return {
        "median_step_ms": statistics.median(lengths) * 1000,
        "own_mib": used,
        "read_per_s": PENDING / reading_s,
        "delivered_per_s": ONE_SECOND / (time.perf_counter() - began),
        "longest_step_ms": longest * 1000,
        "reopen_s": opened_s,
        "peak_own_mib": own_mib(),
    }


def _opened(folder: str, store: LogStore, committer: _Committer, now_ms: int) -> tuple[Timers, TimerStore, float]:
    began = time.perf_counter()
    files = TimerStore.open(folder)
    timers = Timers(store, committer, BrokerConfig())
    timers.attach(files, now_ms, ["T"])
    return timers, files, time.perf_counter() - began


def _heap() -> dict[str, float]:
    gc.collect()
    before = own_mib()
    heap: list[tuple[int, int, Message]] = []
    for n in range(PENDING):
        message = Message(
            topic="T", queue_id=0, body=bytes(bytearray(BODY)), properties=f"UNIQ_KEY\x01{n:032X}\x02",
            born_timestamp=0, born_host=HOST,
        )  # fmt: skip
        heapq.heappush(heap, (due_of(n, 0), n, message))
    return {"own_mib": own_mib() - before}


def main() -> None:
    """One measurement, in a process of its own; prints JSON."""
    folder = tempfile.mkdtemp(prefix="stratamq-bench-timers-")
    try:
        found = _heap() if sys.argv[1] == "heap" else _ours(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
