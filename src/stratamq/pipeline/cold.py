"""Ranges of a queue out of the cold tier, as the same Arrow batches that the local files give.

A task gets its segments with its range; a manifest is only asked for again where an object is gone, because segments
are joined while a query runs. Flat segments go through the reader of logs, block by block. Of Parquet ones only the
columns that are wanted are read; the records are not put together again. Asked for topic, queue and offset alone,
nothing is fetched: the manifest knows them.

Memory: some row groups or blocks at a time, `STEP_BYTES` of records.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stratamq.config import TieredConfig
from stratamq.errors import CorruptionError, PipelineError, QueueNotFound
from stratamq.formats import cold_names as names
from stratamq.formats.arrow import DECOMPRESSED_BATCH_BYTES_MAX, SCHEMA, DecompressionFailed, decompress_body, schema_of
from stratamq.formats.cold_manifest import FLAT, Manifest, Segment
from stratamq.formats.cold_segment import decode_block, record_positions
from stratamq.formats.message import SYS_COMPRESSED, SYS_COMPRESSION_MASK, decode_host
from stratamq.logstore.snapshot import QueueRange
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.pulling import Run, batch_of, grouped
from stratamq.pipeline.reader import BATCH_ROWS, QueueSpan, Split
from stratamq.tiered import commits, reading
from stratamq.tiered.backend import Backend, PrefixedBackend, open_backend
from stratamq.tiered.cache import BlockCache, FetchedBlocks
from stratamq.tiered.joining import read_index
from stratamq.tiered.parquet import NOT_PARQUET, open_segment
from stratamq.units import MiB

STEP_BYTES: Final = 16 * MiB
SEARCH_BYTES: Final = 16 * MiB
"""Memory for the blocks that a search by time looks at."""
BROKER_DEFAULT: Final = "broker-a"
NUMBERED: Final = frozenset({"topic", "queue_id", "queue_offset"})
"""Columns that a manifest knows."""
HINTS_MAX: Final = 10_000
_hints: Final[dict[tuple[str, QueueKey], Manifest]] = {}
"""Manifests that were the newest once: looking for a newer one begins there. One a queue that was planned here."""


def open_tier(options: ReadOptions) -> Backend:
    """The tier that the options name, at the broker's part. Asks it nothing yet. Raises ConfigError, PipelineError."""
    policy = TieredConfig(url=options.tier, endpoint=options.tier_endpoint, region=options.tier_region)
    try:
        inner = open_backend(policy)
    except ModuleNotFoundError as error:
        raise PipelineError(f"{options.tier} needs the extra cloud: pip install 'stratamq[cloud]'") from error
    return PrefixedBackend(inner, names.escape_topic(options.broker or BROKER_DEFAULT))


def newest(backend: Backend, key: QueueKey) -> Manifest | None:
    """The newest manifest of a queue; None when it has none in the tier. A few requests."""
    at = (backend.address, key)
    head = commits.find_head(backend, *key, _hints.get(at)).manifest
    if head is not None:
        if len(_hints) >= HINTS_MAX:
            _hints.clear()
        _hints[at] = head
    return head


class TierOrigin:
    """A cold tier to plan a read of."""

    def __init__(self, options: ReadOptions, backend: Backend | None = None) -> None:
        self.options = options
        self.place = options.tier
        self.backend = backend or open_tier(options)
        self._manifests: dict[QueueKey, Manifest | None] = {}
        self._blocks = FetchedBlocks(BlockCache(SEARCH_BYTES), self.backend, 0)

    def close(self) -> None:
        """Let go of the backend."""
        self.backend.close()

    def keys(self) -> list[QueueKey]:
        """The queues of the topics that the options want. One listing a topic, or one of everything."""
        options = self.options
        found: set[QueueKey] = set()
        folders = [names.MANIFESTS]
        if options.topics is not None:
            folders = [f"{names.MANIFESTS}{names.escape_topic(topic)}/" for topic in sorted(options.topics)]
        for folder in folders:
            for entry in self.backend.list(folder):
                row = names.parse_manifest_name(entry.name)
                if row is not None and options.wants_topic(row.life.topic):
                    found.add(QueueKey(row.life.topic, row.life.queue_id))
        return sorted(key for key in found if self.manifest(key) is not None)

    def manifest(self, key: QueueKey) -> Manifest | None:
        """A queue's manifest, the same at every question."""
        if key not in self._manifests:
            self._manifests[key] = newest(self.backend, key)
        return self._manifests[key]

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """The range of one queue. Raises QueueNotFound."""
        manifest = self.manifest(QueueKey(topic, queue_id))
        if manifest is None:
            raise QueueNotFound(f"{self.place} has no queue {queue_id} of topic {topic}")
        return QueueRange(topic, queue_id, manifest.start, manifest.end)

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """Offset of the first record stored at or after a time; the queue's end when there is none."""
        manifest = self.manifest(QueueKey(topic, queue_id))
        if manifest is None:
            raise QueueNotFound(f"{self.place} has no queue {queue_id} of topic {topic}")
        found = reading.first_at_or_after(manifest, ms, self._blocks, below=manifest.end)
        return manifest.end if found is None else found

    def splits(self, spans: Sequence[QueueSpan], *, bytes_per_split: int) -> list[Split]:
        """Cut spans at segments, joining small ones up to ``bytes_per_split`` and cutting large ones."""
        found: list[Split] = []
        for topic, queue_id, lo, hi in spans:
            manifest = self.manifest(QueueKey(topic, queue_id))
            segments = () if manifest is None else manifest.segments
            found.extend(cut_span(QueueSpan(topic, queue_id, lo, hi), segments, bytes_per_split))
        return found


def cut_span(span: QueueSpan, segments: Sequence[Segment], bytes_per_split: int) -> list[Split]:
    """Splits of a span, tiling it. What no segment holds is in a split all the same: who reads it finds out. Pure."""
    topic, queue_id, lo, hi = span
    within = [one for one in segments if one.last >= lo and one.first < hi]
    cuts, held = [lo], 0.0
    for segment in within:
        begin, stop = max(lo, segment.first), min(hi, segment.last + 1)
        size = segment.raw_bytes * (stop - begin) / segment.count
        pieces = min(stop - begin, max(1, round(size / bytes_per_split)))
        if held and held + size > bytes_per_split:
            cuts.append(begin)
            held = 0.0
        cuts.extend(begin + (stop - begin) * number // pieces for number in range(1, pieces))
        held = held + size if pieces == 1 else size / pieces
    bounds = sorted({*cuts, hi})
    found: list[Split] = []
    for a, b in itertools.pairwise(bounds):
        mine = tuple(one for one in within if one.last >= a and one.first < b)
        inside = sum(one.raw_bytes * (min(b, one.last + 1) - max(a, one.first)) // one.count for one in mine)
        found.append(Split(topic, queue_id, a, b, inside, mine))
    return found


def segment_batches(
    backend: Backend, key: QueueKey, segment: Segment, lo: int, hi: int, columns: Sequence[str], *, decompress: bool
) -> Iterator[Any]:
    """The records ``[lo, hi)`` of one segment, which must hold them, in order, as pyarrow RecordBatches.

    Raises:
        ObjectMissing: The segment is gone.
        BackendError: The tier does not answer.
        CorruptionError: It holds something else.
    """
    if NUMBERED.issuperset(columns):
        for at in range(lo, hi, BATCH_ROWS * 16):
            yield numbered_batch(key, at, min(hi, at + BATCH_ROWS * 16), columns)
    elif segment.format == FLAT:
        for runs in grouped(_flat_runs(backend, segment, lo, hi)):
            yield batch_of(segment.name, key, runs, columns, decompress=decompress)
    else:
        yield from _parquet_batches(backend, key, segment, lo, hi, columns, decompress=decompress)


def numbered_batch(key: QueueKey, lo: int, hi: int, columns: Sequence[str]) -> Any:
    """A batch of nothing but topic, queue and offset."""
    return pa.RecordBatch.from_arrays(
        [_number_column(name, key, lo, hi) for name in columns], schema=schema_of(columns)
    )


def _number_column(name: str, key: QueueKey, lo: int, hi: int) -> Any:
    if name == "topic":
        return pa.repeat(pa.scalar(key.topic, pa.string()), hi - lo)
    if name == "queue_id":
        return pa.repeat(pa.scalar(key.queue_id, pa.int32()), hi - lo)
    return pa.array(np.arange(lo, hi, dtype=np.int64))


# --- flat ---------------------------------------------------------------------------------------------------------


def _flat_runs(backend: Backend, segment: Segment, lo: int, hi: int) -> Iterator[Run]:
    """Blocks of a flat segment, several by one read, cut to the range."""
    index = read_index(backend, segment)
    blocks = index.blocks
    number, last = index.block_of(lo), index.block_of(hi - 1)
    while number <= last:
        stop, size = number, 0
        while stop <= last and (stop == number or size + int(blocks["raw_bytes"][stop]) <= STEP_BYTES):
            size += int(blocks["raw_bytes"][stop])
            stop += 1
        start = int(blocks["position"][number])
        end = int(blocks["position"][stop - 1]) + int(blocks["stored_bytes"][stop - 1])
        data = backend.read(segment.name, start, end - start)
        for one in range(number, stop):
            at = int(blocks["position"][one]) - start
            raw = decode_block(data[at : at + int(blocks["stored_bytes"][one])], index, one, path=segment.name)
            positions = record_positions(raw)
            first, count = int(blocks["first"][one]), int(blocks["count"][one])
            if len(positions) != count:
                raise CorruptionError(segment.name, start + at, f"{count} records", f"{len(positions)}")
            a, b = max(0, lo - first), min(count, hi - first)
            yield Run(first + a, raw, positions[a:b])
        number = stop


# --- Parquet ------------------------------------------------------------------------------------------------------


def _parquet_batches(
    backend: Backend, key: QueueKey, segment: Segment, lo: int, hi: int, columns: Sequence[str], *, decompress: bool
) -> Iterator[Any]:
    wanted = [name for name in columns if name not in NUMBERED]
    if decompress and "body" in wanted and "sys_flag" not in wanted:
        wanted.append("sys_flag")
    with open_segment(backend, segment) as file:
        meta = file.metadata
        counts = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
        if sum(counts) != segment.count or min(counts, default=0) < 0:
            raise CorruptionError(segment.name, 0, f"{segment.count} rows", f"{sum(counts)}")
        firsts = segment.first + np.cumsum([0, *counts])
        number, last = (int(np.searchsorted(firsts, at, side="right")) - 1 for at in (lo, hi - 1))
        while number <= last:
            stop = _step(meta, number, last)
            try:
                table = file.read_row_groups(list(range(number, stop)), columns=wanted, use_threads=False)
            except NOT_PARQUET as error:
                raise CorruptionError(segment.name, 0, "Parquet as it was written", str(error)[:200]) from error
            first = int(firsts[number])
            begin, end = max(lo, first), min(hi, int(firsts[stop]))
            if table.num_rows != int(firsts[stop]) - first:
                raise CorruptionError(segment.name, 0, f"{int(firsts[stop]) - first} rows", f"{table.num_rows}")
            rows = table.slice(begin - first, end - begin).combine_chunks()
            yield _batch(rows, key, begin, end, columns, segment.name, decompress=decompress)
            number = stop


def _step(meta: Any, number: int, last: int) -> int:
    """How far to read from a row group on: some thousand rows, unless they are large."""
    stop, rows, size = number, 0, 0
    while stop <= last:
        group = meta.row_group(stop)
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if stop > number and (rows > BATCH_ROWS or size > STEP_BYTES):
            break
        stop += 1
    return stop


def _batch(table: Any, key: QueueKey, lo: int, hi: int, columns: Sequence[str], name: str, *, decompress: bool) -> Any:
    """Columns of a Parquet segment in the types of the logs' reader."""
    arrays = []
    for column in columns:
        if column in NUMBERED:
            arrays.append(_number_column(column, key, lo, hi))
            continue
        values = table.column(column)
        values = values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)
        try:
            if column in ("born_host", "store_host"):
                values = _host_texts(values)
            elif column == "body" and decompress:
                values = _plain_bodies(values, table.column("sys_flag"), name)
            arrays.append(values.cast(SCHEMA.field(column).type))
        except NOT_PARQUET as error:
            raise CorruptionError(name, 0, f"column {column} as it was written", str(error)[:200]) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _host_texts(values: Any) -> Any:
    """Hosts as text, each distinct one decoded once."""
    encoded = values.dictionary_encode()
    texts = [str(decode_host(host)) for host in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _plain_bodies(values: Any, sys_flags: Any, name: str) -> Any:
    """Bodies as the producer wrote them."""
    flags = sys_flags.to_numpy()
    packed = np.flatnonzero((flags & SYS_COMPRESSED) != 0)
    if not len(packed):
        return values
    bodies = values.to_pylist()
    total = 0
    for row in packed.tolist():
        try:
            bodies[row] = decompress_body(bodies[row], int(flags[row]) & SYS_COMPRESSION_MASK)
        except (ValueError, OSError, zlib.error, pa.ArrowException) as error:
            hint = "read with decompress=False to get the bytes as they are"
            raise DecompressionFailed(name, 0, "a compressed body", str(error), hint=hint) from error
        total += len(bodies[row])
        if total > DECOMPRESSED_BATCH_BYTES_MAX:
            raise DecompressionFailed(name, 0, f"at most {DECOMPRESSED_BATCH_BYTES_MAX} bytes a batch", "more")
    return pa.array(bodies, pa.binary())
