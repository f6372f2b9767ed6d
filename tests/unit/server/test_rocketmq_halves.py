"""Transactions that RocketMQ left open, in the golden stores: they and no others are asked about, and end once."""

from __future__ import annotations

import pytest

from stratamq.config import StoreConfig
from stratamq.testing.clock import ManualClock
from tests.golden.archives import unpack_store
from tests.unit.server import harness as harness_module
from tests.unit.server.harness import Harness, records
from tests.unit.server.test_transactions import Producer, asked_place, end, stored, wait

SIZES = StoreConfig(commit_log_file_bytes=128 << 10, consume_queue_file_bytes=800, index_slots=64, index_entries=256)
GROUP = "golden-transactions"


@pytest.mark.parametrize("name", ["rocketmq-5.3-clean", "rocketmq-5.5-clean", "rocketmq-5.3-killed"])
def test_what_rocketmq_left_open_is_asked_about_and_nothing_else(tmp_path, monkeypatch, name):
    monkeypatch.setattr(harness_module, "SMALL", SIZES)
    harness = Harness(unpack_store(name, tmp_path), clock=ManualClock(1_795_300_000_000))
    harness.broker.transactions.reserved_ms = 1_000_000 * 3_600_000
    harness.peer = Producer()
    heartbeat = {"clientID": "c", "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
    assert harness.ask(34, {}, heartbeat).code == 0
    committed = {record.body for queue in range(4) for record in bodies_of(harness, queue)}
    assert committed == {b"commit then commit", b"unknown then commit"}
    wait(harness)
    assert {record.body for _, record in harness.peer.asked} == {b"unknown then unknown"}
    assert harness.broker.half_counts.count("Transactions") == 1
    asked = len(harness.peer.asked)
    assert end(harness, asked_place(harness), checked=True, group=GROUP) == 0
    wait(harness)
    wait(harness)
    assert len(harness.peer.asked) == asked
    again = [record.body for queue in range(4) for record in bodies_of(harness, queue)]
    assert sorted(again) == [b"commit then commit", b"unknown then commit", b"unknown then unknown"]
    assert harness.broker.half_counts.count("Transactions") == 0
    assert stored(harness, "TRANS_CHECK_MAX_TIME_TOPIC") == []
    harness.close()


def bodies_of(harness, queue):
    return records(b"".join(harness.store.get("Transactions", queue, 0, 32).records))
