"""A lake: Parquet files, and a log of commits in Delta Lake's form that says which of them are the table.

```text
data/MADE-UNIQUE.parquet             13 digits of the time it was made in ms, 32 hex digits of chance
_delta_log/00000000000000000000.json one commit: a line of JSON for each action; create-only
```

A commit names the writer and its batch (action ``txn``). So a batch that a query hands over again is known, and a
table has each batch once or not at all. Commits are objects that can only be created: of two writers of one number one
fails, looks again, and takes the next. Files that no commit names are of batches that were never committed, or of their
repeats; `clean` removes them.

Delta Lake's protocol, reader 1, writer 2: no partitions, no deletion vectors, no checkpoints. Any reader of Delta
tables can open it; `pipeline.frame.read_lake` needs none. Source: delta-io/delta, protocol text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from stratamq.errors import CorruptionError, ObjectExists, PipelineError
from stratamq.tiered.backend import Backend, put_checked

LOG: Final = "_delta_log/"
DATA: Final = "data/"
COMMITS_MAX: Final = 100
"""How often a commit is tried again when others commit meanwhile."""
_VERSION: Final = re.compile(r"_delta_log/([0-9]{20})\.json")
_FILE: Final = re.compile(r"data/([0-9]{13})-[0-9a-f]{32}\.parquet")
_READER, _WRITER = 1, 2

Action = dict[str, Any]


class LakeFile(NamedTuple):
    """One Parquet file: its name below the lake, its length and its rows."""

    name: str
    bytes: int
    rows: int


class LakeSnapshot(NamedTuple):
    """The table at one version; -1 before the first commit, without a schema."""

    version: int
    schema: str | None
    """Spark's JSON form."""
    files: tuple[LakeFile, ...]
    batches: dict[str, int]
    """The newest batch of each writer."""


class Lake:
    """The log of a lake. Calls block and ask the backend; nothing is remembered between them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def put_file(self, data: bytes, rows: int, made_ms: int) -> LakeFile:
        """Put a Parquet file. It is no part of the table before a commit names it."""
        name = f"{DATA}{made_ms:013d}-{uuid.uuid4().hex}.parquet"
        return LakeFile(name, put_checked(self.backend, name, [data]), rows)

    def commit(self, writer: str, batch: int, schema: str, files: Sequence[LakeFile], now_ms: int) -> bool:
        """Make files part of the table, as a writer's batch. False when the table has that batch already.

        Raises:
            PipelineError: The table has another schema, or is one that we may not write.
            BackendError: What happened is unknown; commit again.
        """
        for _ in range(COMMITS_MAX):
            newest = self._newest()
            if self._last_batch(writer, newest) >= batch:
                return False
            actions = self._head(schema, now_ms, is_first=newest < 0)
            actions.append({"txn": {"appId": writer, "version": batch, "lastUpdated": now_ms}})
            actions += [_add(file, now_ms) for file in files]
            text = "".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n" for action in actions)
            try:
                self.backend.put_new(_log_name(newest + 1), [text.encode()])
            except ObjectExists:
                continue  # somebody else's, or ours after all: look again
            return True
        raise PipelineError(f"{self.backend.address}: others committed {COMMITS_MAX} times in between; try again later")

    def snapshot(self) -> LakeSnapshot:
        """The newest version. Reads all commits."""
        files: dict[str, LakeFile] = {}
        batches: dict[str, int] = {}
        schema: str | None = None
        newest = self._newest()
        for version in range(newest + 1):
            for kind, action in self._actions(version):
                if kind == "add":
                    files[action["path"]] = _added(action)
                elif kind == "remove":
                    files.pop(action["path"], None)
                elif kind == "metaData":
                    schema = str(action["schemaString"])
                elif kind == "txn":
                    batches[action["appId"]] = int(action["version"])
        return LakeSnapshot(newest, schema, tuple(files.values()), batches)

    def clean(self, older_than_ms: int) -> list[str]:
        """Delete files that no commit names and that were made before a time; returns their names.

        The time must lie so far back that no batch of then is still being written.
        """
        found = [entry.name for entry in self.backend.list(DATA)]  # before the log: what is new in it is then not here
        named = {file.name for version in range(self._newest() + 1) for file in self._ever(version)}
        gone = []
        for name in found:
            match = _FILE.fullmatch(name)
            if match is not None and name not in named and int(match[1]) < older_than_ms:
                self.backend.delete(name)
                gone.append(name)
        return gone

    def _ever(self, version: int) -> Iterator[LakeFile]:
        for kind, action in self._actions(version):
            if kind in ("add", "remove"):
                yield LakeFile(action["path"], 0, 0)

    def _newest(self) -> int:
        """The newest version; what a listing lacks is asked for."""
        versions = [int(match[1]) for entry in self.backend.list(LOG) if (match := _VERSION.fullmatch(entry.name))]
        newest = max(versions, default=-1)
        if versions and min(versions) > 0:
            raise PipelineError(
                f"{self.backend.address}: the log begins at version {min(versions)}; tables whose log was cut off "
                "behind a checkpoint cannot be used"
            )
        while self.backend.size(_log_name(newest + 1)) is not None:
            newest += 1
        return newest

    def _last_batch(self, writer: str, newest: int) -> int:
        """A writer's newest batch, looked for backwards; -1 when it has none."""
        for version in range(newest, -1, -1):
            for kind, action in self._actions(version):
                if kind == "txn" and action["appId"] == writer:
                    return int(action["version"])
        return -1

    def _head(self, schema: str, now_ms: int, *, is_first: bool) -> list[Action]:
        """What the first commit says besides; for others the schema is compared."""
        if is_first:
            meta = {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": {},
                "createdTime": now_ms,
            }
            return [{"protocol": {"minReaderVersion": _READER, "minWriterVersion": _WRITER}}, {"metaData": meta}]
        there = next((str(action["schemaString"]) for kind, action in self._actions(0) if kind == "metaData"), None)
        if there is None or _columns(there) != _columns(schema):
            raise PipelineError(
                f"{self.backend.address} has the columns {_columns(there or '{}')}, not {_columns(schema)}: write them "
                "with these names and types, or into another lake"
            )
        return []

    def _actions(self, version: int) -> Iterator[tuple[str, Action]]:
        """The actions of a commit. Raises CorruptionError, and PipelineError for a protocol that is not ours."""
        name = _log_name(version)
        data = self.backend.read(name)
        try:
            actions = [_parse(line) for line in data.decode().split("\n") if line]  # a string may hold other line ends
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError(name, 0, "a commit of a Delta table", repr(error)[:200]) from error
        for kind, action in actions:
            if kind == "protocol" and (
                int(action["minReaderVersion"]) > _READER or int(action["minWriterVersion"]) > _WRITER
            ):
                raise PipelineError(f"{name} asks for newer readers and writers of Delta tables: {action}")
        yield from actions


def _parse(line: str) -> tuple[str, Action]:
    """One action, with what is asked of it in place. Raises ValueError, KeyError, TypeError, AttributeError."""
    ((kind, action),) = json.loads(line).items()
    if kind == "protocol":
        int(action["minReaderVersion"]), int(action["minWriterVersion"])
    elif kind in ("add", "remove"):
        if not _is_inside(action["path"]):
            raise ValueError(f"a file outside of the table: {action['path']!r}")
        if kind == "add":
            _added(action)
    elif kind == "metaData":
        _columns(action["schemaString"])
    elif kind == "txn":
        if not isinstance(action["appId"], str):
            raise TypeError(f"a writer called {action['appId']!r}")
        int(action["version"])
    return kind, action


def _added(action: Action) -> LakeFile:
    stats = json.loads(action.get("stats") or "{}")
    return LakeFile(action["path"], int(action["size"]), int(stats.get("numRecords", -1)))


def _is_inside(path: Any) -> bool:
    return isinstance(path, str) and not path.startswith("/") and ".." not in path.split("/") and ":" not in path


def _columns(schema: str) -> list[tuple[str, Any]]:
    return [(field["name"], field["type"]) for field in json.loads(schema).get("fields", [])]


def _log_name(version: int) -> str:
    return f"{LOG}{version:020d}.json"


def _add(file: LakeFile, now_ms: int) -> Action:
    return {
        "add": {
            "path": file.name,
            "partitionValues": {},
            "size": file.bytes,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }
