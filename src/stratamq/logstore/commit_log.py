"""The commit log as files: written by gather writes at the end, read through read-only shared mappings.

Writing goes through descriptors, not through a writable mapping, so that a full disk is an error (ENOSPC) and not a
signal that kills the process; on Linux shared mappings show such writes at once. Files have their full length from
creation on, as RocketMQ's have, and are sparse: the length says nothing about how much they hold.

Invariants: all files have the same length and follow each other without gaps; ``end`` is the first byte not written;
everything below the position in `mark_synced` is on the disk.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from stratamq.files.filesystem import FileSystem
from stratamq.logstore import layout
from stratamq.logstore.log_paths import LogPaths
from stratamq.units import Buffer

MAPPINGS_MAX: Final = 128
"""Mapped files at most; each costs address space and one descriptor."""
BLOCK_BYTES: Final = 4096
"""No file system allocates less at a time: within a block that holds something there is always room."""
_ZEROS: Final = bytes(1 << 20)


class Segment(NamedTuple):
    """Bytes to be written into one file: where they go in the stream, and the pieces in order."""

    start: int
    parts: list[Buffer]


class SyncWork(NamedTuple):
    """What has to be synced, in a form that any thread can use: files, then directories, by path.

    Their writer keeps each file open until it is synced, so that an error of the kernel's write-back is not forgotten
    before this sync asks for it. A file that is gone by then needs no sync.
    """

    paths: Sequence[str] = ()
    directories: Sequence[str] = ()


class Detached(NamedTuple):
    """A file that left the log but not yet the disk: its path, and a weak reference to its mapping, if it had one. The
    disk gets the space back when the file is deleted and the mapping is gone."""

    base: int
    path: str
    mapping: weakref.ref[mmap.mmap] | None


class CommitLog:
    """The files of one commit log. Not thread-safe; only the descriptors in a `SyncWork` may be used elsewhere."""

    def __init__(self, fs: FileSystem, paths: LogPaths, file_bytes: int, files: Mapping[int, str]) -> None:
        """``files`` gives the directory of each file by its base, in order."""
        self.paths = paths
        self.directory = paths.writable[0]
        self.full_paths: frozenset[str] = frozenset()
        """Directories where no new file is made as long as another one has room (`RetentionService.watch`)."""
        self.file_bytes = file_bytes
        self.bases = bases = list(files)
        self._directories = dict(files)
        self.end = bases[-1] if bases else 0
        self._fs = fs
        self._views: OrderedDict[int, memoryview] = OrderedDict()
        self._handles: dict[int, int] = {}
        self._unsynced: set[int] = set()
        self._directories_unsynced: set[str] = set()
        self._directory_unsynced_at = -1

    @property
    def min_offset(self) -> int:
        """Where the oldest file begins."""
        return self.bases[0] if self.bases else self.end

    def base_of(self, offset: int) -> int:
        """Where the file begins in which ``offset`` lies."""
        return offset - offset % self.file_bytes

    def directory_of(self, base: int) -> str:
        """Directory of the file that begins at ``base``; where it would be made when there is none."""
        there = self._directories.get(base)
        return self.paths.place(base, self.file_bytes, self.full_paths) if there is None else there

    def path_of(self, base: int) -> str:
        """Path of the file that begins at ``base``."""
        return os.path.join(self.directory_of(base), layout.stream_file_name(base))

    def file_view(self, base: int) -> memoryview:
        """The whole file at ``base``, read-only. The view stays usable after the file is closed or removed."""
        view = self._views.get(base)
        if view is not None:
            return view
        fd = self._fs.open(self.path_of(base), writable=False)
        try:
            view = memoryview(self._fs.map(fd, self.file_bytes))
        finally:
            self._fs.close(fd)
        while len(self._views) >= MAPPINGS_MAX:
            self._views.popitem(last=False)  # dropped, not closed: who still reads keeps it mapped
        self._views[base] = view
        return view

    def view(self, offset: int, size: int) -> memoryview | None:
        """``size`` bytes from ``offset`` on, or None when they are not all in one file of this log."""
        base = offset - offset % self.file_bytes
        position = offset - base
        if offset < self.min_offset or offset + size > self.end or position + size > self.file_bytes or size < 0:
            return None
        return self.file_view(base)[position : position + size]

    def write(self, segments: Iterable[Segment]) -> None:
        """Write what was appended; files are created as needed. Moves ``end``. Raises OSError; `erase` undoes."""
        for segment in segments:
            base = self.base_of(segment.start)
            data = b"".join(segment.parts)
            self._fs.write(self._handle(base), [data], segment.start - base)
            self._unsynced.add(base)
            self.end = segment.start + len(data)

    def erase(self, start: int, segments: Sequence[Segment]) -> None:
        """Undo a failed `write`: overwrite with zeros what it may have left, so that it never looks like a record.

        Only blocks that hold something are written, because on a full disk a hole cannot be.
        Raises OSError when even that fails; the log must then not be written any more.
        """
        self.end = start
        for segment in segments:
            base = self.base_of(segment.start)
            if base not in self._handles:
                continue
            fd, first = self._handles[base], segment.start - base
            end = first + sum(map(len, segment.parts))
            at = self._fs.next_data(fd, first)
            while at is not None and at < end:
                block_end = min(at - at % BLOCK_BYTES + BLOCK_BYTES, end)
                self._fs.write(fd, [_ZEROS[: block_end - at]], at)
                at = self._fs.next_data(fd, block_end) if block_end < end else None

    def sync_work(self) -> SyncWork:
        """What must be synced so that everything written by now is on the disk."""
        paths = [self.path_of(base) for base in sorted(self._unsynced)]
        return SyncWork(paths, sorted(self._directories_unsynced))

    def mark_synced(self, end: int) -> None:
        """Note that everything below ``end`` is on the disk; closes files that are full and synced."""
        if end >= self.end:
            self._unsynced.clear()
        last = end - end % self.file_bytes
        if len(self._handles) > 1 or len(self._unsynced) > 1:
            self._unsynced = {base for base in self._unsynced if base >= last}
            for base in [b for b in self._handles if b < last]:
                self._fs.close(self._handles.pop(base))
        if end >= self._directory_unsynced_at:
            self._directory_unsynced_at = -1
            self._directories_unsynced.clear()

    def zero_from(self, offset: int) -> int:
        """Make everything behind ``offset`` in its file zero, and remove later files. Returns how many bytes were not.

        Holes are skipped, so this costs what really stands there. Removals are synced, bytes are not.
        """
        base = self.base_of(offset)
        for later in reversed([b for b in self.bases if b > base]):
            directory = self.directory_of(later)
            self.remove(later)
            self._fs.sync_directory(directory)  # newest first, one by one: no crash leaves a gap
        cleaned = 0
        if base in self.bases:
            cleaned = zero_file_from(self._fs, self._handle(base), offset - base, self.file_bytes)
            if cleaned:
                self._unsynced.add(base)
        self.end = offset
        return cleaned

    def remove(self, base: int) -> None:
        """Remove the file at ``base``."""
        handle = self._handles.pop(base, None)
        if handle is not None:
            self._fs.close(handle)
        self._views.pop(base, None)
        self._unsynced.discard(base)
        self._fs.remove(self.path_of(base))
        self.bases.remove(base)
        self._directories_unsynced.add(self._directories.pop(base))
        self._directory_unsynced_at = max(self._directory_unsynced_at, self.end)

    def is_read(self, base: int) -> bool:
        """Whether somebody holds views of the file at ``base`` that this log handed out lately."""
        view = self._views.get(base)
        if view is None:
            return False
        mapping = cast(mmap.mmap, view.obj)
        try:
            view.release()
            mapping.close()
        except BufferError:
            self._views[base] = memoryview(mapping)
            return True
        del self._views[base]
        return False

    def detach_oldest(self) -> Detached:
        """Let the log begin one file later; the caller deletes the file. Views that were handed out stay usable.

        The last file cannot be taken.
        """
        assert len(self.bases) > 1
        base = self.bases.pop(0)
        handle = self._handles.pop(base, None)
        if handle is not None:
            self._fs.close(handle)
        view = self._views.pop(base, None)
        self._unsynced.discard(base)
        path = self.path_of(base)
        del self._directories[base]
        return Detached(base, path, None if view is None else weakref.ref(cast(mmap.mmap, view.obj)))

    def attach_oldest(self, taken: Detached) -> None:
        """Take back a detached file that could not be deleted."""
        assert taken.base + self.file_bytes == self.bases[0]
        self.bases.insert(0, taken.base)
        self._directories[taken.base] = os.path.dirname(taken.path)

    def close(self) -> None:
        """Close all descriptors. Views that were handed out stay usable."""
        for fd in self._handles.values():
            self._fs.close(fd)
        self._handles.clear()
        self._views.clear()

    def _handle(self, base: int) -> int:
        fd = self._handles.get(base)
        if fd is not None:
            return fd
        path = self.path_of(base)
        if self.bases and self.bases[0] <= base <= self.bases[-1]:
            fd = self._fs.open(path)
        else:
            fd = self._fs.create_durable(path, self.file_bytes)  # so that no crash leaves a gap between files
            self.bases.append(base)
            self._directories[base] = os.path.dirname(path)
        self._handles[base] = fd
        return fd


def zero_file_from(fs: FileSystem, fd: int, position: int, file_bytes: int) -> int:
    """Overwrite with zeros what is not zero from ``position`` to the end. Returns how many bytes were rewritten."""
    cleaned = 0
    length = BLOCK_BYTES
    at = fs.next_data(fd, position) if position < file_bytes else None
    while at is not None and at < file_bytes:
        # From block to block at first: mostly little stands there, and reading on would be reading a hole.
        end = min(at - at % BLOCK_BYTES + length, file_bytes)
        data = fs.read(fd, end - at, at)
        if data != _ZEROS[: len(data)]:
            fs.write(fd, [_ZEROS[: len(data)]], at)
            cleaned += len(data)
        at = fs.next_data(fd, end) if end < file_bytes else None
        length = min(2 * length, len(_ZEROS)) if at == end else BLOCK_BYTES
    return cleaned
