"""One scan by Spark over the same rows in five places, and a stream: everything in one run, each against plain Parquet.

Places: the store directory, the cold tier in flat segments, the cold tier in Parquet segments, a broker over the
network, and Parquet written by pyarrow (zstd, one file a queue), which Spark reads itself. The scan reads every body
and sums a hash of it, so that all bytes cross into the JVM; count and groupBy ask for few columns. All sides get two
cores; figures are rows a second of the whole query, planning included, from the page cache; ratios are those of
medians.

The stream reads the store to its end in batches (``Trigger.AvailableNow``) and throws the rows away; the peer is
Spark's own stream over the Parquet files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.bulk import FILE_BYTES, QUEUE_FILE_BYTES, store_of
from bench.rows import Missing, Row
from bench.spark_scan import CORES, scan_row, write_parquet
from stratamq.errors import PipelineError
from stratamq.formats.cold_manifest import FLAT, Manifest, Segment
from stratamq.formats.cold_names import Lifetime, segment_name, unique_part
from stratamq.formats.cold_segment import SegmentBuilder, make_block
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.pipeline.frame import read_store
from stratamq.pipeline.session import session
from stratamq.tiered import commits
from stratamq.tiered.backend import Backend, PrefixedBackend, put_checked
from stratamq.tiered.folder import FolderBackend
from stratamq.tiered.parquet import join_to_parquet

STORE_BYTES = 400 * 1024 * 1024
BODY_BYTES = 1024
BLOCK_MESSAGES = 256
SEGMENT_MESSAGES = 16_384
BATCH_ROWS = 100_000
BROKER = "broker-a"


def run(rounds: int) -> list[Row | Missing]:
    """Every place against Parquet, for the three queries; then the stream."""
    with store_of(BODY_BYTES, store_bytes=STORE_BYTES) as root:
        store, parquet = root / "store", root / "parquet"
        count = write_parquet(store, parquet)
        write_tier(store, root / "flat", joined=False)
        write_tier(store, root / "cold-parquet", joined=True)
        try:
            spark = session("bench", f"local[{CORES}]", jvm_log=root / "jvm.log")
        except PipelineError as error:
            return [Missing(job="Spark over a store, a tier and a broker", reason=str(error))]
        try:
            peer = f"Spark {spark.version}, Parquet zstd"
            rows: list[Row | Missing] = [
                scan_row(job, peer, count, rounds, ours, theirs, note)
                for job, ours, theirs, note in scans(spark, root, parquet)
            ]
            with broker_over(store, root) as namesrv:
                network = partial(read_store, spark, namesrv=namesrv, retrySeconds=10, topics="orders")
                lake = partial(spark.read.parquet, str(parquet))
                body = (partial(hashed, lambda: network(columns=["body"])), partial(hashed, lake))
                rows.append(
                    scan_row("hash of every body, over the network", peer, count, rounds, *body, "one broker process")
                )
            rows.append(
                scan_row("a stream to its end", peer, count, rounds, *streams(spark, root, store, parquet), "noop sink")
            )
            return rows
        finally:
            spark.stop()


def hashed(frame_of: Callable[[], Any]) -> object:
    """A figure of all bodies."""
    from pyspark.sql import functions as f

    return tuple(frame_of().select(f.sum(f.length("body")), f.bit_xor(f.xxhash64("body"))).first())


def scans(
    spark: Any, root: Path, parquet: Path
) -> Iterator[tuple[str, Callable[[], object], Callable[[], object], str]]:
    """Queries over the places that need no process; each is checked to give the peer's answer."""

    def by_tag(frame_of: Callable[[], Any]) -> object:
        return sorted(map(tuple, frame_of().groupBy("tags", "queue_id").count().collect()))

    def count(frame_of: Callable[[], Any]) -> object:
        return frame_of().count()

    lake = partial(spark.read.parquet, str(parquet))
    places: dict[str, dict[str, Any]] = {
        "the store": {"path": root / "store"},
        "the cold tier, flat": {"tier": f"file://{root}/flat"},
        "the cold tier, Parquet": {"tier": f"file://{root}/cold-parquet"},
    }
    queries = (
        ("hash of every body", hashed, ["body"]),
        ("groupBy of tag and queue", by_tag, ["tags", "queue_id"]),
        ("count", count, ["queue_offset"]),
    )
    for place, options in places.items():
        for name, query, columns in queries:
            ours = partial(query, partial(read_store, spark, columns=columns, **options))
            theirs = partial(query, lake)
            assert ours() == theirs(), (place, name)
            yield f"{name}, {place}", ours, theirs, ""


def streams(spark: Any, root: Path, store: Path, parquet: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """A stream over the store, and Spark's own over the Parquet files, both to their ends."""
    number = iter(range(10**6))

    def to_end(frame: Any) -> None:
        at = root / f"at-{next(number)}"
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", str(at)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        shutil.rmtree(at)

    def ours() -> None:
        options = {"path": str(store), "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH_ROWS)}
        to_end(spark.readStream.format("stratamq").options(**options).schema("body binary").load())

    def theirs() -> None:
        schema = spark.read.parquet(str(parquet)).schema
        to_end(spark.readStream.schema(schema).option("maxFilesPerTrigger", "2").parquet(str(parquet)).select("body"))

    return ours, theirs


def write_tier(store: Path, folder: Path, *, joined: bool) -> None:
    """The store's records as segments of a cold tier, as a broker seals them; joined into Parquet where asked for."""
    folder.mkdir()
    backend = PrefixedBackend(FolderBackend(str(folder)), BROKER)
    with StoreSnapshot.open(store) as snapshot:
        for queue in snapshot.queues():
            life = Lifetime(queue.topic, queue.queue_id, 1)
            bounds = [*range(queue.min_offset, queue.max_offset, SEGMENT_MESSAGES), queue.max_offset]
            segments = tuple(_segment(snapshot, backend, life, lo, hi) for lo, hi in pairwise(bounds))
            if joined:
                segments = (join_to_parquet(backend, life, segments, 1, unique_part(2, os.urandom(8)), 1),)
            commits.commit(
                backend,
                Manifest(
                    topic=queue.topic, queue_id=queue.queue_id, incarnation=1, version=0, epoch=1, writer="bench",
                    written_ms=1, start=queue.min_offset, end=queue.max_offset, segments=segments,
                ),
            )  # fmt: skip


def _segment(snapshot: StoreSnapshot, backend: Backend, life: Lifetime, lo: int, hi: int) -> Segment:
    records = []
    for unit in snapshot.units(life.topic, life.queue_id, lo, hi):
        log, at = snapshot.buffer_of(int(unit["physical_offset"]))
        records.append(log[at : at + int(unit["size"])].tobytes())
    builder = SegmentBuilder()
    for at in range(0, len(records), BLOCK_MESSAGES):
        builder.add(make_block(records[at : at + BLOCK_MESSAGES], lo + at, life.topic, path="bench"))
    parts, index_at, index_bytes = builder.finish()
    name = segment_name(life, lo, hi - 1, 1, unique_part(1, os.urandom(8)))
    size = put_checked(backend, name, parts)
    return Segment(
        name=name, format=FLAT, first=lo, last=hi - 1, bytes=size, raw_bytes=sum(map(len, records)), min_ms=0,
        max_ms=2**62, index_name=name, index_at=index_at, index_bytes=index_bytes, sealed_ms=1,
    )  # fmt: skip


@contextlib.contextmanager
def broker_over(store: Path, root: Path) -> Iterator[str]:
    """``stratamq serve`` over the store; the address of its name server."""
    ready = root / "ready.json"
    with StoreSnapshot.open(store) as snapshot:
        topics = Counter(queue.topic for queue in snapshot.queues())
    table = {
        topic: {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        for topic, queues in topics.items()
    }
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    conf = root / "broker.conf"
    conf.write_text(f"mappedFileSizeCommitLog={FILE_BYTES}\nmappedFileSizeConsumeQueue={QUEUE_FILE_BYTES}\n")
    ports = [word for name in ("namesrv", "broker", "http") for word in (f"--{name}-port", "0")]
    command = [sys.executable, "-m", "stratamq.cli.serve", "--data-dir", str(store), "--amqp-port", "-1", *ports]
    command += ["--ready-file", str(ready), "--config", str(conf)]
    with (root / "broker.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        while not (ready.exists() and ready.read_text().strip()):
            assert process.poll() is None, (root / "broker.log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < until, "the broker did not start"
            time.sleep(0.05)
        yield json.loads(ready.read_text())["namesrv"]
    finally:
        process.terminate()
        process.wait(60)
