"""Getting space back from the message files: dead files go at once, half-dead neighbours are joined.

A collection copies the live records of one file, or of neighbours that fit into one together, into ``<first>.rdq.gc``,
a bounded number of bytes a step; syncs it; renames it over the first; syncs the directory; and only then removes the
others. Its footer says which files it stands for, so whatever a crash leaves is either the old files or the new one
with left-overs that the next start removes. Records are copied as they are: damage is not covered up by a new checksum.

Reference counts are taken over when the file is swapped in, so what dies during the copy is garbage in the new file.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.config import QueueStoreConfig
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.queue_messages import empty_table, encode_footer, record_bytes
from stratamq.queuestore.layout import COLLECTED_SUFFIX
from stratamq.queuestore.message_store import DEAD, MessageFile, MessageStore

DEAD_FILES_A_STEP: Final = 16


class Figures(NamedTuple):
    """What the choice depends on, for one file."""

    size: int
    live: int
    sealed: bool


class CollectWork(NamedTuple):
    """What one step leaves to sync."""

    paths: Sequence[str] = ()
    directories: Sequence[str] = ()


def choose(
    files: Sequence[Figures], *, garbage_percent: int, files_min: int, file_bytes: int
) -> tuple[int, int] | None:
    """Which neighbours [lo, hi) to join into one file; None while it is not worth it.

    Worth it is when more than ``garbage_percent`` of all bytes are garbage and there are at least ``files_min`` files.
    Of all runs of sealed files whose live bytes fit into one file (or single files), the one that frees most is taken.
    """
    total = sum([file.size for file in files])
    garbage = total - sum([file.live for file in files])
    if len(files) < files_min or garbage * 100 <= total * garbage_percent:
        return None
    best: tuple[int, int] | None = None
    best_freed = 0
    lo = live = freed = 0
    for at, file in enumerate(files):
        if not file.sealed:
            lo, live, freed = at + 1, 0, 0
            continue
        live += file.live
        freed += file.size - file.live
        while live > file_bytes and lo < at:
            live -= files[lo].live
            freed -= files[lo].size - files[lo].live
            lo += 1
        if freed > best_freed:
            best, best_freed = (lo, at + 1), freed
    return best


class _Collection:
    """One collection under way."""

    __slots__ = ("fd", "path", "position", "row", "rows", "sources", "table")

    def __init__(self, sources: list[MessageFile], path: str, fd: int) -> None:
        self.sources = sources
        self.path = path
        self.fd = fd
        self.position = 0
        """Which source is being copied."""
        self.row = 0
        self.rows: list[array[int]] = [array("I") for _ in sources]
        """Rows copied, by source."""
        self.table = empty_table()


class Collector:
    """Collects one message store. Not thread-safe; raises OSError."""

    def __init__(self, fs: FileSystem, store: MessageStore, config: QueueStoreConfig, handles: HandleCache) -> None:
        self._fs = fs
        self._store = store
        self._config = config
        self._handles = handles
        self._current: _Collection | None = None
        self._ready = False
        """Whether the copy is whole and synced, and waits to be swapped in."""
        self._superseded: list[str] = []
        """Files that the last collection stands for; they go when the directory is synced."""
        self._end = 0

    def is_due(self) -> bool:
        """Whether there is something to do."""
        if self._store.frozen:
            return False
        return self._current is not None or bool(self._superseded) or self._store.changed

    def _dead(self) -> list[MessageFile]:
        busy = self._current.sources if self._current is not None else []
        return [file for file in self._store.files if file.sealed and not file.live_bytes and file not in busy]

    def _choice(self) -> tuple[int, int] | None:
        return choose(
            [Figures(file.size, file.live_bytes, file.sealed) for file in self._store.files],
            garbage_percent=self._config.gc_garbage_percent,
            files_min=self._config.gc_files_min,
            file_bytes=self._config.msg_store_file_size_limit,
        )

    def step(self) -> CollectWork | None:
        """One bounded step. Buffers must be written. Call `finish` after what it returns is synced."""
        if self._superseded:
            return CollectWork(directories=[self._store.directory])
        dead = self._dead()
        for file in dead[:DEAD_FILES_A_STEP]:
            self._remove(self._store.path_of(file.number))
            self._store.replace([file], None)
        if self._current is None:
            choice = self._choice()
            if choice is None:
                self._store.changed = bool(dead)
                return CollectWork() if dead else None
            self._begin(self._store.files[choice[0] : choice[1]])
        assert self._current is not None
        if self._copy(self._current):
            self._ready = True
            return CollectWork(paths=[self._current.path])
        return CollectWork()

    def _begin(self, sources: list[MessageFile]) -> None:
        path = self._store.path_of(sources[0].number) + COLLECTED_SUFFIX
        if self._fs.stat(path) is not None:
            self._fs.remove(path)
        self._current = _Collection(sources, path, self._fs.create(path, 0))
        self._end = 0

    def _copy(self, job: _Collection) -> bool:
        """Copy live records for one step; True when the file is complete."""
        budget = self._config.maintenance_bytes
        parts: list[bytes] = []
        start = self._end
        while job.position < len(job.sources) and budget > 0:
            source = job.sources[job.position]
            fd = self._handles.get(self._store.path_of(source.number))
            ids, offsets, lengths = source.table
            while job.row < len(ids) and budget > 0:
                row = job.row
                job.row += 1
                if source.refs[row] == DEAD:
                    continue
                size = record_bytes(lengths[row])
                parts.append(self._fs.read(fd, size, offsets[row]))
                job.table.ids.append(ids[row])
                job.table.offsets.append(self._end)
                job.table.lengths.append(lengths[row])
                job.rows[job.position].append(row)
                self._end += size
                budget -= size
            if job.row == len(ids):
                job.position += 1
                job.row = 0
        is_complete = job.position == len(job.sources)
        if is_complete and self._store.durable:
            parts.append(encode_footer(job.table, job.sources[-1].covers))
        if parts:
            self._fs.write(job.fd, parts, start)
        return is_complete

    def finish(self) -> None:
        """What the last `step` returned is synced."""
        if self._superseded:
            for path in self._superseded:
                self._remove(path)
            self._superseded.clear()
        elif self._ready and self._current is not None:
            self._swap(self._current)

    def _swap(self, job: _Collection) -> None:
        first = job.sources[0]
        target = self._store.path_of(first.number)
        self._fs.close(job.fd)
        self._current, self._ready = None, False
        self._fs.rename(job.path, target)
        self._handles.forget(target)
        refs = array("I")
        for source, rows in zip(job.sources, job.rows, strict=True):
            refs.extend([source.refs[row] for row in rows])
        new = MessageFile(first.number, first.first_id, job.table, refs, sealed=True)
        new.covers = job.sources[-1].covers
        self._store.replace(job.sources, new)
        self._superseded = [self._store.path_of(source.number) for source in job.sources[1:]]

    def abandon(self) -> None:
        """Give a collection up: the disk is full, or the store is closed. Nothing is lost."""
        job, self._current, self._ready = self._current, None, False
        if job is not None:
            self._fs.close(job.fd)
            if self._fs.stat(job.path) is not None:
                self._fs.remove(job.path)

    def _remove(self, path: str) -> None:
        self._handles.forget(path)
        if self._fs.stat(path) is not None:
            self._fs.remove(path)
