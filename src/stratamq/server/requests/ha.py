"""GET_BROKER_HA_STATUS (907): how far the slaves of a master have come, or a slave its master.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java, remoting/.../HARuntimeInfo.java.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves


class HaRequests:
    """Shows operators how replication goes. ``status`` gives the answer's body."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    @serves(RequestCode.GET_BROKER_HA_STATUS)
    def status(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return who copies the log and how far each has come; of a slave, how far itself has."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._status()).encode())
