"""Consumer groups for operators: settings (200, 201, 207, 352), progress (208), members (203, 204, 328), topics (343).

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from stratamq.broker.broker import Broker
from stratamq.broker.clients import Client
from stratamq.broker.groups import GroupConfig
from stratamq.broker.subscriptions import Subscription
from stratamq.errors import GroupNotFound, RemoteProtocolError
from stratamq.formats.java import string_hash
from stratamq.protocols.remoting.bodies import MessageQueue, body_error, dump, encode_queue_map, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import (
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    HeaderReader,
    ProducerGroupHeader,
)
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.topics import store_time

_read_consumers: Final = HeaderReader(ConsumerGroupHeader)
_read_producers: Final = HeaderReader(ProducerGroupHeader)
_read_group: Final = HeaderReader(GroupHeader)
_read_delete: Final = HeaderReader(DeleteGroupHeader)
_read_stats: Final = HeaderReader(ConsumeStatsHeader)


class GroupRequests:
    """Shows and changes consumer groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Create or change a consumer group."""
        self._broker.groups.put(read_group_config(load_object(body)))
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_configs(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return all consumer groups with their settings."""
        groups = self._broker.groups
        ext = {"totalGroupNum": str(len(groups))}
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body=dump(groups.as_json()).encode())

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def config(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return one consumer group's settings."""
        name = _read_group(header).group
        found = self._broker.groups.find(name)
        if found is None:
            raise GroupNotFound(f"consumer group {name} does not exist")
        return encode_response(header, ResponseCode.SUCCESS, body=msgspec.json.encode(found))

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Forget a consumer group, and its offsets when asked to."""
        fields = _read_delete(header)
        self._broker.groups.delete(fields.group_name)
        if fields.clean_offset:
            self._broker.offsets.delete_group(fields.group_name)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_CONSUME_STATS)
    def stats(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return how far a group is behind in each queue."""
        fields = _read_stats(header)
        broker, group = self._broker, fields.consumer_group
        if fields.topic:
            topics = [fields.topic]
        elif fields.topic_list:
            topics = [name for name in fields.topic_list.split(";") if name]
        else:
            members = broker.consumers.find(group)
            subscribed = list(members.subscriptions) if members is not None else []
            topics = sorted({*broker.offsets.topics_of(group), *subscribed})
        return encode_response(header, ResponseCode.SUCCESS, body=consume_stats(broker, group, topics)[0].encode())

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumers(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return a consumer group's members and subscriptions."""
        name = _read_consumers(header).consumer_group
        group = self._broker.consumers.find(name)
        if group is None:
            raise RemoteProtocolError(
                f"the consumer group[{name}] not online", reply_hint=ResponseCode.CONSUMER_NOT_ONLINE
            )
        answer = {
            "connectionSet": [_connection(client) for client in group.members.values()],
            "consumeFromWhere": group.consume_from,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: subscription_json(item) for topic, item in group.subscriptions.items()},
        }
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producers(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return a producer group's members."""
        name = _read_producers(header).producer_group
        members = self._broker.producers.members(name)
        if not members:
            raise RemoteProtocolError(f"the producer group[{name}] not exist", reply_hint=ResponseCode.SYSTEM_ERROR)
        answer = {"connectionSet": [_connection(client) for client in members]}
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the members of all producer groups."""
        data = {
            group: [
                {
                    "clientId": client.client_id,
                    "language": client.language,
                    "lastUpdateTimestamp": self._wall_ms(client.seen_ms),
                    "remoteIP": client.address,
                    "version": client.version,
                }
                for client in members
            ]
            for group, members in self._broker.producers.groups().items()
        }
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"data": data}).encode())

    def _wall_ms(self, monotonic_ms: int) -> int:
        clock = self._broker.clock
        return clock.wall_ms() - (clock.monotonic_ms() - monotonic_ms)

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the topics in which a group has an offset."""
        names = self._broker.offsets.topics_of(_read_group(header).group)
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"topicList": names}).encode())


def read_group_config(fields: dict[str, Any]) -> GroupConfig:
    """A group's settings as peers write them. Raises RemoteProtocolError."""
    known = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(known, GroupConfig, strict=False)
    except msgspec.ValidationError as error:
        raise body_error(f"consumer group cannot be read: {error}") from error


def consume_stats(broker: Broker, group: str, topics: Iterable[str]) -> tuple[str, int]:
    """How far a group is behind in topics: JSON text of RocketMQ's ConsumeStats, and the messages it is behind by."""
    rows: list[tuple[MessageQueue, dict[str, object]]] = []
    behind, rate, now = 0, 0.0, broker.clock.wall_ms()
    for topic in topics:
        config = broker.topics.find(topic)
        committed = broker.offsets.of(group, topic)
        rate += broker.statistics.gets_per_second(topic, group, now)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            high = broker.store.max_offset(topic, queue_id)
            offset = committed.get(queue_id, 0)
            last_ms = 0
            if offset > 0:
                last = broker.store.get(topic, queue_id, offset - 1, 1)
                last_ms = store_time(last.records[0]) if last.records else 0
            queue = MessageQueue(topic, broker.config.broker_name, queue_id)
            row: dict[str, object] = {
                "brokerOffset": high,
                "consumerOffset": offset,
                "lastTimestamp": last_ms,
                "pullOffset": offset,
            }
            rows.append((queue, row))
            behind += max(0, high - offset)
    return f'{{"consumeTps":{rate:.3f},"offsetTable":{encode_queue_map(rows)}}}', behind


def _connection(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def subscription_json(item: Subscription) -> dict[str, Any]:
    """A subscription under the member names that peers know."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(string_hash(tag) for tag in item.tags),
        "expressionType": item.expression_type,
        "subString": item.expression,
        "subVersion": item.version,
        "tagsSet": sorted(item.tags),
        "topic": item.topic,
    }
