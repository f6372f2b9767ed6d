"""Spark over a store against Spark over Parquet of the same rows: one session, both in turn, from the page cache.

Parquet is zstd, row groups of 65,536 rows, one file a queue, read by Spark's own vectorised reader. Both sides get two
cores and name the columns that they need. Each pair of figures is rows a second of the whole query, planning included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.bulk import store_of
from bench.rows import Missing, Row, pairs
from stratamq.errors import PipelineError
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.pipeline.frame import read_store
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.plan import plan_read
from stratamq.pipeline.ranges import map_ranges
from stratamq.pipeline.reader import SCHEMA, Split, arrow_batches, spans_of
from stratamq.pipeline.session import session

STORE_BYTES = 800 * 1024 * 1024
BODY_BYTES = 1024
CORES = 2


def run(rounds: int) -> list[Row | Missing]:
    """Count, a narrow groupBy, a hash over all bodies, and sizes of bodies counted in the workers."""
    with store_of(BODY_BYTES, store_bytes=STORE_BYTES) as root:
        store, parquet = root / "store", root / "parquet"
        count = write_parquet(store, parquet)
        try:
            spark = session("bench", f"local[{CORES}]", jvm_log=root / "jvm.log")
        except PipelineError as error:
            return [Missing(job="Spark over a store", reason=str(error))]
        try:
            peer = f"Spark {spark.version}, Parquet zstd"
            return [
                scan_row(job, peer, count, rounds, ours, theirs, note, warm_up=True)
                for job, ours, theirs, note in jobs(spark, store, parquet)
            ]
        finally:
            spark.stop()


Job = tuple[str, Callable[[], object], Callable[[], object], str]


def jobs(spark: Any, store: Path, parquet: Path) -> list[Job]:
    """Name, our way, the peer's way, and a note. Ways that can be compared give the same answer, which is checked."""
    from pyspark.sql import functions as f

    def lake() -> Any:
        return spark.read.parquet(str(parquet))

    def by_tag(frame: Any) -> object:
        return sorted(map(tuple, frame.groupBy("tags", "queue_id").count().collect()))

    def hashed(frame: Any) -> object:
        return tuple(frame.select(f.sum(f.length("body")), f.bit_xor(f.xxhash64("body"))).first())

    def sizes(frame: Any) -> object:
        return frame.select(f.sum(f.length("body"))).collect()[0][0]

    def sizes_in_workers() -> object:
        splits = plan_read(parse_options({"path": str(store), "minPartitions": "8"}))
        frame = map_ranges(spark, splits, partial(body_bytes_of, path=str(store)), "bytes long")
        return frame.groupBy().sum("bytes").collect()[0][0]

    narrow, body = partial(read_store, spark, store, ["tags", "queue_id"]), partial(read_store, spark, store, ["body"])
    found: list[Job] = [
        ("count", read_store(spark, store, ["queue_offset"]).count, lambda: lake().count(), "no log is read"),
        ("groupBy of tag and queue", lambda: by_tag(narrow()), lambda: by_tag(lake()), "2 narrow columns"),
        ("hash of every body", lambda: hashed(body()), lambda: hashed(lake()), "bodies cross into the JVM"),
        ("sum of body sizes", sizes_in_workers, lambda: sizes(lake()), "counted in the workers, mapInArrow"),
    ]
    for name, ours, theirs, _ in found:
        assert ours() == theirs(), name
    return found


def body_bytes_of(split: Split, *, path: str) -> Any:
    """The bytes of all bodies of a split, as one row. Runs in a worker."""
    total = 0
    for batch in arrow_batches(path, split.topic, split.queue_id, split.lo, split.hi, ["body"]):
        total += pc.sum(pc.binary_length(batch.column(0))).as_py()
    yield pa.record_batch([pa.array([total], pa.int64())], names=["bytes"])


def write_parquet(store: Path, folder: Path) -> int:
    """The store's rows as Parquet. Returns how many there are."""
    folder.mkdir()
    count = 0
    with StoreSnapshot.open(store) as snapshot:
        for span in spans_of(snapshot):
            with pq.ParquetWriter(folder / f"{span.queue_id}.parquet", SCHEMA, compression="zstd") as writer:
                table = pa.Table.from_batches(arrow_batches(snapshot, *span), SCHEMA)
                writer.write_table(table, row_group_size=65_536)
                count += table.num_rows
    return count


def scan_row(
    job: str,
    peer: str,
    count: int,
    rounds: int,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    note: str,
    *,
    warm_up: bool = False,
) -> Row:
    """Run both ways over ``count`` rows in turn; ``warm_up``: once each before, without measuring."""

    def rate(way: Callable[[], object]) -> float:
        started = time.perf_counter()
        way()
        return count / (time.perf_counter() - started)

    if warm_up:  # the JVM compiles what is hot: first runs take 2 to 4 times as long
        ours()
        theirs()
    ours_rates, their_rates = pairs(partial(rate, ours), partial(rate, theirs), rounds=rounds)
    return Row(
        job=f"Spark: {job}, {BODY_BYTES} B bodies",
        peer=peer,
        unit="rows/s",
        ours=ours_rates,
        theirs=their_rates,
        note=note,
        extra={"rows": float(count), "cores": float(min(CORES, os.cpu_count() or 1))},
    )
