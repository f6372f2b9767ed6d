"""The source without a JVM: what Spark's planning process and its workers would do, called by hand."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual, StringContains
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from stratamq.errors import DataLost, PipelineError
from stratamq.formats.arrow import SCHEMA
from stratamq.pipeline.datasource import OptionallyPushingReader, RangePartition, StrataDataSource
from stratamq.pipeline.schema import spark_schema
from tests.unit.logstore.tiny_store import TinyStore


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = TinyStore(tmp_path_factory.mktemp("source") / "store")
    for number in range(90):
        made.put("orders", number % 3, body=b"x" * number)
    return made.write()


def reader_of(store, schema=None, **options):
    source = StrataDataSource({"path": str(store.root), **options})
    source = pickle.loads(pickle.dumps(source))
    return source.reader(schema if schema is not None else source.schema())


def offsets_read(reader):
    reader = pickle.loads(pickle.dumps(reader))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    found = []
    for partition in partitions:
        for batch in reader.read(partition):
            rows = batch.to_pydict()
            found += list(zip(rows["queue_id"], rows["queue_offset"], strict=True))
    return found


def test_sparks_types_are_the_readers_types():
    assert to_arrow_schema(spark_schema(), timezone="UTC") == SCHEMA
    assert StrataDataSource.name() == "stratamq"


def test_everything_travels_as_a_pickle_and_is_read_once(store):
    assert offsets_read(reader_of(store)) == [(queue, offset) for queue in range(3) for offset in range(30)]


def test_batches_have_exactly_the_schema_that_was_asked_for(store):
    schema = StructType([StructField("queue_offset", LongType(), nullable=False), StructField("tags", StringType())])
    reader = reader_of(store, schema)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert batch.schema == to_arrow_schema(schema, timezone="UTC")


def test_filters_travel_with_the_reader(store):
    reader = reader_of(store)
    foreign = StringContains(("tags",), "x")
    rest = list(reader.pushFilters([EqualTo(("queue_id",), 1), foreign, GreaterThanOrEqual(("queue_offset",), 27)]))
    assert len(rest) == 1
    assert rest[0] is foreign
    assert offsets_read(reader) == [(1, 27), (1, 28), (1, 29)]


def test_spark_is_shown_the_plain_method_unless_pushdown_is_insisted_on(store):
    looked_at = {
        pushdown: getattr(reader_of(store, pushdown=pushdown).pushFilters, "__func__", None)
        for pushdown in ("auto", "true", "false")
    }
    assert looked_at["auto"] is looked_at["false"] is DataSourceReader.pushFilters
    assert looked_at["true"] is not DataSourceReader.pushFilters
    assert isinstance(reader_of(store), OptionallyPushingReader)


def test_an_empty_plan_is_one_partition_of_nothing(store):
    reader = reader_of(store, startingOffsets="latest")
    (nothing,) = reader.partitions()
    assert list(reader.read(nothing)) == []
    from pyspark.sql.datasource import InputPartition

    with pytest.raises(PipelineError, match="not a partition of this source"):
        list(reader.read(InputPartition(None)))


def test_a_range_that_is_gone_is_loud_or_counted(store, caplog):
    gone = RangePartition([("orders", 0, 28, 40)])
    with pytest.raises(DataLost, match="queue 0 are gone"):
        list(reader_of(store).read(gone))
    batches = list(reader_of(store, failOnDataLoss="false").read(gone))
    assert sum(batch.num_rows for batch in batches) == 2
    assert "2 records from offset 30 on are gone" in caplog.text
    assert "8 records from offset 32 on are gone" in caplog.text


def test_relative_paths_are_made_absolute_where_the_driver_is(store, monkeypatch):
    monkeypatch.chdir(store.root.parent)
    reader = StrataDataSource({"path": "store"}).reader(spark_schema(["queue_id", "queue_offset"]))
    monkeypatch.chdir("/")
    assert len(offsets_read(reader)) == 90


def test_columns_option(store):
    assert StrataDataSource({"path": "x", "columns": "body, tags"}).schema().names == ["body", "tags"]
    with pytest.raises(PipelineError, match="named twice"):
        StrataDataSource({"path": "x", "columns": "tags,tags"}).schema()
