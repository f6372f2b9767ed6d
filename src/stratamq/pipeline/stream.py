"""`spark.readStream.format("stratamq")`: a store directory as a stream, its offsets in Spark's checkpoint.

One Python process on the driver plans all batches of a query (`initialOffset`, `latestOffset`, `partitions`); `read`
runs in workers, on a pickled copy, and is that of the batch source. A batch is a set of ranges ``[start, end)`` of
queue offsets, so a batch that is run again after a crash reads the same records.

Imported at the first stream, because it needs what Spark 4.2 brought: limits and ``Trigger.AvailableNow``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
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

from stratamq.pipeline.brokers import Places, open_places
from stratamq.pipeline.datasource import StrataReader, tasks_of
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.plan import cut_spans, last_offset, start_offset
from stratamq.pipeline.progression import (
    BrokerQueue,
    Offsets,
    batch_ranges,
    check_losses,
    decode_offsets,
    encode_end,
    encode_offsets,
    next_end,
    on_brokers,
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
        self.frozen: dict[BrokerQueue, int] | None = None
        self.clock = clock
        self.since: float | None = None

    def initialOffset(self) -> Document:
        """Where a new query begins, by ``startingTimestamp`` or ``startingOffsets``. Not called with a checkpoint.

        Raises:
            PipelineError, DataLost: A topic, queue or offset that was asked for is not there.
        """
        with open_places(self.options) as places:
            return encode_offsets(
                {
                    key: start_offset(origin, origin.queue(key.topic, key.queue_id), options)
                    for key, origin, options in places.chosen(lenient=False)
                }
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
        stands = decode_offsets(start)
        with self._places(stands) as places:
            earliest, latest = places.ends()
            at = self._from(on_brokers(stands, places.brokers), earliest, latest)
            latest = self._capped(places, at, latest)
            if self._waits(at, latest):
                return start
            if self.frozen is not None:
                latest = {key: min(end, self.frozen[key]) for key, end in latest.items() if key in self.frozen}
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
            if rows is not None:
                size = self.options.bytes_per_trigger
            sizes = None if size is None else self._sizes(places, {key: (at[key], end) for key, end in latest.items()})
        ends = next_end(at, latest, rows_max=rows, sizes=sizes, bytes_max=size)
        return start if ends == at else encode_end(at, ends)  # the same text: there is nothing new

    def reportLatestOffset(self) -> Document:
        """The ends of all queues now, for ``sources[].latestOffset`` of the progress: lag is what lies between."""
        with self._places() as places:
            return encode_offsets(places.ends()[1])

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where this run ends: at what is in the store now."""
        with self._places() as places:
            self.frozen = places.ends()[1]

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of a batch, which ``end`` alone says; so a batch that is run again is the same.

        Raises:
            DataLost: Records of the batch are gone, and ``failOnDataLoss`` is on.
        """
        said = {} if start == end else batch_ranges(end)
        with self._places(said) as places:
            earliest, latest = places.ends()
            ranges = on_brokers(said, places.brokers)
            if self.options.fail_on_data_loss:
                for edge in (0, 1):
                    check_losses({key: both[edge] for key, both in ranges.items()}, earliest, latest)
            wanted = {
                key: (max(lo, earliest[key]), min(hi, latest[key])) for key, (lo, hi) in ranges.items() if key in latest
            }
            planned = [
                (broker, cut_spans(places.origin(broker), spans, self.options)) for broker, spans in _spans(wanted)
            ]
        return tasks_of(planned, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a worker; see `StrataReader.read`."""
        return self.batch.read(partition)

    def commit(self, end: Document) -> None:
        """Nothing to do: the checkpoint is the only truth about where a stream stands."""

    def stop(self) -> None:
        """Nothing to do: no file stays open between calls."""

    def _places(self, stands: Collection[BrokerQueue] = ()) -> closing[Places]:
        """What this stream reads. Brokers that it stands at are waited for, unless losses are allowed."""
        expected = {(key.topic, key.broker) for key in stands if key.broker and self.options.fail_on_data_loss}
        return open_places(self.options, expected, trusts_topics=True)

    def _capped(self, places: Places, at: Offsets, latest: Offsets) -> dict[BrokerQueue, int]:
        """Ends no further than the options have a stream go, and never behind where it stands."""
        found = dict(latest)
        for key, end in latest.items():
            origin = places.origin(key.broker)
            last = last_offset(origin, origin.queue(key.topic, key.queue_id), self.options)
            if last is not None:
                found[key] = max(at[key], min(end, last))
        return found

    def _sizes(self, places: Places, ranges: Mapping[BrokerQueue, tuple[int, int]]) -> dict[BrokerQueue, int]:
        """Bytes of the log in ranges of queues."""
        sizes: dict[BrokerQueue, int] = {}
        for broker, spans in _spans(ranges):
            for split in places.origin(broker).splits(spans, bytes_per_split=self.options.bytes_per_split):
                key = BrokerQueue(split.topic, split.queue_id, broker)
                sizes[key] = sizes.get(key, 0) + split.size_bytes
        return sizes

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

    def _from(self, at: Offsets, earliest: Offsets, latest: Offsets) -> dict[BrokerQueue, int]:
        """Where reading goes on: new queues at their earliest offset, and past what is lost where that is allowed."""
        if self.options.fail_on_data_loss:
            check_losses(at, earliest, latest)
        found = dict(at)
        for key, first in earliest.items():
            found[key] = min(max(at.get(key, first), first), max(latest[key], at.get(key, first)))
        return found


def _spans(ranges: Mapping[BrokerQueue, tuple[int, int]]) -> list[tuple[str, list[QueueSpan]]]:
    """What is not empty of some ranges, by broker."""
    found: dict[str, list[QueueSpan]] = {}
    for key, (lo, hi) in ranges.items():
        if lo < hi:
            found.setdefault(key.broker, []).append(QueueSpan(key.topic, key.queue_id, lo, hi))
    return list(found.items())
