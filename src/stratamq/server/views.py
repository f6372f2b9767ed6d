"""What the page, the API and the metrics say about a broker: one set of functions, so that all say the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stratamq import __version__
from stratamq.broker.broker import Broker
from stratamq.broker.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from stratamq.nameserver.routes import RouteTable
from stratamq.server.remoting import RemotingListener

QUEUES_SHOWN_MAX: Final = 1024


def overview(broker: Broker, routes: RouteTable, listeners: Iterable[RemotingListener]) -> dict[str, Any]:
    """Name, addresses, positions of the store, counters."""
    status, counters = broker.store.status(), broker.counters
    return {
        "version": __version__,
        "cluster": broker.config.cluster_name,
        "broker": broker.config.broker_name,
        "address": str(broker.address),
        "uptime_ms": broker.clock.wall_ms() - counters.started_ms,
        "is_accepting": broker.is_accepting,
        "brokers_known": [data.name for data in routes.brokers()],
        "store": {
            "min_physical_offset": status.min_physical_offset,
            "max_physical_offset": status.max_physical_offset,
            "flushed_physical_offset": status.flushed_physical_offset,
            "last_store_timestamp": status.last_store_timestamp,
            "commit_log_files": status.commit_log_files,
            "queues": status.queues,
            "is_writable": status.is_writable,
            "failure": status.failure,
        },
        "messages_put": counters.messages_put,
        "bytes_put": counters.bytes_put,
        "puts_failed": counters.puts_failed,
        "messages_got": counters.messages_got,
        "bytes_got": counters.bytes_got,
        "waiting_pulls": len(broker.waiting),
        "connections": {listener.name: len(listener.peers) for listener in listeners},
    }


def is_own_topic(broker: Broker, topic: str) -> bool:
    """Whether the broker made this topic for itself."""
    return is_system_topic(topic) or topic in broker.own_topics


def topics(broker: Broker, *, with_own: bool = False) -> list[dict[str, Any]]:
    """Topics with their queues; the broker's own only when asked for."""
    store = broker.store
    return [
        {
            "topic": name,
            "kind": "retry" if name.startswith(RETRY_PREFIX) else "dead" if name.startswith(DLQ_PREFIX) else "topic",
            "perm": config.perm,
            "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums,
            "queues": [
                {
                    "queue_id": queue_id,
                    "min_offset": store.min_offset(name, queue_id),
                    "max_offset": store.max_offset(name, queue_id),
                }
                for queue_id in range(min(config.queues, QUEUES_SHOWN_MAX))
            ],
        }
        for name, config in sorted(broker.topics.configs().items())
        if with_own or not is_own_topic(broker, name)
    ]


def groups(broker: Broker) -> list[dict[str, Any]]:
    """Consumer groups with members, and how far each is behind in each of its topics."""
    names = {*broker.groups.configs(), *(group for _, group in broker.offsets.pairs())}
    topics_of: dict[str, set[str]] = {name: set() for name in names}
    for topic, group in broker.offsets.pairs():
        topics_of[group].add(topic)
    rows = []
    for name in sorted(names):
        members = broker.consumers.find(name)
        subscribed = members.subscriptions if members is not None else {}
        rows.append(
            {
                "group": name,
                "members": len(members.members) if members is not None else 0,
                "message_model": members.message_model if members is not None else None,
                "topics": [_progress(broker, name, topic) for topic in sorted({*topics_of[name], *subscribed})],
            }
        )
    return rows


def _progress(broker: Broker, group: str, topic: str) -> dict[str, Any]:
    config = broker.topics.find(topic)
    committed = broker.offsets.of(group, topic)
    lag = 0
    for queue_id in range(config.read_queue_nums if config is not None else 0):
        low = broker.store.min_offset(topic, queue_id)
        lag += max(0, broker.store.max_offset(topic, queue_id) - max(low, committed.get(queue_id, 0)))
    return {"topic": topic, "lag": lag, "committed": {str(queue): offset for queue, offset in committed.items()}}
