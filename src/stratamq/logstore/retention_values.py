"""What the planner of retention is told and what it answers: values only. Who fills them in: `retention_service` for
an open store, `retention_offline` for a directory."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.types import QueueKey


class LogFile(NamedTuple):
    """One commit-log file.

    ``newest_ms`` is the store time of the first record behind it (RocketMQ's modification time is the same moment:
    the file is closed by the message that no longer fits), 0 when that cannot be read; then ``modified_ms`` counts.
    ``is_read`` says that somebody holds views of it.
    """

    base: int
    length: int
    path: str
    newest_ms: int
    modified_ms: int = 0
    allocated_bytes: int = 0
    is_read: bool = False
    directory: str = ""

    @property
    def end(self) -> int:
        """The first physical offset behind the file."""
        return self.base + self.length


class QueueFile(NamedTuple):
    """One consume-queue file. ``last_physical_offset`` is what its last unit names; None for the one being written."""

    base: int
    path: str
    last_physical_offset: int | None
    allocated_bytes: int = 0


class QueueFiles(NamedTuple):
    """The files of one queue, oldest first."""

    key: QueueKey
    files: Sequence[QueueFile]


class IndexFileInfo(NamedTuple):
    """One index file and the physical offset of its last entry."""

    path: str
    end_physical_offset: int
    allocated_bytes: int = 0


class QueueEnds(NamedTuple):
    """A queue as the corrector sees it; ``first_physical_offset`` is what the unit at ``min_offset`` names, None when
    there is none or it is no real unit."""

    key: QueueKey
    min_offset: int
    max_offset: int
    first_physical_offset: int | None


class Moment(NamedTuple):
    """A reading of the clock: wall time, a time that never steps back, and the hour of the local day."""

    wall_ms: int
    monotonic_ms: int
    local_hour: int


class Failure(NamedTuple):
    """A file that could not be deleted: why, how often it was tried, and when (monotonic) last."""

    error: str
    attempts: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionState:
    """What one round leaves for the next."""

    manual_rounds: int = 0
    is_full: bool = False
    failures: Mapping[str, Failure] = field(default_factory=dict)
    read_since_ms: Mapping[int, int] = field(default_factory=dict)
    """Log files that should go but are being read: base -> since when (monotonic)."""
    unlinked_bytes: int = 0
    """Deleted but still read, so the disk has not got them back."""


class Cause(enum.Enum):
    """Why a file goes or stays."""

    EXPIRED = "expired"
    FORCED = "forced"
    RETRY = "retry"
    BELOW_LOG = "below the log"
    NEWEST = "newest"
    TOO_YOUNG = "too young"
    NOT_NOW = "not now"
    READ = "being read"
    FAILED = "failed"
    NOT_IN_COLD_TIER = "not in the cold tier"
    LATER_ROUND = "later round"
    BEHIND_KEPT = "behind one that stays"


class Decision(NamedTuple):
    """What happens to one file and why, in plain words. ``due_ms``: when a file that stays will have its age."""

    path: str
    base: int
    goes: bool
    cause: Cause
    reason: str
    frees_bytes: int = 0
    due_ms: int | None = None
    pause_ms: int = 0
    leaves_gap: bool = False


class QueueDecision(NamedTuple):
    """A consume-queue file that goes."""

    key: QueueKey
    base: int
    path: str
    reason: str
    frees_bytes: int


class Correction(NamedTuple):
    """A queue whose smallest offset names a record that is gone."""

    key: QueueKey
    reason: str


class Loss(NamedTuple):
    """What a consumer group has not read of a queue and can read no more; group "" stands for nobody having read the
    topic at all."""

    group: str
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    size_bytes: int
    oldest_ms: int

    @property
    def messages(self) -> int:
        """How many messages."""
        return self.end_offset - self.first_offset


class Trigger(NamedTuple):
    """Why this round deletes at all, or what it would take."""

    may_delete: bool
    is_forced: bool
    reason: str


class Plan(NamedTuple):
    """What one round does. ``log`` has an entry for every commit-log file, in order."""

    trigger: Trigger
    log: Sequence[Decision]
    queues: Sequence[QueueDecision]
    index_files: Sequence[Decision]
    min_offset_after: int
    disk_after: Sequence[DiskUsage]
    state: RetentionState
    full_paths: Sequence[str] = ()
    warning: str = ""

    @property
    def deletions(self) -> list[Decision]:
        """The commit-log files that go."""
        return [decision for decision in self.log if decision.goes]

    @property
    def frees_bytes(self) -> int:
        """Disk space that comes back."""
        rows: list[Decision | QueueDecision] = [*self.deletions, *self.queues]
        return sum(row.frees_bytes for row in rows) + sum(row.frees_bytes for row in self.index_files if row.goes)


class StoreFiles(NamedTuple):
    """What the planner looks at: the files, where the log ends, and what of them may not go.

    ``keep_from``: physical offset up to which the cold tier has copied the log; None without a cold tier.
    """

    log: Sequence[LogFile]
    end: int
    queues: Sequence[QueueFiles] = ()
    index_files: Sequence[IndexFileInfo] = ()
    keep_from: int | None = None
    store_bytes: int = 0
    """Length of all files of the store, for a disk that several brokers share."""


class Disks(NamedTuple):
    """The disks of the commit log (one for each path) and of the consume queues."""

    log: Sequence[DiskUsage]
    queues: DiskUsage
