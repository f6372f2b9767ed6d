"""SEND_REPLY_MESSAGE (324, 325): an answer to a request among producers goes to the one who asked.

The reply names its asker by client id. It is pushed to that client over its own connection
(PUSH_REPLY_MESSAGE_TO_CLIENT, 326); when the client has answered, or has not in time, the reply is stored in
``CLUSTER_REPLY_TOPIC`` where `storeReplyMessageEnable` says so, and then the replier is answered: with 0 when the push
was taken, else with 1, stored or not.

Source: apache/rocketmq broker/.../ReplyMessageProcessor.java.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, cast

from stratamq.broker.broker import Broker
from stratamq.errors import MessageIllegal, ServiceUnavailable
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.logstore.types import Message, PutResult
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import AnySendHeader, read_send, read_send_v2
from stratamq.protocols.remoting.replies import SendReplies, encode_response
from stratamq.server.requests.base import Peer, serves

_log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS: Final = 10_000
"""How long the asker's client may take to answer the push."""
REPLY_TO: Final = "REPLY_TO_CLIENT"
PUSH_TIME: Final = "PUSH_REPLY_TIME"


@dataclass(slots=True)
class _Reply:
    """A reply on its way. ``failure`` is what the push ended with; empty when it was taken."""

    peer: Peer
    header: CommandHeader
    message: Message
    asker: str
    failure: str = ""


class ReplyRequests:
    """Passes replies on to who asked."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._replies = SendReplies(region=broker.config.region, trace_on=broker.config.trace_on)

    @serves(RequestCode.SEND_REPLY_MESSAGE)
    def send_reply(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Push a reply to the client that asked; header with long names."""
        return self._reply(peer, header, read_send(header), body)

    @serves(RequestCode.SEND_REPLY_MESSAGE_V2)
    def send_reply_v2(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Push a reply to the client that asked; header with short names."""
        return self._reply(peer, header, read_send_v2(header), body)

    def _reply(self, peer: Peer, header: CommandHeader, fields: AnySendHeader, body: memoryview) -> bytes | None:
        broker = self._broker
        if not broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        if fields.batch:
            raise MessageIllegal("a reply may not be a batch")
        sending = broker.sending
        config = sending.topic_for(fields.topic, template=fields.default_topic, queues=fields.default_topic_queue_nums)
        properties = fields.properties or ""
        message, _ = sending.message(
            config,
            sending.queue_for(config, fields.queue_id),
            body=bytes(body),
            properties=properties,
            born_timestamp=fields.born_timestamp,
            born_host=peer.born_host,
            flag=fields.flag,
            sys_flag=fields.sys_flag,
            reconsume_times=fields.reconsume_times or 0,
        )
        known = decode_properties(properties)
        reply = _Reply(peer, header, message, known.get(REPLY_TO, ""))
        client = broker.producers.find_client(reply.asker) if reply.asker else None
        peer.begin_request()
        if client is None:
            reply.failure = (
                f"push reply message fail, channel of <{reply.asker}> not found."
                if reply.asker
                else f"reply message properties[{REPLY_TO}] is null"
            )
            self._store(reply)
            return None

        def answered(answer: CommandHeader | None, body: bytes) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                reply.failure = f"push reply message to {reply.asker} fail."
            self._store(reply)

        ext = self._push_ext(peer, fields, known, message)
        cast(Peer, client.connection).call(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, bytes(body), answered, timeout_ms=PUSH_TIMEOUT_MS
        )
        return None

    def _push_ext(
        self, peer: Peer, fields: AnySendHeader, properties: dict[str, str], message: Message
    ) -> dict[str, str]:
        """The header of the push. Hosts are written without Java's leading slash."""
        now = self._broker.clock.wall_ms()
        return {
            "producerGroup": fields.producer_group,
            "topic": fields.topic,
            "defaultTopic": fields.default_topic,
            "defaultTopicQueueNums": str(fields.default_topic_queue_nums),
            "queueId": str(message.queue_id),
            "sysFlag": str(fields.sys_flag),
            "bornTimestamp": str(fields.born_timestamp),
            "flag": str(fields.flag),
            "properties": encode_properties(properties | {PUSH_TIME: str(now)}),
            "reconsumeTimes": str(fields.reconsume_times or 0),
            "unitMode": "false",
            "bornHost": peer.address,
            "storeHost": str(self._broker.address),
            "storeTimestamp": str(now),
        }

    def _store(self, reply: _Reply) -> None:
        """The push is over: store the reply where that is wanted, then answer."""
        if reply.failure:
            _log.warning("reply of %s: %s", reply.peer.address, reply.failure)
        if not self._broker.config.store_reply_messages or not self._broker.is_accepting:
            self._finish(reply, None)
            return
        try:
            self._broker.committer.put((reply.message,), lambda result: self._finish(reply, result))
        except Exception as error:
            _log.warning("a reply of %s was not stored: %s", reply.peer.address, error)
            self._finish(reply, None)

    def _finish(self, reply: _Reply, stored: PutResult | None) -> None:
        """Answer the replier. A reply that was pushed but not stored counts as sent, as for RocketMQ."""
        reply.peer.end_request()
        if stored is not None and stored.appended:
            self._broker.counters.messages_put += 1
            self._broker.counters.bytes_put += len(reply.message.body)
        elif stored is not None:
            self._broker.counters.puts_failed += 1
            _log.warning("a reply of %s was not stored: %s", reply.peer.address, stored.remark or stored.status.value)
        if reply.header.is_one_way:
            return
        if reply.failure:
            ext = self._replies.refused_ext()
            data = encode_response(reply.header, ResponseCode.SYSTEM_ERROR, ext=ext, remark=reply.failure)
        else:
            appended = stored.appended[0] if stored is not None and stored.appended else None
            data = self._replies.encode(
                reply.header.serialization,
                reply.header.opaque,
                code=ResponseCode.SUCCESS,
                message_id=f"{self._broker.host_hex}{appended.physical_offset:016X}" if appended else "0",
                queue_id=reply.message.queue_id,
                queue_offset=appended.queue_offset if appended else 0,
                unique_key="",
            )
        reply.peer.write(data)
