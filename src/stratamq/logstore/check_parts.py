"""The check of a store in parts that know nothing of each other: for stores that one process takes too long to read.

`PartedCheck` plans, hands out tasks, and puts their answers together; a task is a function of plain numbers and of the
files, and its answer a small JSON value. Whoever runs the tasks (one after the other here, by Spark in
`pipeline.jobs.verify`) passes a `Runner`. The findings are those of `check.check_store`, in the same words, because the
same passes make them:

1. index files, one a task: structure, and what each covers (`check_index_file`);
2. consume queues, some a task: do their units ascend (`odd_queues`)? Where they do, a search by halves finds the units
   of any part of the log. A queue that does not ascend is damaged; a task of its own walks it from end to end;
3. parts of the commit log: records, units and entries of some whole files (`check_part`).

Memory of a task: the arrays of `check_log.PIECE_ROWS` records, their positions in one commit-log file, and one page of
each queue. The task for damaged queues needs what `check_store` does: the arrays of one file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from stratamq.findings import Findings, Severity
from stratamq.formats.consume_queue import PREFILL_SIZE
from stratamq.formats.vector import byte_view
from stratamq.logstore import check_meta, listing, mappings
from stratamq.logstore.check import CheckReport, TolerantSnapshot, finish_check, settled_of
from stratamq.logstore.check_index import IndexPass
from stratamq.logstore.check_log import PIECE_ROWS, LogPass, QueueNames, Settled
from stratamq.logstore.check_queues import QueuePass
from stratamq.logstore.listing import StreamFile
from stratamq.logstore.types import QueueKey

PART_BYTES: Final = 1 << 30
QUEUES_A_TASK: Final = 64
_DOUBTS_KEPT: Final = 50
_UNITS_A_READ: Final = 1 << 16

Json = dict[str, Any]
Runner = Callable[[Callable[[Any], Json], Sequence[Any]], list[Json]]
"""Calls a function once for each task, anywhere and in any order, and returns the answers in the order of the tasks."""


def run_here(fn: Callable[[Any], Json], tasks: Sequence[Any]) -> list[Json]:
    """A runner: one task after the other, in this process."""
    return [fn(task) for task in tasks]


class IndexTask(NamedTuple):
    """One index file, to be looked at by itself."""

    root: str
    path: str
    odd_length: bool
    max_physical_offset: int


class ShapeTask(NamedTuple):
    """Queues whose units may or may not ascend."""

    root: str
    queues: tuple[QueueKey, ...]
    min_physical_offset: int


class PartTask(NamedTuple):
    """Some commit-log files that follow each other, and what is to be compared with them.

    ``queues`` are those that a part looks at (``is_odd``) or leaves alone (not ``is_odd``); ``indexed`` are the bases
    of the files that are compared with the index.
    """

    root: str
    files: tuple[StreamFile, ...]
    max_physical_offset: int
    min_physical_offset: int
    settled: Settled
    queues: tuple[QueueKey, ...]
    is_odd: bool
    is_first: bool
    is_last: bool
    index_paths: tuple[str, ...]
    covered_from: int
    indexed: tuple[int, ...]
    newest_before: int = 0
    rows_max: int = PIECE_ROWS


class PartedCheck:
    """One check: call `run`. Everything is decided on the snapshot that the constructor takes."""

    def __init__(
        self, path: Path, *, part_bytes: int = PART_BYTES, index_every: int = 1, rows_max: int = PIECE_ROWS
    ) -> None:
        """Look at the directory. ``index_every``: compare the index with every n-th file of the log, 0 for none.
        ``rows_max``: records that a task holds at a time.

        Raises NotAStore.
        """
        self.findings = findings = Findings()
        self.root = str(path)
        self._part_bytes = part_bytes
        self._index_every = index_every
        self._rows_max = rows_max
        self.snapshot = snapshot = TolerantSnapshot(path, findings)
        for stray in listing.list_strays(self.root):
            findings.add_problem(stray, "RocketMQ refuses to start with such a file; move it away")
        self._config = check_meta.check_config(snapshot, findings)
        self._settled = settled_of(snapshot)
        self._names = QueueNames()
        self._log_pass = LogPass(findings, self._names)
        low = snapshot.min_physical_offset
        self._queue_pass = QueuePass(self.root, findings, self._names, min_physical_offset=low, settled=self._settled)
        self._index_pass = IndexPass(self.root, findings, settled=self._settled)
        self._index_ranges: dict[str, tuple[int, int]] = {}
        self._late: list[Json] = []
        self.odd: frozenset[QueueKey] = frozenset()

    @property
    def files(self) -> list[StreamFile]:
        """The commit-log files that hold something."""
        return [file for file in self.snapshot.files if file.base < self.snapshot.max_physical_offset]

    def parts(self) -> list[list[StreamFile]]:
        """The commit log cut into parts of whole files."""
        found: list[list[StreamFile]] = []
        size = 0
        for file in self.files:
            if not found or size + file.length > self._part_bytes:
                found.append([])
                size = 0
            found[-1].append(file)
            size += file.length
        return found

    def run(self, runner: Runner) -> CheckReport:
        """Do everything and say what was found."""
        self._take_index(runner(check_index_file, self.index_tasks()))
        shapes = runner(odd_queues, self.shape_tasks())
        self.odd = frozenset(QueueKey(*key) for answer in shapes for key in answer["odd"])
        tasks = self.part_tasks()
        answers = runner(check_part, tasks)
        self._take_parts(tasks, answers, runner)
        return self._finish()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def index_tasks(self) -> list[IndexTask]:
        """One for each index file that can be opened."""
        lengths = {len(file.data) for file in self._index_pass.files}
        return [
            IndexTask(
                self.root,
                file.path,
                len(lengths) > 1 and len(file.data) != max(lengths),
                self.snapshot.max_physical_offset,
            )
            for file in self._index_pass.files
        ]

    def shape_tasks(self) -> list[ShapeTask]:
        """All queues, some to a task."""
        keys = [queue.key for queue in self._queue_pass.queues.values()]
        low = self.snapshot.min_physical_offset
        groups = [tuple(keys[at : at + QUEUES_A_TASK]) for at in range(0, len(keys), QUEUES_A_TASK)]
        return [ShapeTask(self.root, group, low) for group in groups]

    def part_tasks(self) -> list[PartTask]:
        """The parts of the log; and, when queues are damaged, one task more that walks these alone."""
        parts = self.parts()
        tasks = [
            self._part_task(
                files, is_odd=False, is_first=number == 0, is_last=number == len(parts) - 1, with_index=True
            )
            for number, files in enumerate(parts)
        ]
        if self.odd or not parts:
            tasks.append(self._part_task(self.files, is_odd=True, is_first=True, is_last=True, with_index=False))
        return tasks

    def _part_task(
        self, files: Sequence[StreamFile], *, is_odd: bool, is_first: bool, is_last: bool, with_index: bool
    ) -> PartTask:
        looked_at = [file for file in files if with_index and self._is_indexed(file)]
        paths = [
            path
            for path, (low, high) in self._index_ranges.items()
            if any(low < file.base + file.length and high >= file.base for file in looked_at)
        ]
        if looked_at and not paths:  # all of its entries are missing, which only a pass that has a file says
            paths = [file.path for file in self._index_pass.files[:1]]
        return PartTask(
            root=self.root,
            files=tuple(files),
            max_physical_offset=self.snapshot.max_physical_offset,
            min_physical_offset=self.snapshot.min_physical_offset,
            settled=self._settled,
            queues=tuple(sorted(self.odd)),
            is_odd=is_odd,
            is_first=is_first,
            is_last=is_last,
            index_paths=tuple(paths),
            covered_from=self._index_pass.covered_from,
            indexed=tuple(file.base for file in looked_at),
            rows_max=self._rows_max,
        )

    def _is_indexed(self, file: StreamFile) -> bool:
        return self._index_every > 0 and not file.base // file.length % self._index_every

    # --- answers ------------------------------------------------------------------------------------------------------

    def _take_index(self, answers: Sequence[Json]) -> None:
        for file, answer in zip(self._index_pass.files, answers, strict=True):
            add_findings(self.findings, answer["structure"])
            self._late.append(answer["behind"])
            self._index_pass.entry_count += answer["entries"]
            if answer["range"] is not None:
                self._index_ranges[file.path] = answer["range"][0], answer["range"][1]

    def _take_parts(self, tasks: Sequence[PartTask], answers: Sequence[Json], runner: Runner) -> None:
        again: list[PartTask] = []
        log = self._log_pass
        queues = {queue.key: queue for queue in self._queue_pass.queues.values()}
        for task, answer in zip(tasks, answers, strict=True):
            add_findings(self.findings, answer["findings"])
            for topic, queue_id, units, last_good, doubts, listed in answer["queues"]:
                queue = queues[QueueKey(topic, queue_id)]
                queue.unit_count += units
                queue.last_good = max(queue.last_good, last_good)
                queue.doubtful_count += doubts
                room = _DOUBTS_KEPT - len(queue.doubtful)
                queue.doubtful.extend((row[0], row[1], row[2]) for row in listed[: max(0, room)])
            if task.is_odd:
                continue
            for topic, queue_id, count in answer["absent"]:
                number = self._names.number(QueueKey(topic, queue_id))
                self._queue_pass.absent[number] = self._queue_pass.absent.get(number, 0) + count
            log.record_count += answer["records"]
            if answer["first_ms"] and answer["first_ms"] < log.newest_store_timestamp:
                again.append(task._replace(newest_before=log.newest_store_timestamp))
            else:
                log.clock_steps += answer["clock_steps"]
            log.newest_store_timestamp = max(log.newest_store_timestamp, answer["newest_ms"])
        # A clock that was set back from one part to the next: only now is it known what came before.
        log.clock_steps += sum(answer["clock_steps"] for answer in runner(count_clock_steps, again))

    def _finish(self) -> CheckReport:
        for queue in self._queue_pass.queues.values():
            self._queue_pass.report_damaged(queue)
            if queue.doubtful_count:
                self._queue_pass.report_leftovers(
                    queue, self.snapshot.max_physical_offset, is_clean=self.snapshot.was_stopped_cleanly
                )
        for behind in self._late:
            add_findings(self.findings, behind)
        return finish_check(
            self.snapshot, self.findings, self._config, self._log_pass, self._queue_pass, self._index_pass
        )


# --- what a task does ---------------------------------------------------------------------------------------------


def check_index_file(task: IndexTask) -> Json:
    """Look at one index file by itself: its structure, which part of the log it covers, and what points behind it."""
    structure, behind = Findings(), Findings()
    index = IndexPass(task.root, structure, settled=Settled(0, 0, 0), only={task.path})
    covered = None
    for file in index.files:
        index.structure_of(file, odd_length=task.odd_length)
        physical = file.entries["physical_offset"][1:]
        covered = [int(physical.min()), int(physical.max())] if len(physical) else None
        index.findings = behind
        index.behind(file, task.max_physical_offset)
    return {
        "structure": plain_findings(structure),
        "behind": plain_findings(behind),
        "entries": index.entry_count,
        "range": covered,
    }


def odd_queues(task: ShapeTask) -> Json:
    """The queues of a task whose units do not ascend from the first one on that is not of a deleted file."""
    wanted = frozenset(task.queues)
    found = QueuePass(
        task.root,
        Findings(),
        QueueNames(),
        min_physical_offset=task.min_physical_offset,
        settled=Settled(0, 0, 0),
        is_mine=wanted.__contains__,
    )
    odd: list[list[Any]] = []
    for queue in found.queues.values():
        last, at = -1, queue.at
        while at < queue.stop:
            units = queue.files.units(at, min(queue.stop, at + _UNITS_A_READ))
            if not len(units):
                break
            at += len(units)
            physical, sizes = units["physical_offset"].astype(np.int64), units["size"]
            expired = (physical >= 0) & (physical < task.min_physical_offset) | (physical == 0) & (
                sizes == PREFILL_SIZE
            )
            if last < 0:  # only a queue's beginning may be of what is gone
                first = int(np.argmin(expired & (sizes > 0))) if not (expired & (sizes > 0)).all() else len(units)
                physical, sizes, expired = physical[first:], sizes[first:], expired[first:]
            if expired.any() or (sizes <= 0).any() or (np.diff(np.concatenate(([last], physical))) <= 0).any():
                odd.append(list(queue.key))
                break
            last = int(physical[-1]) if len(physical) else last
        queue.files.close()
    return {"odd": odd}


def check_part(task: PartTask) -> Json:
    """Records of some files, and the units and index entries that point into them, each way."""
    findings, names, chosen = Findings(), QueueNames(), frozenset(task.queues)
    log_pass = LogPass(Findings() if task.is_odd else findings, names)
    queue_pass = QueuePass(
        task.root,
        Findings(),  # what is wrong with the files themselves was noted when the check was planned
        names,
        min_physical_offset=task.min_physical_offset,
        settled=task.settled,
        is_mine=lambda key: (key in chosen) == task.is_odd,
        from_physical_offset=0 if task.is_first or not task.files else task.files[0].base,
    )
    queue_pass.findings = findings
    index_pass = IndexPass(task.root, Findings(), settled=task.settled, only=frozenset(task.index_paths))
    index_pass.findings, index_pass.covered_from = findings, task.covered_from
    for file in task.files:
        end = min(file.length, task.max_physical_offset - file.base)
        log, begin = byte_view(mappings.map_read_only(file.path)), 0
        # Units that do not ascend may point back into any piece, so their queues are compared with whole files.
        rows_max = len(log) if task.is_odd else task.rows_max
        for stop, facts in log_pass.pieces(log, file, end, rows_max=rows_max):
            queue_pass.file(file, facts, begin, stop)
            if file.base in task.indexed:
                index_pass.file(file, facts, begin, stop)
            begin = stop
    if task.is_last:
        queue_pass.drain()
    return {
        "findings": plain_findings(findings),
        "records": log_pass.record_count,
        "clock_steps": log_pass.clock_steps,
        "first_ms": log_pass.first_store_timestamp,
        "newest_ms": log_pass.newest_store_timestamp,
        "absent": [[*names.keys[number], count] for number, count in queue_pass.absent.items()],
        "queues": [
            [*queue.key, queue.unit_count, queue.last_good, queue.doubtful_count, queue.doubtful]
            for queue in queue_pass.queues.values()
            if queue.unit_count or queue.doubtful_count
        ],
    }


def count_clock_steps(task: PartTask) -> Json:
    """Records of a part that are older than one before them, of which the newest was stored at ``newest_before``."""
    log_pass = LogPass(Findings(), QueueNames())
    log_pass.newest_store_timestamp = task.newest_before
    for file in task.files:
        end = min(file.length, task.max_physical_offset - file.base)
        for _ in log_pass.pieces(byte_view(mappings.map_read_only(file.path)), file, end, rows_max=task.rows_max):
            pass
    return {"clock_steps": log_pass.clock_steps}


# --- findings as plain values -------------------------------------------------------------------------------------


def plain_findings(findings: Findings) -> Json:
    """Findings as a JSON value."""
    return {
        "listed": [[one.severity.value, *one[1:]] for one in findings.listed],
        "counts": [[severity.value, kind, count] for (severity, kind), count in findings.counts.items()],
    }


def add_findings(findings: Findings, plain: Mapping[str, Any]) -> None:
    """Add what `plain_findings` gave."""
    listed: dict[tuple[Severity, str], int] = {}
    for severity, kind, path, offset, expected, found, advice in plain["listed"]:
        findings.add(Severity(severity), kind, path, offset, expected, found, advice)
        listed[Severity(severity), kind] = listed.get((Severity(severity), kind), 0) + 1
    for severity, kind, count in plain["counts"]:
        findings.count_more(Severity(severity), kind, count - listed.get((Severity(severity), kind), 0))
