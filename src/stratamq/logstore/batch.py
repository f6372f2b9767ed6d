"""The batch being collected: messages become records, offsets are assigned, nothing is written yet.

All of one `append` call lies in one file, one record behind the other. A batch can be taken back as a whole.
This is the hottest code of the store: about 2 us a message of 128 bytes. What repeats is looked up, not computed: the
queue carries its topic's bytes, the record head is one struct call.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
    encode_blank,
    head_struct,
)
from stratamq.formats.properties import PROPERTIES_BYTES_MAX
from stratamq.logstore.commit_log import Segment
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.dispatch import unit_tags_code
from stratamq.logstore.layout import QUEUE_ID_MAX, RETRY_PREFIX, RETRY_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX, is_topic_name
from stratamq.logstore.queue_table import QueueTable
from stratamq.logstore.types import Appended, Message
from stratamq.units import Buffer

CLOCK_STEP_MS: Final = 3_000
"""The clock may step back so far without store times doing so too; a larger step is believed."""
_HOST_FLAGS: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_I32_MAX: Final = 2**31 - 1
_I64_MAX: Final = 2**63 - 1

_Prepared = tuple[Message, ConsumeQueue, bytes, bytes, int]
IndexRow = tuple[str, str, int, int]
"""What the index needs of a record: topic, properties, physical offset, store time."""


class Batch:
    """What was appended since the last commit. Not thread-safe."""

    def __init__(
        self, *, config: StoreConfig, clock: Clock, queues: QueueTable, store_host: bytes, delay_levels: tuple[int, ...]
    ) -> None:
        self._clock = clock
        self._queues = queues
        self._delay_levels = delay_levels
        self._file_bytes = config.commit_log_file_bytes
        self._body_bytes_max = config.message_body_bytes_max
        self._batch_bytes_max = config.pending_bytes_max
        self._index_enabled = config.index_enabled
        self.set_store_host(store_host)
        self.last_store_timestamp = 0
        self.begin(0)

    def set_store_host(self, store_host: bytes) -> None:
        """The host that records carry from now on, 8 or 20 bytes."""
        if len(store_host) not in (8, 20):
            raise ValueError(f"a store host has 8 or 20 bytes, this has {len(store_host)}")
        self.store_host = store_host
        self._store_flag = SYS_STORE_HOST_V6 if len(store_host) == 20 else 0

    def begin(self, position: int) -> None:
        """Start an empty batch at physical offset ``position``."""
        self.start = self.position = position
        self._parts: list[Buffer] = []
        self.segments: list[Segment] = [Segment(position, self._parts)]
        self.touched: list[ConsumeQueue] = []
        self.index_rows: list[IndexRow] = []

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
        """
        prepared = self._prepare(messages)
        total = sum([entry[4] for entry in prepared])
        file_bytes = self._file_bytes
        room = file_bytes - self.position % file_bytes
        if total + BLANK_BYTES > room:
            if total + BLANK_BYTES > file_bytes:
                raise MessageRefused("record size", f"{total} bytes", f"at most {file_bytes - BLANK_BYTES} bytes")
            self._check_size(total + room)
            self._roll(room)
        else:
            self._check_size(total)
        now: int = self._clock.wall_ms()
        if self.last_store_timestamp - CLOCK_STEP_MS < now < self.last_store_timestamp:
            now = self.last_store_timestamp
        self.last_store_timestamp = now
        return [self._add(entry, now) for entry in prepared]

    def _check_size(self, more: int) -> None:
        if self.size and self.size + more > self._batch_bytes_max:
            raise FlowControlled(
                f"{self.size} bytes wait for commit(), which is as much as pending_bytes_max allows; commit first"
            )

    def _roll(self, room: int) -> None:
        """End the file with a blank record; what follows goes to the next."""
        self._parts.append(encode_blank(room))
        self.position += room
        self._parts = []
        self.segments.append(Segment(self.position, self._parts))

    def _add(self, entry: _Prepared, now: int) -> Appended:
        message, queue, body, properties, size = entry
        position = self.position
        transaction = message.sys_flag & SYS_TRANSACTION_MASK
        if transaction == 0 or transaction == SYS_TRANSACTION_COMMIT:
            queue_offset = queue.next_offset
            if queue.batch_start < 0:
                queue.batch_start = queue.next_offset
                self.touched.append(queue)
            queue.next_offset = queue_offset + 1
            code = unit_tags_code(message.topic, message.properties, now, self._delay_levels)
            queue.pending += UNIT.pack(position, size, code)
            queue.codes.append(code)
        else:
            queue_offset = 0
        born_host = message.born_host
        sys_flag = message.sys_flag & ~_HOST_FLAGS | self._store_flag
        if len(born_host) == 20:
            sys_flag |= SYS_BORN_HOST_V6
        head = HEAD_V4 if not sys_flag & _HOST_FLAGS else head_struct(sys_flag)
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
            queue.topic_part,
            len(properties).to_bytes(2, "big"),
            properties,
        )
        if self._index_enabled and transaction != SYS_TRANSACTION_ROLLBACK and properties:
            self.index_rows.append((message.topic, message.properties, position, now))
        self.position = position + size
        return Appended(position, size, queue_offset, now)

    def _prepare(self, messages: Sequence[Message]) -> list[_Prepared]:
        """Check every message and take copies of what its caller could change."""
        prepared = []
        queues = self._queues
        for message in messages:
            queue = queues.get((message.topic, message.queue_id))
            if queue is None:
                queue = self._new_queue(message)
            body = message.body
            if type(body) is not bytes:
                body = bytes(body)
            try:
                properties = message.properties.encode()
            except UnicodeEncodeError as error:
                raise MessageRefused("properties", f"text that has no UTF-8 form ({error.reason})", "text") from None
            if len(body) > self._body_bytes_max:
                raise MessageRefused("body", f"{len(body)} bytes", f"at most {self._body_bytes_max} bytes")
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise MessageRefused("properties", f"{len(properties)} bytes", f"at most {PROPERTIES_BYTES_MAX} bytes")
            check_fields(message)
            size = HEAD_V4.size + 2 + len(body) + len(queue.topic_part) + len(properties)
            if len(message.born_host) == 20:
                size += 12
            if self._store_flag:
                size += 12
            prepared.append((message, queue, body, properties, size))
        return prepared

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
    if message.sys_flag & (SYS_INNER_BATCH | SYS_NEED_UNWRAP):
        raise MessageRefused("sys flag", hex(message.sys_flag), "no inner batch (queue type BatchCQ is not supported)")
    if len(message.born_host) not in (8, 20):
        raise MessageRefused("born host", f"{len(message.born_host)} bytes", "8 or 20 bytes")
    if not (
        -_I32_MAX <= message.flag <= _I32_MAX
        and 0 <= message.sys_flag <= _I32_MAX
        and 0 <= message.reconsume_times <= _I32_MAX
        and -_I64_MAX <= message.born_timestamp <= _I64_MAX
        and -_I64_MAX <= message.prepared_transaction_offset <= _I64_MAX
    ):
        raise MessageRefused("number", "one that does not fit its field", "32-bit flags and 64-bit times")
