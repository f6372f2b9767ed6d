"""QUERY_CONSUMER_OFFSET (14), UPDATE_CONSUMER_OFFSET (15), LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

A group without an offset starts at 0 when the queue still has its first message and that one is in memory: a new
group on a young topic reads it from the start, whatever it asked for. Clients count on that.

Source: apache/rocketmq broker/.../ConsumerManageProcessor.java, AdminBrokerProcessor.java.
"""

from __future__ import annotations

from typing import Final

from stratamq.broker.broker import Broker
from stratamq.errors import InvalidArgument, NothingFound, QueueNotFound
from stratamq.formats.message import PHYSICAL_OFFSET_AT
from stratamq.protocols.remoting.bodies import decode_lock_request, dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader, QueryOffsetHeader, read_update_offset
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.static_queues import StaticQueues

_read_query: Final = HeaderReader(QueryOffsetHeader)


class OffsetRequests:
    """Keeps consumer offsets and queue locks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._place = broker.static_topics.place
        self._static = StaticQueues(broker)

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return a group's offset in a queue, or where it should begin."""
        fields = _read_query(header)
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        if place is not None:
            if not place.is_one_queue:
                self._static.query_offset(peer, header, place, fields)
                return None
            fields.queue_id = place.leader.queue_id
        offset = self._broker.offsets.find(fields.consumer_group, fields.topic, fields.queue_id)
        if offset is None:
            may_begin = fields.set_zero_if_not_found is not False
            if not may_begin or not self._starts_in_memory(fields.topic, fields.queue_id):
                raise NothingFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        return encode_response(header, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a queue has lost nothing yet and its first message, if there is one, is in the page cache."""
        store = self._broker.store
        if store.min_offset(topic, queue_id) > 0:
            return False
        first = store.get(topic, queue_id, 0, 1)
        if not first.records:
            return True
        at = PHYSICAL_OFFSET_AT
        return store.is_in_memory(int.from_bytes(first.records[0][at : at + 8], "big", signed=True))

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Remember a group's offset in a queue."""
        fields = read_update_offset(header)
        broker = self._broker
        broker.groups.get(fields.consumer_group)
        topic = broker.topics.get(fields.topic)
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        if place is not None:
            item = place.item_at(fields.commit_offset)
            fields.queue_id, fields.commit_offset = item.queue_id, item.to_physical(fields.commit_offset)
            if not place.is_here(item):
                self._static.update_elsewhere(peer, header, place, item, fields)
                return None
        if not 0 <= fields.queue_id < topic.queues:
            raise QueueNotFound(f"topic {fields.topic} has {topic.queues} queues, there is no queue {fields.queue_id}")
        if fields.commit_offset < 0:
            raise InvalidArgument(f"commitOffset is {fields.commit_offset}, an offset is never negative")
        if broker.offsets.resets and broker.offsets.is_reset(fields.consumer_group, fields.topic, fields.queue_id):
            remark = "Offset has been previously reset"
            return None if header.is_one_way else encode_response(header, ResponseCode.SUCCESS, remark=remark)
        broker.offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset)
        return None if header.is_one_way else encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Lock queues for an orderly consumer; return those it holds."""
        request = decode_lock_request(body)
        queues = {(queue.topic, queue.queue_id): queue for queue in request.queues}
        now = self._broker.clock.monotonic_ms()
        held = self._broker.locks.lock(request.group, request.client_id, list(queues), now)
        answer = {"lockOKMQSet": [queues[key].as_json() for key in held]}
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Give queue locks back."""
        request = decode_lock_request(body)
        keys = [(queue.topic, queue.queue_id) for queue in request.queues]
        self._broker.locks.unlock(request.group, request.client_id, keys)
        return encode_response(header, ResponseCode.SUCCESS)
