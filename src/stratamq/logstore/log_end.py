"""Where the commit log of a store that somebody else wrote ends.

Files have their full length from the start, so lengths say nothing; what recovery of the owner would keep is what is
there. The rule is recovery's own (docs/formats/store-directory.md), only nothing is cut:

* a store in use, or stopped in order: walk from the newest file that begins with a record. Its last records may be
  just being written when it is in use, so their checksums are compared;
* left by a kill: walk from the newest file that was surely on disk according to the checkpoint, and compare the
  checksums of all records that are newer than that.

The walk ends at the first frame that is no record at its own place. What a truncation has left behind the end is thus
not believed, unless it happens to go on exactly where the newest record ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stratamq.formats import vector
from stratamq.formats.message import SIZE_AND_MAGIC, check_record
from stratamq.formats.vector import Bytes, Ints
from stratamq.logstore.listing import StreamFile

TAIL_RECORDS = 256
"""So many of the newest records of a store in use have their checksums compared."""
_BLOCK_ROWS = 262_144


class LogEnd(NamedTuple):
    """Where the log ends: a physical offset, in words why there, and the store time of the last record before."""

    physical_offset: int
    reason: str
    newest_ms: int = 0


def find_end(
    files: Sequence[StreamFile], view_of: Callable[[StreamFile], Bytes], *, trusted_ms: int | None, check_tail: bool
) -> LogEnd:
    """Find the end of the log in ``files`` (in order).

    Args:
        files: The commit-log files.
        view_of: Gives a file's bytes.
        trusted_ms: Records stored before this are known to be on disk; None when all are.
        check_tail: Whether the newest records may be only half there.

    Cost: walks one file, or some after a kill: about 50 ns a record. Reads no bodies but those to be checked.
    """
    if not files:
        return LogEnd(0, "there are no commit-log files")
    first = _first_file(files, view_of, trusted_ms)
    if first is None:
        return LogEnd(files[0].base, "no file begins with a record")
    end = LogEnd(files[first].base, "")
    for file in files[first:]:
        if file.base != end.physical_offset:
            return end._replace(reason=f"the file that would begin at {end.physical_offset} is missing")
        log = view_of(file)
        positions, stop, at_blank = vector.walk(log, 0, file.length, physical_base=file.base)
        cut = _first_flaw(log, file, positions, trusted_ms)
        if cut is None and check_tail:
            cut = _first_bad_checksum(log, file, positions[-TAIL_RECORDS:])
        if cut is not None:
            positions = positions[positions < cut]
        newest_ms = int(vector.gather_heads(log, positions[-1:])["store_timestamp"][0]) if len(positions) else 0
        newest_ms = max(end.newest_ms, newest_ms)
        if cut is not None:
            return LogEnd(file.base + cut, f"the record at byte {cut} of {file.path} is damaged", newest_ms)
        if not at_blank:
            return LogEnd(file.base + stop, f"no record begins at byte {stop} of {file.path}", newest_ms)
        if SIZE_AND_MAGIC.unpack_from(log.data, stop)[0] != file.length - stop:
            reason = f"the blank record at byte {stop} of {file.path} has a wrong length"
            return LogEnd(file.base + stop, reason, newest_ms)
        end = LogEnd(file.base + file.length, "the newest file is full", newest_ms)
    return end


def _first_file(
    files: Sequence[StreamFile], view_of: Callable[[StreamFile], Bytes], trusted_ms: int | None
) -> int | None:
    """The newest file that begins with a whole record (old enough to be trusted), else the oldest that begins with
    one."""
    oldest = None
    for number in range(len(files) - 1, -1, -1):
        file, log = files[number], view_of(files[number])
        checked = check_record(log.data, 0, file.length, physical_offset=file.base, verify_crc=trusted_ms is not None)
        if checked.flaw is not None:
            continue
        if checked.is_blank:
            if checked.size == file.length:
                oldest = number
            continue
        oldest = number
        stored = vector.gather_heads(log, np.zeros(1, np.int64))["store_timestamp"][0]
        if trusted_ms is None or int(stored) <= trusted_ms:
            return number
    return oldest


def _first_flaw(log: Bytes, file: StreamFile, positions: Ints, trusted_ms: int | None) -> int | None:
    """Position of the first walked record that is not well formed, or too new to be trusted and with a bad checksum."""
    for start in range(0, len(positions), _BLOCK_ROWS):
        block = positions[start : start + _BLOCK_ROWS]
        checked = vector.check_records(log, block, end=file.length, physical_base=file.base)
        if checked.flaws.any():
            return int(block[np.flatnonzero(checked.flaws)[0]])
        if trusted_ms is not None:
            fresh = block[checked.heads["store_timestamp"] > trusted_ms]
            cut = _first_bad_checksum(log, file, fresh)
            if cut is not None:
                return cut
    return None


def _first_bad_checksum(log: Bytes, file: StreamFile, positions: Ints) -> int | None:
    checked = vector.check_records(log, positions, end=file.length, physical_base=file.base)
    bad = np.flatnonzero((checked.flaws != vector.OK) | ~vector.crc_matches(log, checked))
    return int(positions[bad[0]]) if bad.size else None
