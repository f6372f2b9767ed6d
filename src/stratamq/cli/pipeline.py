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
TOPICS = (
    Item("topic", "topic"),
    Item("messages", "messages", Kind.COUNT),
    Item("body_bytes", "bodies", Kind.BYTES),
    Item("peak_per_second", "peak a second"),
    *(Item(f"size_{share}", f"size {share}", Kind.BYTES) for share in ("p50", "p99")),
    *(Item(f"latency_ms_{share}", f"wait {share}, ms", Kind.COUNT) for share in ("p50", "p99")),
    Item("last_ms", "last stored", Kind.TIME),
)
UNDELIVERED = (
    Item("group", "group"),
    Item("kind", "what"),
    Item("messages", "messages", Kind.COUNT),
    Item("body_bytes", "bodies", Kind.BYTES),
    Item("first_ms", "first", Kind.TIME),
    Item("last_ms", "last", Kind.TIME),
)
BACKLOGS = (
    Item("group", "group"),
    Item("topic", "topic"),
    Item("messages", "waiting", Kind.COUNT),
    Item("oldest_ms", "oldest", Kind.TIME),
    Item("lost", "deleted unread", Kind.COUNT),
)
MARKS = (
    Item("percent", "above %", Kind.COUNT),
    Item("meaning", "then"),
    Item("at_ms", "reached", Kind.TIME),
)
TRACE = (
    Item("stored_ms", "stored", Kind.TIME),
    Item("born_ms", "born", Kind.TIME),
    Item("topic", "topic"),
    Item("queue_id", "queue", Kind.COUNT),
    Item("queue_offset", "offset", Kind.PLACE),
    Item("message_id", "message id"),
    Item("tags", "tag"),
    Item("keys", "keys"),
    Item("body_bytes", "bytes", Kind.COUNT),
    Item("reconsume_times", "tried again", Kind.COUNT),
)
TEXT_KEYS_MAX = 5
TEXT_ROWS_MAX = 20


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
@click.option("--trace", "trace_key", default="", help="Also show every message with this key or message id.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="broker.conf: how long messages are kept, for the forecast.",
)
@click.option("--dry-run", is_flag=True, help="Only say how much would be read.")
@spark_options
@output_options
def report(
    store: Path,
    html: Path,
    json_file: Path | None,
    trace_key: str,
    config_file: Path | None,
    dry_run: bool,
    spark_settings: SparkOptions,
    printer: Printer,
    quiet: bool,
) -> None:
    """Write a report on what is in a store: rates, sizes, tags, keys, balance of queues, delays, dead letters.

    It also says how long the disk lasts and what groups have not consumed.

    The store is read up to where it ends now.
    """
    from stratamq.cli.clean import read_policy
    from stratamq.logstore.listing import require_store
    from stratamq.pipeline.jobs.report import make_report, write_report

    require_store(store)  # before seconds go by in starting a JVM
    policy = read_policy(config_file, None)
    if dry_run:
        say_plan(store, printer)
        return
    with spark_settings.session("report", "reading the store", quiet=quiet) as (spark, progress):
        made = make_report(spark, store, progress, policy=policy, trace_key=trace_key)
    write_report(made, html, json_file)
    say(made, html, json_file, printer)


def say_plan(store: Path, printer: Printer) -> None:
    """Print how much a report would read."""
    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.plan import plan_read

    splits = plan_read(parse_options({"path": str(store)}))
    facts = [
        (Item("messages", "messages", Kind.COUNT), sum(split.hi - split.lo for split in splits)),
        (Item("bytes", "bytes of the log", Kind.BYTES), sum(split.size_bytes for split in splits)),
    ]
    printer.facts("plan", "Would read", facts)


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
    printer.table("topics", "Busiest topics", TOPICS, made.topic_totals[:TEXT_ROWS_MAX])
    shares = [("body size, bytes", made.sizes), ("born to stored, ms", made.latency)]
    rows = [(what, one.low, *one.percentiles.values(), one.high, one.is_exact) for what, one in shares if one.count]
    printer.table("distributions", "Distributions", SHARES, rows)
    printer.table("top_keys", "Most frequent keys", KEYS, made.top_keys[:TEXT_KEYS_MAX])
    printer.table("undelivered", "Dead letters and retries", UNDELIVERED, made.undelivered)
    printer.table("backlogs", "What groups have not consumed", BACKLOGS, made.backlogs[:TEXT_ROWS_MAX])
    if made.outlook is not None:
        rows = [(mark.percent, mark.meaning, mark.at_ms) for mark in made.outlook.marks]
        printer.table("marks", "When the disk reaches each mark", MARKS, rows)
    if made.trace_key:
        printer.table("trace", f"Messages with the key {made.trace_key}", TRACE, [one[:-1] for one in made.trace])
