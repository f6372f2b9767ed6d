"""Pass over the consume queues: each unit against its record and each record against its unit.

Queues ascend in physical offset, so the units of one commit-log file are one stretch of each queue. File by file every
queue hands out its next stretch, and one comparison for all of them answers both questions. Damaged units must not
stop a queue: a stretch goes on behind them as long as later units still point into the file.

Units at the end of a queue that the log does not bear out are kept back: a truncation leaves such units behind, and
only a good unit behind them shows that they are damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stratamq.errors import StoreError
from stratamq.findings import Findings, Severity
from stratamq.formats.consume_queue import PREFILL_SIZE, UNIT_BYTES, UNIT_DTYPE
from stratamq.formats.vector import Ints, Mask
from stratamq.logstore import listing
from stratamq.logstore.check_log import CUSTOM_DELAY, SCHEDULE_TOPIC, LogFacts, QueueNames, Settled
from stratamq.logstore.deletions import read_marks
from stratamq.logstore.light_queues import LMQ_PREFIX
from stratamq.logstore.listing import Stream, StreamFile
from stratamq.logstore.queue_files import QueueFiles
from stratamq.logstore.types import QueueKey

_READ_UNITS: Final = 65_536
_EXT_CODE_MAX: Final = -(2**31) - 1
"""Tags codes up to this are addresses in the consume-queue extension."""
REBUILD: Final = "stop the broker, move this queue's directory away and start: it is built again from the commit log"


class _Queue:
    """Where the pass stands in one queue: what is read but belongs to later files of the log, and what is in doubt."""

    def __init__(self, key: QueueKey, number: int, stream: Stream) -> None:
        self.key = key
        self.number = number
        self.files = QueueFiles(stream)
        self.stream = stream
        self.stop = _written_end(stream, self.files)
        self.at = self.files.start
        self.offsets: Ints = np.zeros(0, np.int64)
        self.units: npt.NDArray[Any] = np.zeros(0, UNIT_DTYPE)
        self.unit_count = 0
        self.last_good = -1
        self.last_physical = -1
        self.doubtful: list[tuple[int, str, str]] = []
        self.doubtful_count = 0

    def begin_at(self, physical_offset: int) -> None:
        """Go to the first unit that points at or behind an offset of the log. The units must ascend."""
        low, high = self.at, self.stop
        while low < high:
            middle = (low + high) // 2
            if int(self.files.units(middle, middle + 1)["physical_offset"][0]) < physical_offset:
                low = middle + 1
            else:
                high = middle
        self.files.close()
        self.at = low

    def read_on(self) -> npt.NDArray[Any]:
        """Read the next units into what waits; returns them, none at the end."""
        fresh = self.files.units(self.at, min(self.stop, self.at + _READ_UNITS))
        self.offsets = np.concatenate((self.offsets, np.arange(self.at, self.at + len(fresh))))
        self.units = np.concatenate((self.units, fresh))
        self.at += len(fresh)
        return fresh

    def take(self, which: Mask) -> tuple[Ints, npt.NDArray[Any]]:
        """Take units out of what waits; offsets and units."""
        taken = self.offsets[which], self.units[which]
        self.offsets, self.units = self.offsets[~which], self.units[~which]
        return taken

    def doubt(self, offsets: Ints, units: npt.NDArray[Any], expected: str, found: str) -> None:
        """Keep bad units back until it is known whether good ones follow."""
        self.doubtful_count += len(offsets)
        for offset, unit in zip(offsets[: max(0, 50 - len(self.doubtful))].tolist(), units, strict=False):
            place = f"physical offset {int(unit['physical_offset'])}, size {int(unit['size'])}"
            self.doubtful.append((offset, expected, f"{place}{found}"))

    def path(self, offset: int) -> tuple[str, int]:
        """File and byte position of a unit."""
        byte = offset * UNIT_BYTES
        for file in self.stream.files:
            if file.base <= byte < file.base + file.length:
                return file.path, byte - file.base
        return os.path.dirname(self.stream.files[0].path) if self.stream.files else "", byte


class QueuePass:
    """Holds all queues of a store against its log, one commit-log file after the other."""

    def __init__(
        self,
        root: str,
        findings: Findings,
        names: QueueNames,
        *,
        min_physical_offset: int,
        settled: Settled,
        is_mine: Callable[[QueueKey], bool] = lambda key: True,
        from_physical_offset: int = 0,
    ) -> None:
        """List the queues. Records that are not settled may lack their unit.

        A part of a check (`check_parts`) looks at the queues that are its own, and at units from a physical offset on,
        which is found by halves: so these queues must ascend.
        """
        self.root = root
        self._is_mine = is_mine
        self.findings = findings
        self.names = names
        self.min_physical_offset = min_physical_offset
        self.settled = settled
        self.queues: dict[int, _Queue] = {}
        self.absent: dict[int, int] = {}
        self.deleted: dict[str, int] = {}
        """Topics that were deleted, and up to where in the log: records below have no unit."""
        try:
            self.deleted = read_marks(root)
        except StoreError as unreadable:
            findings.add_problem(unreadable, "remove the file; topics deleted of late may come back at the next start")
        found = listing.list_queues(root)
        file_bytes = listing.unit_file_bytes(found)
        for key, directory in found:
            if not is_mine(key):
                continue
            stream = listing.list_stream(directory, file_bytes=file_bytes, multiple_of=UNIT_BYTES)
            for problem in stream.problems:
                self._note(problem)
            number = names.number(key)
            queue = self.queues[number] = _Queue(key, number, stream)
            if from_physical_offset:
                queue.begin_at(from_physical_offset)

    def _note(self, problem: StoreError) -> None:
        self.findings.add_problem(problem, REBUILD)

    def file(self, file: StreamFile, facts: LogFacts, begin: int = 0, end: int | None = None) -> None:
        """Compare the units that point into ``file`` with its records, both ways.

        With ``begin`` and ``end`` into that piece of it: for queues whose units ascend, pieces one after the other come
        to what the whole file would.
        """
        low, high = file.base + begin, file.base + (file.length if end is None else end)
        stretches = [(queue, *self._units_into(queue, low, high)) for queue in self.queues.values()]
        stretches = [stretch for stretch in stretches if len(stretch[1])]
        covered = np.zeros(len(facts.positions), dtype=np.bool_)
        if stretches:
            lengths = [len(offsets) for _, offsets, _ in stretches]
            offsets = np.concatenate([offsets for _, offsets, _ in stretches])
            units = np.concatenate([units for _, _, units in stretches])
            numbers = np.repeat([queue.number for queue, _, _ in stretches], lengths)
            lenient = np.repeat([queue.key.topic.startswith(LMQ_PREFIX) for queue, _, _ in stretches], lengths)
            rows, good = _match(facts, file.base, units, offsets, numbers, lenient)
            covered[rows[good]] = True
            bounds = np.concatenate(([0], np.cumsum(lengths))).tolist()
            for (queue, _, _), start, stop in zip(stretches, bounds[:-1], bounds[1:], strict=True):
                part = slice(start, stop)
                self._settle(queue, offsets[part], units[part], rows[part], good[part], facts, file.base)
            self._check_codes(facts, units, offsets, numbers, rows, good & ~lenient)
        self._report_missing(facts, covered, file.base)

    def finish(self, max_physical_offset: int, *, is_clean: bool) -> None:
        """Look at what is left in the queues behind the end of the log, and say what is in doubt."""
        self.drain()
        for queue in self.queues.values():
            self.report_damaged(queue)  # a unit that points behind the log, with good ones behind it
            if queue.doubtful_count:
                self.report_leftovers(queue, max_physical_offset, is_clean=is_clean)

    def drain(self) -> None:
        """Doubt all units that no file of the log has taken."""
        for queue in self.queues.values():
            while queue.at < queue.stop or len(queue.units):
                queue.read_on()
                offsets, units = queue.take(np.ones(len(queue.units), np.bool_))
                written = units["size"] != 0
                queue.doubt(offsets[written], units[written], "a record of this queue", ": behind the end of the log")
            queue.files.close()

    def _units_into(self, queue: _Queue, low: int, high: int) -> tuple[Ints, npt.NDArray[Any]]:
        """The units of a queue that point into a stretch of the log. Reads on until none of what it reads does."""
        if not queue.unit_count and not len(queue.units):
            self._skip_expired(queue)
        last = queue.units
        while queue.at < queue.stop:
            if len(last) and not _points_into(last, low, high).any():
                break
            last = queue.read_on()
        queue.files.close()
        offsets, units = queue.take(_points_into(queue.units, low, high))
        queue.unit_count += len(units)
        # What points before this stretch, or nowhere, can become good no more. Zeros at the end are no units at all.
        strays = (queue.units["physical_offset"] < low) | (queue.units["size"] <= 0)
        if strays.any():
            queue.doubt(*queue.take(strays), "a unit of a record", ": no record begins there")
        return offsets, units

    def _skip_expired(self, queue: _Queue) -> None:
        """Step over units of deleted log files and those that fill up a queue's beginning."""
        while queue.at < queue.stop and not len(queue.units):
            fresh = queue.read_on()
            expired = (fresh["physical_offset"] < self.min_physical_offset) & (fresh["physical_offset"] >= 0)
            expired |= (fresh["physical_offset"] == 0) & (fresh["size"] == PREFILL_SIZE)
            expired &= fresh["size"] > 0
            count = len(fresh) if expired.all() else int(np.flatnonzero(~expired)[0])
            queue.take(np.arange(len(fresh)) < count)

    def _settle(
        self,
        queue: _Queue,
        offsets: Ints,
        units: npt.NDArray[Any],
        rows: Ints,
        good: Mask,
        facts: LogFacts,
        base: int,
    ) -> None:
        """Note good and bad units; the bad ones with good ones behind them are damage."""
        self._check_order(queue, offsets[good], units[good])
        if good.any():
            queue.last_good = max(queue.last_good, int(offsets[good].max()))
        for number in np.flatnonzero(~good).tolist():
            expected, found = _describe(facts, base, units[number], int(rows[number]), self.names, int(offsets[number]))
            queue.doubt(offsets[number : number + 1], units[number : number + 1], expected, found)
        self.report_damaged(queue)

    def report_damaged(self, queue: _Queue) -> None:
        """Units in doubt with a good one behind them are damage."""
        if queue.doubtful_count and queue.doubtful[0][0] < queue.last_good:
            damaged = [doubt for doubt in queue.doubtful if doubt[0] < queue.last_good]
            for offset, expected, found in damaged:
                path, position = queue.path(offset)
                self.findings.error("unit", path, position, expected, found, REBUILD)
            queue.doubtful = [doubt for doubt in queue.doubtful if doubt[0] >= queue.last_good]
            left = queue.doubtful_count - len(damaged) - len(queue.doubtful)
            self.findings.count_more(Severity.ERROR, "unit", left)
            queue.doubtful_count = len(queue.doubtful)

    def _check_order(self, queue: _Queue, offsets: Ints, units: npt.NDArray[Any]) -> None:
        physical = np.concatenate(([queue.last_physical], units["physical_offset"].astype(np.int64)))
        for row in np.flatnonzero(np.diff(physical) <= 0).tolist():
            path, position = queue.path(int(offsets[row]))
            expected = f"a physical offset above {int(physical[row])}"
            self.findings.error("order", path, position, expected, int(physical[row + 1]), REBUILD)
        queue.last_physical = int(physical[-1])

    def _check_codes(
        self, facts: LogFacts, units: npt.NDArray[Any], offsets: Ints, numbers: Ints, rows: Ints, good: Mask
    ) -> None:
        codes = units["tags_code"].astype(np.int64)
        expected = facts.tags_codes[rows] if len(facts.tags_codes) else codes
        for row in np.flatnonzero(good & (codes != expected)).tolist():
            queue = self.queues[int(numbers[row])]
            if codes[row] <= _EXT_CODE_MAX and self._has_extension(queue.key):
                continue
            code, wanted = int(codes[row]), int(expected[row])
            delay = code - int(facts.store_timestamps[rows[row]])
            custom = wanted == CUSTOM_DELAY or queue.key.topic == SCHEDULE_TOPIC
            if custom and delay > 0 and delay % 1000 == 0:
                continue  # another messageDelayLevel than the default one
            path, position = queue.path(int(offsets[row]))
            self.findings.error("tags-code", path, position + 12, wanted, code, REBUILD)

    def _has_extension(self, key: QueueKey) -> bool:
        """Whether a queue's tags codes may be addresses in an extension file."""
        return os.path.isdir(os.path.join(self.root, "consumequeue_ext", key.topic, str(key.queue_id)))

    def _report_missing(self, facts: LogFacts, covered: Mask, base: int) -> None:
        missing = facts.is_queued & ~covered
        for row in np.flatnonzero(missing).tolist():
            number = int(facts.queue_numbers[row])
            queue = self.queues.get(number)
            offset = int(facts.queue_offsets[row])
            key = self.names.keys[number]
            if base + int(facts.positions[row]) < self.deleted.get(key.topic, 0):
                continue
            if not self._is_mine(key):
                continue
            if queue is None:
                self.absent[number] = self.absent.get(number, 0) + 1
                continue
            if offset < queue.files.start or key.topic.startswith(LMQ_PREFIX):
                continue  # files of the queue that are deleted already, before the log's
            physical_offset = base + int(facts.positions[row])
            expected = f"a unit for the record at physical offset {physical_offset}"
            path, position = queue.path(offset)
            stored = int(facts.store_timestamps[row])
            if stored >= self.settled.before_ms and physical_offset >= self.settled.units_below:
                advice = "nothing to do: the broker does this while it runs, or when it starts again"
                self.findings.inform("unit-pending", path, position, expected, "not there yet", advice)
            else:
                self.findings.error("unit-missing", path, position, expected, "none", REBUILD)

    def report_leftovers(self, queue: _Queue, max_physical_offset: int, *, is_clean: bool) -> None:
        """Say what the units at a queue's end are that the log does not bear out."""
        offset, expected, found = queue.doubtful[0]
        path, position = queue.path(offset)
        points_at_end = any(f"offset {max_physical_offset}," in text for _, _, text in queue.doubtful)
        if points_at_end and is_clean:
            advice = "the log ends where this unit's record should be, though the store was stopped in order"
            self.findings.error("unit-behind-log", path, position, expected, found, advice)
            return
        advice = (
            f"{queue.doubtful_count} units at the queue's end that the log does not bear out: left over from a cut, or "
            "their records are damaged, which is reported then; they are not read"
        )
        self.findings.inform("leftover-units", path, position, "nothing behind the queue's end", found, advice)


def _match(
    facts: LogFacts, base: int, units: npt.NDArray[Any], offsets: Ints, numbers: Ints, lenient: Mask
) -> tuple[Ints, Mask]:
    """For each unit the row of the record it points at (or some row), and whether that is the record it should."""
    if not len(facts.positions):
        return np.zeros(len(units), np.int64), np.zeros(len(units), np.bool_)
    positions = units["physical_offset"].astype(np.int64) - base
    rows = np.minimum(np.searchsorted(facts.positions, positions), len(facts.positions) - 1)
    good = (facts.positions[rows] == positions) & (facts.sizes[rows] == units["size"])
    same = (facts.queue_numbers[rows] == numbers) & (facts.queue_offsets[rows] == offsets) & facts.is_queued[rows]
    good &= same | lenient
    return rows, good


def _points_into(units: npt.NDArray[Any], base: int, end: int) -> Mask:
    """Which units point between two physical offsets."""
    physical = units["physical_offset"]
    inside: Mask = (physical >= base) & (physical < end) & (units["size"] > 0)
    inside &= ~((physical == 0) & (units["size"] == PREFILL_SIZE))
    return inside


def _describe(
    facts: LogFacts, base: int, unit: npt.NDArray[Any], row: int, names: QueueNames, offset: int
) -> tuple[str, str]:
    """What a bad unit should be, and what is at the place that it names."""
    physical, size = int(unit["physical_offset"]), int(unit["size"])
    if not len(facts.positions) or int(facts.positions[row]) + base != physical:
        return "the place of a record", ": no record begins there"
    if int(facts.sizes[row]) != size:
        return f"size {int(facts.sizes[row])}", ""
    key = names.keys[int(facts.queue_numbers[row])]
    there = f"{key.topic}, queue {key.queue_id}, queue offset {int(facts.queue_offsets[row])}"
    state = "" if facts.is_queued[row] else " that belongs into no queue"
    return f"a record of this queue with queue offset {offset}", f": a record{state} of {there}"


def _written_end(stream: Stream, files: QueueFiles) -> int:
    """One above the last unit that is not zeros, searching only what the file system has stored."""
    for file in reversed(stream.newest_run()):
        last = _last_data_byte(file)
        if last >= 0:
            return (file.base + last) // UNIT_BYTES + 1
    return files.start


def _last_data_byte(file: StreamFile) -> int:
    """Position of the last byte that is not zero, -1 when there is none."""
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, last = 0, -1
        while at < file.length:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # only a hole follows
                break
            at = os.lseek(fd, start, os.SEEK_HOLE)
            data = np.frombuffer(os.pread(fd, at - start, start), dtype=np.uint8)
            used = np.flatnonzero(data)
            if used.size:
                last = start + int(used[-1])
        return last
    finally:
        os.close(fd)
