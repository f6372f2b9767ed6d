"""Virtual hosts, exchanges, queues, bindings and policies: seen, made, deleted."""

from __future__ import annotations

from typing import Any, Literal

from stratamq.broker.amqp.access import Permission
from stratamq.broker.amqp.exchanges import PREDECLARED, Binding
from stratamq.broker.amqp.policies import Policy
from stratamq.broker.amqp.queue import Queue
from stratamq.broker.amqp.vhost import VirtualHost
from stratamq.errors import InvalidArgument
from stratamq.protocols.amqp.replies import ACCESS_REFUSED, AmqpError
from stratamq.protocols.amqp.values import Table, encode_table
from stratamq.server.management import objects
from stratamq.server.management.access import ADMINISTRATOR
from stratamq.server.management.app import Call, Missing, Reply, Routes

_OWN = frozenset(name for name, _, _ in PREDECLARED)


def _flag(body: dict[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name, default)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}, it must be true or false")
    return value


def _table(body: dict[str, Any]) -> Table:
    value = body.get("arguments") or {}
    if not isinstance(value, dict):
        raise InvalidArgument("arguments must be an object")
    encode_table(value)  # what the protocol cannot hold is refused here
    return value


def _vhosts(call: Call) -> list[VirtualHost]:
    if "vhost" in call.parts:
        return [call.vhost()]
    return [vhost for vhost in call.broker.vhosts.values() if call.caller.sees(vhost.name)]


# --- virtual hosts ---


def vhosts(call: Call) -> Any:
    """GET /vhosts"""
    return call.listed([objects.vhost_row(vhost, call.broker) for vhost in _vhosts(call)])


def vhost(call: Call) -> Any:
    """GET /vhosts/VHOST"""
    return objects.vhost_row(call.vhost(), call.broker)


def put_vhost(call: Call) -> Any:
    """PUT /vhosts/VHOST: the user who makes it may everything in it"""
    call.caller.need(ADMINISTRATOR)
    name = call.part("vhost")
    if name in call.broker.vhosts:
        return Reply(204)
    call.broker.add_vhost(name)
    call.broker.users.permit(call.caller.user.name, name, Permission(".*", ".*", ".*"))
    call.broker.changed(durable=True)
    return Reply(201)


def delete_vhost(call: Call) -> Any:
    """DELETE /vhosts/VHOST with all that is in it"""
    call.caller.need(ADMINISTRATOR)
    name = call.part("vhost")
    if name not in call.broker.vhosts:
        raise Missing
    call.broker.delete_vhost(name)
    return Reply(204)


# --- exchanges ---


def exchanges(call: Call) -> Any:
    """GET /exchanges and /exchanges/VHOST"""
    rows = [objects.exchange_row(one, vhost.name) for vhost in _vhosts(call) for one in vhost.exchanges.values()]
    return call.listed(rows)


def _exchange_name(call: Call, part: str = "name") -> str:
    name = call.part(part)
    return "" if name == "amq.default" else name


def exchange(call: Call) -> Any:
    """GET /exchanges/VHOST/NAME"""
    found = call.vhost().exchanges.get(_exchange_name(call))
    if found is None:
        raise Missing
    return objects.exchange_row(found, call.part("vhost"))


def put_exchange(call: Call) -> Any:
    """PUT /exchanges/VHOST/NAME"""
    vhost, name = call.vhost(), _exchange_name(call)
    if not name:
        raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
    call.caller.need_access("configure", vhost.name, name)
    is_new = name not in vhost.exchanges
    vhost.declare_exchange(
        name,
        str(call.body["type"]),
        durable=_flag(call.body, "durable", default=True),
        auto_delete=_flag(call.body, "auto_delete", default=False),
        internal=_flag(call.body, "internal", default=False),
        arguments=_table(call.body),
    )
    return Reply(201 if is_new else 204)


def delete_exchange(call: Call) -> Any:
    """DELETE /exchanges/VHOST/NAME"""
    vhost, name = call.vhost(), _exchange_name(call)
    if name not in vhost.exchanges:
        raise Missing
    if name in _OWN:
        raise AmqpError(ACCESS_REFUSED, f"exchange {name!r} belongs to the broker")
    call.caller.need_access("configure", vhost.name, name)
    vhost.delete_exchange(name, if_unused=call.query.get("if-unused") == "true")
    return Reply(204)


# --- queues ---


def _queue_row(vhost: VirtualHost, queue: Queue) -> dict[str, Any]:
    fitting = [one for one in vhost.policies if not one.is_operator and one.fits("queues", queue.name, queue.type)]
    best = max(fitting, key=lambda policy: policy.priority, default=None)
    return objects.queue_row(queue, best.name if best is not None else None)


def queues(call: Call) -> Any:
    """GET /queues and /queues/VHOST"""
    return call.listed([_queue_row(vhost, one) for vhost in _vhosts(call) for one in vhost.queues.values()])


def find_queue(call: Call) -> Queue:
    """The queue that the path names. Raises Missing."""
    found = call.vhost().queues.get(call.part("name"))
    if found is None:
        raise Missing
    return found


def queue(call: Call) -> Any:
    """GET /queues/VHOST/NAME"""
    found = find_queue(call)
    row = _queue_row(call.vhost(), found)
    details = [
        objects.consumer_row(consumer, channel)
        for session in call.broker.sessions
        for channel in session.channels.values()
        for consumer in channel.consumers.values()
        if consumer.queue is found
    ]
    return row | {"consumer_details": details, "deliveries": [], "incoming": []}


def put_queue(call: Call) -> Any:
    """PUT /queues/VHOST/NAME"""
    vhost, name = call.vhost(), call.part("name")
    call.caller.need_access("configure", vhost.name, name)
    durable = _flag(call.body, "durable", default=True)
    auto_delete = _flag(call.body, "auto_delete", default=False)
    arguments = _table(call.body)
    found = vhost.queues.get(name)
    if found is not None:
        vhost.check_redeclared(found, durable=durable, auto_delete=auto_delete, owner=found.owner, arguments=arguments)
        return Reply(204)
    if name.startswith("amq."):
        raise AmqpError(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
    vhost.make_queue(name, durable=durable, auto_delete=auto_delete, owner=None, arguments=arguments)
    return Reply(201)


def delete_queue(call: Call) -> Any:
    """DELETE /queues/VHOST/NAME"""
    found = find_queue(call)
    call.caller.need_access("configure", found.vhost, found.name)
    call.vhost().check_deletable(
        found,
        if_unused=call.query.get("if-unused") == "true",
        if_empty=call.query.get("if-empty") == "true",
    )
    call.broker.delete_queue(found)
    return Reply(204)


def purge_queue(call: Call) -> Any:
    """DELETE /queues/VHOST/NAME/contents"""
    found = find_queue(call)
    call.caller.need_access("read", found.vhost, found.name)
    found.purge()
    return Reply(204)


def queue_action(call: Call) -> Any:
    """POST /queues/VHOST/NAME/actions: there is nothing to synchronise"""
    find_queue(call)
    if call.body.get("action") not in ("sync", "cancel_sync"):
        raise InvalidArgument(f"action is {call.body.get('action')!r}; allowed: sync, cancel_sync")
    return Reply(204)


# --- bindings ---


def _binding_rows(vhost: VirtualHost) -> list[dict[str, Any]]:
    rows = [objects.default_binding(queue) for queue in vhost.queues.values()]
    return rows + [objects.binding_row(binding, vhost.name) for binding in vhost.bindings()]


def bindings(call: Call) -> Any:
    """GET /bindings and /bindings/VHOST"""
    return call.listed([row for vhost in _vhosts(call) for row in _binding_rows(vhost)])


def queue_bindings(call: Call) -> Any:
    """GET /queues/VHOST/NAME/bindings"""
    found = find_queue(call)
    rows = _binding_rows(call.vhost())
    return call.listed([row for row in rows if (row["destination_type"], row["destination"]) == ("queue", found.name)])


def exchange_bindings(call: Call) -> Any:
    """GET /exchanges/VHOST/NAME/bindings/source and /destination"""
    name = _exchange_name(call)
    if name not in call.vhost().exchanges:
        raise Missing
    rows = _binding_rows(call.vhost())
    if call.part("end") == "source":
        return call.listed([row for row in rows if row["source"] == name])
    return call.listed([row for row in rows if (row["destination_type"], row["destination"]) == ("exchange", name)])


def _kind(call: Call) -> Literal["queue", "exchange"]:
    return "queue" if call.part("kind") == "q" else "exchange"


def _pair(call: Call) -> list[Binding]:
    vhost, source = call.vhost(), _exchange_name(call, "source")
    found = vhost.exchanges.get(source)
    if found is None:
        raise Missing
    ends = (_kind(call), call.part("destination"))
    return [binding for binding in found.bindings if (binding.kind, binding.destination) == ends]


def pair_bindings(call: Call) -> Any:
    """GET /bindings/VHOST/e/SOURCE/q/QUEUE and .../e/EXCHANGE"""
    rows = [objects.binding_row(binding, call.part("vhost")) for binding in _pair(call)]
    if (
        not _exchange_name(call, "source")
        and _kind(call) == "queue"
        and call.part("destination") in call.vhost().queues
    ):
        rows.append(objects.default_binding(call.vhost().queues[call.part("destination")]))
    return rows


def post_binding(call: Call) -> Any:
    """POST /bindings/VHOST/e/SOURCE/q/QUEUE and .../e/EXCHANGE"""
    vhost, source, destination = call.vhost(), _exchange_name(call, "source"), call.part("destination")
    kind = _kind(call)
    if not source:
        raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
    if source not in vhost.exchanges or destination not in (vhost.queues if kind == "queue" else vhost.exchanges):
        raise Missing
    call.caller.need_access("write", vhost.name, destination)
    call.caller.need_access("read", vhost.name, source)
    arguments = _table(call.body)
    key = str(call.body.get("routing_key", ""))
    vhost.bind(Binding(source, destination, kind, key, encode_table(arguments), arguments))
    return Reply(201)


def _binding(call: Call) -> Binding:
    for binding in _pair(call):
        wanted = call.part("properties")
        if wanted in (objects.properties_key(binding), binding.routing_key or "~"):
            return binding
    raise Missing


def one_binding(call: Call) -> Any:
    """GET /bindings/VHOST/e/SOURCE/q/QUEUE/PROPERTIES"""
    return objects.binding_row(_binding(call), call.part("vhost"))


def delete_binding(call: Call) -> Any:
    """DELETE /bindings/VHOST/e/SOURCE/q/QUEUE/PROPERTIES"""
    binding = _binding(call)
    call.caller.need_access("write", call.part("vhost"), binding.destination)
    call.caller.need_access("read", call.part("vhost"), binding.source)
    call.vhost().unbind(binding)
    return Reply(204)


# --- policies ---


def _policies(call: Call, *, is_operator: bool) -> list[dict[str, Any]]:
    return [
        objects.policy_row(policy, vhost.name)
        for vhost in _vhosts(call)
        for policy in vhost.policies
        if policy.is_operator is is_operator
    ]


def _policy_handlers(*, is_operator: bool) -> Routes:
    needed = () if is_operator else ("policymaker",)

    def listed(call: Call) -> Any:
        return call.listed(_policies(call, is_operator=is_operator))

    def one(call: Call) -> Any:
        for row in _policies(call, is_operator=is_operator):
            if row["name"] == call.part("name"):
                return row
        raise Missing

    def put(call: Call) -> Any:
        call.caller.need(*needed)
        vhost, body = call.vhost(), call.body
        is_new = all(row["name"] != call.part("name") for row in _policies(call, is_operator=is_operator))
        definition = body["definition"]
        if not isinstance(definition, dict) or not definition:
            raise InvalidArgument("definition must be an object with at least one setting")
        apply_to, priority = str(body.get("apply-to", "all")), int(body.get("priority", 0))
        policy = Policy(call.part("name"), str(body["pattern"]), definition, apply_to, priority, is_operator)
        vhost.policies.set(policy)
        vhost.apply_policies()
        return Reply(201 if is_new else 204)

    def delete(call: Call) -> Any:
        call.caller.need(*needed)
        vhost = call.vhost()
        if not vhost.policies.clear(call.part("name"), is_operator=is_operator):
            raise Missing
        vhost.apply_policies()
        return Reply(204)

    path = "/operator-policies" if is_operator else "/policies"
    return [
        ("GET", path, listed),
        ("GET", path + "/{vhost}", listed),
        ("GET", path + "/{vhost}/{name}", one),
        ("PUT", path + "/{vhost}/{name}", put),
        ("DELETE", path + "/{vhost}/{name}", delete),
    ]


_PAIR = "/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"
ROUTES: Routes = [
    ("GET", "/vhosts", vhosts),
    ("GET", "/vhosts/{vhost}", vhost),
    ("PUT", "/vhosts/{vhost}", put_vhost),
    ("DELETE", "/vhosts/{vhost}", delete_vhost),
    ("GET", "/exchanges", exchanges),
    ("GET", "/exchanges/{vhost}", exchanges),
    ("GET", "/exchanges/{vhost}/{name}", exchange),
    ("PUT", "/exchanges/{vhost}/{name}", put_exchange),
    ("DELETE", "/exchanges/{vhost}/{name}", delete_exchange),
    ("GET", "/exchanges/{vhost}/{name}/bindings/{end:source|destination}", exchange_bindings),
    ("GET", "/queues", queues),
    ("GET", "/queues/{vhost}", queues),
    ("GET", "/queues/{vhost}/{name}", queue),
    ("PUT", "/queues/{vhost}/{name}", put_queue),
    ("DELETE", "/queues/{vhost}/{name}", delete_queue),
    ("DELETE", "/queues/{vhost}/{name}/contents", purge_queue),
    ("POST", "/queues/{vhost}/{name}/actions", queue_action),
    ("GET", "/queues/{vhost}/{name}/bindings", queue_bindings),
    ("GET", "/bindings", bindings),
    ("GET", "/bindings/{vhost}", bindings),
    ("GET", _PAIR, pair_bindings),
    ("POST", _PAIR, post_binding),
    ("GET", _PAIR + "/{properties}", one_binding),
    ("DELETE", _PAIR + "/{properties}", delete_binding),
    *_policy_handlers(is_operator=False),
    *_policy_handlers(is_operator=True),
]
