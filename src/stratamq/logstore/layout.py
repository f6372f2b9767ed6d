"""Names in a store directory and the checks that its files are what they are called.

Shape: docs/formats/store-directory.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from stratamq.errors import BadLength, StrayFile
from stratamq.files.filesystem import FileSystem

COMMIT_LOG: Final = "commitlog"
COMMIT_LOG_PATHS: Final = "commitLogPaths.json"
CONSUME_QUEUE: Final = "consumequeue"
BATCH_CONSUME_QUEUE: Final = "batchconsumequeue"
CONSUME_QUEUE_EXT: Final = "consumequeue_ext"
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT: Final = "checkpoint"
DELETED_TOPICS: Final = "deletedTopics.json"
ABORT: Final = "abort"
LOCK: Final = "lock"

NAME_DIGITS: Final = 20
TOPIC_BYTES_MAX: Final = 127
RETRY_TOPIC_BYTES_MAX: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
QUEUE_ID_MAX: Final = 2**31 - 1
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_RETRY_TOPIC: Final = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+(\+[%|a-zA-Z0-9_-]+)?\Z")


def stream_file_name(base: int) -> str:
    """Name of the file that begins at byte ``base`` of its stream: 20 digits."""
    return f"{base:020d}"


def is_base_name(name: str) -> bool:
    """Whether ``name`` is one of a stream's file."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def is_topic_name(topic: str) -> bool:
    """Whether ``topic`` may name a topic, and so a directory: RocketMQ's characters, at most 127 bytes.

    Retry topics may have 255, and those of pop consumption's second form one ``+`` between group and topic.
    """
    if topic.startswith(RETRY_PREFIX):
        return len(topic) <= RETRY_TOPIC_BYTES_MAX and _RETRY_TOPIC.match(topic) is not None
    return len(topic) <= TOPIC_BYTES_MAX and _TOPIC.match(topic) is not None


def list_stream_files(
    fs: FileSystem, directory: str | Sequence[str], file_bytes: int, *, setting: str, derived: bool = False
) -> list[int]:
    """Bases of the files of one stream, in order, after checking names, lengths and that none is missing between.

    A stream may lie in several directories, no name in two of them. Sub-directories are left alone. A last file of
    length 0 (a crash between creation and sizing) is removed. Of a ``derived`` stream, which can be rebuilt, files
    behind a gap or an empty file are removed too: a crash can leave that.

    Raises:
        StrayFile: A name that is no base offset, or a base that no file of this length can have.
        BadLength: A file has another length than ``setting`` says, or a file is missing between two.
    """
    bases: list[int] = []
    places = [directory] if isinstance(directory, str) else directory
    paths = sorted((n, os.path.join(place, n)) for place in places for n in fs.list(place))
    paths = [(name, path) for name, path in paths if not _is_directory(fs, path)]
    for number, (name, path) in enumerate(paths):
        if not is_base_name(name):
            raise StrayFile(path, f"files here are named by {NAME_DIGITS} digits")
        base = int(name)
        found = fs.stat(path)
        size = found.size if found is not None else 0
        is_gap = bool(bases) and base != bases[-1] + file_bytes
        if (size == 0 or is_gap) and (derived or (size == 0 and number == len(paths) - 1)):
            for _, rest in paths[number:]:
                fs.remove(rest)
            break
        if size != file_bytes:
            hint = f"is {setting} set to what this store was made with?"
            raise BadLength(path, 0, f"a file of {file_bytes} bytes", f"{size} bytes", hint=hint)
        if base % file_bytes:
            raise StrayFile(path, f"no file of {file_bytes} bytes begins at byte {base}")
        if is_gap:
            missing = os.path.join(os.path.dirname(path), stream_file_name(bases[-1] + file_bytes))
            raise BadLength(missing, 0, f"a file of {file_bytes} bytes", "no file", hint=f"the next one is {path}")
        bases.append(base)
    return bases


def _is_directory(fs: FileSystem, path: str) -> bool:
    found = fs.stat(path)
    return found is not None and found.is_directory
