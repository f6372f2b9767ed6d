"""A topic with queue.type=BatchCQ in Spark: every message a row, in a query and in a stream cut through its batches."""

from __future__ import annotations

from typing import Any

import pytest

from stratamq.pipeline.frame import read_store
from tests.unit.logstore.test_batch_queues import fill, fresh

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LIMIT = 20


def test_every_message_is_a_row_of_queries_and_of_streams(spark: Any, tmp_path: Any) -> None:
    store = fresh(tmp_path / "store")
    expected, _ = fill(store, count=12)
    store.close()
    wanted = sorted((queue, offset, body) for queue, bodies in expected.items() for offset, body in enumerate(bodies))
    columns = ["queue_id", "queue_offset", "body"]
    whole = read_store(spark, tmp_path / "store", columns, topics="B", minPartitions=3)
    assert sorted((row.queue_id, row.queue_offset, bytes(row.body)) for row in whole.collect()) == wanted
    stream = spark.readStream.format("stratamq").options(
        path=str(tmp_path / "store"), topics="B", startingOffsets="earliest", maxOffsetsPerTrigger=str(LIMIT)
    )
    query = (
        stream.load()
        .select(*columns)
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sizes == [LIMIT] * (len(wanted) // LIMIT) + [len(wanted) % LIMIT] * (len(wanted) % LIMIT > 0)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.queue_id, row.queue_offset, bytes(row.body)) for row in rows) == wanted
