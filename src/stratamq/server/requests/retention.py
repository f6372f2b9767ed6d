"""DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306): an operator asks for files to go now.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java, deleteExpiredCommitLog.
"""

from __future__ import annotations

from stratamq.logstore.retention_service import RetentionService
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves


class RetentionRequests:
    """What operators ask of retention."""

    def __init__(self, service: RetentionService | None) -> None:
        self._service = service

    @serves(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Let the next twenty rounds delete expired commit-log files at any hour."""
        if self._service is not None:
            self._service.request()
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_queues(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Let the next round look through all consume queues for files whose messages are gone."""
        if self._service is not None:
            self._service.request_queues()
        return encode_response(header, ResponseCode.SUCCESS)
