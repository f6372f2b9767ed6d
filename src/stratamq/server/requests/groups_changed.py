"""Consumer groups for operators, beyond their settings: 225, 303, 308, 314, 317, 345, 353.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.broker.groups import GroupConfig, check_group_name
from stratamq.errors import TopicNotFound
from stratamq.protocols.remoting.admin_headers import (
    BrokerConsumeStatsHeader,
    CloneOffsetHeader,
    CorrectionHeader,
    ForbiddenHeader,
    TopicOfGroupHeader,
)
from stratamq.protocols.remoting.bodies import MessageQueue, body_error, dump, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.groups import consume_stats, read_group_config, subscription_json
from stratamq.server.requests.topics import store_time

_log = logging.getLogger(__name__)
_read_time_span: Final = HeaderReader(TopicOfGroupHeader)
_read_correction: Final = HeaderReader(CorrectionHeader)
_read_clone: Final = HeaderReader(CloneOffsetHeader)
_read_stats: Final = HeaderReader(BrokerConsumeStatsHeader)
_read_forbidden: Final = HeaderReader(ForbiddenHeader)
NOTHING_BEHIND: Final = 2**63 - 1
"""What RocketMQ answers for a queue in which the compared group is not ahead of anybody."""


class GroupAdminRequests:
    """Moves offsets of consumer groups and says how they are getting on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def update_list(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Create or change several consumer groups; all or none."""
        entries = load_object(body).get("groupConfigList")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise body_error("groupConfigList is missing, or not all of it are objects")
        configs: list[GroupConfig] = [read_group_config(entry) for entry in entries]
        for config in configs:
            check_group_name(config.group_name)
        for config in configs:
            self._broker.groups.put(config)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_span(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the store times of each queue's first, last and consumed message, and how late the group is."""
        fields, broker = _read_time_span(header), self._broker
        topic, now = fields.topic, broker.clock.wall_ms()
        config = broker.topics.find(topic)
        if config is None:
            raise TopicNotFound(f"topic[{topic}] not exist")
        rows = []
        for queue_id in range(config.write_queue_nums):
            high = broker.store.max_offset(topic, queue_id)
            offset = broker.offsets.find(fields.group, topic, queue_id) or 0
            earliest = broker.store.earliest_store_time(topic, queue_id)
            consumed = self._stored_ms(topic, queue_id, offset - 1) if offset > 0 else earliest
            behind = max(0, now - self._stored_ms(topic, queue_id, offset)) if offset < high else 0
            queue = MessageQueue(topic, broker.config.broker_name, queue_id)
            rows.append(
                {
                    "consumeTimeStamp": consumed,
                    "delayTime": behind,
                    "maxTimeStamp": self._stored_ms(topic, queue_id, high - 1),
                    "messageQueue": queue.as_json(),
                    "minTimeStamp": earliest,
                }
            )
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"consumeTimeSpanSet": rows}).encode())

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of a queue's message; -1 when it is not there."""
        found = self._broker.store.get(topic, queue_id, offset, 1) if offset >= 0 else None
        return store_time(found.records[0]) if found is not None and found.records else -1

    @serves(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return by queue the smallest offset of any group that a group has gone beyond."""
        fields, broker = _read_correction(header), self._broker
        left_out = set(filter(None, (fields.filter_groups or "").split(",")))
        smallest: dict[int, int] = {}
        for group in broker.offsets.groups_of(fields.topic):
            if group in left_out:
                continue
            for queue_id, offset in broker.offsets.of(group, fields.topic).items():
                if offset >= broker.store.min_offset(fields.topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        for queue_id, offset in broker.offsets.of(fields.compare_group, fields.topic).items():
            if smallest.get(queue_id, NOTHING_BEHIND) > offset:
                smallest[queue_id] = NOTHING_BEHIND
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"correctionOffsets": smallest}).encode())

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Let a group stand where another one stands, in a topic or in all."""
        fields, broker = _read_clone(header), self._broker
        check_group_name(fields.dest_group)
        members = broker.consumers.find(fields.src_group)
        for topic in [fields.topic] if fields.topic else broker.offsets.topics_of(fields.src_group):
            if broker.topics.find(topic) is None:
                continue
            if not fields.offline and members is not None and topic not in members.subscriptions:
                continue  # the group has long left this topic
            broker.offsets.clone(fields.src_group, fields.dest_group, topic)
        _log.info("offsets of group %s are copied to %s for %s", fields.src_group, fields.dest_group, peer.address)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_stats(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return how far every group is behind in every queue."""
        ordered_only, broker = _read_stats(header).is_order, self._broker
        groups, behind = [], 0
        for group in sorted(broker.groups.configs()):
            members = broker.consumers.find(group)
            shown = []
            for topic in broker.offsets.topics_of(group):
                config = broker.topics.find(topic)
                if config is None or (ordered_only and not config.order):
                    continue
                if members is not None and topic not in members.subscriptions:
                    continue
                text, late = consume_stats(broker, group, [topic])
                shown.append(text)
                behind += late
            groups.append(f"{{{dump(group)}:[{','.join(shown)}]}}")
        answer = (
            f'{{"brokerAddr":{dump(str(broker.address))},"consumeStatsList":[{",".join(groups)}],'
            f'"totalDiff":{behind},"totalInflightDiff":0}}'
        )
        return encode_response(header, ResponseCode.SUCCESS, body=answer.encode())

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return what a group subscribes to in a topic."""
        fields = _read_time_span(header)
        members = self._broker.consumers.find(fields.group)
        found = members.subscriptions.get(fields.topic) if members is not None else None
        answer: dict[str, Any] = {"group": fields.group, "topic": fields.topic}
        if found is not None:
            answer["subscriptionData"] = subscription_json(found)
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    def forbidden(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Say whether a group may read a topic; allow or forbid it first when asked to."""
        fields, groups = _read_forbidden(header), self._broker.groups
        if fields.readable is not None:
            groups.set_readable(fields.group, fields.topic, fields.readable)
        readable = groups.is_readable(fields.group, fields.topic)
        answer = {"group": fields.group, "readable": readable, "topic": fields.topic}
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())
