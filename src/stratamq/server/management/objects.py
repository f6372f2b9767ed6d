"""What the AMQP side has, as the management API's JSON.

Rates of virtual hosts are 0.0, as nothing is counted there over time; members that RabbitMQ has and that mean nothing
here are left out, except those that its tools cannot do without.
"""

from __future__ import annotations

import base64
import os
import platform
import resource
import shutil
import sys
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from stratamq import __version__
from stratamq.broker.amqp.exchanges import Binding, Exchange
from stratamq.broker.amqp.policies import Policy
from stratamq.broker.amqp.queue import Queue
from stratamq.protocols.amqp.values import Table
from stratamq.server.management.rates import Rates, depth_row, octets_row, traffic_row

if TYPE_CHECKING:
    from stratamq.broker.amqp.access import User
    from stratamq.broker.amqp.broker import AmqpBroker
    from stratamq.broker.amqp.channel import Channel
    from stratamq.broker.amqp.connection import Session
    from stratamq.broker.amqp.consumers import Consumer
    from stratamq.broker.amqp.vhost import VirtualHost

RABBITMQ_VERSION: Final = "3.13.7"
"""The version whose API this is; tools decide by it what they may ask."""
Row = dict[str, Any]


def plain(value: Any) -> Any:
    """A value of a field table as JSON: bytes as text where they are text, everything else by kind."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return base64.b64encode(raw).decode()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value)


def rated(**counts: int) -> Row:
    """Counters that are not sampled, with the rates that tools expect beside them: always 0."""
    found: Row = {}
    for name, count in counts.items():
        found[name] = count
        found[f"{name}_details"] = {"rate": 0.0}
    return found


def node_name() -> str:
    """How this node is called."""
    return f"stratamq@{platform.node() or 'localhost'}"


# --- what is declared ---


def vhost_row(vhost: VirtualHost, broker: AmqpBroker) -> Row:
    """One virtual host."""
    ready = sum(queue.ready for queue in vhost.queues.values())
    unacked = sum(queue.unacked for queue in vhost.queues.values())
    return {
        "name": vhost.name,
        "description": "",
        "tags": [],
        "default_queue_type": "classic",
        "metadata": {"description": "", "tags": []},
        "tracing": False,
        "cluster_state": {node_name(): "running"},
        **rated(messages=ready + unacked, messages_ready=ready, messages_unacknowledged=unacked),
    }


def exchange_row(exchange: Exchange, vhost: str) -> Row:
    """One exchange."""
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        "user_who_performed_action": "",
    }


def queue_row(queue: Queue, policy: str | None) -> Row:
    """One queue."""
    memory = 1024 + 64 * (queue.ready + queue.unacked)
    active = queue.consumers.active if queue.consumers.single_active else None
    total = queue.ready + queue.unacked
    size = queue.ready_bytes
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "owner_pid_details": {"name": getattr(queue.owner, "name", "")} if queue.owner is not None else {},
        "arguments": plain(queue.arguments),
        "node": node_name(),
        "state": "running",
        "policy": policy,
        "operator_policy": None,
        "effective_policy_definition": plain(queue.policy),
        "consumers": len(queue.consumers),
        "consumer_capacity": 1.0 if len(queue.consumers) else 0.0,
        "consumer_utilisation": 1.0 if len(queue.consumers) else 0.0,
        "exclusive_consumer_tag": queue.exclusive_consumer.tag if queue.exclusive_consumer else None,
        "single_active_consumer_tag": active.tag if active is not None else None,
        **depth_row(queue.traffic, queue.ready, queue.unacked),
        "messages_ram": total,
        "messages_persistent": total if queue.durable else 0,
        "messages_paged_out": 0,
        "message_bytes": size,
        "message_bytes_ready": size,
        "message_bytes_unacknowledged": 0,
        "message_bytes_ram": 0 if queue.durable else size,
        "message_bytes_persistent": size if queue.durable else 0,
        "memory": memory,
        "head_message_timestamp": None,
        "idle_since": None,
        "message_stats": traffic_row(queue.traffic),
        "backing_queue_status": {"mode": "default", "version": 2},
        "garbage_collection": {},
        "reductions": 0,
        "recoverable_slaves": None,
        "slave_nodes": [],
        "synchronised_slave_nodes": [],
    }


def properties_key(binding: Binding) -> str:
    """How a binding is called in paths: its routing key, with a hash of its arguments when it has any."""
    key = urllib.parse.quote(binding.routing_key, safe="")
    if not binding.arguments:
        return key or "~"
    import hashlib

    return f"{key}~{hashlib.md5(binding.arguments_bytes, usedforsecurity=False).hexdigest()[:12]}"


def binding_row(binding: Binding, vhost: str) -> Row:
    """One binding."""
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination,
        "destination_type": binding.kind,
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding),
    }


def default_binding(queue: Queue) -> Row:
    """The binding that every queue has to the default exchange."""
    return binding_row(Binding("", queue.name, "queue", queue.name), queue.vhost)


def policy_row(policy: Policy, vhost: str) -> Row:
    """One policy."""
    return {
        "vhost": vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


# --- who ---


def user_row(user: User) -> Row:
    """One user, with the hash as definitions files have it."""
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.algorithm,
        "tags": list(user.tags),
        "limits": {},
    }


def permission_rows(user: User) -> list[Row]:
    """What a user may do, by virtual host."""
    return [
        {"user": user.name, "vhost": vhost, "configure": one.configure, "write": one.write, "read": one.read}
        for vhost, one in user.permissions.items()
    ]


def topic_permission_rows(user: User) -> list[Row]:
    """Which keys a user may use, by virtual host and exchange."""
    return [
        {"user": user.name, "vhost": vhost, "exchange": exchange, "write": one.write, "read": one.read}
        for (vhost, exchange), one in user.topic_permissions.items()
    ]


# --- who is connected ---


def connection_row(session: Session) -> Row:
    """One connection."""
    core = session.core
    peer, _, local = session.name.partition(" -> ")
    peer_host, _, peer_port = peer.rpartition(":")
    host, _, port = local.rpartition(":")
    return {
        "name": session.name,
        "vhost": session.vhost.name if hasattr(session, "vhost") else "",
        "user": core.user,
        "user_who_performed_action": core.user,
        "state": "blocked" if session.is_blocked else "running",
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "node": node_name(),
        "host": host,
        "port": _port(port),
        "peer_host": peer_host,
        "peer_port": _port(peer_port),
        "ssl": session.is_secure,
        "auth_mechanism": session.mechanism,
        "timeout": core.heartbeat_s,
        "frame_max": core.frame_max,
        "channel_max": core.channel_max,
        "channels": len(session.channels),
        "client_properties": plain(core.client_properties),
        "connected_at": session.connected_ms,
        **octets_row(session.octets),
    }


def _port(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def channel_row(channel: Channel) -> Row:
    """One channel."""
    session = channel.session
    return {
        "name": channel_name(channel),
        "number": channel.number,
        "vhost": channel.vhost.name,
        "user": session.core.user,
        "node": node_name(),
        "state": "running" if channel.is_open else "closing",
        "confirm": channel.is_confirming,
        "transactional": channel.is_tx,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": len(channel.unacked),
        "messages_unconfirmed": 0,
        "messages_uncommitted": len(channel.tx_publishes),
        "acks_uncommitted": len(channel.tx_acks),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "connection_details": _connection_details(session),
        "message_stats": traffic_row(channel.traffic),
    }


def channel_name(channel: Channel) -> str:
    """How a channel is called: its connection's name and its number."""
    return f"{channel.session.name} ({channel.number})"


def _connection_details(session: Session) -> Row:
    peer_host, _, peer_port = session.name.partition(" -> ")[0].rpartition(":")
    return {"name": session.name, "peer_host": peer_host, "peer_port": _port(peer_port)}


def consumer_row(consumer: Consumer, channel: Channel) -> Row:
    """One consumer."""
    queue = consumer.queue
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost},
        "channel_details": {
            "name": channel_name(channel),
            "number": channel.number,
            "connection_name": channel.session.name,
            "node": node_name(),
            "user": channel.session.core.user,
            **{key: value for key, value in _connection_details(channel.session).items() if key != "name"},
        },
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "active": not queue.consumers.single_active or queue.consumers.active is consumer,
        "activity_status": "up",
        "arguments": plain(consumer.arguments),
        "consumer_timeout": queue.consumer_timeout_ms,
    }


# --- the whole ---


def node_row(broker: AmqpBroker, *, started_ms: int, memory_limit: int, disk_limit: int, folder: str) -> Row:
    """This node: what monitoring watches."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets = len(broker.sessions)
    return {
        "name": node_name(),
        "type": "disc",
        "running": True,
        "being_drained": False,
        "partitions": [],
        "os_pid": str(os.getpid()),
        "uptime": max(0, broker.now_ms - started_ms),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "rates_mode": "basic",
        "db_dir": folder,
        "log_files": [],
        "config_files": [],
        "enabled_plugins": ["rabbitmq_management"],
        "fd_used": _open_files(),
        "fd_total": soft,
        "sockets_used": sockets,
        "sockets_total": soft,
        "proc_used": 1,
        "proc_total": 1_048_576,
        "mem_used": memory_used(),
        "mem_limit": memory_limit,
        "mem_alarm": "memory" in broker.alarms,
        "disk_free": shutil.disk_usage(folder).free,
        "disk_free_limit": disk_limit,
        "disk_free_alarm": "disk" in broker.alarms,
        "applications": [],
        "auth_mechanisms": [],
        "exchange_types": [{"name": name, "enabled": True} for name in ("direct", "fanout", "headers", "topic")],
        "contexts": [],
    }


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def memory_used() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def message_totals(broker: AmqpBroker) -> dict[str, int]:
    """What has happened to messages since the start."""
    counters = broker.counters
    return {
        "publish": counters.published,
        "confirm": counters.confirmed,
        "deliver_get": counters.delivered,
        "deliver": counters.delivered,
        "ack": counters.acknowledged,
        "redeliver": counters.redelivered,
        "return_unroutable": counters.unroutable_returned,
        "drop_unroutable": counters.unroutable_dropped,
    }


def churn_totals(broker: AmqpBroker) -> dict[str, int]:
    """Connections and channels opened since the start."""
    counters = broker.counters
    return {"connection_created": counters.connections_opened, "channel_created": counters.channels_opened}


def queue_totals(broker: AmqpBroker) -> dict[str, int]:
    """Messages in all queues. Cost: a look at each queue."""
    queues = [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]
    ready, unacked = sum(queue.ready for queue in queues), sum(queue.unacked for queue in queues)
    return {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}


def all_totals(broker: AmqpBroker) -> dict[str, int]:
    """All that the overview has a rate of."""
    return message_totals(broker) | churn_totals(broker) | queue_totals(broker)


def overview_row(broker: AmqpBroker, *, listeners: list[Row], rates: Rates) -> Row:
    """The first thing that every tool asks for."""
    queues = [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return {
        "management_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "StrataMQ",
        "product_version": __version__,
        "erlang_version": "0",
        "erlang_full_version": f"none: Python {python}",
        "cluster_name": node_name(),
        "cluster_tags": {},
        "node": node_name(),
        "node_tags": {},
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "exchange_types": [{"name": name, "enabled": True} for name in ("direct", "fanout", "headers", "topic")],
        "disable_stats": False,
        "enable_queue_totals": True,
        "is_op_policy_updating_enabled": True,
        "statistics_db_event_queue": 0,
        "message_stats": rates.rated(message_totals(broker)),
        "churn_rates": rates.rated(churn_totals(broker)),
        "queue_totals": rates.rated(queue_totals(broker)),
        "object_totals": {
            "connections": len(broker.sessions),
            "channels": sum(len(session.channels) for session in broker.sessions),
            "consumers": sum(len(queue.consumers) for queue in queues),
            "exchanges": sum(len(vhost.exchanges) for vhost in broker.vhosts.values()),
            "queues": len(queues),
        },
        "listeners": listeners,
        "contexts": [],
    }


def table_of(value: Any) -> Table:
    """JSON arguments as a field table."""
    return dict(value) if isinstance(value, Mapping) else {}
