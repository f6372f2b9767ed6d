"""Plans: exact ranges, fixed once; loud when something that was asked for is not there."""

from __future__ import annotations

import json

import pytest

from stratamq.errors import DataLost, NotAStore, PipelineError
from stratamq.pipeline.filters import CLOCK_STEP_MS, Bounds
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.plan import group_splits, plan_read
from stratamq.pipeline.reader import Split
from tests.unit.logstore.tiny_store import T0, TinyStore


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Topic orders with queues 0 (from offset 100 on) and 1, topic payments with queue 0; a record each second."""
    root = tmp_path_factory.mktemp("plan") / "store"
    made = TinyStore(root, queue_starts={("orders", 0): 100})
    for number in range(60):
        topic, queue = [("orders", 0), ("orders", 1), ("payments", 0)][number % 3]
        made.put(topic, queue, body=b"x" * 50, stored=T0 + 1000 * number)
    made.write()
    return str(root)


def spans(store, bounds=None, **options):
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [tuple(split)[:4] for split in plan_read(parse_options({"path": store, **texts}), bounds)]


ALL = [("orders", 0, 100, 120), ("orders", 1, 0, 20), ("payments", 0, 0, 20)]


def test_everything_by_default(store):
    assert spans(store) == ALL


def test_topics_and_queues(store):
    assert spans(store, topics="payments") == ALL[2:]
    assert spans(store, subscribePattern="o.*", queues="1") == ALL[1:2]


def test_offsets(store):
    starts = {"orders": {"0": 110, "1": -2}, "payments": {"0": -1}}
    assert spans(store, startingOffsets=starts) == [("orders", 0, 110, 120), ("orders", 1, 0, 20)]
    assert spans(store, endingOffsets={"orders": {"1": 5}}) == [ALL[0], ("orders", 1, 0, 5), ALL[2]]
    assert spans(store, startingOffsets="latest") == []
    assert spans(store, endingOffsets="earliest") == []


def test_times_win_over_offsets(store):
    found = spans(store, startingOffsets="latest", startingTimestamp=str(T0 + 30_000), endingTimestamp=str(T0 + 36_000))
    assert found == [("orders", 0, 110, 112), ("orders", 1, 10, 12), ("payments", 0, 10, 12)]
    assert spans(store, startingTimestamp=str(T0 + 10**9)) == []
    assert spans(store, endingTimestamp=str(T0 + 10**9)) == ALL


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingOffsets": {"orders": {"0": 50}}},
            "offset 50 of topic orders, queue 0, but the store has 100 to 120",
        ),
        ({"endingOffsets": {"orders": {"1": 21}}}, "offset 21 of topic orders, queue 1, but the store has 0 to 20"),
    ],
)
def test_offsets_that_are_not_there_are_data_loss(store, options, text):
    with pytest.raises(DataLost, match=text):
        spans(store, **options)
    assert spans(store, failOnDataLoss="false", **options) == ALL


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "orders,refunds"}, "no topic refunds; it has orders, payments"),
        ({"queues": "0,7"}, "none of the topics has queue 7; there are 0, 1"),
        ({"topics": "orders", "startingOffsets": {"payments": {"0": 1}}}, "names queue 0 of topic payments"),
    ],
)
def test_names_that_are_not_there(store, options, text):
    with pytest.raises(PipelineError, match=text):
        spans(store, **options)
    assert spans(store, failOnDataLoss="false", **options) is not None


def test_no_store(tmp_path):
    with pytest.raises(NotAStore):
        spans(str(tmp_path))


def test_filters_narrow_what_is_read(store):
    assert spans(store, Bounds(topics=frozenset({"orders"}), queue_lo=1)) == ALL[1:2]
    assert spans(store, Bounds(offsets=frozenset({3, 4, 105}))) == [
        ("orders", 0, 105, 106),
        ("orders", 1, 3, 5),
        ("payments", 0, 3, 5),
    ]
    assert spans(store, Bounds(nothing=True)) == []
    assert spans(store, Bounds(time_hi_ms=T0 + 9000)) == [
        ("orders", 0, 100, 103),
        ("orders", 1, 0, 3),
        ("payments", 0, 0, 3),
    ]
    assert spans(store, Bounds(time_lo_ms=T0 - CLOCK_STEP_MS)) == ALL
    assert spans(store, Bounds(time_lo_ms=-5)) == ALL


def test_more_tasks_on_demand(store):
    for wanted in (4, 10, 60):
        found = spans(store, minPartitions=str(wanted))
        assert wanted <= len(found) <= 60
        assert [offset for *_, lo, hi in found for offset in range(lo, hi)] == [
            *range(100, 120),
            *range(20),
            *range(20),
        ]
    assert len(spans(store, minPartitions="1000")) == 60


def test_many_small_splits_share_tasks():
    splits = [Split("t", queue, 0, 10, 1000) for queue in range(1000)]
    groups = group_splits(splits, 1 << 20)
    assert 64 <= len(groups) <= 80
    assert [split for group in groups for split in group] == splits
    assert [len(group) for group in group_splits(splits[:64], 1 << 20)] == [1] * 64
    large = [Split("t", queue, 0, 10, 1 << 20) for queue in range(100)]
    assert len(group_splits(large, 1 << 20)) == 100
    assert group_splits([], 1) == []
