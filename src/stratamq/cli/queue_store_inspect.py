"""`stratamq queue-store inspect`: say what is in a queue store, queue by queue."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from stratamq.cli.output import Item, Kind, Printer, output_options, progress_shown
from stratamq.errors import CorruptionError
from stratamq.queuestore.inspect import QueueFigures, QueueStoreView, inspect_queue_store

STATE = (
    Item("path", "queue store"),
    Item("is_live", "a broker is running on it"),
    Item("owner_pid", "lock held by process"),
    Item("was_stopped_cleanly", "was stopped in order"),
    Item("frame", "newest frame"),
    Item("messages", "messages", Kind.COUNT),
    Item("size_bytes", "bytes of messages", Kind.BYTES),
    Item("replayed_bytes", "journal that a start replays", Kind.BYTES),
    Item("scanned_files", "message files that a start scans", Kind.COUNT),
    Item("cut_bytes", "torn bytes that a start cuts off", Kind.BYTES),
    Item("transient_bytes", "transient, wiped by a start", Kind.BYTES),
)
QUEUES = (
    Item("vhost", "virtual host"),
    Item("queue", "queue"),
    Item("messages", "messages", Kind.COUNT),
    Item("delivered", "delivered once", Kind.COUNT),
    Item("size_bytes", "bytes", Kind.BYTES),
    Item("recent", "in the journal", Kind.COUNT),
    Item("segments", "segments", Kind.COUNT),
    Item("segment_bytes", "of bytes", Kind.BYTES),
    Item("oldest_segment_ms", "oldest segment written", Kind.TIME),
    Item("arguments", "arguments"),
)
MESSAGE_FILES = (
    Item("file", "file"),
    Item("covers", "stands up to"),
    Item("messages", "messages", Kind.COUNT),
    Item("used_messages", "in use", Kind.COUNT),
    Item("live_bytes", "live", Kind.BYTES),
    Item("garbage_bytes", "garbage", Kind.BYTES),
    Item("modified_ms", "written", Kind.TIME),
)
JOURNAL = (Item("file", "file"), Item("length", "length", Kind.BYTES), Item("modified_ms", "written", Kind.TIME))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_options
def inspect(directory: Path, printer: Printer, quiet: bool) -> None:
    """Say what is in the queue store in DIRECTORY: its state, queues, shared message files and journal."""
    with progress_shown(quiet=quiet) as progress:
        view = inspect_queue_store(str(directory), progress=progress)
    _show(view, printer)


def _show(view: QueueStoreView, printer: Printer) -> None:
    from stratamq.server.definitions_check import defined_queues

    state: Sequence[Any] = (
        view.path,
        view.owner.is_live,
        view.owner.pid or None,
        view.was_stopped_cleanly,
        view.frame,
        view.messages,
        view.size_bytes,
        view.replayed_bytes,
        view.scanned_files,
        view.cut_bytes,
        view.transient_bytes,
    )
    printer.facts("state", "State", list(zip(STATE, state, strict=True)))
    try:
        defined = defined_queues(os.path.dirname(os.path.abspath(view.path)))
    except CorruptionError as error:
        defined = {}
        printer.remark(f"The definitions cannot be read, so queues are shown without their arguments: {error}")
    arguments = {key: json.dumps(row.get("arguments", {}), sort_keys=True) for key, row in defined.items()}
    rows = [(*key, *figures, arguments.get(key)) for key, figures in _by_queue(view.queues)]
    printer.table("queues", "Queues", QUEUES, rows)
    printer.table("message_files", "Message files", MESSAGE_FILES, view.message_files)
    printer.table("journal", "Journal", JOURNAL, view.journal)
    if view.owner.is_live:
        printer.remark(
            "A broker is running on it: these are the messages that it would have after a kill at this moment."
        )


def _by_queue(stored: Sequence[QueueFigures]) -> Iterator[tuple[tuple[str, str], tuple[Any, ...]]]:
    """The figures of each queue, its priorities added up, in the order of their names."""
    from stratamq.server.definitions_check import queue_of

    levels: dict[tuple[str, str], list[QueueFigures]] = {}
    for figures in stored:
        levels.setdefault(queue_of(figures.name), []).append(figures)
    for key in sorted(levels):
        sums = [sum(column) for column in zip(*[one[1:7] for one in levels[key]], strict=True)]
        written = [one.oldest_segment_ms for one in levels[key] if one.oldest_segment_ms is not None]
        yield key, (*sums, min(written, default=None))
