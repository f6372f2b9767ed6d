"""Every setting, typed, once: default, bounds, unit and text.

A setting that RocketMQ also has carries RocketMQ's property name; `broker.conf` is read by those names. A part of the
program receives the piece of configuration it needs, never a global. Sizes are bytes, durations milliseconds.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from stratamq.errors import ConfigError
from stratamq.units import GiB, KiB, MiB


class FlushMode(enum.Enum):
    """When a put is answered: after the sync, or at once."""

    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """What is known of one setting besides its type and default."""

    doc: str
    rocketmq: str = ""
    at_least: int | None = None
    at_most: int | None = None
    multiple_of: int = 1


def setting(
    default: Any,
    *,
    doc: str,
    rocketmq: str = "",
    at_least: int | None = None,
    at_most: int | None = None,
    multiple_of: int = 1,
) -> Any:
    """Declare one setting of a configuration dataclass."""
    info = SettingInfo(doc=doc, rocketmq=rocketmq, at_least=at_least, at_most=at_most, multiple_of=multiple_of)
    return dataclasses.field(default=default, metadata={"setting": info})


def settings_of(config_class: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], SettingInfo]]:
    """The settings of a configuration dataclass in the order of declaration."""
    for field in dataclasses.fields(config_class):
        info = field.metadata.get("setting")
        if info is not None:
            yield field, info


def check_bounds(config: Any) -> None:
    """Check every numeric setting of ``config`` against its bounds. Raises ConfigError naming the first bad one."""
    for field, info in settings_of(type(config)):
        value = getattr(config, field.name)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        too_low = info.at_least is not None and value < info.at_least
        too_high = info.at_most is not None and value > info.at_most
        if too_low or too_high or value % info.multiple_of:
            raise ConfigError(info.rocketmq or field.name, value, describe_bounds(info))


def describe_bounds(info: SettingInfo) -> str:
    """The allowed range of a numeric setting in words."""
    parts = []
    if info.at_least is not None:
        parts.append(f"at least {info.at_least}")
    if info.at_most is not None:
        parts.append(f"at most {info.at_most}")
    if info.multiple_of != 1:
        parts.append(f"a multiple of {info.multiple_of}")
    return ", ".join(parts) or "a whole number"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one log store."""

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

    def __post_init__(self) -> None:
        check_bounds(self)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """When files of the log store go. Percentages are of the disk that a file lies on.

    Ratios outside RocketMQ's limits are moved to the limit, as RocketMQ does; `clampings` says so.
    """

    delete_when: str = setting(
        "04",
        rocketmq="deleteWhen",
        doc="Hours of the day (local time) in which expired files go, two digits each, joined by semicolons: 04;16.",
    )
    file_reserved_hours: int = setting(
        72,
        at_least=0,
        at_most=876_000,
        rocketmq="fileReservedTime",
        doc="How many hours a commit-log file is kept, counted from its newest message.",
    )
    clean_interval_ms: int = setting(
        10_000,
        at_least=100,
        at_most=3_600_000,
        rocketmq="cleanResourceInterval",
        doc="Pause between two rounds of cleaning, and between two looks at the disk.",
    )
    delete_log_pause_ms: int = setting(
        100, at_least=0, at_most=60_000, rocketmq="deleteCommitLogFilesInterval", doc="Pause between two log files."
    )
    delete_queue_pause_ms: int = setting(
        100,
        at_least=0,
        at_most=60_000,
        rocketmq="deleteConsumeQueueFilesInterval",
        doc="Pause between the files of two consume queues.",
    )
    force_release_ms: int = setting(
        120_000,
        at_least=0,
        at_most=3_600_000,
        rocketmq="destroyMapedFileIntervalForcibly",
        doc="How long a file that is being read is spared; then it goes, and who reads it keeps what they have.",
    )
    retry_failed_ms: int = setting(
        120_000,
        at_least=0,
        at_most=3_600_000,
        rocketmq="redeleteHangedFileInterval",
        doc="Pause before a file that could not be deleted is tried again.",
    )
    delete_batch_max: int = setting(
        10, at_least=1, at_most=10_000, rocketmq="deleteFileBatchMax", doc="Most log files that go in one round."
    )
    clean_forcibly: bool = setting(
        True,
        rocketmq="cleanFileForciblyEnable",
        doc="Whether files go before their time, read or not, when the disk is above diskSpaceCleanForciblyRatio.",
    )
    reclaim_ratio: int = setting(
        75,
        at_least=0,
        at_most=100,
        rocketmq="diskMaxUsedSpaceRatio",
        doc="Above so many percent expired files go at any hour. Moved into 10 to 95.",
    )
    force_ratio: int = setting(
        85,
        at_least=0,
        at_most=100,
        rocketmq="diskSpaceCleanForciblyRatio",
        doc="Above so many percent the oldest files go whatever their age. Moved into 30 to 85.",
    )
    warning_ratio: int = setting(
        90,
        at_least=0,
        at_most=100,
        rocketmq="diskSpaceWarningLevelRatio",
        doc="Above so many percent no more messages are taken, until it is diskSpaceCleanForciblyRatio again. Moved "
        "into 35 to 90.",
    )
    replicas_per_disk: int = setting(
        1,
        at_least=1,
        at_most=1_000,
        rocketmq="replicasPerDiskPartition",
        doc="How many brokers share the disk; above 1 each counts only its own files against its share.",
    )
    shared_force_ratio: str = setting(
        "0.8",
        rocketmq="logicalDiskSpaceCleanForciblyThreshold",
        doc="With a shared disk: part of a broker's share above which its oldest files go whatever their age.",
    )
    correct_interval_ms: int = setting(
        300_000,
        at_least=1_000,
        at_most=86_400_000,
        rocketmq="correctLogicMinOffsetForceInterval",
        doc="Pause between two comparisons of all queues with the log's beginning.",
    )
    cold_gap_allowed: bool = setting(
        False, doc="Whether files go under disk pressure that the cold tier has not copied yet; the gap is recorded."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        self.delete_hours  # noqa: B018 - checked at start, not in the hour in which it matters
        if not re.fullmatch(r"0\.[0-9]{1,4}|1\.0", self.shared_force_ratio):
            raise ConfigError(
                "logicalDiskSpaceCleanForciblyThreshold", self.shared_force_ratio, "a fraction such as 0.8, up to 1.0"
            )

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The hours of ``delete_when``. Raises ConfigError."""
        if not re.fullmatch(r"([01][0-9]|2[0-3])(;([01][0-9]|2[0-3]))*", self.delete_when):
            raise ConfigError(
                "deleteWhen", self.delete_when, "hours from 00 to 23, two digits each, such as 04 or 04;16"
            )
        return tuple(int(hour) for hour in self.delete_when.split(";"))

    @property
    def reclaim_percent(self) -> int:
        """Above this expired files go at any hour."""
        return min(max(self.reclaim_ratio, 10), 95)

    @property
    def force_percent(self) -> int:
        """Above this the oldest files go whatever their age; at or below it writes are taken again."""
        return min(max(self.force_ratio, 30), 85, self.warning_percent)

    @property
    def warning_percent(self) -> int:
        """Above this no writes are taken."""
        return min(max(self.warning_ratio, 35), 90)

    def clampings(self) -> list[str]:
        """A sentence for each ratio that is not used as it was given."""
        rows = (
            ("diskMaxUsedSpaceRatio", self.reclaim_ratio, self.reclaim_percent, "10 to 95"),
            ("diskSpaceWarningLevelRatio", self.warning_ratio, self.warning_percent, "35 to 90"),
            (
                "diskSpaceCleanForciblyRatio",
                self.force_ratio,
                self.force_percent,
                "30 to 85, at most diskSpaceWarningLevelRatio",
            ),
        )
        return [
            f"{key}={given} is outside {limits}: {used} is used" for key, given, used, limits in rows if given != used
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStoreConfig:
    """The queue store, which holds AMQP's durable queues. Where RabbitMQ has the same setting it has the same name."""

    PREFIX: ClassVar[str] = "amqp_"
    """What the names of these settings begin with in ``broker.conf``."""

    queue_index_embed_msgs_below: int = setting(
        4 * KiB,
        at_least=0,
        at_most=MiB,
        doc="Messages of fewer bytes (body, properties and headers) are kept in the queue index, others in the message "
        "store; 0 sends all to the store.",
    )
    queue_index_segment_entry_count: int = setting(
        16_384, at_least=2, at_most=1 << 20, doc="Entries of one index segment. Fixed for the life of a store."
    )
    queue_index_journal_bytes_max: int = setting(
        64 * MiB,
        at_least=4 * KiB,
        doc="Length of the journal above which what it holds is moved into the segments; bounds recovery.",
    )
    journal_file_bytes: int = setting(
        16 * MiB, at_least=KiB, at_most=GiB, doc="Length of one journal file above which the next is begun."
    )
    msg_store_file_size_limit: int = setting(
        16 * MiB, at_least=KiB, at_most=2 * GiB, doc="Length of a message file above which the next is begun."
    )
    write_buffer_bytes: int = setting(
        MiB, at_least=KiB, at_most=256 * MiB, doc="Bytes of large messages that are gathered before they are written."
    )
    sync_interval_ms: int = setting(
        25, at_least=1, at_most=10_000, doc="Longest time that something written waits for its sync."
    )
    message_bytes_max: int = setting(
        128 * MiB, at_least=KiB, at_most=GiB, doc="Longest message (body and properties) that is taken."
    )
    recent_bytes_max: int = setting(
        64 * MiB,
        at_least=4 * KiB,
        doc="Memory for messages that are in the journal but not yet in a segment, transient ones included. Above it "
        "they are moved to their segments.",
    )
    index_cache_bytes_max: int = setting(
        32 * MiB, at_least=4 * KiB, doc="Memory for index entries read back from segments."
    )
    body_cache_bytes_max: int = setting(
        16 * MiB, at_least=0, doc="Memory for large bodies written or read lately; they are on disk as well."
    )
    gc_garbage_percent: int = setting(
        50, at_least=1, at_most=99, doc="Share of garbage in the message files above which they are collected."
    )
    gc_files_min: int = setting(3, at_least=1, doc="Message files below which nothing is collected.")
    maintenance_bytes: int = setting(
        MiB, at_least=KiB, at_most=GiB, doc="Bytes that one step of collection or of a journal flush may move."
    )
    vm_memory_high_watermark_percent: int = setting(
        60, at_least=1, at_most=100, doc="Share of the machine's memory above which publishers are blocked."
    )
    definitions_journal_bytes_max: int = setting(
        MiB,
        at_least=KiB,
        at_most=GiB,
        doc="Length of the journal of declared things above which definitions.json is written anew.",
    )
    disk_free_limit_bytes: int = setting(
        50_000_000, at_least=0, doc="Free space of the data disk below which publishers are blocked."
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker."""

    cluster_name: str = setting(
        "DefaultCluster", rocketmq="brokerClusterName", doc="Cluster that the broker says it belongs to."
    )
    broker_name: str = setting(
        "broker-a",
        rocketmq="brokerName",
        doc="Name of the broker in routes. Consumers keep offsets by it, so it should never change.",
    )
    advertised_host: str = setting(
        "",
        rocketmq="brokerIP1",
        doc="IPv4 address at which clients reach the broker, told to them in routes and message ids. Empty: the "
        "address listened on, or this machine's own where that is 0.0.0.0.",
    )
    auto_create_topics: bool = setting(
        True, rocketmq="autoCreateTopicEnable", doc="Whether the first message to an unknown topic creates it."
    )
    auto_create_groups: bool = setting(
        True, rocketmq="autoCreateSubscriptionGroup", doc="Whether an unknown consumer group is created on first use."
    )
    default_topic_queues: int = setting(
        8,
        at_least=1,
        at_most=1024,
        rocketmq="defaultTopicQueueNums",
        doc="Queues of the template topic TBW102, and so the most that an automatically created topic gets.",
    )
    permission: int = setting(
        6, at_least=0, at_most=7, rocketmq="brokerPermission", doc="What clients may do: 4 read, 2 write, 6 both."
    )
    region: str = setting("DefaultRegion", rocketmq="regionId", doc="Region that is noted in every message.")
    trace_on: bool = setting(True, rocketmq="traceOn", doc="Whether clients are told that they may trace messages.")
    long_polling: bool = setting(
        True,
        rocketmq="longPollingEnable",
        doc="Whether a pull that finds nothing waits as long as the client asks; else for shortPollingTimeMills.",
    )
    short_polling_ms: int = setting(
        1_000,
        at_least=1,
        at_most=60_000,
        rocketmq="shortPollingTimeMills",
        doc="How long a pull waits when long polling is off.",
    )
    property_filters: bool = setting(
        True,
        rocketmq="enablePropertyFilter",
        doc="Whether consumers may filter by properties (SQL92). Off by default in RocketMQ.",
    )
    store_reply_messages: bool = setting(
        True,
        rocketmq="storeReplyMessageEnable",
        doc="Whether replies (request-reply) are stored in CLUSTER_REPLY_TOPIC besides being pushed to who asked.",
    )
    pop_checkpoints_max: int = setting(
        100_000,
        at_least=1,
        doc="Check-points of popped messages (up to 32 messages each) that may be open; beyond, pops are refused.",
    )
    pop_waiting_max: int = setting(
        100_000, at_least=1, rocketmq="maxPopPollingSize", doc="Pops that may wait for messages at the same time."
    )
    pop_retry_percent: int = setting(
        20,
        at_least=0,
        at_most=100,
        rocketmq="popFromRetryProbability",
        doc="Of a hundred pops, how many look at the group's retry topic before the topic itself.",
    )
    waiting_pulls_max: int = setting(
        100_000,
        at_least=1,
        doc="Most pulls that may wait for messages at one time; further ones are told to come again.",
    )
    server_side_reset: bool = setting(
        True,
        rocketmq="useServerSideResetOffset",
        doc="Whether an operator's reset of offsets is carried out here and consumers learn of it with their next "
        "pull; else it is sent to the consumers.",
    )
    config_blacklist: str = setting(
        "configBlackList;brokerConfigPath",
        rocketmq="configBlackList",
        doc="Settings that nobody may change while the broker runs, besides these two; joined by semicolons.",
    )
    query_messages_max: int = setting(
        32, at_least=1, at_most=10_000, rocketmq="defaultQueryMaxNum", doc="Most messages that a query by key returns."
    )
    offsets_flush_interval_ms: int = setting(
        5_000,
        at_least=100,
        at_most=600_000,
        rocketmq="flushConsumerOffsetInterval",
        doc="Pause between two writes of the consumer offsets to disk.",
    )
    delay_levels: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        rocketmq="messageDelayLevel",
        doc="Delays by level, level 1 first: a number with s, m, h or d each, separated by blanks.",
    )
    timer_wheel: bool = setting(
        True, rocketmq="timerWheelEnable", doc="Whether messages for any time are taken; else they are refused."
    )
    timer_precision_ms: int = setting(
        1_000,
        at_least=100,
        at_most=60_000,
        rocketmq="timerPrecisionMs",
        doc="Step of the timer wheel. Fixed for the life of a store.",
    )
    timer_max_delay_s: int = setting(
        259_200,
        at_least=1,
        at_most=315_360_000,
        rocketmq="timerMaxDelaySec",
        doc="How far off the time of a message may be, in seconds.",
    )
    timer_roll_window_slots: int = setting(
        172_800,
        at_least=2,
        at_most=1_209_000,
        rocketmq="timerRollWindowSlot",
        doc="A message further off than so many steps is stored anew when they are over, so that the commit log may be "
        "cleaned behind it. Keep it below fileReservedTime.",
    )
    timer_congest_per_slot: int = setting(
        2**31 - 1,
        at_least=1,
        at_most=2**31 - 1,
        rocketmq="timerCongestNumEachSlot",
        doc="Messages for one step above which further ones are refused, some of them up to twice as many.",
    )
    timer_log_file_bytes: int = setting(
        100 * MiB,
        at_least=KiB,
        at_most=2**31 - 1,
        rocketmq="mappedFileSizeTimerLog",
        doc="Length of one timer-log file. Fixed for the life of a store.",
    )
    timer_stop_enqueue: bool = setting(
        False, rocketmq="timerStopEnqueue", doc="Whether messages for a time are stored, but not put into the wheel."
    )
    timer_stop_dequeue: bool = setting(
        False, rocketmq="timerStopDequeue", doc="Whether the wheel stands still and nothing of it is delivered."
    )
    timer_messages_per_step: int = setting(
        1_000,
        at_least=1,
        at_most=100_000,
        doc="Most messages that the timer reads, and most that it delivers, in one go: every tenth of a second.",
    )
    reject_transactions: bool = setting(
        False, rocketmq="rejectTransactionMessage", doc="Whether transactional messages are refused."
    )
    transaction_timeout_ms: int = setting(
        6_000,
        at_least=0,
        at_most=86_400_000,
        rocketmq="transactionTimeOut",
        doc="How old a half message is before its producer is asked about it, unless it says a time itself.",
    )
    transaction_check_max: int = setting(
        15,
        at_least=1,
        at_most=1_000,
        rocketmq="transactionCheckMax",
        doc="How often a producer is asked about a half message before that goes to TRANS_CHECK_MAX_TIME_TOPIC.",
    )
    transaction_check_interval_ms: int = setting(
        30_000,
        at_least=100,
        at_most=86_400_000,
        rocketmq="transactionCheckInterval",
        doc="Pause between two rounds through the half messages.",
    )
    transaction_op_bytes_max: int = setting(
        4_096,
        at_least=64,
        at_most=65_536,
        rocketmq="transactionOpMsgMaxSize",
        doc="Size of a mark for finished transactions at which it is written at once.",
    )
    transaction_op_interval_ms: int = setting(
        3_000,
        at_least=0,
        at_most=60_000,
        rocketmq="transactionOpBatchInterval",
        doc="How long a mark waits for further finished transactions.",
    )
    pop_retry_v2: bool = setting(
        False,
        rocketmq="enableRetryTopicV2",
        doc="Whether popped messages that nobody acknowledged go to %RETRY%group+topic instead of %RETRY%group_topic. "
        "Both are read, whatever this says.",
    )
    transaction_halves_max: int = setting(
        200_000,
        at_least=100,
        at_most=100_000_000,
        doc="How many finished transactions may lie behind an open one before that is moved out of their way (half of "
        "this) and before ends of transactions are refused (all of it); about 200 bytes of memory each.",
    )
    recall_messages: bool = setting(
        False,
        rocketmq="recallMessageEnable",
        doc="Whether a message for a time may be recalled by the handle that its send was answered with.",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        for key, value in (("brokerClusterName", self.cluster_name), ("brokerName", self.broker_name)):
            if not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", value):
                raise ConfigError(key, value, "1 to 120 characters out of % | a-z A-Z 0-9 _ -")
        if self.advertised_host and not _is_ipv4(self.advertised_host):
            raise ConfigError("brokerIP1", self.advertised_host, "an IPv4 address, such as 192.0.2.7")
        parse_delay_levels(self.delay_levels)


_DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays of levels 1, 2, ... in milliseconds. Raises ConfigError."""
    words = text.split()
    if not 1 <= len(words) <= 100 or not all(re.fullmatch(r"[1-9][0-9]{0,8}[smhd]", word) for word in words):
        raise ConfigError("messageDelayLevel", text, "1 to 100 of a number with s, m, h or d, such as: 1s 30s 5m 2h")
    return tuple(int(word[:-1]) * _DELAY_UNITS_MS[word[-1]] for word in words)


def _is_ipv4(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False


class TieredLevel(enum.Enum):
    """Which reads may go to the cold tier."""

    DISABLE = "DISABLE"
    NOT_IN_DISK = "NOT_IN_DISK"
    NOT_IN_MEM = "NOT_IN_MEM"
    FORCE = "FORCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredConfig:
    """The cold tier; off without an address. Keys of RocketMQ's tiered store are read where they mean the same."""

    PREFIX: ClassVar[str] = "tier_"
    """What the names of these settings begin with in ``broker.conf``."""

    url: str = setting(
        "",
        doc="Where the cold tier is: file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, "
        "memory:. Empty: no cold tier.",
    )
    folder: str = setting("", rocketmq="tieredStoreFilePath", doc="A directory, used when `url` is empty.")
    level: TieredLevel = setting(
        TieredLevel.NOT_IN_DISK,
        rocketmq="tieredStorageLevel",
        doc="Which reads go to the tier: none; of what local files lack; also of what is likely not in memory; all "
        "that it can answer.",
    )
    topics: str = setting(
        "*", doc="Topics that are tiered: names with * and ?, joined by semicolons. System topics never are."
    )
    topics_excluded: str = setting("", doc="Topics that are not tiered although `topics` names them.")
    reserved_hours: int = setting(
        72,
        at_least=1,
        at_most=8_760_000,
        rocketmq="tieredStoreFileReservedTime",
        doc="How many hours messages are kept in the tier, counted from the newest of their segment. A topic's "
        "attribute reserve.time stands over it.",
    )
    topic_hours: str = setting(
        "", doc="Other hours for some topics: TOPIC=HOURS joined by semicolons, * and ? allowed."
    )
    reserved_bytes: int = setting(
        0, at_least=0, doc="Most bytes that one queue keeps in the tier; the oldest segments go. 0: no limit."
    )
    expire: bool = setting(True, rocketmq="tieredStoreDeleteFileEnable", doc="Whether expired segments go at all.")
    expire_interval_ms: int = setting(
        60_000,
        at_least=1_000,
        at_most=86_400_000,
        rocketmq="tieredStoreDeleteFileInterval",
        doc="Pause between two looks at a queue for what has expired, may be deleted, or should be joined.",
    )
    seal_age_ms: int = setting(
        30_000,
        at_least=0,
        at_most=3_600_000,
        rocketmq="tieredStoreGroupCommitTimeout",
        doc="A queue's messages are uploaded when the first has waited so long.",
    )
    seal_bytes: int = setting(
        16 * MiB,
        at_least=4 * KiB,
        at_most=1 * GiB,
        rocketmq="tieredStoreGroupCommitSize",
        doc="They are uploaded at once when there are so many bytes, and a segment holds about so many.",
    )
    seal_messages: int = setting(
        100_000,
        at_least=1,
        at_most=10_000_000,
        rocketmq="tieredStoreGroupCommitCount",
        doc="They are uploaded at once when there are so many, and a segment holds at most so many.",
    )
    uploads_max: int = setting(
        4, at_least=1, at_most=64, doc="Queues that are worked on at once. Each holds one segment in memory."
    )
    fetches_max: int = setting(4, at_least=1, at_most=256, doc="Reads from the tier at once.")
    fetches_waiting_max: int = setting(
        1_000, at_least=1, at_most=1_000_000, doc="Requests that may wait for such reads; more are refused."
    )
    cache_bytes: int = setting(128 * MiB, at_least=1 * MiB, doc="Decompressed blocks and indexes kept in memory.")
    read_ahead_bytes: int = setting(
        4 * MiB,
        at_least=0,
        at_most=256 * MiB,
        rocketmq="readAheadMessageSizeThreshold",
        doc="How much is fetched in one go from where a consumer reads.",
    )
    retry_min_ms: int = setting(1_000, at_least=1, at_most=600_000, doc="First pause after the backend failed.")
    retry_max_ms: int = setting(60_000, at_least=1, at_most=3_600_000, doc="Longest pause while it goes on failing.")
    backend_timeout_ms: int = setting(
        30_000, at_least=100, at_most=600_000, doc="Longest time that one request to an object store may take."
    )
    delete_grace_ms: int = setting(
        3_600_000,
        at_least=0,
        at_most=604_800_000,
        doc="How long an object stays that no manifest names any more: longer than any reader uses an old manifest.",
    )
    orphan_grace_ms: int = setting(
        86_400_000,
        at_least=60_000,
        at_most=8_640_000_000,
        doc="Age from which an object that no manifest ever named is litter of an upload that did not end.",
    )
    compact: bool = setting(True, doc="Whether the broker joins small segments into large ones.")
    compact_format: str = setting(
        "auto", doc="What joined segments are: parquet, flat, or auto: Parquet where pyarrow is installed."
    )
    compact_bytes: int = setting(
        64 * MiB, at_least=64 * KiB, at_most=1 * GiB, doc="Bytes of records from which on segments are joined."
    )
    compact_bytes_max: int = setting(
        128 * MiB,
        at_least=64 * KiB,
        at_most=1 * GiB,
        doc="Most bytes of records that the broker joins at once, in memory.",
    )
    endpoint: str = setting(
        "", rocketmq="objectStoreEndpoint", doc="Address of an object store that is not the vendor's."
    )
    region: str = setting("", doc="Region of the bucket; empty: as the environment says.")
    access_key: str = setting(
        "", rocketmq="objectStoreAccessKey", doc="Key id; empty: as the environment says (AWS_ACCESS_KEY_ID and so on)."
    )
    secret_key: str = setting("", rocketmq="objectStoreSecretKey", doc="Secret key; empty: as the environment says.")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.compact_format not in ("auto", "parquet", "flat"):
            raise ConfigError("compact_format", self.compact_format, "auto, parquet or flat")
        if self.compact_bytes > self.compact_bytes_max:
            raise ConfigError(
                "compact_bytes", self.compact_bytes, f"at most compact_bytes_max={self.compact_bytes_max}"
            )
        self.hours_by_topic  # noqa: B018 - checked at start

    @property
    def hours_by_topic(self) -> tuple[tuple[str, int], ...]:
        """The rows of ``topic_hours``: pattern and hours. Raises ConfigError."""
        rows = []
        for row in filter(None, (part.strip() for part in self.topic_hours.split(";"))):
            match = re.fullmatch(r"([^=]+)=([0-9]{1,7})", row)
            if match is None or not int(match[2]):
                raise ConfigError("topic_hours", self.topic_hours, "TOPIC=HOURS joined by semicolons, hours from 1 on")
            rows.append((match[1], int(match[2])))
        return tuple(rows)

    @property
    def address(self) -> str:
        """Where the tier is, as a URL; empty without one."""
        return self.url or (f"file://{self.folder}" if self.folder else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the process that serves clients: addresses and bounds of its ports."""

    host: str = setting("127.0.0.1", rocketmq="bindAddress", doc="IPv4 address that all ports listen on.")
    namesrv_port: int = setting(
        9876, at_least=-1, at_most=65535, doc="Port of the name server; 0 picks a free one, -1 leaves it out."
    )
    namesrv_addresses: str = setting(
        "",
        rocketmq="namesrvAddr",
        doc="Name servers elsewhere that the broker registers with, host:port joined by semicolons.",
    )
    broker_port: int = setting(
        10911, at_least=0, at_most=65535, rocketmq="listenPort", doc="Port of the broker; 0 picks a free one."
    )
    http_port: int = setting(
        8161, at_least=0, at_most=65535, doc="Port of the page, the API and the metrics; 0 picks a free one."
    )
    amqp_port: int = setting(
        5672,
        at_least=-1,
        at_most=65535,
        doc="Port for AMQP 0-9-1; 0 picks a free one, -1 leaves AMQP out. Where the default is in use by another "
        "program, the broker starts without AMQP and says so.",
    )
    amqps_port: int = setting(
        -1,
        at_least=-1,
        at_most=65535,
        doc="Port for AMQP over TLS (RabbitMQ's is 5671); 0 picks a free one, -1: none. Needs a certificate.",
    )
    https_port: int = setting(
        -1,
        at_least=-1,
        at_most=65535,
        doc="Port of the page, the API and the metrics over TLS (RabbitMQ's is 15671); 0 picks a free one, -1: none.",
    )
    vip_port: bool = setting(
        False,
        doc="Whether the broker also listens on its port minus 2, as RocketMQ does for clients with "
        "vipChannelEnabled=true. Off, because that port may be another broker's.",
    )
    order_topics: bool = setting(
        False,
        rocketmq="orderMessageEnable",
        doc="Whether routes carry the order settings of their topics (mqadmin updateOrderConf): clients then send to "
        "and read from the queues named there only.",
    )
    connections_max: int = setting(
        20_000, at_least=1, doc="Most connections of each remoting port; further ones are closed at once."
    )
    idle_timeout_ms: int = setting(
        120_000,
        at_least=1_000,
        rocketmq="serverChannelMaxIdleTimeSeconds",
        doc="Silence in both directions after which a connection is closed. (Seconds under RocketMQ's name.)",
    )
    stall_timeout_ms: int = setting(
        60_000,
        at_least=1_000,
        doc="How long a peer may take to finish sending a request, or to take what was written to it.",
    )
    frame_bytes_max: int = setting(
        16 * MiB, at_least=64 * KiB, at_most=512 * MiB, doc="Longest request taken; a longer one ends its connection."
    )
    receive_bytes_max: int = setting(
        256 * MiB,
        at_least=16 * MiB,
        doc="Bytes of unfinished requests held for all connections together; who goes beyond is disconnected.",
    )
    write_buffer_bytes: int = setting(
        256 * KiB,
        at_least=4 * KiB,
        rocketmq="writeBufferHighWaterMark",
        doc="Unsent bytes of one connection above which nothing more is read from it.",
    )
    requests_unanswered_max: int = setting(
        8_192,
        at_least=1,
        doc="Sends of one connection that may wait for the disk; no more is read from it until some are answered.",
    )
    fast_failure: bool = setting(
        True,
        rocketmq="brokerFastFailureEnable",
        doc="Whether sends that are held back longer than waitTimeMillsInSendQueue are refused; else they wait on.",
    )
    send_wait_ms: int = setting(
        1_000,
        at_least=10,
        at_most=600_000,
        rocketmq="waitTimeMillsInSendQueue",
        doc="How long a send is held back while the disk cannot follow, before it is answered SYSTEM_BUSY. (200 in "
        "RocketMQ.)",
    )
    stop_timeout_ms: int = setting(
        10_000, at_least=100, doc="How long a stop waits for requests in work and for peers to take their answers."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if not _is_ipv4(self.host):
            raise ConfigError("bindAddress", self.host, "an IPv4 address, such as 127.0.0.1 or 0.0.0.0")
