"""The journal: one frame a commit, in numbered files, removed when the manifest covers all that they hold.

A frame that could not be written for want of space is written again, longer, by the next commit: nothing is lost and
nothing was confirmed. Invariant: frame numbers ascend by one within and across files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_frame import (
    FILE_HEADER,
    JOURNAL_MAGIC,
    FileHeader,
    FrameScan,
    decode_file_header,
    encode_file_header,
    encode_frame,
    scan_frames,
)
from stratamq.queuestore import layout
from stratamq.units import Buffer


class JournalFile(NamedTuple):
    """A file that is full: its number, its newest frame, its length."""

    number: int
    last: int
    size: int


class Journal:
    """Writes the journal. Not thread-safe; files to sync are named by path."""

    def __init__(self, fs: FileSystem, directory: str, file_bytes: int, random_salt: Callable[[], int]) -> None:
        self.directory = directory
        self.full: list[JournalFile] = []
        """Files that are not written any more, oldest first."""
        self._fs = fs
        self._file_bytes = file_bytes
        self._salt_source = random_salt
        self._fd = -1
        self._number = -1
        self._salt = 0
        self._end = 0
        self._last = -1
        self._next_number = 0
        self._closing: list[tuple[int, int]] = []
        """Descriptors of full files with their newest frame, kept open until that is synced."""

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.full) + self._end

    def adopt(self, files: Sequence[JournalFile], next_number: int) -> None:
        """Take over files that recovery found; the next one gets ``next_number``."""
        self.full = list(files)
        self._next_number = next_number

    def write(self, batch: int, durable: int, parts: Sequence[Buffer]) -> tuple[str, bool]:
        """Append a frame. Returns the path to sync, and whether the directory must be synced too. Raises OSError."""
        created = False
        if self._fd < 0 or self._end >= self._file_bytes:
            self._begin(batch)
            created = True
        frame = encode_frame(self._salt, batch, durable, parts)
        self._fs.write(self._fd, [frame], self._end)
        self._end += len(frame)
        self._last = batch
        return self.path_of(self._number), created

    def path_of(self, number: int) -> str:
        """Path of a journal file."""
        return layout.numbered(self.directory, number, layout.JOURNAL_SUFFIX)

    def _begin(self, batch: int) -> None:
        number = self._next_number
        salt = self._salt_source()
        fd = self._fs.create(self.path_of(number), 0)
        try:
            self._fs.write(fd, [encode_file_header(JOURNAL_MAGIC, FileHeader(salt, number, batch))], 0)
        except OSError:
            self._fs.close(fd)
            self._fs.remove(self.path_of(number))
            raise
        self._retire()
        self._fd, self._number, self._salt, self._end = fd, number, salt, FILE_HEADER.size
        self._next_number = number + 1

    def _retire(self) -> None:
        if self._fd >= 0:
            self.full.append(JournalFile(self._number, self._last, self._end))
            self._closing.append((self._last, self._fd))
            self._fd = -1
            self._end = 0

    def roll(self) -> None:
        """Write no more to the current file, so that it can be removed once it is covered."""
        if self._end > FILE_HEADER.size:
            self._retire()

    def mark_synced(self, batch: int) -> None:
        """Everything up to ``batch`` is on the disk: close what is full."""
        while self._closing and self._closing[0][0] <= batch:
            self._fs.close(self._closing.pop(0)[1])

    def remove_through(self, batch: int) -> int:
        """Remove full files without a frame above ``batch``; returns how many. Raises OSError."""
        removed = 0
        while self.full and self.full[0].last <= batch:
            self._fs.remove(self.path_of(self.full[0].number))
            self.full.pop(0)
            removed += 1
        return removed

    def close(self) -> None:
        """Close all descriptors."""
        self._retire()
        for _, fd in self._closing:
            self._fs.close(fd)
        self._closing.clear()


class JournalRead(NamedTuple):
    """One journal file as recovery read it."""

    path: str
    number: int
    data: bytes
    header: FileHeader | None
    scan: FrameScan


def read_journal(fs: FileSystem, path: str, number: int) -> JournalRead:
    """Read and scan one file. Raises OSError, BadMagic, ChecksumMismatch (its header)."""
    found = fs.stat(path)
    fd = fs.open(path, writable=False)
    try:
        data = fs.read(fd, found.size if found is not None else 0, 0)
    finally:
        fs.close(fd)
    header = decode_file_header(data, JOURNAL_MAGIC, path=path)
    scan = scan_frames(data, header) if header is not None else FrameScan([], 0, 0)
    return JournalRead(path, number, data, header, scan)


def random_salt() -> int:
    """A salt nobody can guess."""
    return int.from_bytes(os.urandom(4), "little")
