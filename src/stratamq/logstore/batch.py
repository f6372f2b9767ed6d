"""The batch being collected: messages become records, offsets are assigned, nothing is written yet.

All of one `append` call lies in one file, one record behind the other. A batch can be taken back as a whole.
This is the hottest code of the store: about 2 us a message of 128 bytes. What repeats is looked up, not computed: the
queue carries its topic's bytes, the record head is one struct call.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from stratamq.clock import Clock
from stratamq.config import StoreConfig
from stratamq.errors import FlowControlled, MessageRefused
from stratamq.formats.consume_queue import UNIT
from stratamq.formats.message import (
    BLANK_BYTES,
    CRC_MASK,
    HEAD_V4,
    SYS_BORN_HOST_V6,
    SYS_HOSTS_V6,
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_PREPARED,
    encode_blank,
    head_struct,
)
from stratamq.formats.properties import PROPERTIES_BYTES_MAX
from stratamq.logstore.commit_log import Segment
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.dispatch import unit_tags_code
from stratamq.logstore.layout import QUEUE_ID_MAX, RETRY_PREFIX, RETRY_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX, is_topic_name
from stratamq.logstore.light_queues import INNER_MARK
from stratamq.logstore.queue_table import QueueTable
from stratamq.logstore.types import Appended, Message
from stratamq.units import Buffer

CLOCK_STEP_MS: Final = 3_000
"""The clock may step back so far without store times doing so too; a larger step is believed."""
_I32_MAX: Final = 2**31 - 1
_I64_MAX: Final = 2**63 - 1

Prepared = tuple[Message, ConsumeQueue, bytes, bytes, int]
IndexRow = tuple[str, str, int, int, int]
"""What the index needs of a record: topic, properties, physical offset, store time, sys flag."""


class NeedsCare(Exception):
    """A message is not one record with one unit: `careful_append` takes it."""


class Batch:
    """What was appended since the last commit. Not thread-safe."""

    def __init__(
        self, *, config: StoreConfig, clock: Clock, queues: QueueTable, store_host: bytes, delay_levels: tuple[int, ...]
    ) -> None:
        self._wall_ms = clock.wall_ms
        self._queues = queues
        self._plain = queues.plain
        self.dispatches_to_light_queues = config.dispatches_to_light_queues
        self.light_queues_max = config.light_queues_max
        self.delay_levels = delay_levels
        self.file_bytes = config.commit_log_file_bytes
        self.body_bytes_max = config.message_body_bytes_max
        self._batch_bytes_max = config.pending_bytes_max
        self.index_enabled = config.index_enabled
        self.set_store_host(store_host)
        self.last_store_timestamp = 0
        self.begin(0)

    def set_store_host(self, store_host: bytes) -> None:
        """The host that records carry from now on, 8 or 20 bytes."""
        if len(store_host) not in (8, 20):
            raise ValueError(f"a store host has 8 or 20 bytes, this has {len(store_host)}")
        self.store_host = store_host
        self._store_flag = SYS_STORE_HOST_V6 if len(store_host) == 20 else 0
        self._fixed_bytes = HEAD_V4.size + 2 + len(store_host) - 8

    def begin(self, position: int) -> None:
        """Start an empty batch at physical offset ``position``."""
        self.start = self.position = position
        self._parts: list[Buffer] = []
        self.segments: list[Segment] = [Segment(position, self._parts)]
        self.touched: list[ConsumeQueue] = []
        self.index_rows: list[IndexRow] = []

    def replace(self, queue: ConsumeQueue, following: ConsumeQueue) -> None:
        """The batch's messages for ``queue`` are in ``following`` now."""
        self.touched[self.touched.index(queue)] = following

    @property
    def size(self) -> int:
        """Bytes collected, blanks included."""
        return self.position - self.start

    def undo(self) -> None:
        """Take everything back: the queues' offsets and the position are what they were when the batch began."""
        for queue in self.touched:
            queue.drop_batch()
        self.begin(self.start)

    def append(self, messages: Sequence[Message]) -> list[Appended]:
        """Add the messages of one put. Either all are taken or none.

        Raises:
            MessageRefused: A message breaks a limit, or all together do not fit one commit-log file.
            FlowControlled: Too much is collected without a commit.
            NeedsCare: Some are for `careful_append`; nothing was taken.
        """
        if len(messages) == 1:
            prepared = [self.prepare(messages[0])]
            total = prepared[0][4]
        else:
            prepared = [self.prepare(message) for message in messages]
            total = sum([entry[4] for entry in prepared])
        position = self.position
        room = self.file_bytes - position % self.file_bytes
        if total + BLANK_BYTES > room or position - self.start + total > self._batch_bytes_max:
            self._make_room(total, room)
        now = self._now()
        return [self._add(entry, now) for entry in prepared]

    # --- for `careful_append` ---

    def begin_together(self, total: int) -> int:
        """Make room for so many bytes side by side. Returns their store time. Raises MessageRefused, FlowControlled."""
        self._make_room(total, self.file_bytes - self.position % self.file_bytes)
        return self._now()

    def touch(self, queue: ConsumeQueue) -> None:
        """Note that the batch is about to add to a queue."""
        if queue.batch_start < 0:
            queue.batch_start = queue.next_offset
            self.touched.append(queue)

    @property
    def queues(self) -> QueueTable:
        """All queues of the store."""
        return self._queues

    def _now(self) -> int:
        """Store time of what is appended now."""
        now: int = self._wall_ms()
        last = self.last_store_timestamp
        if now != last:
            if last - CLOCK_STEP_MS < now < last:
                return last
            self.last_store_timestamp = now
        return now

    # --- for `bulk_append` ---

    def queue_of(self, message: Message) -> ConsumeQueue:
        """The queue that a message belongs to. Raises MessageRefused."""
        queue = self._queues.get((message.topic, message.queue_id))
        return self._new_queue(message) if queue is None else queue

    def begin_call(self, total: int) -> int:
        """Make sure that so many bytes may be collected. Returns their store time. Raises FlowControlled."""
        self._check_size(total)
        return self._now()

    def add_parts(self, parts: Iterable[Buffer], size: int) -> None:
        """Add pieces of records, ``size`` bytes together, which fit into the file."""
        self._parts += parts
        self.position += size

    def roll(self) -> None:
        """End the file with a blank record; what follows goes to the next."""
        room = self.file_bytes - self.position % self.file_bytes
        self._parts.append(encode_blank(room))
        self.position += room
        self._parts = []
        self.segments.append(Segment(self.position, self._parts))

    def _check_size(self, more: int) -> None:
        if self.size and self.size + more > self._batch_bytes_max:
            raise FlowControlled(
                f"{self.size} bytes wait for commit(), which is as much as pending_bytes_max allows; commit first"
            )

    def _make_room(self, total: int, room: int) -> None:
        """Go on to the next file when ``total`` bytes do not fit into the ``room`` left in this one; or refuse."""
        if total + BLANK_BYTES > self.file_bytes:
            longest = self.file_bytes - BLANK_BYTES
            raise MessageRefused("record size", f"{total} bytes", f"at most {longest} bytes")
        rolls = total + BLANK_BYTES > room
        self._check_size(total + (room if rolls else 0))
        if rolls:
            self.roll()

    def prepare(self, message: Message, queue: ConsumeQueue | None = None) -> Prepared:
        """Check a message and take copies of what its caller could change.

        With ``queue`` its queue is known and what its properties say of other queues has been seen to.
        Raises MessageRefused, NeedsCare.
        """
        if queue is None:
            queue = self._plain.get((message.topic, message.queue_id))
            if queue is None:
                queue = self.queue_of(message)
                if queue.is_batch:
                    raise NeedsCare
            if INNER_MARK in message.properties:
                raise NeedsCare
        body = message.body
        if type(body) is not bytes:
            body = bytes(body)
        try:
            properties = message.properties.encode()
        except UnicodeEncodeError as error:
            raise MessageRefused("properties", f"text that has no UTF-8 form ({error.reason})", "text") from None
        properties_bytes = len(properties)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise MessageRefused("properties", f"{properties_bytes} bytes", f"at most {PROPERTIES_BYTES_MAX} bytes")
        body_bytes = len(body)
        if body_bytes > self.body_bytes_max:
            raise MessageRefused("body", f"{body_bytes} bytes", f"at most {self.body_bytes_max} bytes")
        size = self._fixed_bytes + body_bytes + queue.topic_bytes + properties_bytes
        if len(message.born_host) != 8:
            size += 12
        if (
            message.flag
            or message.sys_flag
            or message.reconsume_times
            or message.prepared_transaction_offset
            or not 0 <= message.born_timestamp <= _I64_MAX
            or len(message.born_host) != 8
        ):
            check_fields(message)
            if message.sys_flag & (SYS_INNER_BATCH | SYS_NEED_UNWRAP) and INNER_MARK not in message.properties:
                raise MessageRefused("sys flag", hex(message.sys_flag), "an inner batch only with property INNER_NUM")
        tail = queue.topic_part + properties_bytes.to_bytes(2, "big") + properties
        return message, queue, body, tail, size

    def _add(self, entry: Prepared, now: int) -> Appended:
        message, queue, body, tail, size = entry
        position = self.position
        sys_flag = message.sys_flag
        queue_offset = 0
        if not sys_flag & SYS_TRANSACTION_PREPARED:  # neither prepared nor rolled back
            queue_offset = queue.next_offset
            if queue.batch_start < 0:
                queue.batch_start = queue_offset
                self.touched.append(queue)
            queue.next_offset = queue_offset + 1
            code = unit_tags_code(message.topic, message.properties, now, self.delay_levels)
            queue.pending += UNIT.pack(position, size, code)
            queue.codes.append(code)
        born_host = message.born_host
        sys_flag = sys_flag & ~SYS_HOSTS_V6 | self._store_flag
        if len(born_host) == 20:
            sys_flag |= SYS_BORN_HOST_V6
        head = head_struct(sys_flag) if sys_flag else HEAD_V4
        self._parts += (
            head.pack(
                size,
                queue.magic,
                zlib.crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                position,
                sys_flag,
                message.born_timestamp,
                born_host,
                now,
                self.store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(body),
            ),
            body,
            tail,
        )
        if self.index_enabled:
            self.index_rows.append((message.topic, message.properties, position, now, sys_flag))
        self.position = position + size
        return Appended(position, size, queue_offset, now)

    def _new_queue(self, message: Message) -> ConsumeQueue:
        topic = message.topic
        topic_bytes = len(topic.encode("utf-8", "surrogatepass"))
        longest = RETRY_TOPIC_BYTES_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
        if topic_bytes > longest:
            raise MessageRefused("topic", f"{topic_bytes} bytes long", f"at most {longest} bytes")
        if not is_topic_name(topic):
            raise MessageRefused("topic", repr(topic), "one or more of A-Z a-z 0-9 _ - % |")
        if not 0 <= message.queue_id <= QUEUE_ID_MAX:
            raise MessageRefused("queue id", message.queue_id, f"0 to {QUEUE_ID_MAX}")
        return self._queues.open(topic, message.queue_id)


def check_fields(message: Message) -> None:
    """Check the numbers and hosts of a message against their fields in the record. Raises MessageRefused."""
    if len(message.born_host) not in (8, 20):
        raise MessageRefused("born host", f"{len(message.born_host)} bytes", "8 or 20 bytes")
    numbers: tuple[int, ...] = (message.flag, message.sys_flag, message.reconsume_times)
    if not all(-_I32_MAX <= number <= _I32_MAX for number in numbers):
        raise MessageRefused("flag, sys flag or reconsume times", numbers, "32-bit numbers")
    numbers = (message.born_timestamp, message.prepared_transaction_offset)
    if not all(-_I64_MAX <= number <= _I64_MAX for number in numbers):
        raise MessageRefused("born timestamp or prepared transaction offset", numbers, "64-bit numbers")
