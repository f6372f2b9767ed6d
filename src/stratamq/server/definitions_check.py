"""Are AMQP's definitions whole, and do they name the queues that the queue store holds? Read-only.

A broker's start deletes from the store every queue that no definition names: whoever restores only one of the two from
a copy loses messages by it, so both are compared here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratamq.errors import CorruptionError
from stratamq.files.durable import BACKUP_SUFFIX, read_file
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.findings import Findings
from stratamq.formats.config_json import decode_config_json
from stratamq.formats.queue_frame import decode_file_header, scan_frames
from stratamq.server.definitions_file import DEFINITIONS_FILE, JOURNAL_FILE, JOURNAL_MAGIC, DefinitionsFile
from stratamq.server.delivery_counts_file import COUNTS_FILE, COUNTS_MAGIC

QueueRows = dict[tuple[str, str], Mapping[str, Any]]
"""What the definitions say of each durable queue, by virtual host and name."""
COPY = "restore both definitions files from a copy"


def has_definitions(directory: str, fs: FileSystem | None = None) -> bool:
    """Whether there are definitions beside a queue store, or should be."""
    fs = fs or LocalFileSystem()
    names = (DEFINITIONS_FILE, DEFINITIONS_FILE + BACKUP_SUFFIX, JOURNAL_FILE)
    if any(fs.stat(os.path.join(directory, name)) is not None for name in names):
        return True
    return os.path.basename(directory) == "amqp"


def defined_queues(directory: str, fs: FileSystem | None = None) -> QueueRows:
    """The durable queues that the definitions name. Raises CorruptionError, OSError."""
    value = DefinitionsFile(Path(directory), fs).load() or {}
    rows = [row for row in value.get("queues", ()) if isinstance(row, Mapping)]
    return {(str(row.get("vhost")), str(row.get("name"))): row for row in rows}


def check_definitions(directory: str, stored: Sequence[tuple[str, int]], fs: FileSystem, findings: Findings) -> None:
    """Report damage to the definitions in ``directory``, and queues of the store that they do not name.

    Args:
        directory: What holds ``definitions.json``.
        stored: The store's name and the number of messages of each queue in the queue store.
        fs: Where it lies; nothing is written.
        findings: Where to note what is found.
    """
    check_frames(directory, fs, findings)
    try:
        queues = defined_queues(directory, fs)
    except CorruptionError as error:
        advice = "a start refuses it; " + COPY
        findings.error("definitions", error.path, error.offset, error.expected, error.found, advice)
        return
    check_backup(directory, fs, findings)
    path = os.path.join(directory, DEFINITIONS_FILE)
    for name, messages in stored:
        vhost, queue = queue_of(name)
        if (vhost, queue) not in queues:
            found = f"no such queue, and {messages} messages of it in the queue store"
            advice = f"a start deletes the queue with its messages; to keep them, {COPY} that names it"
            findings.warn("queue-undefined", path, 0, f"queue {queue!r} of virtual host {vhost!r}", found, advice)


def queue_of(store_name: str) -> tuple[str, str]:
    """Virtual host and queue that a name in the store is of; a priority stands behind them (`vhost.level_names`)."""
    vhost, _, rest = store_name.partition("\n")
    return vhost, rest.rpartition("\n")[0]


def check_backup(directory: str, fs: FileSystem, findings: Findings) -> None:
    """Report that a start takes the backup, because ``definitions.json`` cannot be used."""
    path = os.path.join(directory, DEFINITIONS_FILE)
    data = read_file(path, filesystem=fs)
    if data is None:
        if fs.stat(path + BACKUP_SUFFIX) is None:
            return
        found = "no file"
    else:
        try:
            decode_config_json(data.decode())
            return
        except ValueError as error:
            found = str(error)
    advice = f"a start takes {DEFINITIONS_FILE}{BACKUP_SUFFIX}, which may lack the newest changes"
    findings.warn("definitions-backup", path, 0, "a JSON value", found, advice)


def check_frames(directory: str, fs: FileSystem, findings: Findings) -> None:
    """Report torn ends of the definitions' journal and of the counts of deliveries."""
    for name, magic in ((JOURNAL_FILE, JOURNAL_MAGIC), (COUNTS_FILE, COUNTS_MAGIC)):
        path = os.path.join(directory, name)
        data = read_file(path, filesystem=fs)
        if data is None:
            continue
        try:
            header = decode_file_header(data, magic, path=path)
        except CorruptionError as error:
            if name == COUNTS_FILE:
                advice = "a start goes on without it: messages may be delivered more often than their limit says"
                findings.warn("delivery-counts", path, error.offset, error.expected, error.found, advice)
            continue  # of the definitions' journal `check_definitions` says it
        end = scan_frames(data, header).end if header is not None else 0
        if end < len(data):
            advice = "a write that a crash cut off looks like this, and was never answered; a start passes it over"
            kind = "definitions-tail" if name == JOURNAL_FILE else "delivery-counts"
            findings.inform(kind, path, end, "the end of the file", f"{len(data) - end} bytes", advice)
