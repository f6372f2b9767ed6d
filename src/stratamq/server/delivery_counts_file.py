"""The file ``amqp/delivery-counts``: frames of changes, appended at the end of a turn, replaced when it has grown.

Nothing is synced here: after ``kill -9`` all is there, after a power failure the newest counts may be missing, and a
message is then delivered more often than its limit says. So damage is no reason not to start either: what is before it
counts, and a warning says so.

Source: docs/formats/definitions.md.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stratamq.broker.amqp.delivery_counts import Change, DeliveryCounts
from stratamq.errors import CorruptionError
from stratamq.files.durable import read_file, replace_file
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.queue_frame import FileHeader, decode_file_header, encode_file_header, encode_frame, scan_frames
from stratamq.units import MiB

_log = logging.getLogger(__name__)

COUNTS_FILE: Final = "delivery-counts"
COUNTS_MAGIC: Final = b"SQdc"
COUNTS_BYTES_MAX: Final = MiB
"""Length above which the file is replaced, or twice what it had when it was replaced last."""


class DeliveryCountsFile:
    """Keeps the counts of one broker. Calls block for a write; replacing syncs."""

    def __init__(
        self, directory: Path, counts: DeliveryCounts, filesystem: FileSystem | None = None, *, bytes_max: int = 0
    ) -> None:
        self._fs = filesystem or LocalFileSystem()
        self._path = str(directory / COUNTS_FILE)
        self._counts = counts
        self._bytes_floor = bytes_max or COUNTS_BYTES_MAX
        self._bytes_max = self._bytes_floor
        self._fd = -1
        self._salt = 0
        self._number = 0
        self._end = 0
        counts.save = self.append

    def load(self, is_there: Callable[[str, int], bool]) -> None:
        """Take what was saved, as far as its messages are there still. Raises OSError."""
        data = read_file(self._path, filesystem=self._fs)
        if data is None:
            return
        try:
            header = decode_file_header(data, COUNTS_MAGIC, path=self._path)
            for frame in scan_frames(data, header).frames if header is not None else ():
                self._counts.apply(json.loads(data[frame.start : frame.end]))
        except (CorruptionError, ValueError, TypeError, RecursionError) as error:
            _log.warning("%s: counts of deliveries are taken up to the damage: %s", self._path, error)
        for store, counts in list(self._counts.of.items()):
            kept = {seq: count for seq, count in counts.items() if is_there(store, seq)}
            if kept:
                self._counts.of[store] = kept
            else:
                del self._counts.of[store]
        self._replace()

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes down; an error is logged, and the next call writes everything."""
        try:
            if self._fd < 0 or self._end > self._bytes_max:
                self._replace()
                return
            self._number += 1
            frame = encode_frame(self._salt, self._number, 0, [json.dumps(changes, separators=(",", ":")).encode()])
            self._fs.write(self._fd, [frame], self._end)
            self._end += len(frame)
        except OSError as error:
            self._close()
            _log.error("counts of deliveries cannot be saved: %s", error)

    def _replace(self) -> None:
        self._close()
        self._salt, self._number = secrets.randbits(32), 1
        data = encode_file_header(COUNTS_MAGIC, FileHeader(self._salt, 0, 1)) + encode_frame(
            self._salt, 1, 0, [json.dumps(self._counts.all(), separators=(",", ":")).encode()]
        )
        replace_file(self._path, data, filesystem=self._fs)
        self._fd, self._end = self._fs.open(self._path), len(data)
        self._bytes_max = max(self._bytes_floor, 2 * len(data))

    def _close(self) -> None:
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Leave everything in one frame, synced; no file where there is no count. Raises OSError."""
        self._counts.end_turn()
        if self._counts.of:
            self._replace()
        elif self._fs.stat(self._path) is not None:
            self._fs.remove(self._path)
        self._close()
