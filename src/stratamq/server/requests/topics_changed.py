"""Topics that operators make and remove: 17, 18, 215, 316, 513.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java: updateAndCreateTopic, deleteTopic, cleanUnusedTopic,
updateAndCreateStaticTopic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from stratamq.broker.broker import Broker
from stratamq.broker.long_polling import Waiter
from stratamq.broker.static_topics import decode_mapping
from stratamq.broker.topic_attributes import change_attributes
from stratamq.broker.topics import RETRY_PREFIX, TopicConfig, is_system_topic
from stratamq.errors import InvalidArgument, MappingRefused, RemoteProtocolError, TopicRefused
from stratamq.protocols.remoting.admin_headers import DeleteTopicHeader
from stratamq.protocols.remoting.bodies import body_error, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.fastjson import loads
from stratamq.protocols.remoting.headers import CreateTopicHeader, HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_log = logging.getLogger(__name__)
_read_create: Final = HeaderReader(CreateTopicHeader)
_read_delete: Final = HeaderReader(DeleteTopicHeader)


class TopicChangeRequests:
    """Makes, changes and removes topics. ``resume`` runs pulls again that wait (`PullRequests.resume`)."""

    def __init__(self, broker: Broker, resume: Callable[[Sequence[Waiter]], None]) -> None:
        self._broker = broker
        self._resume = resume

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def update(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Create or change a topic."""
        self._put(self._config_of(_read_create(header)))
        return encode_response(header, ResponseCode.SUCCESS)

    def _config_of(self, fields: CreateTopicHeader) -> TopicConfig:
        """A topic as a header states it. Its attributes are changes of the known ones."""
        known = self._broker.topics.find(fields.topic)
        try:
            attributes = change_attributes(
                known.attributes if known is not None else {}, fields.attributes or "", is_new=known is None
            )
        except InvalidArgument as error:
            raise RemoteProtocolError(str(error), reply_hint=ResponseCode.SYSTEM_ERROR) from error
        return TopicConfig(
            topic_name=fields.topic,
            read_queue_nums=fields.read_queue_nums,
            write_queue_nums=fields.write_queue_nums,
            perm=fields.perm,
            topic_filter_type=fields.topic_filter_type or "SINGLE_TAG",
            topic_sys_flag=fields.topic_sys_flag or 0,
            order=bool(fields.order),
            attributes=attributes,
        )

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def update_list(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Create or change several topics; all or none."""
        entries = load_object(body).get("topicConfigList")
        if not isinstance(entries, list):
            raise body_error("topicConfigList is missing")
        configs = [self._config(entry) for entry in entries]
        for config in configs:
            self._broker.topics.check(config)
        for config in configs:
            self._put(config)
        return encode_response(header, ResponseCode.SUCCESS)

    def _config(self, entry: Any) -> TopicConfig:
        """A topic as it stands in a list. Its attributes are changes, as in the header of 17."""
        if not isinstance(entry, dict):
            raise body_error("topicConfigList holds something that is no object")
        given = entry.get("attributes")
        changes = given if isinstance(given, dict) else {}
        fields = {name: value for name, value in entry.items() if value is not None and name != "attributes"}
        try:
            config = msgspec.convert(fields, TopicConfig, strict=False)
        except msgspec.ValidationError as error:
            raise body_error(f"topic cannot be read: {error}") from error
        known = self._broker.topics.find(config.topic_name)
        text = ",".join(
            f"{name if str(name)[:1] in '+-' else f'+{name}'}{'' if str(name)[:1] == '-' else f'={value}'}"
            for name, value in changes.items()
        )
        config.attributes = change_attributes(known.attributes if known is not None else {}, text, is_new=known is None)
        return config

    def _put(self, config: TopicConfig) -> None:
        topics = self._broker.topics
        if topics.find(config.topic_name) != config:
            topics.update(config)

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Remove a topic, its queues, the offsets of groups in it, and the retry topics that pop made for it."""
        topic = _read_delete(header).topic
        if not topic:
            raise TopicRefused("the topic is empty")
        broker = self._broker
        if is_system_topic(topic) or topic in broker.own_topics:
            raise TopicRefused(f"topic {topic} belongs to the broker")
        for name in self._pop_retry_topics(topic):
            broker.delete_topic(name)
        broker.delete_topic(topic)
        _log.info("topic %s is removed for %s", topic, peer.address)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Remove the queues of topics that are in the store but not in the broker's table."""
        broker = self._broker
        unused = sorted({topic for topic, _ in broker.store.queues() if broker.topics.find(topic) is None})
        for topic in unused:
            if not is_system_topic(topic):
                broker.delete_topic(topic)
        if unused:
            _log.info("topics without settings are removed for %s: %s", peer.address, ", ".join(unused))
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
    def static(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Create or change a static topic: its settings and, in the body, which logical queues lie here."""
        fields = _read_create(header)
        broker, config = self._broker, self._config_of(fields)
        broker.topics.check(config)
        mapping = decode_mapping(loads(body))
        if mapping.topic != config.topic_name:
            raise MappingRefused(f"the queue mapping is of topic {mapping.topic}, the request of {config.topic_name}")
        accepted = broker.static_topics.accept(mapping, force=bool(fields.force))
        beyond = [number for number, queue_id in accepted.led().items() if queue_id >= config.queues]
        if beyond:
            raise MappingRefused(f"queue {beyond[0]} lies in a physical queue beyond the topic's {config.queues}")
        broker.static_topics.put(accepted)
        broker.topics.put(config)
        for topic, queue_id in broker.waiting.queues():
            if topic == config.topic_name:  # whoever waits at a queue that has moved is told so now
                self._resume(broker.waiting.wake(topic, queue_id, ()))
        return encode_response(header, ResponseCode.SUCCESS)

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """The retry topics that pop consumption has made for a topic; none that is an ordinary group's."""
        broker = self._broker
        groups = {*broker.groups.configs(), *broker.offsets.groups_of(topic)}
        names = (f"{group}{mark}{topic}" for group in groups for mark in "_+")
        return sorted(
            RETRY_PREFIX + name for name in names if name not in groups and RETRY_PREFIX + name in broker.topics
        )
