"""The Spark source over small stores: rows, columns, filters, ends, losses, retries."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratamq.errors import PipelineError
from stratamq.pipeline.frame import read_store
from tests.unit.logstore.tiny_store import T0, TinyStore, flip

pytestmark = pytest.mark.spark

COUNT = 300


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyStore:
    """300 records, one a second, over queues 0 and 1 of orders and queue 0 of payments."""
    store = TinyStore(tmp_path_factory.mktemp("source") / "store", file_bytes=16384, index_entries=10_000)
    for number in range(COUNT):
        topic, queue = [("orders", 0), ("orders", 1), ("payments", 0)][number % 3]
        properties = f"TAGS\x01t{number % 5}\x02KEYS\x01k{number} all\x02" if number % 10 else ""
        store.put(topic, queue, body=b"%d" % number * 20, properties=properties, stored=T0 + 1000 * number, flag=number)
    return store.write()


def rows_read(frame: Any) -> int:
    """Rows that the scan of a collected frame gave to Spark: more than came out when Spark had to filter."""
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    assert leaves.size() == 1
    return int(leaves.head().metrics().apply("numOutputRows").value())


def load(spark, store: TinyStore, **options: str) -> Any:
    return spark.read.format("stratamq").options(path=str(store.root), **options).load()


@pytest.mark.quick
def test_every_column_of_every_record(spark, tiny):
    found = {row.physical_offset: row for row in load(spark, tiny).collect()}
    assert len(found) == COUNT
    for number, record in enumerate(tiny.records):
        row = found[record.physical_offset]
        assert (row.topic, row.queue_id, row.queue_offset) == (record.topic, record.queue_id, record.queue_offset)
        assert bytes(row.body) == record.body
        assert row.flag == number
        assert (row.tags, row["keys"]) == ((f"t{number % 5}", f"k{number} all") if number % 10 else (None, None))
        assert row.properties.get("KEYS") == row["keys"]
        assert row.message_id == record.message_id
        assert (row.born_host, row.store_host) == ("10.0.0.2:10911", "10.0.0.2:10911")
        assert (row.sys_flag, row.reconsume_times) == (0, 0)
    stored = spark.sql("SELECT 1").selectExpr(f"timestamp_millis({T0})").first()[0]
    assert found[0].store_timestamp == stored


def test_counts_through_sql(spark, tiny):
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING stratamq OPTIONS (path '{tiny.root}', topics 'orders')")
    found = spark.sql("SELECT queue_id, count(*), min(queue_offset), max(queue_offset) FROM log GROUP BY queue_id")
    assert sorted(tuple(row) for row in found.collect()) == [(0, 100, 0, 99), (1, 100, 0, 99)]


def test_only_the_columns_asked_for_are_built(spark, tiny, tmp_path):
    narrow = read_store(spark, tiny.root, ["queue_offset", "topic"])
    assert narrow.columns == ["queue_offset", "topic"]
    assert narrow.count() == COUNT
    # The proof: with every record of the log spoilt, what the consume queues know can still be read, and no more.
    spoilt = tmp_path / "spoilt"
    shutil.copytree(tiny.root, spoilt)
    last_file = tiny.end // 16384 * 16384
    for record in tiny.records[9:]:
        number, at = divmod(record.physical_offset, 16384)
        if number * 16384 < last_file:  # where the log ends must be found
            flip(spoilt / "commitlog" / f"{number * 16384:020d}", at + 5, 0xFF)
    assert read_store(spark, spoilt, ["topic", "queue_offset"]).count() == COUNT
    with pytest.raises(Exception, match=r"unknown magic number in .*commitlog"):
        read_store(spark, spoilt, ["queue_offset", "body"]).collect()


def test_columns_option_and_schema(spark, tiny):
    assert load(spark, tiny, columns="tags, body").columns == ["tags", "body"]
    frame = spark.read.format("stratamq").schema("queue_offset long not null, tags string").load(str(tiny.root))
    assert frame.where("tags is null").count() == COUNT // 10
    with pytest.raises(Exception, match="unknown column tag; there are topic, queue_id"):
        spark.read.format("stratamq").schema("tag string").load(str(tiny.root)).collect()
    with pytest.raises(Exception, match="column queue_id is int, not bigint"):
        spark.read.format("stratamq").schema("queue_id long").load(str(tiny.root)).collect()


def test_filters_are_pushed(spark, tiny):
    frame = load(spark, tiny).where("topic = 'orders' AND queue_id = 1 AND queue_offset >= 10 AND queue_offset < 17")
    assert sorted(row.queue_offset for row in frame.collect()) == list(range(10, 17))
    assert rows_read(frame) == 7
    frame = load(spark, tiny).where("queue_offset IN (3, 5, 1000) AND topic LIKE 'pay%'")
    assert frame.count() == 2
    frame.collect()
    assert rows_read(frame) == 2
    frame = load(spark, tiny).where("tags = 't1' AND queue_id = 1")
    assert {row.tags for row in frame.collect()} == {"t1"}
    assert rows_read(frame) == 100


def test_times_are_pushed_and_checked_again(spark, tmp_path):
    store = TinyStore(tmp_path / "store", file_bytes=16384, index_entries=10_000)
    for number in range(200):
        store.put(stored=T0 + 60_000 * number)
    store.write()
    wanted = datetime.datetime.fromtimestamp((T0 + 60_000 * 100) / 1000, datetime.UTC)
    until = wanted + datetime.timedelta(minutes=5)
    from pyspark.sql.functions import col, lit

    frame = load(spark, store).where((col("store_timestamp") >= lit(wanted)) & (col("store_timestamp") < lit(until)))
    assert sorted(row.queue_offset for row in frame.collect()) == [100, 101, 102, 103, 104]
    assert rows_read(frame) == 26, "ten minutes on either side, in case the clock was set back"
    exact = load(spark, store, startingTimestamp=str(T0 + 60_000 * 100), endingTimestamp=str(T0 + 60_000 * 105))
    assert sorted(row.queue_offset for row in exact.collect()) == [100, 101, 102, 103, 104]


def test_without_pushdown_rows_are_the_same(spark, tiny):
    condition = "topic = 'orders' AND queue_id = 1 AND queue_offset BETWEEN 10 AND 16"
    off = load(spark, tiny, pushdown="false").where(condition)
    assert off.count() == 7
    off.collect()
    assert rows_read(off) == COUNT
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert load(spark, tiny).where(condition).count() == 7
        with pytest.raises(Exception, match="PUSHDOWN_DISABLED"):
            load(spark, tiny, pushdown="true").where(condition).count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert load(spark, tiny, pushdown="true").where(condition).count() == 7


def test_splits_neither_lose_nor_repeat(spark, tiny):
    frame = load(spark, tiny, minPartitions="40")
    assert frame.rdd.getNumPartitions() >= 40
    found = [(row.topic, row.queue_id, row.queue_offset) for row in frame.collect()]
    assert sorted(found) == sorted((one.topic, one.queue_id, one.queue_offset) for one in tiny.records)
    assert load(spark, tiny).rdd.getNumPartitions() == 3


def test_nothing_to_read(spark, tiny):
    assert load(spark, tiny, startingOffsets="latest").count() == 0
    assert load(spark, tiny).where("queue_offset > 5000").collect() == []
    assert load(spark, tiny).where("queue_id IN (5)").count() == 0


def test_a_store_that_grows_is_read_to_a_fixed_end(spark, tmp_path):
    store = TinyStore(tmp_path / "store", file_bytes=65536, queue_file_units=1000)
    for _ in range(50):
        store.put()
    store.write()
    frame = load(spark, store)
    cached = frame.rdd  # planned here
    for _ in range(30):
        store.put()
    grown = TinyStore(tmp_path / "grown", file_bytes=65536, queue_file_units=1000)
    grown.log, grown.queues, grown.records = store.log, store.queues, store.records
    grown.write()
    shutil.copytree(tmp_path / "grown", tmp_path / "store", dirs_exist_ok=True)
    assert cached.count() == 50
    assert load(spark, store).count() == 80


def test_lost_records_are_loud(spark, tmp_path):
    store = TinyStore(tmp_path / "store", file_bytes=4096)
    for _ in range(100):
        store.put(body=b"x" * 100)
    store.write()
    planned = {loss: load(spark, store, failOnDataLoss=loss).rdd for loss in ("true", "false")}
    first = store.root / "commitlog" / f"{0:020d}"
    first.unlink()
    with pytest.raises(Exception, match=r"records of topic orders, queue 0 are gone: wanted \[0, 100\)"):
        planned["true"].count()
    left = planned["false"].map(lambda row: row.queue_offset).collect()
    assert left == list(range(left[0], 100))
    assert 0 < left[0] < 30
    assert load(spark, store).count() == len(left), "earliest is what is there now"
    with pytest.raises(Exception, match="asks for offset 0 of topic orders, queue 0, but the store has"):
        load(spark, store, startingOffsets='{"orders": {"0": 0}}').count()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "orders"}, "has no option topic; it knows path, namesrv"),
        ({"topics": "refunds"}, "has no topic refunds; it has orders, payments"),
        ({"startingOffsets": "soon"}, "setting startingOffsets='soon'"),
        ({"columns": "nope"}, "unknown column nope"),
    ],
)
def test_mistakes_are_named(spark, tiny, options, text):
    with pytest.raises(Exception, match=text):
        load(spark, tiny, **options).collect()


def test_no_path_and_no_store(spark, tmp_path):
    with pytest.raises(Exception, match="needs the option path"):
        spark.read.format("stratamq").load()
    with pytest.raises(Exception, match="is not a store directory"):
        spark.read.format("stratamq").load(str(tmp_path)).count()
    with pytest.raises(PipelineError, match=r"option topics is 1\.5"):
        read_store(spark, tmp_path, topics=1.5)


def test_a_task_that_is_run_again_gives_the_same_rows(spark, tiny, tmp_path):
    marker = str(tmp_path / "failed-once")

    def fail_once(batches):
        for batch in batches:
            if not Path(marker).exists() and batch.num_rows:
                Path(marker).touch()
                raise RuntimeError("this task fails the first time")
            yield batch

    frame = read_store(spark, tiny.root, ["topic", "queue_id", "queue_offset"])
    found = frame.mapInArrow(fail_once, frame.schema).collect()
    assert Path(marker).exists()
    assert sorted(map(tuple, found)) == sorted((one.topic, one.queue_id, one.queue_offset) for one in tiny.records)


def test_stores_of_rocketmq(spark, golden):
    store, manifest = golden
    there = json.loads(manifest.read_text())["records"]
    wanted = {(one["topic"], one["queueId"], one["queueOffset"]): one for one in there}
    columns = ["topic", "queue_id", "queue_offset", "physical_offset", "tags", "keys", "properties"]
    found = {(row.topic, row.queue_id, row.queue_offset): row for row in read_store(spark, store, columns).collect()}
    # A killed RocketMQ leaves records at the log's end that it has not put into queues yet: recovery does that.
    last = max(row.physical_offset for row in found.values())
    lacking = [one for key, one in wanted.items() if key not in found]
    assert all(one["commitLogOffset"] > last for one in lacking)
    assert not lacking or "killed" in store.parent.name
    for key, row in found.items():
        one = wanted[key]
        assert row.physical_offset == one["commitLogOffset"]
        assert row.tags == one.get("tags")
        assert row["keys"] == one.get("keys")
        assert row.properties == one["properties"]
    assert read_store(spark, store).count() == len(found)
