"""`stratamq store inspect`: say what is in a store, and in what state it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stratamq.cli.output import Item, Kind, Printer, output_options, progress_shown
from stratamq.logstore.inspect import StoreView, inspect_store

STATE = (
    Item("path", "store"),
    Item("is_live", "a broker is running on it"),
    Item("owner_pid", "lock held by process"),
    Item("has_abort", "abort file is there"),
    Item("abort_pid", "abort file names process"),
    Item("min_physical_offset", "first physical offset"),
    Item("max_physical_offset", "end of the log"),
    Item("end_reason", "ends there because"),
    Item("newest_ms", "newest record stored", Kind.TIME),
)
CHECKPOINT = (
    Item("physic_msg_timestamp", "commit log synced up to", Kind.TIME),
    Item("logics_msg_timestamp", "queues written up to", Kind.TIME),
    Item("index_msg_timestamp", "index files synced up to", Kind.TIME),
    Item("master_flushed_offset", "master had synced up to offset"),
    Item("confirm_physical_offset", "confirmed up to offset"),
)
LOG_FILES = (
    Item("file", "file"),
    Item("base", "first offset"),
    Item("length", "length", Kind.BYTES),
    Item("used", "used", Kind.BYTES),
    Item("allocated_bytes", "on disk", Kind.BYTES),
    Item("first_stored_ms", "first record stored", Kind.TIME),
)
QUEUES = (
    Item("topic", "topic"),
    Item("queue_id", "queue"),
    Item("min_offset", "min"),
    Item("max_offset", "max"),
    Item("messages", "messages", Kind.COUNT),
    Item("size_bytes", "bytes", Kind.BYTES),
    Item("newest_ms", "newest stored", Kind.TIME),
    Item("unconfirmed", "not borne out", Kind.COUNT),
)
INDEX_FILES = (
    Item("file", "file"),
    Item("length", "length", Kind.BYTES),
    Item("slots", "slots", Kind.COUNT),
    Item("used_slots", "used", Kind.COUNT),
    Item("entries", "entries", Kind.COUNT),
    Item("entries_max", "of", Kind.COUNT),
    Item("begin_ms", "from", Kind.TIME),
    Item("end_ms", "to", Kind.TIME),
    Item("begin_physical_offset", "first offset"),
    Item("end_physical_offset", "last offset"),
)
CONFIG_FILES = (Item("file", "file"), Item("length", "length", Kind.BYTES))
TOPICS = (
    Item("name", "topic"),
    Item("read_queues", "read queues", Kind.COUNT),
    Item("write_queues", "write queues", Kind.COUNT),
    Item("perm", "allows"),
)
GROUPS = (
    Item("group", "group"),
    Item("topic", "topic"),
    Item("queues", "queues", Kind.COUNT),
    Item("offset", "consumed up to (sum)", Kind.COUNT),
    Item("lag", "lag", Kind.COUNT),
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_options
def inspect(directory: Path, printer: Printer, quiet: bool) -> None:
    """Say what is in the store DIRECTORY: its state, files, queues, index, checkpoint, topics and groups."""
    with progress_shown(quiet=quiet) as progress:
        view = inspect_store(directory, progress)
    _show(view, printer)


def _show(view: StoreView, printer: Printer) -> None:
    live = view.liveness
    state: Sequence[Any] = (
        view.path,
        live.is_live,
        live.owner_pid or None,
        live.has_abort,
        live.abort_pid or None,
        view.min_physical_offset,
        view.max_physical_offset,
        view.end_reason,
        view.newest_ms,
    )
    printer.facts("state", "State", list(zip(STATE, state, strict=True)))
    if view.checkpoint is not None:
        printer.facts("checkpoint", "Checkpoint", [(item, getattr(view.checkpoint, item.key)) for item in CHECKPOINT])
    files = [(Path(file.path).name, *file[1:]) for file in view.log_files]
    printer.table("commit_log", "Commit log", LOG_FILES, files)
    printer.table("queues", "Queues", QUEUES, view.queues)
    indexes = [(Path(file.path).name, *file[1:]) for file in view.index_files]
    printer.table("index", "Index files", INDEX_FILES, indexes)
    configs = [(Path(file.path).name, file.length) for file in view.config_files]
    printer.table("config", "Configuration files", CONFIG_FILES, configs)
    printer.table("topics", "Topics in the configuration", TOPICS, view.topics)
    printer.table("groups", "Consumer groups", GROUPS, view.groups)
    for sentence in view.meaning:
        printer.remark(sentence)
