"""What of a broker survives a restart besides messages: users, virtual hosts, exchanges, queues, bindings, policies.

One JSON object in the shape of RabbitMQ's definitions files, so that the same reader takes both. Exclusive and
non-durable things are not in it. Argument values that JSON has no kind for (byte arrays, timestamps, sized numbers)
are written as their encoded table in base64 beside the readable form.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from stratamq.broker.amqp.access import SHA256, Permission, TopicPermission, User
from stratamq.broker.amqp.definition_rows import ENCODED, binding_row, exchange_row, queue_row
from stratamq.broker.amqp.exchanges import PREDECLARED, Binding
from stratamq.broker.amqp.policies import Policy
from stratamq.errors import InvalidArgument
from stratamq.protocols.amqp.values import Table, encode_table, read_table

if TYPE_CHECKING:
    from stratamq.broker.amqp.broker import AmqpBroker
    from stratamq.broker.amqp.vhost import VirtualHost

_OWN: Final = frozenset(name for name, _, _ in PREDECLARED)


def definitions_of(broker: AmqpBroker) -> dict[str, Any]:
    """Everything durable of a broker as JSON values."""
    found: dict[str, Any] = {
        "product_name": "StrataMQ",
        "users": [],
        "vhosts": [{"name": name} for name in broker.vhosts],
        "permissions": [],
        "topic_permissions": [],
        "policies": [],
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }
    for user in broker.users.all():
        _add_user(found, user)
    for vhost in broker.vhosts.values():
        _add_vhost(found, vhost)
    return found


def _add_user(found: dict[str, Any], user: User) -> None:
    found["users"].append(
        {
            "name": user.name,
            "password_hash": user.password_hash,
            "hashing_algorithm": user.algorithm,
            "tags": list(user.tags),
        }
    )
    for vhost, permission in user.permissions.items():
        row = {"user": user.name, "vhost": vhost, "configure": permission.configure}
        found["permissions"].append({**row, "write": permission.write, "read": permission.read})
    for (vhost, exchange), topic in user.topic_permissions.items():
        row = {"user": user.name, "vhost": vhost, "exchange": exchange}
        found["topic_permissions"].append({**row, "write": topic.write, "read": topic.read})


def _add_vhost(found: dict[str, Any], vhost: VirtualHost) -> None:
    for policy in vhost.policies:
        found["policies"].append(
            {
                "vhost": vhost.name,
                "name": policy.name,
                "pattern": policy.pattern,
                "apply-to": policy.apply_to,
                "priority": policy.priority,
                "definition": dict(policy.definition),
                "operator": policy.is_operator,
            }
        )
    for exchange in vhost.exchanges.values():
        if exchange.durable and exchange.name not in _OWN:
            found["exchanges"].append(exchange_row(exchange, vhost.name))
    for queue in vhost.queues.values():
        if queue.durable:
            found["queues"].append(queue_row(queue))
    for binding in vhost.bindings():
        if vhost.is_durable(binding):
            found["bindings"].append(binding_row(binding, vhost.name))


def _read_arguments(row: Mapping[str, Any]) -> Table:
    encoded = row.get(ENCODED)
    if encoded is not None:
        return read_table(base64.b64decode(encoded), 0)[0]
    return dict(row.get("arguments") or {})


def load_definitions(broker: AmqpBroker, value: Mapping[str, Any]) -> None:
    """Put definitions into a broker: what is there already stays unless it is named here.

    Raises InvalidArgument for what cannot be understood; what came before it has taken effect.
    """
    try:
        for row in value.get("vhosts", ()):
            broker.add_vhost(row["name"])
        _load_users(broker, value)
        for row in value.get("policies", ()):
            broker.add_vhost(row["vhost"]).policies.set(_policy(row))
        for row in value.get("exchanges", ()):
            _load_exchange(broker, row)
        for row in value.get("queues", ()):
            _load_queue(broker, row)
        for row in value.get("bindings", ()):
            _load_binding(broker, row)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the definitions cannot be understood: {type(error).__name__} {error}") from error
    for vhost in broker.vhosts.values():
        vhost.apply_policies()


def _load_users(broker: AmqpBroker, value: Mapping[str, Any]) -> None:
    for row in value.get("users", ()):
        tags = row.get("tags", ())
        tags = tuple(tag for tag in tags.split(",") if tag) if isinstance(tags, str) else tuple(tags)
        old = broker.users.get(row["name"])
        permissions = {} if old is None else old.permissions
        topics: dict[tuple[str, str], TopicPermission] = {
            (one["vhost"], one["exchange"]): TopicPermission(one["write"], one["read"])
            for one in value.get("topic_permissions", ())
            if one["user"] == row["name"]
        }
        algorithm = row.get("hashing_algorithm", SHA256)
        broker.users.put(User(row["name"], row["password_hash"], algorithm, tags, permissions, topics))
    for row in value.get("permissions", ()):
        broker.users.permit(row["user"], row["vhost"], Permission(row["configure"], row["write"], row["read"]))


def _policy(row: Mapping[str, Any]) -> Policy:
    return Policy(
        row["name"],
        row["pattern"],
        dict(row["definition"]),
        row.get("apply-to", "all"),
        int(row.get("priority", 0)),
        bool(row.get("operator", False)),
    )


def _load_exchange(broker: AmqpBroker, row: Mapping[str, Any]) -> None:
    broker.add_vhost(row["vhost"]).declare_exchange(
        row["name"],
        row["type"],
        durable=bool(row["durable"]),
        auto_delete=bool(row["auto_delete"]),
        internal=bool(row.get("internal", False)),
        arguments=_read_arguments(row),
    )


def _load_queue(broker: AmqpBroker, row: Mapping[str, Any]) -> None:
    vhost = broker.add_vhost(row["vhost"])
    if row["name"] not in vhost.queues:
        vhost.restore_queue(
            row["name"],
            durable=bool(row["durable"]),
            auto_delete=bool(row["auto_delete"]),
            owner=None,
            arguments=_read_arguments(row),
        )


def _load_binding(broker: AmqpBroker, row: Mapping[str, Any]) -> None:
    arguments = _read_arguments(row)
    vhost = broker.add_vhost(row["vhost"])
    binding = Binding(
        row["source"],
        row["destination"],
        row["destination_type"],
        row["routing_key"],
        encode_table(arguments),
        arguments,
    )
    vhost.bind(binding)
