"""A broker read over the network: the rows of its directory, as a batch, as a stream, and over its restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.demo.processes import Processes, stop_broker
from stratamq.errors import PeerRefused
from stratamq.pipeline.frame import read_store
from stratamq.pipeline.sending import Producer, Target
from tests.interop.test_cluster import Cluster
from tests.pipeline.cluster_world import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
QUEUES = 4


def send(namesrv: str, topic: str, first: int, stop: int, *, to: str = "") -> None:
    """Messages with numbers as bodies, spread over the topic's four queues on one broker."""
    with Producer(namesrv) as producer:
        address = to or producer.queues("TBW102")[0].address
        for queue_id in range(QUEUES):
            numbers = range(first + queue_id, stop, QUEUES)
            rows = [(n, b"%d" % n, f"TAGS\x01t{n % 3}\x02KEYS\x01k{n}\x02") for n in numbers]
            for at in range(0, len(rows), 100):
                producer.send(topic, Target(address, queue_id), rows[at : at + 100])


def test_the_rows_of_the_directory(spark, tmp_path):
    (tmp_path / "logs").mkdir()
    with Processes(tmp_path / "logs") as processes:
        broker, addresses = processes.start_broker(tmp_path / "data")
        namesrv = addresses["namesrv"]
        send(namesrv, "orders", 0, 1000)
        send(namesrv, "payments", 0, 50)
        over_network = read_store(spark, namesrv=namesrv, topics="orders,payments", minPartitions=6)
        assert over_network.rdd.getNumPartitions() >= 6
        there = rows_of(over_network)
        assert there == rows_of(read_store(spark, tmp_path / "data", topics="orders,payments"))
        assert len(there) == 1050
        part = read_store(
            spark, bootstrap=namesrv, subscribe="orders", columns=["queue_id", "queue_offset"],
            startingOffsets={"orders": {"2": 240}}, endingOffsets={"orders": {"0": 5, "1": 0, "3": 0}},
        )  # fmt: skip
        assert Counter(row.queue_id for row in part.collect()) == {0: 5, 2: 10}
        assert part.filter("queue_id = 2 and queue_offset >= 245").count() == 5
        stop_broker(broker, processes)


def rows_of(frame: Any) -> list[Any]:
    return [row.asDict() for row in frame.orderBy("topic", "queue_id", "queue_offset").collect()]


def run(spark: Any, work: Path, **options: str) -> list[int]:
    """Run a stream to where the broker ends now; returns the rows of each batch."""
    source = spark.readStream.format("stratamq").options(startingOffsets="earliest", topics="orders", **options).load()
    query = (
        source.selectExpr("queue_id", "queue_offset", "cast(cast(body as string) as int) number")
        .writeStream.format("parquet")
        .options(path=str(work / "out"), checkpointLocation=str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_a_stream_over_restarts_of_the_broker_and_from_network_to_files(spark, tmp_path):
    (tmp_path / "logs").mkdir()
    with Processes(tmp_path / "logs") as processes:
        broker, addresses = processes.start_broker(tmp_path / "data")
        send(addresses["namesrv"], "orders", 0, 200)
        batches = run(spark, tmp_path, namesrv=addresses["namesrv"], maxOffsetsPerTrigger="80")
        assert batches == [80, 80, 40]
        stop_broker(broker, processes)
        broker, addresses = processes.start_broker(tmp_path / "data")
        send(addresses["namesrv"], "orders", 200, 300)
        assert sum(run(spark, tmp_path, namesrv=addresses["namesrv"])) == 100, "at another port; the offsets hold"
        send(addresses["namesrv"], "orders", 300, 320)
        stop_broker(broker, processes)
    assert sum(run(spark, tmp_path, path=str(tmp_path / "data"))) == 20, "the same checkpoint over the files"
    found = Counter(row.number for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == Counter(range(320))


def test_a_topic_on_two_brokers(spark, tmp_path):
    world = Cluster(tmp_path / "cluster")
    try:
        namesrv = world.names("names").addresses["namesrv"]
        brokers = [world.broker(name, namesrv).addresses["broker"] for name in ("one", "two")]
        with Producer(namesrv) as producer:
            known(producer, "TBW102", brokers)
            send(namesrv, "orders", 0, 120, to=brokers[0])
            send(namesrv, "orders", 1000, 1060, to=brokers[1])
            known(producer, "orders", brokers)
        frame = read_store(spark, namesrv=namesrv, topics="orders").selectExpr(
            "cast(cast(body as string) as int) number"
        )
        assert sorted(row.number for row in frame.collect()) == [*range(120), *range(1000, 1060)]
        assert sum(run(spark, tmp_path, namesrv=namesrv, maxOffsetsPerTrigger="100")) == 180
        send(namesrv, "orders", 1060, 1100, to=brokers[1])
        assert run(spark, tmp_path, namesrv=namesrv) == [40], "from the checkpoint, of both brokers"
    finally:
        world.close()
    found = Counter(row.number for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == Counter([*range(120), *range(1000, 1100)])


def known(producer: Producer, topic: str, brokers: list[str]) -> None:
    """Wait until the name server gives a topic's queues on all brokers."""

    def there() -> bool:
        try:
            return {target.address for target in producer.queues(topic)} == set(brokers)
        except PeerRefused:
            return False

    wait_for(f"{topic} on {brokers}", there)
