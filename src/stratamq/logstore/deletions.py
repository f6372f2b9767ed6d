"""Which topics were deleted, and up to where in the log: so that no recovery brings their queues back.

The log keeps a deleted topic's records until they expire, and recovery makes queues from records. The file
``deletedTopics.json`` says for each such topic where the log ended when it was deleted: records below that place go
into no queue. Shape: docs/formats/store-directory.md.

    {"version": 1, "topics": {"T": 4096}}

A mark goes when the log begins behind it, and it never lies behind the log's end: a record that is written there later
belongs to a topic of that name made anew.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from stratamq.errors import CorruptionError
from stratamq.files.durable import read_file, replace_file
from stratamq.files.filesystem import FileSystem
from stratamq.logstore import layout
from stratamq.logstore.light_queues import is_light_name

_VERSION: Final = 1
_OFFSET_MAX: Final = 2**63 - 1


class Deletions:
    """The marks of one store: topic -> physical offset. Every change is on the disk when the method returns."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Read the marks; none when there is no file. Raises CorruptionError when the file cannot be understood."""
        self.path = os.path.join(directory, layout.DELETED_TOPICS)
        self._fs = fs
        self.marks: dict[str, int] = read_marks(directory, filesystem=fs)

    def mark(self, topic: str) -> int:
        """Records of ``topic`` below this physical offset belong to no queue."""
        return self.marks.get(topic, 0)

    def add(self, topic: str, end: int, *, log_min: int) -> None:
        """Note that ``topic`` was deleted when the log ended at ``end``. Syncs; raises OSError, and nothing changed."""
        kept = {name: mark for name, mark in self.marks.items() if mark > log_min}
        self._replace(kept | {topic: end})

    def fit(self, log_min: int, log_end: int) -> None:
        """Bring the marks into the log's bounds after recovery found them. Syncs when one changed; raises OSError."""
        kept = {topic: min(mark, log_end) for topic, mark in self.marks.items() if min(mark, log_end) > log_min}
        if kept != self.marks:
            self._replace(kept)

    def _replace(self, marks: dict[str, int]) -> None:
        text = json.dumps({"version": _VERSION, "topics": marks}, sort_keys=True)
        replace_file(self.path, text.encode(), filesystem=self._fs)
        self.marks = marks


def read_marks(directory: str, *, filesystem: FileSystem | None = None) -> dict[str, int]:
    """The marks of the store in ``directory``. Raises CorruptionError, OSError."""
    path = os.path.join(directory, layout.DELETED_TOPICS)
    data = read_file(path, filesystem=filesystem)
    if data is None:
        return {}
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.get("version") == _VERSION and _are_marks(value.get("topics")):
        return dict(value["topics"])
    hint = "remove the file to go on; topics deleted of late may then come back, empty of settings"
    raise CorruptionError(path, 0, 'JSON like {"version": 1, "topics": {"T": 4096}}', repr(data[:40]), hint=hint)


def _are_marks(value: Any) -> bool:
    return isinstance(value, dict) and all(
        (layout.is_topic_name(topic) or is_light_name(topic)) and type(mark) is int and 0 <= mark <= _OFFSET_MAX
        for topic, mark in value.items()
    )


def folders_of(directory: str, topic: str) -> list[str]:
    """Where derived files of a topic may lie in the store ``directory``, RocketMQ's other kinds of queues included."""
    parents = (layout.CONSUME_QUEUE, layout.CONSUME_QUEUE_EXT, layout.BATCH_CONSUME_QUEUE)
    return [os.path.join(directory, parent, topic) for parent in parents]


def remove_folder(fs: FileSystem, directory: str) -> bool:
    """Remove a topic's folder of derived files: ``TOPIC/QUEUE/FILE``, no deeper. Returns whether it was there.

    Raises OSError, also for what lies deeper, which is not ours.
    """
    found = fs.stat(directory)
    if found is None or not found.is_directory:
        return False
    for queue in fs.list(directory):
        path = os.path.join(directory, queue)
        inner = fs.stat(path)
        if inner is None or not inner.is_directory:
            fs.remove(path)
            continue
        for name in fs.list(path):
            fs.remove(os.path.join(path, name))
        fs.remove_directory(path)
    fs.remove_directory(directory)
    fs.sync_directory(os.path.dirname(directory))
    return True
