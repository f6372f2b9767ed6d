"""Requests that a server sends to a peer, and their answers."""

from __future__ import annotations

import asyncio
import logging

from stratamq.protocols.remoting.command import CommandHeader
from stratamq.server.requests.base import CALLS_MAX, Answered

_log = logging.getLogger(__name__)


class PeerCalls:
    """The requests of ours to one peer that it has not answered yet, at most `CALLS_MAX`."""

    __slots__ = ("_address", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address
        self._waiting: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}

    @property
    def is_full(self) -> bool:
        """Whether no further request may be sent now."""
        return len(self._waiting) >= CALLS_MAX

    def add(self, opaque: int, answered: Answered, timeout_ms: int) -> None:
        """A request is on its way: its answer, or None when the time is up, goes to ``answered``."""
        timer = self._loop.call_later(timeout_ms / 1000, self._time_over, opaque)
        self._waiting[opaque] = (answered, timer)

    def take(self, header: CommandHeader, body: memoryview) -> None:
        """An answer has come. One that is late, or was never asked for, is dropped."""
        call = self._waiting.pop(header.opaque, None)
        if call is None:
            return
        answered, timer = call
        timer.cancel()
        try:
            answered(header, bytes(body))
        except Exception as error:
            _log.error("the answer of %s to a request of ours was not taken", self._address, exc_info=error)

    def _time_over(self, opaque: int) -> None:
        call = self._waiting.pop(opaque, None)
        if call is not None:
            call[0](None, b"")

    def end(self) -> None:
        """The peer is gone: nobody will answer."""
        waiting, self._waiting = self._waiting, {}
        for answered, timer in waiting.values():
            timer.cancel()
            answered(None, b"")
