"""What files a store directory holds: a read-only look that changes nothing and never removes a stray.

`layout.list_stream_files` is for the owner of a store, who knows its settings and refuses what does not fit. Here the
settings are unknown (a copy, somebody else's broker) and the answer must be useful for a damaged store too: the file
lengths are inferred, and everything odd becomes a typed error in ``problems``, which `snapshot` raises and `check`
reports.

Files: docs/formats/store-directory.md.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from stratamq.errors import BadLength, NotAStore, StoreError, StrayFile
from stratamq.formats.consume_queue import UNIT_BYTES
from stratamq.logstore import layout
from stratamq.logstore.log_paths import recorded_paths
from stratamq.logstore.types import QueueKey

INDEX_NAME_DIGITS = 17


class StreamFile(NamedTuple):
    """One file of a stream of bytes (commit log or consume queue)."""

    path: str
    base: int
    length: int
    allocated_bytes: int
    inode: int


class Stream(NamedTuple):
    """The files of one stream in order of their bases, the length they share, and what is wrong with them."""

    files: Sequence[StreamFile]
    file_bytes: int
    problems: Sequence[StoreError]

    def newest_run(self) -> Sequence[StreamFile]:
        """The files up to the newest one between which nothing is missing."""
        start = len(self.files)
        while start and (
            start == len(self.files) or self.files[start - 1].base + self.file_bytes == self.files[start].base
        ):
            start -= 1
        return self.files[start:]


class PlainFile(NamedTuple):
    """A file that is no part of a stream."""

    path: str
    length: int
    allocated_bytes: int


def list_log(root: str) -> Stream:
    """The files of the commit log of the store in ``root``, from all directories that it names.

    Raises CorruptionError when the file that names them cannot be understood.
    """
    return list_stream(recorded_paths(root).every)


def list_stream(directory: str | Sequence[str], *, file_bytes: int | None = None, multiple_of: int = 1) -> Stream:
    """The files of one stream.

    Args:
        directory: Where they lie, or several; one that does not exist holds no files.
        file_bytes: How long each file must be; without it that is inferred (`infer_file_bytes`).
        multiple_of: What a file's length must be a multiple of.
    """
    files: list[StreamFile] = []
    problems: list[StoreError] = []
    places = [directory] if isinstance(directory, str) else directory
    seen: dict[str, str] = {}
    for entry, found in (pair for place in places for pair in _entries(place)):
        if stat.S_ISDIR(found.st_mode):
            continue
        name = entry.name
        first = seen.setdefault(name, entry.path)
        if first != entry.path:
            problems.append(StrayFile(entry.path, f"the same file of the log lies at {first} too"))
            continue
        if not layout.is_base_name(name):
            problems.append(StrayFile(entry.path, f"files here are named by {layout.NAME_DIGITS} digits"))
            continue
        files.append(StreamFile(entry.path, int(name), found.st_size, found.st_blocks * 512, found.st_ino))
    files.sort(key=lambda file: file.base)
    # Left by a kill between creating the last file and giving it its length; it holds nothing.
    if files and files[-1].length == 0:
        files.pop()
    if not files:
        return Stream((), file_bytes or 0, problems)
    expected = infer_file_bytes(files) if file_bytes is None else file_bytes
    whole = []
    for file in files:
        if file.length != expected or file.length % multiple_of:
            problems.append(BadLength(file.path, 0, f"a file of {expected} bytes", f"{file.length} bytes"))
        elif file.base % expected:
            problems.append(StrayFile(file.path, f"no file of {expected} bytes begins at byte {file.base}"))
        else:
            whole.append(file)
    for before, after in itertools.pairwise(whole):
        missing = before.base + expected
        if after.base != missing and missing not in (file.base for file in files):
            path = os.path.join(os.path.dirname(after.path), layout.stream_file_name(missing))
            hint = f"the next one is {os.path.basename(after.path)}"
            problems.append(BadLength(path, 0, f"a file of {expected} bytes", "no file", hint=hint))
    return Stream(whole, expected, problems)


def infer_file_bytes(files: Sequence[StreamFile]) -> int:
    """The length that the files of a stream were made with: the commonest length, or what separates their names.

    A file that is cut short or too long must not decide: lengths and distances between bases vote together.
    """
    votes = Counter(file.length for file in files if file.length)
    votes.update(after.base - before.base for before, after in itertools.pairwise(files))
    fitting = {length: count for length, count in votes.items() if not any(file.base % length for file in files)}
    candidates = fitting or votes
    if not candidates:
        return 0
    most = max(candidates.values())
    # Of equals the smallest: a missing file makes a distance too long, never too short.
    return min(length for length, count in candidates.items() if count == most)


def list_queues(root: str, topics: Iterable[str] | None = None) -> list[tuple[QueueKey, str]]:
    """Every queue (of some topics) that has a directory, and that directory, sorted. What is no queue is left out."""
    return _queues_below(os.path.join(root, layout.CONSUME_QUEUE), topics)


def list_batch_queues(root: str, topics: Iterable[str] | None = None) -> list[tuple[QueueKey, str]]:
    """Every queue of batches (of some topics) that has a directory, and that directory, sorted."""
    return _queues_below(os.path.join(root, layout.BATCH_CONSUME_QUEUE), topics)


def _queues_below(top: str, topics: Iterable[str] | None) -> list[tuple[QueueKey, str]]:
    names = _names(top) if topics is None else sorted(set(topics))
    found: list[tuple[QueueKey, str]] = []
    for topic in names:
        directory = os.path.join(top, topic)
        found.extend(
            (QueueKey(topic, int(name)), os.path.join(directory, name))
            for name in _names(directory)
            if name.isascii() and name.isdigit()
        )
    return sorted(found)


def list_some_queues(root: str, *, topics_max: int = 16) -> list[tuple[QueueKey, str]]:
    """The queues of a few topics: enough to see how long files are, however many topics there are."""
    top = os.path.join(root, layout.CONSUME_QUEUE)
    try:
        with os.scandir(top) as entries:
            names = [entry.name for entry in itertools.islice(entries, topics_max)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return list_queues(root, names)


def list_strays(root: str) -> list[StoreError]:
    """Entries between the store's directories that no part of the store made."""
    problems: list[StoreError] = []
    top = os.path.join(root, layout.CONSUME_QUEUE)
    for topic, topic_stat in _entries(top):
        if not stat.S_ISDIR(topic_stat.st_mode):
            problems.append(StrayFile(topic.path, "only directories named after topics belong here"))
            continue
        for queue, queue_stat in _entries(topic.path):
            if not stat.S_ISDIR(queue_stat.st_mode):
                problems.append(StrayFile(queue.path, "only directories named after queue numbers belong here"))
            elif not (queue.name.isascii() and queue.name.isdigit()):
                problems.append(StrayFile(queue.path, "a directory here is named by its queue number"))
    for entry, found in _entries(os.path.join(root, layout.INDEX)):
        if stat.S_ISREG(found.st_mode) and not _is_index_name(entry.name):
            reason = f"index files are named by {INDEX_NAME_DIGITS} digits, the time of their creation"
            problems.append(StrayFile(entry.path, reason))
    return problems


def list_index_files(root: str) -> list[PlainFile]:
    """The index files, oldest first."""
    return [
        PlainFile(entry.path, found.st_size, found.st_blocks * 512)
        for entry, found in _entries(os.path.join(root, layout.INDEX))
        if stat.S_ISREG(found.st_mode) and _is_index_name(entry.name)
    ]


def list_config_files(root: str) -> list[PlainFile]:
    """The files below ``config``, by name."""
    return [
        PlainFile(entry.path, found.st_size, found.st_blocks * 512)
        for entry, found in _entries(os.path.join(root, layout.CONFIG))
        if stat.S_ISREG(found.st_mode)
    ]


def require_store(root: Path) -> None:
    """Raise NotAStore unless ``root`` is a directory that looks like a store's."""
    if not root.is_dir():
        raise NotAStore(str(root), "no such directory" if not root.exists() else "it is not a directory")
    if not (root / layout.COMMIT_LOG).is_dir() and not (root / layout.COMMIT_LOG_PATHS).is_file():
        below = [name for name in (layout.CONSUME_QUEUE, layout.INDEX, layout.CHECKPOINT) if (root / name).exists()]
        there = f"; it has {', '.join(below)}, so perhaps {layout.COMMIT_LOG} was moved" if below else ""
        raise NotAStore(str(root), f"it has no directory {layout.COMMIT_LOG}{there}")


def unit_file_bytes(queues: Iterable[tuple[QueueKey, str]], *, looked_at: int = 64) -> int | None:
    """The length of this store's consume-queue files, voted for by the first files of some queues."""
    votes: Counter[int] = Counter()
    for _, directory in list(queues)[:looked_at]:
        for entry, found in _entries(directory):
            if entry.name.isdigit() and found.st_size and not found.st_size % UNIT_BYTES:
                votes[found.st_size] += 1
    return votes.most_common(1)[0][0] if votes else None


def _names(directory: str) -> list[str]:
    """Names of the directories in a directory; none when it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_index_name(name: str) -> bool:
    return len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdigit()


def _entries(directory: str) -> list[tuple[os.DirEntry[str], os.stat_result]]:
    """Entries of a directory by name, with what they are; nothing when it does not exist.

    A file that vanishes meanwhile (a live store deletes what has expired) is left out.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    found.append((entry, entry.stat()))
                except FileNotFoundError:
                    continue
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda pair: pair[0].name)
