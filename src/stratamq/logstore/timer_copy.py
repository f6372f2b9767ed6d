"""How far a master's timer is, kept by a slave for the day on which it becomes a master.

A slave has no timer of its own: the log holds all messages for a time, and the wheel is made of them. What the log does
not say is which of them were delivered; the master's checkpoint says that. At the next open as a master the timer finds
a checkpoint without a timer log, reads its topic from the beginning and leaves out what was delivered before.
"""

from __future__ import annotations

import os

from stratamq.files.durable import replace_file
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.timer import CHECKPOINT_BYTES, CHECKPOINT_FILE_BYTES
from stratamq.logstore.deletions import remove_folder
from stratamq.logstore.timer_store import CHECKPOINT, LOG, WHEEL


def keep_checkpoint(directory: str, data: bytes, *, filesystem: FileSystem | None = None) -> bool:
    """Keep what a master answered to GET_TIMER_CHECK_POINT in a store of which no timer is open.

    A timer log that is there comes from this broker's own time as a master and goes: it is derived, and not what the
    checkpoint speaks of. Returns whether ``data`` was a checkpoint. Blocks for syncs. Raises OSError.
    """
    if len(data) < CHECKPOINT_BYTES:
        return False
    fs = filesystem or LocalFileSystem()
    folder = os.path.join(directory, "config")
    fs.make_directory(folder)
    if fs.stat(os.path.join(directory, LOG)) is not None:
        remove_folder(fs, os.path.join(directory, LOG))
    wheel = os.path.join(directory, WHEEL)
    if fs.stat(wheel) is not None:
        fs.remove(wheel)
        fs.sync_directory(directory)
    content = data[:CHECKPOINT_BYTES].ljust(CHECKPOINT_FILE_BYTES, b"\0")
    replace_file(os.path.join(folder, CHECKPOINT), content, filesystem=fs)
    return True
