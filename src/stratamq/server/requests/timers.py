"""RECALL_MESSAGE (370), GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61).

A message for a time is recalled by the handle that its send was answered with: ``v1``, topic, broker, due time and
unique key, joined by blanks, in URL-safe base64. Recalling stores a message for the same time that deletes it.

Source: apache/rocketmq broker/.../processor/RecallMessageProcessor.java, common/.../producer/RecallMessageHandle.java.
"""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import Final, NamedTuple

from stratamq.broker.broker import Broker
from stratamq.errors import AccessDenied, RecallRefused, ServiceUnavailable
from stratamq.formats import properties as names
from stratamq.formats.properties import encode_properties
from stratamq.logstore.types import Message, PutResult, PutStatus
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import ExtFields, HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

RECALL_TAG: Final = "_RECALL_TAG_"
_HANDLE_CHARACTERS_MAX: Final = 2_000


class RecallHeader(ExtFields):
    """The extFields of RECALL_MESSAGE."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


_read_recall: Final = HeaderReader(RecallHeader)


class RecallHandle(NamedTuple):
    """What a handle says. ``due_ms`` is a moment within the message's step of the timer wheel."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str


def encode_handle(handle: RecallHandle) -> str:
    """The handle as clients get it."""
    text = f"v1 {handle.topic} {handle.broker_name} {handle.due_ms} {handle.unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Read a handle. Raises RecallRefused."""
    try:
        if len(text) > _HANDLE_CHARACTERS_MAX:
            raise ValueError
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        version, topic, broker_name, due, unique_key = raw.decode().split(" ")
        if version != "v1" or not unique_key or not (due.isascii() and due.isdigit() and len(due) < 19):
            raise ValueError
    except (ValueError, binascii.Error):
        raise RecallRefused(f"the recall handle {text[:50]!r} is not one") from None
    return RecallHandle(topic, broker_name, int(due), unique_key)


class TimerRequests:
    """Messages for a time: recalling them, and how far the timer is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take back a message whose time has not come."""
        broker = self._broker
        config = broker.config
        if not config.recall_messages:
            raise AccessDenied("messages cannot be recalled here: recallMessageEnable is false")
        if not broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        fields = _read_recall(header)
        topic = broker.topics.get(fields.topic)
        handle = decode_handle(fields.recall_handle)
        if handle.topic != topic.topic_name:
            raise RecallRefused(f"the handle is for topic {handle.topic}, not for {topic.topic_name}")
        if handle.broker_name != config.broker_name:
            raise RecallRefused(f"the handle is for broker {handle.broker_name}, this is {config.broker_name}")
        now = broker.clock.wall_ms()
        if not 0 < handle.due_ms - now < config.timer_max_delay_s * 1_000:
            raise RecallRefused("the message is due already, or the handle's time is not one that was given out")
        properties = {
            names.TAGS: RECALL_TAG,
            names.TIMER_DELIVER_MS: str(handle.due_ms),
            names.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.unique_key}",
            names.UNIQ_KEY: handle.unique_key,
        }
        message = Message(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            properties=encode_properties(properties),
            born_timestamp=now,
            born_host=peer.born_host,
        )
        message = broker.timers.accepted(message, now)
        peer.begin_request()
        try:
            broker.committer.put((message,), partial(self._stored, peer, header, handle.unique_key))
        except BaseException:
            peer.end_request()
            raise
        return None

    def _stored(self, peer: Peer, header: CommandHeader, unique_key: str, result: PutResult) -> None:
        peer.end_request()
        if header.is_one_way:
            return
        if not result.appended:
            remark = result.remark or result.status.value
            peer.write(encode_response(header, ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        code = {
            PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
            PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
            PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
        }.get(result.status, ResponseCode.SUCCESS)
        peer.write(encode_response(header, code, ext={"msgId": unique_key}))

    @serves(RequestCode.GET_TIMER_CHECK_POINT)
    def checkpoint(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return how far the timer was when it was last synced: seven numbers of eight bytes."""
        return encode_response(header, ResponseCode.SUCCESS, body=self._broker.timers.checkpoint_bytes())

    @serves(RequestCode.GET_TIMER_METRICS)
    def metrics(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return how many messages of each topic wait for their time."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._broker.timers.metrics.as_json()).encode())
