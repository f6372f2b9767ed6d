"""`spark.readStream.format("stratamq")`: a store directory as a stream, its offsets in Spark's checkpoint.

One Python process on the driver plans all batches of a query (`initialOffset`, `latestOffset`, `partitions`); `read`
runs in workers, on a pickled copy, and is that of the batch source. A batch is a set of ranges ``[start, end)`` of
queue offsets, so a batch that is run again after a crash reads the same records.

Imported at the first stream, because it needs what Spark 4.2 brought: limits and ``Trigger.AvailableNow``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from stratamq.logstore.types import QueueKey
from stratamq.pipeline.datasource import RangePartition, StrataReader
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.origins import Origin, open_origin
from stratamq.pipeline.plan import TASKS_KEPT, chosen_queues, cut_spans, group_splits, last_offset, start_offset
from stratamq.pipeline.progression import (
    Offsets,
    batch_ranges,
    check_losses,
    decode_offsets,
    encode_end,
    encode_offsets,
    next_end,
)
from stratamq.pipeline.reader import QueueSpan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Document = dict[str, Any]


class StrataStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one streaming query and reads their ranges."""

    def __init__(
        self, schema: StructType, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.batch = StrataReader(schema, options)
        self.frozen: dict[QueueKey, int] | None = None
        self.clock = clock
        self.since: float | None = None

    def initialOffset(self) -> Document:
        """Where a new query begins, by ``startingTimestamp`` or ``startingOffsets``. Not called with a checkpoint.

        Raises:
            PipelineError, DataLost: A topic, queue or offset that was asked for is not there.
        """
        with closing(open_origin(self.options)) as origin:
            keys = chosen_queues(origin.keys(), self.options)
            return encode_offsets(
                {key: start_offset(origin, origin.queue(key.topic, key.queue_id), self.options) for key in keys}
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger`` or else ``maxBytesPerTrigger``. With both, `latestOffset` applies the second too."""
        if self.options.rows_per_trigger is not None:
            return ReadMaxRows(self.options.rows_per_trigger)
        if self.options.bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        """How far the next batch goes under ``limit``. Opens the store's file lists and ends of queues.

        Raises:
            DataLost: Records that come next are gone, and ``failOnDataLoss`` is on.
        """
        at = decode_offsets(start)
        with closing(open_origin(self.options, trusts_topics=True)) as origin:
            earliest, latest = self._ends(origin)
            at = self._from(at, earliest, latest)
            latest = self._capped(origin, at, latest)
            if self._waits(at, latest):
                return start
            if self.frozen is not None:
                latest = {key: min(end, self.frozen[key]) for key, end in latest.items() if key in self.frozen}
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
            if rows is not None:
                size = self.options.bytes_per_trigger
            sizes: dict[QueueKey, int] | None = None
            if size is not None:
                spans = [QueueSpan(*key, at[key], end) for key, end in latest.items() if end > at[key]]
                sizes = {}
                for split in origin.splits(spans, bytes_per_split=self.options.bytes_per_split):
                    key = QueueKey(split.topic, split.queue_id)
                    sizes[key] = sizes.get(key, 0) + split.size_bytes
        ends = next_end(at, latest, rows_max=rows, sizes=sizes, bytes_max=size)
        return start if ends == at else encode_end(at, ends)  # the same text: there is nothing new

    def reportLatestOffset(self) -> Document:
        """The ends of all queues now, for ``sources[].latestOffset`` of the progress: lag is what lies between."""
        with closing(open_origin(self.options, trusts_topics=True)) as origin:
            return encode_offsets(self._ends(origin)[1])

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where this run ends: at what is in the store now."""
        with closing(open_origin(self.options, trusts_topics=True)) as origin:
            self.frozen = self._ends(origin)[1]

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of a batch, which ``end`` alone says; so a batch that is run again is the same.

        Raises:
            DataLost: Records of the batch are gone, and ``failOnDataLoss`` is on.
        """
        options = self.options
        ranges = {} if start == end else batch_ranges(end)
        with closing(open_origin(options, trusts_topics=True)) as origin:
            earliest, latest = self._ends(origin)
            if options.fail_on_data_loss:
                for edge in (0, 1):
                    check_losses({key: both[edge] for key, both in ranges.items()}, earliest, latest)
            wanted = [
                QueueSpan(*key, max(lo, earliest[key]), min(hi, latest[key]))
                for key, (lo, hi) in ranges.items()
                if key in latest
            ]
            spans = [span for span in wanted if span.lo < span.hi]
            splits = cut_spans(origin, spans, options)
        groups = group_splits(splits, options.bytes_per_split, tasks_min=max(TASKS_KEPT, options.partitions_min))
        return [RangePartition.of(group) for group in groups] or [RangePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a worker; see `StrataReader.read`."""
        return self.batch.read(partition)

    def commit(self, end: Document) -> None:
        """Nothing to do: the checkpoint is the only truth about where a stream stands."""

    def stop(self) -> None:
        """Nothing to do: no file stays open between calls."""

    def _ends(self, origin: Origin) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
        """Earliest and next offset of each chosen queue. Topics may be absent by now: the check of losses says so."""
        lenient = dataclasses.replace(self.options, fail_on_data_loss=False, starting_offsets=None, ending_offsets=None)
        ranges = {key: origin.queue(key.topic, key.queue_id) for key in chosen_queues(origin.keys(), lenient)}
        return (
            {key: one.min_offset for key, one in ranges.items()},
            {key: one.max_offset for key, one in ranges.items()},
        )

    def _capped(self, origin: Origin, at: Offsets, latest: Offsets) -> dict[QueueKey, int]:
        """Ends no further than the options have a stream go, and never behind where it stands."""
        found = dict(latest)
        for key, end in latest.items():
            last = last_offset(origin, origin.queue(*key), self.options)
            if last is not None:
                found[key] = max(at[key], min(end, last))
        return found

    def _waits(self, at: Offsets, latest: Offsets) -> bool:
        """Whether too little is there for a batch, and there is time yet."""
        waiting = sum(end - at[key] for key, end in latest.items())
        now = self.clock()
        self.since = now if self.since is None else self.since
        delay = self.options.trigger_delay_seconds
        if self.frozen is None and waiting < self.options.rows_per_trigger_min and now - self.since < delay:
            return True
        self.since = now
        return False

    def _from(self, at: Offsets, earliest: Offsets, latest: Offsets) -> dict[QueueKey, int]:
        """Where reading goes on: new queues at their earliest offset, and past what is lost where that is allowed."""
        if self.options.fail_on_data_loss:
            check_losses(at, earliest, latest)
        found = dict(at)
        for key, first in earliest.items():
            found[key] = min(max(at.get(key, first), first), max(latest[key], at.get(key, first)))
        return found
