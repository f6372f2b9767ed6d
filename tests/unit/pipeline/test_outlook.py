"""What the report says beyond counts: the disk, backlogs, dead letters, and where a key went."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from stratamq.config import RetentionConfig
from stratamq.pipeline.jobs.facts import join
from stratamq.pipeline.jobs.outlook import backlogs, look_ahead
from stratamq.pipeline.jobs.page import render
from stratamq.pipeline.jobs.report import count_split, report_of_batches
from stratamq.pipeline.jobs.summary import Report, summarise
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.plan import plan_read
from tests.unit.logstore.tiny_store import T0, TinyStore

HOUR = 3_600_000


@pytest.fixture
def store(tmp_path):
    made = TinyStore(tmp_path / "store", file_bytes=8192, index_slots=500, index_entries=2000, queue_file_units=64)
    for number in range(120):
        properties = f"UNIQ_KEY\x01id{number}\x02KEYS\x01order-{number // 10} all\x02TAGS\x01t\x02"
        made.put(
            "orders", number % 2, b"x" * number, properties, stored=T0 + number * HOUR, born=T0 + number * HOUR - 5
        )
    kept = "KEYS\x01order-3\x02RETRY_TOPIC\x01orders\x02REAL_TOPIC\x01<b>orders\x02"
    for number in range(3):
        made.put("%RETRY%billing", 0, b"again", kept, stored=T0 + (40 + number) * HOUR, reconsume_times=1 + number)
    made.put("%DLQ%billing", 0, b"dead", kept, stored=T0 + 200 * HOUR, reconsume_times=16)
    made.write()
    offsets = {"offsetTable": {"orders@billing": {"0": 10, "1": 60}, "orders@reports": {"0": 60, "1": 60}}}
    (made.root / "config").mkdir()
    (made.root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    return made


def report_on(store, trace_key="") -> Report:
    facts = [
        batch
        for split in plan_read(parse_options({"path": str(store.root)}))
        for batch in count_split(split, path=str(store.root), timeline_ms=HOUR, trace_key=trace_key)
    ]
    made = summarise(join(pa.Table.from_batches(facts)), [], store="s", taken_ms=T0 + 300 * HOUR, timeline_ms=HOUR)
    return replace(made, trace_key=trace_key)


def test_topics_with_their_percentiles_and_peak(store):
    made = report_on(store)
    first = made.topic_totals[0]
    assert (first.topic, first.messages, first.bytes) == ("orders", 120, sum(range(120)))
    assert (first.size_p50, first.size_p99) == (59, 118)
    assert (first.latency_p50, first.latency_p99) == (5, 5)
    assert first.peak_per_second == pytest.approx(1 / 3600, abs=0.001)
    assert [one.topic for one in made.topic_totals] == ["orders", "%RETRY%billing", "%DLQ%billing"]
    assert made.latency.count == 124


def test_dead_letters_and_retries_by_group(store):
    assert [(one.group, one.kind, one.messages) for one in report_on(store).undelivered] == [
        ("billing", "dead letters", 1),
        ("billing", "to be tried again", 3),
    ]


def test_what_groups_have_not_consumed(store):
    assert [tuple(one) for one in backlogs(store.root)] == [("billing", "orders", 50, T0 + 20 * HOUR, 0)]
    (store.root / "commitlog" / f"{0:020d}").unlink()  # the oldest file expired
    behind = backlogs(store.root)[0]
    assert behind.lost > 0
    assert behind.messages + behind.lost == 50
    (store.root / "config" / "consumerOffset.json").write_text("nonsense")
    assert backlogs(store.root) == []


def test_a_key_across_topics(store):
    made = report_on(store, "order-3")
    assert [(one.topic, one.reconsume_times) for one in made.trace] == [
        *[("orders", 0)] * 10,
        *[("%RETRY%billing", times) for times in (1, 2, 3)],
        ("%DLQ%billing", 16),
    ]
    assert [one.stored_ms for one in made.trace] == sorted(one.stored_ms for one in made.trace)
    assert made.trace[-1].about == {"REAL_TOPIC": "<b>orders", "RETRY_TOPIC": "orders"}
    assert [one.message_id for one in report_on(store, "id77").trace] == ["id77"]
    assert report_on(store, "order").trace == []
    assert made.messages == report_on(store).messages
    page = render(made)
    assert "Trace of a key" in page
    assert "&lt;b&gt;orders" in page
    assert "<b>orders" not in page
    assert "There are none in the store" in render(report_on(store, "nobody"))


def test_how_long_the_disk_lasts(store):
    seen = look_ahead(store.root, RetentionConfig(file_reserved_hours=5), now_ms=T0 + 300 * HOUR)
    assert seen is not None
    assert seen.bytes_an_hour > 0
    assert seen.reserved_hours == 5
    assert seen.marks[-1].percent == 99
    made = replace(report_on(store), outlook=seen, backlogs=backlogs(store.root))
    page = render(made)
    for words in ("How long the disk lasts", "What groups have not consumed", "Dead letters and retries", "billing"):
        assert words in page
    assert "http" not in page.replace("http://www.w3.org", "").lower()
    document = made.as_json()
    assert json.loads(json.dumps(document))["outlook"]["marks"][0]["percent"] == seen.marks[0].percent
    assert document["backlogs"] == [one._asdict() for one in made.backlogs]


def test_an_empty_report_has_none_of_it():
    page = render(report_of_batches([], store="s"))
    for words in ("Trace of a key", "How long the disk lasts", "Dead letters"):
        assert words not in page
