"""Sockets that speak AMQP 0-9-1: one listener with its connections, on one event loop.

Per chunk of received bytes there is one callback, which does everything that whole frames in it ask for. What that
needs besides is done once at the end of the turn: deliveries, one batch of the store, changed definitions, and one
write per connection. No task or future belongs to a frame or a message.

A peer that does not take what is sent to it gets no more deliveries; one that lets answers pile up beyond
`PENDING_BYTES_MAX` is not read from either. Publishers are not read from while an alarm is raised or the store cannot
follow.

Source: docs/design/amqp.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from stratamq import __version__
from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.connection import CAPABILITIES, Session
from stratamq.clock import Clock
from stratamq.config import LoginFrom
from stratamq.protocols.amqp.connection import Limits, State
from stratamq.protocols.amqp.replies import CONNECTION_FORCED, AmqpError
from stratamq.server.tls import Port, Tls, is_tls, login_name, open_port
from stratamq.units import KiB, MiB

_log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * KiB
WRITE_BUFFER_BYTES: Final = MiB
"""Unsent bytes of a connection above which nothing is delivered to it."""
PENDING_BYTES_MAX: Final = 16 * MiB
"""Unsent bytes of a connection above which nothing is read from it."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
CLOSE_GRACE_S: Final = 3.0
"""How long the peer of a closed connection may take for its close-ok."""
SWEEP_S: Final = 1.0
CONNECTIONS_MAX: Final = 20_000

SERVER_PROPERTIES: Final[dict[str, Any]] = {
    "capabilities": dict(CAPABILITIES),
    "cluster_name": "stratamq@localhost",
    "copyright": "",
    "information": "",
    "platform": "Python",
    "product": "StrataMQ",
    "version": __version__,
}


class Holding(Protocol):
    """Keeps what a turn tells clients until it may be told."""

    @property
    def failure(self) -> str:
        """Why nothing is kept any more, and what is left to say (that connections close) is said at once."""
        ...

    def hold(self, release: Callable[[], None]) -> None:
        """Call ``release`` when everything that was changed until now is safe; never when that is not known."""
        ...

    def propose(self) -> None:
        """The turn has ended: make safe what it has changed."""
        ...


class AmqpListener:
    """One port with its connections, and the turns of its broker."""

    def __init__(
        self,
        broker: AmqpBroker,
        clock: Clock,
        *,
        limits: Limits | None = None,
        save_definitions: Callable[[], None] = lambda: None,
        connections_max: int = CONNECTIONS_MAX,
        holding: Holding | None = None,
    ) -> None:
        self.broker = broker
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.peers: set[AmqpPeer] = set()
        self._peer_of: dict[Session, AmqpPeer] = {}
        self._clock = clock
        self._save_definitions = save_definitions
        self._connections_max = connections_max
        self._holding = holding
        self._is_turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ports: list[Port] = []
        self.login_from = LoginFrom.NONE
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        self._all_gone: asyncio.Event | None = None
        broker.wake_shell = self.wake
        broker.now_ms = clock.wall_ms()

    async def listen(self, sock: socket.socket, tls: Tls | None = None) -> None:
        """Accept connections on a bound socket; TLS alone where there is a certificate."""
        if tls is not None:
            self.login_from = tls.config.login_from
        self._ports.append(await open_port(sock, lambda: AmqpPeer(self), tls))

    # --- turns ---

    def wake(self) -> None:
        """Something has happened: end the turn after what else is ready now."""
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self.broker.now_ms = self._clock.wall_ms()
            self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        broker = self.broker
        try:
            broker.now_ms = self._clock.wall_ms()
            broker.tick()
            broker.end_turn()
            if broker.is_definitions_dirty:
                broker.is_definitions_dirty = False
                self._save_definitions()
        except Exception:
            _log.exception("the end of a turn failed")
        self._is_turn_scheduled = False
        unsent, broker.unsent = broker.unsent, []
        peers = [peer for session in unsent if (peer := self._peer_of.get(session)) is not None]
        if self._holding is None or self._holding.failure:
            for peer in peers:
                peer.flush()
        else:
            self._hold(self._holding, peers)
        if broker.has_work:
            self.wake()
        self._set_timer()

    def _hold(self, holding: Holding, peers: Sequence[AmqpPeer]) -> None:
        """Let go what the turn tells its peers when what it has changed is safe."""
        chunks = [(peer, peer.collect()) for peer in peers]
        if chunks:

            def release() -> None:
                for peer, data in chunks:
                    peer.release(data)

            holding.hold(release)
        holding.propose()

    def _set_timer(self) -> None:
        deadline = self.broker.next_deadline_ms()
        if deadline is None or (self._timer is not None and self._timer_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline
        delay = max(0, deadline - self._clock.wall_ms()) / 1000
        self._timer = self.loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def set_congested(self, congested: bool) -> None:
        """The store cannot follow, or can again."""
        for peer in self.peers:
            peer.check_reading()

    def _sweep(self) -> None:
        now = self.loop.time()
        for peer in list(self.peers):
            peer.check_time(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    # --- connections ---

    def add(self, peer: AmqpPeer) -> bool:
        """A new connection; False when there are too many."""
        if len(self.peers) >= self._connections_max:
            return False
        self.peers.add(peer)
        self._peer_of[peer.session] = peer
        return True

    def forget(self, peer: AmqpPeer) -> None:
        """A connection is gone."""
        self.peers.discard(peer)
        self._peer_of.pop(peer.session, None)
        if not self.peers and self._all_gone is not None:
            self._all_gone.set()

    def stop_accepting(self) -> None:
        """Take no further connections."""
        for port in self._ports:
            port.close()

    async def close(self, timeout_s: float) -> None:
        """Tell every client, let them answer, cut who takes longer."""
        self.stop_accepting()
        reason = AmqpError(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
        for peer in list(self.peers):
            peer.session.close_for(reason)
        self._end_turn()
        if self.peers:
            self._all_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_gone.wait()
        for peer in list(self.peers):
            peer.abort()
        self._sweeper.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)
        self._end_turn()


class AmqpPeer(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, listener: AmqpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_write_paused = False
        self._received = self._sent = self._begun = listener.loop.time()
        self._closing_since = 0.0
        self._held_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        local = transport.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.session = Session(
            listener.broker,
            limits=listener.limits,
            server_properties=SERVER_PROPERTIES,
            is_loopback=name[0].startswith("127."),
            is_secure=is_tls(transport),
            certificate_name=login_name(transport, listener.login_from),
            make_token=lambda: secrets.token_urlsafe(16),
            name=f"{name[0]}:{name[1]} -> {local[0]}:{local[1]}",
        )
        if not listener.add(self):
            _log.warning("connection from %s refused: there are %d already", name, len(listener.peers))
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        listener = self._listener
        self._received = listener.loop.time()
        listener.wake()
        octets = self.session.octets
        octets.recv_oct += nbytes
        octets.recv_cnt += 1
        try:
            self.session.receive(bytes(listener.receive_buffer[:nbytes]))
        except Exception:
            _log.exception("connection %s failed", self.session.name)
            self.abort()
            return
        if self.session.is_blocked or listener.broker.storage.is_congested:
            self.check_reading()
        if self.session.is_closed or self.session.core.state is State.CLOSED:
            self._closing_since = self._closing_since or self._received
            listener.broker.note_unsent(self.session)  # so that the end of the turn closes what is to be closed

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self)
        self.session.shut_down()
        self._transport = None
        self._listener.wake()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.session.set_clogged(True)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.session.set_clogged(False)
        self.check_reading()
        self._listener.wake()

    # --- writing ---

    def flush(self) -> None:
        """Write what was collected in this turn."""
        self._held_bytes = 0  # what a failure has dropped
        was_full = self.session.unsent_bytes > WRITE_BUFFER_BYTES
        self._write(self._take_frames(), was_full)

    def collect(self) -> bytes:
        """What was collected in this turn, to be written with `release`. Nothing is delivered meanwhile to a peer for
        whom much is held back."""
        was_full = self.session.unsent_bytes > WRITE_BUFFER_BYTES
        data = self._take_frames()
        self._held_bytes += len(data)
        if was_full or self._held_bytes > WRITE_BUFFER_BYTES:
            self.session.set_clogged(True)
        return data

    def release(self, data: bytes) -> None:
        """Write what `collect` gave."""
        self._held_bytes -= len(data)
        self._write(data, self.session.is_clogged and self._held_bytes <= WRITE_BUFFER_BYTES)

    def _take_frames(self) -> bytes:
        session = self.session
        frames = session.outgoing
        session.unsent_bytes = 0
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        return data

    def _write(self, data: bytes, was_full: bool) -> None:
        session, transport = self.session, self._transport
        if transport is None or transport.is_closing():
            return
        if data:
            self._sent = self._listener.loop.time()
            session.octets.send_oct += len(data)
            session.octets.send_cnt += 1
            transport.write(data)
        if was_full and not self._is_write_paused:
            session.set_clogged(False)
            self._listener.wake()
        if self._is_write_paused:
            self.check_reading()
        core = session.core
        if self._held_bytes or session.outgoing:
            return  # more is to be written before the connection may be closed
        if core.hang_up and not core.user and core.fault is not None:
            return  # a refused login of an old client: the sweep drops it after a while
        if core.state is State.CLOSED or core.hang_up:
            transport.close()

    def check_reading(self) -> None:
        """Read on, or not, as things stand."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        session = self.session
        may = not (session.is_blocked or (self._listener.broker.storage.is_congested and session.broker.sessions))
        if may and self._is_write_paused:
            may = transport.get_write_buffer_size() < PENDING_BYTES_MAX
        if may != self._is_reading:
            self._is_reading = may
            if may:
                self._received = self._listener.loop.time()
                transport.resume_reading()
            else:
                transport.pause_reading()

    # --- time and ends ---

    def check_time(self, now: float) -> None:
        """Heartbeats, and who takes too long for something."""
        core = self.session.core
        if self._closing_since:
            if now - self._closing_since > CLOSE_GRACE_S:
                self.abort()
            return
        if core.state is not State.RUNNING:
            if now - self._begun > HANDSHAKE_TIMEOUT_S:
                self.abort()
            elif self.session.is_closed:
                self._closing_since = now
            return
        self.check_reading()
        self.session.check_consumers()
        before = len(core.outgoing)
        alive = core.check_silence(
            received_s_ago=now - self._received, sent_s_ago=now - self._sent, ignore_receiving=not self._is_reading
        )
        if not alive:
            _log.warning("connection %s: missed heartbeats, timeout %d s", self.session.name, core.heartbeat_s)
            self.abort()
        elif len(core.outgoing) > before:
            self._listener.broker.note_unsent(self.session)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()
