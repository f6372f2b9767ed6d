"""Is a store whole? Every checksum and every cross reference, read-only; the answer is a list of findings.

Passes, in this order, each fit to run on a store that the others found damaged:

1. files: names, lengths, strays, configuration;
2. index structure: headers, slots, chains (`check_index`);
3. file by file of the commit log: frames, lengths, checksums (`check_log`), then the consume-queue units that point
   into the file (`check_queues`) and the index entries that do (`check_index`), each way;
4. what is left: units and entries behind the end, bytes behind the end, checkpoint, groups' offsets.

A store in use is checked up to the end that it has at the start; queues and index may lag behind it by seconds, and
after a kill by what the checkpoint admits: what is missing there is reported as pending, not as damage.

Memory: the arrays of one commit-log file, about 250 bytes for each of its records at the peak, and one page of each
queue.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from stratamq.errors import StoreError
from stratamq.findings import Finding, Findings, Severity
from stratamq.logstore import check_meta, layout, listing
from stratamq.logstore.check_batches import check_batches, check_light_queues
from stratamq.logstore.check_index import IndexPass
from stratamq.logstore.check_log import LogPass, QueueNames, Settled
from stratamq.logstore.check_queues import REBUILD, QueuePass
from stratamq.logstore.log_end import LogEnd
from stratamq.logstore.log_paths import recorded_paths
from stratamq.logstore.snapshot import QueueRange, StoreSnapshot
from stratamq.logstore.types import Progress

PENDING_MS = 5_000
"""Units and entries of the newest records of a store in use may be this late."""


class CheckReport(NamedTuple):
    """What a check saw and found. ``counts`` holds all findings by (severity, kind); ``findings`` the first of each."""

    path: str
    is_live: bool
    was_stopped_cleanly: bool
    min_physical_offset: int
    end: LogEnd
    files: int
    log_bytes: int
    records: int
    units: int
    queues: int
    index_files: int
    index_entries: int
    findings: list[Finding]
    counts: dict[tuple[Severity, str], int]

    @property
    def is_damaged(self) -> bool:
        """Whether anything was found that is an error."""
        return any(severity is Severity.ERROR for severity, _ in self.counts)


class TolerantSnapshot(StoreSnapshot):
    """A snapshot that notes wrong files instead of refusing them."""

    def __init__(self, path: Path, findings: Findings) -> None:
        listing.require_store(path)
        self._findings = findings
        self._log_directories = recorded_paths(str(path)).every
        super().__init__(path)

    def _refuse(self, problems: Sequence[StoreError]) -> None:
        for problem in problems:
            if os.path.dirname(str(getattr(problem, "path", ""))) in self._log_directories:
                advice = "RocketMQ refuses to start with such a file; move it away, or restore it from a copy"
                self._findings.add_problem(problem, advice)


def check_store(path: Path, progress: Progress | None = None) -> CheckReport:
    """Check the store directory ``path``. Changes nothing, takes no lock.

    Args:
        path: A store of ours or of RocketMQ, whatever its state.
        progress: Called with what is being done, bytes done, bytes in all.

    Raises:
        NotAStore: There is nothing to check.

    Cost: reads every byte once; about 0.8 GB/s with 1 KB bodies on one core when it is in the page cache.
    """
    tell = progress or (lambda what, done, total: None)
    findings = Findings()
    tell("looking at files", 0, 0)
    snapshot = TolerantSnapshot(path, findings)
    for stray in listing.list_strays(str(path)):
        findings.add_problem(stray, "RocketMQ refuses to start with such a file; move it away")
    config = check_meta.check_config(snapshot, findings)
    settled = settled_of(snapshot)
    names = QueueNames()
    log_pass = LogPass(findings, names)
    queue_pass = QueuePass(
        str(path),
        findings,
        names,
        min_physical_offset=snapshot.min_physical_offset,
        settled=settled,
    )
    index_pass = IndexPass(str(path), findings, settled=settled)
    log_total = max(0, snapshot.max_physical_offset - snapshot.min_physical_offset)
    total = log_total + index_pass.total_bytes
    index_pass.structure(lambda done: tell("checking index files", done, total))
    done = index_pass.total_bytes
    for file in snapshot.files:
        if file.base >= snapshot.max_physical_offset:
            break
        end = min(file.length, snapshot.max_physical_offset - file.base)
        facts = log_pass.file(snapshot.bytes_of(file), file, end, partial(_tell_records, tell, done, total))
        queue_pass.file(file, facts)
        index_pass.file(file, facts)
        done += end
        tell("checking records", done, total)
    queue_pass.finish(snapshot.max_physical_offset, is_clean=snapshot.was_stopped_cleanly)
    index_pass.finish(snapshot.max_physical_offset)
    return finish_check(snapshot, findings, config, log_pass, queue_pass, index_pass)


def finish_check(
    snapshot: TolerantSnapshot,
    findings: Findings,
    config: Mapping[str, Any],
    log_pass: LogPass,
    queue_pass: QueuePass,
    index_pass: IndexPass,
) -> CheckReport:
    """The last pass, over what is left when all records, units and entries have been compared; and the report."""
    report_absent_queues(snapshot, findings, log_pass.names, queue_pass, check_meta.known_topics(config))
    check_meta.check_end(snapshot, findings, log_pass.newest_store_timestamp)
    check_meta.check_checkpoint(snapshot, findings, log_pass.newest_store_timestamp)
    check_meta.check_group_offsets(snapshot, findings, config, _readable_queues(snapshot))
    check_batches(snapshot, findings, settled_of(snapshot))
    check_light_queues(snapshot, findings)
    report_rest(snapshot, findings, log_pass, index_pass)
    log_total = max(0, snapshot.max_physical_offset - snapshot.min_physical_offset)
    return _report(snapshot, findings, log_pass, queue_pass, index_pass, log_total)


def _tell_records(tell: Progress, before: int, total: int, done: int) -> None:
    tell("checking records", before + done, total)


def settled_of(snapshot: StoreSnapshot) -> Settled:
    """Which records must be in queues and index by now."""
    if snapshot.was_stopped_cleanly:
        return Settled(2**63 - 1, 0, 0)
    own = check_meta.own_progress(snapshot)
    if own is not None:
        return Settled(0, own.queues_synced, own.index_synced)
    if snapshot.is_live:
        return Settled(snapshot.end.newest_ms - PENDING_MS, 0, 0)
    return Settled(snapshot.checkpoint.min_timestamp_index if snapshot.checkpoint else 0, 0, 0)


def report_absent_queues(
    snapshot: StoreSnapshot, findings: Findings, names: QueueNames, queue_pass: QueuePass, topics: set[str] | None
) -> None:
    """Report queues that have records and no directory."""
    batches = {key.topic for key, _ in listing.list_batch_queues(str(snapshot.path))}
    for number, count in queue_pass.absent.items():
        key = names.keys[number]
        if key.topic in batches:
            continue
        path = str(snapshot.path / layout.CONSUME_QUEUE / key.topic / str(key.queue_id))
        found = f"no directory, but {count} records in the log"
        if topics is not None and key.topic in topics:
            findings.error("queue-missing", path, 0, "a consume queue", found, REBUILD)
        else:
            advice = "the topic was deleted, or its queues are lost: then a start without them builds them again"
            findings.warn("queue-missing", path, 0, "a consume queue", found, advice)


def report_rest(snapshot: StoreSnapshot, findings: Findings, log_pass: LogPass, index_pass: IndexPass) -> None:
    """Report steps of the clock, an absent index, and what is not checked."""
    path = str(snapshot.path)
    if log_pass.clock_steps:
        found = f"{log_pass.clock_steps} records older than the one before"
        advice = "the broker's clock was set back; searches by time may be off around there"
        findings.inform("clock", path, 0, "ascending store times", found, advice)
    if not index_pass.files and log_pass.record_count:
        advice = "lookups by key find nothing; as it should be where messageIndexEnable is false"
        findings.warn("index-absent", f"{path}/{layout.INDEX}", 0, "index files", "none", advice)


def _readable_queues(snapshot: StoreSnapshot) -> list[QueueRange]:
    """The queues of which a range can be told; the others have findings already."""
    found = []
    for key, _ in listing.list_queues(str(snapshot.path)):
        found.append(snapshot.queue(*key))
    return found


def _report(
    snapshot: StoreSnapshot,
    findings: Findings,
    log_pass: LogPass,
    queue_pass: QueuePass,
    index_pass: IndexPass,
    log_bytes: int,
) -> CheckReport:
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
    return CheckReport(
        path=str(snapshot.path),
        is_live=snapshot.is_live,
        was_stopped_cleanly=snapshot.was_stopped_cleanly,
        min_physical_offset=snapshot.min_physical_offset,
        end=snapshot.end,
        files=len(snapshot.files),
        log_bytes=log_bytes,
        records=log_pass.record_count,
        units=sum(queue.unit_count for queue in queue_pass.queues.values()),
        queues=len(queue_pass.queues),
        index_files=len(index_pass.files),
        index_entries=index_pass.entry_count,
        findings=sorted(findings.listed, key=lambda finding: order[finding.severity]),
        counts=dict(findings.counts),
    )
