"""RocketMQ's own broker read over the network by the Spark source's reader: the rows of its directory."""

from __future__ import annotations

from collections import Counter

import pytest

from stratamq.errors import DataLost
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.origins import RangeReader
from stratamq.pipeline.plan import plan_read
from stratamq.pipeline.sending import Producer, Target
from tests.interop.rocketmq_java.runner import RocketServer
from tests.interop.rocketmq_java.targets import need_java, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

pa = pytest.importorskip("pyarrow")
COUNT = 2000
FILE_BYTES = 1 << 18


def table(**given: str):
    from stratamq.formats.arrow import SCHEMA

    batches = []
    with RangeReader(parse_options(given), SCHEMA.names, None) as reader:
        for one in plan_read(parse_options(given)):
            batches += reader.batches(QueueKey(one.topic, one.queue_id), one.lo, one.hi, one.segments)
    return pa.Table.from_batches(batches, SCHEMA)


def test_rocketmq_over_the_network(tmp_path):
    need_java("5.3.3", "server")
    settings = {"mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 20_000}
    server = RocketServer(tmp_path / "store", tmp_path / "work", settings=settings)
    try:
        server.start()
        with Producer(server.namesrv) as producer:
            (address, _), *_ = wait_until("a route", lambda: producer.queues("TBW102"), timeout_s=120)
            for number in range(0, COUNT, 50):
                rows = [
                    (n, b"%d" % n + b"." * 300, f"TAGS\x01t{n % 3}\x02KEYS\x01k{n}\x02")
                    for n in range(number, number + 50)
                ]
                producer.send("orders", Target(address, number // 50 % 4), rows)
        network = {"namesrv": server.namesrv, "topics": "orders"}
        found = table(**network)
        assert found.num_rows == COUNT
        times = found.column("store_timestamp").cast(pa.int64()).to_pylist()
        middle = sorted(times)[COUNT // 2] // 1000
        late = table(**network, startingTimestamp=str(middle))
        assert late.num_rows == sum(time >= middle * 1000 for time in times)
        split = table(**network, minPartitions="9", startingOffsets='{"orders": {"1": 100}}')
        assert Counter(split.column("queue_id").to_pylist()) == {0: 500, 1: 400, 2: 500, 3: 500}
        assert found.equals(table(path=str(server.store), topics="orders"))
        with pytest.raises(DataLost, match="asks for offset 501 "):
            table(**network, startingOffsets='{"orders": {"1": 501}}')
        server.stop()
        server.start()
        again = table(**network)
        assert found.equals(again), "after its restart as well"
    finally:
        server.kill()
