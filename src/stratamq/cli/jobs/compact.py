"""`stratamq pipeline compact`: flat segments of a cold tier joined into Parquet."""

from __future__ import annotations

import click

from stratamq.cli.jobs.options import SparkOptions, spark_options
from stratamq.cli.output import Item, Kind, Printer, output_options
from stratamq.cli.tier import Target, tier_options
from stratamq.clock import SystemClock

PLAN = (
    Item("topic", "topic"),
    Item("queue_id", "queue", Kind.COUNT),
    Item("first", "first", Kind.PLACE),
    Item("last", "last", Kind.PLACE),
    Item("segments", "segments", Kind.COUNT),
    Item("raw_bytes", "records", Kind.BYTES),
    Item("format", "into"),
)
DONE = (
    Item("joins", "joins", Kind.COUNT),
    Item("segments", "segments joined", Kind.COUNT),
    Item("messages", "messages", Kind.COUNT),
    Item("raw_bytes", "records", Kind.BYTES),
    Item("bytes_before", "stored before", Kind.BYTES),
    Item("bytes_after", "stored after", Kind.BYTES),
    Item("overtaken", "overtaken by the broker", Kind.COUNT),
)


@click.command()
@tier_options
@click.option("--topic", help="Only this topic.")
@click.option("--all", "eager", is_flag=True, help="Join what is not due yet, too: all that is flat.")
@click.option("--dry-run", is_flag=True, help="Only say what the first round would join.")
@spark_options
@output_options
def compact(
    target: Target,
    topic: str | None,
    eager: bool,
    dry_run: bool,
    spark_settings: SparkOptions,
    printer: Printer,
    quiet: bool,
) -> None:
    """Join flat segments of the cold tier at URL into Parquet. The broker may be running.

    Which segments are due is what the broker itself goes by (tier_compact_bytes and tier_compact_bytes_max, from
    --config).
    """
    from stratamq.pipeline.jobs import compact as job
    from stratamq.pipeline.jobs.running import spark_runner
    from stratamq.tiered import commits

    if dry_run:
        manifests = commits.find_all(target.backend).manifests
        wanted = job.plan(manifests, target.policy, SystemClock().wall_ms(), topic=topic, eager=eager)
        printer.table("plan", "Would join", PLAN, job.rows_of(wanted))
        return
    with spark_settings.session("compact", "joining", quiet=quiet) as (spark, progress):
        done = job.compact(
            spark_runner(spark, progress), job.Tier(target.policy, target.broker), topic=topic, eager=eager
        )
    printer.facts("compacted", "Compacted", list(zip(DONE, done, strict=True)))
