"""CONSUMER_SEND_MSG_BACK (36): a consumer could not work off a message.

Source: apache/rocketmq broker/.../AbstractSendMessageProcessor.java, consumerSendMsgBack.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from stratamq.broker.broker import Broker
from stratamq.broker.retry import decide_retry, retry_copy
from stratamq.broker.topics import PERM_WRITE
from stratamq.errors import AccessDenied, GroupNotFound, RemoteProtocolError, ServiceUnavailable
from stratamq.formats.message import decode_record
from stratamq.logstore.types import PutResult
from stratamq.protocols.remoting.codes import VERSION_RECONSUME_LIMIT, RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader, SendBackHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.send import CODE_OF_PUT

_read_send_back: Final = HeaderReader(SendBackHeader)


class SendBackRequests:
    """Takes back what consumers could not work off."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Store a copy of a message for another try after a delay, or among the group's dead letters."""
        fields = _read_send_back(header)
        broker = self._broker
        group = broker.groups.find(fields.group)
        if group is None:
            raise GroupNotFound(f"consumer group {fields.group} does not exist")
        if not broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        if not broker.config.permission & PERM_WRITE:
            raise AccessDenied("this broker takes no messages (brokerPermission)")
        if group.retry_queue_nums <= 0:
            return encode_response(header, ResponseCode.SUCCESS)
        view = broker.store.record_at(fields.offset) if fields.offset >= 0 else None
        if view is None:
            raise RemoteProtocolError(f"no message at physical offset {fields.offset}", reply_hint=1)
        record = decode_record(view)
        times_max = group.retry_max_times
        if header.version >= VERSION_RECONSUME_LIMIT and fields.max_reconsume_times is not None:
            times_max = fields.max_reconsume_times
        retry = decide_retry(
            fields.group,
            reconsume_times=record.reconsume_times,
            times_max=times_max,
            delay_level=fields.delay_level,
        )
        topic = broker.topics.ensure(retry.topic, queues=1 if retry.is_dead else group.retry_queue_nums)
        if not topic.is_writable:
            raise AccessDenied(f"topic {retry.topic} is not writable")
        queue_id = random.randrange(max(1, topic.write_queue_nums))
        message_id = fields.origin_msg_id or record.message_id
        message = retry_copy(record, topic=retry.topic, queue_id=queue_id, message_id=message_id)
        if retry.delay_level:
            message = broker.delays.delayed(message, retry.delay_level)
        peer.begin_request()
        try:
            key = (record.topic, fields.group)
            broker.committer.put((message,), partial(self._stored, peer, header, key))
        except BaseException:
            peer.end_request()
            raise
        return None

    def _stored(self, peer: Peer, header: CommandHeader, key: tuple[str, str], result: PutResult) -> None:
        peer.end_request()
        if result.appended:
            tally = self._broker.statistics.returns[key]
            tally.count += 1
            tally.size += result.appended[0].size
        if header.is_one_way:
            return
        if result.appended:
            peer.write(encode_response(header, ResponseCode.SUCCESS))
        else:
            peer.write(encode_response(header, CODE_OF_PUT[result.status], remark=result.remark or result.status.value))
