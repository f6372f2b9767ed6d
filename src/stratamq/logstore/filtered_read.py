"""Reading one queue by the properties of its messages: SQL92 filters.

The way beside `reader.read_queue`, so that reads by tag cost what they did. Every record has to be looked at, not only
its unit, so one read looks at fewer: what it has not reached is left to the next, which begins where this one ended.

Source: apache/rocketmq DefaultMessageStore.getMessage, isMatchedByCommitLog; docs/protocols/sql92.md.
"""

from __future__ import annotations

import struct
from typing import Final

from stratamq.formats.consume_queue import UNIT, UNIT_BYTES
from stratamq.formats.message import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, properties_text
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.reader import PULL_BYTES_MAX, ReadLimits, damage, no_units, outside
from stratamq.logstore.types import GetResult, GetStatus, RecordFilter
from stratamq.units import MiB

FILTERED_RECORDS_MAX: Final = 400
"""Records looked at by one read."""
FILTERED_ON_DISK_MAX: Final = 64
"""Of these, records that may have to come from the disk, while the loop waits."""
FILTERED_PARTS_MAX: Final = 8_000
"""Parts of an expression evaluated by one read, over all records."""
FILTERED_PROPERTIES_BYTES_MAX: Final = MiB
"""Length of the properties looked at by one read."""
FILTERED_RECORDS_MIN: Final = 8


def read_matching(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    matching: RecordFilter,
    max_bytes: int | None,
    limits: ReadLimits,
) -> GetResult:
    """Read up to ``max_messages`` wanted ones from ``offset`` on; see `LogStore.get`. Work is bounded by constants."""
    low, high = queue.min_offset, queue.visible_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    wanted = max(1, min(max_messages, limits.memory_messages))
    units_max = max(FILTERED_RECORDS_MIN, min(FILTERED_RECORDS_MAX, FILTERED_PARTS_MAX // max(1, matching.cost)))
    units = queue.read_units(offset, min(units_max, high - offset))
    if len(units) < UNIT_BYTES:
        return no_units(queue, offset, low, high)
    bytes_max = min(limits.memory_bytes, PULL_BYTES_MAX if max_bytes is None else max_bytes)
    old = log.end - limits.page_cache_bytes
    records: list[memoryview] = []
    total = scanned = properties_bytes = on_disk = physical = 0
    removed = False
    for physical, size, _ in UNIT.iter_unpack(units):
        count = len(records)
        is_old = physical < old
        if count and (count >= wanted or total + size > bytes_max):
            break
        if is_old and count and (count >= limits.disk_messages or total + size > limits.disk_bytes):
            break
        if properties_bytes > FILTERED_PROPERTIES_BYTES_MAX or on_disk >= FILTERED_ON_DISK_MAX:
            break
        view = log.view(physical, size) if size > 0 else None
        if view is None:
            scanned += 1
            removed = True
            continue
        properties = _properties(view, size)
        if properties is None:
            if count or scanned:
                break  # give out what is good; the next read begins at the damage and says so
            stored_size, magic = SIZE_AND_MAGIC.unpack_from(view) if size >= SIZE_AND_MAGIC.size else (size, 0)
            base = log.base_of(physical)
            raise damage(log.path_of(base), physical - base, size, stored_size, magic)
        scanned += 1
        on_disk += is_old
        properties_bytes += len(properties)
        if matching.matches(properties):
            records.append(view)
            total += size
    status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
    if records:
        status = GetStatus.FOUND
    return GetResult(status, offset + scanned, low, high, records, len(records), total, physical < old)


def _properties(view: memoryview, size: int) -> str | None:
    """The properties of a record; None when it is not what its queue says."""
    if size < SIZE_AND_MAGIC.size:
        return None
    stored_size, magic = SIZE_AND_MAGIC.unpack_from(view)
    if stored_size != size or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    try:
        return properties_text(view)
    except (struct.error, IndexError):
        return None
