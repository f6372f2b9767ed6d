"""Carries out a `SyncWork`: files and directories, one by one, in whatever thread asks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from stratamq.files.filesystem import FileSystem
from stratamq.logstore.commit_log import SyncWork


class SyncFailure(NamedTuple):
    """What could not be synced, and why. It must not be tried again: what the disk holds is unknown then."""

    path: str
    error: OSError


def carry_out(fs: FileSystem, work: SyncWork, *, derived: Sequence[str]) -> SyncFailure | None:
    """Bring files, then directories to the disk. Blocks. Returns the first failure, behind which nothing was synced.

    A file that is gone needs no sync; nor does a directory below one of ``derived``, which went with a deleted topic.
    """
    path = derived[0]
    try:
        for path in work.paths:
            try:
                fd = fs.open(path)
            except FileNotFoundError:
                continue
            try:
                fs.sync(fd)
            finally:
                fs.close(fd)
        for path in work.directories:
            try:
                fs.sync_directory(path)
            except FileNotFoundError:
                if not path.startswith(tuple(folder + os.sep for folder in derived)):
                    raise
    except OSError as error:
        return SyncFailure(path, error)
    return None
