"""Recovery: from the files of a store directory to a commit log whose end is known, and queues and index that fit it.

Numbered passes, each safe to run twice, with the directory's lock held:

1. list and check the commit-log files;
2. list and check the consume-queue files;
3. read the checkpoint;
4. decide up to where data is known to be on the disk, and where to begin;
5. cut the queues back to what is known, find the index's end;
6. walk the log from there: check every record, put what is missing into queues and index;
7. end the log at the first bad record, or report corruption when that lies below what is known to be good;
8. rebuild queues that did not fit, from the beginning of the log;
9. set the queues' lowest offsets; bring everything to the disk and write a checkpoint.

Which record ends the log and which is corruption, and why: docs/design/recovery.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from stratamq.clock import Clock
from stratamq.config import StoreConfig
from stratamq.errors import BadLength
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.checkpoint import Checkpoint, Progress
from stratamq.formats.message import RECORD_BYTES_MIN
from stratamq.logstore import layout
from stratamq.logstore.block_scan import Block, scan_blocks
from stratamq.logstore.checkpoints import Trust
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import UNKNOWN
from stratamq.logstore.deletions import Deletions
from stratamq.logstore.index import Index
from stratamq.logstore.log_paths import list_log_files, prepare_paths
from stratamq.logstore.queue_table import QueueTable, name_print
from stratamq.logstore.queue_types import batch_topics
from stratamq.logstore.reader import store_timestamp_in
from stratamq.logstore.redispatch import Parts, Plan, RecoveryReport, Redispatcher
from stratamq.logstore.scan import Scanned, Stop, Walk, corruption, first_store_timestamp, next_good_record
from stratamq.logstore.types import Progress as ReportProgress

BLOCK_BYTES_MIN: Final = 1 << 20
"""Commit logs with files below this length are walked record by record only."""
_ONE_BY_ONE: Final = 500
"""Records looked at one by one before blocks are tried again."""
_EVERYTHING: Final = 2**63 - 1
_logger = logging.getLogger(__name__)


class Dispatcher(Protocol):
    """Takes good records in order: `Redispatcher`, or what keeps them for later (`rebuild_parts`)."""

    def add(self, scanned: Scanned) -> None:
        """One record."""
        ...

    def add_block(self, block: Block) -> None:
        """Records that follow each other."""
        ...

    def finish(self, position: int) -> None:
        """All records below ``position`` have been given."""
        ...


def load_parts(
    fs: FileSystem, path: str, config: StoreConfig, clock: Clock, handles: HandleCache, delay_levels: tuple[int, ...]
) -> Parts:
    """Passes 1 and 2: list and check the files. Raises ConfigError, StrayFile, BadLength, OSError."""
    paths = prepare_paths(fs, path, config)
    log = CommitLog(fs, paths, config.commit_log_file_bytes, list_log_files(fs, paths, config.commit_log_file_bytes))
    queue_directory = os.path.join(path, layout.CONSUME_QUEUE)
    queues = QueueTable(
        fs,
        queue_directory,
        config.consume_queue_file_bytes_rounded,
        handles,
        batch_file_bytes=config.batch_consume_queue_file_bytes_rounded,
        batch_topics=batch_topics(path, filesystem=fs),
    )
    queues.load()
    index: Index | None = None
    if config.index_enabled:
        index = Index(fs, os.path.join(path, layout.INDEX), config, clock)
        index.load()
    return Parts(
        fs=fs,
        directory=path,
        config=config,
        log=log,
        queues=queues,
        index=index,
        delay_levels=delay_levels,
        deletions=Deletions(fs, path),
    )


def recover(
    parts: Parts,
    checkpoint: Checkpoint | None,
    progress: Progress | None,
    trust: Trust,
    *,
    clean: bool,
    report: ReportProgress | None = None,
) -> RecoveryReport:
    """Run passes 4 to 9 (the caller has loaded what `parts` holds). Raises CorruptionError, OSError."""
    result = RecoveryReport(clean=clean)
    plan = _decide(parts, checkpoint or Checkpoint(), progress, trust, clean=clean)
    result.start = plan.start
    dispatcher = Redispatcher(parts, plan, result)
    verify_from = plan.verify_from if parts.config.check_crc_on_recovery else None
    doubt_from = None if clean else plan.known_good
    total = parts.log.bases[-1] + parts.log.file_bytes - plan.start if parts.log.bases else 0
    walk = take_all(
        parts,
        dispatcher,
        plan.start,
        verify_from=verify_from,
        doubt_from=doubt_from,
        report=lambda at: report("checking the commit log", at - plan.start, total) if report is not None else None,
    )
    _end_log(parts, walk, checkpoint or Checkpoint(), progress, plan, result)
    if dispatcher.broken:
        _rebuild(parts, dispatcher, trust, result, report)
    for queue in parts.queues.values():
        if queue.max_physical_offset > result.end and queue.truncate(result.end):
            parts.queues.note_changed(queue)
        queue.visible_offset = queue.next_offset = queue.written_offset
        queue.correct_min_offset(parts.log.min_offset)
    if report is not None:
        report("checking the commit log", total, total)
    return result


def take_all(
    parts: Parts,
    dispatcher: Dispatcher,
    start: int,
    *,
    verify_from: int | None,
    doubt_from: int | None,
    report: Callable[[int], None],
    stop_at: int | None = None,
) -> Walk:
    """Pass 6: dispatch every good record from ``start`` on, by blocks, and one by one where a block ended early.

    Returns the walk that came to the end, which says where and why.
    """
    position = start
    while True:
        if parts.log.file_bytes >= BLOCK_BYTES_MIN:
            for block in scan_blocks(
                parts.log,
                position,
                verify_from=verify_from,
                doubt_from=doubt_from,
                delay_levels=parts.delay_levels,
                stop_at=stop_at,
            ):
                dispatcher.add_block(block)
                position = block.end
                report(position)
        walk = Walk(parts.log, position, verify_from=verify_from, doubt_from=doubt_from, stop_at=stop_at)
        for number, scanned in enumerate(walk):
            dispatcher.add(scanned)
            if number == _ONE_BY_ONE:
                report(walk.position)
                break
        else:
            dispatcher.finish(walk.position)
            return walk
        position = scanned.physical_offset + scanned.size
        dispatcher.finish(position)


def _decide(parts: Parts, checkpoint: Checkpoint, progress: Progress | None, trust: Trust, *, clean: bool) -> Plan:
    """Passes 4 and 5."""
    log = parts.log
    low = log.min_offset
    if progress is not None:
        known_good = progress.log_synced
        queues_from = max(low, progress.queues_synced)
        _check_reaches(log, queues_from)
        verify_from = queues_from if clean else max(low, log.base_of(queues_from))
    else:
        known_good = 0
        queues_from = verify_from = _file_to_begin_with(parts, checkpoint, clean=clean)
    for queue in parts.queues.values():
        if queue.truncate(_EVERYTHING if clean else queues_from):
            parts.queues.note_changed(queue)
    _finish_deletions(parts)
    if progress is None and clean:
        verify_from = _file_behind_queues(parts)
    start, index_from = verify_from, _EVERYTHING
    if parts.index is not None:
        index_from = parts.index.recover(
            checkpoint,
            progress,
            lambda offset: _store_timestamp_at(log, offset),
            trust.name_index,
            clean=clean,
            log_min=low,
        )
        if progress is None and clean and parts.index.files:
            index_from = max(index_from, start)
        if index_from < (start if progress is None else progress.index_synced):
            trust.withdraw_index(low)
        if index_from < start:
            exact = progress is not None and index_from == progress.index_synced
            start = index_from if exact else max(low, log.base_of(index_from))
    if log.bases and not _queues_are_complete(parts.queues, progress, clean=clean):
        _logger.warning("consume queues are missing in %s: reading the whole commit log", parts.directory)
        trust.withdraw_queues(low)
        start = low
    return Plan(known_good, index_from, start, verify_from, start <= low)


def _finish_deletions(parts: Parts) -> None:
    """Remove queues of deleted topics that a crash, or a RocketMQ broker, left or brought back."""
    for queue in list(parts.queues.values()):
        mark, first = parts.deletions.mark(queue.key.topic), queue.first_physical_offset
        if mark and (first < mark or first == UNKNOWN):  # an empty one is made again, should it be of the new topic
            _logger.warning("consume queue %s is of a topic that was deleted, and goes", queue.key)
            parts.queues.remove(queue)


def _store_timestamp_at(log: CommitLog, physical_offset: int) -> int | None:
    """Store time of a record that is known to be there, before the log's end is known."""
    base = log.base_of(physical_offset)
    if base not in log.bases or physical_offset - base + RECORD_BYTES_MIN > log.file_bytes:
        return None
    view, position = log.file_view(base), physical_offset - base
    return store_timestamp_in(view[position : position + RECORD_BYTES_MIN])


def _check_reaches(log: CommitLog, position: int) -> None:
    """The log must have files up to ``position``, which the checkpoint knows to be on the disk."""
    base = log.base_of(position)
    files_end = log.bases[-1] + log.file_bytes if log.bases else 0
    if base not in log.bases and position != files_end:
        raise BadLength(
            log.path_of(base),
            0,
            f"a file of {log.file_bytes} bytes, because {position} bytes were synced",
            "no file",
            hint="put it back, or remove the file `checkpoint` to go on without those messages",
        )


def _file_to_begin_with(parts: Parts, checkpoint: Checkpoint, *, clean: bool) -> int:
    """The newest file whose first record is old enough that the checkpoint vouches for all before it."""
    log = parts.log
    limit = checkpoint.min_timestamp if parts.index is None else checkpoint.min_timestamp_index
    if clean:
        limit = _EVERYTHING
    for base in reversed(log.bases):
        timestamp = first_store_timestamp(log, base)
        if timestamp is not None and timestamp <= limit:
            return base
    return log.min_offset


def _file_behind_queues(parts: Parts) -> int:
    """After a clean stop of RocketMQ: the newest file with a good first record whose unit is there."""
    log = parts.log
    dispatched = max((queue.max_physical_offset for queue in parts.queues.values()), default=-1)
    for base in reversed(log.bases):
        if base <= dispatched and first_store_timestamp(log, base) is not None:
            return base
    return log.min_offset


def _queues_are_complete(queues: QueueTable, progress: Progress | None, *, clean: bool) -> bool:
    if not any(queue.bases for queue in queues.values()):
        return False
    if progress is None:
        return True
    known = (progress.queue_count, progress.queues_fingerprint)
    if clean:
        return known == queues.prints_with_ends()
    older = [q for q in queues.values() if q.first_physical_offset < progress.queues_synced]
    return known == (len(older), sum(map(name_print, older)) & 0xFFFFFFFF)


def _end_log(
    parts: Parts, walk: Walk, checkpoint: Checkpoint, progress: Progress | None, plan: Plan, result: RecoveryReport
) -> None:
    """Pass 7: where the log ends; what stands behind is made zero."""
    log = parts.log
    result.end = end = walk.position
    if end < plan.known_good:
        stop = walk.stop
        hint = "data that was synced is damaged or missing; nothing was changed"
        if stop is not None:
            raise corruption(log, stop, hint)
        path = log.path_of(log.base_of(end))
        raise BadLength(path, end - log.base_of(end), f"a log up to {plan.known_good}", f"its end at {end}", hint=hint)
    if walk.stop is not None and progress is None:
        _refuse_lost_records(parts, walk.stop, checkpoint, clean=result.clean)
    result.cut_bytes = log.zero_from(end)
    if result.cut_bytes and walk.stop is not None:
        result.cut_because = f"{walk.stop.flaw.kind}: expected {walk.stop.flaw.expected}, found {walk.stop.flaw.found}"
        _logger.warning(
            "the commit log ends at %d (%s); %d bytes behind that were never acknowledged as synced and are erased",
            end,
            result.cut_because,
            result.cut_bytes,
        )


def _refuse_lost_records(parts: Parts, stop: Stop, checkpoint: Checkpoint, *, clean: bool) -> None:
    """Without exact positions: good records behind a bad one that must have been on the disk mean corruption."""
    known = checkpoint.physic_msg_timestamp
    # Not even times are known: then only a good record in a later file counts, which began after this one was full.
    start = stop.physical_offset if clean or known else parts.log.base_of(stop.physical_offset) + parts.log.file_bytes
    later = next_good_record(parts.log, start)
    if later is not None and (clean or not known or later.store_timestamp <= known):
        hint = f"good records follow, the first at physical offset {later.physical_offset}; nothing was changed"
        raise corruption(parts.log, stop, hint)


def _rebuild(
    parts: Parts, first: Redispatcher, trust: Trust, result: RecoveryReport, report: ReportProgress | None
) -> None:
    """Pass 8: queues that did not fit are made anew from the whole log."""
    low = parts.log.min_offset
    trust.withdraw_queues(low)
    for queue in first.broken:
        _logger.warning("consume queue %s does not fit the commit log and is rebuilt", queue.key)
        queue.destroy()
        parts.queues.note_changed(queue)
        result.rebuilt_queues.append(f"{queue.key.topic}/{queue.key.queue_id}")
    plan = Plan(0, _EVERYTHING, low, low, from_first=True)
    dispatcher = Redispatcher(parts, plan, RecoveryReport(), set(first.broken))
    take_all(
        parts,
        dispatcher,
        low,
        verify_from=None,
        doubt_from=None,
        stop_at=result.end,
        report=lambda at: report("rebuilding consume queues", at - low, result.end - low) if report else None,
    )
