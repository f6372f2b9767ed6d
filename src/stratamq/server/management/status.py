"""Overview, nodes, connections, channels, consumers, health checks: everything that only looks (or closes)."""

from __future__ import annotations

from typing import Any, Final

from stratamq.broker.amqp.channel import Channel
from stratamq.protocols.amqp.replies import CONNECTION_FORCED, AmqpError
from stratamq.server.management import objects
from stratamq.server.management.app import Call, Missing, Reply, Routes


def overview(call: Call) -> Any:
    """GET /overview"""
    return objects.overview_row(call.broker, listeners=call.service.listeners(), rates=call.service.rates)


def _node(call: Call) -> dict[str, Any]:
    service = call.service
    return objects.node_row(
        call.broker,
        started_ms=service.started_ms,
        memory_limit=service.memory_limit,
        disk_limit=service.config.disk_free_limit_bytes,
        folder=str(service.directory),
    )


def nodes(call: Call) -> Any:
    """GET /nodes"""
    call.caller.need("monitoring")
    return call.listed([_node(call)])


def node(call: Call) -> Any:
    """GET /nodes/NAME"""
    call.caller.need("monitoring")
    if call.part("name") != objects.node_name():
        raise Missing
    return _node(call)


def cluster_name(call: Call) -> Any:
    """GET /cluster-name"""
    return {"name": objects.node_name()}


def whoami(call: Call) -> Any:
    """GET /whoami"""
    return {"name": call.caller.user.name, "tags": list(call.caller.user.tags)}


# --- who is connected ---


def _connections(call: Call) -> list[dict[str, Any]]:
    user = None if call.caller.has("monitoring") else call.caller.user.name
    rows = [objects.connection_row(session) for session in call.broker.sessions if session.core.user]
    return [row for row in rows if user in (None, row["user"])]


def connections(call: Call) -> Any:
    """GET /connections"""
    return call.listed(_connections(call))


def vhost_connections(call: Call) -> Any:
    """GET /vhosts/VHOST/connections"""
    vhost = call.vhost().name
    return call.listed([row for row in _connections(call) if row["vhost"] == vhost])


def connection(call: Call) -> Any:
    """GET /connections/NAME"""
    for row in _connections(call):
        if row["name"] == call.part("name"):
            return row
    raise Missing


def close_connection(call: Call) -> Any:
    """DELETE /connections/NAME, the reason in the header X-Reason"""
    name = call.part("name")
    if all(row["name"] != name for row in _connections(call)):
        raise Missing
    reason = call.headers.get("X-Reason", "Closed via management plugin")
    for session in [one for one in call.broker.sessions if one.name == name]:
        session.close_for(AmqpError(CONNECTION_FORCED, reason[:200], hard=True))
    return Reply(204)


def _channels(call: Call) -> list[Channel]:
    allowed = {row["name"] for row in _connections(call)}
    return [
        channel for session in call.broker.sessions if session.name in allowed for channel in session.channels.values()
    ]


def channels(call: Call) -> Any:
    """GET /channels"""
    return call.listed([objects.channel_row(channel) for channel in _channels(call)])


def connection_channels(call: Call) -> Any:
    """GET /connections/NAME/channels"""
    found = [channel for channel in _channels(call) if channel.session.name == call.part("name")]
    return call.listed([objects.channel_row(channel) for channel in found])


def vhost_channels(call: Call) -> Any:
    """GET /vhosts/VHOST/channels"""
    vhost = call.vhost()
    return call.listed([objects.channel_row(channel) for channel in _channels(call) if channel.vhost is vhost])


def channel(call: Call) -> Any:
    """GET /channels/NAME"""
    for one in _channels(call):
        if objects.channel_name(one) == call.part("name"):
            consumers = [objects.consumer_row(consumer, one) for consumer in one.consumers.values()]
            return objects.channel_row(one) | {"consumer_details": consumers, "deliveries": [], "publishes": []}
    raise Missing


def consumers(call: Call) -> Any:
    """GET /consumers and /consumers/VHOST"""
    vhost = call.vhost() if "vhost" in call.parts else None
    return call.listed(
        [
            objects.consumer_row(consumer, one)
            for session in call.broker.sessions
            for one in session.channels.values()
            if (vhost is None or one.vhost is vhost) and call.caller.sees(one.vhost.name)
            for consumer in one.consumers.values()
        ]
    )


# --- health ---

_OK: Final = {"status": "ok"}


def alarms(call: Call) -> Any:
    """GET /health/checks/alarms and /local-alarms"""
    if not call.broker.alarms:
        return _OK
    rows = [{"node": objects.node_name(), "resource": name} for name in call.broker.alarms]
    return Reply(503, {"status": "failed", "reason": "There are alarms in effect", "alarms": rows})


def fine(call: Call) -> Any:
    """GET /health/checks/...: what can only be so while this answers"""
    return _OK


def port_listener(call: Call) -> Any:
    """GET /health/checks/port-listener/PORT"""
    ports = [row["port"] for row in call.service.listeners()]
    if call.part("port") in map(str, ports):
        return {**_OK, "port": int(call.part("port"))}
    return Reply(
        503, {"status": "failed", "reason": "No active listener", "missing": call.part("port"), "ports": ports}
    )


def protocol_listener(call: Call) -> Any:
    """GET /health/checks/protocol-listener/PROTOCOL"""
    wanted = call.part("protocol").lower()
    if wanted in ("amqp", "amqp091", "amqp0.9.1", "http"):
        return {**_OK, "protocol": wanted}
    return Reply(503, {"status": "failed", "reason": "No active listener", "missing": wanted})


def empty_list(call: Call) -> Any:
    """GET of what there is none of here"""
    return []


def empty_object(call: Call) -> Any:
    """GET of what there is nothing of here"""
    return {}


ROUTES: Routes = [
    ("GET", "/overview", overview),
    ("GET", "/cluster-name", cluster_name),
    ("GET", "/nodes", nodes),
    ("GET", "/nodes/{name}", node),
    ("GET", "/whoami", whoami),
    ("GET", "/connections", connections),
    ("GET", "/connections/{name}", connection),
    ("DELETE", "/connections/{name}", close_connection),
    ("GET", "/connections/{name}/channels", connection_channels),
    ("GET", "/vhosts/{vhost}/connections", vhost_connections),
    ("GET", "/vhosts/{vhost}/channels", vhost_channels),
    ("GET", "/channels", channels),
    ("GET", "/channels/{name}", channel),
    ("GET", "/consumers", consumers),
    ("GET", "/consumers/{vhost}", consumers),
    ("GET", "/health/checks/alarms", alarms),
    ("GET", "/health/checks/local-alarms", alarms),
    ("GET", "/health/checks/virtual-hosts", fine),
    ("GET", "/health/checks/node-is-quorum-critical", fine),
    ("GET", "/health/checks/node-is-mirror-sync-critical", fine),
    ("GET", "/health/checks/ready-to-serve-clients", alarms),
    ("GET", "/health/checks/is-in-service", fine),
    ("GET", "/health/checks/port-listener/{port}", port_listener),
    ("GET", "/health/checks/protocol-listener/{protocol}", protocol_listener),
    ("GET", "/healthchecks/node", alarms),
    ("GET", "/feature-flags", empty_list),
    ("GET", "/deprecated-features", empty_list),
    ("GET", "/deprecated-features/used", empty_list),
    ("GET", "/extensions", empty_list),
    ("GET", "/auth", empty_object),
]
