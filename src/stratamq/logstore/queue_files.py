"""One consume queue read from its files: units by queue offset, and where its believable units begin and end.

Files are full-length and sparse, so the end is searched: units ascend, and behind the last one stand zeros or, after a
truncation, units of records that are gone. A search by halves over "is this a unit" finds a candidate; it counts only
if the commit log has that very record at that place. Where it has not, a second search by halves finds the last unit
that the log confirms.

Reads with ``pread``, a few units a search, so ten thousand queues cost ten thousand openings and no mapping.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.formats.consume_queue import UNIT_BYTES, UNIT_DTYPE, Unit, decode_unit
from stratamq.logstore.listing import Stream

Confirm = Callable[[int, Unit], bool]
"""Whether the commit log has the record that a unit at a queue offset names."""


class QueueEnds(NamedTuple):
    """The believable part of a queue, and how many units behind it look like units but are not confirmed."""

    min_offset: int
    max_offset: int
    unconfirmed: int


class QueueFiles:
    """The files of one queue, opened one at a time; use as a context manager."""

    def __init__(self, stream: Stream) -> None:
        self._files = stream.newest_run()
        self._file_bytes = stream.file_bytes
        self.start = self._files[0].base // UNIT_BYTES if self._files else 0
        self.stop = (self._files[-1].base + self._file_bytes) // UNIT_BYTES if self._files else 0
        self._open_number = -1
        self._fd = -1

    def __enter__(self) -> QueueFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is open."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._open_number = -1

    def unit(self, offset: int) -> Unit:
        """The unit at a queue offset within ``[start, stop)``."""
        fd, position = self._locate(offset)
        return decode_unit(os.pread(fd, UNIT_BYTES, position).ljust(UNIT_BYTES, b"\0"))

    def units(self, lo: int, hi: int) -> npt.NDArray[Any]:
        """Units ``[lo, hi)`` as an array of `UNIT_DTYPE`, a copy. ``start <= lo <= hi <= stop``."""
        parts: list[bytes] = []
        while lo < hi:
            fd, position = self._locate(lo)
            count = min(hi - lo, (self._file_bytes - position) // UNIT_BYTES)
            data = os.pread(fd, count * UNIT_BYTES, position)
            parts.append(data.ljust(count * UNIT_BYTES, b"\0"))
            lo += count
        return np.frombuffer(b"".join(parts), dtype=UNIT_DTYPE)

    def ends(self, min_physical_offset: int, max_physical_offset: int, confirm: Confirm) -> QueueEnds:
        """Search the believable part. Cost: some 20 small reads, and one or two records of the log."""

        def is_unit(offset: int) -> bool:
            return self.unit(offset).is_valid

        def is_confirmed(offset: int) -> bool:
            unit = self.unit(offset)
            if unit.is_prefill or unit.physical_offset < min_physical_offset:
                return True  # below the queue's beginning: not what is searched here
            ends_inside = unit.physical_offset + unit.size <= max_physical_offset
            return unit.is_valid and ends_inside and confirm(offset, unit)

        def is_below(offset: int) -> bool:
            unit = self.unit(offset)
            return unit.is_prefill or unit.physical_offset < min_physical_offset

        written = self._written_end(is_unit)
        end = written
        if end > self.start and not is_confirmed(end - 1):
            end = first_false(self.start, end - 1, is_confirmed)
        return QueueEnds(first_false(self.start, end, is_below), end, written - end)

    def _written_end(self, is_unit: Callable[[int], bool]) -> int:
        """One above the last written unit, assuming that written ones come first."""
        for file in reversed(self._files):
            lo = file.base // UNIT_BYTES
            if is_unit(lo):
                return first_false(lo, lo + self._file_bytes // UNIT_BYTES, is_unit)
        return self.start

    def place(self, offset: int) -> tuple[str, int]:
        """File and byte position of the unit at a queue offset within ``[start, stop)``."""
        number, position = divmod(offset * UNIT_BYTES - self._files[0].base, self._file_bytes)
        return self._files[number].path, position

    def _locate(self, offset: int) -> tuple[int, int]:
        """Descriptor and position of a queue offset."""
        byte = offset * UNIT_BYTES - self._files[0].base
        number, position = divmod(byte, self._file_bytes)
        if number != self._open_number:
            self.close()
            self._fd = os.open(self._files[number].path, os.O_RDONLY | os.O_CLOEXEC)
            self._open_number = number
        return self._fd, position


def first_false(lo: int, hi: int, holds: Callable[[int], bool]) -> int:
    """The lowest number in ``[lo, hi)`` for which ``holds`` is false, ``hi`` when there is none; ``holds`` changes
    once."""
    while lo < hi:
        middle = (lo + hi) // 2
        if holds(middle):
            lo = middle + 1
        else:
            hi = middle
    return lo
