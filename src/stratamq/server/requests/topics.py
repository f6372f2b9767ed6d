"""Topics for operators to look at: GET_ALL_TOPIC_CONFIG (21), 202, 300, 305, 351.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java.
"""

from __future__ import annotations

from typing import Final

import msgspec

from stratamq.broker.broker import Broker
from stratamq.broker.topics import is_system_topic
from stratamq.protocols.remoting.bodies import MessageQueue, dump, encode_queue_map
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader, TopicHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_read_topic: Final = HeaderReader(TopicHeader)


class TopicRequests:
    """Shows topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_configs(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return all topics with their settings."""
        topics, static = self._broker.topics, self._broker.static_topics
        mappings = {"mappingDataVersion": static.version.as_json(), "topicQueueMappingDetailMap": static.details()}
        answer = dump(topics.as_json() | mappings)
        ext = {"totalTopicNum": str(len(topics))}
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body=answer.encode())

    @serves(RequestCode.GET_TOPIC_CONFIG)
    def config(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return one topic's settings, with its queue mapping when it is static and `lo` asks for that."""
        fields = _read_topic(header)
        found = self._broker.topics.get(fields.topic)
        mapping = self._broker.static_topics.find(fields.topic) if fields.lo else None
        if mapping is None:
            return encode_response(header, ResponseCode.SUCCESS, body=msgspec.json.encode(found))
        answer = dump({**msgspec.to_builtins(found), "mappingDetail": mapping.as_json()})
        return encode_response(header, ResponseCode.SUCCESS, body=answer.encode())

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
    def stats(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the offsets of a topic's queues."""
        broker, topic = self._broker, _read_topic(header).topic
        config = broker.topics.get(topic)
        rows = []
        for queue_id in range(config.write_queue_nums):
            low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
            last = broker.store.get(topic, queue_id, high - 1, 1) if high > low else None
            stored_ms = store_time(last.records[0]) if last is not None and last.records else 0
            row = {"lastUpdateTimestamp": stored_ms, "maxOffset": high, "minOffset": low}
            rows.append((MessageQueue(topic, broker.config.broker_name, queue_id), row))
        rate = broker.statistics.puts_per_second(topic, broker.clock.wall_ms())
        answer = f'{{"offsetTable":{encode_queue_map(rows)},"topicPutTps":{rate:.3f}}}'
        return encode_response(header, ResponseCode.SUCCESS, body=answer.encode())

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the groups that consume a topic, now or before."""
        topic = _read_topic(header).topic
        found = {*self._broker.consumers.groups_of_topic(topic), *self._broker.offsets.groups_of(topic)}
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"groupList": sorted(found)}).encode())

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the names of the topics that the broker made for itself."""
        own = self._broker.own_topics
        names = [name for name in self._broker.topics.names() if is_system_topic(name) or name in own]
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"topicList": names}).encode())


def store_time(record: memoryview) -> int:
    """Store time of a record, from its bytes."""
    at = 68 if record[39] & 0x10 else 56
    return int.from_bytes(record[at : at + 8], "big", signed=True)
