"""Ports that speak remoting: one listener each, with its connections (`remoting_peer`), on one event loop.

Bounds, all settings of `config.ServerConfig`: connections; bytes of unfinished requests over all connections;
unanswered requests of a connection; unsent bytes of a connection, above which nothing more is read from it; the time a
peer may take for either; silence. A connection has no buffer of its own: all receive into one.

Source: docs/design/remoting.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from stratamq.config import ServerConfig
from stratamq.server.remoting_peer import RemotingPeer
from stratamq.server.requests.base import Handler
from stratamq.server.tls import Port, Tls, mode_of, open_port
from stratamq.units import KiB

__all__ = ["ListenerCounters", "RemotingListener", "RemotingPeer"]

_log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * KiB


@dataclass(slots=True)
class ListenerCounters:
    """What a listener has seen since it started."""

    accepted: int = 0
    refused: int = 0
    faults: int = 0
    requests: int = 0
    requests_failed: int = 0
    requests_shed: int = 0
    """Sends refused because they were held back too long."""


class RemotingListener:
    """One port: its handlers, its connections, its bounds."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        handlers: Mapping[int, Handler],
        *,
        on_lost: Callable[[RemotingPeer], None] = lambda peer: None,
        sends: frozenset[int] = frozenset(),
        refused_ext: Mapping[str, str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.name = name
        self.tls = tls
        self.refused_ext = refused_ext
        """The extFields of answers to sends that are refused."""
        self.sends = sends if config.fast_failure else frozenset()
        """Request codes that are refused when they are held back too long."""
        self.config = config
        self.handlers = dict(handlers)
        self.on_lost = on_lost
        self.loop = asyncio.get_running_loop()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.peers: set[RemotingPeer] = set()
        self.counters = ListenerCounters()
        self.partial_bytes = 0
        """Bytes of unfinished requests held for all connections together."""
        self.is_congested = False
        """Whether the store wants no more writes now; connections that write are not read from meanwhile."""
        self._unflushed: list[RemotingPeer] = []
        self._ports: list[Port] = []
        self._refusals_logged = 0
        self._all_gone: asyncio.Event | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""
        tls, takes_plain = mode_of(self.tls)
        self._ports.append(await open_port(sock, lambda: RemotingPeer(self), tls, takes_plain=takes_plain))

    def schedule_flush(self, peer: RemotingPeer) -> None:
        """Write what was collected for a peer when this turn of the loop ends."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(peer)

    def _flush(self) -> None:
        peers, self._unflushed = self._unflushed, []
        for peer in peers:
            peer.flush()

    def set_congested(self, congested: bool) -> None:
        """The store cannot follow, or can again."""
        self.is_congested = congested
        if not congested:
            for peer in [peer for peer in self.peers if peer.is_writer]:
                peer.go_on()

    def sweep(self) -> None:
        """Close connections that are idle, or stuck in the middle of something. Called every few seconds."""
        now = self.loop.time()
        idle, stall = self.config.idle_timeout_ms / 1000, self.config.stall_timeout_ms / 1000
        for peer in list(self.peers):
            reason = peer.overdue(now, idle, stall)
            if reason:
                peer.close_for(reason)

    def refuse_connection(self, address: str) -> None:
        """Count a connection over the limit; say so now and then."""
        self.counters.refused += 1
        if self.counters.refused >= 2 * self._refusals_logged:
            self._refusals_logged = self.counters.refused
            _log.warning(
                "%s: %d connections refused so far, the last from %s: there are %d already (connections_max)",
                self.name,
                self.counters.refused,
                address,
                len(self.peers),
            )

    def stop_accepting(self) -> None:
        """Take no further connections; those that are there go on."""
        for port in self._ports:
            port.close()

    def unanswered(self) -> int:
        """Requests that wait for the store, over all connections."""
        return sum(peer.unanswered for peer in self.peers)

    def close_quiet_peers(self) -> None:
        """Close connections without requests in work, each together with what it is still to be told.

        Answer and end then reach a client as one, before it asks again.
        """
        for peer in [peer for peer in self.peers if not peer.unanswered]:
            peer.close()

    async def close(self, timeout_s: float) -> None:
        """Write what is left to write, then close every connection; cut those that take longer than the timeout."""
        self.stop_accepting()
        self._flush()
        for peer in list(self.peers):
            peer.close()
        for patience in (timeout_s, 1.0):
            if self.peers:
                self._all_gone = asyncio.Event()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await self._all_gone.wait()
            for peer in list(self.peers):
                peer.abort()

    def forget(self, peer: RemotingPeer) -> None:
        """A connection is gone."""
        self.peers.discard(peer)
        self.on_lost(peer)
        if not self.peers and self._all_gone is not None:
            self._all_gone.set()
