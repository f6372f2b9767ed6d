"""INVOKE_BROKER_TO_RESET_OFFSET (222): an operator moves a group, at the broker or through its members.

At the broker (``useServerSideResetOffset``, the default) the offset stands at once, and the group's next pull of the
queue, or the one that waits there, is answered with 21 and the new offset. Otherwise each member is told (220).

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java (resetOffset), broker/.../Broker2Client.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from stratamq.broker.broker import Broker
from stratamq.broker.long_polling import Waiter
from stratamq.errors import GroupNotFound, InvalidArgument, QueueNotFound, RemoteProtocolError, TopicNotFound
from stratamq.protocols.remoting.admin_headers import ResetOffsetHeader
from stratamq.protocols.remoting.bodies import MessageQueue, dump, encode_queue_numbers
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_log = logging.getLogger(__name__)
_read_reset: Final = HeaderReader(ResetOffsetHeader)


class ResetRequests:
    """Moves groups. ``resume`` runs pulls again that wait (`PullRequests.resume`)."""

    def __init__(self, broker: Broker, resume: Callable[[Sequence[Waiter]], None]) -> None:
        self._broker = broker
        self._resume = resume

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Let a group go on from another offset, or from where it stood at a time."""
        fields, broker = _read_reset(header), self._broker
        config = broker.topics.find(fields.topic)
        if config is None:
            raise TopicNotFound(f"Topic {fields.topic} does not exist")
        if broker.groups.find(fields.group) is None:
            raise GroupNotFound(f"Group {fields.group} does not exist")
        if fields.queue_id >= config.queues:
            raise QueueNotFound(f"topic {fields.topic} has {config.queues} queues, there is no queue {fields.queue_id}")
        if broker.config.server_side_reset:
            moved = self._reset_here(fields, config.read_queue_nums)
        else:
            moved = self._tell_members(fields, config.write_queue_nums)
        _log.info("group %s is moved in topic %s for %s: %s", fields.group, fields.topic, peer.address, moved)
        return encode_response(header, ResponseCode.SUCCESS, body=self._table(fields.topic, moved).encode())

    def _table(self, topic: str, moved: Mapping[int, int]) -> str:
        name = self._broker.config.broker_name
        rows = ((MessageQueue(topic, name, queue_id), offset) for queue_id, offset in moved.items())
        return f'{{"offsetTable":{encode_queue_numbers(rows)}}}'

    def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        store = self._broker.store
        return store.max_offset(topic, queue_id) if timestamp < 0 else store.offset_by_time(topic, queue_id, timestamp)

    def _reset_here(self, fields: ResetOffsetHeader, queues: int) -> dict[int, int]:
        broker, topic, group = self._broker, fields.topic, fields.group
        moved: dict[int, int] = {}
        if fields.queue_id >= 0 and fields.offset is not None and fields.offset >= 0:
            low, high = (end(topic, fields.queue_id) for end in (broker.store.min_offset, broker.store.max_offset))
            if not low <= fields.offset <= high:
                raise RemoteProtocolError(
                    f"Target offset {fields.offset} not in consume queue range [{low}-{high}]",
                    reply_hint=ResponseCode.SYSTEM_ERROR,
                )
            moved[fields.queue_id] = fields.offset
        else:
            for queue_id in range(queues) if fields.queue_id < 0 else (fields.queue_id,):
                moved[queue_id] = self._offset_at(topic, queue_id, fields.timestamp)
        if not moved:
            raise InvalidArgument(f"topic {topic} has no queue to read from: No queues to reset.")
        for queue_id, offset in moved.items():
            broker.offsets.reset(group, topic, queue_id, offset)
            self._resume(broker.waiting.wake(topic, queue_id, ()))
        return moved

    def _tell_members(self, fields: ResetOffsetHeader, queues: int) -> dict[int, int]:
        broker, topic, group = self._broker, fields.topic, fields.group
        members = broker.consumers.find(group)
        if members is None:
            raise RemoteProtocolError(
                f"Consumer not online, so can not reset online consumer offset. Group: {group}, Topic: {topic}, "
                f"Timestamp: {fields.timestamp}",
                reply_hint=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        moved: dict[int, int] = {}
        for queue_id in range(queues) if fields.queue_id < 0 else (fields.queue_id,):
            committed = broker.offsets.find(group, topic, queue_id)
            if committed is None:
                raise RemoteProtocolError(
                    f"THe consumer group <{group}> not exist: it has no offset in queue {queue_id} of topic {topic}",
                    reply_hint=ResponseCode.SYSTEM_ERROR,
                )
            wanted = self._offset_at(topic, queue_id, fields.timestamp)
            moved[queue_id] = wanted if fields.is_force or wanted < committed else committed
        ext = {"topic": topic, "group": group, "timestamp": str(fields.timestamp)}
        for client in list(members.members.values()):
            text = self._list(topic, moved) if client.language == "CPP" else self._table(topic, moved)
            cast(Peer, client.connection).notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, text.encode())
        return moved

    def _list(self, topic: str, moved: Mapping[int, int]) -> str:
        """The same for the C++ client, which does not read maps with objects as keys."""
        name = self._broker.config.broker_name
        rows = [{**MessageQueue(topic, name, queue_id).as_json(), "offset": at} for queue_id, at in moved.items()]
        return dump({"offsetTable": rows})
