"""Reading one queue of the cold tier by offset, time and key: functions of a manifest and of what gives out blocks.

The blocks come from memory alone (`cache.HeldBlocks`, which raises Missing) or are fetched (`cache.FetchedBlocks`,
which waits for them); the functions are the same. Time and keys are searched without believing that store times
ascend: a segment or block is looked at when its range of times overlaps, never by where it begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from stratamq.formats.cold_manifest import Manifest, Segment
from stratamq.formats.cold_segment import SegmentIndex
from stratamq.formats.java import index_key_hash, tags_code
from stratamq.formats.message import SYS_BORN_HOST_V6, properties_text
from stratamq.formats.properties import KEYS, TAGS, UNIQ_KEY, find_property, split_keys
from stratamq.logstore.types import GetResult, GetStatus, RecordFilter
from stratamq.tiered.cache import Block, Missing

SCANNED_MAX: Final = 4_000
"""Messages looked at by one read that filters."""
AHEAD_MAX: Final = 64
"""Segments behind the one that is read which may come with it."""


class Blocks(Protocol):
    """Gives out indexes and blocks."""

    def index(self, segment: Segment) -> SegmentIndex:
        """A segment's index."""
        ...

    def block(self, segment: Segment, index: SegmentIndex, number: int, ahead: Sequence[Segment] = ()) -> Block:
        """A block of a segment."""
        ...


class Wanted(NamedTuple):
    """What a read of a queue is after."""

    offset: int
    messages_max: int
    bytes_max: int
    tags_codes: frozenset[int] | None = None
    matching: RecordFilter | None = None


@dataclass(slots=True)
class _Run:
    """What one read has found so far: views of records, adjacent ones joined."""

    wanted: Wanted
    at: int
    records: list[memoryview]
    count: int = 0
    total: int = 0
    scanned: int = 0
    is_full: bool = False

    def take_from(self, block: Block) -> None:
        """Go through a block from where the read is."""
        view = memoryview(block.data)
        wanted, positions = self.wanted, block.positions
        begin = -1
        row = self.at - block.first
        last = len(positions) - 1
        while row < last:
            start, end = positions[row], positions[row + 1]
            fits = self.count < wanted.messages_max and (not self.count or self.total + end - start <= wanted.bytes_max)
            if not fits or self.scanned >= SCANNED_MAX:
                self.is_full = True
                break
            if self._matches(view[start:end]):
                begin = start if begin < 0 else begin
                self.count += 1
                self.total += end - start
            elif begin >= 0:
                self.records.append(view[begin:start])
                begin = -1
            row += 1
        if begin >= 0:
            self.records.append(view[begin : positions[row]])
        self.at = block.first + row

    def result(self, manifest: Manifest) -> GetResult:
        """What was found, as the answer of a read."""
        status = GetStatus.FOUND if self.count else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, self.at, manifest.start, manifest.end, self.records, self.count, self.total)

    def _matches(self, record: memoryview) -> bool:
        wanted = self.wanted
        if wanted.tags_codes is None and wanted.matching is None:
            return True
        self.scanned += 1
        properties = properties_text(record)
        if wanted.matching is not None:
            return wanted.matching.matches(properties)
        return wanted.tags_codes is None or tags_code(find_property(properties, TAGS) or "") in wanted.tags_codes


def has_messages(manifest: Manifest) -> bool:
    """Whether the tier can give out anything of a queue."""
    return bool(manifest.segments)


def segment_at(manifest: Manifest, offset: int) -> int:
    """Number of the segment that holds an offset or, in a gap, of the next one; how many there are when none does."""
    at = bisect_right(manifest.segments, offset, key=lambda segment: segment.first) - 1
    if at >= 0 and manifest.segments[at].last >= offset:
        return at
    return at + 1


def read(manifest: Manifest, wanted: Wanted, blocks: Blocks) -> GetResult:
    """Read from an offset in [start, end) on. With blocks from memory Missing is raised only when nothing was found.

    ``min_offset`` and ``max_offset`` of the answer are those of the tier.
    """
    segments = manifest.segments
    number = segment_at(manifest, wanted.offset)
    if number == len(segments):
        return GetResult(GetStatus.MESSAGE_WAS_REMOVING, manifest.end, manifest.start, manifest.end)
    if segments[number].first > wanted.offset:
        return GetResult(GetStatus.MESSAGE_WAS_REMOVING, segments[number].first, manifest.start, manifest.end)
    run = _Run(wanted, wanted.offset, [])
    while not run.is_full and number < len(segments) and run.at >= segments[number].first:
        try:
            _read_segment(segments, number, run, blocks)
        except Missing:
            if run.at == wanted.offset:
                raise
            break
        number += 1
    return run.result(manifest)


def block_at(manifest: Manifest, offset: int, blocks: Blocks) -> Block | None:
    """The block that holds an offset; None when the tier has no such offset."""
    number = segment_at(manifest, offset)
    if number == len(manifest.segments) or manifest.segments[number].first > offset:
        return None
    segment = manifest.segments[number]
    index = blocks.index(segment)
    return blocks.block(segment, index, index.block_of(offset), manifest.segments[number + 1 : number + 1 + AHEAD_MAX])


def read_within(manifest: Manifest, wanted: Wanted, block: Block) -> GetResult:
    """Read from an offset on, no further than the block goes that holds it."""
    run = _Run(wanted, wanted.offset, [])
    run.take_from(block)
    return run.result(manifest)


def _read_segment(segments: Sequence[Segment], number: int, run: _Run, blocks: Blocks) -> None:
    segment = segments[number]
    index = blocks.index(segment)
    at = index.block_of(run.at)
    while not run.is_full and at < len(index.blocks):
        ahead = segments[number + 1 : number + 1 + AHEAD_MAX]
        run.take_from(blocks.block(segment, index, at, ahead))
        at += 1


# --- time -----------------------------------------------------------------------------------------------------------


def first_at_or_after(manifest: Manifest, ms: int, blocks: Blocks, *, below: int) -> int | None:
    """The first offset below ``below`` stored at or after a time; None when there is none. One or two reads."""
    for segment in manifest.segments:
        if segment.first >= below:
            return None
        if segment.max_ms < ms:
            continue
        index = blocks.index(segment)
        for number in range(len(index.blocks)):
            if int(index.blocks["max_ms"][number]) >= ms:
                block = blocks.block(segment, index, number)
                for row in range(len(block.positions) - 1):
                    if store_ms(block, row) >= ms:
                        return block.first + row if block.first + row < below else None
    return None


def last_at_or_before(manifest: Manifest, ms: int, blocks: Blocks, *, below: int) -> int | None:
    """The last offset below ``below`` stored at or before a time; None when there is none. One or two reads."""
    for segment in reversed(manifest.segments):
        if segment.min_ms > ms or segment.first >= below:
            continue
        index = blocks.index(segment)
        for number in reversed(range(len(index.blocks))):
            if int(index.blocks["min_ms"][number]) > ms or int(index.blocks["first"][number]) >= below:
                continue
            block = blocks.block(segment, index, number)
            for row in reversed(range(len(block.positions) - 1)):
                if block.first + row < below and store_ms(block, row) <= ms:
                    return block.first + row
    return None


def store_ms(block: Block, row: int) -> int:
    """Store time of a record of a block."""
    start = block.positions[row]
    at = start + (68 if block.data[start + 39] & SYS_BORN_HOST_V6 else 56)
    return int.from_bytes(block.data[at : at + 8], "big", signed=True)


# --- keys -----------------------------------------------------------------------------------------------------------


def find_by_key(
    manifest: Manifest, key: str, limit: int, begin_ms: int, end_ms: int, blocks: Blocks, *, below: int
) -> list[tuple[int, int, bytes]]:
    """Store time, offset and record of the newest messages below ``below`` with a key, stored in [begin_ms, end_ms].

    Costs one read for each segment whose times overlap, and one for each block that has a hit.
    """
    wanted = index_key_hash(manifest.topic, key)
    found: list[tuple[int, int, bytes]] = []
    for segment in reversed(manifest.segments):
        if len(found) >= limit:
            break
        if segment.max_ms < begin_ms or segment.min_ms > end_ms or segment.first >= below:
            continue
        index = blocks.index(segment)
        if not index.may_have(wanted):
            continue
        for offset in reversed(index.offsets_of(wanted)):
            if offset >= below or len(found) >= limit:
                continue
            block = blocks.block(segment, index, index.block_of(offset))
            row = offset - block.first
            stored = store_ms(block, row)
            record = block.data[block.positions[row] : block.positions[row + 1]]
            if begin_ms <= stored <= end_ms and has_key(properties_text(record), key):
                found.append((stored, offset, record))
    return found


def has_key(properties: str, key: str) -> bool:
    """Whether a message has a key, as UNIQ_KEY or as one of KEYS."""
    if find_property(properties, UNIQ_KEY) == key:
        return True
    keys = find_property(properties, KEYS)
    return keys is not None and key in split_keys(keys)
