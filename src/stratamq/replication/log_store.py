"""The log store of a group's member: what others wrote is added byte for byte, and the end can be cut off again.

"Synced" means decided here: `LogStore.synced` is called when a majority has the bytes, so that consumers, queries, the
checkpoint and recovery never go beyond what is decided. What recovery found behind that is not shown before it is
decided, either. The store must be opened with SYNC_FLUSH.

Queues and index get their entries with the write, as on a single broker, and are cut back with the log. Index entries
of records that were cut off may stay: every query looks at the record itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratamq.errors import CorruptionError, StoreFailed, StoreFull
from stratamq.formats.batch_consume_queue import inner_span
from stratamq.formats.message import (
    BLANK_BYTES,
    MAGIC_BLANK,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SYS_INNER_BATCH,
    check_record,
)
from stratamq.logstore.commit_log import Segment
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.dispatch import unit_tags_code
from stratamq.logstore.light_queues import LIGHT_QUEUE_ID, light_units
from stratamq.logstore.scan import Scanned, Walk, parse_record
from stratamq.logstore.store import CommitToken, LogStore
from stratamq.logstore.types import Arrival, QueueKey


class BadFrame(CorruptionError):
    """What the leader sent is not a run of whole records that follow the log's end."""

    what = "records that do not fit"


class Added(NamedTuple):
    """One record that was added from a leader's bytes."""

    scanned: Scanned
    record: memoryview


class MemberStore(LogStore):
    """See the module's text."""

    _held_back = 0
    """Up to here are units that no arrival will show when they are decided: recovery's, or those of a frame that was
    cut in two. 0: none."""

    deleted_topic: Callable[[Added], str] = staticmethod(lambda added: "")
    """Says which topic a record deletes, if it is a control record of that kind."""
    on_delete: Callable[[str], object] = staticmethod(lambda topic: None)
    """Called on the leader before it deletes a topic's queues."""

    def read_records(self, start: int, limit: int, bytes_max: int) -> memoryview:
        """Whole records from ``start`` on: at least one, more up to ``bytes_max``, none behind ``limit``.

        A view of the mapped file; a copy where a file ends, because a blank is never the last of what is returned: the
        log's end is always the end of a record. Cost: 0.3 us a record.
        """
        base = self._log.base_of(start)
        view = self._log.file_view(base)
        stop = min(limit - base, self._log.file_bytes)
        first = at = start - base
        while at < stop:
            size, magic = SIZE_AND_MAGIC.unpack_from(view, at)
            if magic == MAGIC_BLANK:
                if at > first:
                    break
                following = self.read_records(base + self._log.file_bytes, limit, bytes_max)
                return memoryview(b"".join((view[first:], following)))
            if size < BLANK_BYTES or at + size > stop or (at > first and at + size - first > bytes_max):
                break
            at += size
        return view[first:at]

    def write_records(self, data: memoryview) -> list[Added]:
        """Add a leader's bytes at the end of the log, and to queues and index; writes, syncs nothing.

        Returns the records in them. All of them are checked before anything is changed.

        Raises:
            BadFrame: They are no whole records for this place.
            StoreFull: No room; nothing changed.
            StoreFailed, StoreClosed: No more writes.
        """
        self.drop_batch()
        start = self._log.end
        found, split = self._check(data, start)
        begin = 0
        part: list[Added] = []
        for added in found:
            part.append(added)
            topic = self.deleted_topic(added)
            if topic:
                end = added.scanned.physical_offset + added.scanned.size - start
                self._write_part(data, begin, end, split, part)
                super().delete_topic(topic)
                begin, part = end, []
        if part:
            self._write_part(data, begin, len(data), split, part)
        return found

    def _write_part(self, data: memoryview, begin: int, end: int, split: int, found: list[Added]) -> None:
        """Write some of a leader's bytes; ``split`` is where a file begins in them."""
        batch = self._batch
        at = self._log.end
        middle = min(max(split, begin), end)
        batch.segments = [Segment(at, [data[begin:middle]])] if middle > begin else []
        if middle < end:
            batch.segments.append(Segment(at + middle - begin, [data[middle:end]]))
        batch.position = at + end - begin
        for added in found:
            self._dispatch(added.scanned)
        batch.last_store_timestamp = max(batch.last_store_timestamp, found[-1].scanned.store_timestamp)
        try:
            self.commit()
        except StoreFull as error:
            if begin:  # some of it is written already: what the core knows of the log would be wrong
                raise self._fail("write", error.path, OSError(str(error))) from error
            raise

    def delete_topic(self, topic: str) -> None:
        """See `LogStore.delete_topic`; the group is told first, so that every member does it at the same place."""
        self.on_delete(topic)
        super().delete_topic(topic)

    def drop_batch(self) -> None:
        """Take back what was appended and not committed."""
        if self._batch.size:
            self._batch.undo()

    def _check(self, data: memoryview, start: int) -> tuple[list[Added], int]:
        """Look at every record. Returns them, and where the second file's bytes begin (or the length)."""
        file_bytes = self._log.file_bytes
        room = file_bytes - start % file_bytes
        found: list[Added] = []
        topics: dict[bytes, str] = {}
        at, split = 0, len(data)
        while at < len(data):
            checked = check_record(data, at, len(data), physical_offset=start + at)
            flaw = checked.flaw
            if flaw is not None:
                raise BadFrame(self.directory, start + at, flaw.expected, flaw.found)
            if checked.is_blank:
                if at or checked.size != room:
                    raise BadFrame(self.directory, start + at, f"a blank of {room} bytes, first", checked.size)
                at, split, room = room, room, room + file_bytes
                continue
            scanned = parse_record(data, at, checked.size, topics)
            if not isinstance(scanned, Scanned):
                raise BadFrame(self.directory, start + at, scanned.expected, scanned.found)
            if at + checked.size + BLANK_BYTES > room:
                raise BadFrame(self.directory, start + at, "records that leave room for a blank", checked.size)
            found.append(Added(scanned, data[at : at + checked.size]))
            at += checked.size
        if not found:
            raise BadFrame(self.directory, start, "a record", f"{len(data)} bytes")
        return found, split

    def places_of(self, scanned: Scanned) -> list[tuple[QueueKey, int, int]]:
        """The queues that a record goes into: offset of its first message there, and how many it is."""
        if not scanned.is_queued:
            return []
        base, messages = scanned.queue_offset, 1
        if scanned.topic in self._queues.batch_topics or scanned.sys_flag & SYS_INNER_BATCH:
            base, messages = inner_span(scanned.properties, base)
        found = [(QueueKey(scanned.topic, scanned.queue_id), base, messages)]
        if self._batch.dispatches_to_light_queues:
            lights = light_units(scanned.topic, scanned.properties)
            found += [(QueueKey(name, LIGHT_QUEUE_ID), offset, 1) for name, offset in lights]
        return found

    def _dispatch(self, scanned: Scanned) -> None:
        batch = self._batch
        if scanned.is_queued:
            if scanned.sys_flag & SYS_INNER_BATCH and scanned.topic not in self._queues.batch_topics:
                self._queues.set_kind(scanned.topic, is_batch=True)
            queue = self._queues.open(scanned.topic, scanned.queue_id)
            base, messages = scanned.queue_offset, 1
            if queue.is_batch:
                base, messages = inner_span(scanned.properties, base)
            if queue.next_offset != base:
                self._align(queue, scanned._replace(queue_offset=base))
            code = unit_tags_code(scanned.topic, scanned.properties, scanned.store_timestamp, batch.delay_levels)
            self._add_unit(queue, scanned, code, base, messages)
            if batch.dispatches_to_light_queues:
                self._give_out(scanned, code)
        if batch.index_enabled:
            batch.index_rows.append(scanned.index_row)

    def _add_unit(self, queue: ConsumeQueue, scanned: Scanned, code: int, offset: int, messages: int) -> None:
        self._batch.touch(queue)
        queue.add_unit(scanned.physical_offset, scanned.size, code, scanned.store_timestamp, offset, messages)
        queue.codes.append(code)

    def _give_out(self, scanned: Scanned, code: int) -> None:
        """Put a record's units into light queues, at the offsets that the leader gave them."""
        for name, offset in light_units(scanned.topic, scanned.properties):
            queue = self._queues.open(name, LIGHT_QUEUE_ID)
            if queue.next_offset != offset:
                self._align(queue, scanned._replace(topic=name, queue_id=LIGHT_QUEUE_ID, queue_offset=offset))
            self._add_unit(queue, scanned, code, offset, 1)

    def _align(self, queue: ConsumeQueue, scanned: Scanned) -> None:
        """The leader's queue goes on elsewhere: it is new here, or the topic was deleted and made again there."""
        offset = scanned.queue_offset
        if queue.batch_start >= 0 or queue.pending:
            raise BadFrame(self.directory, scanned.physical_offset, f"queue offset {queue.next_offset}", offset)
        if not queue.bases:
            queue.begin_at(offset)
        elif offset < queue.next_offset:
            queue.rewind(offset)
            self._queues.note_changed(queue)
        elif offset - queue.next_offset <= self._log.end // RECORD_BYTES_MIN * queue.unit_messages_max:
            queue.skip_to(offset)
        else:
            raise BadFrame(self.directory, scanned.physical_offset, f"queue offset {queue.next_offset}", offset)

    def show_up_to(self, end: int) -> None:
        """Right after opening: show consumers nothing behind ``end``, which is as far as the log is known decided."""
        for queue in self._queues.values():
            if queue.max_physical_offset > end:
                shown = queue.first_offset_where(
                    lambda unit: not unit.is_prefill and unit.physical_offset >= end,
                    queue.first_offset,
                    queue.next_offset,
                )
                queue.visible_offset = min(queue.visible_offset, shown)
        self._flushed = min(self._flushed, end)
        self._held_back = self._log.end

    def decided(self, end: int) -> list[Arrival]:
        """The log is decided up to ``end``. Returns who can now read more."""
        arrivals = self.synced(CommitToken(end, self._batch.last_store_timestamp, self._log.sync_work()))
        if self._held_back and end >= self._held_back:
            self._held_back = 0
            for queue in self._queues.values():
                if queue.visible_offset < queue.written_offset and queue.max_physical_offset <= end:
                    queue.visible_offset = queue.written_offset
        return arrivals

    def all_written(self) -> CommitToken:
        """A token for everything that is written, whether synced or decided or not."""
        return CommitToken(self._log.end, self._batch.last_store_timestamp, self._log.sync_work())

    def truncate(self, offset: int) -> None:
        """Cut the log at ``offset``, where a record begins, with queues and index. Blocks for syncs.

        Durable when it returns. After a crash in the middle the log ends at ``offset`` or somewhere behind it, at the
        end of a record. What is decided must not be cut: the caller has seen to it.

        Raises StoreFailed.
        """
        self._batch.begin(self._log.end)
        self._write_units(list(self._queues.waiting))
        shown = {queue: queue.visible_offset for queue in self._queues.values()}
        self._flushed = min(self._flushed, offset)
        kept = [entry for entry in self._unseen if entry[0] <= offset]
        if len(kept) < len(self._unseen) or self._held_back:
            self._held_back = offset  # a frame may have held records on both sides of the cut
        self._unseen = type(self._unseen)(kept)
        self.sync_checkpoint(self._checkpoint_token(everything=True, clean=False))
        try:
            self._log.zero_from(offset)
        except OSError as error:
            raise self._fail("cut", self._log.directory, error) from error
        self._sync_work(self._log.sync_work())
        try:
            for queue, visible in shown.items():
                if queue.max_physical_offset > offset:
                    queue.truncate(offset)
                    self._queues.note_changed(queue)
                    if not queue.next_offset:
                        queue.destroy()
                    queue.visible_offset = min(visible, queue.next_offset)
        except OSError as error:
            raise self._fail("cut", self._queues.directory, error) from error
        if self._index is not None and self._index.position > offset:
            self._index.position = offset
        self._batch.begin(offset)
        if isinstance(self._refusal, StoreFailed):
            raise StoreFailed(*self._refusal.args)
        self.sync_checkpoint(self._checkpoint_token(everything=True, clean=False))

    def begin_at(self, base: int) -> None:
        """Let a log that holds nothing begin at ``base``, where a file begins."""
        assert self._log.min_offset == self._log.end, "only an empty log can begin elsewhere"
        if base == self._log.end:
            return
        for empty in list(self._log.bases):
            self._log.remove(empty)
        self._log.end = self._flushed = base
        self._batch.begin(base)
        if self._index is not None:
            self._index.position = base

    def trim_blank(self) -> None:
        """Right after opening: a blank without a record behind it was never acknowledged and goes. Blocks."""
        file_bytes, end = self._log.file_bytes, self._log.end
        if end % file_bytes or end == self._log.min_offset:
            return
        last = end - file_bytes
        for scanned in Walk(self._log, end - file_bytes, verify_from=None, stop_at=end):
            last = scanned.physical_offset + scanned.size
        self.truncate(last)

    def controls(self, topic: str) -> Iterator[memoryview]:
        """All records of queue 0 of a topic that are still in the log, oldest first."""
        queue = self._queues.get((topic, 0))
        if queue is None:
            return
        for offset in range(queue.min_offset, queue.next_offset):
            unit = queue.unit(offset)
            view = None if unit is None or unit.is_prefill else self._log.view(unit.physical_offset, unit.size)
            if view is not None:
                yield view
