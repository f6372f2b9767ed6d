"""Find messages in a store that nobody serves: by key, by id, by time; read-only.

Keys go through the index files, whose hashes can collide: every hit is read and compared. Where the index says
nothing, or there is none, the log is read from end to end; the answer says which way it was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from stratamq.errors import QueueNotFound
from stratamq.formats import vector
from stratamq.formats.java import index_key_hash
from stratamq.formats.message import Record, decode_record, parse_offset_message_id
from stratamq.formats.properties import KEYS, UNIQ_KEY, find_property, split_keys
from stratamq.formats.vector import Bytes, Ints, byte_view
from stratamq.logstore import listing, mappings
from stratamq.logstore.batch_files import batch_range, units_between
from stratamq.logstore.check_index import IndexFile
from stratamq.logstore.listing import StreamFile
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import Progress, QueueKey

_BLOCK_ROWS: Final = 65_536


class Found(NamedTuple):
    """Messages found, oldest first; whether there were more; and how they were found."""

    records: list[Record]
    has_more: bool
    way: str


def by_id(snapshot: StoreSnapshot, message_id: str, *, limit: int, progress: Progress | None = None) -> Found:
    """Messages with an id: an offset message id (32 or 56 hex digits), or the client's UNIQ_KEY."""
    with contextlib.suppress(ValueError):
        _, physical_offset = parse_offset_message_id(message_id)
        record = record_at(snapshot, physical_offset)
        if record is not None and record.message_id == message_id.upper():
            return Found([record], False, "the id names a place in the log")
    return by_key(snapshot, message_id, topic=None, limit=limit, only_unique=True, progress=progress)


def by_key(
    snapshot: StoreSnapshot,
    key: str,
    *,
    topic: str | None,
    limit: int,
    only_unique: bool = False,
    progress: Progress | None = None,
) -> Found:
    """Messages with a key (of ``KEYS``, or the UNIQ_KEY), by index, else by reading the whole log.

    Cost: a lookup by index reads each index file's chain of one slot a topic. The scan reads heads and properties of
    every record, about 300 ns each, and the pages they lie in.
    """
    topics = [topic] if topic is not None else sorted({queue.topic for queue, _ in _every_queue(snapshot)})
    indexes = _open_index(snapshot)
    places = sorted({place for name in topics for index in indexes for place in lookup(index, name, key)})
    records = []
    for place in places:
        record = record_at(snapshot, place)
        if record is not None and _matches(record, key, topic, only_unique=only_unique):
            records.append(record)
            if len(records) > limit:
                return Found(records[:limit], True, "by index")
    if records:
        return Found(records, False, "by index")
    why = "the index has no such key" if indexes else "there is no index"
    scanned = list(_take(_scan(snapshot, key, topic, only_unique=only_unique, progress=progress), limit + 1))
    return Found(scanned[:limit], len(scanned) > limit, f"by reading the whole log, because {why}")


def _every_queue(snapshot: StoreSnapshot) -> Iterator[tuple[QueueKey, str]]:
    yield from listing.list_queues(str(snapshot.path))
    yield from listing.list_batch_queues(str(snapshot.path))


def lookup(index: IndexFile, topic: str, key: str) -> Iterator[int]:
    """Physical offsets of the entries of one index file whose hash is that of a key, newest first."""
    if not index.slot_count:
        return
    wanted = index_key_hash(topic, key)
    number = int(index.slots[wanted % index.slot_count])
    steps = 0
    while 0 < number < index.count and steps < index.count:
        entry = index.entries[number]
        if int(entry["key_hash"]) == wanted:
            yield int(entry["physical_offset"])
        number, steps = int(entry["previous"]), steps + 1


def by_time(
    snapshot: StoreSnapshot, topic: str, queue_id: int | None, *, from_ms: int | None, until_ms: int | None, limit: int
) -> Found:
    """Messages of a topic (or one queue of it) stored at ``[from_ms, until_ms)``, queue by queue."""
    if listing.list_batch_queues(str(snapshot.path), [topic]):
        return _batches_by_time(snapshot, topic, queue_id, from_ms=from_ms, until_ms=until_ms, limit=limit)
    queues = [queue for queue in snapshot.queues([topic]) if queue_id is None or queue.queue_id == queue_id]
    if not queues:
        what = f"topic {topic}" if queue_id is None else f"queue {queue_id} of topic {topic}"
        raise QueueNotFound(f"{snapshot.path} has no {what}")
    records: list[Record] = []
    for queue in queues:
        lo, hi = queue.min_offset, queue.max_offset
        if from_ms is not None:
            lo = snapshot.offset_by_time(topic, queue.queue_id, from_ms)
        if until_ms is not None:
            hi = snapshot.offset_by_time(topic, queue.queue_id, until_ms)
        hi_read = min(hi, lo + limit + 1 - len(records))
        if lo < hi_read:
            records += at_offsets(snapshot, topic, queue.queue_id, lo, hi_read)
        if len(records) > limit:
            return Found(records[:limit], True, "by consume queue")
    return Found(records, False, "by consume queue")


def _batches_by_time(
    snapshot: StoreSnapshot, topic: str, queue_id: int | None, *, from_ms: int | None, until_ms: int | None, limit: int
) -> Found:
    """The same for a topic with queues of batches: whole records, each with all of its messages."""
    keys = [key for key, _ in listing.list_batch_queues(str(snapshot.path), [topic])]
    keys = [key for key in keys if queue_id is None or key.queue_id == queue_id]
    if not keys:
        raise QueueNotFound(f"{snapshot.path} has no queue {queue_id} of topic {topic}")
    records: list[Record] = []
    for key in keys:
        there = batch_range(snapshot, *key)
        for unit in units_between(snapshot, *key, there.min_offset, there.max_offset):
            if (from_ms is None or unit.store_timestamp >= from_ms) and (
                until_ms is None or unit.store_timestamp < until_ms
            ):
                record = record_at(snapshot, unit.physical_offset)
                records += [record] if record is not None else []
                if len(records) > limit:
                    return Found(records[:limit], True, "by batch consume queue")
    return Found(records, False, "by batch consume queue")


def at_offsets(snapshot: StoreSnapshot, topic: str, queue_id: int, lo: int, hi: int) -> list[Record]:
    """The records of the messages ``[lo, hi)`` of a queue. Raises OffsetOutOfRange."""
    if listing.list_batch_queues(str(snapshot.path), [topic]):
        places = [unit.physical_offset for unit in units_between(snapshot, topic, queue_id, lo, hi)]
    else:
        places = snapshot.units(topic, queue_id, lo, hi)["physical_offset"].tolist()
    records = [record_at(snapshot, place) for place in places]
    return [record for record in records if record is not None]


def record_at(snapshot: StoreSnapshot, physical_offset: int) -> Record | None:
    """The record at a physical offset, None when there is none."""
    file = snapshot.file_of(physical_offset)
    if file is None or physical_offset >= snapshot.max_physical_offset:
        return None
    log, position = snapshot.buffer_of(physical_offset)
    checked = vector.check_records(log, np.array([position], dtype=np.int64), end=file.length, physical_base=file.base)
    return _decoded(log, position) if checked.flaws[0] == vector.OK else None


def _decoded(log: Bytes, position: int) -> Record | None:
    try:
        return decode_record(log.data, position)
    except ValueError:  # a topic that is no text
        return None


def _matches(record: Record, key: str, topic: str | None, *, only_unique: bool) -> bool:
    if topic is not None and record.topic != topic:
        return False
    if find_property(record.properties, UNIQ_KEY) == key:
        return True
    keys = find_property(record.properties, KEYS)
    return not only_unique and keys is not None and key in split_keys(keys)


def _open_index(snapshot: StoreSnapshot) -> list[IndexFile]:
    listed = listing.list_index_files(str(snapshot.path))
    return [IndexFile(file, byte_view(mappings.map_read_only(file.path))) for file in listed if file.length]


def _scan(
    snapshot: StoreSnapshot, key: str, topic: str | None, *, only_unique: bool, progress: Progress | None
) -> Iterator[Record]:
    """Every record with the key, in order of the log. Damaged stretches are stepped over."""
    needle = key.encode()
    start, total = snapshot.min_physical_offset, snapshot.max_physical_offset - snapshot.min_physical_offset
    for file in snapshot.files:
        end = min(file.length, snapshot.max_physical_offset - file.base)
        if end <= 0:
            return
        log = snapshot.bytes_of(file)
        for block in _blocks(log, file, end):
            checked = vector.check_records(log, block, end=end, physical_base=file.base)
            good = np.flatnonzero(checked.flaws == vector.OK)
            parts = vector.Parts(*(part[good] for part in checked.parts))
            for row in _rows_with(log, parts, needle):
                record = _decoded(log, int(block[good[row]]))
                if record is not None and _matches(record, key, topic, only_unique=only_unique):
                    yield record
            if progress is not None:
                progress("reading the log", file.base + int(block[-1]) - start, total)


def _blocks(log: Bytes, file: StreamFile, end: int) -> Iterator[Ints]:
    at = 0
    while at < end:
        walked = vector.walk(log, at, end, physical_base=file.base)
        for row in range(0, len(walked.positions), _BLOCK_ROWS):
            yield walked.positions[row : row + _BLOCK_ROWS]
        if walked.at_blank:
            return
        following = vector.find_record(log, walked.stop + 1, end, physical_base=file.base)
        at = end if following is None else following


def _rows_with(log: Bytes, parts: vector.Parts, needle: bytes) -> list[int]:
    """Rows whose properties hold some bytes anywhere; also some that only end and begin with halves of them."""
    data = vector.gather_bytes(log, parts.properties_at, parts.properties_bytes).tobytes()
    ends = np.cumsum(parts.properties_bytes)
    rows: list[int] = []
    at = data.find(needle) if needle else -1
    while at >= 0:
        row = int(np.searchsorted(ends, at, side="right"))
        if not rows or rows[-1] != row:
            rows.append(row)
        at = data.find(needle, at + 1)
    return rows


def _take(records: Iterator[Record], count: int) -> Iterator[Record]:
    for _, record in zip(range(count), records, strict=False):
        yield record
