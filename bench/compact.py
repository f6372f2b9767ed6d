"""Joining small messages into Parquet, as a task of `stratamq pipeline compact` does it, against pyarrow alone.

The messages are those of `bench.scale`: 128 B of JSON, a key and a tag. Ours takes flat segments of one queue out of a
folder, decompresses them, takes the records apart, writes Parquet and its index durably, reads what it wrote back and
compares it. The peer already has the same rows as an Arrow table in memory and writes them to a file that it syncs,
with the same compression and columns. So a ratio of 1 would mean that all else is free.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench import scale
from bench.rows import Missing, Row, pairs
from stratamq.config import TieredConfig
from stratamq.formats.cold_manifest import Segment
from stratamq.pipeline.jobs import compact
from stratamq.pipeline.jobs.compact import JoinTask, Tier
from stratamq.tiered import commits
from stratamq.tiered.backend import Backend
from stratamq.units import MiB

LOG_BYTES = 256 * MiB


def run(rounds: int) -> list[Row | Missing]:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-compact-") as folder:
        return [_run(Path(folder), rounds)]


def _run(folder: Path, rounds: int) -> Row:
    scale.write(folder / "store", LOG_BYTES)
    scale.upload(folder / "store", folder / "tier")
    tier = Tier(TieredConfig(url=f"file://{folder / 'tier'}"), scale.BROKER)
    backend = tier.open()
    manifest, join = compact.plan(commits.find_all(backend).manifests, tier.policy, 2**62, eager=True)[0]
    size = sum(segment.raw_bytes for segment in join.segments) / MiB
    made = 0

    def make() -> Segment:
        nonlocal made
        made += 1
        task = JoinTask(tier, manifest.life, join, manifest.epoch, f"u{made}", 1)
        return _segment(compact.make(task))

    def ours() -> float:
        began = time.perf_counter()
        new = make()
        rate = size / (time.perf_counter() - began)
        _delete(backend, new)
        return rate

    kept = make()
    rows = pq.read_table(pa.BufferReader(backend.read(kept.name)))
    _delete(backend, kept)

    def theirs() -> float:
        path = folder / "plain.parquet"
        began = time.perf_counter()
        with path.open("wb") as file:
            pq.write_table(rows, file, compression="zstd", compression_level=3, use_dictionary=["topic", "tags"])
            file.flush()
            os.fsync(file.fileno())
        return size / (time.perf_counter() - began)

    mine, peers = pairs(ours, theirs, rounds=rounds)
    backend.close()
    note = f"{kept.bytes / MiB:.1f} of {size:.1f} MiB are stored"
    return Row(
        job="join small messages into Parquet, read back", peer="pyarrow, writing the same table", unit="MiB/s",
        ours=mine, theirs=peers, note=note,
    )  # fmt: skip


def _segment(answer: object) -> Segment:
    import msgspec

    return msgspec.convert(answer, Segment)


def _delete(backend: Backend, segment: Segment) -> None:
    backend.delete(segment.name)
    backend.delete(segment.index_name)
