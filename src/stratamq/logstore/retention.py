"""What may be deleted, and why: a pure function of files, clock, disks and settings. Nothing here opens a file.

`plan` answers for the live service, for ``store clean --dry-run``, for the console and for tests, so all of them say
the same. The rules are RocketMQ's; docs/differences-from-rocketmq.md lists where they are not:

* a round deletes when the hour is one of ``deleteWhen``, or a disk is above a mark, or an operator asked for it;
* commit-log files go oldest first, at most a batch a round, and the first that may not go ends the round; the file
  that holds the newest record, and whatever lies behind it, never goes;
* a file may go when its newest message is old enough, or, above the force mark, whatever its age, but only until the
  disk is back at that mark;
* consume-queue and index files go when everything that they name is gone, the last one of each never.

Source: apache/rocketmq store/.../DefaultMessageStore.java (CleanCommitLogService), queue/ConsumeQueueStore.java.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from stratamq.config import RetentionConfig
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.retention_values import (
    Cause,
    Correction,
    Decision,
    Disks,
    IndexFileInfo,
    LogFile,
    Moment,
    Plan,
    QueueDecision,
    QueueEnds,
    QueueFiles,
    RetentionState,
    StoreFiles,
    Trigger,
)
from stratamq.logstore.words import format_ms
from stratamq.units import format_bytes

HOUR_MS: Final = 3_600_000
MANUAL_ROUNDS: Final = 20
"""Rounds that one request of an operator makes delete, as RocketMQ's deleteExpiredCommitLog does."""


def plan(files: StoreFiles, now: Moment, disks: Disks, policy: RetentionConfig, state: RetentionState) -> Plan:
    """Decide about every file of a store.

    Args:
        files: All files; commit-log files in order of their bases.
        now: The clock. Wall time may have stepped back; then files look younger and stay.
        disks: How full the disks are now.
        policy: The settings.
        state: What the round before left.

    Returns:
        A decision for every commit-log file, the queue and index files that go once these are gone, and the state for
        the next round. Same arguments, same answer. Cost: linear in the files.
    """
    is_full = full_after(disks, policy, state.is_full)
    trigger = find_trigger(files, now, disks, policy, state)
    rounds = max(0, state.manual_rounds - 1)
    log, read_since = _decide_log(files, now, disks, policy, state, trigger)
    gone = [decision for decision in log if decision.goes]
    low = _min_offset(files, gone)
    queues = plan_queues(files.queues, low)
    index = plan_index(files.index_files, low)
    freed = sum(row.frees_bytes for row in gone)
    derived = sum(row.frees_bytes for row in queues) + sum(row.frees_bytes for row in index if row.goes)
    shared = [usage.less(freed + (derived if _same_disk(usage, disks.queues) else 0)) for usage in disks.log]
    return Plan(
        trigger,
        log,
        queues,
        index,
        low,
        shared,
        dataclasses.replace(state, manual_rounds=rounds, is_full=is_full, read_since_ms=read_since),
        [usage.path for usage in disks.log if usage.percent > policy.force_percent],
        _warning(log, trigger, disks, policy),
    )


def full_after(disks: Disks, policy: RetentionConfig, was_full: bool) -> bool:
    """Whether writes are refused: from above the warning mark on, until all disks are at the force mark or below.

    Of several disks of the commit log the emptiest counts, because new files go there. A disk that cannot be asked
    changes nothing.
    """
    percents = [_log_percent(disks), disks.queues.percent]
    if max(percents) > policy.warning_percent:
        return True
    if min(percents) >= 0 and max(percents) <= policy.force_percent:
        return False
    return was_full


def find_trigger(
    files: StoreFiles, now: Moment, disks: Disks, policy: RetentionConfig, state: RetentionState
) -> Trigger:
    """Whether this round deletes, by force or not, and why."""
    log, queues = _log_percent(disks), disks.queues.percent
    highest = max(log, queues)
    share = _share_percent(files, disks, policy)
    forced = policy.clean_forcibly
    if highest > policy.force_percent:
        text = f"the disk is {highest} % full, above the force mark of {policy.force_percent} %"
        if not forced:
            text += ", but cleanFileForciblyEnable is false"
        return Trigger(True, forced, text)
    if share is not None and share > _shared_mark(policy):
        text = f"this broker uses {share} % of its share of the disk, above {_shared_mark(policy)} %"
        return Trigger(True, forced, text)
    if now.local_hour in policy.delete_hours:
        return Trigger(True, False, f"the hour is {now.local_hour:02d}, and deleteWhen is {policy.delete_when}")
    if state.manual_rounds > 0:
        return Trigger(True, False, f"an operator asked for it ({state.manual_rounds} rounds left)")
    if share is not None:
        if share > policy.reclaim_percent:
            return Trigger(True, False, f"this broker uses {share} % of its share, above {policy.reclaim_percent} %")
    elif min(log, queues) < 0:
        unknown = disks.queues if queues < 0 else next(usage for usage in disks.log if not usage.is_known)
        return Trigger(True, False, f"the disk of {unknown.path} cannot be asked ({unknown.error or 'no answer'})")
    elif highest > policy.reclaim_percent:
        return Trigger(True, False, f"the disk is {highest} % full, above {policy.reclaim_percent} %")
    return Trigger(
        False,
        False,
        f"the disk is {highest} % full, not above {policy.reclaim_percent} %, and deleteWhen is {policy.delete_when}",
    )


def _log_percent(disks: Disks) -> int:
    return min((usage.percent for usage in disks.log), default=-1)


def _shared_mark(policy: RetentionConfig) -> int:
    return round(float(policy.shared_force_ratio) * 100)


def _share_percent(files: StoreFiles, disks: Disks, policy: RetentionConfig) -> int | None:
    """How much of its part of a shared disk this broker uses; None when the disk is its own."""
    if policy.replicas_per_disk <= 1 or not disks.log or not disks.log[0].is_known:
        return None
    share = disks.log[0].total_bytes // policy.replicas_per_disk
    return -(-100 * files.store_bytes // share) if share else None


def _same_disk(one: DiskUsage, other: DiskUsage) -> bool:
    return one.device == other.device


class _Pressure:
    """How much of a forced round is still needed: disks as they will be after what was decided so far."""

    def __init__(
        self, files: StoreFiles, disks: Disks, policy: RetentionConfig, state: RetentionState, forced: bool
    ) -> None:
        self._files = files
        self._policy = policy
        self._forced = forced
        self._freed = 0
        self._disks = Disks([u.less(state.unlinked_bytes) for u in disks.log], disks.queues)
        if any(_same_disk(usage, disks.queues) for usage in disks.log):
            self._disks = self._disks._replace(queues=disks.queues.less(state.unlinked_bytes))

    @property
    def lasts(self) -> bool:
        """Whether files must go whatever their age."""
        if not self._forced:
            return False
        if max(_log_percent(self._disks), self._disks.queues.percent) > self._policy.force_percent:
            return True
        left = self._files._replace(store_bytes=max(0, self._files.store_bytes - self._freed))
        share = _share_percent(left, self._disks, self._policy)
        return share is not None and share > _shared_mark(self._policy)

    def take(self, file: LogFile) -> None:
        """Note that a file goes."""
        self._freed += file.length
        directory = file.directory
        log = [
            usage.less(file.allocated_bytes) if not directory or usage.path == directory else usage
            for usage in self._disks.log
        ]
        shares = any(
            old != new and _same_disk(new, self._disks.queues) for old, new in zip(self._disks.log, log, strict=True)
        )
        queues = self._disks.queues.less(file.allocated_bytes) if shares else self._disks.queues
        self._disks = Disks(log, queues)


def _decide_log(
    files: StoreFiles, now: Moment, disks: Disks, policy: RetentionConfig, state: RetentionState, trigger: Trigger
) -> tuple[list[Decision], dict[int, int]]:
    """A decision for each commit-log file, and which of those that should go are being read since when."""
    pressure = _Pressure(files, disks, policy, state, trigger.is_forced)
    newest = _newest_base(files)
    read_since: dict[int, int] = {}
    found: list[Decision] = []
    gone = 0
    stopped = ""
    for file in files.log:
        if file.base >= newest:
            text = "holds the newest messages" if file.base == newest else "was made ahead and is empty"
            found.append(_stays(file, Cause.NEWEST, f"{text}; it is never deleted", policy))
            continue
        if stopped:
            text = f"files go oldest first, and {stopped} stays"
            found.append(_stays(file, Cause.BEHIND_KEPT, text, policy))
            continue
        decision = _decide_file(file, now, policy, state, trigger, pressure.lasts, files.keep_from)
        if decision.goes and gone >= policy.delete_batch_max:
            text = f"a later round takes it: at most {policy.delete_batch_max} files go in one"
            decision = _stays(file, Cause.LATER_ROUND, text, policy)
        if decision.goes and file.is_read and decision.cause is not Cause.RETRY:
            since = state.read_since_ms.get(file.base, now.monotonic_ms)
            read_since[file.base] = since
            spared = now.monotonic_ms - since
            if spared < policy.force_release_ms:
                text = f"it is being read, and is spared for {policy.force_release_ms - spared} ms more"
                decision = _stays(file, Cause.READ, text, policy)
            else:
                text = f"{decision.reason}; it is still being read after {spared} ms: readers keep what they hold"
                decision = decision._replace(reason=text)
        found.append(decision)
        if decision.goes:
            pressure.take(file)
            gone += 1
        else:
            stopped = file.path.rpartition("/")[2]
    return found, read_since


def _decide_file(
    file: LogFile,
    now: Moment,
    policy: RetentionConfig,
    state: RetentionState,
    trigger: Trigger,
    pressed: bool,
    keep_from: int | None,
) -> Decision:
    failure = state.failures.get(file.path)
    if failure is not None:
        pause = min(policy.retry_failed_ms, policy.clean_interval_ms) if pressed else policy.retry_failed_ms
        wait = failure.last_ms + pause - now.monotonic_ms
        if wait > 0:
            text = f"deleting it failed {failure.attempts} times ({failure.error}); it is tried again in {wait} ms"
            return _stays(file, Cause.FAILED, text, policy)
    is_gap = keep_from is not None and file.end > keep_from
    expired, text, due_ms = _age(file, now, policy)
    by_force = pressed and not expired
    if is_gap and not (policy.cold_gap_allowed and pressed):
        text = f"the cold tier has copied the log only up to {keep_from}, and this file ends at {file.end}"
        return _stays(file, Cause.NOT_IN_COLD_TIER, text, policy)
    gap = f"; the cold tier has it only up to {keep_from}, which leaves a gap" if is_gap else ""
    if failure is not None and (expired or pressed):
        reason = f"deleting it failed {failure.attempts} times ({failure.error}); trying again{gap}"
        return _goes(file, Cause.RETRY, reason, policy, is_gap)
    if by_force:
        return _goes(file, Cause.FORCED, f"{trigger.reason}, and it is the oldest; {text}{gap}", policy, is_gap)
    if not expired:
        return _stays(file, Cause.TOO_YOUNG, text, policy, due_ms)
    if not trigger.may_delete:
        return _stays(file, Cause.NOT_NOW, f"{text}, but it is not the time: {trigger.reason}", policy, due_ms)
    return _goes(file, Cause.EXPIRED, f"{text}; {trigger.reason}{gap}", policy, is_gap)


def _age(file: LogFile, now: Moment, policy: RetentionConfig) -> tuple[bool, str, int]:
    """Whether a file has its age, in words, and when it has it."""
    basis = file.newest_ms or file.modified_ms
    what = "its newest message was stored" if file.newest_ms else "its messages cannot be read; it was changed"
    due_ms = basis + policy.file_reserved_hours * HOUR_MS
    if now.wall_ms >= due_ms:
        return True, f"{what} {format_ms(basis)}, more than {policy.file_reserved_hours} h ago", due_ms
    if basis > now.wall_ms:
        ahead = f"{what} {format_ms(basis)}, which the clock has not reached: was it set back?"
        return False, f"{ahead} It expires {format_ms(due_ms)}", due_ms
    return False, f"{what} {format_ms(basis)}; it expires {format_ms(due_ms)}", due_ms


def _goes(file: LogFile, cause: Cause, reason: str, policy: RetentionConfig, leaves_gap: bool) -> Decision:
    return Decision(
        file.path,
        file.base,
        True,
        cause,
        reason,
        file.allocated_bytes,
        pause_ms=policy.delete_log_pause_ms,
        leaves_gap=leaves_gap,
    )


def _stays(file: LogFile, cause: Cause, reason: str, policy: RetentionConfig, due_ms: int | None = None) -> Decision:
    if due_ms is None and cause is not Cause.NEWEST:
        due_ms = (file.newest_ms or file.modified_ms) + policy.file_reserved_hours * HOUR_MS
    return Decision(file.path, file.base, False, cause, reason, due_ms=due_ms)


def _newest_base(files: StoreFiles) -> int:
    """Where the file begins that holds the last byte of the log: it and all behind it stay."""
    candidates = [file.base for file in files.log if file.base < files.end]
    if candidates:
        return candidates[-1]
    return files.log[0].base if files.log else 0


def _min_offset(files: StoreFiles, gone: Sequence[Decision]) -> int:
    if not files.log:
        return files.end
    return files.log[len(gone)].base


def _warning(log: Sequence[Decision], trigger: Trigger, disks: Disks, policy: RetentionConfig) -> str:
    """What an operator must hear when the disk is short and nothing goes; empty when all is well.

    Between the reclaim mark and the force mark it is no fault that nothing is old enough.
    """
    highest = max(_log_percent(disks), disks.queues.percent)
    if highest <= policy.force_percent or any(decision.goes for decision in log):
        return ""
    why = next((d.reason for d in log if d.cause is not Cause.BEHIND_KEPT), "there are no commit-log files")
    first = log[0].path.rpartition("/")[2] + ": " if log else ""
    return f"the disk is {highest} % full and nothing can be deleted: {first}{why}"


def plan_queues(queues: Sequence[QueueFiles], min_physical_offset: int) -> list[QueueDecision]:
    """The consume-queue files that name only records that are gone: from each queue's oldest on, never its last."""
    found: list[QueueDecision] = []
    for queue in queues:
        for file in queue.files[:-1]:
            last = file.last_physical_offset
            if last is None or last >= min_physical_offset:
                break
            text = f"its last unit names offset {last}, and the log begins at {min_physical_offset}"
            found.append(QueueDecision(queue.key, file.base, file.path, text, file.allocated_bytes))
    return found


def plan_index(index: Sequence[IndexFileInfo], min_physical_offset: int) -> list[Decision]:
    """The index files whose records are all gone: from the oldest on, never the last."""
    found: list[Decision] = []
    for number, file in enumerate(index[:-1]):
        if file.end_physical_offset >= min_physical_offset:
            break
        text = f"its last entry names offset {file.end_physical_offset}, and the log begins at {min_physical_offset}"
        found.append(Decision(file.path, number, True, Cause.BELOW_LOG, text, file.allocated_bytes))
    return found


def plan_correction(queue: QueueEnds, min_physical_offset: int) -> Correction | None:
    """Whether a queue's smallest offset has to be looked for anew, whatever kind of queue it is, and why."""
    if queue.min_offset > queue.max_offset:
        return Correction(queue.key, f"it begins at {queue.min_offset}, behind its end {queue.max_offset}")
    if queue.min_offset == queue.max_offset:
        return None
    first = queue.first_physical_offset
    if first is None:
        return Correction(queue.key, f"there is no message at its beginning {queue.min_offset}")
    if first < min_physical_offset:
        text = f"its first message is at offset {first}, and the log begins at {min_physical_offset}"
        return Correction(queue.key, text)
    return None


def describe_space(usage: DiskUsage) -> str:
    """A disk in a few words."""
    if not usage.is_known:
        return f"{usage.path}: unknown ({usage.error or 'no answer'})"
    return f"{usage.path}: {usage.percent} % of {format_bytes(usage.used_bytes + usage.usable_bytes)} used"
