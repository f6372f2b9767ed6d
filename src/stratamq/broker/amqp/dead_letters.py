"""What a message becomes when it dies in a queue: its new headers, and the rule that ends cycles.

``x-death`` is an array, newest first, with one table per queue and reason; a repeat raises its ``count`` and moves it
to the front.

Source: RabbitMQ, deps/rabbit/src/rabbit_dead_letter.erl.
"""

from __future__ import annotations

from typing import Any, Final

from stratamq.broker.amqp.messages import Message, carbon_copies, encode_address
from stratamq.protocols.amqp.properties import Facts, decode_properties, encode_properties
from stratamq.protocols.amqp.values import Table, Timestamp

REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"


def dead_message(
    message: Message, *, queue: str, reason: str, exchange: str, routing_key: str | None, now_ms: int
) -> tuple[Message, list[str]]:
    """The message for the dead-letter exchange, and the keys it is routed by.

    Args:
        message: As it was in the queue.
        queue: Where it died.
        reason: One of the four above.
        exchange: The dead-letter exchange.
        routing_key: The queue's dead-letter key; None keeps the message's own keys.
        now_ms: Milliseconds since the epoch.
    """
    properties = decode_properties(message.facts.block)
    headers: Table = dict(properties.get("headers") or {})
    keys = [message.routing_key, *carbon_copies(headers, "CC")]
    original_expiration = properties.pop("expiration", None)
    death = _death(message, queue, reason, keys, original_expiration, now_ms)
    headers["x-death"] = _with_death(headers.get("x-death"), death)
    for name, value in (("exchange", message.exchange), ("queue", queue), ("reason", reason)):
        headers.setdefault(f"x-first-death-{name}", value)
        headers[f"x-last-death-{name}"] = value
    if routing_key is not None:
        headers.pop("CC", None)
        keys = [routing_key]
    properties["headers"] = headers
    facts = Facts(encode_properties(properties))
    born = Message(exchange, keys[0], encode_address(exchange, keys[0]), facts, message.body, now_ms)
    return born, keys


def _death(message: Message, queue: str, reason: str, keys: list[str], expiration: str | None, now_ms: int) -> Table:
    death: Table = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": Timestamp(now_ms // 1000),
        "exchange": message.exchange,
        "routing-keys": keys,
    }
    if expiration is not None:
        death["original-expiration"] = expiration
    return death


def deaths(headers: Table) -> list[Table]:
    """The tables of ``x-death``; what clients may have written there instead is ignored."""
    found: Any = headers.get("x-death")
    return [death for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def _with_death(old: Any, death: Table) -> list[Table]:
    history = deaths({"x-death": old})
    for known in history:
        if known.get("queue") == death["queue"] and known.get("reason") == death["reason"]:
            count = known.get("count")
            again = {**known, "count": (count if isinstance(count, int) else 0) + 1}
            return [again, *(other for other in history if other is not known)]
    return [death, *history]


def is_cycle(message: Message, queue: str) -> bool:
    """Whether a dead message must not enter ``queue``: it died there before, and nobody rejected it since.

    A rejection anywhere in the cycle is somebody's will, and lets it go on.
    """
    history = deaths(message.facts.headers())
    for number, death in enumerate(history):
        if death.get("queue") == queue:
            return all(other.get("reason") != REJECTED for other in history[: number + 1])
    return False
