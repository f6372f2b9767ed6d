"""HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46): who is there.

A heartbeat makes its consumer groups and their retry topics. When a member joins or leaves a clustering group, all
members are told (NOTIFY_CONSUMER_IDS_CHANGED, 40) so that they share the queues out anew at once.

Source: apache/rocketmq broker/.../ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, cast

from stratamq.broker.broker import Broker
from stratamq.broker.clients import BROADCASTING, Client
from stratamq.broker.subscriptions import ALL_TAGS, EXPRESSION_TAG, Subscription, parse_subscription
from stratamq.errors import RemoteProtocolError, SubscriptionIllegal
from stratamq.protocols.remoting.bodies import (
    ConsumerEntry,
    SubscriptionEntry,
    decode_heartbeat,
    decode_subscription,
    dump,
)
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import ConsumerGroupHeader, HeaderReader, UnregisterClientHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.pull import filters_off

_log = logging.getLogger(__name__)
_read_unregister: Final = HeaderReader(UnregisterClientHeader)
_read_group: Final = HeaderReader(ConsumerGroupHeader)


class MemberRequests:
    """Keeps track of producers and consumers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.HEART_BEAT)
    def heartbeat(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Note a client's producers and consumers; make their groups and retry topics."""
        data = decode_heartbeat(body)
        broker = self._broker
        client = Client(
            connection=peer,
            client_id=data.client_id,
            language=header.language_name,
            version=header.version,
            address=peer.address,
            seen_ms=broker.clock.monotonic_ms(),
        )
        for group in data.producer_groups:
            broker.producers.register(group, client)
        changed = [entry.group for entry in data.consumers if self._take_consumer(client, entry, data)]
        self.notify_groups(changed)
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        return encode_response(header, ResponseCode.SUCCESS, ext=ext)

    def _take_consumer(self, client: Client, entry: ConsumerEntry, data: object) -> bool:
        """Register one consumer; say whether the other members have to know."""
        broker = self._broker
        group = broker.groups.get(entry.group)
        broker.retry_topic_of(entry.group)
        is_short = getattr(data, "is_without_subscriptions", False) and not entry.subscriptions
        subscriptions = None if is_short else [_parse(item) for item in entry.subscriptions]
        joined = broker.consumers.register(
            entry.group,
            client,
            consume_type=entry.consume_type,
            message_model=entry.message_model,
            consume_from=entry.consume_from,
            subscriptions=subscriptions,
        )
        if subscriptions is not None:
            broker.filters.register(entry.group, subscriptions)
        if joined.is_new_member:
            _log.info("consumer %s from %s joined group %s", client.client_id, client.address, entry.group)
        is_told = group.notify_consumer_ids_changed_enable and entry.message_model != BROADCASTING
        return is_told and (joined.is_new_member or joined.is_new_subscription)

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take a client out of its groups."""
        fields = _read_unregister(header)
        broker = self._broker
        if fields.producer_group:
            broker.producers.unregister(fields.producer_group, peer)
        if fields.consumer_group and broker.consumers.unregister(fields.consumer_group, peer, fields.client_id):
            _log.info("consumer %s left group %s", fields.client_id, fields.consumer_group)
            self.notify_groups(broker.groups_left([fields.consumer_group]))
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the client ids of a consumer group's members."""
        fields = _read_group(header)
        group = self._broker.consumers.find(fields.consumer_group)
        if group is None:
            raise RemoteProtocolError(f"no consumer for group {fields.consumer_group} is connected", reply_hint=1)
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"consumerIdList": group.client_ids()}).encode())

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Say whether a subscription can be served."""
        _, _, entry = decode_subscription(body)
        if entry is not None:
            if entry.expression_type != EXPRESSION_TAG and not self._broker.config.property_filters:
                raise filters_off(entry.expression_type)
            parse_subscription(entry.topic, entry.expression, entry.expression_type)
        return encode_response(header, ResponseCode.SUCCESS)

    def notify_groups(self, groups: Iterable[str]) -> None:
        """Tell all members of clustering groups to share the queues out anew."""
        for name in groups:
            group = self._broker.consumers.find(name)
            config = self._broker.groups.find(name)
            if group is None or group.is_broadcasting:
                continue
            if config is not None and not config.notify_consumer_ids_changed_enable:
                continue
            for connection in list(group.members):
                member = cast(Peer, connection)
                if not member.is_closed:
                    member.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})


def _parse(entry: SubscriptionEntry) -> Subscription:
    """A heartbeat's subscription. One that cannot be served is kept as it is, and refused when somebody pulls by it."""
    try:
        if entry.expression_type == EXPRESSION_TAG:
            return parse_subscription(entry.topic, entry.expression, entry.expression_type, entry.version)
    except SubscriptionIllegal as error:
        _log.warning("%s; taken as *", error)
    return Subscription(
        topic=entry.topic,
        expression=entry.expression if entry.expression_type != EXPRESSION_TAG else ALL_TAGS,
        tags=frozenset(),
        tags_codes=None,
        version=entry.version,
        expression_type=entry.expression_type,
    )
