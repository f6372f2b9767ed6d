"""A broker in a process of its own, for tests that need one to be stopped, killed or started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.interop.ports import free_ports

START_SECONDS = 120.0
STOP_SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]


class BrokerProcess:
    """``stratamq serve`` on loopback ports that stay the same over restarts, and that nobody takes meanwhile."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.data_dir = directory / "data"
        self._ready_file = directory / "ready.json"
        self._log_file = directory / "broker.log"
        self._arguments = arguments
        self._ports = dict(zip(("namesrv", "broker", "http"), free_ports(3), strict=True))
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it and wait for nothing."""
        self._ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in self._ports.items()]
        with self._log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stratamq.cli.serve",
                    f"--data-dir={self.data_dir}",
                    f"--ready-file={self._ready_file}",
                    *ports,
                    *self._arguments,
                ],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdout=log,
                stderr=log,
            )
        return self.process

    def start(self) -> BrokerProcess:
        """Start it and wait until clients may connect."""
        process = self.launch()
        deadline = time.monotonic() + START_SECONDS
        while not self._ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the broker did not start:\n{self.log()}")
            time.sleep(0.02)
        self.addresses = json.loads(self._ready_file.read_text())
        self._ports = {name: int(address.rpartition(":")[2]) for name, address in self.addresses.items()}
        return self

    def stop(self) -> int:
        """Stop it in order and return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it without warning."""
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        """What it has logged so far."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
