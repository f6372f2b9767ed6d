"""Reading one queue: from its units to views of the records in the mapped commit log. No message byte is copied.

Source: docs/differences-from-rocketmq.md; apache/rocketmq DefaultMessageStore.getMessage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratamq.config import StoreConfig
from stratamq.errors import BadLength, BadMagic, CorruptionError
from stratamq.formats.consume_queue import UNIT, UNIT_BYTES
from stratamq.formats.java import tags_code
from stratamq.formats.message import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SYS_BORN_HOST_V6,
    decode_record,
)
from stratamq.formats.properties import TAGS, find_property
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.types import GetResult, GetStatus

SCAN_UNITS_MAX: Final = 800
"""Units looked at by one read that filters by tag."""
PULL_BYTES_MAX: Final = 128 * 1024 * 1024
_EXT_ADDRESS_MAX: Final = -(2**31) - 1
"""Tags codes up to here are addresses into RocketMQ's extension files, not hashes."""
_INT32: Final = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much one read returns. "Memory" is what is likely in the page cache, "disk" the rest."""

    memory_bytes: int
    memory_messages: int
    disk_bytes: int
    disk_messages: int
    page_cache_bytes: int
    """The newest so many bytes of the log count as being in the page cache."""

    @classmethod
    def of(cls, config: StoreConfig, physical_memory: int) -> ReadLimits:
        """The limits of a store on a machine with so much memory."""
        return cls(
            memory_bytes=config.transfer_bytes_max,
            memory_messages=config.transfer_messages_max,
            disk_bytes=config.transfer_bytes_on_disk_max,
            disk_messages=config.transfer_messages_on_disk_max,
            page_cache_bytes=physical_memory * config.memory_ratio_percent // 100,
        )


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    *,
    max_bytes: int | None,
    tags_codes: frozenset[int] | None,
    limits: ReadLimits,
) -> GetResult:
    """Read up to ``max_messages`` from ``offset`` on; see `LogStore.get`."""
    low, high = queue.min_offset, queue.visible_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    wanted = max(1, min(max_messages, limits.memory_messages))
    count = wanted if tags_codes is None else max(SCAN_UNITS_MAX, wanted)
    units = queue.read_units(offset, min(count, high - offset))
    if len(units) < UNIT_BYTES:
        return no_units(queue, offset, low, high)
    return _collect(log, units, offset, low, high, wanted, max_bytes, tags_codes, limits)


def outside(offset: int, low: int, high: int) -> GetResult:
    """The answer to a read from an offset that a queue of ``[low, high)`` does not have."""
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)


def no_units(queue: ConsumeQueue, offset: int, low: int, high: int) -> GetResult:
    """The answer to a read from a queue file that holds nothing there: go on in the next file."""
    next_file = (offset * UNIT_BYTES // queue.file_bytes + 1) * queue.file_bytes // UNIT_BYTES
    return GetResult(GetStatus.OFFSET_FOUND_NULL, min(next_file, high), low, high)


def _collect(
    log: CommitLog,
    units: bytes,
    offset: int,
    low: int,
    high: int,
    wanted: int,
    max_bytes: int | None,
    tags_codes: frozenset[int] | None,
    limits: ReadLimits,
) -> GetResult:
    file_bytes = log.file_bytes
    log_min, log_end = log.min_offset, log.end
    bytes_max = min(limits.memory_bytes, PULL_BYTES_MAX if max_bytes is None else max_bytes)
    old = log_end - limits.page_cache_bytes
    records: list[memoryview] = []
    view: memoryview | None = None
    view_base = run_start = run_end = -1
    count = total = scanned = 0
    removed = False
    physical = 0
    for physical, size, code in UNIT.iter_unpack(units):
        if tags_codes is not None and not _tags_match(code, tags_codes, log, physical, size):
            scanned += 1
            continue
        if count and (count >= wanted or total + size > bytes_max):
            break
        if physical < old and count and (count >= limits.disk_messages or total + size > limits.disk_bytes):
            break
        base = physical - physical % file_bytes
        position = physical - base
        if physical < log_min or size <= 0 or physical + size > log_end or position + size > file_bytes:
            scanned += 1
            removed = True
            continue
        if base != view_base:
            if run_end >= 0 and view is not None:
                records.append(view[run_start:run_end])
                run_end = -1
            view = log.file_view(base)
            view_base = base
        assert view is not None
        stored_size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
        if stored_size != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
            if count:
                break  # give out what is good; the next read begins at the damage and says so
            raise damage(log.path_of(base), position, size, stored_size, magic)
        if position != run_end:
            if run_end >= 0:
                records.append(view[run_start:run_end])
            run_start = position
        run_end = position + size
        scanned += 1
        count += 1
        total += size
    if run_end >= 0 and view is not None:
        records.append(view[run_start:run_end])
    status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
    if count:
        status = GetStatus.FOUND
    return GetResult(status, offset + scanned, low, high, records, count, total, physical < old)


def damage(path: str, position: int, size: int, stored_size: int, magic: int) -> CorruptionError:
    """The error for a record that is not what its queue says."""
    hint = "run `stratamq store check` on this directory"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return BadMagic(path, position + 4, "DAA320A7 or DAA320AB", f"{magic & 0xFFFFFFFF:08X}", hint=hint)
    return BadLength(path, position, f"a record of {size} bytes, as its queue says", f"{stored_size} bytes", hint=hint)


def _tags_match(code: int, wanted: frozenset[int], log: CommitLog, physical: int, size: int) -> bool:
    """Compare the low 32 bits; where the code is an address into an extension file, ask the record itself."""
    if code in _INT32:
        return code in wanted
    if code <= _EXT_ADDRESS_MAX:
        view = log.view(physical, size)
        if view is None:
            return True  # gone: let the reader find that out
        code = tags_code(find_property(decode_record(view).properties, TAGS) or "")
        return code in wanted
    low = code & 0xFFFFFFFF
    return (low - 0x1_0000_0000 if low & 0x8000_0000 else low) in wanted


def store_timestamp_at(log: CommitLog, physical_offset: int, size: int) -> int | None:
    """Store time of the record at ``physical_offset``; None when it is not in the log."""
    view = log.view(physical_offset, size)
    return None if view is None or size < RECORD_BYTES_MIN else store_timestamp_in(view)


def store_timestamp_in(record: memoryview) -> int:
    """Store time of the record that a view begins with; its place depends on the kind of the born host."""
    at = 68 if record[39] & SYS_BORN_HOST_V6 else 56
    return int.from_bytes(record[at : at + 8], "big", signed=True)


def offset_by_time(log: CommitLog, queue: ConsumeQueue, ms: int, *, upper: bool) -> int:
    """See `LogStore.offset_by_time`. Cost: log2 of the queue's length small reads in queue and log.

    Source: apache/rocketmq ConsumeQueue.binarySearchInQueueByTime.
    """
    low, high = queue.min_offset, queue.visible_offset
    if low >= high:
        return high

    def time_of(offset: int) -> int:
        unit = queue.unit(offset)
        found = None if unit is None else store_timestamp_at(log, unit.physical_offset, unit.size)
        return -1 if found is None else found

    bound = ms + 1 if upper else ms
    start, end = low, high
    while start < end:
        middle = (start + end) // 2
        if time_of(middle) >= bound:
            end = middle
        else:
            start = middle + 1
    if not upper:
        return start
    return start - 1 if start > low else 0
