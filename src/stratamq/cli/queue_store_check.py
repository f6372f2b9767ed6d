"""`stratamq queue-store check`: compare every checksum and every reference."""

from __future__ import annotations

import os
from pathlib import Path

import click

from stratamq.cli.output import Item, Kind, Printer, output_options, progress_shown
from stratamq.cli.store_check import show_findings
from stratamq.errors import CorruptionError
from stratamq.files.filesystem import LocalFileSystem
from stratamq.findings import Findings, Severity
from stratamq.queuestore.check import QueueStoreReport, check_queue_store
from stratamq.queuestore.view import View

SUMMARY = (
    Item("path", "queue store"),
    Item("is_live", "a broker is running on it"),
    Item("owner_pid", "lock held by process"),
    Item("is_readable", "a start would open it"),
    Item("queues", "queues", Kind.COUNT),
    Item("messages", "messages", Kind.COUNT),
    Item("journal_bytes", "journal", Kind.BYTES),
    Item("segments", "index segments", Kind.COUNT),
    Item("message_files", "message files", Kind.COUNT),
    Item("records", "large messages in them", Kind.COUNT),
    Item("bytes_read", "bytes compared", Kind.BYTES),
    Item("errors", "errors", Kind.COUNT),
    Item("warnings", "warnings", Kind.COUNT),
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_options
def check(directory: Path, printer: Printer, quiet: bool) -> int:
    """Compare every checksum and every reference of the queue store in DIRECTORY, and AMQP's definitions. Only reads.

    Ends with 0 when nothing is wrong and with 4 when something is damaged. Warnings and remarks are no damage.
    """
    with progress_shown(quiet=quiet) as progress:
        report = check_queue_store(str(directory), more=_definitions, progress=progress)
    show_check(report, printer)
    return CorruptionError.exit_code if report.is_damaged else 0


def _definitions(view: View, findings: Findings) -> None:
    from stratamq.server.definitions_check import check_definitions, has_definitions

    directory = os.path.dirname(os.path.abspath(view.directory))
    if has_definitions(directory):
        stored = [(queue.name, queue.ready) for queue in view.found.queues]
        check_definitions(directory, stored, LocalFileSystem(), findings)


def show_check(report: QueueStoreReport, printer: Printer) -> None:
    """Print what a check saw and found."""
    totals = dict.fromkeys(Severity, 0)
    for (severity, _), count in report.counts.items():
        totals[severity] += count
    values = (
        report.path,
        report.owner.is_live,
        report.owner.pid or None,
        report.is_readable,
        report.queues,
        report.messages,
        report.journal_bytes,
        report.segments,
        report.message_files,
        report.records,
        report.bytes_read,
        totals[Severity.ERROR],
        totals[Severity.WARNING],
    )
    printer.facts("summary", "Checked", list(zip(SUMMARY, values, strict=True)))
    show_findings(report.counts, report.findings, printer)
    if report.owner.is_live:
        printer.remark("A broker is running on it: only what was found twice is reported as an error.")
