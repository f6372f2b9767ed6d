"""A table of exported messages: Parquet files below a folder, and a log of commits that says which, and how far it is.

```text
OUT/topic=orders/date=2026-11-21/00003-00000000000000000000-00000000000000004096-1-1.parquet
OUT/_stratamq/commits/00000000000000000001.json       one a commit, create-only
OUT/_stratamq/staging/00000000000000000001-CHANCE/    files of one being made
OUT/_stratamq/lock
```

Readers take the folder as it is (Spark and others pass over names that begin with ``_``) and see committed files only.
A commit goes: tasks write into staging; the commit file, which names the files and the next offset of every queue, is
synced and linked into place, which fails if that number is taken; then the files are renamed into place. What a kill
leaves is one of two: no commit file, and the staging folder goes; or a commit file with files still in staging, and
`finish` renames them. Both happen when the table is opened for writing. So a message is in the table once, however
often an export is killed, and the offsets can never be ahead of the files or behind them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from stratamq.errors import CorruptionError, PipelineError
from stratamq.files.durable import write_file
from stratamq.files.filesystem import LocalFileSystem
from stratamq.logstore.types import QueueKey

META: Final = "_stratamq"
FORMAT: Final = 1
_DIGITS: Final = 20


class ExportedFile(NamedTuple):
    """One file of the table: rows of one queue and day, of offsets within ``[lo, hi)``; ``path`` is below the table."""

    path: str
    topic: str
    queue_id: int
    lo: int
    hi: int
    rows: int
    bytes: int


class Commit(NamedTuple):
    """One commit. ``next_offsets`` is where each queue goes on, of all queues so far; ``source`` whose messages."""

    version: int
    source: str
    staging: str
    files: tuple[ExportedFile, ...]
    next_offsets: Mapping[QueueKey, int]


NOTHING: Final = Commit(0, "", "", (), {})
"""Before the first commit."""


class Table:
    """The table in a folder. Reading needs no lock; `writing` takes it."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._commits = self.root / META / "commits"
        self._staging = self.root / META / "staging"

    @contextmanager
    def writing(self) -> Iterator[Commit]:
        """Hold the table for one writer, put in order what a kill has left, and give the newest commit.

        Raises PipelineError: another export has it. CorruptionError: a commit cannot be read, or its files are gone.
        """
        (self.root / META).mkdir(parents=True, exist_ok=True)
        self._commits.mkdir(exist_ok=True)
        fd = os.open(self.root / META / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"{self.root} is being written by another export; wait until it ends") from None
            newest = self.newest()
            self.finish(newest)
            shutil.rmtree(self._staging, ignore_errors=True)
            yield newest
        finally:
            os.close(fd)

    def newest(self) -> Commit:
        """The newest commit; `NOTHING` of a table that has none."""
        versions = self._versions()
        return self.read(versions[-1]) if versions else NOTHING

    def commits(self) -> Iterator[Commit]:
        """All commits, oldest first."""
        for version in self._versions():
            yield self.read(version)

    def files(self) -> list[ExportedFile]:
        """All files of the table, in the order of their commits."""
        return [file for commit in self.commits() for file in commit.files]

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self._commits)
        except FileNotFoundError:
            return []
        return sorted(int(name[:_DIGITS]) for name in names if len(name) == _DIGITS + 5 and name.endswith(".json"))

    def read(self, version: int) -> Commit:
        """One commit. Raises CorruptionError."""
        path = self._commits / f"{version:0{_DIGITS}d}.json"
        try:
            return decode_commit(path.read_bytes())
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(str(path), 0, f"commit {version} of a table", repr(error)) from error

    def new_staging(self, version: int, unique: str) -> Path:
        """A folder for the files of the next commit."""
        path = self._staging / f"{version:0{_DIGITS}d}-{unique}"
        path.mkdir(parents=True)
        return path

    def commit(self, commit: Commit) -> None:
        """Publish files that lie in staging, synced, together with the offsets. Blocks for a few syncs.

        Raises PipelineError: Somebody else made the commit of this number; nothing was published.
        """
        fs = LocalFileSystem()
        path = self._commits / f"{commit.version:0{_DIGITS}d}.json"
        making = f"{path}.{os.path.basename(commit.staging)}.tmp"
        write_file(making, encode_commit(commit), filesystem=fs)
        try:
            os.link(making, path)
        except FileExistsError:
            raise PipelineError(f"{path} is there: another export committed meanwhile; run this one again") from None
        finally:
            os.unlink(making)
        fs.sync_directory(str(self._commits))
        self.finish(commit)

    def finish(self, commit: Commit) -> None:
        """Rename the files of a commit into place, those that are not there yet.

        Raises CorruptionError: One is in neither place.
        """
        staging = self._staging / commit.staging if commit.staging else None
        if staging is None or not staging.is_dir():
            return
        changed: set[Path] = set()
        for file in commit.files:
            target = self.root / file.path
            waiting = staging / file.path
            if waiting.exists():
                if target.parent not in changed:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    changed.update((target.parent, target.parent.parent, self.root))
                os.replace(waiting, target)
            elif not target.exists():
                raise CorruptionError(str(target), 0, f"a file of commit {commit.version}", "no file")
        for folder in changed:
            LocalFileSystem().sync_directory(str(folder))
        shutil.rmtree(staging)


def partition(topic: str, date: str) -> str:
    """The folder of a topic's day."""
    return f"topic={quote(topic, safe='')}/date={date}"


def topic_of(path: str) -> str:
    """The topic that a file's path names."""
    return unquote(path.partition("/")[0].removeprefix("topic="))


def encode_commit(commit: Commit) -> bytes:
    """A commit as JSON: format, version, source, staging, files, next (offset by topic and queue)."""
    offsets: dict[str, dict[str, int]] = {}
    for key, offset in sorted(commit.next_offsets.items()):
        offsets.setdefault(key.topic, {})[str(key.queue_id)] = offset
    document = {
        "format": FORMAT,
        "version": commit.version,
        "source": commit.source,
        "staging": commit.staging,
        "next": offsets,
        "files": [file._asdict() for file in commit.files],
    }
    return json.dumps(document, ensure_ascii=False, indent=0).encode() + b"\n"


def decode_commit(data: bytes) -> Commit:
    """Read a commit. Raises ValueError, KeyError, TypeError for what is none."""
    document: Any = json.loads(data)
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']}, not {FORMAT}")
    offsets = {
        QueueKey(topic, int(queue_id)): int(offset)
        for topic, queues in document["next"].items()
        for queue_id, offset in queues.items()
    }
    files = tuple(ExportedFile(**row) for row in document["files"])
    for file in files:
        if ".." in file.path.split("/") or file.path.startswith("/"):
            raise ValueError(f"a file outside of the table: {file.path}")
    staging = str(document["staging"])
    if "/" in staging:
        raise ValueError(f"a staging folder outside of the table: {staging}")
    return Commit(int(document["version"]), str(document["source"]), staging, files, offsets)


def joined_offsets(before: Mapping[QueueKey, int], spans: Sequence[tuple[str, int, int]]) -> dict[QueueKey, int]:
    """Offsets after some spans (topic, queue, end) were exported."""
    found = dict(before)
    for topic, queue_id, end in spans:
        key = QueueKey(topic, queue_id)
        found[key] = max(found.get(key, 0), end)
    return found
