"""`stratamq pipeline`: bulk work on a store with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stratamq.cli.jobs.options import SparkOptions, spark_options
from stratamq.cli.main import Lazy, LazyGroup
from stratamq.cli.output import Item, Kind, Printer, output_options

if TYPE_CHECKING:
    from stratamq.pipeline.jobs.summary import Report

JOBS: Final = {
    "verify": Lazy("stratamq.cli.jobs.verify:verify", "Check a store of any size: store check in parallel."),
    "rebuild": Lazy("stratamq.cli.jobs.rebuild:rebuild", "Make ConsumeQueues and index anew from the CommitLog."),
    "compact": Lazy("stratamq.cli.jobs.compact:compact", "Join flat segments of a cold tier into Parquet."),
    "export": Lazy("stratamq.cli.jobs.export:export", "Add what is new in topics to a Parquet table."),
    "replay": Lazy("stratamq.cli.jobs.replay:replay", "Send messages to topics again."),
}

TAGS = (
    Item("topic", "topic"),
    Item("tag", "tag"),
    Item("messages", "messages", Kind.COUNT),
    Item("body_bytes", "bodies", Kind.BYTES),
)
SHARES = (
    Item("what", "of"),
    Item("low", "lowest", Kind.COUNT),
    *(Item(name, name, Kind.COUNT) for name in ("p50", "p90", "p99", "p99.9")),
    Item("high", "highest", Kind.COUNT),
    Item("is_exact", "exact"),
)
KEYS = (Item("key", "key"), Item("messages", "messages", Kind.COUNT))
TEXT_KEYS_MAX = 5


@click.group(cls=LazyGroup, commands_lazy=JOBS)
def pipeline() -> None:
    """Bulk work on a store directory, done by Spark. Needs: pip install 'stratamq[spark]'."""


@pipeline.command()
@click.option(
    "--store", required=True, type=click.Path(path_type=Path), help="Store directory; a broker may be running."
)
@click.option(
    "--out", "html", required=True, type=click.Path(path_type=Path, dir_okay=False), help="HTML file to write."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write all figures here."
)
@spark_options
@output_options
def report(
    store: Path, html: Path, json_file: Path | None, spark_settings: SparkOptions, printer: Printer, quiet: bool
) -> None:
    """Write a report on what is in a store: rates, sizes, tags, keys, balance of queues, delays.

    The store is read up to where it ends now.
    """
    from stratamq.logstore.listing import require_store
    from stratamq.pipeline.jobs.report import make_report, write_report

    require_store(store)  # before seconds go by in starting a JVM
    with spark_settings.session("report", "reading the store", quiet=quiet) as (spark, progress):
        made = make_report(spark, store, progress)
    write_report(made, html, json_file)
    say(made, html, json_file, printer)


def say(made: Report, html: Path, json_file: Path | None, printer: Printer) -> None:
    """Print the figures that fit on a screen, and where the report lies."""
    facts = [
        (Item("path", "store"), made.store),
        (Item("messages", "messages", Kind.COUNT), made.messages),
        (Item("body_bytes", "bodies", Kind.BYTES), made.body_bytes),
        (Item("topics", "topics", Kind.COUNT), len(made.topics)),
        (Item("queues", "queues with messages", Kind.COUNT), len(made.queues)),
        (Item("first_ms", "first stored", Kind.TIME), made.first_ms or None),
        (Item("last_ms", "last stored", Kind.TIME), made.last_ms or None),
        (Item("html", "report"), str(html)),
        (Item("json", "figures"), None if json_file is None else str(json_file)),
    ]
    printer.facts("summary", "Report", facts)
    if made.was_killed:
        printer.remark("The broker was killed: messages that no queue knows yet are not counted. Start it to recover.")
    printer.table("tags", "Topics and tags", TAGS, made.tag_totals)
    shares = [("body size, bytes", made.sizes), ("born to stored, ms", made.latency)]
    rows = [(what, one.low, *one.percentiles.values(), one.high, one.is_exact) for what, one in shares if one.count]
    printer.table("distributions", "Distributions", SHARES, rows)
    printer.table("top_keys", "Most frequent keys", KEYS, made.top_keys[:TEXT_KEYS_MAX])
