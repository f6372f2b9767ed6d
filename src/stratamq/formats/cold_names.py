"""Names of the objects in the cold tier. They hold nothing but ``A-Z a-z 0-9 _ - . / =``, whatever a topic is called.

====================================================================== ================================================
name, below the root of one broker                                     object
====================================================================== ================================================
``id``                                                                 whose tier this is
``e/EPOCH``                                                            a writer that claimed an epoch (8 digits)
``m/TOPIC/QUEUE/INCARNATION/VERSION``                                  manifest of a queue (8 and 20 digits)
``m/TOPIC/QUEUE/INCARNATION/tomb``                                     this incarnation of the queue was deleted
``s/TOPIC/QUEUE/INCARNATION/FIRST-LAST-EPOCH-UNIQUE.seg``              flat segment; ``.idx``: index of a Parquet one
``lake/TOPIC/date=DATE/queue=QUEUE/INC-FIRST-LAST-EPOCH-UNIQUE.parquet``  Parquet segment
====================================================================== ================================================

In a topic every byte that is not one of ``A-Z a-z 0-9 _ -`` is written ``.xx``, two hex digits. ``UNIQUE`` is 12 hex
digits of the time it was made in ms and 16 of chance, so a name is never used twice.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

ID_NAME: Final = "id"
EPOCHS: Final = "e/"
MANIFESTS: Final = "m/"
SEGMENTS: Final = "s/"
LAKE: Final = "lake/"
TOMB: Final = "tomb"
INCARNATION_MAX: Final = 99_999_999
EPOCH_MAX: Final = 99_999_999

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(r"(?:\.[0-9a-f]{2}|[A-Za-z0-9_-])+")
_MANIFEST: Final = re.compile(r"m/([^/]+)/([0-9]{1,10})/([0-9]{8})/([0-9]{20}|tomb)")
_DATA: Final = re.compile(
    r"(?:s/[^/]+/[0-9]{1,10}/[0-9]{8}/|lake/[^/]+/date=[0-9-]{10}/queue=[0-9]{1,10}/[0-9]{8}-)"
    r"[0-9]{20}-[0-9]{20}-([0-9]{8})-([0-9a-f]{12})[0-9a-f]{16}\.(?:seg|idx|parquet)"
)


class Lifetime(NamedTuple):
    """One queue from its making to its deletion. A queue that is made again is the next incarnation, from 1 on."""

    topic: str
    queue_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class ManifestName(NamedTuple):
    """What the name of a manifest says; ``version`` is None for a tombstone."""

    life: Lifetime
    version: int | None


class DataName(NamedTuple):
    """What the name of a segment says about who wrote it and when."""

    epoch: int
    made_ms: int


def escape_topic(topic: str) -> str:
    """A topic as a part of an object's name."""
    return _UNSAFE.sub(lambda match: "".join(f".{byte:02x}" for byte in match[0].encode()), topic)


def unescape_topic(text: str) -> str:
    """The topic of a part of a name. Raises ValueError when `escape_topic` never made it."""
    if not _ESCAPED.fullmatch(text):
        raise ValueError(f"{text!r} is not a topic in a name")
    raw = re.sub(rb"\.([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text.encode())
    topic = raw.decode()
    if escape_topic(topic) != text:
        raise ValueError(f"{text!r} is not how topic {topic!r} is written in a name")
    return topic


def epoch_name(epoch: int) -> str:
    """Name of the claim of an epoch."""
    return f"{EPOCHS}{epoch:08d}"


def parse_epoch_name(name: str) -> int | None:
    """The epoch that a name claims; None for any other name."""
    match = re.fullmatch(r"e/([0-9]{8})", name)
    return None if match is None else int(match[1])


def queue_folder(topic: str, queue_id: int) -> str:
    """What the names of all manifests of a queue begin with."""
    return f"{MANIFESTS}{escape_topic(topic)}/{queue_id}/"


def manifest_folder(life: Lifetime) -> str:
    """What the names of the manifests of one incarnation begin with."""
    return f"{queue_folder(life.topic, life.queue_id)}{life.incarnation:08d}/"


def manifest_name(life: Lifetime, version: int) -> str:
    """Name of one version of a queue's manifest."""
    return f"{manifest_folder(life)}{version:020d}"


def tomb_name(life: Lifetime) -> str:
    """Name of the mark that an incarnation was deleted."""
    return manifest_folder(life) + TOMB


def parse_manifest_name(name: str) -> ManifestName | None:
    """What the name of a manifest or tombstone says; None for any other name."""
    match = _MANIFEST.fullmatch(name)
    if match is None:
        return None
    try:
        topic = unescape_topic(match[1])
    except ValueError:
        return None
    version = None if match[4] == TOMB else int(match[4])
    return ManifestName(Lifetime(topic, int(match[2]), int(match[3])), version)


def unique_part(made_ms: int, chance: bytes) -> str:
    """The part of a name that makes it unique: a time and 8 bytes of chance."""
    return f"{made_ms & 0xFFFF_FFFF_FFFF:012x}{chance.hex():0>16}"


def data_folder(life: Lifetime) -> str:
    """What the names of the flat segments of one incarnation begin with."""
    return f"{SEGMENTS}{escape_topic(life.topic)}/{life.queue_id}/{life.incarnation:08d}/"


def segment_name(life: Lifetime, first: int, last: int, epoch: int, unique: str, *, kind: str = "seg") -> str:
    """Name of a flat segment, or with ``kind`` "idx" of the index of a Parquet one."""
    return f"{data_folder(life)}{first:020d}-{last:020d}-{epoch:08d}-{unique}.{kind}"


def topic_parts(topic: str) -> tuple[str, str]:
    """What the names of all segments of a topic begin with."""
    return f"{SEGMENTS}{escape_topic(topic)}/", f"{LAKE}{escape_topic(topic)}/"


def lake_folder(topic: str) -> str:
    """What the names of all Parquet segments of a topic begin with."""
    return f"{LAKE}{escape_topic(topic)}/"


def parquet_name(life: Lifetime, first: int, last: int, epoch: int, unique: str, *, time_ms: int) -> str:
    """Name of a Parquet segment whose messages begin at a time; readers find date and queue in the folders' names."""
    day = datetime.fromtimestamp(min(max(time_ms, 0), 253_402_300_799_000) / 1000, UTC).strftime("%Y-%m-%d")
    folder = f"{lake_folder(life.topic)}date={day}/queue={life.queue_id}/"
    return f"{folder}{life.incarnation:08d}-{first:020d}-{last:020d}-{epoch:08d}-{unique}.parquet"


def parse_data_name(name: str) -> DataName | None:
    """What the name of a segment of any kind says; None for any other name."""
    match = _DATA.fullmatch(name)
    return None if match is None else DataName(int(match[1]), int(match[2], 16))
