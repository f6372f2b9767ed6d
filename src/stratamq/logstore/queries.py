"""Records found by physical offset or by key, and catching up an index that fell behind."""

from __future__ import annotations

from typing import Final

from stratamq.formats.message import check_record
from stratamq.formats.properties import KEYS, UNIQ_KEY, find_property, split_keys
from stratamq.logstore.batch import IndexRow
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.index import Index
from stratamq.logstore.scan import Scanned, Walk, parse_record

QUERY_MAX: Final = 64
"""Most records that one query by key returns."""
_COLLISIONS: Final = 64
"""Hits beyond the wanted ones that are looked at, to make up for hash collisions."""


def record_view(log: CommitLog, physical_offset: int, end: int) -> memoryview | None:
    """The record at ``physical_offset`` when one begins there, is good, and ends not behind ``end``; else None."""
    if not log.min_offset <= physical_offset < end:
        return None
    base = log.base_of(physical_offset)
    if base not in log.bases:
        return None
    view = log.file_view(base)
    position = physical_offset - base
    checked = check_record(view, position, min(log.file_bytes, end - base), physical_offset=physical_offset)
    if checked.flaw is not None or checked.is_blank:
        return None
    return view[position : position + checked.size]


def find_by_key(
    log: CommitLog, index: Index, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, end: int
) -> list[memoryview]:
    """See `LogStore.query`."""
    found: dict[int, memoryview] = {}
    for physical_offset in index.find(topic, key, begin_ms, end_ms, max_count + _COLLISIONS):
        if len(found) >= max_count:
            break
        view = record_view(log, physical_offset, end) if physical_offset not in found else None
        if view is None:
            continue
        scanned = parse_record(view, 0, len(view), {})
        if not isinstance(scanned, Scanned) or scanned.topic != topic or not _has_key(scanned.properties, key):
            continue
        if begin_ms <= scanned.store_timestamp <= end_ms:
            found[physical_offset] = view
    return [found[physical_offset] for physical_offset in sorted(found)]


def _has_key(properties: str, key: str) -> bool:
    if find_property(properties, UNIQ_KEY) == key:
        return True
    keys = find_property(properties, KEYS)
    return keys is not None and key in split_keys(keys)


def catch_up(log: CommitLog, index: Index, bytes_max: int) -> None:
    """Index records of about ``bytes_max`` of log for an index that fell behind, if it can be written again."""
    start = index.behind_from
    if start is None or not index.can_write():
        return
    rows: list[IndexRow] = []
    walk = Walk(log, start, verify_from=None, stop_at=min(log.end, start + bytes_max))
    for scanned in walk:
        rows.append(scanned.index_row)
    index.behind_from = None
    index.add(rows, walk.position)
    index.write_rows()
    if index.behind_from is None and walk.position < log.end and walk.stop is None:
        index.behind_from = walk.position
