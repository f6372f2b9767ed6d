"""`stratamq store check`: compare every checksum and every cross reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from stratamq.cli.output import Item, Kind, Printer, output_options, progress_shown
from stratamq.errors import CorruptionError
from stratamq.findings import Finding, Severity
from stratamq.logstore.check import CheckReport, check_store

SUMMARY = (
    Item("path", "store"),
    Item("is_live", "a broker is running on it"),
    Item("was_stopped_cleanly", "was stopped in order"),
    Item("files", "commit-log files", Kind.COUNT),
    Item("log_bytes", "bytes of log", Kind.BYTES),
    Item("min_physical_offset", "first physical offset"),
    Item("max_physical_offset", "end of the log"),
    Item("records", "records", Kind.COUNT),
    Item("queues", "queues", Kind.COUNT),
    Item("units", "consume-queue units", Kind.COUNT),
    Item("index_files", "index files", Kind.COUNT),
    Item("index_entries", "index entries", Kind.COUNT),
    Item("errors", "errors", Kind.COUNT),
    Item("warnings", "warnings", Kind.COUNT),
)
COUNTS = (Item("severity", "severity"), Item("kind", "kind"), Item("count", "how many", Kind.COUNT))
FINDINGS = (
    Item("severity", "severity"),
    Item("kind", "kind"),
    Item("file", "file"),
    Item("offset", "at byte"),
    Item("expected", "expected"),
    Item("found", "found"),
    Item("advice", "what to do"),
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_options
def check(directory: Path, printer: Printer, quiet: bool) -> int:
    """Compare every checksum and every cross reference of the store DIRECTORY. Only reads.

    Ends with 0 when nothing is wrong and with 4 when something is damaged. Warnings and remarks are no damage.
    """
    with progress_shown(quiet=quiet) as progress:
        report = check_store(directory, progress)
    show_check(report, printer)
    return CorruptionError.exit_code if report.is_damaged else 0


def show_check(report: CheckReport, printer: Printer) -> None:
    """Print what a check saw and found."""
    totals = dict.fromkeys(Severity, 0)
    for (severity, _), count in report.counts.items():
        totals[severity] += count
    values = (
        report.path,
        report.is_live,
        report.was_stopped_cleanly,
        report.files,
        report.log_bytes,
        report.min_physical_offset,
        report.end.physical_offset,
        report.records,
        report.queues,
        report.units,
        report.index_files,
        report.index_entries,
        totals[Severity.ERROR],
        totals[Severity.WARNING],
    )
    printer.facts("summary", "Checked", list(zip(SUMMARY, values, strict=True)))
    show_findings(report.counts, report.findings, printer)


def show_findings(counts: Mapping[tuple[Severity, str], int], findings: Sequence[Finding], printer: Printer) -> None:
    """Print what was found, and in one sentence what it comes to."""
    rows = [(severity.value, kind, count) for (severity, kind), count in counts.items()]
    printer.table("counts", "Findings", COUNTS, sorted(rows))
    printer.blocks("findings", "The first of each kind", FINDINGS, [(one.severity.value, *one[1:]) for one in findings])
    if any(severity is Severity.ERROR for severity, _ in counts):
        printer.remark("The store is damaged.")
    elif counts:
        printer.remark("Nothing is damaged.")
    else:
        printer.remark("Everything is as it should be.")
