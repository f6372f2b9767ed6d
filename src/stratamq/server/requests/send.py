"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): messages come in.

The hottest path of the broker: one decode of the header, one topic lookup, one message put; the answer is one formatted
byte string, written when the store says so. Nothing is kept of a message once it is answered.

Source: apache/rocketmq broker/.../SendMessageProcessor.java.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Final

from stratamq.broker.broker import Broker
from stratamq.broker.half_messages import half_message, is_half
from stratamq.broker.retry import dead_letter_topic
from stratamq.broker.sending import delay_level
from stratamq.broker.static_topics import Place
from stratamq.broker.timer_messages import is_for_a_time
from stratamq.broker.topics import DLQ_PREFIX, HALF_TOPIC, PERM_READ, PERM_WRITE, RETRY_PREFIX, TIMER_TOPIC, TopicConfig
from stratamq.errors import AccessDenied, GroupNotFound, MessageIllegal, ServiceUnavailable
from stratamq.formats.message import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
)
from stratamq.formats.properties import (
    INNER_NUM,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    find_property,
)
from stratamq.logstore.types import Appended, Message, PutDone, PutResult, PutStatus
from stratamq.protocols.remoting.bodies import decode_batch
from stratamq.protocols.remoting.codes import VERSION_RECONSUME_LIMIT, RequestCode, ResponseCode
from stratamq.protocols.remoting.command import FRAME_BYTES_MAX, CommandHeader
from stratamq.protocols.remoting.headers import AnySendHeader, read_send, read_send_v2
from stratamq.protocols.remoting.replies import SendReplies, encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.timers import RecallHandle, encode_handle

CODE_OF_PUT: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.SYSTEM_ERROR,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}

BATCH_MESSAGES_MAX: Final = 16_384


class SendRequests:
    """Takes messages from producers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sending = broker.sending
        self._place = broker.static_topics.place
        self._replies = SendReplies(region=broker.config.region, trace_on=broker.config.trace_on)
        self._put = broker.committer.put
        self._counters = broker.counters
        self._puts = broker.statistics.puts

    @serves(RequestCode.SEND_MESSAGE)
    def send(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Store a message; header with long names."""
        return self._send(peer, header, read_send(header), body)

    @serves(RequestCode.SEND_MESSAGE_V2)
    def send_v2(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Store a message; header with short names."""
        return self._send(peer, header, read_send_v2(header), body)

    @serves(RequestCode.SEND_BATCH_MESSAGE)
    def send_batch(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Store several messages of one queue together."""
        return self._send_batch(peer, header, read_send_v2(header), body)

    def _send(self, peer: Peer, header: CommandHeader, fields: AnySendHeader, body: memoryview) -> bytes | None:
        if fields.batch:
            return self._send_batch(peer, header, fields, body)
        if not self._broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        sending = self._sending
        reconsume_times = fields.reconsume_times or 0
        if fields.topic.startswith(RETRY_PREFIX):
            config, queue_id = self._retry_target(header, fields, reconsume_times)
            place = None
        else:
            config = sending.topic_for(
                fields.topic, template=fields.default_topic, queues=fields.default_topic_queue_nums
            )
            queue_id, place = self._queue(config, fields)
        message, unique_key = sending.message(
            config,
            queue_id,
            body=body,
            properties=fields.properties or "",
            born_timestamp=fields.born_timestamp,
            born_host=peer.born_host,
            flag=fields.flag,
            sys_flag=fields.sys_flag,
            reconsume_times=reconsume_times,
        )
        level = delay_level(message.properties)
        if "TRAN_MSG\x01" in message.properties and is_half(message.properties) and reconsume_times == 0:
            if self._broker.config.reject_transactions:
                raise AccessDenied("this broker takes no transactional messages (rejectTransactionMessage)")
            message = half_message(message)
            level = 0
        if level > 0 and not config.topic_name.startswith(DLQ_PREFIX):
            message = self._broker.delays.delayed(message, level)
        handle = ""
        if level <= 0 and "TIMER_" in message.properties and message.topic != HALF_TOPIC:
            message = self._broker.timers.accepted(message, self._broker.clock.wall_ms())
            handle = self._recall_handle(config.topic_name, message, unique_key)
        done: PutDone = partial(self._stored, peer, header, message.topic, queue_id, unique_key, handle, place)
        if message.topic == HALF_TOPIC:
            done = partial(self._half_stored, config.topic_name, done)
        peer.begin_request()
        try:
            self._put((message,), done)
        except BaseException:
            peer.end_request()
            raise
        return None

    def _queue(self, config: TopicConfig, fields: AnySendHeader) -> tuple[int, Place | None]:
        """The queue of a send; with the place of the logical queue for a static topic."""
        place = self._place(config.topic_name, fields.queue_id, lo=fields.lo)
        queue_id = fields.queue_id if place is None else place.leader.queue_id
        return self._sending.queue_for(config, queue_id), place

    def _half_stored(self, topic: str, done: PutDone, result: PutResult) -> None:
        if result.appended:
            self._broker.half_counts.add(topic, 1, self._broker.clock.wall_ms())
        done(result)

    def _stored(
        self,
        peer: Peer,
        header: CommandHeader,
        topic: str,
        queue_id: int,
        unique_key: str,
        recall_handle: str,
        place: Place | None,
        result: PutResult,
    ) -> None:
        """The store has dealt with a message: answer."""
        peer.end_request()
        if not result.appended:
            self._answer_failure(peer, header, result)
            return
        appended = result.appended[0]
        size = appended.size
        counters, tally = self._counters, self._puts[topic]
        counters.messages_put += 1
        counters.bytes_put += size
        tally.count += 1
        tally.size += size
        if header.flag & 2:
            return
        queue_offset = appended.queue_offset
        if place is not None:
            queue_id, queue_offset = _told(place, topic, queue_offset)
        peer.write(
            self._replies.encode(
                header.serialization,
                header.opaque,
                code=0 if result.status is PutStatus.PUT_OK else CODE_OF_PUT[result.status],
                message_id=f"{self._broker.host_hex}{appended.physical_offset:016X}",
                queue_id=queue_id,
                queue_offset=queue_offset,
                unique_key=unique_key,
                recall_handle=recall_handle,
            )
        )

    def _recall_handle(self, topic: str, message: Message, unique_key: str) -> str:
        """What a message that waits for its time can be recalled by; empty for any other."""
        if message.topic != TIMER_TOPIC or topic.startswith(RETRY_PREFIX):
            return ""
        slot_ms = int(find_property(message.properties, TIMER_OUT_MS) or 0)
        return encode_handle(RecallHandle(topic, self._broker.config.broker_name, slot_ms + 1, unique_key))

    def _send_batch(self, peer: Peer, header: CommandHeader, fields: AnySendHeader, body: memoryview) -> bytes | None:
        if not self._broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        if fields.topic.startswith(RETRY_PREFIX):
            raise MessageIllegal("a batch may not go to a retry topic")
        sending = self._sending
        config = sending.topic_for(fields.topic, template=fields.default_topic, queues=fields.default_topic_queue_nums)
        queue_id, place = self._queue(config, fields)
        sys_flag = fields.sys_flag
        if sys_flag & SYS_COMPRESSED:
            body = memoryview(inflate_batch(body, sys_flag, FRAME_BYTES_MAX))
            sys_flag &= ~(SYS_COMPRESSED | SYS_COMPRESSION_MASK)
        items = decode_batch(body)
        if len(items) > BATCH_MESSAGES_MAX:
            raise MessageIllegal(f"a batch of {len(items)} messages, at most {BATCH_MESSAGES_MAX} are taken")
        messages: list[Message] = []
        keys: list[str] = []
        for item in items:
            if is_half(item.properties):
                raise MessageIllegal("a batch may not hold transactional messages")
            if delay_level(item.properties) > 0:
                raise MessageIllegal("a batch may not hold delayed messages")
            if "TIMER_" in item.properties and is_for_a_time(item.properties):
                raise MessageIllegal("a batch may not hold messages for a set time")
            message, unique_key = sending.message(
                config,
                queue_id,
                body=item.body,
                properties=item.properties,
                born_timestamp=fields.born_timestamp,
                born_host=peer.born_host,
                flag=item.flag,
                sys_flag=sys_flag,
                reconsume_times=0,
            )
            messages.append(message)
            keys.append(unique_key)
        if config.is_batch and find_property(fields.properties or "", UNIQ_KEY):
            self._send_inner_batch(peer, header, fields, config, queue_id, place, body, sys_flag, len(items))
            return None
        peer.begin_request()
        try:
            self._put(messages, partial(self._stored_batch, peer, header, config.topic_name, queue_id, keys, place))
        except BaseException:
            peer.end_request()
            raise
        return None

    def _send_inner_batch(
        self,
        peer: Peer,
        header: CommandHeader,
        fields: AnySendHeader,
        config: TopicConfig,
        queue_id: int,
        place: Place | None,
        body: memoryview,
        sys_flag: int,
        count: int,
    ) -> None:
        """Store a batch as one record: its topic has queues of batches, and the client takes such records apart."""
        if not count:
            raise MessageIllegal("a batch holds no message")
        known = decode_properties(fields.properties or "")
        known[INNER_NUM] = str(count)
        message, unique_key = self._sending.message(
            config,
            queue_id,
            body=body,
            properties=encode_properties(known),
            born_timestamp=fields.born_timestamp,
            born_host=peer.born_host,
            flag=fields.flag,
            sys_flag=sys_flag | SYS_INNER_BATCH | SYS_NEED_UNWRAP,
            reconsume_times=0,
        )
        peer.begin_request()
        try:
            topic = config.topic_name
            self._put((message,), partial(self._stored_inner, peer, header, topic, queue_id, unique_key, count, place))
        except BaseException:
            peer.end_request()
            raise

    def _stored_inner(
        self,
        peer: Peer,
        header: CommandHeader,
        topic: str,
        queue_id: int,
        unique_key: str,
        count: int,
        place: Place | None,
        result: PutResult,
    ) -> None:
        """The store has dealt with an inner batch: answer with one id, and say what became of the batch."""
        peer.end_request()
        if not result.appended:
            self._answer_failure(peer, header, result)
            return
        appended = result.appended[0]
        counters, tally = self._counters, self._puts[topic]
        counters.messages_put += count
        counters.bytes_put += appended.size
        tally.count += count
        tally.size += appended.size
        if header.flag & 2:
            return
        queue_offset = appended.queue_offset
        if place is not None:
            queue_id, queue_offset = _told(place, topic, queue_offset)
        ext = {
            **self._replies.refused_ext(),
            "msgId": f"{self._broker.host_hex}{appended.physical_offset:016X}",
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": unique_key,
            "batchUniqId": unique_key,
        }
        peer.write(encode_response(header, CODE_OF_PUT[result.status], ext=ext))

    def _stored_batch(
        self,
        peer: Peer,
        header: CommandHeader,
        topic: str,
        queue_id: int,
        keys: list[str],
        place: Place | None,
        result: PutResult,
    ) -> None:
        """The store has dealt with a batch: answer with all ids, joined by commas."""
        peer.end_request()
        if not result.appended:
            self._answer_failure(peer, header, result)
            return
        count, size = len(result.appended), sum(appended.size for appended in result.appended)
        counters, tally = self._counters, self._puts[topic]
        counters.messages_put += count
        counters.bytes_put += size
        tally.count += count
        tally.size += size
        if header.flag & 2:
            return
        first: Appended = result.appended[0]
        queue_offset = first.queue_offset
        if place is not None:
            queue_id, queue_offset = _told(place, topic, queue_offset)
        host = self._broker.host_hex
        peer.write(
            self._replies.encode(
                header.serialization,
                header.opaque,
                code=CODE_OF_PUT[result.status],
                message_id=",".join([f"{host}{appended.physical_offset:016X}" for appended in result.appended]),
                queue_id=queue_id,
                queue_offset=queue_offset,
                unique_key=",".join(keys),
            )
        )

    def _answer_failure(self, peer: Peer, header: CommandHeader, result: PutResult) -> None:
        self._counters.puts_failed += 1
        if not header.is_one_way:
            remark = result.remark or result.status.value
            if result.status is PutStatus.OS_PAGE_CACHE_BUSY:
                remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {remark}"
            ext = self._replies.refused_ext()
            peer.write(encode_response(header, CODE_OF_PUT[result.status], ext=ext, remark=remark))

    def _retry_target(
        self, header: CommandHeader, fields: AnySendHeader, reconsume_times: int
    ) -> tuple[TopicConfig, int]:
        """Where a message goes that a client itself sends to a retry topic: there, or to the dead letters."""
        broker = self._broker
        group_name = fields.topic[len(RETRY_PREFIX) :]
        group = broker.groups.find(group_name)
        if group is None:
            raise GroupNotFound(f"consumer group {group_name} does not exist")
        times_max = group.retry_max_times
        if header.version >= VERSION_RECONSUME_LIMIT and fields.max_reconsume_times is not None:
            times_max = fields.max_reconsume_times
        retry = broker.topics.find(fields.topic)
        is_locked = retry is not None and broker.locks.is_group_locked(
            group_name, fields.topic, retry.queues, broker.clock.monotonic_ms()
        )
        if reconsume_times > times_max or is_locked:
            dead = broker.topics.ensure(dead_letter_topic(group_name), queues=1, perm=PERM_READ | PERM_WRITE)
            return dead, 0
        config = self._sending.topic_for(
            fields.topic, template=fields.default_topic, queues=fields.default_topic_queue_nums
        )
        return config, self._sending.queue_for(config, fields.queue_id)


def _told(place: Place, topic: str, queue_offset: int) -> tuple[int, int]:
    """What a producer is told of a message in a static topic: the logical queue and its offset there.

    What waits in another topic first (half, delayed) keeps the offset that it has there: clients give it back.
    """
    if topic != place.mapping.topic:
        return place.queue_id, queue_offset
    return place.queue_id, place.leader.to_logical_or_unknown(queue_offset)


def inflate_batch(body: memoryview, sys_flag: int, bytes_max: int) -> bytes:
    """The items of a batch that its client compressed as a whole, as the C++ client does above 4 KB.

    Raises MessageIllegal when it is no zlib stream, or more than ``bytes_max`` bytes come out of it.
    """
    if sys_flag & SYS_COMPRESSION_MASK not in (0, SYS_COMPRESSION_ZLIB):
        raise MessageIllegal("a batch compressed as a whole must be a zlib stream")
    stream = zlib.decompressobj()
    try:
        items = stream.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise MessageIllegal(f"a compressed batch cannot be read: {error}") from None
    if len(items) > bytes_max:
        raise MessageIllegal(f"a compressed batch holds more than {bytes_max} bytes")
    if not stream.eof:
        raise MessageIllegal("a compressed batch ends too early")
    return items
