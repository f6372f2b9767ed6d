"""Topics of this process's log store as AMQP streams see them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from stratamq.broker.amqp.streams import StreamRecord
from stratamq.broker.broker import Broker
from stratamq.broker.delays import STORED
from stratamq.broker.topics import PERM_READ, PERM_WRITE, is_system_topic
from stratamq.errors import FlowControlled, ReadPending, ServiceUnavailable
from stratamq.formats import properties as names
from stratamq.formats.message import SYS_COMPRESSED, SYS_COMPRESSION_MASK, SYS_COMPRESSION_ZLIB, Record, decode_records
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.logstore.types import GetStatus, Message, PutResult
from stratamq.protocols.amqp.replies import ACCESS_REFUSED, PRECONDITION_FAILED, AmqpError
from stratamq.tiered.store import TieredStore
from stratamq.units import MiB

BODY_BYTES_MAX: Final = 64 * MiB
"""Most that a compressed body may become."""
READ_BYTES: Final = MiB
_log = logging.getLogger(__name__)


class BrokerStreams:
    """`broker.amqp.streams.StreamLog` over a RocketMQ broker: its topics, its store, its arrivals."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def ensure(self, topic: str) -> None:
        if is_system_topic(topic) or topic in self._broker.own_topics:
            raise AmqpError(ACCESS_REFUSED, f"topic {topic} belongs to the broker, it cannot be a stream")
        config = self._broker.topics.ensure(topic, queues=1, perm=PERM_READ | PERM_WRITE)
        if config.queues != 1:
            text = f"topic {topic} has {config.queues} queues; a stream has one line of offsets and needs exactly 1"
            raise AmqpError(PRECONDITION_FAILED, text)

    def delete(self, topic: str) -> None:
        self._broker.delete_topic(topic)

    def put(
        self, topic: str, body: bytes, properties: dict[str, str], born_ms: int, done: Callable[[str], None]
    ) -> None:
        broker = self._broker
        if not broker.is_accepting:
            done("the broker is stopping")
            return
        properties.setdefault(names.UNIQ_KEY, broker.sending.next_unique_key())
        message = Message(
            topic=topic,
            queue_id=0,
            body=body,
            properties=encode_properties(properties),
            born_timestamp=born_ms,
            born_host=broker.address.host_bytes,
        )

        def stored(result: PutResult) -> None:
            if result.status in STORED:
                broker.counters.messages_put += 1
                broker.counters.bytes_put += len(body)
                done("")
            else:
                broker.counters.puts_failed += 1
                done(result.remark or result.status.value)

        broker.committer.put((message,), stored)

    def bounds(self, topic: str) -> tuple[int, int]:
        store = self._broker.store
        return store.min_offset(topic, 0), store.max_offset(topic, 0)

    def offset_at(self, topic: str, ms: int) -> int:
        store = self._broker.store
        try:
            return store.offset_by_time(topic, 0, ms)
        except ReadPending:  # in the cold tier: some messages before the time come too, as with RabbitMQ's chunks
            return store.offset_before_time(topic, 0, ms) if isinstance(store, TieredStore) else self.bounds(topic)[0]

    def read(self, topic: str, offset: int, count: int) -> tuple[Sequence[StreamRecord], int]:
        try:
            found = self._broker.store.get(topic, 0, offset, count, max_bytes=READ_BYTES)
        except ReadPending as pending:
            pending.when_ready(lambda: self._broker.watchers.get(topic, _nobody)(0))
            return (), offset
        except (ServiceUnavailable, FlowControlled) as error:
            _log.warning("stream %s cannot be read at offset %d: %s", topic, offset, error)
            return (), offset
        if found.status is GetStatus.FOUND:
            return [_stream_record(record) for record in decode_records(found.records)], found.next_offset
        if found.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL):
            return (), found.next_offset  # cleaned away meanwhile: go on with what is left
        return (), offset

    def watch(self, topic: str, arrived: Callable[[], None] | None) -> None:
        if arrived is None:
            self._broker.watchers.pop(topic, None)
        else:
            self._broker.watchers[topic] = lambda queue_id: arrived()


def _nobody(queue_id: int) -> None:
    """Nobody reads the stream any more."""


def _stream_record(record: Record) -> StreamRecord:
    body = record.body
    if record.sys_flag & SYS_COMPRESSED and record.sys_flag & SYS_COMPRESSION_MASK in (0, SYS_COMPRESSION_ZLIB):
        body = _inflated(body)
    return StreamRecord(record.queue_offset, record.born_timestamp, body, decode_properties(record.properties))


def _inflated(body: bytes) -> bytes:
    """What a RocketMQ client compressed; the bytes as they are when they are no zlib stream."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, BODY_BYTES_MAX)
    except zlib.error:
        return body
    return data if stream.eof else body
