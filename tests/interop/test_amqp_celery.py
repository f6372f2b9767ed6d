"""Unmodified Celery over ``stratamq serve``: results, delayed tasks, remote control, and a worker killed half-way."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.broker_process import ROOT, BrokerProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
    # Celery leaves its pooled connections to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TASKS = 1000


class Worker:
    """One ``celery worker`` process with two children."""

    def __init__(self, address: str, log: Path, name: str) -> None:
        environment = {**os.environ, "STRATAMQ_TEST_AMQP": address, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "celery", "-A", "tests.interop.celery_app", "worker"]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--concurrency=2", f"--hostname={name}@here", "--loglevel=warning"],
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """Signal the worker; SIGKILL goes to its children too."""
        if self.process.poll() is None:
            if number == 9:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
            self.process.wait(120)


def wait_for(condition: Callable[[], bool], seconds: float = 150) -> None:
    """Wait until something in another process has happened."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Let what clients left behind go while the mark above holds, not when some other test runs."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """The broker's address as Celery takes it."""
    with BrokerProcess(tmp_path_factory.mktemp("celery"), "--amqp-port=0") as broker:
        yield f"amqp://guest:guest@{broker.addresses['amqp']}//"


def test_no_task_is_lost_when_a_worker_is_killed(address, tmp_path, monkeypatch):
    monkeypatch.setenv("STRATAMQ_TEST_AMQP", address)
    from tests.interop.celery_app import add, app, note

    app.conf.broker_url = address
    done = tmp_path / "done"
    done.mkdir()
    workers = [Worker(address, tmp_path / f"worker-{name}.log", name) for name in ("a", "b")]
    try:
        assert add.delay(1, 2).get(timeout=150) == 3
        started = time.monotonic()
        assert add.apply_async((2, 2), countdown=1).get(timeout=150) == 4
        assert time.monotonic() - started >= 0.9
        for number in range(TASKS):
            note.apply_async((number, str(done)), ignore_result=True)
        wait_for(lambda: len(os.listdir(done)) > TASKS // 4)
        workers[0].kill(9)
        wait_for(lambda: len(os.listdir(done)) == TASKS)
        wait_for(lambda: [next(iter(row.values())) for row in app.control.ping(timeout=3)] == [{"ok": "pong"}])
    finally:
        for worker in workers:
            worker.kill(15)
        app.close()
