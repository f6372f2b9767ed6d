"""What is in a cold tier, and whether all of it is good: for commands. Reads the backend alone and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratamq.errors import BackendError, CorruptionError, ObjectMissing
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import FLAT, Manifest, Segment
from stratamq.formats.cold_segment import record_positions
from stratamq.tiered import commits
from stratamq.tiered.backend import Backend
from stratamq.tiered.joining import flat_blocks, read_index

Progress = Callable[[str, int, int], None]


class Totals(NamedTuple):
    """Sums over queues."""

    queues: int
    segments: int
    messages: int
    bytes: int
    raw_bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    gap_messages: int


class Finding(NamedTuple):
    """Something that is not as it should be, where, and what to do about it."""

    severity: str
    """``error``: messages cannot be read. ``remark``: nothing is lost."""
    place: str
    text: str


def total(manifests: list[Manifest]) -> Totals:
    """Sum up."""
    segments = [segment for manifest in manifests for segment in manifest.segments]
    return Totals(
        len(manifests),
        len(segments),
        sum(segment.count for segment in segments),
        sum(segment.bytes for segment in segments),
        sum(segment.raw_bytes for segment in segments),
        min((segment.min_ms for segment in segments), default=None),
        max((segment.max_ms for segment in segments), default=None),
        sum(gap.last - gap.first + 1 for manifest in manifests for gap in manifest.gaps),
    )


def newest_epoch(backend: Backend) -> int:
    """The highest epoch that was claimed; 0 when none was."""
    found = [names.parse_epoch_name(entry.name) for entry in backend.list(names.EPOCHS)]
    return max((epoch for epoch in found if epoch is not None), default=0)


def check(
    backend: Backend, everything: commits.Everything, *, deep: bool, progress: Progress | None = None
) -> Iterator[Finding]:
    """Look for damage: each object that a manifest names is there and has its length; its index is good and fits.

    With ``deep`` every record is read and compared with its checksum. Blocks; costs a listing and two requests a
    segment, or reading everything.
    """
    for (topic, queue_id), error in sorted(everything.broken.items()):
        yield Finding("error", f"{topic}/{queue_id}", f"its newest manifest cannot be read: {error}")
    sizes = {entry.name: entry.size for entry in [*backend.list(names.SEGMENTS), *backend.list(names.LAKE)]}
    rows = [(manifest, segment) for manifest in everything.manifests for segment in manifest.segments]
    for number, (manifest, segment) in enumerate(rows):
        if progress is not None:
            progress("checking segments", number, len(rows))
        size = sizes.get(segment.name)
        if size is None:
            size = backend.size(segment.name)
        if size is None:
            yield Finding("error", segment.name, _lost(manifest, segment, "the object is missing"))
        elif size != segment.bytes:
            text = f"the object has {size} bytes, the manifest says {segment.bytes}"
            yield Finding("error", segment.name, _lost(manifest, segment, text))
        else:
            try:
                _check_segment(backend, manifest, segment, deep=deep)
            except (CorruptionError, ObjectMissing, BackendError) as error:
                yield Finding("error", segment.name, _lost(manifest, segment, str(error)))
    for manifest in everything.manifests:
        for gap in manifest.gaps:
            place = f"{manifest.topic}/{manifest.queue_id}"
            yield Finding("remark", place, f"offsets {gap.first} to {gap.last} were never uploaded: {gap.reason}")


def _lost(manifest: Manifest, segment: Segment, text: str) -> str:
    return f"offsets {segment.first} to {segment.last} of {manifest.topic}/{manifest.queue_id}: {text}"


def _check_segment(backend: Backend, manifest: Manifest, segment: Segment, *, deep: bool) -> None:
    index = read_index(backend, segment)
    if index.raw_bytes != segment.raw_bytes:
        raise CorruptionError(segment.index_name, segment.index_at, segment.raw_bytes, index.raw_bytes)
    if not deep:
        return
    if segment.format == FLAT:
        at = segment.first
        for _, block in flat_blocks(backend.read(segment.name), segment):
            if len(record_positions(block.data)) != block.messages or block.first != at:
                raise CorruptionError(segment.name, 0, f"{block.messages} records", "another number")
            at += block.messages
        return
    from stratamq.tiered.parquet import read_groups

    for _ in read_groups(backend, segment, index, range(len(index.blocks))):
        pass  # reading compares checksums
