"""The whole of StrataMQ in a minute or two: unmodified RocketMQ and Celery clients in, Spark out, all of it checked.

Run it with ``./dev demo``; ``./dev demo --events 2000`` is quicker. It ends with 0 only when everything fitted.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from examples.demo import orders  # noqa: E402
from examples.demo.checks import Received, check_counts, check_received  # noqa: E402
from examples.demo.clients import GROUP  # noqa: E402
from examples.demo.cold import check_tier, go_to_the_start, tier_options, wait_for_tier  # noqa: E402
from examples.demo.processes import DemoFailed, Processes, stop_broker, watch  # noqa: E402
from examples.demo.query import query_by_key  # noqa: E402
from examples.demo.screen import Screen  # noqa: E402
from examples.demo.tasks import run_tasks  # noqa: E402
from stratamq.errors import StrataError  # noqa: E402
from stratamq.formats.properties import KEYS, TAGS, decode_properties, split_keys  # noqa: E402
from stratamq.units import format_bytes  # noqa: E402

EVENTS = 100_000
SENDERS = 4
"""Sending processes. Not a multiple of 3, so that each sender has events of every topic."""
TASKS = 3_000
"""Celery tasks."""
MARKER = "made-by-the-stratamq-demo"


class Demo:
    """The story, one method a chapter. What later chapters and the last table need is kept in fields."""

    def __init__(self, events: int, out: Path, screen: Screen, processes: Processes) -> None:
        self.events = events
        self.tasks = min(TASKS, events)
        self.out = out
        self.store = out / "store"
        self.screen = screen
        self.processes = processes
        self.sent: collections.Counter[tuple[str, str]] = collections.Counter()
        self.sent_bytes = 0
        self.digests: list[str] = []
        self.rows: list[tuple[str, str]] = []

    def run(self) -> None:
        """All chapters. Raises DemoFailed at the first thing that is not as it must be."""
        with self.screen.chapter("Start a broker with its name server"):
            broker, addresses = self.processes.start_broker(self.store, *tier_options(self.out))
            self.screen.say(
                f"   name server {addresses['namesrv']}, broker {addresses['broker']}, data in {self.store}"
            )
        with self.screen.chapter(f"Send {self.events:,} order events with RocketMQ's C++ client"):
            self.send(addresses["namesrv"])
        with self.screen.chapter("Consume all of them with the same client, and check every one"):
            self.consume(addresses["namesrv"])
        with self.screen.chapter("Look one order up by its key"):
            self.look_up(addresses["broker"])
        with self.screen.chapter(f"Run {self.tasks:,} Celery tasks over AMQP, and kill a worker half-way"):
            self.celery(addresses)
        with self.screen.chapter("Wait until the cold tier has everything"):
            self.tier(addresses["http"])
        with self.screen.chapter("Stop the broker, then check its files"):
            stop_broker(broker, self.processes)
            self.screen.say("   stopped in order (exit code 0)")
            self.check_store()
        with self.screen.chapter("Report on the store with Spark"):
            self.report()
        with self.screen.chapter("Lose the disk: an empty data directory, and the same cold tier"):
            self.serve_from_tier()

    def send(self, namesrv: str) -> None:
        """Four processes send, each its own share and in order, every message answered before the next."""
        arguments = ["send", "--namesrv", namesrv, "--events", str(self.events), "--senders", str(SENDERS)]
        with self.screen.bar("sending", self.events) as bar:
            senders = [
                self.processes.start_client(f"sender-{number}", [*arguments, "--sender", str(number)])
                for number in range(SENDERS)
            ]
            watch(senders, bar.at, self.processes)
        done = sum(sender.done for sender in senders)
        if done != self.events:
            raise DemoFailed(f"{done:,} of {self.events:,} events were acknowledged")
        rate = self.events / max(sender.seconds for sender in senders)
        self.screen.say(f"   {done:,} acknowledged, {rate:,.0f} a second, from {SENDERS} processes")
        self.rows.append(("sent", f"{done:,} events, each acknowledged; {rate:,.0f} a second"))

    def consume(self, namesrv: str) -> None:
        """A push consumer takes all; then content, completeness and order are compared with what the events must be."""
        with self.screen.bar("making the events again to compare", self.events) as bar:
            for event in orders.events(self.events):
                self.sent[event.topic, event.tag] += 1
                self.sent_bytes += len(event.body)
                self.digests.append(event.digest.hex())
                if event.number % 500 == 0:
                    bar.at(event.number)
        received, rate = self.take_all(namesrv, "consumer")
        queues = len({(row.topic, row.queue_id) for row in received})
        self.screen.say(
            f"   every topic, tag, key and body as sent; none lost, none twice; in order in all {queues} queues"
        )
        self.rows.append(("received", f"{len(received):,} events from {queues} queues; {rate:,.0f} a second"))
        self.rows.append(("checked", "content, keys and tags of every event; none lost, none twice, order kept"))

    def take_all(self, namesrv: str, name: str) -> tuple[list[Received], float]:
        """Consume every event with the C++ client and check each; what came, and how many a second."""
        out = self.processes.logs / f"received-{name}.jsonl"
        arguments = ["consume", "--namesrv", namesrv, "--events", str(self.events), "--out", str(out)]
        with self.screen.bar("consuming", self.events) as bar:
            consumer = self.processes.start_client(name, arguments)
            watch([consumer], bar.at, self.processes)
        rate = consumer.done / max(consumer.seconds, 0.001)
        self.screen.say(f"   {consumer.done:,} delivered, {rate:,.0f} a second")
        with out.open(encoding="utf-8") as file:
            received = [Received(*json.loads(line)) for line in file]
        _demand(check_received(received, self.digests.__getitem__, self.events, SENDERS))
        return received, rate

    def look_up(self, address: str) -> None:
        """The same order by three ways: over the wire, by the command line while the broker runs, and from memory."""
        wanted = orders.event(self.events // 2 // 3 * 3)
        order_id = wanted.keys.split(" ")[0]
        records = query_by_key(address, wanted.topic, order_id)
        own = [
            record for record in records if order_id in split_keys(decode_properties(record.properties).get(KEYS, ""))
        ]
        if len(own) != _events_of(wanted, self.events) or wanted.body not in [record.body for record in own]:
            raise DemoFailed(f"asking the broker for {order_id} gave {len(own)} messages, not the one that was sent")
        tags = ", ".join(decode_properties(record.properties).get(TAGS, "") for record in own)
        self.screen.say(f"   {order_id} over the wire (QUERY_MESSAGE): {len(own)} in topic {wanted.topic} ({tags})")
        found = query_store(self.processes, self.store, wanted.topic, order_id)
        if sorted(found) != sorted(record.queue_offset for record in own):
            raise DemoFailed(
                f"stratamq store query finds {order_id} at queue offsets {found}, not where the broker does"
            )
        self.screen.say(f"   {order_id} by stratamq store query on the files: the same")
        self.rows.append(("looked up", f"{order_id}, over the wire and in the files: found, the same"))

    def celery(self, addresses: dict[str, str]) -> None:
        """An unmodified Celery application; every task is done, though a worker dies with some of them in its hands."""
        if "amqp" not in addresses:
            raise DemoFailed("the broker has no AMQP port")
        with self.screen.bar("tasks", self.tasks) as bar:
            again, after = run_tasks(self.processes, addresses["amqp"], self.out / "tasks", self.tasks, bar.at)
        self.screen.say(
            f"   {self.tasks:,} tasks done, none lost; {after:,} of them after one of two workers was killed"
        )
        self.screen.say(f"   {again:,} done once more: their worker died before it could acknowledge them")
        self.rows.append(("Celery", f"{self.tasks:,} tasks, a worker killed half-way; none lost, {again:,} done twice"))

    def tier(self, http: str) -> None:
        """Everything that was sent has been copied to the folder that stands for an object store."""
        with self.screen.bar("uploading", self.events) as bar:
            said = wait_for_tier(http, self.events, bar.at)
        stored = sum(row["bytes"] for row in said["queues"])
        self.screen.say(f"   {self.events:,} events in {format_bytes(stored)} at {said['address']}")

    def serve_from_tier(self) -> None:
        """A new broker on an empty directory: the same client gets all events again, from the cold tier alone."""
        store = self.out / "store-after-the-loss"
        broker, addresses = self.processes.start_broker(store, *tier_options(self.out))
        self.screen.say(f"   a new broker in {store}, with no message of its own")
        go_to_the_start(self.processes, addresses["namesrv"], addresses["broker"], GROUP)
        received, rate = self.take_all(addresses["namesrv"], "consumer-after-the-loss")
        self.screen.say(f"   every event once more, as sent and in order, from the cold tier; {rate:,.0f} a second")
        stop_broker(broker, self.processes)
        check_tier(self.processes, self.out)
        self.screen.say("   stratamq tier check --deep: every record and checksum good")
        self.rows.append(("cold tier", f"{len(received):,} events served from it alone, each of them as sent"))

    def check_store(self) -> None:
        """Every checksum and every cross-reference, from the files alone."""
        code, _ = self.processes.run_json("store-check", ["store", "check", str(self.store), "--output", "json"])
        if code:
            said = self.processes.last_lines("store-check")
            raise DemoFailed(f"stratamq store check found something wrong (exit code {code}):\n{said}")
        size = sum(file.stat().st_blocks * 512 for file in self.store.rglob("*") if file.is_file())
        self.screen.say(f"   stratamq store check: no fault in {format_bytes(size)} on disk")
        self.rows.append(("files", f"every checksum and cross-reference good; {format_bytes(size)} on disk"))

    def report(self) -> None:
        """Spark counts what lies in the store; that must be what was sent."""
        from stratamq.pipeline.jobs.report import make_report, write_report
        from stratamq.pipeline.session import session

        html = self.out / "report.html"
        with self.screen.bar("starting Spark", 0):
            spark = session("stratamq demo", jvm_log=self.processes.logs / "spark.log")
        jvm: Any = spark.sparkContext._jvm
        java = jvm.System.getProperty("java.version")
        self.screen.say(f"   Spark {spark.version} on Java {java}")
        try:
            with self.screen.bar("reading the store, tasks", 0) as bar:
                made = make_report(spark, self.store, bar.at)
        finally:
            spark.stop()
        write_report(made, html, self.out / "report.json")
        found = {(one.topic, one.tag): one.messages for one in made.tag_totals if one.topic in orders.TOPICS}
        problems = check_counts(self.sent, found, "Spark")
        body_bytes = sum(one.bytes for one in made.tag_totals if one.topic in orders.TOPICS)
        if body_bytes != self.sent_bytes:
            problems.append(f"Spark counts {body_bytes:,} bytes of bodies, sent were {self.sent_bytes:,}")
        _demand(problems)
        sizes = made.sizes.percentiles
        self.screen.say(f"   {made.messages:,} messages, {format_bytes(body_bytes)} of bodies: just what was sent")
        self.rows.append(("Spark", f"counts the same, by topic and tag; {made.seconds:.1f} s for the job"))
        self.rows.append(("sizes", f"half of the bodies up to {sizes['p50']:,} B, 99 % up to {sizes['p99']:,} B"))
        self.rows.append(("report", str(html)))
        self.rows.append(("store", str(self.store)))


def query_store(processes: Processes, store: Path, topic: str, key: str) -> list[int]:
    """Queue offsets of a topic's messages with a key, by ``stratamq store query``."""
    arguments = ["store", "query", str(store), "--topic", topic, "--key", key, "--output", "json"]
    code, messages = processes.run_json("store-query", arguments)
    if code:
        raise DemoFailed(f"stratamq store query ended with exit code {code}:\n{processes.last_lines('store-query')}")
    return [message["queue_offset"] for message in messages]


def _events_of(wanted: orders.Event, count: int) -> int:
    """How many events of the same order went into the same topic."""
    numbers = range(wanted.number, min(wanted.number + 3, count))
    return sum(orders.event(number).topic == wanted.topic for number in numbers)


def _demand(problems: list[str]) -> None:
    if problems:
        raise DemoFailed("this does not fit:\n  " + "\n  ".join(problems))


def fresh_folder(out: Path) -> None:
    """An empty folder for this run; an older run's is removed, anybody else's is not touched."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise DemoFailed(f"{out} holds something that is not the demo's; give another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()


def missing_client() -> str:
    """Why the unmodified client cannot be had here; empty when it is there."""
    if importlib.util.find_spec("rocketmq") is not None:
        return ""
    return (
        f"The unmodified RocketMQ client that this demo sends with (the PyPI package rocketmq 0.4.4) exists only for "
        f"Linux on x86-64; this is {platform.system()} on {platform.machine()}.\n"
        "Run the demo on such a machine or in a container of that platform (docker run --platform linux/amd64 ...). "
        "The broker itself runs here: ./dev serve, and any RocketMQ client that your platform has can talk to it."
    )


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev demo", description="An end-to-end run of StrataMQ.")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"how many events to send (default {EVENTS:,})")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-output", help="folder for store, report and logs")
    options = parser.parse_args(arguments)
    if options.events < 10:
        parser.error("--events must be at least 10")
    screen = Screen()
    reason = missing_client()
    if reason:
        screen.say(reason)
        return 3
    out = options.out.absolute()
    try:
        fresh_folder(out)
        (out / "logs").mkdir()
        with Processes(out / "logs") as processes:
            demo = Demo(options.events, out, screen, processes)
            demo.run()
    except (DemoFailed, StrataError, OSError) as error:
        screen.say(f"\nThe demo failed: {error}\nLogs: {out / 'logs'}")
        return 1
    except KeyboardInterrupt:
        screen.say("\nStopped; every process of the demo has ended.")
        return 130
    screen.table([*demo.rows, ("took", f"{screen.seconds():.0f} s in all")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
