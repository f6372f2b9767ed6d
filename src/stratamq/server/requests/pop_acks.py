"""What consumers say of messages that they popped: ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME.

Source: apache/rocketmq broker/.../AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.broker.pop_records import (
    MESSAGES_MAX,
    ORDERED_REVIVE_QUEUE,
    Key,
    parse_handle,
    popped_topic,
)
from stratamq.errors import GroupNotFound, InvalidArgument, MessageIllegal
from stratamq.protocols.remoting.bodies import body_error, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.pop_headers import AckHeader, ChangeInvisibleHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_read_ack: Final = HeaderReader(AckHeader)
_read_change: Final = HeaderReader(ChangeInvisibleHeader)

INVISIBLE_MS_MAX: Final = 7 * 24 * 3_600_000
BATCH_ACKS_MAX: Final = 10_000


class PopAckRequests:
    """Takes acks. ``arrived`` is told the topic when an ack gives an ordered queue free."""

    def __init__(self, broker: Broker, arrived: Callable[[str], None]) -> None:
        self._broker = broker
        self._pop = broker.pop
        self._arrived = arrived

    def _checked(self, topic: str, group: str, queue_id: int) -> None:
        config = self._broker.topics.get(topic)
        if not 0 <= queue_id < config.queues:
            raise MessageIllegal(f"topic {topic} has {config.queues} queues, there is no queue {queue_id}")
        if self._broker.groups.find(group) is None:
            raise GroupNotFound(f"consumer group {group} does not exist")

    @serves(RequestCode.ACK_MESSAGE)
    def ack(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """A popped message was consumed; answered when that is stored."""
        fields = _read_ack(header)
        handle = parse_handle(fields.extra_info)
        group, topic = fields.consumer_group, popped_topic(fields.topic, fields.consumer_group, handle.retry_flag)
        self._checked(topic, group, fields.queue_id)
        store = self._broker.store
        if not store.min_offset(topic, fields.queue_id) <= fields.offset <= store.max_offset(topic, fields.queue_id):
            return encode_response(
                header, ResponseCode.NO_MESSAGE, remark=f"offset {fields.offset} is not in the queue"
            )
        if handle.revive_queue == ORDERED_REVIVE_QUEUE:
            self._ack_in_order(group, topic, fields.queue_id, fields.offset, handle.pop_ms)
            return encode_response(header, ResponseCode.SUCCESS)
        self._pop.check_loaded()
        peer.begin_request()
        self._pop.ack(
            Key(group, topic, fields.queue_id, handle.start, handle.pop_ms),
            (fields.offset,),
            now_ms=self._broker.clock.wall_ms(),
            end_ms=handle.pop_ms + handle.invisible_ms,
            done=partial(self._done, peer, header, {}),
        )
        return None

    def _ack_in_order(self, group: str, topic: str, queue_id: int, offset: int, pop_ms: int) -> None:
        progress = self._broker.pop_order.ack((group, topic, queue_id), offset, pop_ms)
        if progress is not None:
            self._broker.offsets.commit(group, topic, queue_id, progress)
            self._arrived(topic)

    def _done(self, peer: Peer, header: CommandHeader, ext: dict[str, str], failure: str) -> None:
        peer.end_request()
        if header.is_one_way:
            return
        if failure:
            peer.write(encode_response(header, ResponseCode.SYSTEM_ERROR, remark=failure))
        else:
            peer.write(encode_response(header, ResponseCode.SUCCESS, ext=ext))

    @serves(RequestCode.BATCH_ACK_MESSAGE)
    def batch_ack(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Many popped messages were consumed; answered when all of that is stored."""
        acks = load_object(body).get("acks")
        if not isinstance(acks, list) or not all(isinstance(one, dict) for one in acks):
            raise body_error("acks must be a list of objects")
        if len(acks) > BATCH_ACKS_MAX:
            raise InvalidArgument(f"{len(acks)} acks at once; at most {BATCH_ACKS_MAX}")
        self._pop.check_loaded()
        now = self._broker.clock.wall_ms()
        read = [_read_batch_ack(one) for one in acks]
        peer.begin_request()
        left = 1
        failures: list[str] = []

        def done(failure: str) -> None:
            nonlocal left
            left -= 1
            if failure:
                failures.append(failure)
            if not left:
                self._done(peer, header, {}, failures[0] if failures else "")

        for key, revive_queue, offsets, end_ms in read:
            if revive_queue == ORDERED_REVIVE_QUEUE:
                for offset in offsets:
                    self._ack_in_order(key.group, key.topic, key.queue_id, offset, key.pop_ms)
            elif offsets:
                left += 1
                self._pop.ack(key, offsets, now_ms=now, end_ms=end_ms, done=done)
        done("")
        return None

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Hold a popped message longer, or give it back sooner; the client makes a new POP_CK of the answer."""
        fields = _read_change(header)
        handle = parse_handle(fields.extra_info)
        if not 0 <= fields.invisible_time <= INVISIBLE_MS_MAX:
            raise InvalidArgument(f"invisibleTime is {fields.invisible_time} ms; allowed: 0 to {INVISIBLE_MS_MAX}")
        group, topic = fields.consumer_group, popped_topic(fields.topic, fields.consumer_group, handle.retry_flag)
        self._checked(topic, group, fields.queue_id)
        now = self._broker.clock.wall_ms()
        if handle.revive_queue == ORDERED_REVIVE_QUEUE:
            place = (group, topic, fields.queue_id)
            self._broker.pop_order.change(place, fields.offset, handle.pop_ms, now + fields.invisible_time)
            ext = _times(handle.pop_ms, fields.invisible_time, ORDERED_REVIVE_QUEUE)
            return encode_response(header, ResponseCode.SUCCESS, ext=ext)
        self._pop.check_loaded()
        peer.begin_request()
        key = Key(group, topic, fields.queue_id, handle.start, handle.pop_ms)
        pop_ms = self._pop.free_pop_ms(key, fields.offset, now)
        self._pop.change(
            key,
            fields.offset,
            pop_ms=pop_ms,
            invisible_ms=fields.invisible_time,
            done=partial(self._done, peer, header, _times(pop_ms, fields.invisible_time, 0)),
        )
        return None


def _times(pop_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(revive_queue)}


def _read_batch_ack(one: dict[str, Any]) -> tuple[Key, int, list[int], int]:
    """Key, revive queue, offsets and end of one entry; short and long names. Raises RemoteProtocolError."""

    def member(short: str, long: str) -> Any:
        return one[short] if short in one else one[long]

    try:
        retry_flag = str(one.get("r", one.get("retry", "0")))
        group, topic = str(member("c", "consumerGroup")), str(member("t", "topic"))
        topic = popped_topic(topic, group, retry_flag)
        start, pop_ms = int(member("so", "startOffset")), int(member("pt", "popTime"))
        queue_id, revive_queue = int(member("q", "queueId")), int(member("rq", "reviveQueueId"))
        end_ms = pop_ms + int(one.get("it", one.get("invisibleTime", 0)))
        bits = base64.b64decode(str(member("b", "bitSet")), validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise body_error(f"an ack cannot be read: {error!r}") from None
    if len(bits) > MESSAGES_MAX:
        raise body_error(f"an ack of {8 * len(bits)} offsets")
    offsets = [start + 8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
    return Key(group, topic, queue_id, start, pop_ms), revive_queue, offsets, end_ms
