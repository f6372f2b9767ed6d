"""What a stream plans next, asked of the reader itself: bounds, waiting for enough, queues by name, the cold tier."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from stratamq.errors import DataLost, PipelineError
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.origins import RangeReader
from stratamq.pipeline.schema import spark_schema
from stratamq.pipeline.stream import StrataStreamReader
from tests.unit.logstore.tiny_store import T0, TinyStore
from tests.unit.pipeline.cold_store import ColdStore


def write(root: Path, count: int) -> Path:
    """``count`` records over three queues of one topic; a longer store continues a shorter one."""
    store = TinyStore(root, file_bytes=4096, index_entries=10_000)
    for number in range(count):
        store.put("orders", number % 3, body=b"%d" % number, stored=T0 + 1000 * number)
    shutil.rmtree(root, ignore_errors=True)
    return store.write().root


class Seconds:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def reader(clock: Seconds | None = None, **texts: str) -> StrataStreamReader:
    options = parse_options({"startingOffsets": "earliest", **texts}, streaming=True)
    return StrataStreamReader(spark_schema(), options, clock=clock or Seconds())


def ends(found: dict) -> dict[str, int]:
    return dict(found["orders"])


def test_a_stream_stops_at_the_offsets_and_times_given(tmp_path):
    root = write(tmp_path / "store", 90)
    given = {"orders": {"0": 7, "1": -1, "2": 40}}
    one = reader(path=str(root), endingOffsets=json.dumps(given))
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert ends(end) == {"0": 7, "1": 30, "2": 30}
    write(root, 150)
    after = one.latestOffset(end, ReadAllAvailable())
    assert ends(after) == {"0": 7, "1": 50, "2": 40}
    assert one.latestOffset(after, ReadAllAvailable()) is after, "nothing new for ever"
    timed = reader(path=str(root), endingTimestamp=str(T0 + 30_000), endingOffsetsByTimestamp='{"orders": {"2": 0}}')
    assert ends(timed.latestOffset(timed.initialOffset(), ReadAllAvailable())) == {"0": 10, "1": 10, "2": 0}


def test_a_batch_is_held_back_until_there_is_enough_or_it_has_waited(tmp_path):
    root = write(tmp_path / "store", 30)
    clock = Seconds()
    one = reader(clock, path=str(root), minOffsetsPerTrigger="100", maxTriggerDelay="60s")
    begin = one.initialOffset()
    assert one.latestOffset(begin, ReadAllAvailable()) is begin
    clock.now = 59
    assert one.latestOffset(begin, ReadAllAvailable()) is begin
    clock.now = 60
    end = one.latestOffset(begin, ReadAllAvailable())
    assert ends(end) == {"0": 10, "1": 10, "2": 10}
    write(root, 150)
    assert ends(one.latestOffset(end, ReadAllAvailable()))["0"] == 50, "enough is there at once"
    eager = reader(clock, path=str(root), minOffsetsPerTrigger="1000")
    eager.prepareForTriggerAvailableNow()
    assert ends(eager.latestOffset(begin, ReadAllAvailable()))["0"] == 50, "what is to end does not wait"


def test_queues_by_name(tmp_path):
    root = write(tmp_path / "store", 30)
    one = reader(path=str(root), assign='{"orders": [0, 2]}')
    assert sorted(one.initialOffset()["orders"]) == ["0", "2"]
    with pytest.raises(PipelineError, match="assign names queue 5 of topic orders"):
        reader(path=str(root), assign='{"orders": [0, 5]}').initialOffset()


def test_a_time_with_nothing_behind_it(tmp_path):
    root = write(tmp_path / "store", 30)
    late = {"path": str(root), "startingTimestamp": str(T0 + 10**6)}
    assert ends(reader(**late).initialOffset()) == {"0": 10, "1": 10, "2": 10}
    with pytest.raises(PipelineError, match="nothing stored at or after"):
        reader(**late, startingOffsetsByTimestampStrategy="error").initialOffset()


def test_a_stream_goes_on_in_the_tier_where_files_were_deleted(tmp_path):
    root = write(tmp_path / "store", 150)
    cold = ColdStore(root, tmp_path / "tier")
    for queue_id in range(3):
        cold.seal(QueueKey("orders", queue_id), [0, 15, 30])
    files = sorted((root / "commitlog").iterdir())
    begin = {"orders": {str(queue_id): 3 for queue_id in range(3)}}
    both = reader(path=str(root), tier=cold.url)
    end = both.latestOffset(begin, ReadAllAvailable())
    for path in files[:2]:
        path.unlink()
    tasks = both.partitions(begin, end)
    found: dict[int, list[int]] = {queue_id: [] for queue_id in range(3)}
    for task in tasks:
        with RangeReader(both.options, ["queue_offset"], None) as ranges:
            for (topic, queue_id, lo, hi), segments in zip(task.ranges, task.segments, strict=True):
                for batch in ranges.batches(QueueKey(topic, queue_id), lo, hi, segments):
                    found[queue_id] += batch.column(0).to_pylist()
    assert found == {queue_id: list(range(3, 50)) for queue_id in range(3)}
    with pytest.raises(DataLost, match="stands at offset 3 "):
        reader(path=str(root)).latestOffset(begin, ReadAllAvailable())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("assign", "{}"), ("assign", '{"a": []}'), ("assign", '{"a": [-1]}'), ("assign", "x"),
        ("maxTriggerDelay", "5"), ("startingOffsetsByTimestampStrategy", "maybe"), ("minOffsetsPerTrigger", "-1"),
        ("retrySeconds", "x"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_meant_are_refused(option, value):
    from stratamq.errors import ConfigError

    with pytest.raises(ConfigError, match=option):
        parse_options({"path": "d", option: value})


def test_places_exclude_each_other():
    for given in ({"path": "d", "namesrv": "a:1"}, {"namesrv": "a:1", "bootstrap": "b:1"}):
        with pytest.raises(PipelineError, match="exclude each other"):
            parse_options(given)
    assert parse_options({"bootstrap": "a:1; b:2"}).namesrv == ("a:1", "b:2")
