"""Publishing and getting single messages over HTTP: for tests and for looking, not for work."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from stratamq.broker.amqp.levels import Entry
from stratamq.broker.amqp.messages import Message, encode_address
from stratamq.broker.amqp.queue import Queue
from stratamq.errors import InvalidArgument
from stratamq.protocols.amqp.properties import PROPERTIES, Facts, decode_properties, encode_properties
from stratamq.server.management import objects
from stratamq.server.management.app import Call, Missing, Routes
from stratamq.server.management.topology import find_queue

ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
COUNT_MAX: Final = 10_000
_KINDS: Final = dict(PROPERTIES)
ALIVENESS_QUEUE: Final = "aliveness-test"


def publish(call: Call) -> Any:
    """POST /exchanges/VHOST/NAME/publish"""
    vhost = call.vhost()
    name = "" if call.part("name") == "amq.default" else call.part("name")
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        raise Missing
    call.caller.need_access("write", vhost.name, name)
    body, key = call.body, str(call.body["routing_key"])
    facts = Facts(_properties(body.get("properties") or {}))
    payload = _payload(str(body["payload"]), str(body["payload_encoding"]))
    message = Message(name, key, encode_address(name, key), facts, payload, call.broker.now_ms)
    targets = vhost.route(exchange, (key,), facts.headers)
    call.broker.counters.published += 1
    accepted = bool(targets) and call.broker.enqueue(message, targets)
    return {"routed": accepted}


def _payload(text: str, encoding: str) -> bytes:
    if encoding == "string":
        return text.encode()
    if encoding == "base64":
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise InvalidArgument(f"the payload is not base64: {error}") from None
    raise InvalidArgument(f"payload_encoding is {encoding!r}; allowed: string, base64")


def _properties(given: Any) -> bytes:
    if not isinstance(given, dict):
        raise InvalidArgument("properties must be an object")
    unknown = sorted(set(given) - set(_KINDS))
    if unknown:
        raise InvalidArgument(f"unknown properties: {', '.join(unknown)}")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        kind = _KINDS[name]
        if kind == "s":
            checked[name] = str(value)
        elif kind == "t":
            if not isinstance(value, dict):
                raise InvalidArgument("headers must be an object")
            checked[name] = value
        else:
            number = int(value)
            if not 0 <= number < (256 if kind == "o" else 2**63):
                raise InvalidArgument(f"{name} is {number}")
            checked[name] = number
    return encode_properties(checked)


def get(call: Call) -> Any:
    """POST /queues/VHOST/NAME/get"""
    queue = find_queue(call)
    call.caller.need_access("read", queue.vhost, queue.name)
    mode = str(call.body.get("ackmode", "ack_requeue_true"))
    if mode not in ACK_MODES:
        raise InvalidArgument(f"ackmode is {mode!r}; allowed: {', '.join(ACK_MODES)}")
    encoding = str(call.body.get("encoding", "auto"))
    if encoding not in ("auto", "base64"):
        raise InvalidArgument(f"encoding is {encoding!r}; allowed: auto, base64")
    truncate = call.body.get("truncate")
    count = min(int(call.body["count"]), COUNT_MAX)
    entries: list[Entry] = []
    while len(entries) < count:
        entry = queue.take()
        if entry is None:
            break
        queue.unacked += 1
        queue.traffic.get += 1
        entries.append(entry)
    left = queue.ready
    rows = []
    for number, entry in enumerate(entries):
        row = _row(entry.message, encoding, None if truncate is None else int(truncate))
        row["redelivered"] = entry.redelivered
        row["message_count"] = left + len(entries) - number - 1
        rows.append(row)
    _settle(queue, entries, mode)
    return rows


def _settle(queue: Queue, entries: list[Entry], mode: str) -> None:
    if mode.endswith("requeue_true"):
        queue.give_back(reversed(entries), counts=mode.startswith("reject"))
    elif mode == "ack_requeue_false":
        queue.traffic.ack += len(entries)
        queue.ack(entries)
    else:
        for entry in entries:
            queue.reject(entry)


def _row(message: Message, encoding: str, truncate: int | None) -> dict[str, Any]:
    body = message.body if truncate is None else message.body[: max(0, truncate)]
    try:
        text, how = body.decode(), "string"
    except UnicodeDecodeError:
        text, how = base64.b64encode(body).decode(), "base64"
    if encoding == "base64":
        text, how = base64.b64encode(body).decode(), "base64"
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "payload": text,
        "payload_bytes": len(message.body),
        "payload_encoding": how,
        "properties": objects.plain(decode_properties(message.facts.block)),
    }


def aliveness(call: Call) -> Any:
    """GET /aliveness-test/VHOST: declare, publish, consume"""
    vhost = call.vhost()
    for action in ("configure", "write", "read"):
        call.caller.need_access(action, vhost.name, ALIVENESS_QUEUE)
    queue = vhost.queues.get(ALIVENESS_QUEUE)
    if queue is None:
        queue = vhost.make_queue(ALIVENESS_QUEUE, durable=False, auto_delete=False, owner=None, arguments={})
    address = encode_address("", ALIVENESS_QUEUE)
    facts = Facts(encode_properties({}))
    call.broker.enqueue(Message("", ALIVENESS_QUEUE, address, facts, b"test_message", call.broker.now_ms), [queue])
    entry = queue.take()
    if entry is None:
        raise InvalidArgument("the message that was published did not come back")
    queue.unacked += 1
    queue.ack([entry])
    return {"status": "ok"}


ROUTES: Routes = [
    ("POST", "/exchanges/{vhost}/{name}/publish", publish),
    ("POST", "/queues/{vhost}/{name}/get", get),
    ("GET", "/aliveness-test/{vhost}", aliveness),
]
