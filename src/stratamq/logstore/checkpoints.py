"""The checkpoint file on disk: read at open, rewritten in place while the store runs.

All fields lie in the first 128 bytes, so the one write that replaces them touches one disk sector.
"""

from __future__ import annotations

import os

from stratamq.errors import StrayFile
from stratamq.files.filesystem import FileSystem
from stratamq.formats.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    Progress,
    decode_checkpoint,
    decode_progress,
    encode_checkpoint,
)

_FIELDS_BYTES = 40


class CheckpointFile:
    """One checkpoint file. `write` may run in another thread than the rest, one call at a time."""

    __slots__ = ("_fd", "_fs", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self._fs = fs
        self._fd = -1

    def read(self) -> tuple[Checkpoint | None, Progress | None]:
        """What the file says; (None, None) when it is missing or too short to say anything.

        Raises OSError, StrayFile.
        """
        found = self._fs.stat(self.path)
        if found is None:
            return None, None
        if not found.is_file:
            raise StrayFile(self.path, "the checkpoint is a file")
        fd = self._fs.open(self.path, writable=False)
        try:
            data = self._fs.read(fd, CHECKPOINT_BYTES, 0)
        finally:
            self._fs.close(fd)
        if len(data) < _FIELDS_BYTES:
            return None, None
        return decode_checkpoint(data), decode_progress(data)

    def write(self, checkpoint: Checkpoint, progress: Progress | None) -> None:
        """Put new values in place. Blocks for a sync. Raises OSError."""
        created = False
        if self._fd < 0:
            if self._fs.stat(self.path) is None:
                self._fd = self._fs.create(self.path, CHECKPOINT_BYTES)
                created = True
            else:
                self._fd = self._fs.open(self.path)
        self._fs.write(self._fd, [encode_checkpoint(checkpoint, progress)], 0)
        self._fs.sync(self._fd)
        if created:
            self._fs.sync_directory(os.path.dirname(self.path))

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1
