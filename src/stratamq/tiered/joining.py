"""Joining segments: many small ones become one, flat or Parquet. The three functions that a Spark job uses as well:

* `planning.plan_join` says which segments of a manifest to join, and into what;
* `Joiner.join` makes the new segment of the old ones, a function of their bytes, and puts it;
* `commit_join` swaps it in, by one commit that either happens whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from stratamq.errors import CorruptionError, TierError
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import FLAT, PARQUET, Manifest, Segment
from stratamq.formats.cold_names import Lifetime
from stratamq.formats.cold_segment import (
    RawBlock,
    SegmentBuilder,
    SegmentIndex,
    check_head,
    decode_block,
    decode_index,
)
from stratamq.tiered import commits, planning
from stratamq.tiered.backend import Backend, put_checked
from stratamq.tiered.planning import Join, Writer

COMMITS_MAX = 20
"""How often a swap is tried again when the owner has committed something else meanwhile."""


def target_format(wanted: str) -> str:
    """What joined segments are: ``wanted``, or with "auto" Parquet where pyarrow can be imported."""
    if wanted == PARQUET or (wanted == "auto" and find_spec("pyarrow") is not None):
        return PARQUET
    return FLAT


class Joiner:
    """Makes one segment of several."""

    def __init__(self, wanted: str = "auto") -> None:
        self.target = target_format(wanted)

    def join(self, backend: Backend, life: Lifetime, plan: Join, epoch: int, unique: str, made_ms: int) -> Segment:
        """Read the segments of a plan, put one that holds the same records, and return what the manifest says of it.

        Blocks, and holds the compressed segments in memory. Raises CorruptionError when one of them is damaged.
        """
        if plan.format == PARQUET:
            from stratamq.tiered.parquet import join_to_parquet

            return join_to_parquet(backend, life, plan.segments, epoch, unique, made_ms)
        return join_flat(backend, life, plan.segments, epoch, unique, made_ms)


def read_index(backend: Backend, segment: Segment) -> SegmentIndex:
    """The index of a segment: one range read."""
    data = backend.read(segment.index_name, segment.index_at, segment.index_bytes)
    index = decode_index(data, path=segment.index_name, at=segment.index_at)
    if (index.first, index.last) != (segment.first, segment.last):
        raise CorruptionError(
            segment.index_name,
            segment.index_at,
            f"offsets {segment.first} to {segment.last}",
            f"{index.first} to {index.last}",
        )
    return index


def flat_blocks(data: bytes, segment: Segment) -> Iterator[tuple[bytes, RawBlock]]:
    """The blocks of a whole flat segment: compressed as they are stored, and with their records checked and raw."""
    check_head(data, path=segment.name)
    tail = data[segment.index_at : segment.index_at + segment.index_bytes]
    index = decode_index(tail, path=segment.name, at=segment.index_at)
    order = np.argsort(index.keys["row"], kind="stable")
    rows = index.keys["row"][order]
    for number, row in enumerate(index.blocks):
        at = int(row["position"])
        stored = data[at : at + int(row["stored_bytes"])]
        raw = decode_block(stored, index, number, path=segment.name)
        first, messages = int(row["first"]), int(row["count"])
        begin, end = np.searchsorted(rows, (first - index.first, first - index.first + messages))
        keys = index.keys[order[begin:end]]
        times = int(row["min_ms"]), int(row["max_ms"])
        key_rows = (keys["row"] - np.uint32(first - index.first)).astype(np.uint32)
        yield stored, RawBlock(raw, first, messages, *times, keys["hash"].astype(np.uint32), key_rows)


def join_flat(
    backend: Backend, life: Lifetime, segments: tuple[Segment, ...], epoch: int, unique: str, made_ms: int
) -> Segment:
    """One flat segment of several: the compressed blocks go over as they are."""
    builder = SegmentBuilder()
    for segment in segments:
        for stored, block in flat_blocks(backend.read(segment.name), segment):
            builder.add_stored(stored, block)
    parts, index_at, index_bytes = builder.finish()
    first, last = segments[0].first, segments[-1].last
    name = names.segment_name(life, first, last, epoch, unique)
    size = put_checked(backend, name, parts)
    return Segment(
        name=name,
        format=FLAT,
        first=first,
        last=last,
        bytes=size,
        raw_bytes=sum(segment.raw_bytes for segment in segments),
        min_ms=min(segment.min_ms for segment in segments),
        max_ms=max(segment.max_ms for segment in segments),
        index_name=name,
        index_at=index_at,
        index_bytes=index_bytes,
        sealed_ms=made_ms,
    )


def commit_join(
    backend: Backend, life: Lifetime, old: tuple[Segment, ...], new: Segment, *, name: str, now_ms: int, grace_ms: int
) -> Manifest:
    """Swap segments for one that holds the same records, on behalf of the queue's owner, who goes on from there.

    ``name`` says who does it. Tried again when the owner commits meanwhile. Blocks.

    Raises TierError when the old segments are not in the newest manifest (any more): then ``new`` is litter.
    """
    head = commits.find_head(backend, life.topic, life.queue_id, None).manifest
    for _ in range(COMMITS_MAX):
        if head is None or head.life != life:
            break
        after = planning.swapped(head, old, new, Writer(head.epoch, name), now_ms, grace_ms)
        if after is None:
            break
        try:
            commits.commit(backend, after)
        except commits.Conflict as conflict:
            head = conflict.found
            continue
        return after
    raise TierError(f"the segments of {life} that were joined are not in its newest manifest any more")
