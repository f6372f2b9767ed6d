"""The report's arithmetic, against a slow and obvious version of it."""

from __future__ import annotations

import collections
import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from stratamq.pipeline.jobs.facts import EXACT_BELOW, FACTS, Folder, bucket_of, facts_of, join, percentiles, value_of  # noqa: E402
from stratamq.pipeline.jobs.report import report_of_batches, timeline_width  # noqa: E402
from stratamq.pipeline.jobs.summary import KeyTotal  # noqa: E402

T0 = 1_717_236_000_000


def batch_of(rows: list[tuple[Any, ...]]) -> Any:
    """Rows of (topic, queue, offset, stored ms, born ms, tags, keys, body)."""
    time = pa.timestamp("us", "UTC")
    types = [pa.string(), pa.int32(), pa.int64(), time, time, pa.string(), pa.string(), pa.binary()]
    names = ["topic", "queue_id", "queue_offset", "store_timestamp", "born_timestamp", "tags", "keys", "body"]
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[]] * 8
    columns = [
        [value * 1000 for value in column] if kind == time else column
        for column, kind in zip(columns, types, strict=True)
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.record_batch(arrays, names=names)


def some_rows(count, seed=1):
    chance = random.Random(seed)
    offsets: collections.Counter[tuple[str, int]] = collections.Counter()
    rows = []
    for number in range(count):
        topic, queue = chance.choice(["a", "b"]), chance.randrange(2)
        offset = offsets[topic, queue]
        offsets[topic, queue] += 1
        stored = T0 + number * 500
        keys = chance.choice([None, "", "k1", "k1 k2", f"k{number}  x"])
        tags = chance.choice([None, "t", "u"])
        rows.append(
            (topic, queue, offset, stored, stored - chance.randrange(-5, 400), tags, keys, b"." * chance.randrange(900))
        )
    return rows


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50))
def test_buckets_are_exact_below_and_near_above(values):
    buckets = bucket_of(np.array(values, dtype=np.int64)).tolist()
    for value, bucket in zip(values, buckets, strict=True):
        low, following = value_of(bucket), value_of(bucket + 1)
        assert low <= value < following
        assert value < EXACT_BELOW or following - low <= value / 255
    ordered = bucket_of(np.sort(np.array(values, dtype=np.int64))).tolist()
    assert ordered == sorted(ordered)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=80), st.floats(0.001, 1))
def test_percentiles_are_what_sorting_gives(values, share):
    import math

    wanted = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert percentiles(collections.Counter(values), [share]) == [wanted]


def test_percentiles_of_nothing():
    assert percentiles({}, [0.5, 0.99]) == [0, 0]


def test_report_says_what_counting_by_hand_says():
    rows = some_rows(700)
    report = report_of_batches([batch_of(rows[:300]), batch_of([]), batch_of(rows[300:])], store="s", taken_ms=5)
    assert report.messages == 700
    assert report.body_bytes == sum(len(row[7]) for row in rows)
    assert {(one.topic, one.tag): one.messages for one in report.tag_totals} == collections.Counter(
        (row[0], row[5] or "") for row in rows
    )
    minutes = collections.Counter((row[0], row[5] or "", row[3] // 60_000 * 60_000) for row in rows)
    assert {(one.topic, one.tag, one.minute_ms): one.messages for one in report.tag_minutes} == minutes
    keys = collections.Counter(key for row in rows for key in (row[6] or "").split(" ") if key)
    assert [KeyTotal(*one) for one in sorted(keys.items(), key=lambda one: (-one[1], one[0]))[:20]] == report.top_keys
    for one in report.queues:
        own = [row for row in rows if row[:2] == (one.topic, one.queue_id)]
        assert one.messages == len(own)
        assert (one.min_offset, one.max_offset) == (0, len(own))
        assert (one.first_ms, one.last_ms) == (own[0][3], own[-1][3])
    sizes = sorted(len(row[7]) for row in rows)
    assert report.sizes.percentiles == {"p50": sizes[349], "p90": sizes[629], "p99": sizes[692], "p99.9": sizes[699]}
    assert (report.sizes.low, report.sizes.high, report.sizes.is_exact) == (sizes[0], sizes[-1], True)
    waits = sorted(max(0, row[3] - row[4]) for row in rows)
    assert report.latency.percentiles["p50"] == waits[349]
    assert sum(one.messages for one in report.timeline) == 700
    json.dumps(report.as_json())


def test_any_grouping_gives_the_same_facts():
    rows = some_rows(400)
    whole = join(facts_of(batch_of(rows)))
    folder = Folder()
    for start in range(0, 400, 7):
        folder.add(batch_of(rows[start : start + 7]))
    order = [(name, "ascending") for name in FACTS.names]
    assert folder.facts().sort_by(order).equals(whole.sort_by(order))
    assert folder.records == 400


def test_large_values_are_said_to_be_near():
    report = report_of_batches([batch_of([("a", 0, 0, T0, T0 - 100_000, None, None, b"")])])
    assert not report.latency.is_exact
    assert 0.996 * 100_000 <= report.latency.percentiles["p50"] <= 100_000
    assert report.latency.high == 100_000


def test_an_empty_store():
    report = report_of_batches([])
    assert (report.messages, report.topics, report.first_ms) == (0, [], 0)


def test_timeline_width_is_round_and_bounded():
    assert timeline_width(T0, T0) == 100
    for span in (10, 17_000, 60_000, 3_600_000, 86_400_000, 30 * 86_400_000, 365 * 86_400_000):
        assert span // timeline_width(T0, T0 + span) < 180


def test_page_stands_alone_and_escapes(tmp_path):
    pytest.importorskip("matplotlib")
    from stratamq.pipeline.jobs.page import render

    rows: list[tuple[Any, ...]] = [
        ("<b>a", 0, number, T0 + number, T0, "<i>t", "k&1 <u>", b"x" * number) for number in range(50)
    ]
    rows += [("%RETRY%g", 0, number, T0 + number, T0, None, None, b"") for number in range(3)]
    page = render(dataclasses.replace(report_of_batches([batch_of(rows)], store="<script>"), seconds=1.5))
    for text in ("<b>a", "<i>t", "<u>", "<script>", "src=", "@import", 'xlink:href="http'):
        assert text not in page
    assert page.count("<svg") == 5
    assert "&lt;b&gt;a" in page
    assert "53" in page
    assert "currentColor" in page
    assert "#010203" not in page
    assert render(report_of_batches([])).count("<svg") == 0


def test_a_killed_store_is_said_to_be_one(tmp_path):
    from stratamq.pipeline.jobs.page import render
    from stratamq.pipeline.jobs.report import was_left_open
    from tests.unit.logstore.tiny_store import TinyStore

    TinyStore(tmp_path / "a").write()
    TinyStore(tmp_path / "b").write(abort="1")
    assert not was_left_open(str(tmp_path / "a"))
    assert was_left_open(str(tmp_path / "b"))
    assert "was killed" in render(dataclasses.replace(report_of_batches([]), was_killed=True))
