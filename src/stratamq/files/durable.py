"""Small files that survive a crash at any moment: replaced as a whole, with the previous version kept as ``.bak``.

`replace_file` goes: write ``<name>.tmp``, sync it, rename it over the target, sync the directory. A reader sees the old
or the new content, never a mixture and never nothing. `replace_with_backup` first gives the old content the name
``<name>.bak``, so that `read_with_backup` has something to fall back on when the newest content is unusable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stratamq.errors import CorruptionError
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.config_json import decode_config_json, encode_config_json

BACKUP_SUFFIX = ".bak"
TEMPORARY_SUFFIX = ".tmp"


def write_file(path: str, data: bytes, *, filesystem: FileSystem) -> None:
    """Write a new file and sync it; an old temporary of that name goes first. Syncs the file, not the directory."""
    if filesystem.stat(path) is not None:
        filesystem.remove(path)
    fd = filesystem.create(path, 0)
    try:
        if data:
            filesystem.write(fd, [data], 0)
        filesystem.sync(fd)
    finally:
        filesystem.close(fd)


def replace_file(path: str, data: bytes, *, filesystem: FileSystem | None = None) -> None:
    """Put ``data`` at ``path`` in one step. Blocks for two syncs; durable when it returns. Raises OSError."""
    fs = filesystem or LocalFileSystem()
    temporary = path + TEMPORARY_SUFFIX
    write_file(temporary, data, filesystem=fs)
    fs.rename(temporary, path)
    fs.sync_directory(os.path.dirname(path) or ".")


def read_file(path: str, *, filesystem: FileSystem | None = None) -> bytes | None:
    """A file's whole content; None when there is no such file."""
    fs = filesystem or LocalFileSystem()
    found = fs.stat(path)
    if found is None or not found.is_file:
        return None
    fd = fs.open(path, writable=False)
    try:
        return fs.read(fd, found.size, 0)
    finally:
        fs.close(fd)


def replace_with_backup(path: str, text: str, *, filesystem: FileSystem | None = None) -> None:
    """Put ``text`` at ``path``; what was there goes to ``path + ".bak"``. Makes the directory when it is missing.

    At every moment at least one of the two files is whole. Blocks for two syncs; raises OSError.
    """
    fs = filesystem or LocalFileSystem()
    directory = os.path.dirname(path) or "."
    if fs.stat(directory) is None:
        fs.make_directory(directory)
    temporary = path + TEMPORARY_SUFFIX
    write_file(temporary, text.encode(), filesystem=fs)
    current = fs.stat(path)
    if current is not None and current.size:
        _keep_backup(path, directory, fs)
    fs.rename(temporary, path)
    fs.sync_directory(directory)


def _keep_backup(path: str, directory: str, fs: FileSystem) -> None:
    spare = path + BACKUP_SUFFIX + TEMPORARY_SUFFIX
    if fs.stat(spare) is not None:
        fs.remove(spare)
    try:
        fs.link(path, spare)
    except PermissionError:  # a file system without hard links: copy
        write_file(spare, read_file(path, filesystem=fs) or b"", filesystem=fs)
    fs.rename(spare, path + BACKUP_SUFFIX)


def read_with_backup(
    path: str, *, accept: Callable[[str], bool] = bool, filesystem: FileSystem | None = None
) -> str | None:
    """The text at ``path`` when it is there and ``accept`` takes it, else that of ``path + ".bak"``, else None.

    ``accept`` must not raise; by default everything but the empty text is taken.
    """
    for candidate in (path, path + BACKUP_SUFFIX):
        data = read_file(candidate, filesystem=filesystem)
        if data is None:
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if accept(text):
            return text
    return None


class ConfigFile:
    """One of RocketMQ's ``config/*.json`` files: load and store a JSON value, durably, with a backup."""

    __slots__ = ("_fs", "path")

    def __init__(self, path: str, filesystem: FileSystem | None = None) -> None:
        self.path = path
        self._fs = filesystem or LocalFileSystem()

    def load(self) -> Any | None:
        """The value of the newest usable version; None when there is no usable file at all.

        Raises:
            CorruptionError: Neither the file nor its backup can be used, though there is one: starting empty would
                lose what an operator may still save.
        """
        text = read_with_backup(self.path, accept=_is_config_json, filesystem=self._fs)
        if text is not None:
            return decode_config_json(text)
        for candidate in (self.path, self.path + BACKUP_SUFFIX):
            data = read_file(candidate, filesystem=self._fs)
            if data:
                found = data[:20].decode("utf-8", "replace")
                hint = "move it away to start without it"
                raise CorruptionError(candidate, 0, "a JSON value", repr(found), hint=hint)
        return None

    def store(self, value: Any) -> None:
        """Write ``value``. Blocks for two syncs; raises OSError when the disk refuses."""
        replace_with_backup(self.path, encode_config_json(value), filesystem=self._fs)

    def modified_ms(self) -> int:
        """When the file was changed last; 0 when there is none."""
        found = self._fs.stat(self.path)
        return 0 if found is None else found.modified_ms


def _is_config_json(text: str) -> bool:
    try:
        decode_config_json(text)
    except ValueError:
        return False
    return True
