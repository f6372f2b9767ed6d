"""Settings of the log store."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, setting
from stratamq.units import GiB, KiB, MiB


class FlushMode(enum.Enum):
    """When a put is answered: after the sync, or at once."""

    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(Section):
    """Settings of one log store."""

    TITLE: ClassVar[str] = "Store"

    commit_log_file_bytes: int = setting(
        GiB,
        at_least=4 * KiB,
        at_most=2**31 - 1,
        rocketmq="mappedFileSizeCommitLog",
        doc="Length of one commit-log file. Fixed for the life of a store.",
    )
    commit_log_paths: str = setting(
        "",
        rocketmq="storePathCommitLog",
        doc="Directories of the commit log, separated by commas; empty: `commitlog` in the data directory. New files "
        "are made in them in turn.",
    )
    commit_log_read_only_paths: str = setting(
        "",
        rocketmq="readOnlyCommitLogStorePaths",
        doc="Further directories of the commit log, separated by commas, in which no new file is made.",
    )
    consume_queue_file_bytes: int = setting(
        6_000_000,
        at_least=20,
        at_most=2**31 - 20,
        rocketmq="mappedFileSizeConsumeQueue",
        doc="Length of one consume-queue file, rounded up to a multiple of 20.",
    )
    batch_consume_queue_file_bytes: int = setting(
        13_800_000,
        at_least=46,
        at_most=2**31 - 46,
        rocketmq="mapperFileSizeBatchConsumeQueue",
        doc="Length of one batch-consume-queue file (topics with queue.type=BatchCQ), rounded up to a multiple of 46.",
    )
    light_queues: bool = setting(
        False,
        rocketmq="enableLmq",
        doc="Whether there are light queues (%LMQ%name): queues without a topic of their own, which a message names.",
    )
    multi_dispatch: bool = setting(
        False,
        rocketmq="enableMultiDispatch",
        doc="Whether a message goes into the light queues of its property INNER_MULTI_DISPATCH too. Needs enableLmq.",
    )
    light_queues_max: int = setting(
        20_000,
        at_least=1,
        at_most=10_000_000,
        rocketmq="maxLmqConsumeQueueNum",
        doc="Most light queues; a message that would make more is refused.",
    )
    index_slots: int = setting(
        5_000_000, at_least=1, at_most=100_000_000, rocketmq="maxHashSlotNum", doc="Hash slots of one index file."
    )
    index_entries: int = setting(
        20_000_000,
        at_least=2,
        at_most=100_000_000,
        rocketmq="maxIndexNum",
        doc="Entries of one index file; entry 0 is never used.",
    )
    index_enabled: bool = setting(True, rocketmq="messageIndexEnable", doc="Whether messages are indexed by key.")
    message_body_bytes_max: int = setting(
        4 * MiB, at_least=10, at_most=512 * MiB, rocketmq="maxMessageSize", doc="Longest message body taken."
    )
    flush_mode: FlushMode = setting(
        FlushMode.ASYNC,
        rocketmq="flushDiskType",
        doc="When a put counts as stored: SYNC_FLUSH answers after the disk sync, ASYNC_FLUSH at once.",
    )
    sync_flush_timeout_ms: int = setting(
        5_000,
        at_least=1,
        at_most=600_000,
        rocketmq="syncFlushTimeout",
        doc="How long a put waits for its sync before it is answered with FLUSH_DISK_TIMEOUT.",
    )
    flush_interval_ms: int = setting(
        500, at_least=1, at_most=600_000, rocketmq="flushIntervalCommitLog", doc="Pause between two asynchronous syncs."
    )
    flush_consume_queue_interval_ms: int = setting(
        1_000,
        at_least=1,
        at_most=600_000,
        rocketmq="flushIntervalConsumeQueue",
        doc="Pause between two syncs of the consume queues.",
    )
    check_crc_on_recovery: bool = setting(
        True, rocketmq="checkCRCOnRecover", doc="Whether recovery compares body checksums."
    )
    pending_bytes_max: int = setting(
        64 * MiB,
        at_least=MiB,
        doc="Bytes written but not yet synced above which no further request is read (sync mode).",
    )
    transfer_bytes_max: int = setting(
        256 * KiB,
        at_least=KiB,
        rocketmq="maxTransferBytesOnMessageInMemory",
        doc="Most bytes that one pull returns from the page cache.",
    )
    transfer_messages_max: int = setting(
        32,
        at_least=1,
        rocketmq="maxTransferCountOnMessageInMemory",
        doc="Most messages that one pull returns from the page cache.",
    )
    transfer_bytes_on_disk_max: int = setting(
        64 * KiB,
        at_least=KiB,
        rocketmq="maxTransferBytesOnMessageInDisk",
        doc="Most bytes that one pull returns when they have to be read from disk.",
    )
    transfer_messages_on_disk_max: int = setting(
        8,
        at_least=1,
        rocketmq="maxTransferCountOnMessageInDisk",
        doc="Most messages that one pull returns when they have to be read from disk.",
    )
    memory_ratio_percent: int = setting(
        40,
        at_least=1,
        at_most=95,
        rocketmq="accessMessageInMemoryMaxRatio",
        doc="Share of the machine's memory within which the newest messages count as being in the page cache.",
    )

    @property
    def consume_queue_file_bytes_rounded(self) -> int:
        """The consume-queue file length that is really used: a multiple of 20."""
        return -(-self.consume_queue_file_bytes // 20) * 20

    @property
    def batch_consume_queue_file_bytes_rounded(self) -> int:
        """The batch-consume-queue file length that is really used: a multiple of 46."""
        return -(-self.batch_consume_queue_file_bytes // 46) * 46

    @property
    def dispatches_to_light_queues(self) -> bool:
        """Whether messages go into the light queues that they name."""
        return self.light_queues and self.multi_dispatch
