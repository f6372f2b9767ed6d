"""`df.write` and `writeStream` with the option ``lake``: rows of any schema into a lake, each batch exactly once.

Tasks put Parquet files, which nobody sees; the driver makes those of one batch part of the table by one commit, which
names query and batch. A batch that Spark hands over again after a crash is recognised by that and dropped, however its
rows were spread over tasks this time. Files of tasks that failed, or of a batch that was dropped, stay until
`Lake.clean`: whether a commit was made can be unknown for a while, and files that it names must be there.

Memory of a task: one Parquet file, up to `FILE_BYTES`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from stratamq.config import TieredConfig
from stratamq.errors import PipelineError
from stratamq.pipeline.lake import Lake, LakeFile
from stratamq.tiered.backend import open_backend
from stratamq.units import MiB

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OPTIONS: Final = ("lake", "sink", "tierEndpoint", "tierRegion")
FILE_BYTES: Final = 64 * MiB
"""A file is closed when it has become so large."""


@dataclass(frozen=True)
class LakeOptions:
    """Checked options of a write into a lake."""

    url: str
    sink: str
    endpoint: str
    region: str

    def open(self) -> Lake:
        """The lake. Asks it nothing yet. Raises ConfigError, PipelineError."""
        try:
            backend = open_backend(TieredConfig(url=self.url, endpoint=self.endpoint, region=self.region))
        except ModuleNotFoundError as error:
            raise PipelineError(f"{self.url} needs the extra cloud: pip install 'stratamq[cloud]'") from error
        return Lake(backend)


@dataclass
class Written(WriterCommitMessage):
    """The files of one task, and the query it belongs to; empty for a batch write."""

    query: str
    files: list[LakeFile]


def parse_lake_options(given: Mapping[str, str], schema: StructType) -> LakeOptions:
    """Check the options of a write into a lake. Raises PipelineError, ConfigError."""
    names = {name.lower(): name for name in given}
    known = {name.lower(): name for name in OPTIONS}
    unknown = sorted(set(names) - set(known) - {"checkpointlocation"})  # which Spark hands over with ours
    if unknown:
        raise PipelineError(f"writing into a lake has no option {', '.join(unknown)}; it knows {', '.join(OPTIONS)}")
    options = {known[name]: given[names[name]] for name in known if name in names}
    if len({field.name.lower() for field in schema}) != len(schema) or not len(schema):
        raise PipelineError("a lake needs columns, with names that differ in more than case")
    found = LakeOptions(
        options["lake"], options.get("sink", "spark"), options.get("tierEndpoint", ""), options.get("tierRegion", "")
    )
    found.open().backend.close()
    return found


class LakeSink:
    """What batch and stream have in common. ``write`` runs in a worker once a task, and again when it is retried."""

    def __init__(self, options: LakeOptions, schema: StructType, clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self.schema_json = schema.json()
        self.clock = clock

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Put the rows of a task as files. Raises BackendError."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""
        lake = self.options.open()
        try:
            return Written(query, list(put_batches(lake, iterator, self.now_ms)))
        finally:
            lake.backend.close()

    def now_ms(self) -> int:
        """The time that names files and stands in commits."""
        return int(self.clock() * 1000)

    def commit_files(self, writer: str, batch: int, messages: list[WriterCommitMessage | None]) -> None:
        """One commit of all files. Nothing without any."""
        files = [file for message in messages if isinstance(message, Written) for file in message.files]
        lake = self.options.open()
        try:
            if files:
                lake.commit(writer, batch, self.schema_json, files, self.now_ms())
        finally:
            lake.backend.close()


def put_batches(lake: Lake, batches: Iterator[pa.RecordBatch], now_ms: Callable[[], int]) -> Iterator[LakeFile]:
    """Put batches as Parquet files of about `FILE_BYTES`."""
    import pyarrow.parquet as pq

    buffer, writer, rows = io.BytesIO(), None, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            writer = pq.ParquetWriter(buffer, batch.schema, compression="zstd")
        writer.write_batch(batch)
        rows += batch.num_rows
        if buffer.tell() >= FILE_BYTES:
            yield _close(lake, writer, buffer, rows, now_ms())
            buffer, writer, rows = io.BytesIO(), None, 0
    if writer is not None:
        yield _close(lake, writer, buffer, rows, now_ms())


def _close(lake: Lake, writer: Any, buffer: io.BytesIO, rows: int, made_ms: int) -> LakeFile:
    writer.close()
    return lake.put_file(buffer.getvalue(), rows, made_ms)


class LakeBatchSink(LakeSink, DataSourceArrowWriter):
    """`df.write`: the job is one batch. The object is made once and travels, so its name is the job's."""

    def __init__(self, options: LakeOptions, schema: StructType, job: str) -> None:
        LakeSink.__init__(self, options, schema)
        self.job = job

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All rows become part of the table, at once."""
        self.commit_files(f"{self.options.sink}-job-{self.job}", 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to take back: no commit names the files, or the commit was made after all."""


class LakeStreamSink(LakeSink, DataSourceStreamArrowWriter):
    """`df.writeStream`: a batch is committed under the query's id, which its checkpoint keeps."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch becomes part of the table; nothing when it is there already."""
        queries = {message.query for message in messages if isinstance(message, Written)}
        if len(queries) > 1 or "" in queries:
            raise PipelineError(f"tasks of one batch name the queries {sorted(queries)}, not one")
        for query in queries:
            self.commit_files(f"{self.options.sink}-{query}", batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back, as with a batch."""
