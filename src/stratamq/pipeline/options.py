"""The options of the `stratamq` source: every one with its text, parsed and checked before anything is opened.

Spark hands options over as strings and lower-cases their names, so names are compared without case. An option nobody
knows is an error that names it and the known ones: a typing mistake must not silently read everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from stratamq.errors import ConfigError, PipelineError
from stratamq.units import KiB, MiB

OPTIONS: Final[Mapping[str, str]] = {
    "path": "The store directory (the one that holds commitlog/ and consumequeue/); same as load(path).",
    "namesrv": "Instead of path: HOST:PORT of a name server, several with semicolons. The broker is then read over the "
    "network.",
    "bootstrap": "The same as namesrv.",
    "broker": "The broker to read, by name; without it all that have the topics. With tier: whose part of the tier "
    "(default broker-a, or the broker that is read).",
    "tier": "Address of the cold tier, as serve --tier has it. With path or namesrv: what they do not have any more is "
    "read there, as one range of offsets. Alone: the tier alone.",
    "tierEndpoint": "Address of an object store that is not the vendor's. Keys come from the environment.",
    "tierRegion": "Region of the bucket.",
    "groupId": "Name of the consumer group that pulls are made under (default TOOLS_CONSUMER). It has no offsets.",
    "retrySeconds": "How long a task goes on asking when a broker or name server does not answer (default 60).",
    "topics": "Comma list of topics. Without topics, subscribe and subscribePattern: every topic in the store.",
    "subscribe": "The same as topics, under the name that Kafka's source has.",
    "subscribePattern": "Regular expression that must match a whole topic name.",
    "assign": 'Exactly these queues, JSON {"topic": [0, 1]}.',
    "queues": "Comma list of queue ids; without it all queues.",
    "startingOffsets": "earliest (default of batch reads), latest (default of streams), or JSON "
    '{"topic": {"0": 17}}; -2 is earliest, -1 latest. '
    "Queues that are not named start at their earliest offset.",
    "endingOffsets": "latest (default), earliest, or JSON as above; exclusive. Queues not named end at latest. A "
    "stream reads no further than the offsets named, and goes on without end in other queues.",
    "startingTimestamp": "Store time in ms: begin each queue at its first message stored then or later. "
    "Wins over startingOffsets.",
    "endingTimestamp": "Store time in ms: end each queue before its first message stored then or later. "
    "Wins over endingOffsets.",
    "startingOffsetsByTimestamp": 'Store times in ms by queue, JSON {"topic": {"0": 1700000000000}}. '
    "Wins over startingTimestamp for the queues it names.",
    "endingOffsetsByTimestamp": "The same for the ends; wins over endingTimestamp.",
    "startingOffsetsByTimestampStrategy": "latest (default): a queue with nothing stored at or after the time begins "
    "at its end. error: fail.",
    "minOffsetsPerTrigger": "Streams: wait until so many records are there, but no longer than maxTriggerDelay.",
    "maxTriggerDelay": "Streams: how long minOffsetsPerTrigger may hold back a batch, such as 30s, 15m (default), 1h.",
    "maxOffsetsPerTrigger": "Streams: at most so many records a batch, shared by what waits in each queue.",
    "maxBytesPerTrigger": "Streams: about so many bytes of the log a batch, at least one record. With "
    "maxOffsetsPerTrigger both hold.",
    "columns": "Comma list of the columns to build; the others then cost nothing. A schema does the same.",
    "bytesPerSplit": "About how many bytes of the log one task reads (default 128 MiB; 1048576, 64k, 100m, 1g).",
    "minPartitions": "Cut ranges further until there are at least so many tasks (default 1).",
    "failOnDataLoss": "true (default): fail when a range that was asked for is not in the store, or goes away while it "
    "is read. false: read what is there.",
    "decompress": "true (default): bodies that the producer compressed come unpacked. false: as stored.",
    "pushdown": "auto (default): take filters where spark.sql.python.filterPushdown.enabled allows it. true: insist. "
    "false: leave all filters to Spark.",
}
_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}

BYTES_PER_SPLIT_DEFAULT: Final = 128 * MiB
BYTES_PER_SPLIT_MIN: Final = 64 * KiB
PARTITIONS_MAX: Final = 100_000
TRIGGER_DELAY_DEFAULT: Final = 15 * 60
GROUP_DEFAULT: Final = "TOOLS_CONSUMER"
"""A group that every broker knows from the start, RocketMQ's own included."""
RETRY_SECONDS_DEFAULT: Final = 60
EARLIEST: Final = -2
LATEST: Final = -1

OffsetsByQueue = Mapping[str, Mapping[int, int]]
Pushdown = Literal["auto", "true", "false"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Checked options of one read. Offsets are those given; -2 and -1 are resolved when the read is planned."""

    path: str = ""
    namesrv: tuple[str, ...] = ()
    broker: str | None = None
    tier: str = ""
    tier_endpoint: str = ""
    tier_region: str = ""
    group: str = GROUP_DEFAULT
    retry_seconds: int = RETRY_SECONDS_DEFAULT
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queues: frozenset[int] | None = None
    assigned: frozenset[tuple[str, int]] | None = None
    starting_offset: int = EARLIEST
    starting_offsets: OffsetsByQueue | None = None
    ending_offset: int = LATEST
    ending_offsets: OffsetsByQueue | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    starting_times: OffsetsByQueue | None = None
    ending_times: OffsetsByQueue | None = None
    fails_without_time: bool = False
    rows_per_trigger_min: int = 0
    trigger_delay_seconds: int = TRIGGER_DELAY_DEFAULT
    rows_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    columns: tuple[str, ...] | None = None
    bytes_per_split: int = BYTES_PER_SPLIT_DEFAULT
    partitions_min: int = 1
    fail_on_data_loss: bool = True
    decompress: bool = True
    pushdown: Pushdown = "auto"

    @property
    def place(self) -> str:
        """What is read, for people."""
        return " and ".join(one for one in (self.path, ";".join(self.namesrv), self.tier) if one)

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is to be read."""
        if self.topics is not None:
            return topic in self.topics
        return self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Check the options of one read. A stream has no end, and begins at the latest offsets when nothing is said.

    Raises:
        PipelineError: An option is unknown, missing, or contradicts another.
        ConfigError: The value of an option is not usable.
    """
    options = _known(given)
    path = options.get("path", "")
    servers = options.get("namesrv", options.get("bootstrap", ""))
    if not (path or servers or options.get("tier")):
        raise PipelineError(
            "the stratamq source needs the option path: the store directory to read; or namesrv: a name server; or tier"
        )
    for one, other in (("path", "namesrv"), ("path", "bootstrap"), ("namesrv", "bootstrap")):
        if one in options and other in options:
            raise PipelineError(f"the options {one} and {other} exclude each other: give one of them")
    chosen = [name for name in ("topics", "subscribe", "subscribePattern", "assign") if name in options]
    if len(chosen) > 1:
        raise PipelineError(f"the options {' and '.join(chosen)} exclude each other: give one of them")
    topics = options.get("topics", options.get("subscribe"))
    assigned = _assigned(options)
    if assigned is not None:
        topics = ",".join(sorted({topic for topic, _ in assigned}))
    start, starts = _offsets(options, "startingOffsets", LATEST if streaming else EARLIEST)
    end, ends = _offsets(options, "endingOffsets", LATEST)
    return ReadOptions(
        path=path.removeprefix("file://") if path.startswith("file:///") else path,
        namesrv=_addresses(servers),
        broker=options.get("broker") or None,
        tier=options.get("tier", ""),
        tier_endpoint=options.get("tierEndpoint", ""),
        tier_region=options.get("tierRegion", ""),
        group=options.get("groupId") or GROUP_DEFAULT,
        retry_seconds=_whole(options, "retrySeconds", RETRY_SECONDS_DEFAULT, 0, 86_400) or 0,
        topics=None if topics is None else frozenset(_names(topics, "topics")),
        topic_pattern=_pattern(options),
        queues=_queues(options),
        assigned=assigned,
        fails_without_time=_strategy(options),
        rows_per_trigger_min=_whole(options, "minOffsetsPerTrigger", 0, 0) or 0,
        trigger_delay_seconds=_seconds(options, "maxTriggerDelay", TRIGGER_DELAY_DEFAULT),
        starting_offset=start,
        starting_offsets=starts,
        ending_offset=end,
        ending_offsets=ends,
        starting_timestamp_ms=_whole(options, "startingTimestamp", None, 0),
        ending_timestamp_ms=_whole(options, "endingTimestamp", None, 0),
        starting_times=_times(options, "startingOffsetsByTimestamp"),
        ending_times=_times(options, "endingOffsetsByTimestamp"),
        rows_per_trigger=_whole(options, "maxOffsetsPerTrigger", None, 1),
        bytes_per_trigger=_bytes(options, "maxBytesPerTrigger", 0, at_least=1) or None,
        columns=tuple(_names(options["columns"], "columns")) if "columns" in options else None,
        bytes_per_split=_bytes(options, "bytesPerSplit", BYTES_PER_SPLIT_DEFAULT),
        partitions_min=_whole(options, "minPartitions", 1, 1, PARTITIONS_MAX) or 1,
        fail_on_data_loss=_truth(options, "failOnDataLoss", True),
        decompress=_truth(options, "decompress", True),
        pushdown=_pushdown(options),
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(name for name in given if name.lower() not in _BY_LOWER)
    if unknown:
        raise PipelineError(f"the stratamq source has no option {', '.join(unknown)}; it knows {', '.join(OPTIONS)}")
    return {_BY_LOWER[name.lower()]: value.strip() for name, value in given.items() if value is not None}


def _bad(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(name, value, allowed, where="option of the stratamq source")


def _names(value: str, option: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise _bad(option, value, "names separated by commas")
    return names


def _addresses(value: str) -> tuple[str, ...]:
    found = tuple(one.strip() for one in re.split("[;,]", value) if one.strip())
    if not all(re.fullmatch(r".+:\d{1,5}", one) for one in found):
        raise _bad("namesrv", value, "HOST:PORT, several with semicolons")
    return found


def _pattern(options: Mapping[str, str]) -> str | None:
    value = options.get("subscribePattern")
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise _bad("subscribePattern", value, f"a regular expression ({error})") from error
    return value


def _queues(options: Mapping[str, str]) -> frozenset[int] | None:
    value = options.get("queues")
    if value is None:
        return None
    pieces = [piece.strip() for piece in value.split(",")]
    if not all(piece.isdecimal() for piece in pieces):
        raise _bad("queues", value, "queue ids separated by commas, such as 0,1,5")
    return frozenset(map(int, pieces))


def _assigned(options: Mapping[str, str]) -> frozenset[tuple[str, int]] | None:
    value = options.get("assign")
    if value is None:
        return None
    allowed = 'JSON such as {"topic": [0, 1]}'
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _bad("assign", value, allowed) from error
    lists = document.values() if isinstance(document, dict) else ()
    if not lists or not all(
        isinstance(queues, list) and queues and all(type(one) is int and one >= 0 for one in queues) for queues in lists
    ):
        raise _bad("assign", value, allowed)
    return frozenset((topic, queue_id) for topic, queues in document.items() for queue_id in queues)


def _strategy(options: Mapping[str, str]) -> bool:
    value = options.get("startingOffsetsByTimestampStrategy", "latest").lower()
    if value not in ("latest", "error"):
        raise _bad("startingOffsetsByTimestampStrategy", value, "latest or error")
    return value == "error"


def _seconds(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    found = re.fullmatch(r"(\d{1,9})\s*([smhd])", value.lower())
    if not found:
        raise _bad(name, value, "a time such as 30s, 15m or 1h")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def _whole(
    options: Mapping[str, str], name: str, default: int | None, at_least: int, at_most: int = 2**63 - 1
) -> int | None:
    value = options.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"\d{1,19}", value) or not at_least <= int(value) <= at_most:
        raise _bad(name, value, f"a whole number from {at_least} to {at_most}")
    return int(value)


def _bytes(options: Mapping[str, str], name: str, default: int, *, at_least: int = BYTES_PER_SPLIT_MIN) -> int:
    value = options.get(name)
    if value is None:
        return default
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", value.lower())
    size = int(found[1]) * 1024 ** " kmg".index(found[2] or " ") if found else 0
    if size < at_least:
        raise _bad(name, value, f"a size of at least {at_least} bytes, such as 67108864, 64m or 1g")
    return size


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise _bad(name, value, "true or false")
    return value.lower() == "true"


def _pushdown(options: Mapping[str, str]) -> Pushdown:
    match options.get("pushdown", "auto").lower():
        case "auto":
            return "auto"
        case "true":
            return "true"
        case "false":
            return "false"
        case other:
            raise _bad("pushdown", other, "auto, true or false")


def _offsets(options: Mapping[str, str], name: str, default: int) -> tuple[int, OffsetsByQueue | None]:
    """The offset for queues that are not named, and those of named ones."""
    value = options.get(name)
    if value is None:
        return default, None
    if value.lower() in ("earliest", "latest"):
        return (EARLIEST if value.lower() == "earliest" else LATEST), None
    allowed = 'earliest, latest, or JSON such as {"topic": {"0": 17, "1": -2}} (-2 earliest, -1 latest)'
    return default, _by_queue(name, value, EARLIEST, allowed)


def _times(options: Mapping[str, str], name: str) -> OffsetsByQueue | None:
    value = options.get(name)
    allowed = 'JSON such as {"topic": {"0": 1700000000000}}, times in ms'
    return None if value is None else _by_queue(name, value, 0, allowed)


def _by_queue(name: str, value: str, at_least: int, allowed: str) -> OffsetsByQueue:
    """Numbers by topic and queue, out of JSON."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _bad(name, value, allowed) from error
    if not isinstance(document, dict) or not all(isinstance(queues, dict) for queues in document.values()):
        raise _bad(name, value, allowed)
    found: dict[str, dict[int, int]] = {}
    for topic, queues in document.items():
        for queue, number in queues.items():
            if not queue.isdecimal() or type(number) is not int or number < at_least:
                raise _bad(name, value, allowed)
            found.setdefault(topic, {})[int(queue)] = number
    return found
