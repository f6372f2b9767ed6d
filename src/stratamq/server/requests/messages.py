"""QUERY_MESSAGE (12), VIEW_MESSAGE_BY_ID (33), and offsets by time or end (29 to 32): reading without consuming.

Source: apache/rocketmq broker/.../QueryMessageProcessor.java, AdminBrokerProcessor.java.
"""

from __future__ import annotations

from typing import Final

from stratamq.broker.broker import Broker
from stratamq.errors import InvalidArgument, NothingFound, RemoteProtocolError
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import (
    HeaderReader,
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    ViewMessageHeader,
)
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.static_queues import StaticQueues

BODY_BYTES_MAX: Final = 15 * 1024 * 1024
"""Answers stay below the frame length that peers take."""

_read_query: Final = HeaderReader(QueryMessageHeader)
_read_view: Final = HeaderReader(ViewMessageHeader)
_read_queue: Final = HeaderReader(QueueHeader)
_read_search: Final = HeaderReader(SearchOffsetHeader)


class MessageRequests:
    """Finds messages and offsets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._place = broker.static_topics.place
        self._static = StaticQueues(broker)

    @serves(RequestCode.QUERY_MESSAGE)
    def query(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Find messages of a topic by key or unique key."""
        fields = _read_query(header)
        limit = self._broker.config.query_messages_max
        wanted = limit if fields.is_unique_key else min(fields.max_num, limit)
        if wanted < 1:
            raise InvalidArgument(f"maxNum is {fields.max_num}, it must be at least 1")
        found = self._broker.store.query(fields.topic, fields.key, wanted, fields.begin_timestamp, fields.end_timestamp)
        records, total = [], 0
        for record in found.records:
            total += len(record)
            if total > BODY_BYTES_MAX:
                total -= len(record)
                break
            records.append(record)
        if not records:
            raise NothingFound(f"no message with key {fields.key} in topic {fields.topic} in that time")
        ext = {
            "indexLastUpdateTimestamp": str(found.index_last_update_timestamp),
            "indexLastUpdatePhyoffset": str(found.index_last_update_physical_offset),
        }
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body=b"".join(records))

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the message that begins at a physical offset."""
        fields = _read_view(header)
        record = self._broker.store.record_at(fields.offset) if fields.offset >= 0 else None
        if record is None:
            raise RemoteProtocolError(f"no message at physical offset {fields.offset}", reply_hint=1)
        return encode_response(header, ResponseCode.SUCCESS, body=record)

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return a queue's offset for a time; lower boundary unless asked otherwise."""
        fields = _read_search(header)
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        if place is not None:
            self._static.search(peer, header, place, fields)
            return None
        upper = (fields.boundary_type or "").upper() == "UPPER"
        offset = self._broker.store.offset_by_time(fields.topic, fields.queue_id, fields.timestamp, upper)
        return encode_response(header, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the offset behind a queue's last message."""
        fields = _read_queue(header)
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        if place is not None:
            self._static.max_offset(peer, header, place)
            return None
        offset = self._broker.store.max_offset(fields.topic, fields.queue_id)
        return encode_response(header, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return a queue's first offset."""
        fields = _read_queue(header)
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        if place is not None:
            self._static.min_offset(peer, header, place)
            return None
        offset = self._broker.store.min_offset(fields.topic, fields.queue_id)
        return encode_response(header, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_time(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the store time of a queue's first message, -1 when it is empty."""
        fields = _read_queue(header)
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        if place is not None:
            self._static.earliest_time(peer, header, place)
            return None
        timestamp = self._broker.store.earliest_store_time(fields.topic, fields.queue_id)
        return encode_response(header, ResponseCode.SUCCESS, ext={"timestamp": str(timestamp)})
