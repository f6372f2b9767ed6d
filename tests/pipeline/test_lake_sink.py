"""A stream into a lake, exactly once: its batches run again, its driver's notes lost, and batches beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stratamq.pipeline.frame import read_lake
from tests.pipeline.test_stream import write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def run(spark: Any, root: Path, lake: str, at: Path) -> None:
    source = spark.readStream.format("stratamq").options(path=str(root), startingOffsets="earliest").load()
    rows = source.selectExpr("queue_id", "queue_offset", "cast(body as string) body", "store_timestamp", "properties")
    stream = rows.writeStream.format("stratamq").options(lake=lake, checkpointLocation=str(at))
    stream.trigger(availableNow=True).start().awaitTermination()


def bodies(spark: Any, lake: str) -> Counter[int]:
    return Counter(int(row.body) for row in read_lake(spark, lake).select("body").collect())


def test_a_batch_that_is_run_again_is_in_the_lake_once(spark, tmp_path):
    root, lake, at = tmp_path / "store", f"file://{tmp_path}/lake", tmp_path / "at"
    write(root, 50)
    run(spark, root, lake, at)
    for path in (at / "commits").iterdir():
        path.unlink()  # as a driver killed between the lake's commit and Spark's note leaves it
    write(root, 80)
    run(spark, root, lake, at)
    assert bodies(spark, lake) == Counter(range(80))
    found = read_lake(spark, lake)
    assert found.schema["store_timestamp"].dataType.simpleString() == "timestamp"
    late = found.limit(1).selectExpr("queue_id", "queue_offset", "'1000' body", "store_timestamp", "properties")
    late.write.format("stratamq").option("lake", lake).mode("append").save()
    assert bodies(spark, lake) == Counter([*range(80), 1000])
    with pytest.raises(Exception, match="has the columns"):
        found.select("body").write.format("stratamq").option("lake", lake).mode("append").save()
