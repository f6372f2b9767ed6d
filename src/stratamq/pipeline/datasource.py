"""`spark.read.format("stratamq")`: the log store as a Spark data source: its files, a broker, the cold tier.

Streams are in `pipeline.stream`; they read with the batch reader of this module.

Who does what, and where. The driver's JVM asks a short-lived Python process to plan; executors ask Python workers to
read. Nothing but numbers and names travels between them.

======================== ============================== ============ ======================================
method                   runs in                        how often    must be picklable
======================== ============================== ============ ======================================
StrataDataSource.schema  planning process (driver)      once a load  the source: it holds the options only
StrataDataSource.reader  planning process (driver)      once a query the reader, with what pushFilters left
StrataReader.pushFilters planning process (driver)      once a query filters go no further
StrataReader.partitions  planning process (driver)      once a query each RangePartition
StrataReader.read        Python worker (executor)       once a task, nothing; yields RecordBatches
                                                        again if the
                                                        task is run
                                                        again
======================== ============================== ============ ======================================

Ends are numbers from planning on (`pipeline.plan`), so a retried task gives the same rows, and what is appended
meanwhile is not seen. Spark has no way to tell a Python source which columns a query uses: give a schema or the option
``columns`` (`read_store` does), and only those columns are built.

This module is imported at the first use of any source in a session, so it imports Spark's interface and nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from stratamq.errors import PipelineError
from stratamq.pipeline.filters import Bounds, take_filters
from stratamq.pipeline.options import ReadOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType

    from stratamq.formats.cold_manifest import Segment
    from stratamq.pipeline.reader import Lost, Split

log = logging.getLogger("stratamq.pipeline")


class RangePartition(InputPartition):
    """One task's work: records ``[lo, hi)`` of a queue, or of several small ones. Names and plain numbers.

    ``segments`` has what to read of the cold tier for each range, None where it is not read there. ``broker`` names the
    one that has the queues, where the read could cover several.
    """

    def __init__(
        self,
        ranges: Iterable[tuple[str, int, int, int]],
        segments: Iterable[tuple[Segment, ...] | None] = (),
        broker: str = "",
    ) -> None:
        self.ranges = tuple(ranges)
        self.segments = tuple(segments)
        self.broker = broker
        super().__init__((self.ranges, self.segments, broker))

    @classmethod
    def of(cls, splits: Sequence[Split], broker: str = "") -> RangePartition:
        """The splits of one task."""
        ranges = ((one.topic, one.queue_id, one.lo, one.hi) for one in splits)
        return cls(ranges, (one.segments for one in splits), broker)


def tasks_of(planned: Iterable[tuple[str, Sequence[Split]]], options: ReadOptions) -> list[InputPartition]:
    """The tasks that read splits, which are given by broker. One of nothing at least, because Spark makes one up
    otherwise."""
    from stratamq.pipeline.plan import TASKS_KEPT, group_splits

    tasks_min = max(TASKS_KEPT, options.partitions_min)
    tasks: list[InputPartition] = [
        RangePartition.of(group, broker)
        for broker, splits in planned
        for group in group_splits(splits, options.bytes_per_split, tasks_min=tasks_min)
    ]
    return tasks or [RangePartition(())]


class StrataDataSource(DataSource):
    """The source `stratamq`: a store directory, a broker or a cold tier, as a batch or a stream.

    Its options: `pipeline.options.OPTIONS`.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``. Called by Spark when it registers sources."""
        return "stratamq"

    def schema(self) -> StructType:
        """All columns, or those of the option ``columns``. Planning process, once a load, not when a schema is given.

        Raises:
            PipelineError, ConfigError: An option is unknown or has an unusable value.
        """
        from stratamq.pipeline.schema import spark_schema

        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``, which may be narrower than ours. Planning process, once a query.

        Raises:
            PipelineError, ConfigError: An option is unusable, or a column is unknown or of another type.
        """
        from stratamq.pipeline.schema import check_columns

        options = parse_options(self.options)
        options = _absolute(options)
        check_columns(schema)
        match options.pushdown:
            case "true":
                return PushingReader(schema, options)
            case "false":
                return StrataReader(schema, options)
        return OptionallyPushingReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the columns in ``schema`` as a stream. Planning process, once a query or its restart.

        Raises:
            PipelineError, ConfigError: An option is unusable, or a column is unknown or of another type; or this
                Spark is older than 4.2.
        """
        from stratamq.pipeline.schema import check_columns

        options = parse_options(self.options, streaming=True)
        options = _absolute(options)
        check_columns(schema)
        try:
            from stratamq.pipeline.stream import StrataStreamReader
        except ImportError as error:
            raise PipelineError(f"streams need Spark 4.2 or newer ({error})") from error
        return StrataStreamReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A sink to topics, or with the option ``lake`` to a lake, for a batch.

        Raises PipelineError for options, columns, and overwriting.
        """
        from stratamq.pipeline.sink import BatchSink, parse_write_options

        if overwrite:
            raise PipelineError("topics and lakes can be appended to, not overwritten: use mode('append')")
        if _is_lake(self.options):
            from stratamq.pipeline.lake_sink import LakeBatchSink, parse_lake_options

            return LakeBatchSink(parse_lake_options(self.options, schema), schema, uuid.uuid4().hex)
        return BatchSink(parse_write_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A sink to topics, or with the option ``lake`` to a lake, for a stream.

        Raises PipelineError for options and columns.
        """
        if _is_lake(self.options):
            from stratamq.pipeline.lake_sink import LakeStreamSink, parse_lake_options

            return LakeStreamSink(parse_lake_options(self.options, schema), schema)
        from stratamq.pipeline.sink import StreamSink, parse_write_options

        return StreamSink(parse_write_options(self.options, schema))


class StrataReader(DataSourceReader):
    """Plans a read, then reads ranges. Holds options and column names; travels to the workers as a pickle."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self.spark_schema = schema
        self.options = options
        self.bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """One partition a task; resolves all offsets. Planning process, once a query, after pushFilters.

        Opens the store's file lists and the ends of its queues, and reads no record but for times.

        Raises:
            PipelineError, DataLost: What was asked for is not there.
            NotAStore: The path holds no store.
        """
        from stratamq.pipeline.brokers import plan_parts

        planned = plan_parts(self.options, self.bounds)
        tasks = tasks_of(planned, self.options)
        records = sum(one.hi - one.lo for _, splits in planned for one in splits)
        log.info("%s: %d tasks, %d records", self.options.place, len(tasks), records)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, in order, in batches. Python worker, once a task and again when it is retried.

        Stateless: opens the files itself; those that this worker process has mapped before stay mapped.

        Raises:
            DataLost: Records of the range are gone, and ``failOnDataLoss`` is on. Otherwise what is left is read, and
                the log says how many were lost.
            CorruptionError: The files hold something else than records there.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from stratamq.logstore.types import QueueKey
        from stratamq.pipeline.origins import RangeReader

        if not isinstance(partition, RangePartition):
            raise PipelineError(f"not a partition of this source: {partition}")
        schema = to_arrow_schema(self.spark_schema, timezone="UTC")
        skip_lost = None if self.options.fail_on_data_loss else _log_lost
        options = dataclasses.replace(self.options, broker=partition.broker or self.options.broker)
        with RangeReader(options, self.spark_schema.names, skip_lost) as reader:
            for (topic, queue_id, lo, hi), segments in zip_longest(partition.ranges, partition.segments):
                for batch in reader.batches(QueueKey(topic, queue_id), lo, hi, segments):
                    # The same types; Spark also compares whether a column may be null, which is the user's to say.
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class PushingReader(StrataReader):
    """A reader that takes filters; Spark refuses it where filter pushdown is switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows topics, queues and offsets, and give the rest back. Planning process, once a query.

        Called before `partitions`, and only when the query has filters. What is given back are the very objects
        that came in, as Spark demands.
        """
        self.bounds, rest = take_filters(filters)
        return rest


class _WhereAllowed:
    """`PushingReader.pushFilters`, offered in a way that Spark does not refuse where pushdown is switched off.

    Spark compares ``reader.pushFilters.__func__`` with the method of its base class, and fails a query when they
    differ but the setting is off, so that no source leans on filters it is never given. This source does not:
    without pushed filters it reads more, and the rows are the same. So it shows Spark the base class's function, and
    is still called when the setting is on.
    """

    def __get__(self, reader: StrataReader, owner: type) -> _WhereAllowed:
        bound = _WhereAllowed()
        bound.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        bound.reader = reader  # type: ignore[attr-defined]
        return bound

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return PushingReader.pushFilters(self.reader, filters)  # type: ignore[attr-defined]


class OptionallyPushingReader(StrataReader):
    """A reader that takes filters where pushdown is switched on, and works where it is not."""

    pushFilters = _WhereAllowed()


def _is_lake(options: Mapping[str, str]) -> bool:
    return any(name.lower() == "lake" for name in options)


def _absolute(options: ReadOptions) -> ReadOptions:
    """A worker of a cluster on this machine has another working directory than the driver."""
    return dataclasses.replace(options, path=os.path.abspath(options.path)) if options.path else options


def _log_lost(lost: Lost) -> None:
    log.warning(
        "topic %s, queue %d: %d records from offset %d on are gone",
        lost.topic,
        lost.queue_id,
        lost.hi - lost.lo,
        lost.lo,
    )
