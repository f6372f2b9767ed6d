"""Run benchmarks: ``python -m bench [NAME ...] [--rounds N] [--json FILE]``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.rows import Missing, Row

SUITES = {
    "embedded": "appending inside the process against SQLite, LMDB and RocksDB",
    "broker": "sending and consuming over the wire against RabbitMQ",
    "replicas": "sending to a group of three against one broker with sync flush, and against RabbitMQ's quorum queues",
    "amqp": "publishing and consuming over AMQP against RabbitMQ",
    "amqp_declares": "declaring durable queues against RabbitMQ",
    "bulk": "the Arrow reader against pyarrow on Parquet",
    "spark_scan": "Spark on a store against Spark on Parquet",
    "spark": "Spark on a store, a cold tier, a broker and as a stream against Spark on Parquet",
    "queuestore": "the queue store: confirmed publishes, restarts, memory of a long backlog",
    "recovery": "restart after kill -9 with 10 GiB of log against RocketMQ",
    "cleaning": "latency of sends while ten files of the log are deleted against without",
    "memory": "the broker's own memory with a large store and many connections",
    "tier": "the cold tier: sealing, reading back, against raw copies, local files, Parquet",
    "compact": "the cold tier's small messages joined into Parquet against pyarrow alone",
    "master_slave": "sending to a master that waits for its slave, against one broker, against RocketMQ's pair",
    "timers": "a million messages waiting for their time against a heap in memory",
}


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(f"{k}: {v}" for k, v in SUITES.items()))
    parser.add_argument("--rounds", type=int, default=5, help="measured pairs a row")
    parser.add_argument("--json", type=Path, default=Path("bench-output/results.json"), help="where the figures go")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(SUITES))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(SUITES)}")
    console = Console(width=None if sys.stdout.isatty() else 170)
    results: list[Row | Missing] = []
    for name in options.names or SUITES:
        console.print(f"[bold]{name}[/bold]: {SUITES[name]} ...")
        started = time.monotonic()
        rows = importlib.import_module(f"bench.{name}").run(options.rounds)
        results.extend(rows)
        console.print(f"  {len(rows)} rows in {time.monotonic() - started:.0f} s")
    console.print(render(results))
    write_json(options.json, results)
    console.print(f"Figures with every pair: {options.json}")
    return 0


def render(results: list[Row | Missing]) -> Table:
    """The table that people read."""
    table = Table(title="StrataMQ against its peers (ratio above 1: we are faster)")
    for heading in ("job", "peer", "ours", "peer's", "ratio (median)", "range", "target", ""):
        table.add_column(heading, justify="right" if heading in ("ours", "peer's", "ratio (median)") else "left")
    for row in results:
        if isinstance(row, Missing):
            table.add_row(row.job, "-", "-", "-", "-", "-", "-", f"not run: {row.reason}")
            continue
        met = "" if row.target is None else ("met" if row.ratio >= row.target else "missed")
        ours, theirs = sorted(row.ours)[len(row.ours) // 2], sorted(row.theirs)[len(row.theirs) // 2]
        table.add_row(
            row.job,
            row.peer,
            f"{ours:,.0f} {row.unit}",
            f"{theirs:,.0f}",
            f"{row.ratio:.2f}",
            f"{row.spread[0]:.2f}..{row.spread[1]:.2f}",
            "" if row.target is None else f"{row.target:g}",
            " ".join(part for part in (met, row.note) if part),
        )
    return table


def write_json(path: Path, results: list[Row | Missing]) -> None:
    """Machine, commit and every pair, so that a figure can be traced to its run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "commit": commit,
        "python": sys.version.split()[0],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rows": [row.as_json() for row in results],
    }
    path.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())
