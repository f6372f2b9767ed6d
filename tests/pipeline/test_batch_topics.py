"""A topic with queue.type=BatchCQ in Spark: every message is a row."""

from __future__ import annotations

from typing import Any

import pytest

from stratamq.pipeline.frame import read_store
from tests.unit.logstore.test_batch_queues import fill, fresh

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_every_message_is_a_row_however_the_read_is_cut(spark: Any, tmp_path: Any) -> None:
    store = fresh(tmp_path)
    expected, _ = fill(store, count=12)
    store.close()
    wanted = sorted((queue, offset, body) for queue, bodies in expected.items() for offset, body in enumerate(bodies))
    frame = read_store(spark, tmp_path, ["queue_id", "queue_offset", "body"], topics="B", minPartitions=3)
    assert sorted((row.queue_id, row.queue_offset, bytes(row.body)) for row in frame.collect()) == wanted
    assert frame.rdd.getNumPartitions() >= 3
