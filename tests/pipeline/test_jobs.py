"""Jobs on Spark: the report of a session is the report of the same batches in memory."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from tests.unit.logstore.tiny_store import T0, TinyStore

    made = TinyStore(tmp_path_factory.mktemp("jobs") / "store", file_bytes=65536, index_entries=100_000)
    for number in range(500):
        properties = f"TAGS\x01t{number % 3}\x02KEYS\x01order-{number // 3} customer-{number % 7}\x02"
        made.put("orders", number % 4, b"x" * (number % 200), properties, stored=T0 + number * 100, born=T0)
    return made.write()


def test_report_is_the_same_with_and_without_spark(spark, store, tmp_path):
    from stratamq.pipeline.jobs.report import make_report, report_of_batches, write_report
    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.plan import plan_read
    from stratamq.pipeline.reader import arrow_batches

    seen: list[tuple[int, int]] = []
    made = make_report(spark, store.root, lambda done, total: seen.append((done, total)))
    splits = plan_read(parse_options({"path": str(store.root)}))
    batches = [batch for split in splits for batch in arrow_batches(store.root, *split[:4])]
    plain = report_of_batches(batches, store=str(store.root), taken_ms=made.taken_ms)
    assert made.as_json() | {"seconds": 0.0} == plain.as_json()
    assert made.messages == 500
    assert made.top_keys[0].key == "customer-0"
    assert all(done <= total for done, total in seen)
    write_report(made, tmp_path / "deep" / "r.html", tmp_path / "r.json")
    assert (tmp_path / "deep" / "r.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "r.json").read_text())["messages"] == 500


def test_map_ranges_runs_once_a_split(spark, store):
    import pyarrow as pa

    from stratamq.pipeline.options import parse_options
    from stratamq.pipeline.plan import plan_read
    from stratamq.pipeline.ranges import map_ranges

    splits = plan_read(parse_options({"path": str(store.root), "minPartitions": "9"}))

    def size(split):
        yield pa.record_batch([[split.queue_id], [split.hi - split.lo]], names=["queue_id", "records"])

    found = map_ranges(spark, splits, size, "queue_id long, records long")
    assert found.rdd.getNumPartitions() == len(splits) >= 9
    totals = {row[0]: row[1] for row in found.groupBy("queue_id").sum("records").collect()}
    assert totals == dict.fromkeys(range(4), 125)
    assert map_ranges(spark, [], size, "queue_id long, records long").count() == 0


def test_report_of_an_empty_store(spark, tmp_path):
    from stratamq.pipeline.jobs.page import render
    from stratamq.pipeline.jobs.report import make_report
    from tests.unit.logstore.tiny_store import TinyStore

    TinyStore(tmp_path / "store").write()
    made = make_report(spark, tmp_path / "store")
    assert made.messages == 0
    assert "holds no messages" in render(made)


def test_a_fault_in_a_task_keeps_its_text(spark, store, tmp_path):
    import shutil

    from stratamq.errors import PipelineError
    from stratamq.pipeline.jobs.report import make_report
    from tests.unit.logstore.tiny_store import flip

    broken = tmp_path / "broken"
    shutil.copytree(store.root, broken)
    flip(broken / "commitlog" / f"{0:020d}", store.records[9].physical_offset + 5, 0xFF)
    with pytest.raises(PipelineError, match=r"unknown magic number in .*commitlog.* at byte \d+") as caught:
        make_report(spark, broken)
    assert "Traceback" not in str(caught.value)


def test_the_example_reads_a_store(spark, store):
    from examples.spark_read import by_tag, newest

    assert [tuple(row) for row in by_tag(spark, str(store.root)).collect()] == [
        ("orders", "t0", 167),
        ("orders", "t1", 167),
        ("orders", "t2", 166),
    ]
    assert [row.body for row in newest(spark, str(store.root), "orders", 1).collect()] == ["x" * 99]
