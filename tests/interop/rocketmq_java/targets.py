"""The brokers that RocketMQ's client is tried against, behind one interface, and the fixtures that start them.

``STRATAMQ_INTEROP_TARGET=rocketmq`` runs the same tests against RocketMQ's own broker, to see whether a test asks for
something that RocketMQ does. Test modules import the fixtures they use.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pytest

from tests.interop.rocketmq_java.runner import (
    JavaClient,
    RocketServer,
    Unavailable,
    classpath,
    free_broker_port,
    free_port,
    properties,
)

READY_TIMEOUT_S = 150
STOP_TIMEOUT_S = 150
KILL_TIMEOUT_S = 60


class Target(Protocol):
    """A broker with a name server over one store directory; the same ports after every start."""

    namesrv: str
    store: Path
    features: frozenset[str]

    @property
    def broker(self) -> str: ...

    def start(self) -> Self: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class StrataServer:
    """``stratamq serve`` as a child process.

    Args:
        store: Data directory.
        work: Folder for configuration, the ready file and the log.
        settings: Properties for ``broker.conf``, over small file sizes.
    """

    # What works today beyond sending, pulling and consuming; tests of other features are skipped by name.
    features: frozenset[str] = frozenset({"delay", "timer", "retry", "transaction", "sql", "reply"})

    def __init__(self, store: Path, work: Path, *, settings: Mapping[str, object] | None = None) -> None:
        self.store = store
        self.work = work
        self.settings = {**file_sizes(), **(settings or {})}
        self.broker_port = free_broker_port()
        self.namesrv_port = free_port()
        self.namesrv = f"127.0.0.1:{self.namesrv_port}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    def start(self) -> Self:
        """Start and wait for the ready file."""
        self.work.mkdir(parents=True, exist_ok=True)
        conf = self.work / "broker.conf"
        conf.write_text(properties(self.settings))
        ready = self.work / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "stratamq.cli.serve", "--data-dir", str(self.store)]
        command += ["--namesrv-port", str(self.namesrv_port), "--broker-port", str(self.broker_port)]
        command += ["--http-port", "0", "--amqp-port", "-1", "--ready-file", str(ready), "--config", str(conf)]
        with (self.work / "stratamq.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready.exists() or not ready.read_text().strip():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"stratamq serve did not get ready:\n{self.log_tail()}")
            time.sleep(0.02)
        found = json.loads(ready.read_text())
        assert found["namesrv"] == self.namesrv
        return self

    def stop(self) -> None:
        """SIGTERM; the process has to end by itself, with exit code 0."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"stratamq serve ignored SIGTERM:\n{self.log_tail()}") from None
        self.process = None
        assert code == 0, f"stratamq serve ended with {code}:\n{self.log_tail()}"

    def kill(self) -> None:
        """Kill -9 the process group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=KILL_TIMEOUT_S)
            self.process = None

    def log_tail(self, lines: int = 30) -> str:
        """The end of the log, for messages."""
        with contextlib.suppress(OSError):
            return "\n".join((self.work / "stratamq.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


class RocketTarget(RocketServer):
    """RocketMQ's broker in the place of ours."""

    features = frozenset({"delay", "timer", "retry", "transaction", "sql", "reply", "pop", "vip", "admin"})


def file_sizes() -> dict[str, int]:
    """Small files, the same for both brokers, so that either opens the other's store."""
    return {
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1_000,
        "maxIndexNum": 4_000,
    }


def make_target(store: Path, work: Path, *, settings: Mapping[str, object] | None = None) -> Target:
    """The broker that this run tests, not started."""
    if os.environ.get("STRATAMQ_INTEROP_TARGET", "stratamq") == "rocketmq":
        return RocketTarget(store, work, settings=settings)
    return StrataServer(store, work, settings=settings)


def need_java(version: str, kind: str = "client") -> None:
    """Skip the test, saying what is missing, where RocketMQ's client cannot be run."""
    try:
        classpath(version, kind=kind)
    except Unavailable as missing:
        pytest.skip(f"RocketMQ's Java client {version} cannot run here: {missing}")


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One way to run RocketMQ's client."""

    version: str
    binary: bool = False

    @property
    def label(self) -> str:
        return f"{self.version}-binary" if self.binary else self.version

    @property
    def is_5(self) -> bool:
        return self.version.startswith("5")

    def launch(self, work: Path, *, name: str = "client") -> JavaClient:
        """A new JVM with this client."""
        need_java(self.version, "server" if self.version != "4.9.7" else "client")
        values = {"rocketmq.serialize.type": "ROCKETMQ"} if self.binary else {}
        return JavaClient(work, version=self.version, jvm_properties=values, name=name)


CLIENT_KINDS = [ClientKind("5.5.0"), ClientKind("4.9.7"), ClientKind("5.3.3", binary=True)]

LaunchBroker = Callable[..., Target]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One running broker for all tests of a module; tests keep apart by topic and group."""
    need_java("5.5.0", "server")
    folder = tmp_path_factory.mktemp("target")
    broker = make_target(folder / "store", folder / "work")
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture(scope="module", params=CLIENT_KINDS, ids=lambda kind: kind.label)
def kind(request: pytest.FixtureRequest) -> ClientKind:
    """Every client version in turn."""
    found: ClientKind = request.param
    return found


@pytest.fixture(scope="module")
def java(kind: ClientKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM of this client version for all tests of a module."""
    client = kind.launch(tmp_path_factory.mktemp("java"))
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def own_target(tmp_path: Path) -> Iterator[LaunchBroker]:
    """Make brokers that a test may stop, kill and start again; all are killed at its end."""
    made: list[Target] = []

    def make(settings: Mapping[str, object] | None = None, *, store: Path | None = None) -> Target:
        broker = make_target(
            store or tmp_path / f"store{len(made)}", tmp_path / f"broker{len(made)}", settings=settings
        )
        made.append(broker)
        return broker.start()

    yield make
    for broker in made:
        broker.kill()


def need(target: Target, feature: str) -> None:
    """Skip a test of something that the broker under test does not do yet."""
    if feature not in target.features:
        pytest.skip(f"{type(target).__name__} has no {feature} yet")


def wait_until(what: str, condition: Callable[[], Any], *, timeout_s: float = 150) -> Any:
    """Wait until ``condition`` gives something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
