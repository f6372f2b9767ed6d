"""Stream queues: an AMQP queue that is a topic of the log store.

Reading takes nothing away: every consumer has a place of its own and goes on from there; an ack only makes room in its
window. What is published here, RocketMQ clients and Spark read as well, and what they send to the topic is delivered
here. The topic has one queue, so a stream has one line of offsets.

A message keeps what AMQP knows of it among the record's properties (`message_properties`, `stream_message`).

Source: RabbitMQ's streams guide (rabbitmq.com/docs/streams), "Using streams over AMQP 0-9-1".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from stratamq.broker.amqp.consumers import Consumer
from stratamq.broker.amqp.levels import Entry, Level
from stratamq.broker.amqp.messages import Message, encode_address
from stratamq.broker.amqp.queue import Host, Queue
from stratamq.formats import properties as names
from stratamq.protocols.amqp.properties import Facts, decode_properties, encode_properties
from stratamq.protocols.amqp.replies import NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from stratamq.protocols.amqp.values import Table, Timestamp

EXCHANGE: Final = "AMQP_EXCHANGE"
ROUTING_KEY: Final = "AMQP_KEY"
BLOCK: Final = "AMQP_PROPERTIES"
"""Properties of a record: where an AMQP message was published, and its property block as base64."""
OFFSET_HEADER: Final = "x-stream-offset"
FILTER_HEADER: Final = "x-stream-filter-value"
READ_MESSAGES: Final = 64
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]")
_INTERVAL: Final = re.compile(r"(\d{1,9})([YMDhms])")
_SECONDS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_RESERVED: Final = frozenset(
    {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    | {EXCHANGE, ROUTING_KEY, BLOCK}
    | {"PGROUP", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "INSTANCE_ID", "BUYER_ID", "__SHARDINGKEY"}
    | {"CONSUME_START_TIME", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"}
    | {"INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "PUSH_REPLY_TIME"}
)
"""What a header may not become: names that mean something to RocketMQ."""
TOPIC_CHARACTERS_MAX: Final = 127


class StreamRecord(NamedTuple):
    """One record of a topic: its offset, when it was born, body and properties."""

    offset: int
    born_ms: int
    body: bytes
    properties: dict[str, str]


class StreamLog(Protocol):
    """Topics of the log store, as streams use them. Nothing here waits for a disk."""

    def ensure(self, topic: str) -> None:
        """Make the topic with one queue when it is not there. Raises AmqpError 403 or 406."""
        ...

    def delete(self, topic: str) -> None:
        """Delete the topic with its messages."""
        ...

    def put(
        self, topic: str, body: bytes, properties: dict[str, str], born_ms: int, done: Callable[[str], None]
    ) -> None:
        """Store a message; ``done`` gets an empty text when it is as safe as the flush mode says, else why not."""
        ...

    def bounds(self, topic: str) -> tuple[int, int]:
        """First offset, and the one behind the last."""
        ...

    def offset_at(self, topic: str, ms: int) -> int:
        """First offset stored at or after a time."""
        ...

    def read(self, topic: str, offset: int, count: int) -> tuple[Sequence[StreamRecord], int]:
        """Up to ``count`` records from ``offset`` on, and the offset to read on from."""
        ...

    def watch(self, topic: str, arrived: Callable[[], None] | None) -> None:
        """Call ``arrived`` when something comes into the topic; None to stop that."""
        ...


def topic_of(vhost: str, name: str) -> str:
    """The topic of a stream. In virtual host ``/`` a name of letters, digits, - and _ stays as it is.

    Any other character becomes ``%`` and two hex digits for each of its bytes; other virtual hosts stand in front,
    behind ``%vhost%``. So no stream can be a topic that belongs to the broker by its prefix (``%RETRY%``).

    Raises AmqpError 406 when it becomes too long.
    """
    escaped = "".join(_escape(char) for char in name)
    topic = escaped if vhost == "/" else f"%vhost%{''.join(_escape(char) for char in vhost)}%{escaped}"
    if not topic or len(topic) > TOPIC_CHARACTERS_MAX:
        text = f"stream '{name}' in vhost '{vhost}': its topic '{topic[:40]}' has {len(topic)} characters, allowed are"
        raise AmqpError(PRECONDITION_FAILED, f"{text} 1 to {TOPIC_CHARACTERS_MAX}")
    return topic


def _escape(char: str) -> str:
    return char if _PLAIN.fullmatch(char) else "".join(f"%{byte:02X}" for byte in char.encode())


# --- messages to records and back ---


def message_properties(message: Message) -> dict[str, str]:
    """A record's properties for an AMQP message.

    Besides `EXCHANGE`, `ROUTING_KEY` and `BLOCK`: the message id as the key, the filter value as the tag, and headers
    of plain values under their names, so that consumers of the topic can select by them.
    """
    found: dict[str, str] = {}
    known = decode_properties(message.facts.block)
    headers = known.get("headers") or {}
    for name, value in headers.items():
        if name in _RESERVED or not _is_usable(name) or not isinstance(value, str | bool | int | float):
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if _is_usable(text):
            found[name] = text
    message_id = known.get("message_id")
    if message_id and _is_usable(message_id) and " " not in message_id:
        found[names.KEYS] = message_id
    tag = headers.get(FILTER_HEADER)
    if isinstance(tag, str) and tag and _is_usable(tag):
        found[names.TAGS] = tag
    found[EXCHANGE] = message.exchange
    found[ROUTING_KEY] = message.routing_key
    found[BLOCK] = base64.b64encode(message.facts.block).decode()
    return {name: value for name, value in found.items() if _is_usable(value)}


def _is_usable(text: str) -> bool:
    """Whether a text may stand in a record's properties."""
    return bool(text) and "\x01" not in text and "\x02" not in text


def stream_message(record: StreamRecord, queue: str) -> Message:
    """The AMQP message of a record, with its offset among the headers; of any record, whoever sent it."""
    found = record.properties
    exchange, key = found.get(EXCHANGE, ""), found.get(ROUTING_KEY, queue if BLOCK not in found else "")
    properties = _block_properties(found.get(BLOCK))
    if properties is None:
        exchange, key = "", queue
        properties = {
            "headers": {name: value for name, value in found.items() if name not in _RESERVED or name in _SHOWN},
            "delivery_mode": 2,
            "message_id": found.get(names.UNIQ_KEY, "")[:255] or None,
            "timestamp": record.born_ms // 1000,
        }
    properties["headers"] = {**(properties.get("headers") or {}), OFFSET_HEADER: record.offset}
    exchange, key = exchange.encode()[:255].decode(errors="ignore"), key.encode()[:255].decode(errors="ignore")
    block = encode_properties(properties)
    return Message(exchange, key, encode_address(exchange, key), Facts(block), record.body, record.born_ms)


_SHOWN: Final = (names.KEYS, names.TAGS)


def _block_properties(text: str | None) -> dict[str, Any] | None:
    """The properties that a record keeps of an AMQP message; None for a record that is not, or pretends to be, one."""
    if text is None:
        return None
    try:
        return decode_properties(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, AmqpError):
        return None


# --- where a consumer begins ---


def start_offset(log: StreamLog, topic: str, value: Any, now_ms: int) -> int:
    """The offset that ``x-stream-offset`` means: first, last, next, a number, a timestamp, or an interval such as 1h.

    Raises AmqpError 406 for anything else.
    """
    first, end = log.bounds(topic)
    if value is None or value == "next":
        return end
    if value == "first":
        return first
    if value == "last":
        return max(first, end - 1)
    if isinstance(value, Timestamp):
        return log.offset_at(topic, int(value) * 1000)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(first, min(value, end))
    match = _INTERVAL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        text = f"invalid arg 'x-stream-offset': {value!r}; allowed are first, last, next, an offset, a timestamp, and"
        raise AmqpError(PRECONDITION_FAILED, f"{text} an interval such as 1h")
    return log.offset_at(topic, now_ms - int(match[1]) * _SECONDS[match[2]] * 1000)


class _NothingToAck:
    """What stands for a store where nothing is taken away."""

    count = 0

    def ack(self, seqs: Sequence[int]) -> None:
        """Messages of a stream stay."""


class _Cursor:
    """Where one consumer is."""

    __slots__ = ("buffer", "offset", "wanted")

    def __init__(self, offset: int, wanted: frozenset[str]) -> None:
        self.offset = offset
        self.buffer: deque[Message] = deque()
        self.wanted = wanted


class StreamQueue(Queue):
    """One stream of a virtual host."""

    is_stream = True

    def __init__(self, host: Host, name: str, vhost: str, log: StreamLog, *, arguments: Table) -> None:
        """Raises AmqpError when the topic cannot be had."""
        self._log = log
        self._cursors: dict[Consumer, _Cursor] = {}
        self.topic = topic_of(vhost, name)
        log.ensure(self.topic)
        super().__init__(host, name, vhost, [], durable=True, arguments=arguments)
        self._level = Level(_NothingToAck())  # type: ignore[arg-type]
        log.watch(self.topic, self._arrived)

    def _arrived(self) -> None:
        if self._cursors:
            self.host.mark_dirty(self)

    @property
    def ready(self) -> int:
        """How many messages the stream holds."""
        first, end = self._log.bounds(self.topic)
        return max(0, end - first)

    @ready.setter
    def ready(self, value: int) -> None:
        """The log counts; nobody else does."""

    # --- publishing ---

    def publish(self, message: Message, done: Callable[[str], None]) -> None:
        """Append a message; ``done`` gets an empty text, or why it was not stored."""
        self.traffic.publish += 1
        self._log.put(self.topic, message.body, message_properties(message), message.born_ms, done)

    def refuses(self, body_bytes: int) -> bool:
        return False

    def enforce_length(self) -> None:
        """What goes is the log's retention to decide."""

    # --- taking ---

    def check_consume(self, arguments: Table, *, no_ack: bool, prefetch: int, global_prefetch: int) -> None:
        """Refuse a consumer that a stream cannot have. Raises AmqpError 406 or 540."""
        what = f"queue '{self.name}' in vhost '{self.vhost}'"
        if no_ack:
            raise AmqpError(NOT_IMPLEMENTED, f"{what} does not support automatic acknowledgement")
        if global_prefetch:
            raise AmqpError(NOT_IMPLEMENTED, f"{what} does not support global qos")
        if not prefetch:
            raise AmqpError(PRECONDITION_FAILED, f"consumer prefetch count is not set for {what}")
        start_offset(self._log, self.topic, arguments.get(OFFSET_HEADER), self.host.now_ms)
        _filter_of(arguments)

    def take(self) -> Entry | None:
        raise AmqpError(NOT_IMPLEMENTED, f"basic.get is not supported by stream queue '{self.name}'")

    def head(self) -> Entry | None:
        return None

    def drop_expired(self, *, strictly: bool = False) -> None:
        """Messages of a stream do not expire one by one."""

    def purge(self) -> int:
        raise AmqpError(NOT_IMPLEMENTED, f"queue.purge is not supported by stream queue '{self.name}'")

    def dispatch(self) -> None:
        """Give every consumer what it has room for."""
        consumers = list(self.consumers)
        for gone in [consumer for consumer in self._cursors if consumer not in consumers]:
            del self._cursors[gone]
        if self.consumers.single_active:
            consumers = consumers[:1]
        for consumer in consumers:
            cursor = self._cursors.get(consumer) or self._open_cursor(consumer)
            while consumer.has_credit:
                if not cursor.buffer and not self._fill(cursor):
                    break
                message = cursor.buffer.popleft()
                entry = Entry(int(message.born_ms), message, self._level, None)
                self.unacked += 1
                consumer.unacked += 1
                consumer.channel.deliver(consumer, entry)

    def _open_cursor(self, consumer: Consumer) -> _Cursor:
        begin = start_offset(self._log, self.topic, consumer.arguments.get(OFFSET_HEADER), self.host.now_ms)
        cursor = self._cursors[consumer] = _Cursor(begin, _filter_of(consumer.arguments))
        return cursor

    def _fill(self, cursor: _Cursor) -> bool:
        """Read on; False when there is nothing more. One call reads a bounded number of records."""
        records, following = self._log.read(self.topic, cursor.offset, READ_MESSAGES)
        if following <= cursor.offset:
            return False
        cursor.offset = following
        wanted = cursor.wanted
        for record in records:
            if not wanted or record.properties.get(names.TAGS) in wanted:
                cursor.buffer.append(stream_message(record, self.name))
        if not cursor.buffer:
            self.host.mark_dirty(self)  # look on in the next round, not in this one
        return bool(cursor.buffer)

    # --- settling: it only makes room ---

    def reject(self, entry: Entry, reason: str = "") -> None:
        self.unacked -= 1

    def give_back(self, entries: Any, *, counts: bool = True) -> None:
        self.unacked -= sum(1 for _ in entries)

    def close(self) -> None:
        """The queue is deleted."""
        self._cursors.clear()
        self._log.watch(self.topic, None)
        self._log.delete(self.topic)


def _filter_of(arguments: Table) -> frozenset[str]:
    """The values of ``x-stream-filter``. Raises AmqpError 406."""
    value = arguments.get("x-stream-filter")
    if value is None:
        return frozenset()
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in values):
        raise AmqpError(PRECONDITION_FAILED, "invalid arg 'x-stream-filter': it must be text, or a list of texts")
    return frozenset(values)
