"""The job `replay` to a real broker: killed anywhere, run again, and every message is there once, in order."""

from __future__ import annotations

from collections import Counter

import pytest

from examples.demo.processes import Processes, stop_broker
from stratamq.logstore.snapshot import StoreSnapshot
from tests.unit.pipeline.test_export import options_of, store_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MESSAGES = 150


def made_topic(producer, topic):
    default = producer.queues("TBW102")
    producer.send(topic, default[0]._replace(queue_id=0), [(0, b"first", "")])


def received(data, topic):
    """Queue, replay key, body and properties of all messages of a topic but the one that made it."""
    from stratamq.pipeline.reader import arrow_batches

    found = []
    with StoreSnapshot.open(data) as snapshot:
        for queue in snapshot.queues([topic]):
            for batch in arrow_batches(data, topic, queue.queue_id, queue.min_offset, queue.max_offset):
                for row in batch.to_pylist():
                    properties = dict(row["properties"])
                    if row["body"] != b"first":
                        found.append((queue.queue_id, properties.pop("STRATA_REPLAY_KEY"), row["body"], properties))
    return found


def check(found, store, name):
    """Every message of the store is there once, with its properties, in the order of its queue."""
    expected = {f"{name}:{one.topic}/{one.queue_id}/{one.queue_offset}": one for one in store.records}
    assert Counter(key for _, key, _, _ in found) == dict.fromkeys(expected, 1)
    places: dict[tuple[int, str], list[int]] = {}
    for queue_id, key, body, properties in found:
        assert body == expected[key].body
        assert properties["KEYS"] == f"k{body.decode()}"
        place, _, offset = key.rpartition("/")
        places.setdefault((queue_id, place), []).append(int(offset))
    assert all(offsets == sorted(offsets) for offsets in places.values())


def test_killed_replays_end_with_every_message_once(spark, tmp_path, monkeypatch):
    from stratamq.pipeline.jobs import export, replay
    from stratamq.pipeline.jobs.running import run_here, spark_runner
    from stratamq.pipeline.jobs.table import Table
    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.sending import Producer

    store = store_of(tmp_path / "store", MESSAGES)
    source = options_of(store, minPartitions="18")
    export.export(run_here, source, Table(tmp_path / "table"))
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(replay, "BATCH_MESSAGES_MAX", 4)
    with Processes(tmp_path / "logs") as processes:
        broker, addresses = processes.start_broker(tmp_path / "to")
        with Producer(addresses["namesrv"]) as producer:
            for topic in ("again", "sparked"):
                made_topic(producer, topic)
        to = parse_options({"namesrv": addresses["namesrv"]})
        where = replay.Where("mine", to, "again", None, None, None, None)
        real, sent = Producer.send, []

        def dies(self, *arguments):
            """Killed before a batch is sent, then right behind one, in turn."""
            sent.append(1)
            if len(sent) % 14 == 7:
                raise KeyboardInterrupt
            real(self, *arguments)
            if len(sent) % 14 == 0:
                raise KeyboardInterrupt

        kills = 0
        monkeypatch.setattr(Producer, "send", dies)
        while True:
            state = replay.State.open(tmp_path / "state.json", "plan", lambda: replay.pieces_of_source(source))
            assert len(state.pieces) >= 12
            try:
                replay.replay(run_here, state, source, where)
                break
            except KeyboardInterrupt:
                kills += 1
        monkeypatch.setattr(Producer, "send", real)
        assert kills >= 3
        state = replay.State.open(None, "plan", lambda: replay.pieces_of_table(Table(tmp_path / "table"), None))
        where = replay.Where("lake", to, "sparked", None, None, None, None)
        done = replay.replay(spark_runner(spark), state, None, where, rate=10_000, cores=2)
        assert (done.sent, done.found_there, done.left_out) == (MESSAGES, 0, 0)
        stop_broker(broker, processes)
    check(received(tmp_path / "to", "again"), store, "mine")
    check(received(tmp_path / "to", "sparked"), store, "lake")
