"""The store checkpoint: how far each part is known to be on disk.

4096 bytes, big-endian, zeros behind the fields:

====== ==== ==========================================================================================
offset size field
====== ==== ==========================================================================================
0      8    physic_msg_timestamp: store time of the newest record known to be synced
8      8    logics_msg_timestamp: store time of the newest record whose consume-queue unit is on disk
16     8    index_msg_timestamp: end time of the newest index file that is on disk
24     8    master_flushed_offset: on a slave, how far its master had synced
32     8    confirm_physical_offset: since RocketMQ 5.1.1
40     24   RocketMQ 5.5 keeps one more position at 40; kept at 0 here, which it takes
64     60   StrataMQ's own positions, see `Progress`
====== ==== ==========================================================================================

RocketMQ writes its fields only and leaves the rest as it is. StrataMQ's positions carry a checksum over all 64 bytes
before them too, so they stop counting as soon as RocketMQ has changed anything: they say where the log was when *we*
left it.

Source: docs/formats/checkpoint.md; apache/rocketmq store/.../StoreCheckpoint.java.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratamq.units import Buffer

CHECKPOINT_BYTES: Final = 4096
SAFETY_MARGIN_MS: Final = 3000
_FIELDS: Final = struct.Struct(">qqqqq")
PROGRESS_AT: Final = 64
PROGRESS_MAGIC: Final = b"STRATAMQ"
_PROGRESS_VERSION: Final = 1
_PROGRESS: Final = struct.Struct(">8siqqqqiiI")
_CRC: Final = struct.Struct(">I")
PROGRESS_END: Final = PROGRESS_AT + _PROGRESS.size + _CRC.size


class Progress(NamedTuple):
    """How far StrataMQ brought each part to the disk, as exact positions. At byte 64, big-endian:

    magic ``STRATAMQ`` | version i32 = 1 | log_synced i64 | queues_synced i64 | index_synced i64 | index_file i64 |
    index_count i32 | queue_count i32 | queues_fingerprint u32 | CRC-32 u32 over everything before it, RocketMQ's
    fields included
    """

    log_synced: int
    """Commit-log bytes below this physical offset are on the disk."""
    queues_synced: int
    """Records below this physical offset have their consume-queue units on the disk."""
    index_synced: int
    """Records below this physical offset are in the index on the disk."""
    index_file: int
    """Name of the newest index file as a number; 0 when there is none."""
    index_count: int
    """Entries of that file below this number are on the disk."""
    queue_count: int
    """How many consume queues had units."""
    queues_fingerprint: int
    """CRC over their names (and ends, after a clean stop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the checkpoint file says."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Records stored before this are on disk in commit log and consume queues."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MARGIN_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Records stored before this are on disk in commit log, consume queues and index."""
        return min(self.min_timestamp, self.index_msg_timestamp)


def encode_checkpoint(checkpoint: Checkpoint, progress: Progress | None = None) -> bytes:
    """The whole 4096-byte file."""
    head = _FIELDS.pack(
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_physical_offset,
    )
    if progress is None:
        return head.ljust(CHECKPOINT_BYTES, b"\0")
    covered = head.ljust(PROGRESS_AT, b"\0") + _PROGRESS.pack(PROGRESS_MAGIC, _PROGRESS_VERSION, *progress)
    return (covered + _CRC.pack(zlib.crc32(covered))).ljust(CHECKPOINT_BYTES, b"\0")


def decode_checkpoint(data: Buffer) -> Checkpoint:
    """Read a checkpoint; the caller has made sure of at least 40 bytes. Negative times count as unknown (0)."""
    physic, logics, index, master, confirm = _FIELDS.unpack_from(data, 0)
    return Checkpoint(
        physic_msg_timestamp=max(0, physic),
        logics_msg_timestamp=max(0, logics),
        index_msg_timestamp=max(0, index),
        master_flushed_offset=max(0, master),
        confirm_physical_offset=max(0, confirm),
    )


def decode_progress(data: Buffer) -> Progress | None:
    """StrataMQ's own positions; None when there are none, or when somebody else changed the checkpoint since."""
    crc_at = PROGRESS_AT + _PROGRESS.size
    if len(data) < crc_at + _CRC.size:
        return None
    magic, version, *fields = _PROGRESS.unpack_from(data, PROGRESS_AT)
    if magic != PROGRESS_MAGIC or version != _PROGRESS_VERSION:
        return None
    with memoryview(data) as view:
        crc = zlib.crc32(view[:crc_at])
    return Progress(*fields) if crc == _CRC.unpack_from(data, crc_at)[0] else None
