"""Pass over the index files: header, slots and chains of each, and each entry against the keys of its record, both
ways.

An index file does not say how many slots it has; that is found from its length and its own contents. Chains are checked
by sorting entries by slot, a part of the slots at a time, so memory stays bounded for files of 20 million entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stratamq.findings import Findings, Severity
from stratamq.formats.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    TIME_DELTA_MAX,
    IndexHeader,
    decode_header,
)
from stratamq.formats.vector import Bytes, Ints, byte_view, window
from stratamq.logstore import listing, mappings
from stratamq.logstore.check_log import LogFacts, Settled
from stratamq.logstore.listing import PlainFile, StreamFile

ENTRY_DTYPE: Final = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_delta_seconds", ">i4"), ("previous", ">i4")]
)
DEFAULT_SLOTS: Final = 5_000_000
_ENTRIES_PER_SLOT: Final = 4
_PART_ENTRIES: Final = 1_000_000
REBUILD: Final = "stop the broker, move the directory index away and start: it is built again from the commit log"


class IndexFile:
    """One index file laid open: header, slots and entries (number 0 is never used) as arrays over the mapping."""

    def __init__(self, file: PlainFile, data: Bytes) -> None:
        """Find out the shape. ``slot_count`` is 0 when the file fits none."""
        self.path = file.path
        self.data = data
        self.header = decode_header(data.data) if len(data) >= HEADER_BYTES else IndexHeader(0, 0, 0, 0, 0, 1)
        self.slot_count = find_slot_count(data, self.header)
        start = HEADER_BYTES + SLOT_BYTES * self.slot_count
        self.entry_max = max(0, len(data) - start) // ENTRY_BYTES if self.slot_count else 0
        self.count = min(self.header.index_count, self.entry_max) if self.slot_count else 1
        self.slots: npt.NDArray[Any] = np.frombuffer(data, ">i4", self.slot_count, HEADER_BYTES)
        self.entries: npt.NDArray[Any] = np.frombuffer(data, ENTRY_DTYPE, max(1, self.count), start)[: self.count]

    @cached_property
    def is_ascending(self) -> bool:
        """Whether entries come in the order of their records; looks at every entry once."""
        physical = self.entries["physical_offset"][1:]
        return bool((physical[1:] >= physical[:-1]).all())

    @property
    def used_bytes(self) -> int:
        """Bytes up to the last entry; the rest of the file is a hole."""
        return self.position(self.count) if self.slot_count else len(self.data)

    def position(self, number: int) -> int:
        """Byte position of an entry."""
        return HEADER_BYTES + SLOT_BYTES * self.slot_count + ENTRY_BYTES * number

    def numbers_between(self, base: int, end: int) -> Ints:
        """Numbers of the entries that point into ``[base, end)`` of the log."""
        physical = self.entries["physical_offset"][1:]
        if self.is_ascending:
            lo, hi = np.searchsorted(physical, [base, end]).tolist()
            return np.arange(lo + 1, hi + 1)
        return np.flatnonzero((physical >= base) & (physical < end)) + 1


def find_slot_count(data: Bytes, header: IndexHeader) -> int:
    """How many slots an index file has, 0 when no number fits.

    RocketMQ's settings make 4 entries a slot, mostly; otherwise the number is the one with which the first and the last
    entry stand where they must and say what the header says of them.
    """
    room = len(data) - HEADER_BYTES
    if room < SLOT_BYTES + ENTRY_BYTES:
        return 0
    usual, rest = divmod(room, SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY_BYTES)
    if not rest and (header.index_count <= 1 or _fits(data, header, np.array([usual]))[0]):
        return usual
    # Slots take 4 bytes and entries 20, so of five numbers of slots one fits the length.
    first = next((n for n in range(1, 6) if not (room - SLOT_BYTES * n) % ENTRY_BYTES), 0)
    candidates = np.arange(first, room // SLOT_BYTES, 5) if first else np.zeros(0, np.int64)
    candidates = candidates[(room - SLOT_BYTES * candidates) // ENTRY_BYTES >= header.index_count]
    if header.index_count <= 1 or not candidates.size:
        return 0 if rest else usual
    fitting = candidates[_fits(data, header, candidates)]
    return int(fitting[0]) if fitting.size else (0 if rest else usual)


def _fits(data: Bytes, header: IndexHeader, slots: Ints) -> npt.NDArray[np.bool_]:
    """Whether first and last entry are where they must be for each number of slots."""
    offsets, numbers = window(data, ">i8"), window(data, ">i4")
    first = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES
    last = first + ENTRY_BYTES * (header.index_count - 2)
    inside = last + ENTRY_BYTES <= len(data)
    first, last = np.where(inside, first, 0), np.where(inside, last, 0)
    good = inside & (offsets[first + 4] == header.begin_physical_offset)
    good &= (offsets[last + 4] == header.end_physical_offset) & (numbers[first + 16] == 0)
    fits: npt.NDArray[np.bool_] = good
    return fits


class IndexPass:
    """Holds all index files of a store against its log, one commit-log file after the other."""

    def __init__(self, root: str, findings: Findings, *, settled: Settled, only: Collection[str] | None = None) -> None:
        """List and open the index files (of a part of a check: some of them, by path).

        Records that are not settled may lack their entries.
        """
        self.root = root
        self.findings = findings
        self.settled = settled
        self.files: list[IndexFile] = []
        self.entry_count = 0
        for listed in listing.list_index_files(root):
            if only is not None and listed.path not in only:
                continue
            if listed.length < HEADER_BYTES:
                findings.error("index-length", listed.path, 0, "an index file", f"{listed.length} bytes", REBUILD)
                continue
            self.files.append(IndexFile(listed, byte_view(mappings.map_read_only(listed.path))))
        self.total_bytes = sum(file.used_bytes for file in self.files)
        self.covered_from = self.files[0].header.begin_physical_offset if self.files else -1

    def structure(self, progress: Callable[[int], None]) -> None:
        """Check header, slots and chains of every file; ``progress`` is told the bytes done."""
        lengths = {len(file.data) for file in self.files}
        done = 0
        for file in self.files:
            self.structure_of(file, odd_length=len(lengths) > 1 and len(file.data) != max(lengths))
            done += file.used_bytes
            progress(done)

    def structure_of(self, file: IndexFile, *, odd_length: bool) -> None:
        """Check header, slots and chains of one file."""
        header = file.header
        if not file.slot_count or odd_length:
            found = f"{len(file.data)} bytes, {header.index_count} entries"
            self.findings.error("index-length", file.path, 0, "the length of the other index files", found, REBUILD)
            if not file.slot_count:
                return
        count = header.index_count - 1
        self.entry_count += max(0, count)
        if header.index_count > file.entry_max:
            self.findings.error("index-header", file.path, 36, f"at most {file.entry_max}", header.index_count, REBUILD)
        if not count:
            return
        physical = file.entries["physical_offset"]
        ends = ((16, "begin", header.begin_physical_offset, 1), (24, "end", header.end_physical_offset, file.count - 1))
        for at, name, stated, number in ends:
            if stated != int(physical[number]):
                expected = f"{name} physical offset {int(physical[number])} as in entry {number}"
                self.findings.error("index-header", file.path, at, expected, stated, REBUILD)
        used = self._chains(file)
        if used != header.used_slots:
            self.findings.error("index-header", file.path, 32, f"{used} used slots", header.used_slots, REBUILD)

    def _chains(self, file: IndexFile) -> int:
        """Compare each entry's link and each slot with what the entries' order demands. Returns the used slots."""
        parts = -(-file.count // _PART_ENTRIES)
        slot_of = file.entries["key_hash"][1:] % file.slot_count
        used = 0
        for part in range(parts):
            mine = np.flatnonzero(slot_of % parts == part) if parts > 1 else np.arange(file.count - 1)
            slots = slot_of[mine]
            order = np.argsort(slots, kind="stable")
            slots, numbers = slots[order], mine[order] + 1
            is_first = np.ones(len(numbers), np.bool_)
            is_first[1:] = slots[1:] != slots[:-1]
            expected = np.where(is_first, 0, np.concatenate(([0], numbers[:-1])))
            links = file.entries["previous"][numbers]
            self._report_links(file, numbers, expected, links)
            is_last = np.ones(len(numbers), np.bool_)
            is_last[:-1] = is_first[1:]
            used += int(is_first.sum())
            heads = np.zeros(file.slot_count, dtype=np.int32)
            heads[slots[is_last]] = numbers[is_last]
            own = slice(part, None, parts)
            self._report_slots(file, np.arange(file.slot_count)[own], heads[own], file.slots[own])
        return used

    def _report_links(self, file: IndexFile, numbers: Ints, expected: Ints, links: Ints) -> None:
        wrong = np.flatnonzero(links != expected)
        wanted = self.findings.wants(Severity.ERROR, "index-chain")
        for row in wrong[:wanted].tolist():
            at = file.position(int(numbers[row])) + 16
            expect = f"entry {int(expected[row])} as the one before in this slot"
            self.findings.error("index-chain", file.path, at, expect, int(links[row]), REBUILD)
        self.findings.count_more(Severity.ERROR, "index-chain", len(wrong) - wanted)

    def _report_slots(
        self, file: IndexFile, numbers: Ints, expected: npt.NDArray[Any], found: npt.NDArray[Any]
    ) -> None:
        wrong = np.flatnonzero(found != expected)
        wanted = self.findings.wants(Severity.ERROR, "index-slot")
        for row in wrong[:wanted].tolist():
            at = HEADER_BYTES + SLOT_BYTES * int(numbers[row])
            self.findings.error("index-slot", file.path, at, f"entry {int(expected[row])}", int(found[row]), REBUILD)
        self.findings.count_more(Severity.ERROR, "index-slot", len(wrong) - wanted)

    def file(self, log_file: StreamFile, facts: LogFacts, begin: int = 0, end: int | None = None) -> None:
        """Compare the entries that point into a file, or a piece of it, with the keys of its records, both ways."""
        if not self.files:
            return
        expected = np.sort(facts.positions[facts.index_rows] << 31 | facts.index_hashes)
        allowed = np.concatenate((expected, facts.positions[facts.tag_rows] << 31 | facts.tag_hashes))
        allowed.sort()
        found: list[Ints] = []
        low, high = log_file.base + begin, log_file.base + (log_file.length if end is None else end)
        for file in self.files:
            numbers = file.numbers_between(low, high)
            if not numbers.size:
                continue
            entries = file.entries[numbers]
            positions = entries["physical_offset"].astype(np.int64) - log_file.base
            hashes = entries["key_hash"].astype(np.int64) & 0x7FFFFFFF
            marks = positions << 31 | hashes
            self._report_strangers(file, numbers, marks, allowed)
            self._check_times(file, numbers, entries, positions, facts)
            found.append(marks)
        self._report_missing(log_file, facts, expected, np.sort(np.concatenate(found)) if found else expected[:0])

    def _report_strangers(self, file: IndexFile, numbers: Ints, marks: Ints, allowed: Ints) -> None:
        if len(allowed):
            at = np.minimum(np.searchsorted(allowed, marks), len(allowed) - 1)
            strange = np.flatnonzero(allowed[at] != marks)
        else:
            strange = np.arange(len(marks))
        wanted = self.findings.wants(Severity.ERROR, "index-entry")
        for row in strange[:wanted].tolist():
            number = int(numbers[row])
            entry = file.entries[number]
            found = f"hash {int(entry['key_hash'])}, physical offset {int(entry['physical_offset'])}"
            expect = "the hash of a key of the record there"
            self.findings.error("index-entry", file.path, file.position(number), expect, found, REBUILD)
        self.findings.count_more(Severity.ERROR, "index-entry", len(strange) - wanted)

    def _check_times(
        self, file: IndexFile, numbers: Ints, entries: npt.NDArray[Any], positions: Ints, facts: LogFacts
    ) -> None:
        """Compare entries' seconds with their records' store times; the first one of a file counts from another
        begin."""
        if not len(facts.positions):
            return
        rows = np.minimum(np.searchsorted(facts.positions, positions), len(facts.positions) - 1)
        behind = facts.store_timestamps[rows] - file.header.begin_timestamp
        seconds = np.clip(behind // 1000, 0, TIME_DELTA_MAX)
        wrong = (facts.positions[rows] == positions) & (entries["time_delta_seconds"] != seconds) & (numbers > 1)
        stated = ((0, "begin", file.header.begin_timestamp, 1), (8, "end", file.header.end_timestamp, file.count - 1))
        for header_at, name, time, number in stated:
            row = int(np.searchsorted(numbers, number))
            if row < len(numbers) and numbers[row] == number and facts.positions[rows[row]] == positions[row]:
                actual = int(facts.store_timestamps[rows[row]])
                if actual != time:
                    expected = f"{name} timestamp {actual} as of the record of entry {number}"
                    self.findings.error("index-header", file.path, header_at, expected, time, REBUILD)
        for row in np.flatnonzero(wrong).tolist():
            at = file.position(int(numbers[row])) + 12
            expected = f"{int(seconds[row])} s behind the file's begin"
            found = int(entries["time_delta_seconds"][row])
            self.findings.error("index-time", file.path, at, expected, found, REBUILD)

    def _report_missing(self, log_file: StreamFile, facts: LogFacts, expected: Ints, found: Ints) -> None:
        marks, wanted_counts = np.unique(expected, return_counts=True)
        lo = np.searchsorted(found, marks, side="left")
        there = np.searchsorted(found, marks, side="right") - lo
        missing = marks[(there < wanted_counts) & ((marks >> 31) + log_file.base >= self.covered_from)]
        if not missing.size:
            return
        rows = np.searchsorted(facts.positions, missing >> 31)
        pending = facts.store_timestamps[rows] >= self.settled.before_ms
        pending &= (missing >> 31) + log_file.base >= self.settled.entries_below
        advice = "nothing to do: the broker does this while it runs, or when it starts again"
        for severity, kind, which, what in (
            (Severity.INFO, "index-pending", pending, advice),
            (Severity.ERROR, "index-missing", ~pending, REBUILD),
        ):
            listed = self.findings.wants(severity, kind)
            for mark in missing[which][:listed].tolist():
                text = f"an index entry with hash {mark & 0x7FFFFFFF} for this record"
                self.findings.add(severity, kind, log_file.path, mark >> 31, text, "none", what)
            self.findings.count_more(severity, kind, int(which.sum()) - listed)

    def finish(self, max_physical_offset: int) -> None:
        """Look at entries that point behind the log's end, and at what the headers say of times."""
        for file in self.files:
            self.behind(file, max_physical_offset)

    def behind(self, file: IndexFile, max_physical_offset: int) -> None:
        """Look for entries of one file that point behind the log's end."""
        behind = np.flatnonzero(file.entries["physical_offset"][1:] >= max_physical_offset)
        if behind.size:
            number = int(behind[0]) + 1
            found = f"{len(behind)} entries, the first at {int(file.entries['physical_offset'][number])}"
            advice = "left over from a cut of the log, or of records that are lost; lookups skip them"
            expected = f"physical offsets below {max_physical_offset}"
            self.findings.warn("index-behind-log", file.path, file.position(number), expected, found, advice)
