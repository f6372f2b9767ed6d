"""`stratamq pipeline verify`: `store check` of a store of any size."""

from __future__ import annotations

from pathlib import Path

import click

from stratamq.cli.jobs.options import Size, SparkOptions, spark_options
from stratamq.cli.output import Item, Kind, Printer, output_options
from stratamq.cli.store_check import show_check
from stratamq.errors import CorruptionError

PLAN = (
    Item("log_bytes", "bytes of log", Kind.BYTES),
    Item("parts", "parts of the log", Kind.COUNT),
    Item("index_files", "index files", Kind.COUNT),
    Item("queue_tasks", "groups of queues", Kind.COUNT),
)


@click.command()
@click.option("--store", required=True, type=click.Path(path_type=Path), help="Store directory; only read.")
@click.option(
    "--part-bytes", type=Size(), default="1g", show_default=True, help="About how much of the log one task reads."
)
@click.option(
    "--index-every",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Compare the index with every n-th file of the log; 0: with none, only its structure.",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that keeps what is done: the same call after a kill goes on there.",
)
@click.option("--dry-run", is_flag=True, help="Only say how the work would be cut.")
@spark_options
@output_options
def verify(
    store: Path,
    part_bytes: int,
    index_every: int,
    journal: Path | None,
    dry_run: bool,
    spark_settings: SparkOptions,
    printer: Printer,
    quiet: bool,
) -> int:
    """Compare every checksum and every cross reference of a store, its parts in parallel. Only reads.

    Findings and exit codes are those of `store check`: 0 when nothing is wrong, 4 when something is damaged.
    """
    from stratamq.pipeline.jobs.verify import plan_verify
    from stratamq.pipeline.jobs.verify import verify as run

    plan = plan_verify(store, part_bytes=part_bytes, index_every=index_every)
    if dry_run:
        printer.facts("plan", "Would check", list(zip(PLAN, plan, strict=True)))
        return 0
    with spark_settings.session("verify", "checking", quiet=quiet) as (spark, progress):
        report = run(spark, store, part_bytes=part_bytes, index_every=index_every, journal=journal, progress=progress)
    show_check(report, printer)
    return CorruptionError.exit_code if report.is_damaged else 0
