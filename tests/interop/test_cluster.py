"""Name servers and brokers in processes of their own: ours together, and each with RocketMQ's other half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.broker_process import ROOT, START_SECONDS, STOP_SECONDS
from tests.interop.cpp_world import Client, bodies, specs, without_client
from tests.interop.rocketmq_java.runner import RocketServer, Unavailable

pytestmark = [pytest.mark.interop]


class Process:
    """One ``stratamq`` command that runs until it is stopped."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ready = folder / f"{name}.json"
        command = [sys.executable, "-m", "stratamq.cli.main", *arguments, "--data-dir", str(folder / name)]
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--ready-file", str(ready)],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"{name} did not start:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.addresses: dict[str, str] = json.loads(ready.read_text())

    def stop(self) -> int:
        """Stop it in order; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()


class Cluster:
    """Processes of one test; all are stopped at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.clients: list[Client] = []

    def names(self, name: str) -> Process:
        self.processes.append(Process(self.folder, name, "nameserver", "--port", "0"))
        return self.processes[-1]

    def broker(self, name: str, namesrv: str) -> Process:
        conf = self.folder / f"{name}.conf"
        conf.write_text(f"brokerName={name}\nbrokerClusterName=DefaultCluster\n")
        ports = ["--broker-port", "0", "--http-port", "0", "--amqp-port", "-1"]
        self.processes.append(Process(self.folder, name, "broker", *ports, "--namesrv", namesrv, "--config", str(conf)))
        return self.processes[-1]

    def client(self, role: str, namesrv: str, **options: Any) -> Client:
        self.clients.append(Client(self.folder, role, namesrv=namesrv, **options))
        return self.clients[-1]

    def produce(self, namesrv: str, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        client = self.client("produce", namesrv, topic=topic, messages=messages, how="sync")
        client.wait_until(lambda: any("done" in line for line in client.lines), "sending")
        return [line for line in client.finish() if "done" not in line]

    def close(self) -> None:
        for client in self.clients:
            if client.process.poll() is None:
                client.kill()
        for process in reversed(self.processes):
            process.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.mark.quick
@without_client
def test_two_brokers_share_a_topic_and_one_goes(cluster):
    first, second = cluster.names("names-1"), cluster.names("names-2")
    both = f"{first.addresses['namesrv']};{second.addresses['namesrv']}"
    one, _ = cluster.broker("broker-a", both), cluster.broker("broker-b", both)
    sent = cluster.produce(both, "shared", specs(32))
    assert {row["status"] for row in sent} == {0}
    consumer = cluster.client("consume", both, topic="shared", group="g").wait_started()
    consumer.wait_for_messages(32)
    assert bodies(consumer.messages) == bodies(specs(32))
    assert first.stop() == 0, first.log.read_text()
    assert one.stop() == 0, one.log.read_text()
    alone = second.addresses["namesrv"]
    sent = cluster.produce(alone, "shared", specs(8, "later"))
    assert {row["status"] for row in sent} == {0}
    consumer.wait_for_bodies(bodies(specs(8, "later")))


@without_client
def test_our_broker_registers_with_the_name_server_of_rocketmq(cluster, tmp_path):
    try:
        with RocketServer(tmp_path / "theirs", tmp_path / "work") as rocket:
            cluster.broker("broker-ours", rocket.namesrv)
            sent = cluster.produce(rocket.namesrv, "TopicEverywhere", specs(40))
            assert {row["status"] for row in sent} == {0}
            consumer = cluster.client("consume", rocket.namesrv, topic="TopicEverywhere", group="g").wait_started()
            consumer.wait_for_messages(40)
            assert bodies(consumer.messages) == bodies(specs(40))
            for process in reversed(cluster.processes):
                assert process.stop() == 0
    except Unavailable as error:
        pytest.skip(str(error))


@without_client
def test_the_broker_of_rocketmq_registers_with_our_name_server(cluster, tmp_path):
    names = cluster.names("names").addresses["namesrv"]
    try:
        with RocketServer(tmp_path / "theirs", tmp_path / "work", namesrv=names):
            sent = cluster.produce(names, "TopicTheirs", specs(8))
            assert {row["status"] for row in sent} == {0}
            consumer = cluster.client("consume", names, topic="TopicTheirs", group="g").wait_started()
            consumer.wait_for_messages(8)
    except Unavailable as error:
        pytest.skip(str(error))
