"""`stratamq tier`: the cold tier of a broker, looked at and looked after without one running."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stratamq.cli.output import Item, Kind, Printer, output_options, progress_shown
from stratamq.clock import SystemClock
from stratamq.config import BrokerConfig, TieredConfig
from stratamq.errors import ConfigError
from stratamq.formats.cold_names import escape_topic
from stratamq.server.broker_conf import build, read_broker_conf
from stratamq.tiered import commits, inspecting
from stratamq.tiered.backend import Backend, PrefixedBackend, open_backend

EXIT_DAMAGED = 4
QUEUES = (
    Item("topic", "topic"),
    Item("queue_id", "queue", Kind.COUNT),
    Item("incarnation", "life", Kind.COUNT),
    Item("start", "from offset", Kind.PLACE),
    Item("end", "to offset", Kind.PLACE),
    Item("segments", "segments", Kind.COUNT),
    Item("bytes", "stored", Kind.BYTES),
    Item("raw_bytes", "records", Kind.BYTES),
    Item("oldest_ms", "oldest", Kind.TIME),
    Item("newest_ms", "newest", Kind.TIME),
    Item("gap_messages", "lost", Kind.COUNT),
    Item("waiting_messages", "waiting", Kind.COUNT),
)
SEGMENTS = (
    Item("topic", "topic"),
    Item("queue_id", "queue", Kind.COUNT),
    Item("first", "first", Kind.PLACE),
    Item("last", "last", Kind.PLACE),
    Item("format", "format"),
    Item("bytes", "stored", Kind.BYTES),
    Item("raw_bytes", "records", Kind.BYTES),
    Item("min_ms", "oldest", Kind.TIME),
    Item("max_ms", "newest", Kind.TIME),
    Item("name", "object"),
)
FINDINGS = (Item("severity", "severity"), Item("place", "where"), Item("text", "what"))
LITTER = (Item("name", "object"), Item("bytes", "bytes", Kind.BYTES))


@dataclasses.dataclass(frozen=True)
class Target:
    """The tier that a command is about."""

    backend: Backend
    policy: TieredConfig
    broker: str


def tier_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the tier's address and what is needed to reach it; it gets a ``target``."""

    @click.argument("url", required=False)
    @click.option("--broker", help="Name of the broker.  [default: as --config says, else broker-a]")
    @click.option("--endpoint", help="Address of an object store that is not the vendor's.")
    @click.option("--region", help="Region of the bucket.")
    @click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="broker.conf that names the tier.",
    )
    @functools.wraps(command)
    def wrapped(
        url: str | None,
        broker: str | None,
        endpoint: str | None,
        region: str | None,
        config_file: Path | None,
        **options: Any,
    ) -> Any:
        values = read_broker_conf(config_file).values if config_file is not None else {}
        flags = {"url": url, "endpoint": endpoint, "region": region}
        policy: TieredConfig = build(TieredConfig, values.get(TieredConfig, {}), flags)
        if not policy.address:
            raise ConfigError("URL", "", "the tier's address, such as file:///DIRECTORY (or --config with one)")
        named = broker or build(BrokerConfig, values.get(BrokerConfig, {})).broker_name
        backend = PrefixedBackend(open_backend(policy), escape_topic(named))
        try:
            return command(target=Target(backend, policy, named), **options)
        finally:
            backend.close()

    return wrapped


@click.group()
def tier() -> None:
    """Look into a cold tier, and look after it: status, list, check, gc, rebuild.

    URL is what the broker was given as --tier. All but gc and rebuild only read; a broker may be running.
    """


@tier.command()
@tier_options
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Data of the broker: says what waits as well."
)
@output_options
def status(target: Target, data_dir: Path | None, printer: Printer, quiet: bool) -> None:
    """Say what the tier holds in all and queue by queue, and what is not in it yet."""
    with progress_shown(quiet=quiet) as progress:
        everything = commits.find_all(target.backend, progress=progress)
    ends = _local_ends(data_dir) if data_dir is not None else None
    sums = inspecting.total(everything.manifests)
    waiting = None
    if ends is not None:
        known = {(one.topic, one.queue_id): one.end for one in everything.manifests}
        waiting = sum(max(0, high - max(low, known.get(key, 0))) for key, (low, high) in ends.items())
    printer.facts(
        "tier",
        target.backend.address,
        [
            (Item("epoch", "epoch", Kind.COUNT), inspecting.newest_epoch(target.backend)),
            (Item("queues", "queues", Kind.COUNT), sums.queues),
            (Item("segments", "segments", Kind.COUNT), sums.segments),
            (Item("messages", "messages", Kind.COUNT), sums.messages),
            (Item("bytes", "stored", Kind.BYTES), sums.bytes),
            (Item("raw_bytes", "records", Kind.BYTES), sums.raw_bytes),
            (Item("oldest_ms", "oldest", Kind.TIME), sums.oldest_ms),
            (Item("newest_ms", "newest", Kind.TIME), sums.newest_ms),
            (Item("gap_messages", "never uploaded", Kind.COUNT), sums.gap_messages),
            (Item("waiting_messages", "waiting", Kind.COUNT), waiting),
        ],
    )
    rows = []
    for one in everything.manifests:
        own = inspecting.total([one])
        end = None if ends is None else ends.get((one.topic, one.queue_id), (0, one.end))[1]
        rows.append(
            (
                one.topic,
                one.queue_id,
                one.incarnation,
                one.start,
                one.end,
                own.segments,
                own.bytes,
                own.raw_bytes,
                own.oldest_ms,
                own.newest_ms,
                own.gap_messages,
                None if end is None else max(0, end - one.end),
            )
        )
    printer.table("queues", "queues", QUEUES, rows)
    for (topic, queue_id), error in everything.broken.items():
        printer.remark(f"{topic}/{queue_id}: {error}")
    for topic in _left_out(data_dir) if data_dir is not None else ():
        printer.remark(f"topic {topic} stays in local files alone: it has queue.type=BatchCQ.")


def _left_out(data_dir: Path) -> list[str]:
    """Topics that the tier would take, were their records not of many messages each."""
    from stratamq.logstore.listing import list_batch_queues
    from stratamq.tiered.planning import is_tiered

    return sorted({key.topic for key, _ in list_batch_queues(str(data_dir)) if is_tiered(key.topic, TieredConfig())})


def _local_ends(data_dir: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Offsets that local files hold, by queue; of topics that go to the tier."""
    from stratamq.logstore.snapshot import StoreSnapshot
    from stratamq.tiered.planning import is_tiered

    snapshot = StoreSnapshot.open(data_dir)
    return {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset)
        for queue in snapshot.queues()
        if is_tiered(queue.topic, TieredConfig())
    }


@tier.command("list")
@tier_options
@click.option("--topic", help="Only this topic.")
@output_options
def list_segments(target: Target, topic: str | None, printer: Printer, quiet: bool) -> None:
    """Name every segment: its offsets, times, sizes and object."""
    with progress_shown(quiet=quiet) as progress:
        everything = commits.find_all(target.backend, progress=progress)
    rows = [
        (one.topic, one.queue_id, s.first, s.last, s.format, s.bytes, s.raw_bytes, s.min_ms, s.max_ms, s.name)
        for one in everything.manifests
        if topic in (None, one.topic)
        for s in one.segments
    ]
    printer.table("segments", "segments", SEGMENTS, rows)


@tier.command()
@tier_options
@click.option("--deep", is_flag=True, help="Read every record and compare its checksum.")
@output_options
def check(target: Target, deep: bool, printer: Printer, quiet: bool) -> int:
    """Compare manifests, objects and indexes; with --deep every record. Exit code 4 when something is damaged."""
    with progress_shown(quiet=quiet) as progress:
        everything = commits.find_all(target.backend, progress=progress)
        found = list(inspecting.check(target.backend, everything, deep=deep, progress=progress))
    printer.table("findings", "findings", FINDINGS, found)
    errors = sum(1 for one in found if one.severity == "error")
    sums = inspecting.total(everything.manifests)
    printer.facts(
        "checked",
        "checked",
        [
            (Item("queues", "queues", Kind.COUNT), sums.queues + len(everything.broken)),
            (Item("segments", "segments", Kind.COUNT), sums.segments),
            (Item("messages", "messages", Kind.COUNT), sums.messages),
            (Item("errors", "errors", Kind.COUNT), errors),
        ],
    )
    return EXIT_DAMAGED if errors else 0


@tier.command()
@tier_options
@click.option("--dry-run", is_flag=True, help="Only name what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_options
def gc(target: Target, dry_run: bool, yes: bool, printer: Printer, quiet: bool) -> None:
    """Delete objects that nothing names: of uploads that did not end, and of deleted topics.

    Only those older than tier_orphan_grace_ms (a day): younger ones may be about to be named.
    """
    from stratamq.tiered.litter import find_litter

    now = SystemClock().wall_ms()
    with progress_shown(quiet=quiet):
        found = find_litter(target.backend, now, target.policy.orphan_grace_ms)
    printer.table("litter", "litter", LITTER, found.objects)
    size = sum(entry.size for entry in found.objects)
    deleted: list[str] = []
    if found.objects and not dry_run:
        if not yes:
            click.confirm(f"Delete {len(found.objects)} objects?", abort=True, err=True)
        deleted = commits.delete_all(target.backend, [entry.name for entry in found.objects])
    printer.facts(
        "gc",
        "litter",
        [
            (Item("objects", "objects", Kind.COUNT), len(found.objects)),
            (Item("bytes", "bytes", Kind.BYTES), size),
            (Item("young", "too young to tell", Kind.COUNT), found.young),
            (Item("deleted", "deleted", Kind.COUNT), len(deleted)),
        ],
    )
    for name in found.strange:
        printer.remark(f"{name} was not made by StrataMQ: left alone")


@tier.command()
@tier_options
@click.option(
    "--data-dir", required=True, type=click.Path(path_type=Path, file_okay=False), help="Data of the broker, stopped."
)
@output_options
def rebuild(target: Target, data_dir: Path, printer: Printer, quiet: bool) -> None:
    """Make a broker's catalogue anew from the tier alone. The broker must not be running."""
    from stratamq.logstore.lock import StoreLock
    from stratamq.tiered.catalogue import FILE_NAME, Catalogue, remove_catalogue
    from stratamq.tiered.offline import FOLDER
    from stratamq.tiered.service import rebuild as rebuild_catalogue

    os.makedirs(data_dir, exist_ok=True)
    lock = StoreLock(str(data_dir))
    try:
        path = str(data_dir / FOLDER / FILE_NAME)
        remove_catalogue(path)
        catalogue = Catalogue(path)
        try:
            with progress_shown(quiet=quiet) as progress:
                opened = rebuild_catalogue(target.backend, catalogue, SystemClock(), progress=progress)
        finally:
            catalogue.close()
    finally:
        lock.release()
    sums = inspecting.total(opened.manifests)
    printer.facts(
        "rebuilt",
        path,
        [
            (Item("queues", "queues", Kind.COUNT), sums.queues),
            (Item("messages", "messages", Kind.COUNT), sums.messages),
            (Item("unreadable", "unreadable", Kind.COUNT), len(opened.broken)),
        ],
    )
    for (topic, queue_id), error in opened.broken.items():
        printer.remark(f"{topic}/{queue_id}: {error}")
