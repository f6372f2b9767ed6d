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
====== ==== ==========================================================================================

Source: docs/formats/checkpoint.md; apache/rocketmq store/.../StoreCheckpoint.java.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from stratamq.units import Buffer

CHECKPOINT_BYTES: Final = 4096
SAFETY_MARGIN_MS: Final = 3000
_FIELDS: Final = struct.Struct(">qqqqq")


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


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The whole 4096-byte file."""
    head = _FIELDS.pack(
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_physical_offset,
    )
    return head.ljust(CHECKPOINT_BYTES, b"\0")


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
