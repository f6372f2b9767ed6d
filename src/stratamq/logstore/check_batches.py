"""The last pass of a check, over what only some stores have: queues of batches, and light queues.

Every unit of a queue of batches is held against its record, and its offsets against those of the unit before; then the
log is read from the last record on that any such queue names, for records that have no unit. Of a light queue the
record of each unit must name the queue and that offset.

Cost: one look at the log for each unit, about 40 us; and a walk over the log behind the last batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from stratamq.errors import StoreError
from stratamq.findings import Findings
from stratamq.formats import vector
from stratamq.formats.batch_consume_queue import BatchUnit, decode_batch_units, inner_span
from stratamq.formats.message import SYS_TRANSACTION_MASK, SYS_TRANSACTION_PREPARED
from stratamq.formats.vector import Bytes
from stratamq.logstore import listing
from stratamq.logstore.batch_files import BatchStream, confirms, open_batches
from stratamq.logstore.check_log import Settled
from stratamq.logstore.deletions import read_marks
from stratamq.logstore.light_queues import LMQ_PREFIX, light_units
from stratamq.logstore.scan import Scanned, parse_record
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import QueueKey

REBUILD: Final = (
    "stop the broker, move this queue's directory and the file `checkpoint` away and start: it is built again from the "
    "commit log"
)
_PAGE: Final = 4_096


def check_batches(snapshot: StoreSnapshot, findings: Findings, settled: Settled) -> int:
    """Check all queues of batches of a store. Returns how many units they have."""
    ends: dict[QueueKey, int] = {}
    offsets: dict[QueueKey, int] = {}
    count = 0
    for key, _ in listing.list_batch_queues(str(snapshot.path)):
        try:
            stream = open_batches(snapshot, *key)
        except StoreError as problem:
            findings.add_problem(problem, REBUILD)
            continue
        ends[key], offsets[key] = _check_queue(snapshot, findings, key, stream)
        count += stream.count
    if ends:
        _check_rest(snapshot, findings, settled, ends, offsets)
    return count


def _check_queue(snapshot: StoreSnapshot, findings: Findings, key: QueueKey, stream: BatchStream) -> tuple[int, int]:
    """Check one queue; returns where the log's part without units of it begins, and the queue offset there."""
    low, high = snapshot.min_physical_offset, snapshot.max_physical_offset
    end, following, before = low, -1, -1
    for number, unit in _units(stream):
        if unit.physical_offset < low:
            following = unit.end_offset
            continue
        path, position = stream.place(number)
        if unit.physical_offset >= high:
            advice = "units behind the log's end: left over from a cut; they are not read"
            found = f"physical offset {unit.physical_offset}"
            findings.inform("leftover-units", path, position, "nothing behind the log's end", found, advice)
            break
        if not confirms(snapshot, key, unit):
            expected = f"a record of this queue with {unit.messages} messages from {unit.base_offset} on"
            findings.error("unit", path, position, expected, f"physical offset {unit.physical_offset}", REBUILD)
        elif unit.physical_offset <= before or (following >= 0 and unit.base_offset < following):
            findings.error("order", path, position, f"an offset from {following} on", unit.base_offset, REBUILD)
        elif following >= 0 and unit.base_offset > following:
            expected = f"a unit of the messages from {following} on"
            findings.warn("unit-missing", path, position, expected, f"one from {unit.base_offset} on", REBUILD)
        before, following = unit.physical_offset, unit.end_offset
        end = max(end, unit.physical_offset + unit.size)
    return end, following


def _units(stream: BatchStream) -> Iterator[tuple[int, BatchUnit]]:
    for start in range(0, stream.count, _PAGE):
        units = stream.units(start, min(stream.count, start + _PAGE))
        yield from enumerate(decode_batch_units(units.tobytes()), start)


def _check_rest(
    snapshot: StoreSnapshot,
    findings: Findings,
    settled: Settled,
    ends: dict[QueueKey, int],
    offsets: dict[QueueKey, int],
) -> None:
    """Look for records of these topics behind the last unit of their queue."""
    topics = {key.topic for key in ends}
    try:
        marks = read_marks(str(snapshot.path))
    except StoreError:
        marks = {}  # reported elsewhere
    for record in _records_of(snapshot, topics, min(ends.values())):
        key = QueueKey(record.topic, record.queue_id)
        end = ends.get(key, snapshot.min_physical_offset)
        state = record.sys_flag & SYS_TRANSACTION_MASK
        if record.physical_offset < max(end, marks.get(record.topic, 0)) or state & SYS_TRANSACTION_PREPARED:
            continue
        base, messages = inner_span(record.properties, record.queue_offset)
        path = str(snapshot.path / "batchconsumequeue" / record.topic / str(record.queue_id))
        expected = (
            f"a unit for the record at physical offset {record.physical_offset}, {messages} messages from {base} on"
        )
        if record.store_timestamp >= settled.before_ms and record.physical_offset >= settled.units_below:
            advice = "nothing to do: the broker does this while it runs, or when it starts again"
            findings.inform("unit-pending", path, 0, expected, "not there yet", advice)
        else:
            findings.error("unit-missing", path, 0, expected, "none", REBUILD)


def _records_of(snapshot: StoreSnapshot, topics: set[str], start: int) -> Iterator[Scanned]:
    """Good records of some topics from a physical offset on, where a record begins."""
    names = [topic.encode() for topic in topics]
    for file in snapshot.files:
        end = min(file.length, snapshot.max_physical_offset - file.base)
        first = max(0, start - file.base)
        if first >= end:
            continue
        log = snapshot.bytes_of(file)
        positions = vector.walk(log, first, end, physical_base=file.base).positions
        for at in range(0, len(positions), 65_536):
            block = positions[at : at + 65_536]
            checked = vector.check_records(log, block, end=end, physical_base=file.base)
            for row in np.flatnonzero((checked.flaws == vector.OK) & _is_of(log, checked.parts, names)).tolist():
                position, size = int(block[row]), int(checked.heads["size"][row])
                record = parse_record(log.data, position, size, {})
                if isinstance(record, Scanned):
                    yield record


def _is_of(log: Bytes, parts: vector.Parts, names: list[bytes]) -> vector.Mask:
    found = np.zeros(len(parts.topic_at), dtype=np.bool_)
    for name in names:
        rows = np.flatnonzero(parts.topic_bytes == len(name))
        if rows.size:
            texts = vector.window(log, f"S{len(name)}")
            found[rows[texts[parts.topic_at[rows]] == name]] = True
    return found


def check_light_queues(snapshot: StoreSnapshot, findings: Findings) -> None:
    """Check that the records of light queues name them, at the offsets of their units."""
    for key, _ in listing.list_queues(str(snapshot.path)):
        if not key.topic.startswith(LMQ_PREFIX):
            continue
        there = snapshot.queue(*key)
        for start in range(there.min_offset, there.max_offset, _PAGE):
            stop = min(there.max_offset, start + _PAGE)
            for offset, unit in enumerate(snapshot.raw_units(*key, start, stop).tolist(), start):
                _check_light_unit(snapshot, findings, key, offset, unit[0], unit[1])


def _check_light_unit(
    snapshot: StoreSnapshot, findings: Findings, key: QueueKey, offset: int, physical_offset: int, size: int
) -> None:
    file = snapshot.file_of(physical_offset)
    if file is None or physical_offset + size > snapshot.max_physical_offset:
        return  # the pass over the units has said so
    record = parse_record(snapshot.bytes_of(file).data, physical_offset - file.base, size, {})
    if not isinstance(record, Scanned) or (record.topic, record.queue_offset) == (key.topic, offset):
        return
    named = dict(light_units(record.topic, record.properties)).get(key.topic)
    if named != offset:
        with snapshot.queue_files(*key) as files:
            path, position = files.place(offset)
        found = "no such queue" if named is None else f"offset {named}"
        findings.warn(
            "light-unit", path, position, f"a record that names offset {offset} of this queue", found, REBUILD
        )
