"""`stratamq pipeline rebuild`: ConsumeQueues and index made anew from the CommitLog."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from stratamq.cli.jobs.options import Size, SparkOptions, spark_options
from stratamq.cli.output import Item, Kind, Printer, output_options
from stratamq.config import BrokerConfig, StoreConfig
from stratamq.errors import ConfigError

PLAN = (
    Item("log_bytes", "bytes of log", Kind.BYTES),
    Item("parts", "parts of the log", Kind.COUNT),
    Item("queue_file_bytes", "length of a queue file", Kind.COUNT),
    Item("index_slots", "slots of an index file", Kind.COUNT),
    Item("index_entries", "entries of an index file", Kind.COUNT),
)
MADE = (
    Item("log_bytes", "bytes of log", Kind.BYTES),
    Item("parts", "parts of the log", Kind.COUNT),
    Item("records", "records", Kind.COUNT),
    Item("queues", "queues", Kind.COUNT),
    Item("units", "consume-queue units", Kind.COUNT),
    Item("index_files", "index files", Kind.COUNT),
    Item("index_entries", "index entries", Kind.COUNT),
)


@click.command()
@click.option("--store", required=True, type=click.Path(path_type=Path), help="Store directory.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory that gets consumequeue/ and index/.")
@click.option("--in-place", is_flag=True, help="Replace those of the store, whose broker must be stopped.")
@click.option("--no-index", is_flag=True, help="Only the queues.")
@click.option("--spool", type=click.Path(path_type=Path), help="Directory for what lies in between.  [default: --out]")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="broker.conf: lengths of files where none are there to be measured, and messageDelayLevel.",
)
@click.option(
    "--part-bytes", type=Size(), default="1g", show_default=True, help="About how much of the log one task reads."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be read, and how long files would be.")
@spark_options
@output_options
def rebuild(
    store: Path,
    out: Path | None,
    in_place: bool,
    no_index: bool,
    spool: Path | None,
    config_file: Path | None,
    part_bytes: int,
    dry_run: bool,
    spark_settings: SparkOptions,
    printer: Printer,
    quiet: bool,
) -> None:
    """Make the ConsumeQueues and the index of a store anew from its CommitLog, byte for byte a broker's.

    Into another directory (--out), with a broker running or not, or --in-place with the broker stopped. The same call
    after a kill goes on where it was.
    """
    from stratamq.pipeline.jobs import rebuild as job
    from stratamq.pipeline.jobs.running import cores_of, spark_runner
    from stratamq.server.broker_conf import build, read_broker_conf

    if in_place == (out is not None):
        raise ConfigError("--out", out, "a directory, or --in-place: one of the two")
    values = read_broker_conf(config_file).values if config_file is not None else {}
    shape = build(StoreConfig, values.get(StoreConfig, {}))
    levels = build(BrokerConfig, values.get(BrokerConfig, {})).delay_levels
    with ExitStack() as stack:
        if in_place and not dry_run:
            stack.enter_context(job.store_held(store))
        plan = job.plan_rebuild(store, spool or out or store, shape, delay_levels=levels, part_bytes=part_bytes)
        if dry_run:
            found = dict(job.describe(plan))
            printer.facts("plan", "Would rebuild", [(item, found[item.key]) for item in PLAN])
            return
        spark, progress = stack.enter_context(spark_settings.session("rebuild", "rebuilding", quiet=quiet))
        runner, shares = spark_runner(spark, progress), max(1, cores_of(spark))
        if in_place:
            made = job.rebuild_in_place(runner, plan, shares=shares, with_index=not no_index)
        else:
            assert out is not None
            made = job.rebuild_elsewhere(runner, plan, out, shares=shares, with_index=not no_index)
    printer.facts("rebuilt", "Rebuilt", list(zip(MADE, made, strict=True)))
