"""A store that a broker is writing at this moment: every read is a whole, gapless piece of it."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest

pytest.importorskip("rocketmq", reason="the unmodified C++ client exists for Linux on x86-64 only")

from examples.demo import orders
from examples.demo.processes import Processes, stop_broker, watch
from stratamq.pipeline.frame import read_store
from tests.golden.archives import unpack_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
EVENTS = 12_000


def test_reading_while_a_broker_writes(spark, tmp_path):
    (tmp_path / "logs").mkdir()
    store = tmp_path / "store"
    seen: list[int] = []
    # A session's first read takes longer than the whole sending; it goes to another store.
    read_store(spark, unpack_store("rocketmq-5.3-clean", tmp_path / "first"), ["topic", "body"]).collect()
    with Processes(tmp_path / "logs") as processes:
        broker, addresses = processes.start_broker(store)
        arguments = ["send", "--namesrv", addresses["namesrv"], "--events", str(EVENTS)]
        sender = processes.start_client("sender", arguments)
        while sender.process.poll() is None:
            frame = read_store(spark, store, ["topic", "queue_id", "queue_offset", "body"])
            planned = frame.rdd.getNumPartitions()
            rows = frame.collect() if planned else []
            offsets = defaultdict(list)
            for row in rows:
                offsets[row.topic, row.queue_id].append(row.queue_offset)
                assert bytes(row.body).endswith(b"}"), "a whole body"
            for queue, found in offsets.items():
                assert sorted(found) == list(range(len(found))), queue
            seen.append(len(rows))
        watch([sender], lambda done: None, processes)
        stop_broker(broker, processes)
    assert seen == sorted(seen), "a later read never sees less"
    assert any(0 < count < EVENTS for count in seen), f"some of these reads were meant to be in the middle: {seen}"
    bodies = [bytes(row.body) for row in read_store(spark, store, ["body"]).collect()]
    wanted = sorted(hashlib.md5(event.body).digest() for event in orders.events(EVENTS))
    assert sorted(hashlib.md5(body).digest() for body in bodies) == wanted
