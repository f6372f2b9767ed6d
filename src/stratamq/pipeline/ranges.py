"""Bulk jobs as a function of one range of records: it runs in a Python worker, and only what it returns crosses over.

Rows that would only be counted or hashed need not pass through the JVM: a job that reads its range itself and returns a
small batch is 2 to 4 times as fast as a query over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from stratamq.pipeline.plan import group_splits
from stratamq.pipeline.reader import BYTES_PER_SPLIT, Split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RangeFunction = Callable[[Split], "Iterable[pa.RecordBatch]"]
"""Reads one split and yields what is left of it. Runs in a Python worker, once a task and again when it is retried; so
it must be picklable, depend on the split alone, and change nothing outside of itself."""


def map_ranges(
    spark: SparkSession, splits: Sequence[Split], fn: RangeFunction, out_schema: StructType | str
) -> DataFrame:
    """Run ``fn`` once for each split and give its batches as a DataFrame.

    A split is a task of its own, but where there are very many small ones several share a task. Lazy, as Spark is:
    nothing runs before an action. Batches must have exactly the types of ``out_schema``.
    """
    groups = group_splits(splits, BYTES_PER_SPLIT)

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for split in groups[number]:
                    yield from fn(split)

    # One row a partition: the number of its group.
    return spark.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(run, out_schema)
