"""QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402): who reads which queue.

Clients that leave the sharing of queues to the broker ask for their part. This broker knows its own queues only.

Source: apache/rocketmq broker/.../QueryAssignmentProcessor.java.
"""

from __future__ import annotations

from stratamq.broker.broker import Broker
from stratamq.broker.request_modes import POP, PULL, average
from stratamq.errors import InvalidArgument
from stratamq.protocols.remoting.bodies import MessageQueue, dump, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

RETRY_PREFIX = "%RETRY%"
BROADCASTING = "BROADCASTING"


class AssignmentRequests:
    """Shares queues among the members of a group."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.QUERY_ASSIGNMENT)
    def query(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """The queues that a client pulls, or that it pops from."""
        fields = load_object(body)
        topic, group = str(fields.get("topic") or ""), str(fields.get("consumerGroup") or "")
        client = str(fields.get("clientId") or "")
        config = self._broker.topics.find(topic)
        if config is None or not config.is_readable:
            return encode_response(header, ResponseCode.SUCCESS, body=_assignments([], PULL))
        name = self._broker.config.broker_name
        mode, share = self._broker.request_modes.find(topic, group)
        if topic.startswith(RETRY_PREFIX):
            mode = PULL
        if mode == POP and share <= 0:
            return encode_response(
                header, ResponseCode.SUCCESS, body=_assignments([MessageQueue(topic, name, -1)], POP)
            )
        queues = list(range(config.read_queue_nums))
        if fields.get("messageModel") != BROADCASTING:
            queues = self._share(group, client, queues, share if mode == POP else 0)
        return encode_response(
            header, ResponseCode.SUCCESS, body=_assignments([MessageQueue(topic, name, one) for one in queues], mode)
        )

    def _share(self, group: str, client: str, queues: list[int], neighbours: int) -> list[int]:
        """A member's queues; with neighbours also those of the members that follow it."""
        known = self._broker.consumers.find(group)
        members = sorted(known.client_ids()) if known is not None else [client]
        if client not in members:
            return []
        place = members.index(client)
        found: list[int] = []
        for step in range(min(neighbours, len(members) - 1) + 1):
            found += average(queues, members, members[(place + step) % len(members)])
        return sorted(found)

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Let a group pull a topic's queues, or pop from them."""
        fields = load_object(body)
        topic, group = str(fields.get("topic") or ""), str(fields.get("consumerGroup") or "")
        if topic.startswith(RETRY_PREFIX):
            return encode_response(header, ResponseCode.NO_PERMISSION, remark="retry topics are always pulled")
        share = fields.get("popShareQueueNum") or 0
        if not isinstance(share, int):
            raise InvalidArgument(f"popShareQueueNum is {share!r}")
        self._broker.request_modes.set(topic, group, str(fields.get("mode")), share)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def all_modes(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """All modes, for slaves."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._broker.request_modes.as_json()).encode())


def _assignments(queues: list[MessageQueue], mode: str) -> bytes:
    rows = [{"messageQueue": queue.as_json(), "mode": mode} for queue in queues]
    return dump({"messageQueueAssignments": rows}).encode()
