"""Rows of the definitions: one queue, exchange or binding as JSON values, and changes of them one by one.

A change is a JSON array ``[sign, section, row]``: ``+`` puts a row into ``queues``, ``exchanges`` or ``bindings``,
``-`` takes it away. Taking a queue or an exchange away takes the bindings that touch it too.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stratamq.broker.amqp.exchanges import Binding, Exchange
from stratamq.broker.amqp.queue import Queue
from stratamq.errors import InvalidArgument
from stratamq.protocols.amqp.values import Table, encode_table

Change = tuple[str, str, dict[str, Any]]
PUT: Final = "+"
TAKE: Final = "-"
ENCODED: Final = "stratamq_arguments"
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "queues": ("vhost", "name"),
    "exchanges": ("vhost", "name"),
    "bindings": ("vhost", "source", "destination_type", "destination", "routing_key", ENCODED),
}
_KIND_OF: Final = {"queues": "queue", "exchanges": "exchange"}


def queue_row(queue: Queue) -> dict[str, Any]:
    """A durable queue."""
    row = {"name": queue.name, "vhost": queue.vhost, "durable": True, "auto_delete": queue.auto_delete}
    return {**row, **_arguments(queue.arguments)}


def exchange_row(exchange: Exchange, vhost: str) -> dict[str, Any]:
    """A durable exchange."""
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.kind,
        "durable": True,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        **_arguments(exchange.arguments),
    }


def binding_row(binding: Binding, vhost: str) -> dict[str, Any]:
    """A binding between durable ends."""
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination,
        "destination_type": binding.kind,
        "routing_key": binding.routing_key,
        **_arguments(binding.arguments),
    }


def _arguments(table: Table) -> dict[str, Any]:
    shown = {
        name: value if isinstance(value, str | bool | int | float) else str(value) for name, value in table.items()
    }
    found: dict[str, Any] = {"arguments": shown}
    if table:
        found[ENCODED] = base64.b64encode(encode_table(table)).decode()
    return found


def apply_changes(value: Mapping[str, Any], changes: Iterable[Any]) -> dict[str, Any]:
    """The definitions after some changes. Raises InvalidArgument for what is no change. Cost: one pass over both."""
    try:
        tables = {section: {_key(section, row): row for row in value.get(section, ())} for section in _KEYS}
        for sign, section, row in changes:
            table, key = tables[section], _key(section, row)
            if sign == PUT:
                table[key] = row
            elif sign == TAKE:
                table.pop(key, None)
                if section in _KIND_OF:
                    _take_bindings(tables["bindings"], _KIND_OF[section], row["vhost"], row["name"])
            else:
                raise ValueError(f"sign {sign!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"a change of the definitions cannot be understood: {error!r}") from error
    return {**value, **{section: list(table.values()) for section, table in tables.items()}}


def _take_bindings(bindings: dict[tuple[Any, ...], Any], kind: str, vhost: str, name: str) -> None:
    for key in [
        key
        for key in bindings
        if key[0] == vhost and ((kind, name) == (key[2], key[3]) or (kind == "exchange" and key[1] == name))
    ]:
        del bindings[key]


def _key(section: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) if name == ENCODED else row[name] for name in _KEYS[section])
