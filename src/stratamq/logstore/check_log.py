"""Pass over one commit-log file: every frame, length, checksum, and what queues and index should say of each record.

The result of a file, or of a piece of it, is a handful of arrays (`LogFacts`), about 60 bytes a record and 20 a key,
which the other passes compare with units and index entries; then it is dropped. So the memory needed is that of one
file or piece, not of the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.findings import Findings, Severity
from stratamq.formats import java, vector
from stratamq.formats.message import (
    RECORD_CRC_BYTES,
    SIZE_AND_MAGIC,
    SYS_INNER_BATCH,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    check_record,
    record_crc_flaw,
)
from stratamq.formats.properties import RECORD_CRC
from stratamq.formats.vector import Bytes, CheckedRecords, Ints, Mask
from stratamq.formats.vector_keys import fingerprints, index_keys, java_hashes, tag_index_keys
from stratamq.formats.vector_properties import Properties, clean_utf8, split_properties
from stratamq.logstore import layout
from stratamq.logstore.listing import StreamFile
from stratamq.logstore.types import QueueKey

BLOCK_ROWS: Final = 131_072
PIECE_ROWS: Final = 4 * BLOCK_ROWS
"""Records of a piece: with all that is compared some 250 bytes each, 130 MB."""
THREADED_BODY_BYTES_MIN: Final = 8192
"""From this average on bodies are summed in threads: zlib lets go of the interpreter lock during long ones only."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAYS_MS: Final = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
)  # levels 1 to 18
_RECORD_CRC_HEAD: Final = int.from_bytes(f"{RECORD_CRC}\x01".encode()[:8], "little")
_TAG_PREFIX_HASH: Final = java.hash_units(b"T#")
CUSTOM_DELAY: Final = -(2**63)
"""Stands for a tags code of which only the form can be checked."""


class LogFacts(NamedTuple):
    """What the log says of the records of one file, in order of position.

    ``queue_numbers`` refer to `QueueNames`; ``is_queued`` is false for prepared, rolled-back and inner-batch records.
    ``index_rows`` and ``index_hashes`` are the index entries that the records should have, ``tag_rows`` and
    ``tag_hashes`` those that they may have.
    """

    positions: Ints
    sizes: Ints
    queue_numbers: Ints
    queue_offsets: Ints
    tags_codes: Ints
    store_timestamps: Ints
    is_queued: Mask
    index_rows: Ints
    index_hashes: Ints
    tag_rows: Ints
    tag_hashes: Ints


class Settled(NamedTuple):
    """Which records must be in queues and index by now: those stored before a time, or below a physical offset."""

    before_ms: int
    units_below: int
    entries_below: int


class QueueNames:
    """Numbers for queues, given in the order in which they are first seen."""

    def __init__(self) -> None:
        self.keys: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}

    def number(self, key: QueueKey) -> int:
        """The number of a queue."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return found


class LogPass:
    """Looks at commit-log files one after the other."""

    def __init__(self, findings: Findings, names: QueueNames) -> None:
        self.findings = findings
        self.names = names
        self.first_store_timestamp = 0
        self.newest_store_timestamp = 0
        self.record_count = 0
        self.clock_steps = 0

    def file(
        self, log: Bytes, file: StreamFile, end: int, progress: Callable[[int], None] = lambda done: None
    ) -> LogFacts:
        """Check the records of ``file`` whose data ends at byte ``end``; what is damaged is stepped over.

        ``progress`` is told the bytes done now and then.
        """
        ((_, facts),) = self.pieces(log, file, end, rows_max=len(log), progress=progress)
        return facts

    def pieces(
        self,
        log: Bytes,
        file: StreamFile,
        end: int,
        *,
        rows_max: int = PIECE_ROWS,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Iterator[tuple[int, LogFacts]]:
        """As `file`, but the facts of at most ``rows_max`` records at a time, each with the byte where its piece of
        the file ends. Pieces follow each other without a hole; the last one ends with the file.
        """
        held: list[LogFacts] = []
        rows = at = 0
        while at < end:
            walked = vector.walk(log, at, end, physical_base=file.base)
            step = max(1, min(BLOCK_ROWS, rows_max))
            for start in range(0, len(walked.positions), step):
                block = walked.positions[start : start + step]
                if held and rows + len(block) > rows_max:
                    yield int(block[0]), _joined(held)
                    held, rows = [], 0
                held.append(self._block(log, file, block, end))
                rows += len(block)
                progress(int(block[-1]))
            if walked.stop >= end or (walked.at_blank and self._blank_fits(log, file, walked.stop)):
                break
            at = self._step_over(log, file, walked.stop, end)
        yield file.length, _joined(held)

    def _blank_fits(self, log: Bytes, file: StreamFile, at: int) -> bool:
        left = SIZE_AND_MAGIC.unpack_from(log.data, at)[0]
        if left == file.length - at:
            return True
        advice = "what follows is looked at record by record; nothing is lost if the next finding is none"
        self.findings.error("blank-length", file.path, at, f"{file.length - at} bytes to the end", left, advice)
        return False

    def _step_over(self, log: Bytes, file: StreamFile, at: int, end: int) -> int:
        """Report a bad frame and find where records go on; ``end`` when they do not."""
        flaw = check_record(log.data, at, end, physical_offset=file.base + at, verify_crc=False).flaw
        following = vector.find_record(log, at + 1, end, physical_base=file.base)
        there = end if following is None else following
        position, expected, found = (flaw.position, flaw.expected, flaw.found) if flaw else (at, "a record", "a blank")
        self.findings.error(
            "frame",
            file.path,
            position,
            expected,
            found,
            f"the {there - at} bytes from {at} to {there} hold no readable record; restore the file from a replica or "
            "a copy, or accept their loss",
        )
        return there

    def _block(self, log: Bytes, file: StreamFile, positions: Ints, end: int) -> LogFacts:
        checked = vector.check_records(log, positions, end=end, physical_base=file.base)
        self.record_count += len(positions)
        self._report_flaws(log, file, positions, checked, end)
        self._report_checksums(log, file, positions, checked)
        good = (checked.flaws == vector.OK) | (checked.flaws == vector.OFFSET)
        if not good.all():
            positions = positions[good]
            parts = vector.Parts(*(part[good] for part in checked.parts))
            checked = CheckedRecords(checked.heads[good], parts, checked.flaws[good])
        self._report_odd_fields(file, positions, checked)
        return self._facts(log, file, positions, checked, end)

    def _report_flaws(self, log: Bytes, file: StreamFile, positions: Ints, checked: CheckedRecords, end: int) -> None:
        bad = np.flatnonzero(checked.flaws)
        wanted = self.findings.wants(Severity.ERROR, "record")
        for row in bad[:wanted].tolist():
            at = int(positions[row])
            flaw = check_record(log.data, at, end, physical_offset=file.base + at, verify_crc=False).flaw
            if flaw is not None:
                advice = "this record is damaged; restore the file from a replica or a copy, or accept its loss"
                self.findings.error("record", file.path, flaw.position, flaw.expected, flaw.found, advice)
        self.findings.count_more(Severity.ERROR, "record", len(bad) - wanted)

    def _report_checksums(self, log: Bytes, file: StreamFile, positions: Ints, checked: CheckedRecords) -> None:
        advice = "the body is not what was stored; restore the file from a replica or a copy, or accept its loss"
        bad = np.flatnonzero(~_crc_matches(log, checked))
        wanted = self.findings.wants(Severity.ERROR, "checksum")
        for row in bad[:wanted].tolist():
            at = int(positions[row])
            flaw = check_record(log.data, at, len(log), physical_offset=None).flaw
            if flaw is not None:
                self.findings.error("checksum", file.path, flaw.position, flaw.expected, flaw.found, advice)
        self.findings.count_more(Severity.ERROR, "checksum", len(bad) - wanted)
        for row in np.flatnonzero(_has_record_crc(log, positions, checked)).tolist():
            at = int(positions[row])
            flaw = record_crc_flaw(log.data, at, int(checked.heads["size"][row]))
            if flaw is not None:
                self.findings.error("record-checksum", file.path, flaw.position, flaw.expected, flaw.found, advice)

    def _report_odd_fields(self, file: StreamFile, positions: Ints, checked: CheckedRecords) -> None:
        """Fields that no checksum guards but that can only have some values."""
        heads = checked.heads
        stored = heads["store_timestamp"].astype(np.int64)
        if len(stored):
            self.first_store_timestamp = self.first_store_timestamp or int(stored[0])
            before = np.maximum.accumulate(np.concatenate(([self.newest_store_timestamp], stored[:-1])))
            self.clock_steps += int((stored < before).sum())
            self.newest_store_timestamp = max(self.newest_store_timestamp, int(stored.max()))
        prepared_at = heads["prepared_transaction_offset"]
        checks = (
            ("crc", 8, (heads["body_bytes"] == 0) & (heads["crc"] != 0), "0, because the body is empty"),
            ("queue_id", 12, heads["queue_id"] < 0, "not negative"),
            ("queue_offset", 20, heads["queue_offset"] < 0, "not negative"),
            ("sys_flag", 36, (heads["sys_flag"] & ~0x7FF) != 0, "only the bits 0 to 10"),
            ("reconsume_times", None, heads["reconsume_times"] < 0, "not negative"),
            (
                "prepared_transaction_offset",
                None,
                (prepared_at < 0) | (prepared_at > heads["physical_offset"]),
                "an offset below the record's own",
            ),
        )
        for name, at, wrong, expected in checks:
            for row in np.flatnonzero(wrong).tolist():
                place = int(positions[row]) + (at if at is not None else 0)
                advice = "no checksum guards this field; compare the record with a replica or a copy"
                found = f"{name} {int(heads[name][row])}"
                self.findings.warn("field", file.path, place, f"{name}: {expected}", found, advice)

    def _facts(self, log: Bytes, file: StreamFile, positions: Ints, checked: CheckedRecords, end: int) -> LogFacts:
        heads, parts = checked.heads, checked.parts
        state = heads["sys_flag"] & SYS_TRANSACTION_MASK
        is_queued = (state != SYS_TRANSACTION_PREPARED) & (state != SYS_TRANSACTION_ROLLBACK)
        is_queued &= (heads["sys_flag"] & SYS_INNER_BATCH) == 0
        found = _properties_of(log, parts)
        numbers, prefixes = self._queue_numbers(log, file, checked)
        rows, hashes = index_keys(found, prefixes)
        tag_rows, tag_hashes = tag_index_keys(found, prefixes * np.uint32(31 * 31) + np.uint32(_TAG_PREFIX_HASH))
        indexed = state[rows] != SYS_TRANSACTION_ROLLBACK
        return LogFacts(
            positions=positions,
            sizes=heads["size"].astype(np.int64),
            queue_numbers=numbers,
            queue_offsets=heads["queue_offset"].astype(np.int64),
            tags_codes=self._tags_codes(found, heads, numbers),
            store_timestamps=heads["store_timestamp"].astype(np.int64),
            is_queued=is_queued,
            index_rows=rows[indexed],
            index_hashes=hashes[indexed],
            tag_rows=tag_rows,
            tag_hashes=tag_hashes,
        )

    def _queue_numbers(
        self, log: Bytes, file: StreamFile, checked: CheckedRecords
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """The queue of each record, and the hash of ``topic#``. Only distinct topics are decoded."""
        heads, parts = checked.heads, checked.parts
        marks = fingerprints(log, parts.topic_at, parts.topic_bytes)
        _, first, which = np.unique(marks, return_index=True, return_inverse=True)
        topics: list[str] = []
        for row in first.tolist():
            at, length = int(parts.topic_at[row]), int(parts.topic_bytes[row])
            raw = log[at : at + length].tobytes()
            topic = raw.decode("utf-8", "replace")
            if not layout.is_topic_name(topic) and not topic.startswith("%LMQ%"):
                advice = "no client can have sent this; compare the record with a replica or a copy"
                self.findings.error("topic", file.path, at, "a topic name", repr(raw[:80]), advice)
            topics.append(topic)
        prefixes = np.array([java.hash_units(java.utf16_units(topic + "#")) for topic in topics], dtype=np.uint32)
        which = which.ravel()
        pairs = which.astype(np.int64) << 32 | heads["queue_id"].astype(np.int64) & 0xFFFFFFFF
        distinct, which_pair = np.unique(pairs, return_inverse=True)
        keys = [QueueKey(topics[pair >> 32], java.signed32(pair & 0xFFFFFFFF)) for pair in distinct.tolist()]
        numbers = np.array([self.names.number(key) for key in keys], dtype=np.int64)
        return numbers[which_pair.ravel()], prefixes[which]

    def _tags_codes(self, found: Properties, heads: vector.Heads, numbers: Ints) -> Ints:
        """What the consume queue must say: the tags' hash, or the delivery time in the schedule topic."""
        codes = np.zeros(found.row_count, dtype=np.int64)
        tags = found.find(b"TAGS")
        rows = np.flatnonzero(tags >= 0)
        at = tags[rows]
        hashes = java_hashes(found.data, found.value_at[at], found.value_end[at] - found.value_at[at])
        codes[rows] = hashes.view(np.int32)
        delays = found.find(b"DELAY")
        for row in np.flatnonzero(delays >= 0).tolist():
            if self.names.keys[int(numbers[row])].topic == SCHEDULE_TOPIC:
                code = _delivery_code(found.value(int(delays[row])), int(heads["store_timestamp"][row]))
                codes[row] = codes[row] if code is None else code
        return codes


def _delivery_code(level_text: bytes, stored: int) -> int | None:
    """Delivery time of a delayed record with RocketMQ's default levels, CUSTOM_DELAY when the level is not among them,
    None when the record is not delayed."""
    try:
        level = int(level_text)
    except ValueError:
        return CUSTOM_DELAY
    if level <= 0:
        return None
    return stored + int(DELAYS_MS[level - 1]) if level <= len(DELAYS_MS) else CUSTOM_DELAY


def _properties_of(log: Bytes, parts: vector.Parts) -> Properties:
    data = vector.gather_bytes(log, parts.properties_at, parts.properties_bytes)
    offsets: Ints = np.concatenate((np.zeros(1, np.int64), np.cumsum(parts.properties_bytes)))
    return split_properties(*clean_utf8(data, offsets))


def _crc_matches(log: Bytes, checked: CheckedRecords) -> Mask:
    """`vector.crc_matches`, in threads where bodies are long."""
    count = len(checked.flaws)
    workers = os.cpu_count() or 1
    good = checked.flaws == vector.OK
    average = float(checked.parts.body_bytes[good].mean()) if good.any() else 0.0
    if workers == 1 or average < THREADED_BODY_BYTES_MIN or count < 2 * workers:
        return vector.crc_matches(log, checked)
    bounds = np.linspace(0, count, workers + 1).astype(int).tolist()

    def part(number: int) -> Mask:
        rows = slice(bounds[number], bounds[number + 1])
        parts = vector.Parts(*(array[rows] for array in checked.parts))
        return vector.crc_matches(log, CheckedRecords(checked.heads[rows], parts, checked.flaws[rows]))

    with ThreadPoolExecutor(workers, thread_name_prefix="stratamq-check") as pool:
        return np.concatenate(list(pool.map(part, range(workers))))


def _has_record_crc(log: Bytes, positions: Ints, checked: CheckedRecords) -> Mask:
    """Which records end with a checksum over the whole record."""
    sizes = checked.heads["size"].astype(np.int64)
    possible = (checked.flaws == vector.OK) & (checked.parts.properties_bytes >= RECORD_CRC_BYTES)
    at = np.where(possible, positions + sizes - RECORD_CRC_BYTES, 0)
    if len(log) < 8:
        return np.zeros(len(positions), dtype=np.bool_)
    has: Mask = possible & (vector.window(log, "<u8")[at] == _RECORD_CRC_HEAD)
    return has


def _joined(blocks: list[LogFacts]) -> LogFacts:
    """The facts of consecutive blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:
        none = np.zeros(0, dtype=np.int64)
        return LogFacts(none, none, none, none, none, none, none.astype(np.bool_), none, none, none, none)
    shifts = np.cumsum([0, *(len(block.positions) for block in blocks[:-1])]).tolist()
    return LogFacts(
        positions=np.concatenate([block.positions for block in blocks]),
        sizes=np.concatenate([block.sizes for block in blocks]),
        queue_numbers=np.concatenate([block.queue_numbers for block in blocks]),
        queue_offsets=np.concatenate([block.queue_offsets for block in blocks]),
        tags_codes=np.concatenate([block.tags_codes for block in blocks]),
        store_timestamps=np.concatenate([block.store_timestamps for block in blocks]),
        is_queued=np.concatenate([block.is_queued for block in blocks]),
        index_rows=np.concatenate([block.index_rows + shift for block, shift in zip(blocks, shifts, strict=True)]),
        index_hashes=np.concatenate([block.index_hashes for block in blocks]),
        tag_rows=np.concatenate([block.tag_rows + shift for block, shift in zip(blocks, shifts, strict=True)]),
        tag_hashes=np.concatenate([block.tag_hashes for block in blocks]),
    )
