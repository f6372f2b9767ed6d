"""A cold tier made of a store's own records, segment by segment, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from stratamq.config import TieredConfig
from stratamq.formats.cold_manifest import FLAT, PARQUET, Gap, Manifest, Segment
from stratamq.formats.cold_names import Lifetime, escape_topic, segment_name, unique_part
from stratamq.formats.cold_segment import SegmentBuilder, make_block
from stratamq.formats.vector import byte_view
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import QueueKey
from stratamq.tiered import commits
from stratamq.tiered.backend import Backend, PrefixedBackend, open_backend, put_checked
from stratamq.tiered.parquet import join_to_parquet

BLOCK_ROWS = 7


class ColdStore:
    """Seals ranges of a store's queues into a folder that the source reads as ``file://FOLDER``, or elsewhere."""

    def __init__(self, store: Path, folder: Path | TieredConfig) -> None:
        if isinstance(folder, Path):
            folder.mkdir(exist_ok=True)
            folder = TieredConfig(url=f"file://{folder}")
        self.url = folder.url
        self.backend: Backend = PrefixedBackend(open_backend(folder), escape_topic("broker-a"))
        self._store = store
        self._made = 0

    def seal(self, key: QueueKey, bounds: Sequence[int], *, format: str = FLAT, gaps: Sequence[int] = ()) -> Manifest:
        """Commit segments between bounds, behind those that are there. ``gaps``: numbers of those left out."""
        life = Lifetime(*key, 1)
        head = commits.find_head(self.backend, *key, None).manifest
        new = [
            self._segment(life, a, b, format) for number, (a, b) in enumerate(pairwise(bounds)) if number not in gaps
        ]
        return self._commit(life, head, (*(head.segments if head else ()), *new), bounds[-1])

    def join(self, key: QueueKey) -> tuple[Segment, ...]:
        """Swap all segments for one of Parquet. Returns the old ones, whose objects are still there."""
        life = Lifetime(*key, 1)
        head = commits.find_head(self.backend, *key, None).manifest
        assert head is not None
        joined = join_to_parquet(self.backend, life, head.segments, 1, self._unique(), 1)
        self._commit(life, head, (joined,), head.end)
        return head.segments

    def _segment(self, life: Lifetime, lo: int, hi: int, format: str) -> Segment:
        builder = SegmentBuilder()
        records = self._records(QueueKey(life.topic, life.queue_id), lo, hi)
        for at in range(0, len(records), BLOCK_ROWS):
            builder.add(make_block(records[at : at + BLOCK_ROWS], lo + at, life.topic, path="test"))
        parts, index_at, index_bytes = builder.finish()
        name = segment_name(life, lo, hi - 1, 1, self._unique())
        size = put_checked(self.backend, name, parts)
        times = [int.from_bytes(record[56:64], "big") for record in records]
        flat = Segment(
            name=name, format=FLAT, first=lo, last=hi - 1, bytes=size, raw_bytes=sum(map(len, records)),
            min_ms=min(times), max_ms=max(times), index_name=name, index_at=index_at, index_bytes=index_bytes,
            sealed_ms=1,
        )  # fmt: skip
        if format == PARQUET:
            return join_to_parquet(self.backend, life, (flat,), 1, self._unique(), 1)
        return flat

    def _records(self, key: QueueKey, lo: int, hi: int) -> list[bytes]:
        with StoreSnapshot.open(self._store) as snapshot:
            found = []
            for unit in snapshot.units(*key, lo, hi):
                log, at = snapshot.buffer_of(int(unit["physical_offset"]))
                found.append(bytes(byte_view(log)[at : at + int(unit["size"])]))
            return found

    def _commit(self, life: Lifetime, head: Manifest | None, segments: Sequence[Segment], end: int) -> Manifest:
        start = min(one.first for one in segments)
        gaps, at = [], start
        for one in segments:
            if one.first > at:
                gaps.append(Gap(first=at, last=one.first - 1, noted_ms=1, reason="test"))
            at = one.last + 1
        manifest = Manifest(
            topic=life.topic, queue_id=life.queue_id, incarnation=1, version=0 if head is None else head.version + 1,
            epoch=1, writer="test", written_ms=1, start=start, end=end, segments=tuple(segments), gaps=tuple(gaps),
        )  # fmt: skip
        commits.commit(self.backend, manifest)
        return manifest

    def _unique(self) -> str:
        self._made += 1
        return unique_part(1, self._made.to_bytes(8, "big"))
