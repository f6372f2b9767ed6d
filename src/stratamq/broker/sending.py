"""From a send request to a message that may be stored: checks in RocketMQ's order, properties, ids.

Properties stay text: they are searched, not decoded, and the broker's own are appended. Only a message that already
carries one of those (a consumer sent it back, or a proxy did) is taken apart.

Source: apache/rocketmq broker/.../AbstractSendMessageProcessor.java, SendMessageProcessor.java.
"""

from __future__ import annotations

import random

from stratamq.broker.half_messages import is_half
from stratamq.broker.topics import PERM_WRITE, UNSENDABLE_TOPICS, TopicConfig, TopicTable, check_topic_name
from stratamq.errors import AccessDenied, MessageIllegal, MessageTooLarge, QueueNotFound
from stratamq.formats import properties as names
from stratamq.formats.message import SYS_HOSTS_V6, SYS_TRANSACTION_MASK
from stratamq.formats.properties import decode_properties, encode_properties, find_property
from stratamq.logstore.types import Message
from stratamq.units import Buffer


class UniqueKeys:
    """Makes message ids (UNIQ_KEY) for messages that come without: 32 hex digits, unique for this broker's life."""

    __slots__ = ("_counter", "_prefix")

    def __init__(self, host: bytes, *, process_id: int, start_ms: int) -> None:
        start = (start_ms & 0xFFFF_FFFF).to_bytes(4, "big")
        self._prefix = (host[:4] + (process_id & 0xFFFF).to_bytes(2, "big") + start).hex().upper()
        self._counter = 0

    def next(self) -> str:
        """A new id."""
        self._counter = (self._counter + 1) & 0xFFFF_FFFF_FFFF
        return f"{self._prefix}{self._counter:012X}"


class Sending:
    """The checks and additions that every sent message goes through."""

    def __init__(
        self,
        topics: TopicTable,
        unique_keys: UniqueKeys,
        *,
        cluster: str,
        region: str,
        trace_on: bool,
        permission: int,
        body_bytes_max: int,
    ) -> None:
        self._topics = topics
        self._unique_keys = unique_keys
        self._own = {
            names.MSG_REGION: region,
            names.TRACE_ON: "true" if trace_on else "false",
            names.CLUSTER: cluster,
        }
        self._own_text = encode_properties(self._own)
        self._body_bytes_max = body_bytes_max
        self.set_permission(permission)

    def set_permission(self, permission: int) -> None:
        """What clients may do from now on (`BrokerConfig.permission`)."""
        self._is_writable = bool(permission & PERM_WRITE)

    def next_unique_key(self) -> str:
        """A new id for a message that comes without one."""
        return self._unique_keys.next()

    def topic_for(self, topic: str, *, template: str, queues: int) -> TopicConfig:
        """The topic of a send; made from the template when it is not there and may be.

        Raises AccessDenied, TopicRefused, TopicNotFound. Cost: one lookup for a topic that exists.
        """
        found = self._topics.find(topic)
        if not self._is_writable:
            raise AccessDenied("this broker takes no messages (brokerPermission)")
        if found is None:
            check_topic_name(topic)
        if topic in UNSENDABLE_TOPICS:
            raise AccessDenied(f"topic {topic} belongs to the broker, clients may not send to it")
        if found is None:
            found = self._topics.create_from_template(topic, template=template, queues=queues)
        if not found.is_writable:
            raise AccessDenied(f"topic {topic} is not writable")
        if len(topic) > 127:
            raise MessageTooLarge(f"topic {topic} has {len(topic)} characters, a message's has at most 127")
        return found

    def queue_for(self, config: TopicConfig, queue_id: int) -> int:
        """The queue of a send; any for a negative id. Raises QueueNotFound."""
        if queue_id >= config.queues:
            raise QueueNotFound(f"topic {config.topic_name} has {config.queues} queues, there is no queue {queue_id}")
        if queue_id >= 0:
            return queue_id
        if config.write_queue_nums < 1:
            raise QueueNotFound(f"topic {config.topic_name} has no queue to write to")
        return random.randrange(config.write_queue_nums)

    def message(
        self,
        config: TopicConfig,
        queue_id: int,
        *,
        body: Buffer,
        properties: str,
        born_timestamp: int,
        born_host: bytes,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
    ) -> tuple[Message, str]:
        """The message to be stored and its unique key.

        Raises MessageTooLarge, MessageIllegal, AccessDenied. Cost: about 2 us.
        """
        if len(body) > self._body_bytes_max:
            raise MessageTooLarge(f"the body has {len(body)} bytes, at most {self._body_bytes_max} are taken")
        if sys_flag & SYS_TRANSACTION_MASK and not is_half(properties):
            raise MessageIllegal("transaction bits in sysFlag, but no property TRAN_MSG=true")
        if properties and properties[-1] != "\x02":
            properties += "\x02"
        if "MSG_REGION\x01" in properties or "POP_CK\x01" in properties or "CLUSTER\x01" in properties:
            known = decode_properties(properties)
            known.pop(names.POP_CK, None)
            properties = encode_properties(known | self._own)
        else:
            properties += self._own_text
        unique_key = find_property(properties, names.UNIQ_KEY)
        if unique_key is None:
            unique_key = self._unique_keys.next()
            properties += f"UNIQ_KEY\x01{unique_key}\x02"
        message = Message(
            topic=config.topic_name,
            queue_id=queue_id,
            body=body,
            properties=properties,
            born_timestamp=born_timestamp,
            born_host=born_host,
            flag=flag,
            sys_flag=sys_flag & ~SYS_HOSTS_V6,
            reconsume_times=reconsume_times,
            wait_for_sync="WAIT\x01false" not in properties or find_property(properties, names.WAIT) != "false",
        )
        return message, unique_key


def delay_level(properties: str) -> int:
    """The delay level that a message asks for; 0 for none. Raises MessageIllegal when it is no number."""
    if "DELAY\x01" not in properties:
        return 0
    level = find_property(properties, names.DELAY)
    if level is None:
        return 0
    try:
        return int(level)
    except ValueError:
        raise MessageIllegal(f"property DELAY is {level[:50]!r}, it must be a level number") from None
