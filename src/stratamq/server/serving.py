"""Answering a peer's requests: errors that handlers raised, handlers that have to be run again, sends not served."""

from __future__ import annotations

import logging
from typing import Protocol

from stratamq.errors import ReadPending, RemoteProtocolError
from stratamq.protocols.remoting.codes import request_name
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response, response_to_error
from stratamq.server.requests.base import Handler, Peer

_log = logging.getLogger(__name__)


class ServedPeer(Peer, Protocol):
    """A peer whose requests are counted."""

    unanswered: int

    def count_failure(self) -> None:
        """A request was answered with an error."""
        ...


def refusal(peer: ServedPeer, header: CommandHeader, error: Exception) -> bytes:
    """The answer to a request whose handler raised ``error``; our own mistakes are logged."""
    peer.count_failure()
    code, remark = response_to_error(error)
    if not isinstance(error, RemoteProtocolError) and code == 1:
        _log.error("request %s of %s failed", request_name(header.code), peer.address, exc_info=error)
    return encode_response(header, code, remark=remark)


def serve_later(
    peer: ServedPeer, handler: Handler, header: CommandHeader, body: memoryview, pending: ReadPending
) -> None:
    """What a request reads is being fetched: run it again when it is there. Until then it counts as unanswered."""
    peer.unanswered += 1

    def serve() -> None:
        try:
            answer = handler(peer, header, body)
        except ReadPending as still_pending:
            serve_later(peer, handler, header, body, still_pending)
            return
        except Exception as error:
            answer = refusal(peer, header, error)
        if answer is not None and not header.flag & 2:
            peer.write(answer)

    def again() -> None:
        peer.end_request()
        if peer.is_clogged and not peer.is_closed:
            peer.defer(serve)
        elif not peer.is_closed:
            serve()

    pending.when_ready(again)


def busy_remark(waited_s: float, sends: int, unanswered: int) -> str:
    """RocketMQ's words, which operators search for, and what it was that ``sends`` sends waited for.

    ``unanswered``: how many sends of their connection the store had not answered; 0 when they waited for the disk.
    """
    period = f"start flow control for a while, period in queue: {waited_s * 1000:.0f}ms, size of queue: {sends}"
    if not unanswered:
        return f"[TIMEOUT_CLEAN_QUEUE]broker busy, {period}; the disk does not follow (pending_bytes_max)"
    return (
        f"[OVERLOAD]system busy, {period}; this connection has {unanswered} unanswered sends (requests_unanswered_max)"
    )
