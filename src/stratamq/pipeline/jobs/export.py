"""The job `export`: topics to a Parquet table partitioned by topic and day, each message once, a run at a time.

From files, a broker, a cold tier, or these joined: whatever the source `stratamq` reads. A run takes what is new since
the table's newest commit (`jobs.table`), in waves; each wave is one commit. Tasks write Parquet themselves, so that
messages do not pass through the JVM.

Columns are those of the source without ``topic``, which the folder says, as it says ``date``: the day of the store
time, UTC.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratamq.errors import DataLost, PipelineError
from stratamq.formats.arrow import SCHEMA
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.jobs.running import Json, Runner
from stratamq.pipeline.jobs.table import Commit, ExportedFile, Table, joined_offsets, partition
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.origins import Origin, RangeReader, open_origin
from stratamq.pipeline.plan import chosen_queues, cut_spans
from stratamq.pipeline.reader import QueueSpan, Split
from stratamq.units import MiB

COLUMNS: Final = tuple(name for name in SCHEMA.names if name != "topic")
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 32 * MiB
DAYS_OPEN_MAX: Final = 8
"""So many files a task writes at a time; a day that comes up again after more than that gets a second file."""
WAVE_BYTES: Final = 4096 * MiB


class WriteTask(NamedTuple):
    """One range to write into a staging folder."""

    options: ReadOptions
    split: Split
    staging: str
    version: int
    columns: tuple[str, ...]


class Exported(NamedTuple):
    """What a run has added: commits, files, messages, bytes of Parquet; and messages that were gone."""

    commits: int
    files: int
    messages: int
    bytes: int
    lost: int


# --- planning -----------------------------------------------------------------------------------------------------


def plan_spans(origin: Origin, options: ReadOptions, since: Commit) -> tuple[list[QueueSpan], int]:
    """What is new since a commit, and how many messages between that and now are gone.

    Of the options' time bounds the first holds for queues that the table does not know yet, the second for all.

    Raises DataLost: Messages behind the commit are gone, or the source is not the one that the table was made of; with
    ``failOnDataLoss`` off the gap is counted.
    """
    spans: list[QueueSpan] = []
    lost = 0
    for topic, queue_id in chosen_queues(origin.keys(), options):
        queue = origin.queue(topic, queue_id)
        lo, hi = queue.min_offset, queue.max_offset
        known = since.next_offsets.get(QueueKey(topic, queue_id))
        if known is not None:
            if (known > hi or known < lo) and options.fail_on_data_loss:
                raise DataLost(
                    f"the table has topic {topic}, queue {queue_id} up to {known}, but {origin.place} has {lo} to {hi} "
                    "(exclusive). Messages expired before they were exported, or the source is another one; "
                    "--skip-lost goes on with what is there"
                )
            lost += max(0, lo - known)
            lo = max(lo, known) if known <= hi else lo
        elif options.starting_timestamp_ms is not None:
            lo = origin.offset_by_time(topic, queue_id, options.starting_timestamp_ms)
        if options.ending_timestamp_ms is not None:
            hi = min(hi, origin.offset_by_time(topic, queue_id, options.ending_timestamp_ms))
        if lo < hi:
            spans.append(QueueSpan(topic, queue_id, lo, hi))
    return spans, lost


def waves_of(splits: Sequence[Split], wave_bytes: int) -> Iterator[list[Split]]:
    """Splits that are committed together: so many bytes, at least one split."""
    wave: list[Split] = []
    size = 0
    for split in splits:
        if wave and size + split.size_bytes > wave_bytes:
            yield wave
            wave, size = [], 0
        wave.append(split)
        size += split.size_bytes
    if wave:
        yield wave


def plan_export(options: ReadOptions, since: Commit) -> tuple[list[Split], int]:
    """The ranges that a run would write, in order, and how many messages are gone. What `plan_spans` raises."""
    with closing(open_origin(options)) as origin:
        spans, lost = plan_spans(origin, options, since)
        return cut_spans(origin, spans, options), lost


# --- a task -------------------------------------------------------------------------------------------------------


class _DayFile:
    """One file that is being written: rows of one day."""

    def __init__(self, staging: str, path: str, schema: pa.Schema) -> None:
        self.path, self._target = path, os.path.join(staging, path)
        os.makedirs(os.path.dirname(self._target), exist_ok=True)
        # Two attempts of one task may run at a time: each has a name of its own until it is whole.
        self._making = f"{self._target}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        self._writer = pq.ParquetWriter(
            self._making,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=["tags"],
            write_page_index=True,
        )
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; a row group is written when enough wait."""
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=GROUP_ROWS)
            self.rows += self._held_rows
            self._held, self._held_rows, self._held_bytes = [], 0, 0

    def close(self) -> int:
        """Write what waits, sync, and give the file its name. Returns its length."""
        self._flush()
        self._writer.close()
        fd = os.open(self._making, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        os.replace(self._making, self._target)
        return size

    def drop(self) -> None:
        """Leave nothing behind: the task failed."""
        with contextlib.suppress(OSError):
            self._writer.close()
        with contextlib.suppress(OSError):
            os.unlink(self._making)


def write_range(task: WriteTask) -> Json:
    """Write one range into staging, a file a day. Runs in a worker; done again, the same files.

    Raises DataLost, CorruptionError and what `RangeReader` raises.
    """
    split = task.split
    lost = 0

    def skip(one: Any) -> None:
        nonlocal lost
        lost += one.hi - one.lo

    days: dict[str, _DayFile] = {}
    made: dict[str, int] = {}
    files: list[list[Any]] = []

    def close(day: str) -> None:
        file = days.pop(day)
        size = file.close()
        files.append(list(ExportedFile(file.path, split.topic, split.queue_id, split.lo, split.hi, file.rows, size)))

    names = list(dict.fromkeys([*task.columns, "store_timestamp"]))
    skip_lost = None if task.options.fail_on_data_loss else skip
    try:
        with RangeReader(task.options, names, skip_lost) as reader:
            for batch in reader.batches(QueueKey(split.topic, split.queue_id), split.lo, split.hi, split.segments):
                for day, rows in by_day(batch):
                    if day not in days:
                        if len(days) >= DAYS_OPEN_MAX:
                            close(next(iter(days)))
                        made[day] = made.get(day, 0) + 1
                        name = (
                            f"{split.queue_id:05d}-{split.lo:020d}-{split.hi:020d}-{task.version}-{made[day]}.parquet"
                        )
                        path = f"{partition(split.topic, day)}/{name}"
                        days[day] = _DayFile(task.staging, path, rows.select(list(task.columns)).schema)
                    days[day].add(rows.select(list(task.columns)))
        for day in list(days):
            close(day)
    finally:
        for file in days.values():
            file.drop()
    return {"files": files, "lost": lost}


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by the day of their store time, UTC, in order."""
    days = pc.divide(batch.column("store_timestamp").cast(pa.int64()), 86_400_000_000)
    for day in pc.unique(days).to_pylist():
        rows = batch if len(pc.unique(days)) == 1 else batch.filter(pc.equal(days, day))
        yield (datetime.date(1970, 1, 1) + datetime.timedelta(days=day)).isoformat(), rows


# --- a run --------------------------------------------------------------------------------------------------------


def export(
    runner: Runner,
    options: ReadOptions,
    table: Table,
    *,
    columns: Sequence[str] = COLUMNS,
    wave_bytes: int = WAVE_BYTES,
    chance: Callable[[int], bytes] = os.urandom,
) -> Exported:
    """Add to the table what is new in the source. Blocks; a run that was killed is taken up by the next.

    Raises:
        DataLost: Messages are gone that the table does not have, and ``failOnDataLoss`` is on.
        PipelineError: The table is of another source, another export writes it, or a task failed.
        CorruptionError: A commit of the table, or the source, is damaged.
    """
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown or not columns:
        raise PipelineError(f"no column {', '.join(unknown) or 'is named'}; there are {', '.join(COLUMNS)}")
    source = source_of(options)
    with table.writing() as before:
        if before.version and before.source != source:
            raise PipelineError(
                f"{table.root} holds messages of {before.source}, not of {source}, whose offsets are others; name "
                "another directory"
            )
        splits, lost = plan_export(options, before)
        done = Exported(0, 0, 0, 0, lost)
        for wave in waves_of(splits, wave_bytes):
            version = before.version + 1
            staging = table.new_staging(version, chance(8).hex())
            answers = runner(
                write_range, [WriteTask(options, split, str(staging), version, tuple(columns)) for split in wave]
            )
            files = tuple(ExportedFile(*row) for answer in answers for row in answer["files"])
            ends = joined_offsets(before.next_offsets, [(split.topic, split.queue_id, split.hi) for split in wave])
            before = Commit(version, source, staging.name, files, ends)
            table.commit(before)
            done = Exported(
                done.commits + 1,
                done.files + len(files),
                done.messages + sum(file.rows for file in files),
                done.bytes + sum(file.bytes for file in files),
                done.lost + sum(answer["lost"] for answer in answers),
            )
    return done


def source_of(options: ReadOptions) -> str:
    """Whose offsets these are: a place of its own keeps its own."""
    hot = ";".join(options.namesrv) or (os.path.abspath(options.path) if options.path else "")
    return " and ".join(part for part in (hot, options.tier) if part)
