"""Walking the commit log record by record: what recovery, catching up and rebuilding stand on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from stratamq.errors import BadLength, BadMagic, ChecksumMismatch, CorruptionError, MisplacedRecord, TruncatedRecord
from stratamq.formats.consume_queue import UNIT_BYTES
from stratamq.formats.message import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    Flaw,
    check_record,
    head_struct,
)
from stratamq.logstore.batch import IndexRow
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.layout import is_topic_name

_ERRORS: Final[dict[str, type[CorruptionError]]] = {
    "crc": ChecksumMismatch,
    "magic": BadMagic,
    "truncated": TruncatedRecord,
    "length": BadLength,
    "offset": MisplacedRecord,
}
SECTOR_BYTES: Final = 512
"""What a disk writes as a whole or not at all."""
SEARCH_BYTES: Final = 1 << 20
"""How much of a file is copied out and searched at a time."""
_MAGICS: Final = (MAGIC_V1.to_bytes(4, "big", signed=True), MAGIC_V2.to_bytes(4, "big", signed=True))


class Scanned(NamedTuple):
    """What dispatch needs of one record."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: str

    @property
    def is_queued(self) -> bool:
        """Whether the record belongs into a consume queue (prepared and rolled-back ones do not)."""
        return self.sys_flag & SYS_TRANSACTION_MASK in (0, SYS_TRANSACTION_COMMIT)

    @property
    def index_row(self) -> IndexRow:
        """What the index needs of it."""
        return self.topic, self.properties, self.physical_offset, self.store_timestamp, self.sys_flag


class Stop(NamedTuple):
    """Where a walk ended before the end of the last file: the first byte that begins no good record, and why."""

    physical_offset: int
    flaw: Flaw


class Walk:
    """One walk over the log from ``start``, which must be where a record begins. Iterate; then look at ``stop``.

    Checked: all that `check_record` checks, that a blank record reaches to the end of its file, and that topic and
    queue id can name a queue. CRCs are compared from ``verify_from`` on. Ends at ``stop_at``, at the end of the last
    file, or at the first record that is not good.

    A record's checksum covers its body only. From ``doubt_from`` on, where nothing is known to be synced, a record
    whose properties show the marks of a torn write (`is_torn`) is therefore not good either.

    Cost: about 3 us a record and one CRC over its body.
    """

    def __init__(
        self,
        log: CommitLog,
        start: int,
        *,
        verify_from: int | None,
        doubt_from: int | None = None,
        stop_at: int | None = None,
    ) -> None:
        self._log = log
        self._verify_from = verify_from
        self._doubt_from = doubt_from
        self._stop_at = stop_at
        self.position = start
        """Everything below is good (behind a blank: the beginning of the next file)."""
        self.stop: Stop | None = None

    def __iter__(self) -> Iterator[Scanned]:
        log = self._log
        file_bytes = log.file_bytes
        while self.stop is None and log.base_of(self.position) in log.bases:
            if self._stop_at is not None and self.position >= self._stop_at:
                return
            yield from self._file(log.file_view(log.base_of(self.position)), log.base_of(self.position), file_bytes)

    def _file(self, view: memoryview, base: int, file_bytes: int) -> Iterator[Scanned]:
        at = self.position - base
        stop_at = file_bytes if self._stop_at is None else min(file_bytes, self._stop_at - base)
        verify_from = file_bytes if self._verify_from is None else self._verify_from - base
        doubt_from = sys.maxsize if self._doubt_from is None else self._doubt_from
        topics: dict[bytes, str] = {}
        while at < stop_at:
            checked = check_record(view, at, file_bytes, physical_offset=base + at, verify_crc=at >= verify_from)
            flaw = checked.flaw
            if flaw is None and checked.is_blank:
                if checked.size == file_bytes - at:
                    break
                flaw = Flaw("length", at, f"a blank of {file_bytes - at} bytes", checked.size)
            if flaw is None:
                scanned = parse_record(view, at, checked.size, topics)
                if isinstance(scanned, Scanned) and "\0" in scanned.properties and base + at >= doubt_from:
                    scanned = is_torn(view, at, checked.size, file_bytes) or scanned
                if isinstance(scanned, Scanned):
                    yield scanned
                    at += checked.size
                    self.position = base + at
                    continue
                flaw = scanned
            self.stop = Stop(base + at, flaw)
            return
        if at < stop_at or stop_at == file_bytes:
            self.position = base + file_bytes


def parse_record(view: memoryview, at: int, size: int, topics: dict[bytes, str]) -> Scanned | Flaw:
    """What dispatch needs of a record that `check_record` found good; a flaw when its topic or queue cannot be."""
    sys_flag = int.from_bytes(view[at + 36 : at + 40], "big", signed=True)
    head = head_struct(sys_flag)
    fields = head.unpack_from(view, at)
    topic_at = at + head.size + fields[14]
    if fields[1] == MAGIC_V2:
        topic_bytes = int.from_bytes(view[topic_at : topic_at + 2], "big")
        topic_at += 2
    else:
        topic_bytes = view[topic_at]
        topic_at += 1
    raw = bytes(view[topic_at : topic_at + topic_bytes])
    topic = topics.get(raw)
    if topic is None:
        topic = raw.decode("ascii", "replace")
        if not is_topic_name(topic):
            return Flaw("length", topic_at, "a topic name", repr(raw))
        topics[raw] = topic
    if fields[3] < 0 or not 0 <= fields[5] < 2**63 // UNIT_BYTES:
        return Flaw("length", at + 12, "a queue id and a queue offset", f"{fields[3]}, {fields[5]}")
    properties = str(view[topic_at + topic_bytes + 2 : at + size], "utf-8", "replace")
    return Scanned(fields[6], size, topic, fields[3], fields[5], sys_flag, fields[10], properties)


def is_torn(view: memoryview, at: int, size: int, file_end: int) -> Flaw | None:
    """Look at a record whose properties hold zero bytes: did part of them never reach the file?

    A process that is killed while it writes leaves zeros from some byte on, so its record ends with a zero and nothing
    good follows. A disk that lost power leaves whole sectors of zeros.
    """
    head = head_struct(int.from_bytes(view[at + 36 : at + 40], "big", signed=True))
    body_end = at + head.size + head.unpack_from(view, at)[14]
    flaw = Flaw("truncated", at + size - 1, "the end of the properties", "zeros")
    if view[at + size - 1] == 0 and check_record(view, at + size, file_end, physical_offset=None).flaw is not None:
        return flaw
    first_sector = -(-body_end // SECTOR_BYTES) * SECTOR_BYTES
    for sector in range(first_sector, at + size, SECTOR_BYTES):
        if not any(view[sector : min(sector + SECTOR_BYTES, at + size)]):
            return flaw
    return None


def corruption(log: CommitLog, stop: Stop, hint: str) -> CorruptionError:
    """The typed error for a flaw."""
    base = log.base_of(stop.physical_offset)
    error = _ERRORS.get(stop.flaw.kind, CorruptionError)
    return error(log.path_of(base), stop.flaw.position, stop.flaw.expected, stop.flaw.found, hint=hint)


def first_store_timestamp(log: CommitLog, base: int) -> int | None:
    """Store time of the first record of a file; None when there is no good one."""
    view = log.file_view(base)
    checked = check_record(view, 0, log.file_bytes, physical_offset=base, verify_crc=False)
    if checked.flaw is not None or checked.is_blank:
        return None
    scanned = parse_record(view, 0, checked.size, {})
    return scanned.store_timestamp if isinstance(scanned, Scanned) and scanned.store_timestamp > 0 else None


def next_good_record(log: CommitLog, physical_offset: int) -> Scanned | None:
    """The first good record (place and CRC right) behind ``physical_offset``, in its file or a later one.

    Cost: one pass over the bytes between, at the speed of a byte search.
    """
    for base in log.bases:
        if base + log.file_bytes <= physical_offset:
            continue
        view = log.file_view(base)
        for where in magic_places(view, max(physical_offset - base, 0)):
            checked = check_record(view, where, log.file_bytes, physical_offset=base + where)
            if checked.flaw is None and not checked.is_blank:
                scanned = parse_record(view, where, checked.size, {})
                if isinstance(scanned, Scanned):
                    return scanned
    return None


def magic_places(view: memoryview, start: int, *, block_bytes: int = SEARCH_BYTES) -> Iterator[int]:
    """Where records may begin at or behind ``start``, in order: four bytes before each magic number.

    Blocks are copied out and searched there: `mmap.find` compares byte by byte, `bytes.find` does not.
    """
    overlap = len(_MAGICS[0]) - 1
    for at in range(start + 4, len(view), block_bytes):
        block = bytes(view[at : at + block_bytes + overlap])
        found = []
        for magic in _MAGICS:
            place = block.find(magic)
            while place >= 0:
                found.append(at + place - 4)
                place = block.find(magic, place + 1)
        yield from sorted(found)
