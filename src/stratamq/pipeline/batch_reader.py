"""Ranges of a queue of batches (``queue.type=BatchCQ``) as Arrow batches: one row for each message in a record.

Ranges are of messages, and may begin or end inside of a batch. What is gone is loud, as of other queues; offsets that
never had a message count as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stratamq.errors import CorruptionError
from stratamq.formats.arrow import UNIT_COLUMNS, LogView, Rows, record_batch
from stratamq.formats.vector import Ints
from stratamq.logstore import mappings
from stratamq.logstore.batch_files import BatchStream, BelievedBatches, number_of, open_batches
from stratamq.logstore.listing import StreamFile
from stratamq.logstore.snapshot import StoreFiles
from stratamq.pipeline.spans import BATCH_BYTES_MAX, BATCH_ROWS, Lost, QueueSpan, Split, equal_cuts
from stratamq.pipeline.unfolding import unfold

_UNITS_PER_READ: Final = 16 * BATCH_ROWS
SkipLost = Callable[[Lost], None]


def split_batches(queue: BelievedBatches, span: QueueSpan, bytes_per_split: int) -> Iterator[Split]:
    """Cut a span between records into splits of about equal bytes. Raises OffsetOutOfRange."""
    units = queue.units(span.lo, span.hi)
    if not len(units):
        return
    borders = [span.lo, *units["base_offset"][1:].tolist(), span.hi]
    for start, stop, size in equal_cuts(units["size"].astype(np.int64), bytes_per_split):
        yield Split(span.topic, span.queue_id, borders[start], borders[stop], size)


def messages_of_batches(
    files: StoreFiles,
    span: QueueSpan,
    columns: Sequence[str],
    *,
    batch_rows: int,
    decompress: bool,
    views: bool,
    skip_lost: SkipLost | None,
) -> Iterator[Any]:
    """The messages of a span, in order, as pyarrow RecordBatches; arguments and errors as of `reader.arrow_batches`.

    Raises QueueNotFound when the queue is gone.
    """
    topic, queue_id, lo, hi = span
    at = lo
    while at < hi:
        stream = open_batches(files, topic, queue_id)
        units = _units_between(stream, at, hi)
        lost = _lost_at_start(files, units, span, at)
        if lost is not None:
            if skip_lost is None:
                raise lost.error(lo, hi, _available(files, stream))
            skip_lost(lost)
            at = lost.hi
            continue
        for file, run in _runs(files, units, batch_rows):
            end = min(hi, int(run["base_offset"][-1]) + int(run["messages"][-1]))
            part = QueueSpan(topic, queue_id, at, end)
            try:
                if UNIT_COLUMNS.issuperset(columns):
                    log, rows = _from_units(file, run, part)
                else:
                    log, rows = _from_log(file, run, part)
            except FileNotFoundError:  # deleted since it was listed; the next round says what is lost
                files = StoreFiles(files.path)
                break
            for start in range(0, end - at, batch_rows):
                yield record_batch(
                    log, _some(rows, start, start + batch_rows), columns, decompress=decompress, views=views
                )
            at = end


def _units_between(stream: BatchStream, at: int, hi: int) -> npt.NDArray[Any]:
    """The units of messages from the one on that holds ``at``, or comes next; not too many."""
    start = number_of(stream, lambda unit: unit.end_offset <= at, 0, stream.count)
    stop = number_of(stream, lambda unit: unit.base_offset < hi, start, stream.count)
    return stream.units(start, min(stop, start + _UNITS_PER_READ))


def _lost_at_start(files: StoreFiles, units: npt.NDArray[Any], span: QueueSpan, at: int) -> Lost | None:
    """The run of lost messages that begins at offset ``at``, None when the message there can be read."""
    stop = at
    for offset, base, count in units[["physical_offset", "base_offset", "messages"]].tolist():
        if base > stop or files.file_of(offset) is not None:
            stop = max(stop, min(base, span.hi))
            break
        stop = base + count
    else:
        stop = span.hi if not len(units) else stop
    return Lost(span.topic, span.queue_id, at, min(stop, span.hi)) if stop > at else None


def _available(files: StoreFiles, stream: BatchStream) -> tuple[int, int]:
    """The offsets that the files have, as far as units say."""
    first = number_of(stream, lambda unit: unit.physical_offset < files.min_physical_offset, 0, stream.count)
    end = stream.unit(stream.count - 1).end_offset if stream.count else 0
    return (stream.unit(first).base_offset if first < stream.count else end), end


def _runs(files: StoreFiles, units: npt.NDArray[Any], batch_rows: int) -> Iterator[tuple[StreamFile, npt.NDArray[Any]]]:
    """Cut units into runs without a hole that lie in one commit-log file and are not too many or too large.

    Ends before the first unit whose file is gone.
    """
    places, sizes = units["physical_offset"].tolist(), units["size"].tolist()
    bases, counts = units["base_offset"].tolist(), units["messages"].tolist()
    at = 0
    while at < len(units) and (file := files.file_of(places[at])) is not None:
        stop, rows, size = at, 0, 0
        while stop < len(units) and file.base <= places[stop] < file.base + file.length:
            rows, size = rows + counts[stop], size + sizes[stop]
            if stop > at and (
                rows > batch_rows or size > BATCH_BYTES_MAX or bases[stop] != bases[stop - 1] + counts[stop - 1]
            ):
                break
            stop += 1
        yield file, units[at:stop]
        if stop < len(units) and bases[stop] != bases[stop - 1] + counts[stop - 1]:
            return
        at = stop


def _from_units(file: StreamFile, units: npt.NDArray[Any], part: QueueSpan) -> tuple[LogView, Rows]:
    """Rows of which only the columns of units are wanted: positions are places in the log."""
    offsets = np.arange(part.lo, part.hi, dtype=np.int64)
    places: Ints = np.repeat(units["physical_offset"].astype(np.int64), units["messages"])
    places = places[part.lo - int(units["base_offset"][0]) :][: len(offsets)]
    log = LogView(file.path, 0, np.zeros(0, np.uint8), None)
    return log, Rows(places, topic=part.topic, queue_id=part.queue_id, queue_offsets=offsets)


def _from_log(file: StreamFile, units: npt.NDArray[Any], part: QueueSpan) -> tuple[LogView, Rows]:
    """The messages of a part as records of their own. Raises FileNotFoundError, CorruptionError."""
    positions = units["physical_offset"].astype(np.int64) - file.base
    for before, after in pairwise(positions.tolist()):
        if after <= before:
            where = f"batchconsumequeue/{part.topic}/{part.queue_id}"
            found = f"{file.base + after} behind {file.base + before}"
            raise CorruptionError(where, 0, "ascending physical offsets", found, hint="run: stratamq store check")
    log = LogView.over(file.path, file.base, mappings.map_read_only(file.path))
    sizes, bases = units["size"].astype(np.int64), units["base_offset"].astype(np.int64)
    data, starts, offsets = unfold(log, Rows(positions, sizes=sizes, queue_offsets=bases))
    wanted = (offsets >= part.lo) & (offsets < part.hi)
    if not np.array_equal(offsets[wanted], np.arange(part.lo, part.hi)):
        found = f"{np.count_nonzero(wanted)} of them"
        expected = f"messages {part.lo} to {part.hi - 1} of topic {part.topic}, queue {part.queue_id}"
        raise CorruptionError(file.path, int(positions[0]), expected, found, hint="run: stratamq store check")
    place = f"{file.path}, messages from offset {part.lo} on"
    rows = Rows(starts[wanted], topic=part.topic, queue_id=part.queue_id, queue_offsets=offsets[wanted])
    return LogView.over(place, None, data), rows


def _some(rows: Rows, start: int, stop: int) -> Rows:
    assert rows.queue_offsets is not None
    return rows._replace(positions=rows.positions[start:stop], queue_offsets=rows.queue_offsets[start:stop])
