"""Snapshots, checks and searches of stores that brokers wrote: RocketMQ's goldens and our own log store, running or
not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stratamq.findings import Severity
from stratamq.logstore import search
from stratamq.logstore.check import check_store
from stratamq.logstore.inspect import inspect_store
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.pipeline.reader import arrow_batches, spans_of
from stratamq.testing.clock import ManualClock
from tests.golden.archives import unpack_store
from tests.unit.logstore.stores import message, open_store, put

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
STORES = sorted(path.parent.name for path in GOLDEN.glob("rocketmq-*/store.tar.xz"))


@pytest.fixture(scope="module", params=STORES)
def golden(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("golden")
    return unpack_store(request.param, root), json.loads((GOLDEN / request.param / "MANIFEST.json").read_text())


def errors(report):
    return {kind: count for (severity, kind), count in report.counts.items() if severity is Severity.ERROR}


def test_there_are_goldens():
    assert STORES


def test_rocketmq_stores_are_whole(golden):
    root, manifest = golden
    report = check_store(root)
    assert errors(report) == {}
    assert report.was_stopped_cleanly == (manifest["ended"] == "clean")
    assert report.index_entries > 0
    ends = [end for end in manifest["ends"] if end["end"]]
    assert report.end.physical_offset == int(ends[-1]["file"]) + ends[-1]["end"]
    if report.was_stopped_cleanly:
        assert {kind for severity, kind in report.counts if severity is Severity.INFO} <= {"not-checked"}


def test_rocketmq_queues_are_found_whole(golden):
    root, manifest = golden
    with StoreSnapshot.open(root) as snapshot:
        there = {(queue.topic, queue.queue_id): queue for queue in snapshot.queues()}
        for topic, queues in manifest.get("queues", {}).items():
            for queue in queues if manifest["ended"] == "clean" else ():
                found = there.get((topic, queue["queueId"]))
                assert (
                    (found.min_offset, found.max_offset) == (queue["min"], queue["max"]) if found else not queue["max"]
                )
        rows = [
            row for span in spans_of(snapshot) for batch in arrow_batches(snapshot, *span) for row in batch.to_pylist()
        ]
        assert len(rows) == sum(queue.max_offset - queue.min_offset for queue in there.values())


def test_rocketmq_key_queries_have_the_same_answers(golden):
    root, manifest = golden
    with StoreSnapshot.open(root) as snapshot:
        for asked in manifest.get("queries", ()):
            wanted = sorted({found for found in asked["offsetMsgIds"] if not found.startswith("CODE")})
            found = search.by_key(snapshot, asked["key"], topic=asked["topic"], limit=1000)
            assert sorted(record.message_id for record in found.records) == wanted, asked
            for message_id in wanted:
                assert [r.message_id for r in search.by_id(snapshot, message_id, limit=2).records] == [message_id]


def test_rocketmq_time_searches_have_the_same_answers(golden):
    root, manifest = golden
    with StoreSnapshot.open(root) as snapshot:
        for asked in manifest.get("searches", ()):
            for queue_id, offset in asked["offsets"].items():
                if (root / "consumequeue" / asked["topic"] / queue_id).is_dir():
                    found = snapshot.offset_by_time(asked["topic"], int(queue_id), asked["timestamp"])
                    assert found == offset


def test_the_lag_of_groups(golden):
    root, manifest = golden
    view = inspect_store(root)
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in view.queues}
    groups = {(group.topic, group.group): group for group in view.groups}
    for name, offsets in manifest.get("groups", {}).items():
        topic, _, group = name.partition("@")
        lag = sum(ends.get((topic, int(queue)), offset) - offset for queue, offset in offsets.items())
        assert groups[topic, group].lag == lag
    assert view.meaning


# --- our own store --------------------------------------------------------------------------------------------


def fill(store, clock, count=120):
    for number in range(count):
        clock.advance(7)
        put(
            store,
            message(
                f"body {number}" * (number % 9),
                topic=f"T{number % 2}",
                queue_id=number % 3,
                KEYS=f"k{number} all",
                TAGS=f"tag{number % 4}",
                UNIQ_KEY=f"U{number}",
            ),
        )


@pytest.mark.parametrize("state", ["running", "closed", "killed"])
def test_our_own_store_is_whole(tmp_path, state):
    clock = ManualClock()
    store = open_store(tmp_path / "s", clock=clock)
    try:
        fill(store, clock)
        root = tmp_path / "s"
        if state == "killed":
            shutil.copytree(root, tmp_path / "copy")
            root = tmp_path / "copy"
        if state == "closed":
            store.close()
        report = check_store(root)
        assert errors(report) == {}
        assert (report.records, report.is_live) == (120, state == "running")
        if state == "closed":
            assert report.counts == {}
            assert report.was_stopped_cleanly
        with StoreSnapshot.open(root) as snapshot:
            found = search.by_key(snapshot, "all", topic=None, limit=1000)
            assert len(found.records) == 120
            keys = [
                row["keys"] for span in spans_of(snapshot) for b in arrow_batches(root, *span) for row in b.to_pylist()
            ]
            assert sorted(keys) == sorted(f"k{number} all" for number in range(120))
    finally:
        store.close()


def test_a_snapshot_keeps_its_end_while_the_store_grows(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path / "s", clock=clock)
    try:
        fill(store, clock, 50)
        with StoreSnapshot.open(tmp_path / "s") as snapshot:
            end = snapshot.max_physical_offset
            fill(store, clock, 50)
            assert sum(queue.max_offset for queue in snapshot.queues()) == 50
            assert snapshot.max_physical_offset == end
        with StoreSnapshot.open(tmp_path / "s") as snapshot:
            assert sum(queue.max_offset for queue in snapshot.queues()) == 100
    finally:
        store.close()
