"""Executors and drivers are killed in the middle; in the end every record is there once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

from examples.demo.processes import Processes as Brokers
from examples.demo.processes import stop_broker
from stratamq.logstore.types import QueueKey
from tests.pipeline.cluster_world import Processes, executors, wait_for
from tests.pipeline.test_network import send
from tests.unit.logstore.tiny_store import TinyStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

HELD_BATCH = """
import json, os, sys, time
from pathlib import Path
from stratamq.pipeline.frame import read_store
from stratamq.pipeline.session import session

path, work = sys.argv[1], Path(sys.argv[2])
quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = session("killed", "local-cluster[2,1,1024]", config={
    "spark.task.maxFailures": "8", "spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick})

def hold(batches):
    for batch in batches:
        if batch.num_rows and batch.column(0)[0].as_py() >= 100:
            (work / f"held-{os.getpid()}").touch()
            while not (work / "gate").exists():
                time.sleep(0.05)
        yield batch

frame = read_store(spark, path, ["queue_offset", "body"], minPartitions=8)
frame.mapInArrow(hold, "queue_offset bigint, body binary").write.parquet(str(work / "out"))
read = spark.read.parquet(str(work / "out"))
row = read.selectExpr("count(*)", "count(distinct body)", "sum(length(body))").first()
spark.stop()
print(json.dumps({"rows": row[0], "distinct": row[1], "bytes": row[2]}))
"""


def test_an_executor_is_killed_in_the_middle_of_a_batch(tmp_path):
    store = TinyStore(tmp_path / "store", file_bytes=16384)
    for number in range(800):
        store.put("orders", number % 4, b"%d" % number + b"." * (number % 50))
    store.write()
    with Processes(tmp_path) as processes:
        driver = processes.script("driver", HELD_BATCH, str(store.root), str(tmp_path))
        log = tmp_path / "driver.log"
        wait_for("tasks that hold", lambda: driver.poll() is not None or list(tmp_path.glob("held-*")), log=log)
        victim, *_ = executors(driver.pid)
        os.kill(victim, signal.SIGKILL)
        wait_for("the executor's end", lambda: victim not in executors(driver.pid), log=log)
        (tmp_path / "gate").touch()
        found = json.loads(processes.finish("driver", driver))
    size = sum(len(b"%d" % number) + number % 50 for number in range(800))
    assert found == {"rows": 800, "distinct": 800, "bytes": size}


STREAMS = """
import json, sys, time
from stratamq.pipeline.frame import read_lake
from stratamq.pipeline.session import session

master, namesrv, work, limit = sys.argv[1:]
quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = session("streams", master, config={
    "spark.sql.shuffle.partitions": "1", "spark.executor.cores": "1", "spark.executor.memory": "512m",
    "spark.task.maxFailures": "8", "spark.sql.adaptive.enabled": "false", "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick})

def source():
    given = {"namesrv": namesrv, "topics": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    return spark.readStream.format("stratamq").options(**given).load()

def begun(writer):
    # One after the other, and again: Spark gives a stream's Python process 10 s to start, which nothing can change.
    for tries in range(10):
        stream = writer.trigger(availableNow=True).start()
        while stream.isActive and not stream.recentProgress:
            time.sleep(0.1)
        if stream.exception() is None or "connect back" not in str(stream.exception()):
            break
    return stream

files = source().select("queue_id", "queue_offset", "body").writeStream.format("parquet")
files = begun(files.options(path=f"{work}/out", checkpointLocation=f"{work}/at-files"))
topic = source().select("body", "tags", "queue_id").writeStream.format("stratamq")
topic = begun(topic.options(namesrv=namesrv, topic="copies", checkpointLocation=f"{work}/at-topic"))
lake = source().select("queue_id", "queue_offset", "body").writeStream.format("stratamq")
lake = begun(lake.options(lake=f"file://{work}/lake", checkpointLocation=f"{work}/at-lake"))
for stream in (files, topic, lake):
    stream.awaitTermination()
found = {}
for name, frame in (("files", spark.read.parquet(f"{work}/out")), ("lake", read_lake(spark, f"file://{work}/lake"))):
    row = frame.selectExpr("count(*)", "count(distinct body)", "sum(length(body))").first()
    found[name] = {"rows": row[0], "distinct": row[1], "bytes": row[2]}
spark.stop()
print(json.dumps(found))
"""
COUNT = 4000
LIMIT = 20
STREAMS_AT = ("at-files", "at-topic", "at-lake")


def test_an_executor_and_the_driver_are_killed_in_the_middle_of_streams(tmp_path):
    (tmp_path / "logs").mkdir()
    with Brokers(tmp_path / "logs") as brokers, Processes(tmp_path) as processes:
        broker, addresses = brokers.start_broker(tmp_path / "data")
        namesrv = addresses["namesrv"]
        send(namesrv, "orders", 0, COUNT)
        send(namesrv, "copies", 0, 4)  # makes the topic
        master, worker = processes.start_cluster()
        first = processes.script("first", STREAMS, master, namesrv, str(tmp_path), str(LIMIT))
        log = tmp_path / "first.log"

        def batches(count: int) -> bool:
            assert first.poll() is None, log.read_text(errors="replace")[-4000:]
            return all(len(list((tmp_path / at / "commits").glob("[0-9]*"))) >= count for at in STREAMS_AT)

        wait_for("batches of all streams", lambda: batches(2), log=log)
        victim = executors(worker.pid)[0]
        os.kill(victim, signal.SIGKILL)
        wait_for("the executor's end", lambda: victim not in executors(worker.pid), log=log)
        wait_for("further batches of all streams", lambda: batches(4), log=log)
        processes.kill(first)
        assert not any((tmp_path / at / "commits" / str(COUNT // LIMIT - 1)).exists() for at in STREAMS_AT), "too late"
        second = processes.script("second", STREAMS, master, namesrv, str(tmp_path), "1000")
        found = json.loads(processes.finish("second", second))
        size = sum(len(b"%d" % number) for number in range(COUNT))
        assert found == {name: {"rows": COUNT, "distinct": COUNT, "bytes": size} for name in ("files", "lake")}
        check_copies(namesrv)
        stop_broker(broker, brokers)


def check_copies(namesrv: str) -> None:
    """Each message is in the topic under one key, however often it was sent."""
    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.origins import RangeReader
    from stratamq.pipeline.plan import plan_read
    from stratamq.pipeline.sink import KEY

    bodies: dict[str, set[bytes]] = {}
    options = parse_options({"namesrv": namesrv, "topics": "copies"})
    with RangeReader(options, ["body", "properties"], None) as reader:
        for one in plan_read(options):
            for batch in reader.batches(QueueKey(one.topic, one.queue_id), one.lo, one.hi, one.segments):
                for row in batch.to_pylist():
                    key = dict(row["properties"]).get(KEY)
                    if key is not None:
                        bodies.setdefault(key, set()).add(row["body"])
    assert len(bodies) == COUNT, "one key a message"
    assert Counter(body for found in bodies.values() for body in found) == Counter(b"%d" % n for n in range(COUNT))
