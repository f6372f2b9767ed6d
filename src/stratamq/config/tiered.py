"""Settings of the cold tier."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, setting
from stratamq.errors import ConfigError
from stratamq.units import GiB, KiB, MiB


class TieredLevel(enum.Enum):
    """Which reads may go to the cold tier."""

    DISABLE = "DISABLE"
    NOT_IN_DISK = "NOT_IN_DISK"
    NOT_IN_MEM = "NOT_IN_MEM"
    FORCE = "FORCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredConfig(Section):
    """The cold tier; off without an address. Keys of RocketMQ's tiered store are read where they mean the same."""

    TITLE: ClassVar[str] = "Cold tier"
    PREFIX: ClassVar[str] = "tier_"

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

    def check(self) -> None:
        """Check format, sizes and hours of joined segments. Raises ConfigError."""
        if self.compact_format not in ("auto", "parquet", "flat"):
            raise ConfigError("tier_compact_format", self.compact_format, "auto, parquet or flat")
        if self.compact_bytes > self.compact_bytes_max:
            raise ConfigError(
                "tier_compact_bytes", self.compact_bytes, f"at most tier_compact_bytes_max={self.compact_bytes_max}"
            )
        self.hours_by_topic  # noqa: B018 - checked at start

    @property
    def hours_by_topic(self) -> tuple[tuple[str, int], ...]:
        """The rows of ``topic_hours``: pattern and hours. Raises ConfigError."""
        rows = []
        for row in filter(None, (part.strip() for part in self.topic_hours.split(";"))):
            match = re.fullmatch(r"([^=]+)=([0-9]{1,7})", row)
            if match is None or not int(match[2]):
                raise ConfigError(
                    "tier_topic_hours", self.topic_hours, "TOPIC=HOURS joined by semicolons, hours from 1 on"
                )
            rows.append((match[1], int(match[2])))
        return tuple(rows)

    @property
    def address(self) -> str:
        """Where the tier is, as a URL; empty without one."""
        return self.url or (f"file://{self.folder}" if self.folder else "")
