"""The definitions on disk: ``definitions.json``, and a journal of what has changed since it was written.

Each turn of the loop that changed something durable appends one frame to ``definitions.journal`` and syncs it, however
many declares it had. The JSON is written anew, and the journal begun anew, when the journal has grown long, when
something changed that is not journalled (users, virtual hosts, policies), at a start that found a journal, and at a
clean stop.

The JSON names its generation, and so does the journal's header: a journal that is older than the JSON was taken into it
already. A torn frame at the end was never answered and is cut off; a bad one before a good one is corruption.

Source: docs/formats/definitions.md.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stratamq.broker.amqp.definition_rows import Change, apply_changes
from stratamq.errors import CorruptionError, InvalidArgument
from stratamq.files.durable import ConfigFile, read_file
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.queue_frame import (
    FILE_HEADER,
    FileHeader,
    decode_file_header,
    encode_file_header,
    encode_frame,
    scan_frames,
)
from stratamq.units import MiB

_log = logging.getLogger(__name__)

DEFINITIONS_FILE: Final = "definitions.json"
JOURNAL_FILE: Final = "definitions.journal"
JOURNAL_MAGIC: Final = b"SQdf"
GENERATION: Final = "stratamq_generation"


class DefinitionsFile:
    """The definitions of one broker. All calls block, for a sync or two where they write."""

    def __init__(self, directory: Path, filesystem: FileSystem | None = None, *, journal_bytes_max: int = MiB) -> None:
        self._fs = filesystem or LocalFileSystem()
        self._json = ConfigFile(str(directory / DEFINITIONS_FILE), self._fs)
        self._path = str(directory / JOURNAL_FILE)
        self._directory = str(directory)
        self._bytes_max = journal_bytes_max
        self._generation = 0
        self._fd = -1
        self._salt = 0
        self._number = 0
        self._end = 0
        self.is_current = False
        """Whether the JSON and the journal together hold everything: else the next thing to write is the JSON."""

    def load(self) -> dict[str, Any] | None:
        """What is there; None for a new broker. Raises CorruptionError."""
        value = self._json.load()
        if value is not None and not isinstance(value, dict):
            raise CorruptionError(self._json.path, 0, "a JSON object", type(value).__name__)
        self._generation = _generation_of(value)
        changes = self._read_journal()
        if changes is None:
            self.is_current = value is not None
        else:
            try:
                value = apply_changes(value or {}, changes)
            except InvalidArgument as error:
                raise CorruptionError(self._path, FILE_HEADER.size, "changes of definitions", str(error)) from error
        if value is not None:
            value.pop(GENERATION, None)
        return value

    def _read_journal(self) -> list[Any] | None:
        """All changes in the journal; None where there is none, or it is older than the JSON."""
        data = read_file(self._path, filesystem=self._fs)
        if data is None:
            return None
        header = decode_file_header(data, JOURNAL_MAGIC, path=self._path)
        if header is None or header.number < self._generation:
            return None
        if header.number > self._generation:
            _log.warning("%s is newer than %s, which comes from a backup", self._path, self._json.path)
            self._generation = header.number
        scan = scan_frames(data, header)
        last = scan.frames[-1].number if scan.frames else 0
        if scan.durable_beyond > last:
            raise CorruptionError(self._path, scan.end, f"frame {last + 1}", "damaged data before a good frame")
        changes: list[Any] = []
        for frame in scan.frames:
            try:
                changes += json.loads(data[frame.start : frame.end])
            except (ValueError, TypeError) as error:
                raise CorruptionError(self._path, frame.start, "a JSON array", repr(error)) from error
        return changes

    def append(self, changes: Sequence[Change]) -> bool:
        """Write changes down; durable when it returns True. False: write everything with `store` instead.

        Raises OSError; then the journal is not gone on with, and the next call asks for `store`.
        """
        if not self.is_current or self._end > self._bytes_max:
            return False
        self.is_current = False
        if self._fd < 0:
            self._begin()
        self._number += 1
        payload = json.dumps(changes, separators=(",", ":")).encode()
        frame = encode_frame(self._salt, self._number, self._number - 1, [payload])
        self._fs.write(self._fd, [frame], self._end)
        self._fs.sync(self._fd)
        self._end += len(frame)
        self.is_current = True
        return True

    def _begin(self) -> None:
        if self._fs.stat(self._path) is not None:
            self._fs.remove(self._path)  # of an older generation
        self._salt = secrets.randbits(32)
        self._fd = self._fs.create(self._path, 0)
        header = encode_file_header(JOURNAL_MAGIC, FileHeader(self._salt, self._generation, 1))
        self._fs.write(self._fd, [header], 0)
        self._fs.sync(self._fd)
        self._fs.sync_directory(self._directory)
        self._number, self._end = 0, len(header)

    def store(self, value: dict[str, Any]) -> None:
        """Write everything. Durable when it returns; what the journal held is in it. Raises OSError."""
        self.is_current = False
        self._close_journal()
        self._json.store({**value, GENERATION: self._generation + 1})
        self._generation += 1
        self.is_current = True

    @property
    def has_journal(self) -> bool:
        """Whether the JSON alone is not everything."""
        return self._fd >= 0 or not self.is_current

    def _close_journal(self) -> None:
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1
        self._end = 0

    def close(self, value: dict[str, Any]) -> None:
        """Leave the JSON alone, without a journal. Raises OSError."""
        if self.has_journal:
            self.store(value)
        self._close_journal()
        if self._fs.stat(self._path) is not None:
            self._fs.remove(self._path)


def _generation_of(value: dict[str, Any] | None) -> int:
    found = (value or {}).get(GENERATION, 0)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0
