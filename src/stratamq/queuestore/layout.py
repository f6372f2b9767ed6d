"""Names in a queue store's directory, and numbers that are the same everywhere in it."""

from __future__ import annotations

import os
from typing import Final

from stratamq.files.filesystem import FileSystem

LOCK: Final = "lock"
MANIFEST: Final = "manifest"
RECOVERY: Final = "recovery"
JOURNAL: Final = "journal"
JOURNAL_SUFFIX: Final = ".jnl"
QUEUES: Final = "queues"
SEGMENT_SUFFIX: Final = ".idx"
PERSISTENT: Final = "msg_store_persistent"
TRANSIENT: Final = "msg_store_transient"
MESSAGE_SUFFIX: Final = ".rdq"
COLLECTED_SUFFIX: Final = ".gc"
DIGITS: Final = 10
TRANSIENT_IDS: Final = 1 << 31
"""Queues that do not survive a restart have numbers from here on; their segments lie in the transient directory."""


def numbered(directory: str, number: int, suffix: str) -> str:
    """Path of a numbered file; names sort as their numbers do."""
    return os.path.join(directory, f"{number:0{DIGITS}d}{suffix}")


def list_numbered(fs: FileSystem, directory: str, suffix: str) -> list[int]:
    """Numbers of the files with ``suffix`` in a directory, ascending; other names are left alone."""
    names = [name[: -len(suffix)] for name in fs.list(directory) if name.endswith(suffix)]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def wipe(fs: FileSystem, directory: str) -> None:
    """Remove a directory with everything in it; harmless when it is not there. Raises OSError."""
    found = fs.stat(directory)
    if found is None:
        return
    for name in fs.list(directory):
        path = os.path.join(directory, name)
        entry = fs.stat(path)
        if entry is not None and entry.is_directory:
            wipe(fs, path)
        else:
            fs.remove(path)
    fs.remove_directory(directory)
