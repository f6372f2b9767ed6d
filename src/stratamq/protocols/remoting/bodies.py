"""Request and answer bodies that are JSON, and the batch body of sends.

On input every dialect that clients are known to write is taken: enums by name or by Java ordinal, numbers as text,
missing members, fastjson's unquoted integer keys. Maps from a message queue to something are written in fastjson's
way, with the queue object itself as the key, which no JSON parser but fastjson reads: that is what Java peers expect.

Source: apache/rocketmq remoting/.../heartbeat/*.java, body/*.java; common/.../MessageDecoder.java.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from stratamq.errors import MessageIllegal, RemoteProtocolError
from stratamq.protocols.remoting.codes import ResponseCode
from stratamq.units import Buffer

_CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)

CLIENT_ID_CHARACTERS_MAX: Final = 1024
GROUPS_PER_CLIENT_MAX: Final = 4096


class MessageQueue(NamedTuple):
    """One queue of a topic on a broker."""

    topic: str
    broker_name: str
    queue_id: int

    def as_json(self) -> dict[str, object]:
        """The members as peers name them."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


@dataclass(frozen=True, slots=True)
class SubscriptionEntry:
    """What one consumer group member says it subscribes to."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    """One consumer of a heartbeat."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[SubscriptionEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The body of HEART_BEAT (34). ``is_without_subscriptions`` is heartbeat V2's short form."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerEntry, ...] = ()
    is_without_subscriptions: bool = field(default=False)


def load_json(body: Buffer) -> Any:
    """Parse a JSON body. Raises RemoteProtocolError (reply hint SYSTEM_ERROR) when it is none."""
    try:
        value = json.loads(bytes(body), strict=False)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair would poison what it is stored in
        return value
    except (ValueError, RecursionError) as error:
        raise body_error(f"body of {len(body)} bytes is not JSON: {error}") from error


def load_object(body: Buffer) -> dict[str, Any]:
    """Parse a body that must be a JSON object."""
    value = load_json(body)
    if not isinstance(value, dict):
        raise body_error("body must be a JSON object")
    return value


def body_error(text: str) -> RemoteProtocolError:
    """The error for a body that cannot be used; it is answered, not fatal to the connection."""
    return RemoteProtocolError(text, reply_hint=ResponseCode.SYSTEM_ERROR)


def decode_heartbeat(body: Buffer) -> Heartbeat:
    """Read a heartbeat in any dialect. Raises RemoteProtocolError when it names no client."""
    data = load_object(body)
    client_id = data.get("clientID") or data.get("clientId")
    if not isinstance(client_id, str):
        raise body_error("heartbeat without a clientID")
    producers = [_text(entry.get("groupName")) for entry in _objects(data.get("producerDataSet"))]
    entries = _objects(data.get("consumerDataSet"))
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX or max(len(producers), len(entries)) > GROUPS_PER_CLIENT_MAX:
        raise body_error(
            f"a client has an id of at most {CLIENT_ID_CHARACTERS_MAX} characters and {GROUPS_PER_CLIENT_MAX} groups"
        )
    consumers = [_consumer(entry) for entry in entries]
    return Heartbeat(
        client_id=client_id,
        producer_groups=tuple(group for group in producers if group),
        consumers=tuple(consumer for consumer in consumers if consumer.group),
        is_without_subscriptions=_truth(data.get("withoutSub")) or _truth(data.get("isWithoutSub")),
    )


def _consumer(entry: Mapping[str, Any]) -> ConsumerEntry:
    subscriptions = [_subscription(item) for item in _objects(entry.get("subscriptionDataSet"))]
    return ConsumerEntry(
        group=_text(entry.get("groupName")),
        consume_type=_enum(entry.get("consumeType"), _CONSUME_TYPES, "CONSUME_PASSIVELY"),
        message_model=_enum(entry.get("messageModel"), _MESSAGE_MODELS, "CLUSTERING"),
        consume_from=_enum(entry.get("consumeFromWhere"), _CONSUME_FROM, "CONSUME_FROM_LAST_OFFSET"),
        subscriptions=tuple(subscription for subscription in subscriptions if subscription.topic),
    )


def _subscription(entry: Mapping[str, Any]) -> SubscriptionEntry:
    return SubscriptionEntry(
        topic=_text(entry.get("topic")),
        expression=_text(entry.get("subString")) or "*",
        expression_type=_text(entry.get("expressionType")) or "TAG",
        version=_number(entry.get("subVersion")),
    )


def decode_subscription(body: Buffer) -> tuple[str, str, SubscriptionEntry | None]:
    """The body of CHECK_CLIENT_CONFIG (46): client id, group, subscription."""
    data = load_object(body)
    entry = data.get("subscriptionData")
    subscription = _subscription(entry) if isinstance(entry, dict) else None
    return _text(data.get("clientId")), _text(data.get("group")), subscription


@dataclass(frozen=True, slots=True)
class LockRequest:
    """The body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]


def decode_lock_request(body: Buffer) -> LockRequest:
    """Read the body of a lock or unlock request."""
    data = load_object(body)
    queues = tuple(
        MessageQueue(_text(entry.get("topic")), _text(entry.get("brokerName")), _number(entry.get("queueId")))
        for entry in _objects(data.get("mqSet"))
    )
    return LockRequest(_text(data.get("consumerGroup")), _text(data.get("clientId")), queues)


def encode_queue_map(queues: Iterable[tuple[MessageQueue, Mapping[str, object]]]) -> str:
    """JSON text of a map from message queue to object, fastjson's way: the object itself is the key."""
    entries = (f"{dump(queue.as_json())}:{dump(value)}" for queue, value in queues)
    return "{" + ",".join(entries) + "}"


def encode_queue_numbers(queues: Iterable[tuple[MessageQueue, int]]) -> str:
    """JSON text of a map from message queue to number, fastjson's way: the object itself is the key."""
    return "{" + ",".join(f"{dump(queue.as_json())}:{number}" for queue, number in queues) + "}"


_NOT_PLAIN: Final = re.compile(r'["{}\[\]]')
_STRING_END: Final = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)


def member_text(body: Buffer, name: str) -> str | None:
    """The text of an object that is a member of the object in ``body``, as it stands there; None when there is none.

    For answers in fastjson's dialect that are only handed on: brackets and strings are matched, nothing is parsed.
    """
    text = str(bytes(body), "utf-8", "replace")
    at, depth, begin = 0, 0, -1
    while (found := _NOT_PLAIN.search(text, at)) is not None:
        mark, at = found[0], found.end()
        if mark == '"':
            end = _STRING_END.match(text, at)
            if end is None:
                return None
            is_name = depth == 1 and text[at : end.end() - 1] == name
            at = end.end()
            follows = _MEMBER.match(text, at) if is_name else None
            if follows is not None:
                begin, at, depth = follows.end() - 1, follows.end(), depth + 1
        elif mark in "{[":
            depth += 1
        else:
            depth -= 1
            if begin >= 0 and depth == 1:
                return text[begin:at]
    return None


_MEMBER: Final = re.compile(r"\s*:\s*\{")


def dump(value: object) -> str:
    """Compact JSON text: no blank anywhere, because some clients cut texts by hand."""
    return msgspec.json.encode(value).decode()


# --- batches ------------------------------------------------------------------------------------------------------


class BatchItem(NamedTuple):
    """One message of a batch body."""

    flag: int
    body: memoryview
    properties: str


_BATCH_HEAD: Final = struct.Struct(">iiiii")
_I16: Final = struct.Struct(">h")
BATCH_ITEM_BYTES_MIN: Final = _BATCH_HEAD.size + 2


def decode_batch(body: memoryview) -> list[BatchItem]:
    """Cut a batch body into its messages.

    Layout of an item, big-endian: size i32 (itself included) | magic i32 | CRC i32 | flag i32 | body length i32, body |
    properties length i16, properties.

    Raises MessageIllegal when lengths do not fit or nothing is in it.
    """
    items: list[BatchItem] = []
    at, end = 0, len(body)
    while at < end:
        if end - at < BATCH_ITEM_BYTES_MIN:
            raise MessageIllegal(f"batch item at byte {at}: {end - at} bytes left, an item has {BATCH_ITEM_BYTES_MIN}")
        size, _magic, _crc, flag, body_bytes = _BATCH_HEAD.unpack_from(body, at)
        properties_at = at + _BATCH_HEAD.size + body_bytes + 2
        if body_bytes < 0 or size < BATCH_ITEM_BYTES_MIN or at + size > end or properties_at > at + size:
            raise MessageIllegal(f"batch item at byte {at}: size {size}, body of {body_bytes} bytes do not fit")
        properties_bytes = _I16.unpack_from(body, properties_at - 2)[0]
        if properties_bytes < 0 or properties_at + properties_bytes != at + size:
            raise MessageIllegal(f"batch item at byte {at}: {properties_bytes} bytes of properties do not fit")
        try:
            properties = str(body[properties_at : at + size], "utf-8")
        except UnicodeDecodeError as error:
            raise MessageIllegal(f"batch item at byte {at}: properties are not UTF-8") from error
        items.append(BatchItem(flag, body[at + _BATCH_HEAD.size : properties_at - 2], properties))
        at += size
    if not items:
        raise MessageIllegal("an empty batch")
    return items


def encode_batch(items: Sequence[tuple[int, bytes, str]]) -> bytes:
    """Write (flag, body, properties) triples as a batch body."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        raw = properties.encode()
        size = BATCH_ITEM_BYTES_MIN + len(body) + len(raw)
        parts += (_BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(raw)), raw)
    return b"".join(parts)


# --- tolerant pieces ----------------------------------------------------------------------------------------------


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        value = list(value.values())
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _number(value: Any) -> int:
    try:
        return int(value) if value is not None else 0
    except (TypeError, ValueError, OverflowError):
        return 0


def _truth(value: Any) -> bool:
    return value is True or (isinstance(value, str | int) and str(value).lower() in ("1", "true"))


def _enum(value: Any, names: Sequence[str], default: str) -> str:
    """An enum constant by name or by ordinal (a number, or a number as text)."""
    if isinstance(value, str) and value in names:
        return value
    if value is None or value == "" or isinstance(value, bool):
        return default
    try:
        ordinal = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return names[ordinal] if 0 <= ordinal < len(names) else default
