"""`stratamq pipeline export`: topics to a Parquet table."""

from __future__ import annotations

from pathlib import Path

import click

from stratamq.cli.jobs.options import Size, SparkOptions, spark_options
from stratamq.cli.jobs.sources import source_options
from stratamq.cli.output import Item, Kind, Printer, output_options

PLAN = (
    Item("topic", "topic"),
    Item("queue_id", "queue", Kind.COUNT),
    Item("lo", "from offset", Kind.PLACE),
    Item("hi", "to offset", Kind.PLACE),
    Item("bytes", "about", Kind.BYTES),
)
DONE = (
    Item("commits", "commits", Kind.COUNT),
    Item("files", "files", Kind.COUNT),
    Item("messages", "messages", Kind.COUNT),
    Item("bytes", "bytes of Parquet", Kind.BYTES),
    Item("lost", "messages that were gone", Kind.COUNT),
)


@click.command()
@source_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory of the table.")
@click.option("--columns", help="Columns of the table, separated by commas.  [default: all]")
@click.option("--part-bytes", type=Size(), default="128m", show_default=True, help="About how much one task reads.")
@click.option("--commit-bytes", type=Size(), default="4g", show_default=True, help="About how much one commit holds.")
@click.option("--dry-run", is_flag=True, help="Only say what is new.")
@spark_options
@output_options
def export(
    source: dict[str, str],
    out: Path,
    columns: str | None,
    part_bytes: int,
    commit_bytes: int,
    dry_run: bool,
    spark_settings: SparkOptions,
    printer: Printer,
    quiet: bool,
) -> None:
    """Add what is new in topics to a Parquet table in --out, partitioned by topic and day.

    Every message is in the table once, however often runs are killed. A second run adds what came since. --from says
    where queues begin that the table does not know yet.
    """
    from stratamq.pipeline.jobs import export as job
    from stratamq.pipeline.jobs.running import spark_runner
    from stratamq.pipeline.jobs.table import Table
    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.origins import open_origin

    options = parse_options({**source, "bytesPerSplit": str(max(part_bytes, 65_536))})
    table = Table(out)
    chosen = job.COLUMNS if columns is None else tuple(name.strip() for name in columns.split(","))
    if dry_run:
        splits, lost = job.plan_export(options, table.newest())
        rows = [(one.topic, one.queue_id, one.lo, one.hi, one.size_bytes) for one in splits]
        printer.table("plan", "Would export", PLAN, rows)
        printer.facts("gone", "Gone", [(DONE[4], lost)])
        return
    open_origin(options).close()  # before seconds go by in starting a JVM
    with spark_settings.session("export", "exporting", quiet=quiet) as (spark, progress):
        done = job.export(spark_runner(spark, progress), options, table, columns=chosen, wave_bytes=commit_bytes)
    printer.facts("exported", "Exported", list(zip(DONE, done, strict=True)))
