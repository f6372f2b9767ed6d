"""Deletes what the planner names, from an open store, and watches the disk. No timers and no threads of its own.

`RetentionService.round` is a generator of steps: who owns the loop carries each one out (its blocking part in a thread,
then its pause) and asks for the next. So a file that takes long to delete delays nobody, and tests need no time at all.
`RetentionService.watch` looks at the disk alone; its owner calls it by another timer, so that it never waits behind
deletions. Everything here runs on the store's thread; only `Step.blocking` may run elsewhere.

Order of a deletion: say who loses what, let the log begin later, unlink, sync the directory, say it is done. A file
that cannot be unlinked is put back, so nothing is half gone: it is readable, and no later file goes before it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from stratamq.clock import Clock
from stratamq.config import RetentionConfig
from stratamq.errors import DiskAboveMark
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.disk_usage import DiskProbe, LocalDiskProbe
from stratamq.logstore.retention import MANUAL_ROUNDS, describe_space, full_after, plan, plan_correction, plan_queues
from stratamq.logstore.retention import plan_index as plan_index_files
from stratamq.logstore.retention_losses import Offsets, describe_losses, loss_ranges, measure_loss
from stratamq.logstore.retention_reading import LiveQueues, first_record_ms, queue_ends
from stratamq.logstore.retention_values import (
    Cause,
    Decision,
    Disks,
    Failure,
    IndexFileInfo,
    LogFile,
    Loss,
    Moment,
    Plan,
    QueueFile,
    QueueFiles,
    RetentionState,
    StoreFiles,
)
from stratamq.logstore.store import LogStore
from stratamq.logstore.words import format_ms
from stratamq.units import format_bytes

QUEUES_A_STEP: Final = 128
"""Queues looked at before others get their turn: some milliseconds."""
_logger = logging.getLogger(__name__)


class Step(NamedTuple):
    """One step of a round: blocking work for a thread (it never raises), then a pause. Both may be nothing."""

    blocking: Callable[[], None] | None = None
    pause_ms: int = 0


class Preview(NamedTuple):
    """What would be deleted, the disks now, and who would lose what: one step a queue, None where nobody does."""

    plan: Plan
    disks: Disks
    losses: Iterator[Loss | None]


class RetentionService:
    """Retention of one open store. See the module's text."""

    def __init__(
        self,
        store: LogStore,
        policy: RetentionConfig,
        *,
        clock: Clock,
        offsets: Callable[[], Offsets],
        probe: DiskProbe | None = None,
        filesystem: FileSystem | None = None,
        keep_from: Callable[[], int | None] | None = None,
        is_tiered: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """Args:
        offsets: Next offset of each group in each queue, as it is now.
        keep_from: How far the cold tier has copied the log; None without one.
        is_tiered: Whether consumers read a topic's messages from the cold tier when the files are gone.
        """
        self.policy = policy
        self.state = RetentionState()
        self.last_plan: Plan | None = None
        self.deleted_files = 0
        self.deleted_bytes = 0
        self.deleted_by_cause: dict[Cause, tuple[int, int]] = {}
        """What went since the start, and why: files, bytes."""
        self.last_round_ms = 0
        """Wall time of the last round; 0 before the first."""
        self.blocked_since_ms = 0
        """Wall time since when the disk keeps messages from being taken; 0 while it does not."""
        self.blocked_times = 0
        self.lost: dict[tuple[str, str], tuple[int, int]] = {}
        """What groups lost since the start: (group, topic) -> messages, bytes."""
        self.gaps: list[tuple[int, int]] = []
        """Ranges of the log that went before the cold tier had them."""
        self.hand_over: Callable[[int], None] | None = None
        """Where many decide together what goes: told up to where the log may go, and nothing is deleted here."""
        self._store = store
        self._log, self._queues, self._index = store.retained()
        self._reader = LiveQueues(self._log, self._queues)
        self._clock = clock
        self._offsets = offsets
        self._probe = probe or LocalDiskProbe()
        self._fs = filesystem or LocalFileSystem()
        self._keep_from = keep_from or (lambda: None)
        self._is_tiered = is_tiered
        self._newest_ms: dict[int, int] = {}
        self._unlinked: list[tuple[weakref.ref[Any], int]] = []
        self._derived_failures: dict[str, Failure] = {}
        self._cleaned_to = -1
        self._corrected_ms: int | None = None
        self._said = ""
        for text in policy.clampings():
            _logger.warning("%s", text)

    def request(self) -> None:
        """An operator asks for expired files to go at once: the next `MANUAL_ROUNDS` rounds delete at any hour."""
        self.state = dataclasses.replace(self.state, manual_rounds=MANUAL_ROUNDS)

    def request_queues(self) -> None:
        """An operator asks for queues to be cleaned at once: the next round looks through all of them.

        A queue keeps its last file, and so its offsets, whatever has become of its messages.
        """
        self._cleaned_to = -1

    # --- the disk ---------------------------------------------------------------------------------------------

    def watch(self) -> Disks:
        """Look at the disk: refuse writes above the warning mark, take them again at the force mark. Blocks for two
        system calls."""
        disks = self._disks()
        full = (usage.path for usage in disks.log if usage.percent > self.policy.force_percent)
        self._log.full_paths = frozenset(full)
        was_full = self.state.is_full
        is_full = full_after(disks, self.policy, was_full)
        self.state = dataclasses.replace(self.state, is_full=is_full)
        fullest = max((*disks.log, disks.queues), key=lambda usage: usage.percent)
        if is_full:
            marks = (self.policy.warning_percent, self.policy.force_percent)
            if not was_full:
                self.blocked_since_ms = self._clock.wall_ms()
                self.blocked_times += 1
                _logger.error("%s: above %d %%, no messages are taken", describe_space(fullest), marks[0])
                self._store.refuse_writes(DiskAboveMark(fullest.path, fullest.percent, *marks))
        elif was_full:
            self.blocked_since_ms = 0
            _logger.warning("%s: messages are taken again", describe_space(fullest))
            self._store.refuse_writes(None)
        return disks

    def _disks(self) -> Disks:
        log = [self._probe.usage(path) for path in self._log.paths.every]
        return Disks(log, self._probe.usage(self._queues.directory))

    # --- a round ----------------------------------------------------------------------------------------------

    def round(self) -> Iterator[Step]:
        """One round of cleaning, step by step: log, then queues and index, then offsets."""
        disks = self.watch()
        decided = self._plan(disks)
        self.last_plan = decided
        self.last_round_ms = self._clock.wall_ms()
        self.state = decided.state
        self._say(decided.warning)
        if self.hand_over is not None and decided.deletions:
            self.hand_over(decided.min_offset_after)
            return
        for decision in decided.deletions:
            if not (yield from self._delete(decision)):
                break
        low = self._log.min_offset
        moved = low > self._cleaned_to
        if moved or self._derived_failures:
            yield from self._clean_queues(low)
            yield from self._clean_index(low)
            self._cleaned_to = low
        now = self._clock.monotonic_ms()
        if moved or self._corrected_ms is None or now - self._corrected_ms >= self.policy.correct_interval_ms:
            yield from self._correct()
            self._corrected_ms = now

    def _plan(self, disks: Disks) -> Plan:
        now = self._moment()
        self._unlinked = [(mapping, size) for mapping, size in self._unlinked if mapping() is not None]
        state = dataclasses.replace(self.state, unlinked_bytes=sum(size for _, size in self._unlinked))
        files = StoreFiles(self._log_files(), self._log.end, keep_from=self._keep_from(), store_bytes=self._bytes())
        decided = plan(files, now, disks, self.policy, state)
        wanted = {decision.base for decision in decided.deletions}
        if not wanted:
            return decided
        looked = [f._replace(is_read=f.base in wanted and self._log.is_read(f.base)) for f in files.log]
        return plan(files._replace(log=looked), now, disks, self.policy, state)

    def preview(self, *, requested: bool = False) -> Preview:
        """What the next round would delete, or, ``requested``, all rounds that an operator's request lets delete.

        Changes nothing. Consume-queue and index files follow by themselves and are not in it. Blocks for two system
        calls a disk, and one a file.
        """
        disks, state, policy = self._disks(), self.state, self.policy
        if requested:
            state = dataclasses.replace(state, manual_rounds=MANUAL_ROUNDS)
            policy = dataclasses.replace(policy, delete_batch_max=MANUAL_ROUNDS * policy.delete_batch_max)
        files = StoreFiles(self._log_files(), self._log.end, keep_from=self._keep_from(), store_bytes=self._bytes())
        decided = plan(files, self._moment(), disks, policy, state)
        return Preview(decided, disks, self._losses(decided))

    def _losses(self, decided: Plan) -> Iterator[Loss | None]:
        start, gap = self._log.min_offset, any(row.leaves_gap for row in decided.deletions)
        every = list(self._reader.keys())
        keys = [key for key in every if gap or not self._is_tiered(key[0])]
        for lost in loss_ranges(self._reader, keys, self._offsets(), start, decided.min_offset_after):
            yield None if lost is None else measure_loss(self._reader, lost)

    def _moment(self) -> Moment:
        wall = self._clock.wall_ms()
        hour = datetime.fromtimestamp(wall / 1000).hour  # noqa: DTZ006 - deleteWhen is in local time
        return Moment(wall, self._clock.monotonic_ms(), hour)

    def _log_files(self) -> list[LogFile]:
        found = []
        log = self._log
        for base in log.bases:
            path = log.path_of(base)
            following = base + log.file_bytes
            newest_ms = self._newest_ms.get(base, 0)
            if not newest_ms and following < log.end:
                newest_ms = self._newest_ms[base] = first_record_ms(self._fs, log.path_of(following), following)
            stat = self._fs.stat(path)
            modified, allocated = (stat.modified_ms, stat.allocated_bytes) if stat else (0, 0)
            found.append(
                LogFile(base, log.file_bytes, path, newest_ms, modified, allocated, directory=log.directory_of(base))
            )
        return found

    def _bytes(self) -> int:
        if self.policy.replicas_per_disk == 1:
            return 0
        queues = sum(len(queue.bases) * queue.file_bytes for queue in self._queues.values())
        files = [] if self._index is None else [self._fs.stat(file.path) for file in self._index.files]
        return len(self._log.bases) * self._log.file_bytes + queues + sum(stat.size for stat in files if stat)

    def _say(self, warning: str) -> None:
        """Warn when something new is wrong, not every ten seconds."""
        kind = warning.partition(":")[0].partition("%")[2] if warning else ""
        if kind != self._said and warning:
            _logger.error("%s", warning)
        self._said = kind

    def _delete(self, decision: Decision) -> Generator[Step, None, bool]:
        """Delete the oldest log file. Returns whether the next one may follow."""
        log = self._log
        if log.bases[0] != decision.base or len(log.bases) < 2:
            return False
        losses: list[Loss] = []
        keys, end = list(self._reader.keys()), decision.base + log.file_bytes
        if not decision.leaves_gap:
            keys = [key for key in keys if not self._is_tiered(key[0])]
        for number, lost in enumerate(loss_ranges(self._reader, keys, self._offsets(), decision.base, end)):
            if lost is not None:
                losses.append(measure_loss(self._reader, lost))
            if number % QUEUES_A_STEP == QUEUES_A_STEP - 1:
                yield Step()
        said = describe_losses(losses, format_time=format_ms)
        level = logging.WARNING if losses else logging.INFO
        _logger.log(level, "deleting %s: %s; %s", decision.path, decision.reason, said)
        taken = log.detach_oldest()
        error = yield from self._unlink(taken.path)
        if error is not None and self._fs.stat(taken.path) is not None:
            log.attach_oldest(taken)
            self._note_failure(taken.path, error)
            return False
        if taken.mapping is not None and taken.mapping() is not None:
            self._unlinked.append((taken.mapping, decision.frees_bytes))
        self._gone(decision, losses)
        _logger.log(level, "deleted %s, %s; %s", taken.path, format_bytes(decision.frees_bytes), said)
        yield Step(pause_ms=decision.pause_ms)
        return error is None

    def _gone(self, decision: Decision, losses: list[Loss]) -> None:
        self._newest_ms.pop(decision.base, None)
        failures = {path: failure for path, failure in self.state.failures.items() if path != decision.path}
        self.state = dataclasses.replace(self.state, failures=failures)
        self.deleted_files += 1
        self.deleted_bytes += decision.frees_bytes
        count, size = self.deleted_by_cause.get(decision.cause, (0, 0))
        self.deleted_by_cause[decision.cause] = (count + 1, size + decision.frees_bytes)
        for loss in losses:
            messages, size = self.lost.get((loss.group, loss.topic), (0, 0))
            self.lost[loss.group, loss.topic] = (messages + loss.messages, size + loss.size_bytes)
        if decision.leaves_gap:
            gap = (max(decision.base, self._keep_from() or 0), decision.base + self._log.file_bytes)
            self.gaps.append(gap)
            _logger.error("the cold tier will never have physical offsets %d to %d of the log", *gap)
        if self._index is not None:
            self._index.skip_to(self._log.min_offset)

    def _note_failure(self, path: str, error: OSError) -> None:
        before = self.state.failures.get(path)
        attempts = 1 + (before.attempts if before else 0)
        failure = Failure(error.strerror or str(error), attempts, self._clock.monotonic_ms())
        self.state = dataclasses.replace(self.state, failures={**self.state.failures, path: failure})
        _logger.error("%s cannot be deleted (%s): it stays readable and is tried again", path, failure.error)

    def _unlink(self, path: str) -> Generator[Step, None, OSError | None]:
        """Unlink a file and sync its directory, in a thread. Returns the error, or None."""
        errors: list[OSError] = []

        def work() -> None:
            try:
                self._fs.remove(path)
            except FileNotFoundError:
                return
            except OSError as error:
                errors.append(error)
                return
            try:
                self._fs.sync_directory(os.path.dirname(path))
            except OSError as error:
                _logger.error("%s is deleted, but its directory cannot be synced: %s", path, error)
                errors.append(error)

        yield Step(work)
        return errors[0] if errors else None

    # --- what follows from the log ----------------------------------------------------------------------------

    def _clean_queues(self, low: int) -> Iterator[Step]:
        for number, queue in enumerate(list(self._queues.values())):
            if number % QUEUES_A_STEP == QUEUES_A_STEP - 1:
                yield Step()
            if len(queue.bases) < 2:
                continue
            gone = 0
            for decision in plan_queues([QueueFiles(queue.key, self._queue_files(queue, low))], low):
                if not self._is_due(decision.path):
                    break
                if self._queues.get(queue.key) is not queue:
                    break  # its topic was deleted meanwhile
                path = self._queues.detach_oldest(queue)
                error = yield from self._unlink(path)
                if error is not None and self._fs.stat(path) is not None and queue.bases:
                    queue.attach_oldest(decision.base)
                    self._note_derived(path, error)
                    break
                self._derived_failures.pop(path, None)
                gone += 1
                _logger.info("deleted %s: %s", path, decision.reason)
            if gone:
                yield Step(pause_ms=self.policy.delete_queue_pause_ms)

    def _queue_files(self, queue: ConsumeQueue, low: int) -> list[QueueFile]:
        """The queue's files, with the last unit of those that may go."""
        found = []
        for base in queue.bases:
            last = queue.last_unit_of(base) if base != queue.bases[-1] else None
            where = last.physical_offset if last is not None and last.is_valid else None
            found.append(QueueFile(base, queue.path_of(base), where))
            if where is None or where >= low:
                break
        if len(found) < len(queue.bases):
            found.append(QueueFile(queue.bases[-1], queue.path_of(queue.bases[-1]), None))
        return found

    def _clean_index(self, low: int) -> Iterator[Step]:
        index = self._index
        if index is None:
            return
        files = [IndexFileInfo(file.path, file.header.end_physical_offset) for file in index.files]
        paths = [path for path in self._derived_failures if path.startswith(index.directory)]
        for decision in plan_index_files(files, low):
            paths.append(index.detach_oldest())
            _logger.info("deleting %s: %s", decision.path, decision.reason)
        for path in paths:
            if not self._is_due(path):
                continue
            error = yield from self._unlink(path)
            if error is not None and self._fs.stat(path) is not None:
                self._note_derived(path, error)
            else:
                self._derived_failures.pop(path, None)

    def _is_due(self, path: str) -> bool:
        failure = self._derived_failures.get(path)
        return failure is None or self._clock.monotonic_ms() - failure.last_ms >= self.policy.retry_failed_ms

    def _note_derived(self, path: str, error: OSError) -> None:
        before = self._derived_failures.get(path)
        attempts = 1 + (before.attempts if before else 0)
        text = error.strerror or str(error)
        self._derived_failures[path] = Failure(text, attempts, self._clock.monotonic_ms())
        _logger.error("%s cannot be deleted (%s): it is tried again", path, text)

    def _correct(self) -> Iterator[Step]:
        """Compare each queue's beginning with the log's, and look for it anew where it does not fit."""
        for number, queue in enumerate(list(self._queues.values())):
            if number % QUEUES_A_STEP == QUEUES_A_STEP - 1:
                yield Step()
            correction = plan_correction(queue_ends(queue), self._log.min_offset)
            if correction is not None:
                before = queue.min_offset
                queue.min_offset = min(before, queue.written_offset)
                queue.correct_min_offset(self._log.min_offset)
                now = queue.min_offset
                _logger.info("queue %s/%d begins at %d now, not %d: %s", *queue.key, now, before, correction.reason)
