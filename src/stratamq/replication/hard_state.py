"""The file that holds what a member must never forget: term, vote, incarnation. Byte table: docs/formats/raft.md.

Two slots of 4 KiB. Every state is written to the one slot and synced, then to the other and synced, and counts as saved
after that: so a slot that rots leaves the other with the same state, and not with an older one, which would be a vote
forgotten. When the slots differ, a crash came between: the newer one was promised to nobody, and either may be taken.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from stratamq.errors import BadLength, ChecksumMismatch
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.replication.ports import HardState

SLOT_BYTES: Final = 4096
_HEAD: Final = struct.Struct(">4sHHqqqqB")
_MAGIC: Final = b"SMQR"
_VERSION: Final = 1
_CRC: Final = struct.Struct(">I")
NAME_BYTES_MAX: Final = 255


def encode_slot(state: HardState, sequence: int, node: str) -> bytes:
    """One slot: head, node and vote with their lengths, CRC-32 of all that, zeros."""
    name, vote = node.encode(), state.vote.encode()
    head = _HEAD.pack(_MAGIC, _VERSION, 0, sequence, state.term, state.incarnation, state.commit, len(name))
    data = head + name + bytes((len(vote),)) + vote
    return (data + _CRC.pack(zlib.crc32(data))).ljust(SLOT_BYTES, b"\0")


def decode_slot(data: bytes) -> tuple[HardState, int, str] | None:
    """State, sequence and node; None when the slot is not whole."""
    if len(data) < SLOT_BYTES:
        return None
    magic, version, _, sequence, term, incarnation, commit, name_bytes = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        return None
    vote_at = _HEAD.size + name_bytes
    end = vote_at + 1 + data[vote_at]
    if _CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        return None
    name, vote = data[_HEAD.size : vote_at].decode(), data[vote_at + 1 : end].decode()
    return HardState(term, vote, incarnation, commit), sequence, name


class HardStateFile:
    """The file of one node. `save` blocks for two syncs and may run in any thread, one call at a time."""

    def __init__(self, path: str, node: str, filesystem: FileSystem | None = None) -> None:
        self.path = path
        self._node = node
        self._fs = filesystem or LocalFileSystem()
        self._fd = -1
        self._sequence = 0

    def load(self) -> HardState | None:
        """The state saved last; None when there is no file.

        Raises:
            ChecksumMismatch: Neither slot is whole: this member may have voted and must not vote again.
            BadLength: The file belongs to another node.
        """
        if self._fs.stat(self.path) is None:
            return None
        fd = self._fs.open(self.path)
        data = self._fs.read(fd, 2 * SLOT_BYTES, 0)
        self._fd = fd
        slots = [decode_slot(data[:SLOT_BYTES]), decode_slot(data[SLOT_BYTES:])]
        whole = [slot for slot in slots if slot is not None]
        if not whole:
            hint = "empty the data directory: the node then comes back as a new member"
            raise ChecksumMismatch(self.path, 0, "a whole slot", "none", hint=hint)
        state, self._sequence, name = max(whole, key=lambda slot: slot[1])
        if name != self._node:
            raise BadLength(self.path, 0, f"the state of node {self._node}", f"that of node {name}")
        return state

    def save(self, state: HardState) -> None:
        """Save durably. Raises OSError."""
        if self._fd < 0:
            self._fd = self._fs.create_durable(self.path, 2 * SLOT_BYTES)
        self._sequence += 1
        slot = encode_slot(state, self._sequence, self._node)
        for offset in (0, SLOT_BYTES):
            self._fs.write(self._fd, [slot], offset)
            self._fs.sync(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1
