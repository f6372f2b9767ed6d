"""Latency of sends while ten files of 1 GiB are deleted, against the same broker a moment before.

A store of old files is served with retention on; a generator sends one 1 KB message at a time on each of eight
connections. After some seconds the operator asks for a deletion, as mqadmin's deleteExpiredCommitLog does.
The peer of the row is the broker itself: a ratio of 0.8 means that the 99th percentile was a quarter longer.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.memory import serving
from bench.rows import Missing, Row
from stratamq.clock import SystemClock
from stratamq.config import StoreConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message
from stratamq.protocols.remoting.command import encode_frame
from stratamq.server.retention import FIRST_ROUND_S
from stratamq.units import GiB, KiB, Millis

FILES_A_ROUND = 10
"""What one run of the retention service deletes at most (deleteFileBatchMax)."""
CONNECTIONS = 8
QUIET_SECONDS = 5.0
LOOK_SECONDS = 15.0
"""Longer than from one look at the files to the next, deletions included."""
OLD_HOURS = 100
"""Older than fileReservedTime, 72 hours."""
BODY_BYTES = 64 * KiB


class LongAgo(SystemClock):
    """Time goes by as it does, but 100 hours ago."""

    def wall_ms(self) -> Millis:
        """Wall time in milliseconds."""
        return Millis(super().wall_ms() - OLD_HOURS * 3_600_000)


def run(rounds: int) -> list[Row | Missing]:
    """Two rows: 99th percentile and median. As many rounds as the disk holds files for."""
    job = f"send 1 KB while {FILES_A_ROUND} files of 1 GiB are deleted"
    free = shutil.disk_usage(tempfile.gettempdir()).free / GiB
    rounds = min(rounds, 3, int((free - 15) / FILES_A_ROUND))
    if rounds < 1:
        return [Missing(job=job, reason=f"{free:.0f} GiB free, {FILES_A_ROUND + 15} needed")]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-cleaning-"))
    try:
        _fill(folder / "data", rounds * FILES_A_ROUND + 2)
        # The disk's own fill must not start a deletion before its time.
        (folder / "broker.conf").write_text("diskMaxUsedSpaceRatio=95\nfileReservedTime=72\ndeleteWhen=04\n")
        with serving(folder / "data", folder, "--config", str(folder / "broker.conf")) as (_, addresses):
            time.sleep(FIRST_ROUND_S + 1)
            measured = _rounds(addresses["broker"], folder / "data" / "commitlog", rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows: list[Row | Missing] = []
    for place, name in ((0, "p99"), (1, "median")):
        quiet = tuple(1 / one[0][place] for one in measured)
        busy = tuple(1 / one[1][place] for one in measured)
        slower = statistics.median(b / a for a, b in zip(busy, quiet, strict=True))
        note = f"{name} is {slower:.2f} times as long"
        rows.append(
            Row(job=f"{job}: 1 / {name}", peer="itself, not deleting", unit="1/s", ours=busy, theirs=quiet, note=note)
        )
    return rows


def _fill(directory: Path, files: int) -> None:
    """Write whole log files of large messages, stored long ago."""
    store = LogStore.open(directory, StoreConfig(), clock=LongAgo(), store_host=encode_host("127.0.0.1", 10911))
    body = os.urandom(BODY_BYTES)
    host = encode_host("127.0.0.1", 50000)
    while store.max_physical_offset < (files - 1) * GiB:
        store.append(
            [
                Message(
                    topic="bench-old",
                    queue_id=number % 4,
                    body=body,
                    properties="",
                    born_timestamp=1_700_000_000_000,
                    born_host=host,
                )
                for number in range(64)
            ]
        )
        store.commit()
    store.close()


def _rounds(address: str, commitlog: Path, rounds: int) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """(p99, median) in seconds just before and during each batch of deletions.

    One request makes the broker look 20 times, ten seconds apart: each time a batch of files goes.
    """
    seconds = (rounds + 2) * LOOK_SECONDS
    command = [sys.executable, "-m", "bench.remoting_load", "latency", address, "--connections", str(CONNECTIONS)]
    command += ["--seconds", str(seconds), "--topic", "bench-now"]
    left = len(list(commitlog.iterdir()))
    gone_at: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
        deadline = time.monotonic() + seconds
        time.sleep(QUIET_SECONDS + 1)
        _ask_to_delete(address)
        while len(gone_at) < rounds * FILES_A_ROUND:
            now, have = time.monotonic(), len(list(commitlog.iterdir()))
            gone_at += [now] * (left - have)
            left = have
            if now > deadline:
                raise RuntimeError(f"only {len(gone_at)} files were deleted in {seconds:.0f} s")
            time.sleep(0.005)
        output, _ = generator.communicate()
    found = json.loads(output)
    figures = []
    for number in range(rounds):
        batch = gone_at[number * FILES_A_ROUND : (number + 1) * FILES_A_ROUND]
        begin = batch[0] - 0.1  # the first file was gone when it was noticed; its deletion began before
        quiet = [took for at, took in found if begin - QUIET_SECONDS < at < begin]
        busy = [took for at, took in found if begin <= at <= batch[-1]]
        figures.append((_figures(quiet), _figures(busy)))
    return figures


def _figures(latencies: list[float]) -> tuple[float, float]:
    return statistics.quantiles(latencies, n=100)[98], statistics.median(latencies)


def _ask_to_delete(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(encode_frame(code=329, opaque=1, ext={}))
        head = sock.recv(4)
        answer = sock.recv(struct.unpack(">I", head)[0])
        if b'"code":0' not in answer:
            raise RuntimeError(f"the broker refused to delete: {answer!r}")
