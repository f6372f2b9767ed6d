"""QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402): who reads which queue.

Clients that leave the sharing of queues to the broker ask one of the topic's brokers for their part of all of them. An
answer without a list (`{}`) leaves a client what it has; an empty list takes everything away from it.

Source: apache/rocketmq broker/.../QueryAssignmentProcessor.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stratamq.broker.assignments import Queue, assign
from stratamq.broker.broker import Broker
from stratamq.errors import InvalidArgument
from stratamq.logstore.light_queues import is_light_name
from stratamq.protocols.remoting.bodies import MessageQueue, dump, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

RETRY_PREFIX: Final = "%RETRY%"
BROADCASTING: Final = "BROADCASTING"
DEFAULT_STRATEGY: Final = "AVG"
"""For clients that name none."""


class AssignmentRequests:
    """Shares queues among the members of a group."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.QUERY_ASSIGNMENT)
    def query(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """The queues that a client pulls, or that it pops from."""
        fields = load_object(body)
        topic = str(fields.get("topic") or "")
        mode, share = self._broker.request_modes.find(topic, str(fields.get("consumerGroup") or ""))

        def told(queues: Sequence[Queue] | None) -> None:
            peer.end_request()
            found = None if queues is None else self._part(fields, queues, mode, share)
            rows = None if found is None else [MessageQueue(topic, *queue) for queue in found]
            peer.write(encode_response(header, ResponseCode.SUCCESS, body=_assignments(rows, mode)))

        peer.begin_request()
        if is_light_name(topic):
            told([(self._broker.config.broker_name, 0)])
        else:
            self._broker.find_queues(topic, told)
        return None

    def _part(self, fields: Mapping[str, Any], queues: Sequence[Queue], mode: str, share: int) -> list[Queue] | None:
        """A client's queues; None when nothing can be said of its group, so that it keeps those it has."""
        if fields.get("messageModel") == BROADCASTING:
            return sorted(queues)
        group = self._broker.consumers.find(str(fields.get("consumerGroup") or ""))
        if group is None:
            return None
        strategy, client = str(fields.get("strategyName") or DEFAULT_STRATEGY), str(fields.get("clientId") or "")
        return assign(queues, list(group.client_ids()), client, strategy=strategy, mode=mode, share=share)

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


def _assignments(queues: list[MessageQueue] | None, mode: str) -> bytes:
    if queues is None:
        return b"{}"
    rows = [{"messageQueue": queue.as_json(), "mode": mode} for queue in queues]
    return dump({"messageQueueAssignments": rows}).encode()
