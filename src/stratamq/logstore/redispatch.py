"""Putting records of the log back into queues and index, where they are not yet: one by one, or by blocks of arrays.

Taking a record that is there already changes nothing, so any part of the log may be taken again. What does not line up
with its queue marks the queue as broken; recovery then rebuilds it from the oldest record on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from stratamq.config import StoreConfig
from stratamq.errors import MisplacedRecord
from stratamq.files.filesystem import FileSystem
from stratamq.formats.batch_consume_queue import inner_span
from stratamq.formats.consume_queue import UNIT_DTYPE
from stratamq.formats.message import QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_INNER_BATCH
from stratamq.formats.properties import INNER_BASE
from stratamq.formats.vector import Ints
from stratamq.logstore.batch import IndexRow
from stratamq.logstore.block_scan import Block
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.deletions import Deletions
from stratamq.logstore.dispatch import unit_tags_code
from stratamq.logstore.index import Index
from stratamq.logstore.light_queues import LIGHT_QUEUE_ID, LMQ_PREFIX, light_units
from stratamq.logstore.queue_table import QueueTable
from stratamq.logstore.scan import Scanned

_WRITE_EVERY: Final = 100_000
"""Records dispatched one by one between two writes of the queues, which bounds memory."""
_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Parts:
    """What recovery works on."""

    fs: FileSystem
    directory: str
    config: StoreConfig
    log: CommitLog
    queues: QueueTable
    index: Index | None
    delay_levels: tuple[int, ...]
    deletions: Deletions


class _Unit(NamedTuple):
    """A unit to be: of the record at ``physical_offset``, for so many messages from ``offset`` on."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    offset: int
    messages: int = 1


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did."""

    clean: bool = True
    start: int = 0
    end: int = 0
    records: int = 0
    cut_bytes: int = 0
    cut_because: str = ""
    rebuilt_queues: list[str] = field(default_factory=list)
    last_store_timestamp: int = 0


@dataclass(slots=True)
class Plan:
    """Where to begin and what is known."""

    known_good: int
    """Bytes below this were synced: a bad record there is corruption."""
    index_from: int
    """Records below this are in the index."""
    start: int
    """Where the walk begins."""
    verify_from: int
    """Where it begins to compare checksums."""
    from_first: bool
    """The walk begins with the oldest record, so a queue that is empty may begin anywhere."""


class Redispatcher:
    """Puts scanned records into queues and index where they are not yet."""

    def __init__(self, parts: Parts, plan: Plan, result: RecoveryReport, only: set[ConsumeQueue] | None = None) -> None:
        self._parts = parts
        self._plan = plan
        self._result = result
        self._only = only
        self._touched: dict[ConsumeQueue, None] = {}
        self._rows: list[IndexRow] = []
        self._gives_out = parts.config.dispatches_to_light_queues
        self.broken: dict[ConsumeQueue, None] = {}
        """Queues that do not fit the log and must be rebuilt."""

    def add(self, scanned: Scanned) -> None:
        self._result.records += 1
        self._result.last_store_timestamp = scanned.store_timestamp
        if scanned.is_queued:
            self._put(scanned)
        if self._is_indexed(scanned):
            self._rows.append(scanned.index_row)
        if self._result.records % _WRITE_EVERY == 0:
            self.finish(scanned.physical_offset + scanned.size)

    def _put(self, scanned: Scanned) -> None:
        """Put the units of a record where they belong: into its own queue, then into light queues."""
        topic, properties, physical_offset = scanned.topic, scanned.properties, scanned.physical_offset
        code = unit_tags_code(topic, properties, scanned.store_timestamp, self._parts.delay_levels)
        unit = _Unit(physical_offset, scanned.size, code, scanned.store_timestamp, scanned.queue_offset)
        if scanned.sys_flag & SYS_INNER_BATCH:
            self._learn_batches(topic)
        self._place(topic, scanned.queue_id, unit, properties)
        if self._gives_out:
            for name, offset in light_units(topic, properties):
                self._place(name, LIGHT_QUEUE_ID, unit._replace(offset=offset))

    def _learn_batches(self, topic: str) -> None:
        """An inner batch is only taken by a topic of batches, even where nothing else is left that says so."""
        queues = self._parts.queues
        if topic not in queues.batch_topics:
            queues.set_kind(topic, is_batch=True)

    def _place(self, topic: str, queue_id: int, unit: _Unit, properties: str = "") -> None:
        """Put one unit into its queue, unless it is there, or the topic was deleted since."""
        if unit.physical_offset < self._parts.deletions.mark(topic):
            return
        queue = self._parts.queues.open(topic, queue_id)
        if queue in self.broken or (self._only is not None and queue not in self._only):
            return
        if queue.is_batch:
            base, messages = inner_span(properties, unit.offset)
            unit = unit._replace(offset=base, messages=messages)
        if unit.physical_offset + unit.size > queue.max_physical_offset:
            self._dispatch(queue, unit)
        elif unit.offset < queue.first_offset:
            self.broken[queue] = None  # the queue's first files are gone, the log's are not

    def _is_indexed(self, scanned: Scanned) -> bool:
        if self._parts.index is None or self._only is not None:
            return False
        return scanned.physical_offset >= self._plan.index_from

    def _dispatch(self, queue: ConsumeQueue, unit: _Unit) -> None:
        if unit.offset != queue.next_offset:
            if self._is_impossible(queue, unit):
                return
            if not self._align(queue, unit.offset):
                self.broken[queue] = None
                return
        queue.add_unit(*unit)
        queue.max_physical_offset = unit.physical_offset + unit.size
        self._touched[queue] = None

    def _align(self, queue: ConsumeQueue, offset: int) -> bool:
        """Make the queue's end fit a record that does not follow it. False: the queue must be rebuilt first."""
        empty = not queue.bases and not queue.pending
        if self._plan.from_first and empty:
            queue.begin_at(offset)
            return True
        if not self._plan.from_first:
            return False
        if offset > queue.next_offset:  # offsets were skipped: keep unit number and queue offset in step
            queue.skip_to(offset)
            return True
        _logger.warning("queue %s begins anew at %d: the topic was deleted and made again", queue.key, offset)
        self._write([queue])
        queue.rewind(offset)
        self._parts.queues.note_changed(queue)
        return True

    def _is_impossible(self, queue: ConsumeQueue, unit: _Unit) -> bool:
        """No checksum covers the queue offset: a gap that the log has no room for is damage.

        In a light queue it is no reason to stop: offsets there are text that a client may have written while messages
        were not given out. Such a unit is left out.
        """
        log, physical_offset = self._parts.log, unit.physical_offset
        gap = unit.offset - queue.next_offset
        if gap <= (physical_offset - log.min_offset) // RECORD_BYTES_MIN * queue.unit_messages_max:
            return False
        if queue.key.topic.startswith(LMQ_PREFIX):
            empty = not queue.bases and not queue.pending
            return not (self._plan.from_first and empty and log.min_offset != 0)
        if not self._plan.from_first or (not queue.bases and not queue.pending):
            return False
        raise MisplacedRecord(
            log.path_of(log.base_of(physical_offset)),
            physical_offset % log.file_bytes + QUEUE_OFFSET_AT,
            f"queue offset {queue.next_offset} of {queue.key.topic}/{queue.key.queue_id}",
            unit.offset,
        )

    # --- many at once ---

    def add_block(self, block: Block) -> None:
        """Take good records that follow each other: what `add` does with each, but by arrays."""
        self._result.records += len(block.physical_offsets)
        self._result.last_store_timestamp = int(block.store_timestamps[-1])
        order = np.argsort(block.queue_numbers, kind="stable")
        bounds = np.searchsorted(block.queue_numbers[order], np.arange(len(block.queues) + 1)).tolist()
        batch_topics, singly = self._parts.queues.batch_topics, set[int]()
        for row, text in block.inner:
            if INNER_BASE in text and block.is_queued[row]:
                self._learn_batches(block.queues[int(block.queue_numbers[row])][0])
        for number, (topic, queue_id) in enumerate(block.queues):
            rows = order[bounds[number] : bounds[number + 1]]
            rows = rows[block.is_queued[rows] & (block.physical_offsets[rows] >= self._parts.deletions.mark(topic))]
            if topic in batch_topics or topic.startswith(LMQ_PREFIX):
                singly.update(rows.tolist())
            elif rows.size:
                queue = self._parts.queues.open(topic, queue_id)
                if queue not in self.broken and (self._only is None or queue in self._only):
                    self._add_rows(queue, block, rows)
        self._add_singly(block, singly)
        self._write(list(self._touched))
        self._touched.clear()
        index = self._parts.index
        if index is not None and self._only is None:
            wanted = block.physical_offsets[block.key_rows] >= self._plan.index_from
            rows = block.key_rows[wanted]
            index.add_hashes(
                block.key_hashes[wanted], block.physical_offsets[rows], block.store_timestamps[rows], block.end
            )

    def _add_singly(self, block: Block, own: set[int]) -> None:
        """Units of light queues, of records sent to one as to a topic, and of batches, in the order of the records.

        ``own`` names the rows whose own queue is still to get its unit.
        """
        texts = dict(block.inner)
        given = {row for row in texts if self._gives_out and block.is_queued[row]}
        for row in sorted(own | given):
            properties = texts.get(row, "")
            topic, queue_id = block.queues[int(block.queue_numbers[row])]
            unit = _Unit(
                int(block.physical_offsets[row]),
                int(block.sizes[row]),
                int(block.tags_codes[row]),
                int(block.store_timestamps[row]),
                int(block.queue_offsets[row]),
            )
            if row in own:
                self._place(topic, queue_id, unit, properties)
            for name, offset in light_units(topic, properties) if row in given else ():
                self._place(name, LIGHT_QUEUE_ID, unit._replace(offset=offset))

    def _add_rows(self, queue: ConsumeQueue, block: Block, rows: Ints) -> None:
        ends = block.physical_offsets[rows] + block.sizes[rows]
        new = ends > queue.max_physical_offset
        if not new.all():
            if int(block.queue_offsets[rows[~new]].min()) < queue.first_offset:
                self.broken[queue] = None  # the queue's first files are gone, the log's are not
                return
            rows = rows[new]
            if not rows.size:
                return
        offsets = block.queue_offsets[rows]
        if int(offsets[0]) == queue.next_offset and bool((np.diff(offsets) == 1).all()):
            units = np.empty(len(rows), dtype=UNIT_DTYPE)
            units["physical_offset"] = block.physical_offsets[rows]
            units["size"] = block.sizes[rows]
            units["tags_code"] = block.tags_codes[rows]
            queue.pending += units.tobytes()
            queue.next_offset += len(rows)
            queue.max_physical_offset = int(ends[-1])
            self._touched[queue] = None
            return
        columns = (
            block.physical_offsets,
            block.sizes,
            block.tags_codes,
            block.store_timestamps,
            block.queue_offsets,
        )
        for row in zip(*(column[rows].tolist() for column in columns), strict=True):
            if queue in self.broken:
                return
            self._dispatch(queue, _Unit._make((*row, 1)))

    def finish(self, position: int) -> None:
        """Write what is collected."""
        self._write(list(self._touched))
        self._touched.clear()
        if self._parts.index is not None and self._only is None:
            self._parts.index.add(self._rows, position)
        self._rows = []

    def _write(self, queues: list[ConsumeQueue]) -> None:
        self._parts.queues.write(queues, self._plan.start, self._result.last_store_timestamp)
