"""Arguments of queues and exchanges: which are known, what they may be, when two declarations are the same.

Texts of refusals are RabbitMQ's: clients match on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from stratamq.protocols.amqp.replies import PRECONDITION_FAILED, AmqpError
from stratamq.protocols.amqp.values import Table, same_value, type_name

QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_NOT_FOR_STREAMS: Final = (
    "x-expires",
    "x-message-ttl",
    "x-max-priority",
    "x-max-length",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-delivery-limit",
)
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
PRIORITY_MAX: Final = 255
_DURATION_MAX_MS: Final = 315_360_000_000
"""Ten years; the longest TTL that RabbitMQ takes."""

Check = Callable[[Any, Mapping[str, Any]], str]
"""Returns what is wrong, as RabbitMQ prints it, or nothing."""


def _integer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {type_name(value)}"'
    return ""


def _at_least_zero(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value) or (f"{{value_negative,{value}}}" if value < 0 else "")


def _milliseconds(value: Any, arguments: Mapping[str, Any]) -> str:
    wrong = _at_least_zero(value, arguments)
    return wrong or (f"{{value_too_big,{value}}}" if value > _DURATION_MAX_MS else "")


def _expires(value: Any, arguments: Mapping[str, Any]) -> str:
    wrong = _milliseconds(value, arguments)
    return wrong or ("{value_zero,0}" if value == 0 else "")


def _priority(value: Any, arguments: Mapping[str, Any]) -> str:
    wrong = _at_least_zero(value, arguments)
    return wrong or (f"{{max_value_exceeded,{value}}}" if value > PRIORITY_MAX else "")


def _string(value: Any, arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


def _dead_letter_key(value: Any, arguments: Mapping[str, Any]) -> str:
    wrong = _string(value, arguments)
    return wrong or ("" if "x-dead-letter-exchange" in arguments else "routing_key_but_no_dlx_defined")


def _overflow(value: Any, arguments: Mapping[str, Any]) -> str:
    return _string(value, arguments) or ("" if value in OVERFLOWS else "invalid_overflow")


def _mode(value: Any, arguments: Mapping[str, Any]) -> str:
    return _string(value, arguments) or (
        "" if value in ("default", "lazy") else f"\"unsupported queue mode '{value}'\""
    )


def _queue_type(value: Any, arguments: Mapping[str, Any]) -> str:
    wrong = _string(value, arguments)
    return wrong or ("" if value in QUEUE_TYPES else f"\"unsupported queue type '{value}'\"")


def _boolean(value: Any, arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def _any_integer(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value)


QUEUE_ARGUMENTS: Final[Mapping[str, Check]] = {
    "x-expires": _expires,
    "x-message-ttl": _milliseconds,
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _string,
    "x-max-length": _at_least_zero,
    "x-max-length-bytes": _at_least_zero,
    "x-overflow": _overflow,
    "x-max-priority": _priority,
    "x-queue-mode": _mode,
    "x-queue-version": _at_least_zero,
    "x-queue-type": _queue_type,
    "x-single-active-consumer": _boolean,
    "x-delivery-limit": _any_integer,
    "x-queue-leader-locator": _string,
    "x-quorum-initial-group-size": _at_least_zero,
    "x-initial-cluster-size": _at_least_zero,
    "x-max-age": _string,
    "x-stream-max-segment-size-bytes": _at_least_zero,
    "x-stream-filter-size-bytes": _at_least_zero,
    "x-consumer-timeout": _at_least_zero,
}


def resource(kind: str, name: str, vhost: str) -> str:
    """How texts name a thing: ``queue 'q' in vhost '/'``."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def queue_type(arguments: Mapping[str, Any]) -> str:
    """The type that the arguments ask for."""
    return str(arguments.get("x-queue-type", "classic"))


def check_exchange_argument(argument: str, what: str, arguments: Table) -> None:
    """Refuse the name of an exchange that is no text. Raises AmqpError 406."""
    value = arguments.get(argument)
    if argument in arguments and not isinstance(value, str):
        text = f"invalid type '{type_name(value)}' for arg '{argument}' in {what}"
        raise AmqpError(PRECONDITION_FAILED, text)


def check_queue_arguments(
    name: str, vhost: str, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Refuse arguments that cannot be, or that do not go together. Raises AmqpError 406."""
    check_exchange_argument("x-dead-letter-exchange", resource("queue", name, vhost), arguments)
    for argument, check in QUEUE_ARGUMENTS.items():
        if argument in arguments:
            wrong = check(arguments[argument], arguments)
            if wrong:
                text = f"invalid arg '{argument}' for {resource('queue', name, vhost)}: {wrong}"
                raise AmqpError(PRECONDITION_FAILED, text)
    if queue_type(arguments) == "stream":
        for argument in _NOT_FOR_STREAMS:
            if argument in arguments:
                text = f"invalid arg '{argument}' for {resource('queue', name, vhost)} of queue type stream"
                raise AmqpError(PRECONDITION_FAILED, text)
    if queue_type(arguments) in ("quorum", "stream"):
        for bad, word in ((exclusive, "exclusive-owner"), (not durable, "non-durable"), (auto_delete, "auto-delete")):
            if bad:
                text = f"invalid property '{word}' for {resource('queue', name, vhost)}"
                raise AmqpError(PRECONDITION_FAILED, text)


def check_nameable(arguments: Table) -> None:
    """Refuse to think of a name for a queue that is to outlive its connection. Raises AmqpError 406."""
    kind = queue_type(arguments)
    if kind in ("quorum", "stream"):
        text = f"Cannot declare a server-named queue for type rabbit_{kind}_queue"
        raise AmqpError(PRECONDITION_FAILED, text)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def check_flag(flag: str, what: str, *, received: bool, current: bool) -> None:
    """Refuse a redeclaration with another flag. Raises AmqpError 406."""
    if received != current:
        text = f"inequivalent arg '{flag}' for {what}: received '{_word(received)}' but current is '{_word(current)}'"
        raise AmqpError(PRECONDITION_FAILED, text)


def check_same_arguments(what: str, received: Table, current: Table, names: tuple[str, ...]) -> None:
    """Refuse a redeclaration with another value of one of the named arguments. Raises AmqpError 406."""
    for name in names:
        here, there = name in current, name in received
        if name == "x-queue-type":
            if queue_type(received) == queue_type(current):
                continue
        elif here == there and (not here or same_value(received[name], current[name])):
            continue
        text = f"inequivalent arg '{name}' for {what}: {_received(received, name)} but current is "
        raise AmqpError(PRECONDITION_FAILED, text + _described(current, name))


def _received(table: Table, name: str) -> str:
    return f"received {_described(table, name)}"


def _described(table: Table, name: str) -> str:
    if name not in table:
        return "none"
    value = table[name]
    shown = value if isinstance(value, str) else _word(value) if isinstance(value, bool) else json.dumps(value)
    return f"the value '{shown}' of type '{type_name(value)}'"
