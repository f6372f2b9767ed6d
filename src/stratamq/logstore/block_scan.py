"""Walking the commit log by blocks: good records as arrays, for recovery and rebuilding.

Whatever is not plainly good - a flaw, a checksum that does not match, properties with zero bytes where a write may be
torn, a topic that cannot be - ends the block before it; `scan.Walk` then looks at that record and says what is wrong.
Both see the same records, and a test holds them against each other.

Cost: about 1 us a record and one CRC over its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from stratamq.formats import java, vector
from stratamq.formats.consume_queue import UNIT_BYTES
from stratamq.formats.message import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from stratamq.formats.vector import Bytes, CheckedRecords, Ints, Mask
from stratamq.formats.vector_keys import fingerprints, index_keys, java_hashes
from stratamq.formats.vector_properties import Properties, clean_utf8, split_properties
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.dispatch import SCHEDULE_TOPIC, scheduled_tags_code
from stratamq.logstore.layout import is_topic_name

BLOCK_ROWS: Final = 1 << 15
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class Block(NamedTuple):
    """Records that follow each other, as columns; ``end`` is where the next one begins."""

    physical_offsets: Ints
    sizes: Ints
    queue_offsets: Ints
    store_timestamps: Ints
    tags_codes: Ints
    is_queued: Mask
    queue_numbers: Ints
    """Which of ``queues`` each record belongs to."""
    queues: list[tuple[str, int]]
    inner: list[tuple[int, str]]
    """Rows with properties that say of further units (INNER_...), and their properties."""
    key_rows: Ints
    """Row of each index entry, in the index file's order."""
    key_hashes: Ints
    end: int


def scan_blocks(
    log: CommitLog,
    start: int,
    *,
    verify_from: int | None,
    doubt_from: int | None,
    delay_levels: tuple[int, ...],
    stop_at: int | None = None,
) -> Iterator[Block]:
    """Blocks of good records from ``start`` to the end of its file, or to what is not plainly good.

    The arguments mean what they mean to `scan.Walk`.
    """
    base = log.base_of(start)
    if base not in log.bases:
        return
    view = vector.byte_view(log.file_view(base))
    file_end = log.file_bytes if stop_at is None else min(log.file_bytes, max(0, stop_at - base))
    walked = vector.walk(view, start - base, file_end, physical_base=base)
    for first in range(0, len(walked.positions), BLOCK_ROWS):
        positions = walked.positions[first : first + BLOCK_ROWS]
        checked = vector.check_records(view, positions, end=file_end, physical_base=base)
        good = checked.flaws == vector.OK
        heads = checked.heads
        good &= (heads["queue_id"] >= 0) & (heads["queue_offset"] >= 0)
        good &= heads["queue_offset"] < 2**63 // UNIT_BYTES
        if verify_from is not None:
            good[_checksum_differs(view, checked, good & (positions >= verify_from - base))] = False
        if doubt_from is not None:
            good[_holds_zeros(view, checked, good & (positions >= doubt_from - base))] = False
        count = len(good) if good.all() else int(np.argmin(good))
        block = _block_of(view, base, _head_rows(checked, count), positions[:count], delay_levels) if count else None
        if block is not None:
            yield block
        if count < len(good) or block is None:
            return


def _head_rows(checked: CheckedRecords, count: int) -> CheckedRecords:
    parts = vector.Parts(*(part[:count] for part in checked.parts))
    return CheckedRecords(checked.heads[:count], parts, checked.flaws[:count])


def _picked(checked: CheckedRecords, rows: Ints) -> CheckedRecords:
    parts = vector.Parts(*(part[rows] for part in checked.parts))
    return CheckedRecords(checked.heads[rows], parts, checked.flaws[rows])


def _checksum_differs(view: Bytes, checked: CheckedRecords, where: Mask) -> Ints:
    rows = np.flatnonzero(where)
    if not rows.size:
        return rows
    return rows[~vector.crc_matches(view, _picked(checked, rows))]


def _holds_zeros(view: Bytes, checked: CheckedRecords, where: Mask) -> Ints:
    """Rows whose properties hold a zero byte."""
    rows = np.flatnonzero(where & (checked.parts.properties_bytes > 0))
    if not rows.size:
        return rows
    lengths = checked.parts.properties_bytes[rows]
    data = vector.gather_bytes(view, checked.parts.properties_at[rows], lengths)
    zeros = np.flatnonzero(data == 0)
    return rows[np.unique(np.searchsorted(np.cumsum(lengths), zeros, side="right"))]


def _block_of(
    view: Bytes, base: int, checked: CheckedRecords, positions: Ints, delay_levels: tuple[int, ...]
) -> Block | None:
    """The columns; None when a topic cannot be, or two topics cannot be told apart by their fingerprint."""
    heads, parts = checked.heads, checked.parts
    named = _queues_of(view, checked)
    if named is None:
        return None
    queues, numbers = named
    data = vector.gather_bytes(view, parts.properties_at, parts.properties_bytes)
    offsets: Ints = np.concatenate((np.zeros(1, np.int64), np.cumsum(parts.properties_bytes)))
    found = split_properties(*clean_utf8(data, offsets))
    state = heads["sys_flag"] & SYS_TRANSACTION_MASK
    is_queued = (state & SYS_TRANSACTION_PREPARED) == 0
    prefixes = np.array([java.hash_units(java.utf16_units(topic + "#")) for topic, _ in queues], dtype=np.uint32)
    key_rows, key_hashes = index_keys(found, prefixes[numbers])
    wanted = state[key_rows] != SYS_TRANSACTION_ROLLBACK
    key_rows, key_hashes = key_rows[wanted], key_hashes[wanted]
    order = np.argsort(key_rows, kind="stable")  # the unique key stays before the others of its row
    timestamps = heads["store_timestamp"].astype(np.int64)
    return Block(
        physical_offsets=positions + base,
        sizes=heads["size"].astype(np.int64),
        queue_offsets=heads["queue_offset"].astype(np.int64),
        store_timestamps=timestamps,
        tags_codes=_tags_codes(found, queues, numbers, timestamps, delay_levels),
        is_queued=is_queued,
        queue_numbers=numbers,
        queues=queues,
        inner=[(row, found.text(row)) for row in found.rows_like(b"INNER_MU", b"INNER_BA").tolist()],
        key_rows=key_rows[order],
        key_hashes=key_hashes[order],
        end=int(positions[-1]) + int(heads["size"][-1]) + base,
    )


def _queues_of(view: Bytes, checked: CheckedRecords) -> tuple[list[tuple[str, int]], Ints] | None:
    """The distinct queues of the records, and which one each belongs to."""
    heads, parts = checked.heads, checked.parts
    marks = fingerprints(view, parts.topic_at, parts.topic_bytes)
    marks ^= heads["queue_id"].astype(np.uint64) * _MIX
    _, first, which = np.unique(marks, return_index=True, return_inverse=True)
    numbers = which.ravel().astype(np.int64)
    same = heads["queue_id"] == heads["queue_id"][first][numbers]
    same &= parts.topic_bytes == parts.topic_bytes[first][numbers]
    queues: list[tuple[str, int]] = []
    for row in first.tolist():
        at, length = int(parts.topic_at[row]), int(parts.topic_bytes[row])
        topic = view[at : at + length].tobytes().decode("ascii", "replace")
        if not is_topic_name(topic):
            return None
        queues.append((topic, int(heads["queue_id"][row])))
    if not same.all() or not _topics_are_equal(view, parts, first, numbers):
        return None
    return queues, numbers


def _topics_are_equal(view: Bytes, parts: vector.Parts, first: Ints, numbers: Ints) -> bool:
    """Compare every topic with that of its group's first record, whose length it has."""
    for length in np.unique(parts.topic_bytes).tolist():
        rows = np.flatnonzero(parts.topic_bytes == length)
        texts = vector.window(view, f"S{length}")
        if not (texts[parts.topic_at[rows]] == texts[parts.topic_at[first[numbers[rows]]]]).all():
            return False
    return True


def _tags_codes(
    found: Properties,
    queues: list[tuple[str, int]],
    numbers: Ints,
    timestamps: Ints,
    delay_levels: tuple[int, ...],
) -> Ints:
    codes = np.zeros(found.row_count, dtype=np.int64)
    tags = found.find(b"TAGS")
    rows = np.flatnonzero(tags >= 0)
    at = tags[rows]
    hashes = java_hashes(found.data, found.value_at[at], found.value_end[at] - found.value_at[at])
    codes[rows] = hashes.view(np.int32)
    scheduled = [number for number, (topic, _) in enumerate(queues) if topic == SCHEDULE_TOPIC]
    if scheduled:
        delays = found.find(b"DELAY")
        for row in np.flatnonzero(np.isin(numbers, scheduled) & (delays >= 0)).tolist():
            text = f"DELAY\x01{found.value(int(delays[row])).decode('utf-8', 'replace')}\x02"
            code = scheduled_tags_code(text, int(timestamps[row]), delay_levels)
            codes[row] = codes[row] if code is None else code
    return codes
