"""Kill -9 of a broker under AMQP load, again and again on one directory.

What is confirmed and not acknowledged is there; what was acknowledged durably does not come back; order, bodies and
reference counts are right. Some kills hit the start, so that recovery is interrupted too, and some a quiet broker,
where housekeeping is at work.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.crash.amqp_world import SETTINGS, Expectation, Worker, abandon, declare, read_store, run_load
from tests.interop.broker_process import BrokerProcess

KILLS = 50
SEED = 20
pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


class Run:
    """One directory, killed many times."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        conf = directory / "broker.conf"
        conf.write_text("".join(f"amqp_{name}={value}\n" for name, value in SETTINGS.items()))
        self._copy = directory / "copy"
        self.broker = BrokerProcess(directory, "--amqp-port=0", f"--config={conf}", "--log-level=warning")
        self.store_directory = self.broker.data_dir / "amqp" / "store"
        self.expected = Expectation()
        self.next = 0
        self.confirmed = self.files_made = self.files_joined = self.journals_made = self.died = 0

    def kill_one(self, kill: int) -> None:
        """One life of the broker, and what must be true after it."""
        if kill % 8 == 7:
            self._kill_at_start()
        else:
            self._kill_under_load(kill)
        self.check(on_copy=self.rng.random() < 0.5)

    def _kill_at_start(self) -> None:
        process = self.broker.launch()
        try:
            process.wait(self.rng.uniform(0.1, 0.8))
        except subprocess.TimeoutExpired:
            self.broker.kill()
        else:
            raise AssertionError(f"the broker ended by itself:\n{self.broker.log()}")

    def _kill_under_load(self, kill: int) -> None:
        self.broker.start()
        port = int(self.broker.addresses["amqp"].rpartition(":")[2])
        queues = [("a", "work", "c") if kill % 3 == 0 else ("a", "work"), ("b", "dead")]
        workers = [Worker(port, self.next + part, queues[part], self.expected) for part in (0, 1)]
        declare(workers[0].client)
        for worker in workers:
            worker.consume()
        run_load(workers, self.expected, self.rng.randint(1, 2500), self._kill)
        self.next = max(self.expected.sent) // 2 * 2 + 2
        self.confirmed += len(self.expected.confirmed)

    def _kill(self) -> None:
        process = self.broker.process
        assert process is not None
        if self.rng.random() < 0.2:  # a quiet moment, in which files are collected
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(self.rng.uniform(0.05, 0.4))
        assert self.broker.kill() == -signal.SIGKILL

    def check(self, *, on_copy: bool) -> None:
        """Look at the store in place, so that the next start finds a recovered one, or at a copy of it."""
        directory = self.store_directory
        if on_copy:
            shutil.rmtree(self._copy, ignore_errors=True)
            shutil.copytree(directory, self._copy)
            directory = self._copy
        found, store = read_store(str(directory))
        self.expected.check(found)
        self.died += len(set(found["dead"]) - self.expected.there["dead"])
        self.expected = self.expected.after(found)
        self.files_made = store._persistent.next_number
        self.files_joined += sum(file.covers > file.number for file in store._persistent.files)
        self.journals_made = max(self.journals_made, store._journal._next_number)
        abandon(store)


def test_fifty_kills_under_amqp_load(tmp_path):
    run = Run(tmp_path, SEED)
    try:
        for kill in range(KILLS):
            run.kill_one(kill)
        with run.broker:  # and it stops in order, and starts from that
            pass
        run.check(on_copy=False)
    finally:
        if run.broker.process is not None:
            run.broker.process.kill()
            run.broker.process.wait()
    assert run.confirmed > 10_000
    assert run.files_made > 30
    assert run.files_joined > 0, "no message files were joined"
    assert run.journals_made > 60
    assert run.died > 100
