"""Ranges of a log store as Arrow batches, and how a read is cut into tasks. Knows nothing of Spark.

A read is planned once, on a `StoreSnapshot`: ranges of queue offsets with a fixed end, cut into `Split` values of about
equal bytes (`plan_splits`). Each split is then read on its own, in any process, from the files alone
(`arrow_batches`): the same split always gives the same rows, and never a row twice.

What is gone is loud: records that retention has removed between planning and reading raise `DataLost`, which names
topic, queue, wanted and available offsets, unless the caller asks to skip them and is told how many they were. Damaged
records raise the typed errors of `formats.arrow.record_batch`.

Cost on one core, from the page cache, 1 KB bodies: docs/design/bulk-reader.md; measured by ``python -m bench.bulk``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stratamq.errors import CorruptionError
from stratamq.formats.arrow import SCHEMA, UNIT_COLUMNS, LogView, Rows, record_batch, schema_of
from stratamq.formats.consume_queue import PREFILL_SIZE, UNIT_BYTES
from stratamq.formats.vector import Ints, Mask
from stratamq.logstore import mappings
from stratamq.logstore.batch_files import is_batch_queue
from stratamq.logstore.light_queues import LMQ_PREFIX
from stratamq.logstore.listing import StreamFile
from stratamq.logstore.snapshot import StoreFiles, StoreSnapshot
from stratamq.pipeline.batch_reader import messages_of_batches
from stratamq.pipeline.spans import BATCH_BYTES_MAX, BATCH_ROWS, Lost, QueueSpan, Split, equal_cuts
from stratamq.units import MiB

__all__ = ["BATCH_ROWS", "SCHEMA", "Lost", "QueueSpan", "Split", "arrow_batches", "plan_splits", "spans_of"]

BYTES_PER_SPLIT: Final = 128 * MiB
_UNITS_PER_READ: Final = 64 * BATCH_ROWS


def plan_splits(
    snapshot: StoreSnapshot, spans: Iterable[tuple[str, int, int, int]], *, bytes_per_split: int = BYTES_PER_SPLIT
) -> list[Split]:
    """Cut spans (topic, queue id, lo, hi) into splits of about ``bytes_per_split``, in the order given.

    A span is cut into pieces of nearly equal bytes, by the sizes that its consume-queue units state; no record is in
    two splits. Empty spans give none. Cost: reads the units, 20 bytes a record.

    Raises OffsetOutOfRange for a span outside of the snapshot.
    """
    splits: list[Split] = []
    for topic, queue_id, lo, hi in spans:
        if lo >= hi:
            continue
        sizes = snapshot.units(topic, queue_id, lo, hi)["size"].astype(np.int64)
        for start, stop, size in equal_cuts(sizes, bytes_per_split):
            splits.append(Split(topic, queue_id, lo + start, lo + stop, size))
    return splits


def spans_of(
    snapshot: StoreSnapshot,
    topics: Iterable[str] | None = None,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
) -> list[QueueSpan]:
    """What the queues (of some topics) hold, narrowed to records stored at ``[from_ms, until_ms)``."""
    spans = []
    for queue in snapshot.queues(topics):
        lo, hi = queue.min_offset, queue.max_offset
        if from_ms is not None:
            lo = snapshot.offset_by_time(queue.topic, queue.queue_id, from_ms)
        if until_ms is not None:
            hi = snapshot.offset_by_time(queue.topic, queue.queue_id, until_ms)
        if lo < hi:
            spans.append(QueueSpan(queue.topic, queue.queue_id, lo, hi))
    return spans


def arrow_batches(
    store: StoreFiles | Path | str,
    topic: str,
    queue_id: int,
    lo: int,
    hi: int,
    columns: Sequence[str] | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    decompress: bool = True,
    views: bool = False,
    skip_lost: Callable[[Lost], None] | None = None,
) -> Iterator[Any]:
    """The records ``[lo, hi)`` of a queue, in order, as pyarrow RecordBatches.

    Only the columns asked for are built (None: all of `SCHEMA`, in its order). Columns that the consume queue knows
    (`UNIT_COLUMNS`) asked for alone do not touch the commit log. A batch never spans two commit-log files, so batches
    at file ends are smaller than ``batch_rows``. Of a queue of batches each message inside is a row.

    Args:
        store: An open store, or where one lies; a path is opened here, which costs one directory listing.
        topic, queue_id, lo, hi: The range; its end must have been fixed on a snapshot.
        columns: Names from `SCHEMA`.
        batch_rows: Most rows of a batch.
        decompress: Give compressed bodies as the producer wrote them, else as stored.
        views: Give bodies as binary views into the mapped file.
        skip_lost: Called for each run of records that is gone, instead of raising. They are left out.

    Raises:
        DataLost: Records of the range are gone and ``skip_lost`` is None.
        CorruptionError: The files hold something else than these records there.
        PipelineError: Unknown column.
    """
    schema = schema_of(columns, views=views)
    files = store if isinstance(store, StoreFiles) else StoreFiles(Path(store))
    if is_batch_queue(files.path, topic, queue_id):
        span = QueueSpan(topic, queue_id, lo, hi)
        yield from messages_of_batches(
            files, span, schema.names, batch_rows=batch_rows, decompress=decompress, views=views, skip_lost=skip_lost
        )
        return
    at = lo
    while at < hi:
        units = files.raw_units(topic, queue_id, at, min(hi, at + _UNITS_PER_READ))
        lost = _lost_at_start(files, units, topic, queue_id, at, hi)
        if lost is not None:
            if skip_lost is None:
                with files.queue_files(topic, queue_id) as queue:
                    there = queue.ends(files.min_physical_offset, 2**63 - 1, lambda offset, unit: True)
                raise lost.error(lo, hi, there[:2])
            skip_lost(lost)
            at = lost.hi
            continue
        for file, start, stop in _runs(files, units, batch_rows):
            if file is None:
                units = units[:start]  # the next round says what is lost there
                break
            rows = _rows(topic, queue_id, at + start, units[start:stop], file)
            if UNIT_COLUMNS.issuperset(schema.names) and rows.queue_offsets is not None:
                log = LogView(file.path, file.base, np.zeros(0, np.uint8), None)
            else:
                mapped = _mapped(file)
                if mapped is None:
                    units = units[:start]
                    files = StoreFiles(files.path)
                    break
                log = mapped
            yield record_batch(log, rows, schema.names, decompress=decompress, views=views)
        at += len(units)


def _mapped(file: StreamFile) -> LogView | None:
    """The mapped file, None when it has been deleted since it was listed."""
    try:
        return LogView.over(file.path, file.base, mappings.map_read_only(file.path))
    except FileNotFoundError:
        return None


def _rows(topic: str, queue_id: int, offset: int, units: npt.NDArray[Any], file: StreamFile) -> Rows:
    positions = units["physical_offset"].astype(np.int64) - file.base
    sizes = units["size"].astype(np.int64)
    if (np.diff(positions) <= 0).any():
        row = int(np.flatnonzero(np.diff(positions) <= 0)[0])
        found = f"{int(units['physical_offset'][row + 1])} behind {int(units['physical_offset'][row])}"
        where = f"consumequeue/{topic}/{queue_id}"
        hint = "run: stratamq store check"
        raise CorruptionError(where, (offset + row + 1) * UNIT_BYTES, "ascending physical offsets", found, hint=hint)
    if topic.startswith(LMQ_PREFIX):
        return Rows(positions, topic=None, sizes=sizes)
    offsets: Ints = np.arange(offset, offset + len(units), dtype=np.int64)
    return Rows(positions, topic=topic, queue_id=queue_id, queue_offsets=offsets, sizes=sizes)


def _runs(files: StoreFiles, units: npt.NDArray[Any], batch_rows: int) -> Iterator[tuple[StreamFile | None, int, int]]:
    """Cut units into runs that lie in one commit-log file and are not too many or too large. No file: it is gone."""
    at = 0
    offsets = units["physical_offset"].astype(np.int64)
    ends = np.cumsum(units["size"], dtype=np.int64)
    while at < len(units):
        file = None if _is_gone(files, units[at : at + 1])[0] else files.file_of(int(offsets[at]))
        if file is None:
            yield None, at, at
            return
        stop = min(len(units), at + batch_rows)
        inside = (offsets[at:stop] >= file.base) & (offsets[at:stop] < file.base + file.length)
        if not inside.all():
            stop = at + int(np.flatnonzero(~inside)[0])
        before = int(ends[at - 1]) if at else 0
        stop = max(at + 1, min(stop, int(np.searchsorted(ends, before + BATCH_BYTES_MAX, side="right"))))
        yield file, at, stop
        at = stop


def _lost_at_start(
    files: StoreFiles, units: npt.NDArray[Any], topic: str, queue_id: int, at: int, hi: int
) -> Lost | None:
    """The run of lost records that begins at offset ``at``, None when the record there can be read."""
    if not len(units):
        with files.queue_files(topic, queue_id) as queue:
            stop = min(hi, queue.start) if at < queue.start else hi
        return Lost(topic, queue_id, at, stop)
    gone = _is_gone(files, units)
    offsets = units["physical_offset"]
    if not gone[0] and files.file_of(int(offsets[0])) is None:
        # A file is missing in the middle, or the unit points behind the log: step to the first unit that has a file.
        gone = np.fromiter((files.file_of(offset) is None for offset in offsets.tolist()), np.bool_, len(offsets))
    if not gone[0]:
        return None
    first = np.flatnonzero(~gone)
    return Lost(topic, queue_id, at, at + (int(first[0]) if first.size else len(units)))


def _is_gone(files: StoreFiles, units: npt.NDArray[Any]) -> Mask:
    """Which units stand for records below the log's beginning, or are no units at all."""
    offsets, sizes = units["physical_offset"], units["size"]
    gone: Mask = ((sizes == PREFILL_SIZE) & (offsets == 0)) | (sizes <= 0) | (offsets < files.min_physical_offset)
    return gone
