"""Restart after kill -9 with a large CommitLog: `stratamq serve` against RocketMQ's own broker.

Each broker writes its own store of `STORE_GIB` with the same load and is killed while a second load is running. The
time counts from the start of the process until it has taken one message: a whole start, interpreter or JVM included.
Then the next load, the next kill. Both are asked to flush asynchronously, as RocketMQ does unless told otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from bench.remoting_load import send_frame
from bench.rows import Missing, Row
from stratamq.units import GiB

STORE_GIB = float(os.environ.get("STRATAMQ_BENCH_RECOVERY_GIB", "10"))
BODY_BYTES = 1024
LOAD_SECONDS = 3.0
START_SECONDS = 900.0
WHOLE_SIZES = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}
_MESSAGE_ID = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})"')


class Server(Protocol):
    """A broker that can be killed and started again over the same store and on the same port."""

    @property
    def broker(self) -> str: ...

    def start(self) -> object: ...

    def kill(self) -> None: ...


def run(rounds: int) -> list[Row | Missing]:
    """One row; a round is one kill and one restart of each."""
    job = f"restart after kill -9, {STORE_GIB:g} GiB of 1 KB messages"
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < (2.6 * STORE_GIB + 8) * GiB:
        return [Missing(job=job, reason=f"{free // GiB} GiB free, {2.6 * STORE_GIB + 8:.0f} needed")]
    from tests.interop.rocketmq_java.runner import RocketServer, Unavailable, classpath
    from tests.interop.rocketmq_java.targets import StrataServer

    try:
        classpath("5.5.0", kind="server")
    except Unavailable as error:
        return [Missing(job=job, reason=str(error))]
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-recovery-"))
    try:
        ours = StrataServer(folder / "ours", folder / "ours-work", settings=WHOLE_SIZES)
        theirs = RocketServer(
            folder / "theirs", folder / "theirs-work", version="5.5.0", settings=WHOLE_SIZES, heap="3g"
        )
        with ExitStack() as stack:
            stack.callback(ours.kill)
            stack.callback(theirs.kill)
            measured = [_restarts(server, rounds) for server in (ours, theirs)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rates = [tuple(1024 * size / seconds for size, seconds in one) for one in measured]
    medians = [sorted(seconds / size for size, seconds in one)[len(one) // 2] for one in measured]
    return [
        Row(
            job=job,
            peer="RocketMQ 5.5.0",
            unit="MiB of log a second",
            ours=rates[0],
            theirs=rates[1],
            note=f"{medians[0]:.2f} s/GiB, peer {medians[1]:.2f}",
            extra={"seconds_per_gib": medians[0], "peer_seconds_per_gib": medians[1]},
        )
    ]


def _restarts(server: Server, rounds: int) -> list[tuple[float, float]]:
    """GiB of log and seconds of each restart after a kill under load."""
    server.start()
    _send_until(server.broker, STORE_GIB * GiB)
    found = []
    for _ in range(rounds):
        with Loading(server.broker):
            time.sleep(LOAD_SECONDS)
            server.kill()
        started = time.perf_counter()
        server.start()
        size = _taken_at(server.broker, time.monotonic() + START_SECONDS)
        found.append((size / GiB, time.perf_counter() - started))
    server.kill()
    return found


def _send_until(address: str, size: float) -> None:
    per_message = BODY_BYTES + 300
    while True:
        left = size - _taken_at(address, time.monotonic() + START_SECONDS)
        if left <= 0:
            return
        count = max(2_000, int(left / per_message))
        subprocess.run(_load_command(address, count), check=True, capture_output=True)


def _load_command(address: str, count: int) -> list[str]:
    options = ["--window", "256", "--count", str(count), "--body", str(BODY_BYTES), "--topic", "bench-recovery"]
    return [sys.executable, "-m", "bench.remoting_load", "send", address, *options]


class Loading:
    """A load that goes on until the broker is gone."""

    def __init__(self, address: str) -> None:
        self._command = _load_command(address, 50_000_000)

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _taken_at(address: str, deadline: float) -> int:
    """Send one message until it is taken; return its physical offset, which is how long the log is."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(send_frame("bench-recovery", 0, bytes(BODY_BYTES), "7F0000010001" + "0" * 20))
            found = _MESSAGE_ID.search(sock.recv(65536))
            if found:
                return int(found[1], 16)
        time.sleep(0.02)
    raise RuntimeError(f"the broker on {address} took no message in {START_SECONDS:.0f} s")
