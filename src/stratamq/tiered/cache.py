"""Blocks and indexes of cold segments in memory, the least recently used of which go when there are too many bytes.

A block is fetched once, however many threads want it at the same time; with it come the blocks behind it, because who
reads a queue reads on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeVar

from stratamq.formats.cold_manifest import FLAT, Segment
from stratamq.formats.cold_segment import SegmentIndex, check_head, decode_block, decode_index, record_positions
from stratamq.tiered.backend import Backend
from stratamq.tiered.joining import read_index

INDEX: Final = -1
"""Number under which a segment's index is kept."""
_INDEX_OVERHEAD: Final = 500
_T = TypeVar("_T")


class Block(NamedTuple):
    """Records of a block, and where they begin; one more position than there are records."""

    first: int
    data: bytes
    positions: list[int]


class Missing(Exception):
    """What is asked for is not in memory. No error: it says that somebody has to wait."""


class BlockCache:
    """Bounded by bytes; may be used from several threads."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int], tuple[Block | SegmentIndex, int]] = OrderedDict()
        self._flights: dict[tuple[str, int], Future[None]] = {}

    def get(self, name: str, number: int) -> Block | SegmentIndex | None:
        """A block, or with `INDEX` an index; None when it is not here."""
        with self._lock:
            held = self._held.get((name, number))
            if held is None:
                self.misses += 1
                return None
            self.hits += 1
            self._held.move_to_end((name, number))
            return held[0]

    def put(self, name: str, number: int, value: Block | SegmentIndex) -> None:
        """Keep something. What was not used longest goes for it, but never the newest itself."""
        if isinstance(value, Block):
            size = len(value.data) + 36 * len(value.positions)
        else:
            size = value.keys.nbytes + value.blocks.nbytes + len(value.filter) + _INDEX_OVERHEAD
        with self._lock:
            old = self._held.pop((name, number), None)
            self.bytes += size - (old[1] if old is not None else 0)
            self._held[name, number] = (value, size)
            while self.bytes > self.bytes_max and len(self._held) > 1:
                _, (_, gone) = self._held.popitem(last=False)
                self.bytes -= gone

    def once(self, name: str, number: int, work: Callable[[], _T], found: Callable[[], _T | None]) -> _T:
        """Do ``work`` unless somebody is doing it already; then wait for them and look with ``found``."""
        mine: Future[None] = Future()
        while True:
            with self._lock:
                flight = self._flights.setdefault((name, number), mine)
            if flight is mine:
                break
            flight.result()
            there = found()
            if there is not None:
                return there
        try:
            return work()
        finally:
            with self._lock:
                del self._flights[name, number]
            mine.set_result(None)


class HeldBlocks:
    """What is in memory, and nothing else; for the thread that must not wait."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache

    def index(self, segment: Segment) -> SegmentIndex:
        """A segment's index. Raises Missing."""
        found = self._cache.get(segment.index_name, INDEX)
        if not isinstance(found, SegmentIndex):
            raise Missing
        return found

    def block(self, segment: Segment, index: SegmentIndex, number: int, ahead: Sequence[Segment] = ()) -> Block:
        """A block. Raises Missing."""
        found = self._cache.get(segment.name, number)
        if not isinstance(found, Block):
            raise Missing
        return found


class FetchedBlocks:
    """Fetches what is not in memory. Every call may block. Raises BackendError, ObjectMissing, CorruptionError."""

    def __init__(self, cache: BlockCache, backend: Backend, read_ahead_bytes: int) -> None:
        self._cache = cache
        self._held = HeldBlocks(cache)
        self._backend = backend
        self._ahead_bytes = read_ahead_bytes
        self.fetches = 0
        self.fetched_bytes = 0

    def index(self, segment: Segment) -> SegmentIndex:
        """A segment's index."""
        return self._cache.once(
            segment.index_name,
            INDEX,
            lambda: self._held_index(segment) or self._fetch_index(segment),
            lambda: self._held_index(segment),
        )

    def block(self, segment: Segment, index: SegmentIndex, number: int, ahead: Sequence[Segment] = ()) -> Block:
        """A block. With it come those behind it, and ``ahead``, the small segments behind, as far as the settings
        say."""
        return self._cache.once(
            segment.name,
            number,
            lambda: self._held_block(segment, index, number) or self._fetch_block(segment, index, number, ahead),
            lambda: self._held_block(segment, index, number),
        )

    def whole(self, segment: Segment) -> None:
        """Fetch a small flat segment, index and blocks, by one read."""
        data = self._backend.read(segment.name)
        self._count(len(data))
        check_head(data, path=segment.name)
        tail = data[segment.index_at : segment.index_at + segment.index_bytes]
        index = decode_index(tail, path=segment.name, at=segment.index_at)
        for number, row in reversed(list(enumerate(index.blocks))):
            at = int(row["position"])
            stored = data[at : at + int(row["stored_bytes"])]
            raw = decode_block(stored, index, number, path=segment.name)
            self._cache.put(segment.name, number, _block(index, number, raw))
        self._cache.put(segment.index_name, INDEX, index)

    def _held_index(self, segment: Segment) -> SegmentIndex | None:
        try:
            return self._held.index(segment)
        except Missing:
            return None

    def _held_block(self, segment: Segment, index: SegmentIndex, number: int) -> Block | None:
        try:
            return self._held.block(segment, index, number)
        except Missing:
            return None

    def _fetch_index(self, segment: Segment) -> SegmentIndex:
        index = read_index(self._backend, segment)
        self._count(segment.index_bytes)
        self._cache.put(segment.index_name, INDEX, index)
        return index

    def _fetch_block(self, segment: Segment, index: SegmentIndex, number: int, ahead: Sequence[Segment]) -> Block:
        numbers = [number]
        size = int(index.blocks["stored_bytes"][number])
        while numbers[-1] + 1 < len(index.blocks):
            size += int(index.blocks["stored_bytes"][numbers[-1] + 1])
            if size > self._ahead_bytes:
                break
            numbers.append(numbers[-1] + 1)
        raws = self._read(segment, index, numbers)
        if numbers[-1] + 1 == len(index.blocks):
            self._fetch_ahead(ahead, self._ahead_bytes - size)
        for at, raw in reversed(list(zip(numbers, raws, strict=True))):  # the wanted one last: it stays longest
            self._cache.put(segment.name, at, _block(index, at, raw))
        return _block(index, number, raws[0])

    def _read(self, segment: Segment, index: SegmentIndex, numbers: Sequence[int]) -> list[bytes]:
        if segment.format != FLAT:
            from stratamq.tiered.parquet import read_groups

            raws = list(read_groups(self._backend, segment, index, numbers))
            self._count(sum(int(index.blocks["stored_bytes"][number]) for number in numbers))
            return raws
        first, last = index.blocks[numbers[0]], index.blocks[numbers[-1]]
        start = int(first["position"])
        data = self._backend.read(segment.name, start, int(last["position"]) + int(last["stored_bytes"]) - start)
        self._count(len(data))
        raws = []
        for number in numbers:
            at = int(index.blocks["position"][number]) - start
            stored = data[at : at + int(index.blocks["stored_bytes"][number])]
            raws.append(decode_block(stored, index, number, path=segment.name))
        return raws

    def _fetch_ahead(self, ahead: Sequence[Segment], room: int) -> None:
        for segment in ahead:
            room -= segment.bytes
            if room < 0 or segment.format != FLAT:
                return
            if self._cache.get(segment.index_name, INDEX) is None:
                self.whole(segment)

    def _count(self, size: int) -> None:
        self.fetches += 1
        self.fetched_bytes += size


def _block(index: SegmentIndex, number: int, raw: bytes) -> Block:
    return Block(int(index.blocks["first"][number]), raw, [*record_positions(raw).tolist(), len(raw)])
