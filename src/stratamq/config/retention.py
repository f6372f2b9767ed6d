"""Settings of what is kept how long: when files of the log store go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, expect_match, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig(Section):
    """When files of the log store go. Percentages are of the disk that a file lies on.

    Ratios outside RocketMQ's limits are moved to the limit, as RocketMQ does; `clampings` says so.
    """

    TITLE: ClassVar[str] = "Retention"

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

    def check(self) -> None:
        """Check hours and fraction at the start, not in the hour in which they matter. Raises ConfigError."""
        hours = r"([01][0-9]|2[0-3])(;([01][0-9]|2[0-3]))*"
        expect_match("deleteWhen", self.delete_when, hours, "hours from 00 to 23, two digits each, such as 04 or 04;16")
        expect_match(
            "logicalDiskSpaceCleanForciblyThreshold",
            self.shared_force_ratio,
            r"0\.[0-9]{1,4}|1\.0",
            "a fraction such as 0.8, up to 1.0",
        )

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The hours of ``delete_when``."""
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
