"""Who refers to which body of a queue store: entries without one, bodies that nobody names, and what a clean stop wrote
down about both."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from stratamq.errors import CorruptionError
from stratamq.files.durable import read_file
from stratamq.files.filesystem import FileSystem
from stratamq.findings import Findings, Severity
from stratamq.formats.queue_messages import StoredFile, StoredTables, decode_tables
from stratamq.queuestore import layout
from stratamq.queuestore.message_store import DEAD, MessageFile
from stratamq.queuestore.view import View

HEAD_BYTES: Final = 8 + 32
"""Before the first file's columns: magic, checksum and four numbers."""
FILE_BYTES: Final = 32
ROW_BYTES: Final = 16
REMOVE: Final = "a start believes it; with no broker running remove this file, and the next start counts anew"


def check_dropped(view: View, findings: Findings) -> None:
    """Report messages that the journal publishes and whose bodies are not there."""
    names = {queue.id: queue.name for queue in view.found.queues}
    store = view.shared.persistent.directory
    for (queue_id, seq), frame in view.found.dropped.items():
        what = f"the body of message {seq} of queue {names.get(queue_id, queue_id)!r}, published by frame {frame}"
        if frame <= view.found.durable:
            advice = "it was synced and is lost; restore the message files from a copy before the next start"
            findings.error("message-missing", store, 0, what, "no such body", advice)
        else:
            advice = "a crash came before its sync, so it was never confirmed; a start drops it"
            findings.inform("message-unsynced", store, 0, what, "no such body", advice)


def check_garbage(view: View, findings: Findings) -> None:
    """Report bodies that nobody names: they wait for their file's collection."""
    for file in view.shared.persistent.files:
        dead = int((np.frombuffer(file.refs, np.uint32) == DEAD).sum())
        if dead:
            path = view.shared.persistent.path_of(file.number)
            found = f"{dead} of {len(file.refs)} messages, {file.size - file.live_bytes} of {file.size} bytes"
            advice = "a running broker collects it when amqp_gc_garbage_percent of all bytes are garbage"
            findings.inform("garbage", path, 0, "messages that a queue holds", found, advice)


def check_recovery_file(view: View, fs: FileSystem, findings: Findings) -> None:
    """Compare what a clean stop wrote down with footers and index, when a start would believe it."""
    path = os.path.join(view.directory, layout.RECOVERY)
    data = read_file(path, filesystem=fs)
    if data is None:
        return
    try:
        tables = decode_tables(data, path=path)
    except CorruptionError as error:
        advice = "nothing is lost: a start reads the message files' footers instead"
        findings.warn("recovery-file", path, error.offset, error.expected, error.found, advice)
        return
    if tables.batch != view.found.batch:
        advice = "it is of an earlier stop; a start passes it over and removes it"
        findings.inform("recovery-file-old", path, 8, f"frame {view.found.batch}", f"frame {tables.batch}", advice)
        return
    if findings.total(Severity.ERROR):
        advice = "what it would be compared with is damaged; keep it as long as the errors are not mended"
        findings.inform("recovery-file-unchecked", path, 0, "files without errors", "errors", advice)
        return
    _compare(path, tables, view, findings)


def _compare(path: str, tables: StoredTables, view: View, findings: Findings) -> None:
    store = view.shared.persistent
    counted = {file.number: file for file in store.files}
    at = HEAD_BYTES
    for stored in tables.files:
        file = counted.pop(stored.number, None)
        if file is None:
            live = sum(1 for count in stored.refs if count != DEAD)
            if live:
                expected, found = f"message file {stored.number} with {live} messages in use", "no such file or records"
                findings.error("recovery-file", path, at, expected, found, REMOVE)
        else:
            _compare_file(path, at, stored, file, findings)
        at += FILE_BYTES + (ROW_BYTES + stored.refs.itemsize) * len(stored.refs)
    for file in counted.values():
        if file.live_bytes:
            expected = f"message file {file.number} with {file.live_bytes} bytes in use"
            findings.error("recovery-file", path, at, expected, "no such file in the table", REMOVE)
    newest = store.files[-1].table.ids[-1] if store.files else 0
    if tables.next_id <= newest:
        findings.error("recovery-file", path, 16, f"a next id above {newest}", tables.next_id, REMOVE)


def _compare_file(path: str, at: int, stored: StoredFile, file: MessageFile, findings: Findings) -> None:
    if any(mine != theirs for mine, theirs in zip(file.table, stored.table, strict=True)):
        expected = f"the table of message file {file.number}: {len(file.table.ids)} messages"
        findings.error("recovery-file", path, at, expected, f"another table of {len(stored.table.ids)}", REMOVE)
        return
    for row, (mine, theirs) in enumerate(zip(file.refs, stored.refs, strict=True)):
        if mine != theirs and {mine, theirs} != {0, DEAD}:
            place = at + FILE_BYTES + ROW_BYTES * len(stored.refs) + stored.refs.itemsize * row
            expected = f"{_count(mine)} of message {file.table.ids[row]} in message file {file.number}"
            findings.error("reference-count", path, place, expected, _count(theirs), REMOVE)


def _count(references: int) -> str:
    return "no reference" if references in (0, DEAD) else f"{references} references"
