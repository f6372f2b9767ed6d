"""Every setting, typed, once: default, bounds, unit and text.

A setting that RocketMQ also has carries RocketMQ's property name; `broker.conf` is read by those names. A part of the
program receives the piece of configuration it needs, never a global. Sizes are bytes, durations milliseconds.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    consume_queue_file_bytes: int = setting(
        6_000_000,
        at_least=20,
        at_most=2**31 - 20,
        rocketmq="mappedFileSizeConsumeQueue",
        doc="Length of one consume-queue file, rounded up to a multiple of 20.",
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
