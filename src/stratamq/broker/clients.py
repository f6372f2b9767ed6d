"""Who is connected: producers and consumers by group, as heartbeats tell.

A client is known by its connection (any hashable value) and by the id it gives itself. A silent client is dropped
after 120 s, one whose connection closes at once. What a group subscribes to is the newest that any member said.

Source: apache/rocketmq broker/.../ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stratamq.broker.subscriptions import Subscription

CLIENT_TIMEOUT_MS: Final = 120_000
BROADCASTING: Final = "BROADCASTING"


@dataclass(slots=True)
class Client:
    """One member of a group."""

    connection: Hashable
    client_id: str
    language: str
    version: int
    address: str
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group that has members now, or had some since the broker started."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Hashable, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member reads everything."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Ids of the members, in the order in which they joined, each once."""
        return list(dict.fromkeys(client.client_id for client in self.members.values()))


class Joined(NamedTuple):
    """What a heartbeat changed in a group."""

    is_new_member: bool
    is_new_subscription: bool


class ConsumerTable:
    """Consumer groups and their members. Time is monotonic."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Hashable, set[str]] = {}

    def register(
        self,
        group_name: str,
        client: Client,
        *,
        consume_type: str,
        message_model: str,
        consume_from: str,
        subscriptions: Sequence[Subscription] | None,
    ) -> Joined:
        """Take one consumer of a heartbeat. ``subscriptions`` None leaves them as they are."""
        group = self._groups.get(group_name)
        if group is None:
            group = self._groups[group_name] = ConsumerGroup(group_name)
        group.consume_type = consume_type
        group.message_model = message_model
        group.consume_from = consume_from
        known = group.members.get(client.connection)
        is_new = known is None or known.client_id != client.client_id
        group.members[client.connection] = client
        self._groups_of.setdefault(client.connection, set()).add(group_name)
        return Joined(is_new, subscriptions is not None and _take_subscriptions(group, subscriptions))

    def unregister(self, group_name: str, connection: Hashable, client_id: str) -> bool:
        """A client leaves a group; say whether it was a member."""
        group = self._groups.get(group_name)
        client = group.members.get(connection) if group is not None else None
        if group is None or client is None or (client_id and client.client_id != client_id):
            return False
        self._remove(group, connection)
        return True

    def drop_connection(self, connection: Hashable) -> list[str]:
        """Remove a closed connection; return the groups that lost a member."""
        left = sorted(self._groups_of.get(connection, ()))
        for name in left:
            self._remove(self._groups[name], connection)
        return left

    def expire(self, now_ms: int) -> list[tuple[str, Client]]:
        """Remove members that were silent too long."""
        late = [
            (group, client)
            for group in self._groups.values()
            for client in group.members.values()
            if now_ms - client.seen_ms > CLIENT_TIMEOUT_MS
        ]
        for group, client in late:
            self._remove(group, client.connection)
        return [(group.name, client) for group, client in late]

    def _remove(self, group: ConsumerGroup, connection: Hashable) -> None:
        group.members.pop(connection, None)
        groups = self._groups_of.get(connection)
        if groups is not None:
            groups.discard(group.name)
            if not groups:
                del self._groups_of[connection]
        if not group.members:
            self._groups.pop(group.name, None)

    def find(self, group_name: str) -> ConsumerGroup | None:
        """A group that has members, or None."""
        return self._groups.get(group_name)

    def groups(self) -> list[ConsumerGroup]:
        """All groups that have members."""
        return list(self._groups.values())

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups with members that subscribe to a topic, sorted."""
        return sorted(group.name for group in self._groups.values() if topic in group.subscriptions)


def _take_subscriptions(group: ConsumerGroup, subscriptions: Sequence[Subscription]) -> bool:
    """Keep the newest subscription of each topic and drop topics no longer named; say whether the topics changed."""
    changed = False
    for new in subscriptions:
        old = group.subscriptions.get(new.topic)
        if old is None:
            changed = True
        if old is None or new.version > old.version:
            group.subscriptions[new.topic] = new
    named = {subscription.topic for subscription in subscriptions}
    for topic in [topic for topic in group.subscriptions if topic not in named]:
        del group.subscriptions[topic]
        changed = True
    return changed


class ProducerTable:
    """Producer groups and their members. Time is monotonic."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Hashable, Client]] = {}
        self._by_id: dict[str, Client] = {}

    def register(self, group: str, client: Client) -> None:
        """Take one producer of a heartbeat."""
        self._groups.setdefault(group, {})[client.connection] = client
        self._by_id[client.client_id] = client

    def find_client(self, client_id: str) -> Client | None:
        """The client that gave itself an id, by its last heartbeat as a producer; None when it is gone."""
        return self._by_id.get(client_id)

    def unregister(self, group: str, connection: Hashable) -> None:
        """A client leaves a group."""
        members = self._groups.get(group)
        if members is not None:
            left = members.pop(connection, None)
            if not members:
                del self._groups[group]
            if left is not None and not any(connection in others for others in self._groups.values()):
                known = self._by_id.get(left.client_id)
                if known is not None and known.connection == connection:
                    del self._by_id[left.client_id]

    def drop_connection(self, connection: Hashable) -> None:
        """Remove a closed connection from all groups."""
        for group in [name for name, members in self._groups.items() if connection in members]:
            self.unregister(group, connection)

    def expire(self, now_ms: int) -> None:
        """Remove members that were silent too long."""
        late = [
            (name, client.connection)
            for name, members in self._groups.items()
            for client in members.values()
            if now_ms - client.seen_ms > CLIENT_TIMEOUT_MS
        ]
        for name, connection in late:
            self.unregister(name, connection)

    def members(self, group: str) -> list[Client]:
        """Members of a producer group."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> dict[str, list[Client]]:
        """All producer groups with their members."""
        return {name: list(members.values()) for name, members in sorted(self._groups.items())}
