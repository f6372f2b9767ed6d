"""What is in a queue store and in what state it is, for an operator: plain values. Changes nothing (`view`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.queuestore import layout
from stratamq.queuestore.message_store import DEAD
from stratamq.queuestore.queue import Queue
from stratamq.queuestore.types import GONE, Progress
from stratamq.queuestore.view import Owner, View, find_store, open_view


class QueueFigures(NamedTuple):
    """One queue of the store. Which messages are unacknowledged only a running broker knows; ``delivered`` of those
    that are there were delivered at least once: they are unacknowledged, or came back."""

    name: str
    messages: int
    delivered: int
    size_bytes: int
    recent: int
    """Messages that are in the journal and in no segment yet."""
    segments: int
    segment_bytes: int
    oldest_segment_ms: int | None
    """When the oldest segment file was written last."""


class MessageFileFigures(NamedTuple):
    """One file of the shared message store; ``covers`` is the newest file number that it stands for."""

    file: str
    covers: int
    messages: int
    used_messages: int
    live_bytes: int
    garbage_bytes: int
    modified_ms: int


class JournalFigures(NamedTuple):
    """One journal file."""

    file: str
    length: int
    modified_ms: int


class QueueStoreView(NamedTuple):
    """Everything `inspect_queue_store` finds out. Sizes are bytes; ``frame`` is the journal's newest frame."""

    path: str
    owner: Owner
    was_stopped_cleanly: bool
    frame: int
    messages: int
    size_bytes: int
    replayed_bytes: int
    scanned_files: int
    cut_bytes: int
    transient_bytes: int
    queues: list[QueueFigures]
    message_files: list[MessageFileFigures]
    journal: list[JournalFigures]


def inspect_queue_store(
    path: str, *, filesystem: FileSystem | None = None, progress: Progress | None = None
) -> QueueStoreView:
    """Look into the queue store at ``path`` (itself, its parent, or a data directory). Changes nothing, takes no lock.

    Cost and memory are those of a start: see `view`.

    Raises:
        NotAStore: There is none.
        CorruptionError: A start would refuse it; ``queue-store check`` says all that is wrong.
        OSError: A file cannot be read.
    """
    fs = filesystem or LocalFileSystem()
    directory = find_store(path, fs)
    view = open_view(directory, fs, progress=progress)
    try:
        report = view.found.report
        return QueueStoreView(
            path=directory,
            owner=view.owner,
            was_stopped_cleanly=report.clean and not view.owner.is_live,
            frame=view.found.batch,
            messages=report.messages,
            size_bytes=sum(queue.bytes for queue in view.found.queues),
            replayed_bytes=report.journal_bytes,
            scanned_files=report.files_scanned,
            cut_bytes=report.truncated_bytes,
            transient_bytes=_bytes_below(fs, os.path.join(directory, layout.TRANSIENT)),
            queues=[_queue(view, fs, queue) for queue in view.found.queues],
            message_files=list(_message_files(view, fs)),
            journal=list(_journal(directory, fs)),
        )
    finally:
        view.close()


def _queue(view: View, fs: FileSystem, queue: Queue) -> QueueFigures:
    delivered = recent = segment_bytes = 0
    oldest: int | None = None
    for segment in queue.segments.values():
        below = segment.states[: max(0, queue.mark - segment.first)]
        delivered += len(below) - below.count(GONE)
        fresh = segment.states[segment.flushed - segment.first :]
        recent += len(fresh) - fresh.count(GONE)
        segment_bytes += segment.file_bytes
        if segment.chunks and oldest is None:
            found = fs.stat(view.shared.index.path_of(queue.id, segment))
            oldest = found.modified_ms if found is not None else None
    files = sum(1 for segment in queue.segments.values() if segment.chunks)
    return QueueFigures(queue.name, queue.ready, delivered, queue.bytes, recent, files, segment_bytes, oldest)


def _message_files(view: View, fs: FileSystem) -> Iterator[MessageFileFigures]:
    for file in view.shared.persistent.files:
        path = view.shared.persistent.path_of(file.number)
        found = fs.stat(path)
        used = int((np.frombuffer(file.refs, np.uint32) != DEAD).sum())
        garbage = file.size - file.live_bytes
        modified_ms = found.modified_ms if found is not None else 0
        yield MessageFileFigures(
            os.path.basename(path), file.covers, len(file.refs), used, file.live_bytes, garbage, modified_ms
        )


def _journal(directory: str, fs: FileSystem) -> Iterator[JournalFigures]:
    folder = os.path.join(directory, layout.JOURNAL)
    for number in layout.list_numbered(fs, folder, layout.JOURNAL_SUFFIX) if fs.stat(folder) is not None else ():
        path = layout.numbered(folder, number, layout.JOURNAL_SUFFIX)
        found = fs.stat(path)
        if found is not None:
            yield JournalFigures(os.path.basename(path), found.size, found.modified_ms)


def _bytes_below(fs: FileSystem, directory: str) -> int:
    """Bytes of all files in a directory and those in it; 0 when it is not there."""
    total = 0
    found = fs.stat(directory)
    if found is None:
        return 0
    for name in fs.list(directory):
        path = os.path.join(directory, name)
        entry = fs.stat(path)
        if entry is not None:
            total += _bytes_below(fs, path) if entry.is_directory else entry.size
    return total
