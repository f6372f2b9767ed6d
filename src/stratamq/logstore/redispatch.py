"""Putting records of the log back into queues and index, where they are not yet: one by one, or by blocks of arrays.

Taking a record that is there already changes nothing, so any part of the log may be taken again. What does not line up
with its queue marks the queue as broken; recovery then rebuilds it from the oldest record on.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stratamq.config import StoreConfig
from stratamq.errors import MisplacedRecord
from stratamq.files.filesystem import FileSystem
from stratamq.formats.consume_queue import PREFILL_UNIT, UNIT, UNIT_DTYPE
from stratamq.formats.message import QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_INNER_BATCH
from stratamq.formats.vector import Ints
from stratamq.logstore import layout
from stratamq.logstore.batch import IndexRow
from stratamq.logstore.block_scan import Block
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.deletions import Deletions
from stratamq.logstore.dispatch import unit_tags_code
from stratamq.logstore.index import Index
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
        self._other_topics = _batch_queue_topics(parts)
        self.broken: dict[ConsumeQueue, None] = {}
        """Queues that do not fit the log and must be rebuilt."""

    def add(self, scanned: Scanned) -> None:
        self._result.records += 1
        self._result.last_store_timestamp = scanned.store_timestamp
        if self._belongs_to_queue(scanned):
            queue = self._parts.queues.open(scanned.topic, scanned.queue_id)
            end = scanned.physical_offset + scanned.size
            if queue not in self.broken and (self._only is None or queue in self._only):
                if end > queue.max_physical_offset:
                    code = unit_tags_code(
                        scanned.topic, scanned.properties, scanned.store_timestamp, self._parts.delay_levels
                    )
                    self._dispatch(queue, scanned.queue_offset, scanned.physical_offset, scanned.size, code)
                elif scanned.queue_offset < queue.first_offset:
                    self.broken[queue] = None  # the queue's first files are gone, the log's are not
        if self._is_indexed(scanned):
            self._rows.append(scanned.index_row)
        if self._result.records % _WRITE_EVERY == 0:
            self.finish(scanned.physical_offset + scanned.size)

    def _belongs_to_queue(self, scanned: Scanned) -> bool:
        if not scanned.is_queued or scanned.sys_flag & SYS_INNER_BATCH or scanned.topic in self._other_topics:
            return False
        return scanned.physical_offset >= self._parts.deletions.mark(scanned.topic)

    def _is_indexed(self, scanned: Scanned) -> bool:
        if self._parts.index is None or self._only is not None:
            return False
        return scanned.physical_offset >= self._plan.index_from

    def _dispatch(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int, code: int) -> None:
        if offset != queue.next_offset and not self._align(queue, offset, physical_offset):
            self.broken[queue] = None
            return
        queue.pending += UNIT.pack(physical_offset, size, code)
        queue.next_offset = offset + 1
        queue.max_physical_offset = physical_offset + size
        self._touched[queue] = None

    def _align(self, queue: ConsumeQueue, offset: int, physical_offset: int) -> bool:
        """Make the queue's end fit a record that does not follow it. False: the queue must be rebuilt first."""
        empty = not queue.bases and not queue.pending
        if self._plan.from_first and empty:
            queue.begin_at(offset)
            return True
        if not self._plan.from_first:
            return False
        if offset > queue.next_offset:  # offsets were skipped: keep unit number and queue offset in step
            self._check_gap(queue, offset, physical_offset)
            queue.pending += PREFILL_UNIT * (offset - queue.next_offset)
            queue.next_offset = offset
            return True
        _logger.warning("queue %s begins anew at %d: the topic was deleted and made again", queue.key, offset)
        self._write([queue])
        queue.rewind(offset)
        self._parts.queues.note_changed(queue)
        return True

    def _check_gap(self, queue: ConsumeQueue, offset: int, physical_offset: int) -> None:
        """No checksum covers the queue offset: a gap that the log has no room for is damage."""
        log = self._parts.log
        if offset - queue.next_offset > (physical_offset - log.min_offset) // RECORD_BYTES_MIN:
            raise MisplacedRecord(
                log.path_of(log.base_of(physical_offset)),
                physical_offset % log.file_bytes + QUEUE_OFFSET_AT,
                f"queue offset {queue.next_offset} of {queue.key.topic}/{queue.key.queue_id}",
                offset,
            )

    # --- many at once ---

    def add_block(self, block: Block) -> None:
        """Take good records that follow each other: what `add` does with each, but by arrays."""
        self._result.records += len(block.physical_offsets)
        self._result.last_store_timestamp = int(block.store_timestamps[-1])
        order = np.argsort(block.queue_numbers, kind="stable")
        bounds = np.searchsorted(block.queue_numbers[order], np.arange(len(block.queues) + 1)).tolist()
        for number, (topic, queue_id) in enumerate(block.queues):
            rows = order[bounds[number] : bounds[number + 1]]
            rows = rows[block.is_queued[rows] & (block.physical_offsets[rows] >= self._parts.deletions.mark(topic))]
            if rows.size and topic not in self._other_topics:
                queue = self._parts.queues.open(topic, queue_id)
                if queue not in self.broken and (self._only is None or queue in self._only):
                    self._add_rows(queue, block, rows)
        self._write(list(self._touched))
        self._touched.clear()
        index = self._parts.index
        if index is not None and self._only is None:
            wanted = block.physical_offsets[block.key_rows] >= self._plan.index_from
            rows = block.key_rows[wanted]
            index.add_hashes(
                block.key_hashes[wanted], block.physical_offsets[rows], block.store_timestamps[rows], block.end
            )

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
        columns = (block.queue_offsets, block.physical_offsets, block.sizes, block.tags_codes)
        for row in zip(*(column[rows].tolist() for column in columns), strict=True):
            if queue in self.broken:
                return
            self._dispatch(queue, *row)

    def finish(self, position: int) -> None:
        """Write what is collected."""
        self._write(list(self._touched))
        self._touched.clear()
        if self._parts.index is not None and self._only is None:
            self._parts.index.add(self._rows, position)
        self._rows = []

    def _write(self, queues: list[ConsumeQueue]) -> None:
        self._parts.queues.write(queues, self._plan.start, self._result.last_store_timestamp)


def _batch_queue_topics(parts: Parts) -> frozenset[str]:
    """Topics whose queues RocketMQ keeps in another form, which is left alone."""
    directory = os.path.join(parts.directory, layout.BATCH_CONSUME_QUEUE)
    return frozenset(parts.fs.list(directory)) if parts.fs.stat(directory) is not None else frozenset()
