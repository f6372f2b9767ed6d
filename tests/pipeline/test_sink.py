"""Rows to topics of a running broker, as a batch and as a stream."""

from __future__ import annotations

from collections import Counter

import pytest

from examples.demo.processes import Processes, stop_broker
from stratamq.pipeline.frame import read_store
from tests.pipeline.test_stream import write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_batch_and_stream_reach_the_broker_and_repeats_show(spark, tmp_path):
    from stratamq.pipeline.sending import Producer
    from stratamq.pipeline.sink import KEY

    (tmp_path / "logs").mkdir()
    write(tmp_path / "from", 90)
    with Processes(tmp_path / "logs") as processes:
        broker, addresses = processes.start_broker(tmp_path / "to")
        with Producer(addresses["namesrv"]) as producer:
            from_default = producer.queues("TBW102")
            producer.send("written", from_default[0]._replace(queue_id=0), [(0, b"first", "")])
        rows = spark.range(200).selectExpr("cast(cast(id as string) as binary) body", "concat('t', id % 3) tags")
        options = {"namesrv": addresses["namesrv"], "topic": "written"}
        for _ in range(2):
            rows.write.format("stratamq").options(**options).mode("append").save()
        source = spark.readStream.format("stratamq").options(path=str(tmp_path / "from"), startingOffsets="earliest")
        lines = source.load().selectExpr("body", "map('from', topic) properties", "queue_id")
        stream = lines.writeStream.format("stratamq").trigger(availableNow=True)
        stream = stream.options(**options, checkpointLocation=str(tmp_path / "at"))
        stream.start().awaitTermination()
        for path in (tmp_path / "at" / "commits").iterdir():
            path.unlink()  # as a driver killed between the last answer and Spark's note leaves it
        stream.start().awaitTermination()
        stop_broker(broker, processes)
    frame = read_store(spark, tmp_path / "to", ["queue_id", "tags", "properties", "body"], topics="written")
    found = [row for row in frame.collect() if bytes(row.body) != b"first"]
    batch = Counter(bytes(row.body) for row in found if row.tags)
    assert batch == dict.fromkeys((b"%d" % number for number in range(200)), 2)
    keys = Counter(row.properties[KEY] for row in found if row.tags)
    assert sorted(keys.values()) == [2] * 200, "the second writing shows as a repeat"
    keys = Counter(row.properties[KEY] for row in found if not row.tags)
    assert sorted(keys.values()) == [2] * 90, "and so does the batch that was run again"
    streamed = {bytes(row.body): (row.queue_id, row.properties["from"]) for row in found if not row.tags}
    assert streamed == {b"%d" % number: (number % 3, "orders") for number in range(90)}
    assert len(found) == 580
