"""A broker and C++ clients round it, each in a process of its own.

Waiting is for conditions, with deadlines; nothing sleeps for luck.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.broker_process import ROOT, BrokerProcess

without_client = pytest.mark.skipif(
    importlib.util.find_spec("rocketmq") is None, reason="package rocketmq is not installed"
)
SCRIPT = Path(__file__).with_name("cpp_client.py")
SECONDS = 150.0
# The client waits 30 s for the answer to a pull that it sent into a connection that was just being closed.


class Client:
    """One client process; its lines are collected as they come."""

    def __init__(self, home: Path, role: str, **options: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._errors = (home / f"client-{role}-{time.monotonic_ns()}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), role, json.dumps(options)],
            env={**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{"):
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], what: str, *, seconds: float = SECONDS) -> None:
        """Wait until lines that came make ``condition`` true."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise AssertionError(f"{what}: not within {seconds:.0f} s; got {self.lines[-20:]}")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages it has consumed."""
        return [line for line in self.lines if "body" in line]

    def bodies(self) -> list[str]:
        """Bodies of what it has consumed, sorted."""
        return sorted(line["body"] for line in self.messages)

    def wait_for_messages(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many messages."""
        self.wait_until(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages

    def wait_for_bodies(self, expected: list[str]) -> None:
        """Wait until it has consumed all of these, and perhaps more."""
        self.wait_until(lambda: set(expected) <= set(self.bodies()), "all messages")

    def wait_started(self) -> Client:
        """Wait until a consumer has started."""
        self.wait_until(lambda: any("started" in line for line in self.lines), "start")
        return self

    def finish(self) -> list[dict[str, Any]]:
        """Let it end by itself, or in order; return its lines."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(SECONDS)
        self._close()
        return self.lines

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


class World:
    """A broker and what connects to it."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.broker = BrokerProcess(directory, *arguments)
        self.clients: list[Client] = []

    def client(self, role: str, **options: Any) -> Client:
        """Start a client."""
        made = Client(self.directory, role, namesrv=self.broker.addresses["namesrv"], **options)
        self.clients.append(made)
        return made

    def produce(self, topic: str, specs: list[dict[str, Any]], how: str = "sync") -> list[dict[str, Any]]:
        """Send messages and return the results; all must have been stored."""
        made = self.client("produce", topic=topic, messages=specs, how=how)
        made.wait_until(lambda: any("done" in line for line in made.lines), "sending")
        lines = made.finish()
        failed = [line for line in lines if "error" in line]
        assert not failed, failed
        return [line for line in lines if "done" not in line]

    def consume(self, topic: str, group: str, **options: Any) -> Client:
        """Start a push consumer."""
        return self.client("consume", topic=topic, group=group, **options).wait_started()

    def get(self, path: str) -> Any:
        """Ask the broker's HTTP port."""
        with urllib.request.urlopen(f"http://{self.broker.addresses['http']}{path}", timeout=100) as answer:
            return json.load(answer)

    def group(self, name: str) -> dict[str, Any]:
        """What the broker says of a consumer group."""
        return next((row for row in self.get("/api/v1/groups")["groups"] if row["group"] == name), {})

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the broker makes ``condition`` true."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s\n{self.broker.log()[-3000:]}"
            time.sleep(0.05)

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            if client.process.poll() is None:
                client.kill()
            else:
                client._close()
        if self.broker.process is not None and self.broker.process.poll() is None:
            assert self.broker.stop() == 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.broker.start()
    yield made
    made.close()


def specs(count: int, prefix: str = "m", **extra: Any) -> list[dict[str, Any]]:
    """Plain messages."""
    return [{"body": f"{prefix}{number}", **extra} for number in range(count)]


def bodies(rows: list[dict[str, Any]]) -> list[str]:
    """Sorted bodies."""
    return sorted(row["body"] for row in rows)
