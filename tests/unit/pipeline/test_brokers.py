"""A topic on several brokers: every one is read, each with offsets of its own, as a batch and as a stream."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from stratamq.errors import PeerUnreachable, PipelineError
from stratamq.pipeline import cluster
from stratamq.pipeline.brokers import parts_of
from stratamq.pipeline.datasource import StrataDataSource
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.schema import spark_schema
from stratamq.pipeline.stream import StrataStreamReader
from tests.unit.pipeline.fake_broker import FakeBroker, FakeCluster

SCHEMA = spark_schema(("queue_id", "queue_offset", "body"))


@pytest.fixture
def both(monkeypatch) -> FakeCluster:
    made = FakeCluster(a=FakeBroker(100), b=FakeBroker(70, lowest=20))
    monkeypatch.setattr(cluster, "Calls", lambda: made)
    return made


def stream(**given: str) -> StrataStreamReader:
    texts = {"namesrv": "n:1", "topics": "orders", "startingOffsets": "earliest", "retrySeconds": "0", **given}
    return StrataStreamReader(SCHEMA, parse_options(texts, streaming=True))


def rows(reader, tasks) -> list[str]:
    return sorted(row["body"].decode() for task in tasks for batch in reader.read(task) for row in batch.to_pylist())


def numbered(name: str, lo: int, hi: int) -> list[str]:
    return [f"{name} {number}" for number in range(lo, hi)]


EVERYTHING = sorted([*numbered("a", 0, 100), *numbered("b", 20, 70)])


@pytest.mark.parametrize("topics", [{"topics": "orders"}, {"subscribePattern": "or.*"}, {}])
def test_a_batch_has_the_rows_of_all_brokers(both, topics):
    reader = StrataDataSource({"namesrv": "n:1", **topics}).reader(SCHEMA)
    tasks = reader.partitions()
    assert {task.broker for task in tasks} == {"a", "b"}
    assert rows(reader, tasks) == EVERYTHING


def test_one_broker_can_be_chosen(both):
    reader = StrataDataSource({"namesrv": "n:1", "broker": "b"}).reader(SCHEMA)
    assert rows(reader, reader.partitions()) == numbered("b", 20, 70)


def test_a_topic_that_no_broker_has_is_missed_as_before(both):
    with pytest.raises(PipelineError, match="has no topic nothing"):
        StrataDataSource({"namesrv": "n:1", "topics": "orders,nothing"}).reader(SCHEMA).partitions()


def test_options_that_name_queues_by_number_need_a_broker(both):
    by_queue = '{"orders": {"0": 30}}'
    for option, value in [
        ("queues", "0"), ("assign", '{"orders": [0]}'), ("startingOffsets", by_queue), ("endingOffsets", by_queue),
        ("startingOffsetsByTimestamp", by_queue), ("endingOffsetsByTimestamp", by_queue),
    ]:  # fmt: skip
        given = {"namesrv": "n:1", option: value}
        with pytest.raises(PipelineError, match=f"brokers a, b.*{option}"):
            parts_of(parse_options(given))
        assert [part.broker for part in parts_of(parse_options({**given, "broker": "a"}))] == [""]


def test_a_stream_reads_every_broker_from_where_it_stood_there(both):
    reader = stream()
    begin = reader.initialOffset()
    assert begin == {"orders": {"a/0": 0, "b/0": 20}}
    end = reader.latestOffset(begin, ReadMaxRows(60))
    assert end["orders"] == {"a/0": 40, "b/0": 40}
    assert rows(reader, reader.partitions(begin, end)) == sorted([*numbered("a", 0, 40), *numbered("b", 20, 40)])
    again = stream()
    last = again.latestOffset(end, ReadAllAvailable())
    assert last["orders"] == {"a/0": 100, "b/0": 70} == again.reportLatestOffset()["orders"]
    assert rows(again, again.partitions(end, last)) == sorted([*numbered("a", 40, 100), *numbered("b", 40, 70)])
    assert again.latestOffset(last, ReadAllAvailable()) is last, "nothing new"


def test_limits_by_bytes_count_all_brokers(both):
    reader = stream(maxBytesPerTrigger="6000")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    moved = {queue: offset - begin["orders"][queue] for queue, offset in end["orders"].items()}
    assert 0 < moved["b/0"] < moved["a/0"] < 70


def test_a_run_to_what_is_there_now_ends_there_on_all_brokers(both):
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    both.brokers["b"].end = 90
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["orders"] == {"a/0": 100, "b/0": 70}


def test_a_broker_that_is_away_is_an_error_and_no_loss(both):
    reader = stream()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(60))
    del both.routes["b"]
    with pytest.raises(PeerUnreachable, match="broker b of topic orders"):
        reader.latestOffset(end, ReadAllAvailable())
    lenient = stream(failOnDataLoss="false")
    after = lenient.latestOffset(end, ReadAllAvailable())
    assert after["orders"] == {"a/0": 100, "b/0": 40}, "it goes on there when the broker is back"
    both.routes["b"] = {"0": "b:1"}
    assert stream().latestOffset(after, ReadAllAvailable())["orders"] == {"a/0": 100, "b/0": 70}


def test_a_broker_that_comes_to_a_stream_of_several_is_read_from_its_beginning(both):
    reader = stream()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    third = FakeBroker(5)
    both.brokers["c"] = third
    third.brokers = both.routes
    both.routes["c"] = {"0": "c:1"}
    after = reader.latestOffset(end, ReadAllAvailable())
    assert after["orders"] == {"a/0": 100, "b/0": 70, "c/0": 5}
    assert len(rows(reader, reader.partitions(end, after))) == 5


def test_a_checkpoint_of_one_broker_goes_on_with_one_alone(both):
    old = {"orders": {"0": 50}}
    with pytest.raises(PipelineError, match="brokers a, b now"):
        stream().latestOffset(old, ReadAllAvailable())
    named = stream(broker="b")
    end = named.latestOffset(old, ReadAllAvailable())
    assert end["orders"] == {"0": 70}
    assert rows(named, named.partitions(old, end)) == numbered("b", 50, 70)
    del both.routes["b"]
    alone = stream()
    end = alone.latestOffset(old, ReadAllAvailable())
    assert end["orders"] == {"0": 100}, "in the form that it had"
    assert rows(alone, alone.partitions(old, end)) == numbered("a", 50, 100)


def test_a_checkpoint_of_several_brokers_is_none_of_one(both):
    new = {"orders": {"a/0": 5, "b/0": 25}}
    with pytest.raises(PipelineError, match="offsets of the brokers a, b"):
        stream(broker="a").latestOffset(new, ReadAllAvailable())
