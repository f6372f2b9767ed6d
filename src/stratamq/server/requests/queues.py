"""QUERY_CONSUME_QUEUE (321): an operator looks at the units of a queue.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java, queryConsumeQueue.
"""

from __future__ import annotations

from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.broker.subscriptions import Subscription
from stratamq.errors import InvalidArgument, RemoteProtocolError
from stratamq.protocols.remoting.admin_headers import ConsumeQueueHeader
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.groups import subscription_json

UNITS_MAX: Final = 4_096
"""Units in one answer; a request for more gets so many."""
_read_queue: Final = HeaderReader(ConsumeQueueHeader)


class QueueRequests:
    """Shows consume queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    def query(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return units of a queue, and which of them a group's subscription matches."""
        fields, store = _read_queue(header), self._broker.store
        where = f"{fields.queue_id}@{fields.topic}"
        low, high = (end(fields.topic, fields.queue_id) for end in (store.min_offset, store.max_offset))
        if not high:
            raise RemoteProtocolError(f"{where} is not exist!", reply_hint=ResponseCode.SYSTEM_ERROR)
        if fields.count < 0 or fields.index < 0:
            raise InvalidArgument(f"index {fields.index}, count {fields.count}: neither may be negative")
        answer: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        subscription = self._subscription(fields) if fields.consumer_group else None
        if fields.consumer_group:
            if subscription is None:
                answer["filterData"] = f"{fields.topic}@{fields.consumer_group} is not online!"
            else:
                answer["subscriptionData"] = subscription_json(subscription)
        if not low <= fields.index < high:
            remark = f"Index {fields.index} of {where} is not exist!"
            return encode_response(header, ResponseCode.SUCCESS, remark=remark, body=dump(answer).encode())
        units = store.units(fields.topic, fields.queue_id, fields.index, min(fields.count, UNITS_MAX))
        codes = subscription.tags_codes if subscription is not None else None
        answer["queueData"] = [
            {
                "eval": codes is None or (unit.tags_code & 0xFFFF_FFFF) in {code & 0xFFFF_FFFF for code in codes},
                "physicOffset": unit.physical_offset,
                "physicSize": unit.size,
                "tagsCode": unit.tags_code,
            }
            for unit in units
        ]
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    def _subscription(self, fields: ConsumeQueueHeader) -> Subscription | None:
        members = self._broker.consumers.find(fields.consumer_group or "")
        return members.subscriptions.get(fields.topic) if members is not None else None
