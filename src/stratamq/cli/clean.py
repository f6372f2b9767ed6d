"""`stratamq store clean` and `stratamq store forecast`: what retention would delete, doing it, when the disk fills."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path

import click

from stratamq.cli.clean_broker import clean_broker
from stratamq.cli.clean_rows import AT_START, GOES, LOSES, NOBODY, NOW, STAYS
from stratamq.cli.output import Item, Kind, Printer, output_options
from stratamq.clock import SystemClock
from stratamq.config import RetentionConfig, TieredConfig
from stratamq.logstore.retention import MANUAL_ROUNDS, describe_space, plan
from stratamq.logstore.retention_forecast import forecast as make_forecast
from stratamq.logstore.retention_forecast import rate_of
from stratamq.logstore.retention_losses import sum_by_group
from stratamq.logstore.retention_offline import OfflineStore, delete_offline
from stratamq.logstore.retention_values import Moment, Plan, RetentionState
from stratamq.tiered.offline import keep_from, tiered_topics
from stratamq.units import format_bytes

MARKS = (
    Item("percent", "above %", Kind.COUNT),
    Item("meaning", "from then on"),
    Item("when", "when"),
    Item("at_ms", "at", Kind.TIME),
)
_store_argument = click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
_config_option = click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="broker.conf with the settings."
)
_hours_option = click.option(
    "--reserved-hours", type=click.IntRange(0, 876_000), help="Keep files so long instead of fileReservedTime."
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option(
    "--broker", metavar="HOST:PORT", help="Ask the running broker with this HTTP address, instead of DIRECTORY."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go; works beside a running broker.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--to-percent",
    type=click.IntRange(30, 85),
    help="Delete the oldest files, read or not, until the disk is no fuller than this.",
)
@_hours_option
@_config_option
@output_options
def clean(
    directory: Path | None,
    broker: str | None,
    dry_run: bool,
    yes: bool,
    to_percent: int | None,
    reserved_hours: int | None,
    config_file: Path | None,
    printer: Printer,
    quiet: bool,
) -> None:
    """Delete expired files of a store, or say which.

    Names each file that goes and why, and what each consumer group loses with it. Without --dry-run no broker may be
    running on the store; it asks before it deletes. With --broker, a running broker deletes by its own settings.
    """
    if (directory is None) == (broker is None):
        raise click.UsageError("name either a store's DIRECTORY or a --broker")
    if broker is not None:
        if to_percent is not None or reserved_hours is not None or config_file is not None:
            raise click.UsageError(
                "a broker goes by its own settings; --to-percent, --reserved-hours and --config do not"
            )
        clean_broker(broker, printer, dry_run=dry_run, yes=yes)
        return
    assert directory is not None
    policy = read_policy(config_file, reserved_hours)
    policy = dataclasses.replace(policy, delete_batch_max=10_000, clean_forcibly=to_percent is not None)
    if to_percent is not None:
        policy = dataclasses.replace(policy, force_ratio=to_percent)
    store = OfflineStore(directory)
    decided = decide(store, policy)
    show_plan(store, decided, printer)
    if dry_run:
        return
    if not decided.deletions:
        printer.remark("Nothing to delete.")
        return
    if not yes:
        click.confirm(f"Delete {len(decided.deletions)} commit-log files?", abort=True, err=True)
    shown = {d.path for d in (*decided.deletions, *decided.index_files) if d.goes}

    def again(locked: OfflineStore) -> Plan:
        """Under the lock: never more than what was shown."""
        now = decide(locked, policy)
        log = [d._replace(goes=d.goes and d.path in shown) for d in now.log]
        return now._replace(log=log, index_files=[d for d in now.index_files if d.path in shown])

    gone = delete_offline(
        directory, again, on_deleted=None if quiet else lambda path: click.echo(f"deleted {path}", err=True)
    )
    usage = OfflineStore(directory).disks().log[0]
    printer.facts("deleted", "Done", [(Item("files", "files deleted", Kind.COUNT), len(gone))])
    printer.remark(f"{describe_space(usage)}.")


def decide(store: OfflineStore, policy: RetentionConfig) -> Plan:
    """What an operator's request deletes of a store now."""
    files = store.files()._replace(keep_from=keep_from(store.path, TieredConfig()))
    return plan(files, moment(), store.disks(), policy, RetentionState(manual_rounds=MANUAL_ROUNDS))


def moment() -> Moment:
    """The clock now."""
    clock = SystemClock()
    wall = clock.wall_ms()
    hour = datetime.fromtimestamp(wall / 1000).hour  # noqa: DTZ006 - deleteWhen is in local time
    return Moment(wall, clock.monotonic_ms(), hour)


def read_policy(config_file: Path | None, reserved_hours: int | None) -> RetentionConfig:
    """The settings of a broker.conf, or the defaults. Raises ConfigError."""
    from stratamq.server.broker_conf import build, read_broker_conf

    values = read_broker_conf(config_file).values.get(RetentionConfig, {}) if config_file is not None else {}
    policy: RetentionConfig = build(RetentionConfig, values, {"file_reserved_hours": reserved_hours})
    for text in policy.clampings():
        click.echo(f"stratamq: {text}", err=True)
    return policy


def show_plan(store: OfflineStore, decided: Plan, printer: Printer) -> None:
    """Print a plan: what goes, what stays, who loses what, and the disk afterwards."""
    going: list[tuple[str, str, int, str]] = [(d.path, NOW, d.frees_bytes, d.reason) for d in decided.deletions]
    going += [(d.path, NOW, d.frees_bytes, d.reason) for d in decided.index_files if d.goes]
    going += [(d.path, AT_START, d.frees_bytes, d.reason) for d in decided.queues]
    printer.blocks("goes", f"{len(going)} files go", GOES, going)
    staying = [(d.path, d.cause.value, d.due_ms, d.reason) for d in decided.log if not d.goes]
    printer.blocks("stays", f"{len(staying)} commit-log files stay", STAYS, staying)
    losses = store.losses(decided)
    if not any(decision.leaves_gap for decision in decided.deletions):
        kept = tiered_topics(store.path)
        losses = [loss for loss in losses if loss.topic not in kept]
    rows = [(group or NOBODY, *rest) for group, *rest in sum_by_group(losses)]
    printer.table("losses", "What consumer groups lose", LOSES, rows)
    if not rows:
        printer.remark("No consumer group loses messages that it has not read.")
    disks = store.disks()
    emptiest = min(range(len(disks.log)), key=lambda number: disks.log[number].percent)
    before, after = disks.log[emptiest], decided.disk_after[emptiest]
    facts = [
        (Item("frees_bytes", "frees", Kind.BYTES), decided.frees_bytes),
        (Item("percent_before", "disk used now, %"), before.percent if before.is_known else None),
        (Item("percent_after", "disk used then, %"), after.percent if after.is_known else None),
        (Item("min_offset_after", "log begins at"), decided.min_offset_after),
        (Item("is_live", "a broker is running on it"), store.snapshot.is_live),
    ]
    printer.facts("disk", "Afterwards", facts)
    if decided.warning:
        printer.remark(f"{decided.warning}.")


@click.command()
@_store_argument
@_hours_option
@_config_option
@output_options
def forecast(
    directory: Path, reserved_hours: int | None, config_file: Path | None, printer: Printer, quiet: bool
) -> None:
    """Say when the disk reaches each mark if messages keep coming as they do now."""
    policy = read_policy(config_file, reserved_hours)
    store = OfflineStore(directory)
    files = store.files()
    usage = store.disks().log[0]
    now = moment()
    newest_ms = store.snapshot.end.newest_ms
    rate = rate_of(files.log, files.end, newest_ms)
    log_bytes = sum(file.allocated_bytes for file in files.log) or 1
    derived = sum(file.allocated_bytes for queue in files.queues for file in queue.files)
    derived += sum(file.allocated_bytes for file in files.index_files)
    made = make_forecast(files.log, usage, rate, now, policy, overhead=min(1.0, derived / log_bytes))
    facts = [
        (Item("percent", "disk used now, %"), usage.percent if usage.is_known else None),
        (Item("bytes_an_hour", "log grows an hour by", Kind.BYTES), rate.bytes_an_hour),
        (Item("span_ms", "seen over ms", Kind.COUNT), rate.span_ms),
        (Item("newest_ms", "newest message", Kind.TIME), newest_ms),
        (Item("highest_percent", "fullest within a year, %"), made.highest_percent),
        (Item("highest_ms", "at", Kind.TIME), made.highest_ms),
    ]
    printer.facts("forecast", f"{usage.path}, {format_bytes(usage.total_bytes)}", facts)
    rows = [
        (
            mark.percent,
            mark.meaning,
            "now" if mark.is_now else "not within a year" if mark.at_ms is None else "then",
            at,
        )
        for mark in made.marks
        for at in (mark.at_ms,)
    ]
    printer.table("marks", "Marks", MARKS, rows)
    if not rate.bytes_an_hour:
        printer.remark("The log is too short to tell a rate: it takes two commit-log files.")
    elif now.wall_ms - newest_ms > 3_600_000:
        printer.remark("No message has come for more than an hour; the rate is that of the newest files all the same.")
