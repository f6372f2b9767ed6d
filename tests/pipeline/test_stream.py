"""A store as a stream: every record once, over restarts, limits, new queues and losses."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.unit.logstore.tiny_store import T0, TinyStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def write(root: Path, count: int, *, topics: tuple[str, ...] = ("orders",)) -> TinyStore:
    """The first ``count`` records of a log that is the same each time, so a longer one continues a shorter one."""
    store = TinyStore(root, file_bytes=16384, index_entries=10_000)
    for number in range(count):
        store.put(topics[number % len(topics)], number % 3, body=b"%d" % number, stored=T0 + 1000 * number)
    shutil.rmtree(root, ignore_errors=True)
    return store.write()


def run(spark: Any, root: Path, work: Path, **options: str) -> list[int]:
    """Run a stream to where the store ends now; returns the rows of each batch."""
    source = spark.readStream.format("stratamq").options(path=str(root), **options).load()
    writer = source.selectExpr("topic", "queue_id", "queue_offset", "cast(body as string) body").writeStream
    query = (
        writer.format("parquet")
        .options(path=str(work / "out"), checkpointLocation=str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def bodies(spark: Any, work: Path) -> Counter[int]:
    return Counter(int(row.body) for row in spark.read.parquet(str(work / "out")).collect())


def test_limits_restarts_and_new_queues(spark, tmp_path):
    root = tmp_path / "store"
    write(root, 100)
    sizes = run(spark, root, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="30", minPartitions="4")
    assert sizes == [30, 30, 30, 10]
    write(root, 160)
    assert run(spark, root, tmp_path, startingOffsets="earliest", maxBytesPerTrigger="1g") == [60]
    store = write(root, 160)
    for number in range(160, 180):
        store.put("late", 0, body=b"%d" % number)
    shutil.rmtree(root)
    store.write()
    assert run(spark, root, tmp_path) == [20], "a new topic begins at its earliest offset"
    assert bodies(spark, tmp_path) == Counter(range(180))
    assert run(spark, root, tmp_path) == []


def test_a_batch_whose_commit_was_lost_is_run_again_alike(spark, tmp_path):
    root = tmp_path / "store"
    write(root, 50)
    assert run(spark, root, tmp_path, startingOffsets="earliest") == [50], "and the restart is told latest"
    commits = tmp_path / "checkpoint" / "commits"
    for path in commits.iterdir():
        path.unlink()
    write(root, 80)
    shutil.rmtree(tmp_path / "out")  # the file sink would drop a batch it has; this one is to be run again
    assert run(spark, root, tmp_path) == [50, 30], "the old batch with its old end, then the rest"
    assert bodies(spark, tmp_path) == Counter(range(80))


def test_the_first_batch_of_a_stream_that_began_at_the_end_is_the_same_after_a_crash(tmp_path):
    pytest.importorskip("pyspark.sql.streaming.datasource")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.schema import spark_schema
    from stratamq.pipeline.stream import StrataStreamReader

    def reader() -> StrataStreamReader:
        return StrataStreamReader(spark_schema(), parse_options({"path": str(tmp_path / "store")}, streaming=True))

    write(tmp_path / "store", 30)
    first = reader()
    begin = first.initialOffset()
    assert first.latestOffset(begin, ReadAllAvailable()) is begin, "the same text says that nothing is new"
    write(tmp_path / "store", 60)
    end = first.latestOffset(begin, ReadAllAvailable())
    write(tmp_path / "store", 90)
    second = reader()
    for one, start in ((first, begin), (second, second.initialOffset())):
        read = [piece for task in one.partitions(start, end) for piece in task.ranges]
        assert read == [("orders", queue, 10, 20) for queue in range(3)]
    assert [task.ranges for task in second.partitions(end, end)] == [()]


def test_starts_by_time_and_by_queue(spark, tmp_path):
    root = tmp_path / "store"
    write(root, 90)
    given = json.dumps({"orders": {"0": T0 + 60_000, "1": T0 + 1000 * 88}})
    rows = run(spark, root, tmp_path, startingTimestamp=str(T0 + 80_000), startingOffsetsByTimestamp=given)
    assert sum(rows) == 10 + 1 + 4
    wanted = {*range(60, 90, 3), 88, *range(80, 90, 3)}
    assert set(bodies(spark, tmp_path)) == wanted


@pytest.mark.quick
def test_a_new_stream_begins_at_the_end(spark, tmp_path):
    write(tmp_path / "store", 30)
    assert run(spark, tmp_path / "store", tmp_path) == []
    write(tmp_path / "store", 33)
    assert run(spark, tmp_path / "store", tmp_path) == [3]


def test_another_store_under_the_checkpoint_is_refused(spark, tmp_path):
    from pyspark.errors import StreamingQueryException

    root = tmp_path / "store"
    write(root, 90)
    run(spark, root, tmp_path, startingOffsets="earliest")
    write(root, 9)
    with pytest.raises(StreamingQueryException, match="stands at offset 30 of topic orders, queue 0"):
        run(spark, root, tmp_path)
    assert run(spark, root, tmp_path, failOnDataLoss="false") == []
