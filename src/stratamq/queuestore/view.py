"""A queue store as the next start would find it, read without changing anything and without the lock.

Recovery itself runs, over a file system that keeps its repairs in memory (`files.overlay`): what is seen here is what
a broker will serve. Memory is that of a start: the journal, one byte a message, 20 bytes a large one. Messages of
queues or publishers that do not survive a restart are not seen.

A broker may have the store open. Then the view is of one moment, and is taken again when files moved under it; what
the broker holds in memory alone (which messages are unacknowledged, what is not yet written) is not in it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from stratamq.config import QueueStoreConfig
from stratamq.errors import CorruptionError, NotAStore
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.files.overlay import OverlayFileSystem
from stratamq.queuestore import layout
from stratamq.queuestore.index_files import IndexFiles
from stratamq.queuestore.journal import Journal, random_salt
from stratamq.queuestore.manifest import Manifest
from stratamq.queuestore.message_store import MessageStore
from stratamq.queuestore.queue import Shared
from stratamq.queuestore.recovery import Recovered, recover
from stratamq.queuestore.types import Progress

HANDLES_MAX: Final = 64
TRIES: Final = 5
"""So often a store in use is read again when files moved under the reader."""
ENTRY_COUNTS: Final = (2, 1 << 20)
"""What `QueueStoreConfig.queue_index_segment_entry_count` may be."""
_PLACES: Final = ("", "store", os.path.join("amqp", "store"))


class Owner(NamedTuple):
    """Whether a process holds the store's lock, and which."""

    is_live: bool
    pid: int


class View(NamedTuple):
    """What a start would make of the store, and what it would change on the disk for that."""

    directory: str
    owner: Owner
    fs: OverlayFileSystem
    shared: Shared
    found: Recovered

    def close(self) -> None:
        """Close all files."""
        self.shared.index.handles.close()


def find_store(path: str, fs: FileSystem) -> str:
    """The queue store's directory, ``path`` being it, its parent, or a broker's data directory. Raises NotAStore."""
    found = fs.stat(path)
    if found is None or not found.is_directory:
        raise NotAStore(path, "no such directory" if found is None else "not a directory")
    for place in _PLACES:
        directory = os.path.join(path, place) if place else path
        parts = (layout.MANIFEST, layout.JOURNAL, layout.PERSISTENT)
        if any(fs.stat(os.path.join(directory, part)) is not None for part in parts):
            return directory
    raise NotAStore(path, f"no {layout.MANIFEST} and no {layout.JOURNAL} in it, in store or in amqp/store")


def find_owner(directory: str) -> Owner:
    """Who holds the lock, by what the kernel lists; the lock is not touched, so a broker's start is not in the way.

    A process in another container is not listed, and its store seems to be at rest.
    """
    path = os.path.join(directory, layout.LOCK)
    try:
        found = os.stat(path)
        with open(path, "rb") as file:
            text = file.read(20).strip()
    except OSError:
        return Owner(False, 0)
    named = int(text) if text.isdigit() else 0
    if named and _has_open(named, found):
        return Owner(True, named)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return Owner(False, 0)
    for fields in lines:
        # "1: FLOCK  ADVISORY  WRITE 3568 fd:00:2531452 0 EOF"; waiting ones have "->" behind the number
        if len(fields) == 8 and fields[1] == "FLOCK" and fields[5] == place and fields[4].isdigit():
            return Owner(True, int(fields[4]))
    return Owner(False, 0)


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    """Whether a process has the lock file open: on stacked file systems /proc/locks names another device than stat."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # no such process, or somebody else's
        return False
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            found = os.stat(f"{folder}/{name}")
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def open_view(directory: str, fs: FileSystem, *, counts_anew: bool = False, progress: Progress | None = None) -> View:
    """Read the store in ``directory``. With ``counts_anew`` a recovery file is not believed: all footers are read.

    Raises:
        CorruptionError: A start would refuse the store.
        OSError: A file cannot be read.
    """
    for left in reversed(range(TRIES)):
        owner = find_owner(directory)
        try:
            return _read(directory, OverlayFileSystem(fs), owner, counts_anew=counts_anew, progress=progress)
        except (CorruptionError, FileNotFoundError):
            if not owner.is_live or not left:
                raise
    raise AssertionError("the last try returns or raises")


def _read(directory: str, fs: OverlayFileSystem, owner: Owner, *, counts_anew: bool, progress: Progress | None) -> View:
    handles = HandleCache(fs, HANDLES_MAX)
    manifest_path = os.path.join(directory, layout.MANIFEST)
    if counts_anew:
        fs.hide(os.path.join(directory, layout.RECOVERY))
    hide_misnamed(directory, fs)
    first = Manifest(fs, manifest_path)
    for _ in first.load():
        pass
    config = QueueStoreConfig()
    entry_count = config.queue_index_segment_entry_count if first.store is None else first.store.entry_count
    if not ENTRY_COUNTS[0] <= entry_count <= ENTRY_COUNTS[1]:
        raise CorruptionError(
            manifest_path, 0, f"{ENTRY_COUNTS[0]} to {ENTRY_COUNTS[1]} entries a segment", entry_count
        )
    shared = Shared(
        entry_count=entry_count,
        index=IndexFiles(
            fs,
            os.path.join(directory, layout.QUEUES),
            os.path.join(directory, layout.TRANSIENT),
            handles,
            config.index_cache_bytes_max,
        ),
        persistent=MessageStore(fs, os.path.join(directory, layout.PERSISTENT), config, handles, durable=True),
        transient=MessageStore(fs, os.path.join(directory, layout.TRANSIENT), config, handles, durable=False),
    )
    journal = Journal(fs, os.path.join(directory, layout.JOURNAL), config.journal_file_bytes, random_salt)
    for path in (journal.directory, shared.persistent.directory, shared.index.directory):
        fs.make_directory(path)
    try:
        found = recover(fs, shared, journal, Manifest(fs, manifest_path), progress)
    except BaseException:
        handles.close()
        raise
    return View(directory, owner, fs, shared, found)


def hide_misnamed(directory: str, fs: OverlayFileSystem) -> list[str]:
    """Hide numbered files whose numbers are not written in ten digits: a start would look for them elsewhere."""
    hidden = []
    for name, suffix in ((layout.JOURNAL, layout.JOURNAL_SUFFIX), (layout.PERSISTENT, layout.MESSAGE_SUFFIX)):
        folder = os.path.join(directory, name)
        if fs.stat(folder) is None:
            continue
        for file in fs.list(folder):
            stem = file.removesuffix(suffix)
            if stem != file and stem.isascii() and stem.isdigit() and len(stem) != layout.DIGITS:
                hidden.append(os.path.join(folder, file))
                fs.hide(hidden[-1])
    return hidden
