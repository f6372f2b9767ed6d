"""Reading a queue of batches: from its units to views of the records in the mapped commit log.

A read that begins inside of a batch returns the whole record: consumers take it apart. A record whose tags code is 0 is
returned whatever tags are asked for, because a batch has none of its own: consumers compare the tags of each message.

Source: docs/differences-from-rocketmq.md; apache/rocketmq DefaultMessageStore.getMessage.
"""

from __future__ import annotations

from stratamq.formats.batch_consume_queue import BatchUnit, inner_properties
from stratamq.formats.consume_queue import UNIT_BYTES
from stratamq.formats.message import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, SYS_INNER_BATCH, decode_record
from stratamq.logstore.batch_queue import BatchConsumeQueue
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.reader import PULL_BYTES_MAX, SCAN_UNITS_MAX, ReadLimits, damage, outside
from stratamq.logstore.types import GetResult, GetStatus, RecordFilter

FILTERED_RECORDS_MAX = 64
"""Records looked at by one read that filters by properties, those of every message inside included."""


def read_batches(
    log: CommitLog,
    queue: BatchConsumeQueue,
    offset: int,
    max_messages: int,
    *,
    max_bytes: int | None,
    tags_codes: frozenset[int] | None,
    matching: RecordFilter | None,
    limits: ReadLimits,
) -> GetResult:
    """Read records with up to ``max_messages`` messages, at least one, from ``offset`` on; see `LogStore.get`."""
    low, high = queue.min_offset, queue.visible_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    wanted = max(1, min(max_messages, limits.memory_messages))
    bytes_max = min(limits.memory_bytes, PULL_BYTES_MAX if max_bytes is None else max_bytes)
    old = log.end - limits.page_cache_bytes
    records: list[memoryview] = []
    count = total = 0
    following, physical, removed = offset, 0, False
    most = SCAN_UNITS_MAX if matching is None else FILTERED_RECORDS_MAX
    for unit in queue.batch_units(offset, most):
        if unit.base_offset >= high:
            break
        physical = unit.physical_offset
        if records and (count + unit.messages > wanted or total + unit.size > bytes_max):
            break
        is_full = count + unit.messages > limits.disk_messages or total + unit.size > limits.disk_bytes
        if physical < old and records and is_full:
            break
        if tags_codes is None or unit.tags_code == 0 or _low32(unit.tags_code) in tags_codes:
            view = log.view(physical, unit.size) if unit.size >= UNIT_BYTES else None
            removed |= view is None
            if view is not None:
                if not _is_whole(view, unit):
                    if records or following > offset:
                        break  # give out what is good; the next read begins at the damage and says so
                    stored_size, magic = SIZE_AND_MAGIC.unpack_from(view)
                    base = log.base_of(physical)
                    raise damage(log.path_of(base), physical - base, unit.size, stored_size, magic)
                if matching is None or _wants(matching, view):
                    records.append(view)
                    count += unit.messages
                    total += unit.size
        following = max(following, unit.end_offset)
    following = min(following, high) if following > offset else high
    if records:
        return GetResult(GetStatus.FOUND, following, low, high, records, count, total, physical < old)
    status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
    return GetResult(status, following, low, high, (), 0, 0, physical < old)


def _is_whole(view: memoryview, unit: BatchUnit) -> bool:
    stored_size, magic = SIZE_AND_MAGIC.unpack_from(view)
    return stored_size == unit.size and magic in (MAGIC_V1, MAGIC_V2)


def _low32(code: int) -> int:
    low = code & 0xFFFFFFFF
    return low - 0x1_0000_0000 if low & 0x8000_0000 else low


def _wants(matching: RecordFilter, view: memoryview) -> bool:
    """Whether a filter wants a record, or any message in it."""
    try:
        record = decode_record(view)
    except ValueError:
        return True  # the consumer says what is wrong with it
    if matching.matches(record.properties):
        return True
    is_batch = record.sys_flag & SYS_INNER_BATCH
    return bool(is_batch) and any(matching.matches(text) for text in inner_properties(record.body))
