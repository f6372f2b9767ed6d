"""Read-only mappings of store files, shared by everything in this process that reads them.

Spark forks a worker once and uses it for many tasks, so a mapping made for one task serves the next: page tables stay
warm and a task costs no ``mmap``. A mapping is known by path, inode and length; one whose file has been deleted or
replaced is let go at the next look, because it would keep the disk space of a deleted file in use. A mapping is really
gone when the last array over it is.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from typing import Final

MAPPINGS_MAX: Final = 256
_Key = tuple[str, int, int]
_mappings: Final[OrderedDict[_Key, mmap.mmap]] = OrderedDict()
_guard: Final = threading.Lock()


def map_read_only(path: str) -> mmap.mmap:
    """The whole file at ``path``, mapped for reading; from the cache when it is still the same file.

    Raises:
        OSError: It cannot be opened (FileNotFoundError when it is gone).
        ValueError: It is empty.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        key = (path, found.st_ino, found.st_size)
        with _guard:
            known = _mappings.get(key)
            if known is not None:
                _mappings.move_to_end(key)
                return known
            mapping = mmap.mmap(fd, found.st_size, prot=mmap.PROT_READ)
            _mappings[key] = mapping
            while len(_mappings) > MAPPINGS_MAX:
                _mappings.popitem(last=False)
            return mapping
    finally:
        os.close(fd)


def drop_stale_mappings() -> int:
    """Let go of mappings whose file is gone or is another one by now. Returns how many."""
    with _guard:
        stale = [key for key in _mappings if _identity(key[0]) != key[1:]]
        for key in stale:
            del _mappings[key]
        return len(stale)


def drop_all_mappings() -> None:
    """Let go of every mapping."""
    with _guard:
        _mappings.clear()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size
