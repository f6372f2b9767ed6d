"""The job `report`: what is in a store, in tables and plots. One pass over the records, in the workers.

Every task counts its own range (`jobs.facts`) and sends a small table. The driver joins those; what can be
large, how often each key occurs, Spark itself joins, and only the most frequent keys come back.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from stratamq.config import RetentionConfig
from stratamq.logstore.liveness import look
from stratamq.pipeline.jobs.facts import COLUMNS, FACTS, MINUTE_MS, Folder, join
from stratamq.pipeline.jobs.outlook import STEPS_A_SPLIT_MAX, TRACE_COLUMNS, backlogs, look_ahead, trace_facts
from stratamq.pipeline.jobs.page import render
from stratamq.pipeline.jobs.summary import TOP_KEYS, Report, summarise
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.plan import plan_read
from stratamq.pipeline.progress import TaskProgress, watching
from stratamq.pipeline.ranges import map_ranges
from stratamq.pipeline.reader import Split, arrow_batches
from stratamq.pipeline.schema import spark_types
from stratamq.pipeline.session import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMELINE_BUCKETS_MAX: Final = 180
_WIDTHS_MS: Final = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    *(MINUTE_MS * minutes for minutes in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 2880, 10_080, 43_200)),
)


def make_report(
    spark: SparkSession,
    store: str | os.PathLike[str],
    progress: TaskProgress | None = None,
    *,
    policy: RetentionConfig | None = None,
    trace_key: str = "",
) -> Report:
    """Count everything in the store at ``store``, up to where it ends now.

    Blocks until the job is done. ``progress`` is called from another thread. With a ``policy`` the report says also how
    long the disk lasts and what groups have not consumed; with a ``trace_key`` where messages with that key are.

    Raises:
        NotAStore, CorruptionError: The store cannot be read; seen while the job was planned.
        PipelineError: The same and DataLost, seen by a task; the text is that of the error.
    """
    began = time.monotonic()
    path = os.path.abspath(store)
    taken_ms = int(time.time() * 1000)
    was_killed = was_left_open(path)
    splits = plan_read(parse_options({"path": path, "minPartitions": str(spark.sparkContext.defaultParallelism)}))
    width = timeline_width(*time_span(path, splits))
    count = functools.partial(count_split, path=path, timeline_ms=width, trace_key=trace_key)
    facts = map_ranges(spark, splits, count, spark_types(FACTS)).persist()
    try:
        with plain_errors(), watching(spark, progress):
            small = facts.where("kind != 'key'").toArrow()
            keys = (
                facts.where("kind = 'key'")
                .groupBy("text")
                .sum("count")
                .orderBy("sum(count)", "text", ascending=[False, True])
            )
            top = [(row[0], row[1]) for row in keys.limit(TOP_KEYS).collect()]
    finally:
        facts.unpersist()
    report = summarise(join(small.cast(FACTS)), top, store=path, taken_ms=taken_ms, timeline_ms=width)
    if policy is not None:
        report = dataclasses.replace(report, outlook=look_ahead(Path(path), policy), backlogs=backlogs(Path(path)))
    seconds = round(time.monotonic() - began, 3)
    return dataclasses.replace(report, was_killed=was_killed, trace_key=trace_key, seconds=seconds)


def report_of_batches(batches: Sequence[pa.RecordBatch], *, store: str = "", taken_ms: int = 0) -> Report:
    """The same report of batches in memory, without Spark: for tests, and for what is small."""
    times = [batch.column("store_timestamp") for batch in batches if batch.num_rows]
    lows = [pc.min(column).cast(pa.int64()).as_py() // 1000 for column in times]
    highs = [pc.max(column).cast(pa.int64()).as_py() // 1000 for column in times]
    folder = Folder(timeline_width(min(lows, default=0), max(highs, default=0)))
    for batch in batches:
        folder.add(batch)
    facts = folder.facts()
    keys = facts.filter(pc.equal(facts["kind"], "key")).sort_by([("count", "descending"), ("text", "ascending")])
    top = zip(keys["text"].to_pylist()[:TOP_KEYS], keys["count"].to_pylist()[:TOP_KEYS], strict=True)
    return summarise(facts, top, store=store, taken_ms=taken_ms, timeline_ms=folder.timeline_ms)


def was_left_open(path: str) -> bool:
    """Whether the store's broker was killed, and none has recovered the store since."""
    state = look(Path(path))
    return state.has_abort and not state.is_live


def count_split(split: Split, *, path: str, timeline_ms: int, trace_key: str = "") -> Iterator[pa.RecordBatch]:
    """Facts of one split. Runs in a Python worker."""
    folder = Folder(timeline_ms)
    columns = (*COLUMNS, *TRACE_COLUMNS) if trace_key else COLUMNS
    left = STEPS_A_SPLIT_MAX
    for batch in arrow_batches(path, split.topic, split.queue_id, split.lo, split.hi, columns):
        folder.add(batch)
        if trace_key and left:
            steps = trace_facts(batch, trace_key)[:left]
            left -= steps.num_rows
            yield from steps.to_batches()
    yield from folder.facts().to_batches()


def time_span(path: str, splits: Sequence[Split]) -> tuple[int, int]:
    """Lowest first and highest last store time of splits, in ms; reads two records a split. (0, 0) of nothing."""
    seen = [
        batch.column(0).cast(pa.int64())[0].as_py() // 1000
        for split in splits
        for lo in (split.lo, split.hi - 1)
        for batch in arrow_batches(path, split.topic, split.queue_id, lo, lo + 1, ["store_timestamp"])
    ]
    return min(seen, default=0), max(seen, default=0)


def timeline_width(first_ms: int, last_ms: int) -> int:
    """The width of a timeline's buckets: a round one that gives at most `TIMELINE_BUCKETS_MAX` of them."""
    for width in _WIDTHS_MS:
        if (last_ms - first_ms) // width < TIMELINE_BUCKETS_MAX:
            return width
    return _WIDTHS_MS[-1]


def write_report(report: Report, html: Path, json_file: Path | None = None) -> None:
    """Write the page, and the figures as JSON where a file for them is given."""
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(render(report), encoding="utf-8")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.as_json(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
