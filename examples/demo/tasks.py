"""The Celery chapter: an unmodified Celery application over AMQP, one of its workers killed half-way.

The application is this module; workers are ``celery -A examples.demo.tasks worker``. A task settles one order event: it
makes the event again and writes its number and digest to a file of its own process. Tasks are acknowledged after their
work, so those that the killed worker held are done by the other one; a task whose worker died between its work and its
acknowledgement is done twice, which is what "at least once" means.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from celery import Celery

from examples.demo import orders
from examples.demo.processes import DemoFailed, Processes

ADDRESS = "STRATAMQ_DEMO_AMQP"
FOLDER = "STRATAMQ_DEMO_TASKS"
QUEUE = "settle"
SECONDS_MAX = 120.0

app = Celery("demo", broker=os.environ.get(ADDRESS, ""))
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=8,
)


@app.task
def settle(number: int) -> None:
    """Make one order event again, and note what it is."""
    line = f"{number} {orders.event(number).digest.hex()}\n"
    with Path(os.environ[FOLDER], f"{os.getpid()}.txt").open("a", encoding="ascii") as file:
        file.write(line)


class Settled:
    """What the tasks have noted by now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def count(self) -> int:
        """How many lines there are."""
        return sum(path.read_bytes().count(b"\n") for path in self._folder.iterdir())

    def lines(self) -> Counter[tuple[int, str]]:
        """How often each event was settled, with its digest."""
        found: Counter[tuple[int, str]] = Counter()
        for path in self._folder.iterdir():
            for line in path.read_text(encoding="ascii").splitlines():
                number, _, digest = line.partition(" ")
                found[int(number), digest] += 1
        return found


def start_worker(processes: Processes, name: str, address: str, folder: Path) -> subprocess.Popen[bytes]:
    """One ``celery worker`` with one child process."""
    os.environ[ADDRESS], os.environ[FOLDER] = address, str(folder)
    command = [sys.executable, "-m", "celery", "-A", "examples.demo.tasks", "worker", "--concurrency=1"]
    return processes.start(name, [*command, f"--hostname={name}@demo", "--loglevel=warning", "-Q", QUEUE])


def run_tasks(
    processes: Processes, amqp: str, folder: Path, count: int, progress: Callable[[int], None]
) -> tuple[int, int]:
    """Send ``count`` tasks to two workers, kill one half-way; returns how many were done twice, and how many later.

    Raises DemoFailed when a task was lost, or settled wrongly.
    """
    folder.mkdir()
    address = f"amqp://guest:guest@{amqp}//"
    settled = Settled(folder)
    workers = [start_worker(processes, f"worker-{name}", address, folder) for name in ("a", "b")]
    app.conf.broker_url = address
    with app.pool.acquire() as connection:
        for number in range(count):
            settle.apply_async((number,), connection=connection)
    app.pool.force_close_all()
    _wait(lambda: settled.count() > count // 2, workers, processes, lambda: progress(settled.count()))
    os.killpg(workers[0].pid, signal.SIGKILL)
    workers[0].wait()
    at_kill = settled.count()
    _wait(lambda: len(settled.lines()) >= count, workers[1:], processes, lambda: progress(settled.count()))
    workers[1].send_signal(signal.SIGTERM)
    workers[1].wait(30)
    found = settled.lines()
    missing = [number for number in range(count) if (number, orders.event(number).digest.hex()) not in found]
    if missing or len(found) != count:
        raise DemoFailed(f"{len(missing)} of {count} tasks were lost or settled wrongly, the first is {missing[:1]}")
    return found.total() - count, found.total() - at_kill


def _wait(
    condition: Callable[[], bool],
    workers: list[subprocess.Popen[bytes]],
    processes: Processes,
    tick: Callable[[], None],
) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        tick()
        if time.monotonic() > deadline or any(worker.poll() is not None for worker in workers):
            raise DemoFailed(f"the Celery tasks did not get done; a worker said:\n{processes.last_lines('worker-b')}")
        time.sleep(0.05)
