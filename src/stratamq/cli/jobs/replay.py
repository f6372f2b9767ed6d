"""`stratamq pipeline replay`: messages sent to topics again."""

from __future__ import annotations

from pathlib import Path

import click

from stratamq.cli.jobs.options import Size, SparkOptions, spark_options
from stratamq.cli.jobs.sources import source_options
from stratamq.cli.output import Item, Kind, Printer, output_options
from stratamq.errors import ConfigError

PLAN = (
    Item("topic", "topic"),
    Item("queue_id", "queue", Kind.COUNT),
    Item("lo", "from offset", Kind.PLACE),
    Item("hi", "to offset", Kind.PLACE),
    Item("files", "files", Kind.COUNT),
)
DONE = (
    Item("sent", "sent", Kind.COUNT),
    Item("bytes", "bytes of bodies", Kind.BYTES),
    Item("found_there", "there already", Kind.COUNT),
    Item("left_out", "left out by tag or key", Kind.COUNT),
)


@click.command()
@source_options
@click.option("--table", type=click.Path(path_type=Path), help="Read a table that `pipeline export` made.")
@click.option("--namesrv", required=True, metavar="HOST:PORT", help="Name server of the target.")
@click.option("--to-broker", help="Broker of the target, where its topics lie on several.")
@click.option("--to-topic", default="", help="Topic that gets everything.  [default: each message's own]")
@click.option("--tag", help="Only messages with this tag.")
@click.option("--key", help="Only messages with this key.")
@click.option("--rate", type=click.FloatRange(min=0), default=0, help="Messages a second, all together; 0: no limit.")
@click.option("--name", default="replay", show_default=True, help="Name that the keys of sent messages begin with.")
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that says how far it is: the same call after a kill goes on there.",
)
@click.option("--part-bytes", type=Size(), default="64m", show_default=True, help="About how much one task sends.")
@click.option("--dry-run", is_flag=True, help="Only say what would be read.")
@spark_options
@output_options
def replay(
    source: dict[str, str],
    table: Path | None,
    namesrv: str,
    to_broker: str | None,
    to_topic: str,
    tag: str | None,
    key: str | None,
    rate: float,
    name: str,
    state_file: Path | None,
    part_bytes: int,
    dry_run: bool,
    spark_settings: SparkOptions,
    printer: Printer,
    quiet: bool,
) -> None:
    """Send messages of a store, a broker, a cold tier or an exported table to topics again, which must be there.

    The order within a queue is kept. Each message carries the property STRATA_REPLAY_KEY, the same whenever it is
    sent by this name again.
    """
    from stratamq.pipeline.jobs import replay as job
    from stratamq.pipeline.jobs.running import cores_of, spark_runner
    from stratamq.pipeline.jobs.table import Table
    from stratamq.pipeline.options import parse_options

    places = {"path", "namesrv", "tier"} & set(source)
    if bool(places) == (table is not None):
        raise ConfigError("--table", table, "a table, or --store, --from-namesrv or --tier: one of them")
    if table is not None and ("subscribePattern" in source or "broker" in source):
        raise ConfigError("--table", table, "chosen from by --topics, --from, --to, --tag and --key alone")
    read = None if table else parse_options({**source, "bytesPerSplit": str(max(part_bytes, 65_536))})
    to = {"namesrv": namesrv} | ({"broker": to_broker} if to_broker else {})
    from_ms, until_ms = (
        int(source[option]) if table and option in source else None
        for option in ("startingTimestamp", "endingTimestamp")
    )
    where = job.Where(name, parse_options(to), to_topic, tag, key, from_ms, until_ms)
    topics = [one.strip() for one in source["topics"].split(",")] if "topics" in source else None

    def pieces() -> list[job.Piece]:
        return job.pieces_of_source(read) if read is not None else job.pieces_of_table(Table(table or Path()), topics)

    if dry_run:
        rows = [(one.topic, one.queue_id, one.lo, one.hi, len(one.files)) for one in pieces()]
        printer.table("plan", "Would replay", PLAN, rows)
        return
    plan = [sorted(source.items()), str(table.absolute() if table else ""), part_bytes, where]
    state = job.State.open(state_file, plan, pieces)
    with spark_settings.session("replay", "sending", quiet=quiet) as (spark, progress):
        done = job.replay(spark_runner(spark, progress), state, read, where, rate=rate, cores=cores_of(spark))
    printer.facts("replayed", "Replayed", list(zip(DONE, done, strict=True)))
