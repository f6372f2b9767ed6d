"""In which directories the commit log's files lie, and in which a new one is made.

One log may be spread over several disks. Its files are named by their base, so they can lie anywhere: those of all
directories are read as one stream. A new file goes to one of the writable directories whose disks have room, in turn
by its number, as RocketMQ places it (MultiPathMappedFileQueue), so that either broker opens what the other one left.

Only the settings name these directories, in RocketMQ. A store that uses any other than ``commitlog`` names them in its
own directory too, in ``commitLogPaths.json`` (docs/formats/store-directory.md), so that tools find them without the
settings, and so that no start leaves out a directory in which files lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from stratamq.config import StoreConfig
from stratamq.errors import ConfigError, CorruptionError, StrayFile
from stratamq.files.durable import read_file, replace_file
from stratamq.files.filesystem import FileSystem
from stratamq.logstore import layout

PATHS_MAX: Final = 64
"""Directories of one log at most: each is listed at a start, and asked for its room in every round of retention."""
WRITABLE: Final = "storePathCommitLog"
READ_ONLY: Final = "readOnlyCommitLogStorePaths"
_VERSION: Final = 1
_FILE_BYTES_MAX: Final = 1 << 20


class LogPaths(NamedTuple):
    """Absolute directories of one log: where new files may be made, and where there are files, but none is made."""

    writable: Sequence[str]
    read_only: Sequence[str] = ()

    @property
    def every(self) -> Sequence[str]:
        """All directories, the writable ones first."""
        return (*self.writable, *self.read_only)

    def place(self, base: int, file_bytes: int, full: Collection[str] = ()) -> str:
        """The directory for a new file at ``base``: by its number among the writable ones that are not ``full``, or
        among all writable ones when all are."""
        usable = sorted(set(self.writable) - set(full)) or sorted(self.writable)
        return usable[base // file_bytes % len(usable)]


def configured_paths(root: str, config: StoreConfig) -> LogPaths:
    """The directories that the settings name; ``commitlog`` in the store's directory when they name none.

    Raises ConfigError when all of them are read-only, or when they are too many.
    """
    read_only = tuple(dict.fromkeys(_split(config.commit_log_read_only_paths)))
    named = _split(config.commit_log_paths) or [os.path.join(root, layout.COMMIT_LOG)]
    writable = tuple(path for path in dict.fromkeys(named) if path not in read_only)
    if not writable:
        raise ConfigError(WRITABLE, config.commit_log_paths, f"at least one directory that is not in {READ_ONLY}")
    if len(writable) + len(read_only) > PATHS_MAX:
        raise ConfigError(WRITABLE, f"{len(writable) + len(read_only)} directories", f"at most {PATHS_MAX}")
    return LogPaths(writable, read_only)


def recorded_paths(root: str, *, filesystem: FileSystem | None = None) -> LogPaths:
    """The directories that the store in ``root`` names; ``commitlog`` in it when it names none.

    Raises CorruptionError when the file that names them cannot be understood, OSError when it cannot be read.
    """
    path = os.path.join(root, layout.COMMIT_LOG_PATHS)
    data = read_file(path, filesystem=filesystem)
    if data is None:
        return LogPaths((os.path.join(os.path.abspath(root), layout.COMMIT_LOG),))
    try:
        value: Any = json.loads(data) if len(data) <= _FILE_BYTES_MAX else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.get("version") == _VERSION:
        writable, read_only = value.get("paths"), value.get("readOnly")
        if writable and _are_paths(writable) and _are_paths(read_only):
            top = os.path.abspath(root)
            return LogPaths(*(tuple(os.path.join(top, name) for name in names) for names in (writable, read_only)))
    hint = f"remove it and start the broker once with {WRITABLE} naming every directory of the log"
    raise CorruptionError(
        path, 0, 'JSON like {"version": 1, "paths": ["commitlog"], "readOnly": []}', repr(data[:40]), hint=hint
    )


def prepare_paths(fs: FileSystem, root: str, config: StoreConfig) -> LogPaths:
    """The directories to open a log with: made where missing, and noted in the store when they changed. Syncs.

    Raises:
        ConfigError: Of the directories that the store names, one that holds files is not configured, or one is gone
            (a disk that is not mounted). Nothing was changed.
        CorruptionError: As `recorded_paths` does.
        OSError: The disk refuses.
    """
    wanted, recorded = configured_paths(root, config), recorded_paths(root, filesystem=fs)
    is_noted = fs.stat(os.path.join(root, layout.COMMIT_LOG_PATHS)) is not None
    for path in recorded.every:
        found = fs.stat(path)
        if path not in wanted.every and found is not None and any(map(layout.is_base_name, fs.list(path))):
            allowed = f"also {path}, where files of this log lie (or among {READ_ONLY})"
            raise ConfigError(WRITABLE, ",".join(wanted.every), allowed)
        if is_noted and path in wanted.every and found is None:
            raise ConfigError(WRITABLE, path, "a directory that is there: is its disk mounted?")
    for path in wanted.every:
        fs.make_directory(path)
    if wanted != recorded:
        _note(fs, root, wanted)
    return wanted


def list_log_files(fs: FileSystem, paths: LogPaths, file_bytes: int) -> dict[int, str]:
    """Bases of the log's files in order, each with its directory, checked as `layout.list_stream_files` does.

    Raises StrayFile (also for a base that is there twice), BadLength, OSError.
    """
    found = {name: path for path in paths.every for name in fs.list(path) if layout.is_base_name(name)}
    for path in paths.every:
        for name in fs.list(path):
            if layout.is_base_name(name) and found[name] != path:
                raise StrayFile(os.path.join(path, name), f"the same file of the log lies in {found[name]} too")
    bases = layout.list_stream_files(fs, paths.every, file_bytes, setting="mappedFileSizeCommitLog")
    return {base: found[layout.stream_file_name(base)] for base in bases}


def _note(fs: FileSystem, root: str, paths: LogPaths) -> None:
    value = {
        "version": _VERSION,
        "paths": [_relative(root, path) for path in paths.writable],
        "readOnly": [_relative(root, path) for path in paths.read_only],
    }
    replace_file(os.path.join(root, layout.COMMIT_LOG_PATHS), json.dumps(value).encode(), filesystem=fs)


def _relative(root: str, path: str) -> str:
    """A directory inside the store is named from there, so that the whole can be moved."""
    return os.path.relpath(path, root) if path.startswith(root + os.sep) else path


def _split(text: str) -> list[str]:
    return [os.path.abspath(part.strip()) for part in text.split(",") if part.strip()]


def _are_paths(value: Any) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and len(value) <= PATHS_MAX
        and all(isinstance(path, str) and path and "\0" not in path for path in value)
    )
