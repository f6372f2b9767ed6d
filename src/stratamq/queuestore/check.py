"""Is a queue store whole? Every checksum and every reference, read-only; the answer is a list of findings.

1. Names: files that a start would not find, or that are not the store's.
2. What a start makes of manifest and journal, and what it would cut off or remove (`queuestore.view`).
3. Message files record by record, index segments chunk by chunk and body by body (`check_files`).
4. References: entries whose body is missing, bodies that nobody names, the recovery file against both
   (`check_references`).

Where manifest or journal are refused, the message files are checked all the same, by their footers.

A store in use is looked at twice when something seems damaged, and only what is there both times is reported.

Memory: that of a start of the broker (the journal, one byte a message and 20 a large one, 40 while a recovery file is
compared) and one message or 1 MiB, whichever is more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from stratamq.errors import CorruptionError
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.files.overlay import OverlayFileSystem
from stratamq.findings import Finding, Findings, Severity
from stratamq.formats.queue_frame import FILE_HEADER, JOURNAL_MAGIC, decode_file_header
from stratamq.queuestore import layout
from stratamq.queuestore.check_files import MessageFilePass, SegmentPass
from stratamq.queuestore.check_references import check_dropped, check_garbage, check_recovery_file
from stratamq.queuestore.types import Progress
from stratamq.queuestore.view import TRIES, Owner, View, find_owner, find_store, hide_misnamed, open_view

ROOT_NAMES: Final = frozenset(
    {
        layout.LOCK,
        layout.MANIFEST,
        layout.RECOVERY,
        layout.JOURNAL,
        layout.QUEUES,
        layout.PERSISTENT,
        layout.TRANSIENT,
        layout.MANIFEST + ".tmp",
        layout.RECOVERY + ".tmp",
    }
)
TORN: Final = (
    "a write that a crash cut off, and that was never confirmed, looks like this; a start cuts it off. After a stop in "
    "order it is damage: restore the file from a copy"
)
MoreChecks = Callable[[View, Findings], None]
"""What else belongs to the store: called with the view and where to note what is found."""


class QueueStoreReport(NamedTuple):
    """What a check saw and found. ``counts`` holds all findings by (severity, kind); ``findings`` the first of each."""

    path: str
    owner: Owner
    is_readable: bool
    """Whether a start would open the store; else queues and segments could not be checked."""
    queues: int
    messages: int
    journal_bytes: int
    segments: int
    message_files: int
    records: int
    bytes_read: int
    findings: list[Finding]
    counts: dict[tuple[Severity, str], int]

    @property
    def is_damaged(self) -> bool:
        """Whether anything was found that is an error."""
        return any(severity is Severity.ERROR for severity, _ in self.counts)


def check_queue_store(
    path: str, *, filesystem: FileSystem | None = None, more: MoreChecks | None = None, progress: Progress | None = None
) -> QueueStoreReport:
    """Check the queue store at ``path`` (itself, its parent, or a data directory). Changes nothing, takes no lock.

    Raises NotAStore, OSError. Cost: reads every byte once.
    """
    fs = filesystem or LocalFileSystem()
    directory = find_store(path, fs)
    report = _check_steadily(directory, fs, more, progress)
    if not (report.owner.is_live and report.is_damaged):
        return report
    seen = {(one.kind, one.path, one.offset) for one in report.findings}
    again = _check_steadily(directory, fs, more, progress)
    kept = Findings()
    for one in again.findings:
        if one.severity is not Severity.ERROR or (one.kind, one.path, one.offset) in seen:
            kept.add(*one)
    return again._replace(findings=kept.listed, counts=dict(kept.counts))


def _check_steadily(
    directory: str, fs: FileSystem, more: MoreChecks | None, progress: Progress | None
) -> QueueStoreReport:
    """`_check`, begun anew when a broker removed a file that was about to be read."""
    for left in reversed(range(TRIES)):
        try:
            return _check(directory, fs, more, progress)
        except FileNotFoundError:
            if not left or not find_owner(directory).is_live:
                raise
    raise AssertionError("the last try returns or raises")


def _check(directory: str, fs: FileSystem, more: MoreChecks | None, progress: Progress | None) -> QueueStoreReport:
    findings = Findings()
    check_names(directory, fs, findings)
    view = _open(directory, fs, findings, progress)
    messages = MessageFilePass(fs, findings, progress)
    segments = SegmentPass(fs, findings, progress)
    if view is None:
        messages.check_without_store(os.path.join(directory, layout.PERSISTENT))
        return _report(directory, None, findings, messages, segments)
    try:
        check_changes(view, fs, findings)
        messages.check(view)
        segments.check(view)
        check_dropped(view, findings)
        check_garbage(view, findings)
        check_recovery_file(view, fs, findings)
        if more is not None:
            more(view, findings)
    finally:
        view.close()
    return _report(directory, view, findings, messages, segments)


def _report(
    directory: str, view: View | None, findings: Findings, messages: MessageFilePass, segments: SegmentPass
) -> QueueStoreReport:
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
    found = view.found.report if view is not None else None
    return QueueStoreReport(
        path=directory,
        owner=view.owner if view is not None else find_owner(directory),
        is_readable=view is not None,
        queues=found.queues if found is not None else 0,
        messages=found.messages if found is not None else 0,
        journal_bytes=found.journal_bytes if found is not None else 0,
        segments=segments.segments,
        message_files=messages.files,
        records=messages.records,
        bytes_read=messages.bytes_read + segments.bytes_read,
        findings=sorted(findings.listed, key=lambda finding: order[finding.severity]),
        counts=dict(findings.counts),
    )


def check_names(directory: str, fs: FileSystem, findings: Findings) -> None:
    """Report names that a start does not look for, or stumbles over."""
    for name in fs.list(directory):
        if name not in ROOT_NAMES:
            path = os.path.join(directory, name)
            findings.warn("stray", path, 0, "no such name", "not the store's", "a start passes it over; move it away")
    for path in hide_misnamed(directory, OverlayFileSystem(fs)):
        expected = f"a number of {layout.DIGITS} digits"
        advice = "a start looks for it under the full number and fails; give it back its name, or move it away"
        findings.error("file-name", path, 0, expected, os.path.basename(path), advice)
    for name, suffix in ((layout.JOURNAL, layout.JOURNAL_SUFFIX), (layout.PERSISTENT, layout.MESSAGE_SUFFIX)):
        folder = os.path.join(directory, name)
        for file in fs.list(folder) if fs.stat(folder) is not None else ():
            stem = file.removesuffix(suffix).removesuffix(suffix + layout.COLLECTED_SUFFIX)
            if stem == file or not (stem.isascii() and stem.isdigit()):
                path = os.path.join(folder, file)
                findings.warn("stray", path, 0, f"NUMBER{suffix}", file, "a start passes it over; move it away")


def _open(directory: str, fs: FileSystem, findings: Findings, progress: Progress | None) -> View | None:
    """The view; None, with a finding, when a start would refuse the store."""
    try:
        return open_view(directory, fs, counts_anew=True, progress=progress)
    except CorruptionError as error:
        name = os.path.basename(error.path)
        if name == layout.MANIFEST:
            kind, advice = "manifest", "a start refuses the store; restore the whole directory from a copy"
        else:
            kind = "journal"
            advice = "a start refuses the store, because this was synced; restore the whole directory from a copy"
        findings.error(kind, error.path, error.offset, error.expected, error.found, advice)
        return None


def check_changes(view: View, fs: FileSystem, findings: Findings) -> None:
    """Report what a start would cut off from the journal and the manifest, and which files it would remove."""
    for path, start, end in view.fs.cut:
        if not path.endswith(layout.MESSAGE_SUFFIX):  # `check_files` knows more about these
            kind = "manifest-tail" if os.path.basename(path) == layout.MANIFEST else "journal-tail"
            findings.inform(kind, path, start, f"the end, or a frame up to {end}", f"{end - start} bytes", TORN)
    for path in view.fs.removed:
        if path.endswith(layout.JOURNAL_SUFFIX) and not _is_covered(path, fs, view.found.batch):
            findings.inform("journal-tail", path, 0, "a file with whole frames", "none", TORN)
            continue
        advice = "a crash left it, and nothing names it; a start after a crash removes it"
        findings.inform("left-over", path, 0, "no such file", "a file", advice)


def _is_covered(path: str, fs: FileSystem, batch: int) -> bool:
    """Whether a journal file that a start removes is older than what the manifest needs; else it is a torn end."""
    fd = fs.open(path, writable=False)
    try:
        header = decode_file_header(fs.read(fd, FILE_HEADER.size, 0), JOURNAL_MAGIC, path=path)
    finally:
        fs.close(fd)
    return header is not None and header.first <= batch
