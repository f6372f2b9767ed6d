"""One connection that speaks remoting, on its listener's event loop.

Per chunk of received bytes there is one callback; all whole requests in it are handled in a loop, without a task or
future each. What a turn of the loop wants to send is collected and written once.

A connection whose sends the store cannot follow is not read from; what was read before is held back. Sends among it are
refused after `waitTimeMillsInSendQueue`, other requests are served, and the next piece is read: who sends is told that
the broker is busy, at the pace of one piece in that time (docs/operations/flow-control.md).

Source: docs/design/remoting.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from stratamq.errors import NotSupported, ReadPending
from stratamq.formats.message import encode_host
from stratamq.protocols.remoting.codes import ResponseCode, request_name
from stratamq.protocols.remoting.connection import Command, RemotingConnection
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.remoting_calls import PeerCalls
from stratamq.server.requests.base import Answered
from stratamq.server.serving import busy_remark, refusal, serve_later
from stratamq.units import KiB, MiB

if TYPE_CHECKING:
    from stratamq.server.remoting import RemotingListener

_log = logging.getLogger(__name__)

WRITE_AT_ONCE_BYTES: Final = 256 * KiB
"""Collected answers beyond this are written before the turn ends, so that a slow peer is noticed."""
DEFERRED_MAX: Final = 100_000


class RemotingPeer(asyncio.BufferedProtocol):
    """One connection; what handlers know as `requests.base.Peer`."""

    __slots__ = (
        "_backlog",
        "_calls",
        "_core",
        "_deferred",
        "_held_since",
        "_is_ending",
        "_is_paused",
        "_is_shedding",
        "_listener",
        "_out",
        "_out_bytes",
        "_partial_since",
        "_seen",
        "_stalled_since",
        "_transport",
        "_wait_timer",
        "address",
        "born_host",
        "is_clogged",
        "is_closed",
        "is_writer",
        "unanswered",
    )

    def __init__(self, listener: RemotingListener) -> None:
        self._listener = listener
        self._core = RemotingConnection(frame_bytes_max=listener.config.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._backlog: deque[Command] | None = None
        self._deferred: deque[Callable[[], None]] | None = None
        self._calls: PeerCalls | None = None
        self._wait_timer: asyncio.TimerHandle | None = None
        self._is_paused = self._is_ending = self._is_shedding = False
        self._seen = self._partial_since = self._stalled_since = self._held_since = 0.0
        self.address = ""
        self.born_host = b""
        self.is_closed = False
        self.is_clogged = False
        self.is_writer = False
        self.unanswered = 0

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        self.address = f"{name[0]}:{name[1]}"
        if len(listener.peers) >= listener.config.connections_max:
            listener.refuse_connection(self.address)
            self.is_closed = True
            self._transport.abort()
            return
        self.born_host = encode_host(name[0], name[1])
        self._transport.set_write_buffer_limits(high=listener.config.write_buffer_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._seen = listener.loop.time()
        listener.peers.add(self)
        listener.counters.accepted += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        """All connections receive into the listener's buffer, one after the other."""
        return self._listener.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come: handle all requests that are whole now."""
        listener, core = self._listener, self._core
        self._seen = listener.loop.time()
        held = core.bytes_buffered
        commands = core.receive_data(bytes(listener.receive_buffer[:nbytes]))
        partial = core.bytes_buffered
        if partial != held:
            listener.partial_bytes += partial - held
            if commands or not held:
                self._partial_since = self._seen
        if self._backlog:
            self._backlog.extend(commands)
        elif commands:
            self._handle(commands)
        if core.fault is not None:
            self.close_for(str(core.fault), fault=True)
        elif listener.partial_bytes > listener.config.receive_bytes_max and partial > MiB:
            self.close_for("too many bytes of unfinished requests (receive_bytes_max)")
        if self._out:
            self.flush()

    def eof_received(self) -> bool | None:
        """The peer sends no more; what it waits for would reach nobody we can trust to be there."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nobody waits here any more."""
        listener = self._listener
        if self in listener.peers:
            listener.partial_bytes -= self._core.bytes_buffered
            self.is_closed = True
            self._drop_all()
            listener.forget(self)
        self._transport = None

    def pause_writing(self) -> None:
        """The peer does not take what is written to it: read nothing more from it."""
        self.is_clogged = True
        self._stalled_since = self._listener.loop.time()
        self._pause()

    def resume_writing(self) -> None:
        """The peer takes data again."""
        self.is_clogged = False
        self._stalled_since = 0.0
        while self._deferred and not self.is_clogged:
            self._deferred.popleft()()
            self.flush()
        self.go_on()

    # --- requests ---

    def _handle(self, commands: Sequence[Command] | deque[Command]) -> None:
        listener = self._listener
        handlers = listener.handlers
        unanswered_max = listener.config.requests_unanswered_max
        listener.counters.requests += len(commands)
        for number, (header, body) in enumerate(commands):
            if (
                self.is_clogged
                or self.is_closed
                or (
                    (self.unanswered >= unanswered_max or (listener.is_congested and self.is_writer))
                    and not self._is_shedding
                )
            ):
                listener.counters.requests -= len(commands) - number
                if not self.is_closed:
                    self._hold(list(commands)[number:])
                return
            if header.flag & 1:
                if self._calls is not None:
                    self._calls.take(header, body)
                continue
            handler = handlers.get(header.code)
            try:
                if handler is None:
                    raise NotSupported(
                        f"request code {request_name(header.code)} is not served by this {listener.name}"
                    )
                answer = handler(self, header, body)
            except ReadPending as pending:
                assert handler is not None
                serve_later(self, handler, header, body, pending)
                continue
            except Exception as error:
                answer = refusal(self, header, error)
            if answer is not None and not header.flag & 2:
                self.write(answer)

    def count_failure(self) -> None:
        """A request was answered with an error."""
        self._listener.counters.requests_failed += 1

    def _is_blocked(self) -> bool:
        listener = self._listener
        if self.unanswered >= listener.config.requests_unanswered_max:
            return True
        return listener.is_congested and self.is_writer

    # --- requests held back ---

    def _hold(self, commands: list[Command]) -> None:
        """Read no more and keep these until what stands against them is gone, or until they have waited too long."""
        self._backlog = deque(commands)
        self._pause()
        if not self._held_since:
            self._held_since = self._listener.loop.time()
        if self._listener.sends and self._wait_timer is None:
            self._watch(self._listener.config.send_wait_ms / 1000)

    def _watch(self, seconds: float) -> None:
        self._wait_timer = self._listener.loop.call_later(seconds, self._wait_over)

    def _wait_over(self) -> None:
        """Refuse the sends that are held back, serve the rest, and read the next piece."""
        self._wait_timer = None
        listener, backlog = self._listener, self._backlog
        if not backlog or self.is_closed or self._is_ending:
            return
        waited = listener.loop.time() - self._held_since
        left = listener.config.send_wait_ms / 1000 - waited
        if left > 0 or self.is_clogged:  # a peer that takes nothing is not told anything either
            self._watch(max(left, listener.config.send_wait_ms / 1000 if self.is_clogged else 0.001))
            return
        if self._is_blocked():
            self._backlog, self._held_since = None, 0.0
            self._shed(backlog, waited)
            if self._out:
                self.flush()
            self._read_on()
        else:
            self.go_on()

    def _shed(self, backlog: deque[Command], waited: float) -> None:
        listener = self._listener
        sends = [header for header, _ in backlog if header.code in listener.sends and not header.flag & 1]
        listener.counters.requests += len(sends)
        listener.counters.requests_shed += len(sends)
        overload = 0 if listener.is_congested else self.unanswered
        remark = busy_remark(waited, len(sends), overload)
        for header in sends:
            if not header.flag & 2:
                self.write(encode_response(header, ResponseCode.SYSTEM_BUSY, ext=listener.refused_ext, remark=remark))
        self._is_shedding = True
        try:
            self._handle([item for item in backlog if item[0].code not in listener.sends or item[0].flag & 1])
        finally:
            self._is_shedding = False

    def begin_request(self) -> None:
        """Count a request that waits for the store."""
        self.unanswered += 1
        self.is_writer = True

    def end_request(self) -> None:
        """The store has dealt with one of them."""
        self.unanswered -= 1
        if self._is_paused and self.unanswered in (0, self._listener.config.requests_unanswered_max // 2):
            self._listener.loop.call_soon(self.go_on)
        if self._is_ending and not self.unanswered:
            self._listener.loop.call_soon(self.close)

    def go_on(self) -> None:
        """Handle what was held back and read on, unless something still stands against it."""
        if self.is_closed or self._is_ending or self.is_clogged or self._is_blocked():
            return
        backlog = self._backlog
        if backlog:
            self._backlog = None
            self._handle(backlog)
            if self._out:
                self.flush()
        if not self._backlog:
            self._held_since = 0.0
        self._read_on()

    def _read_on(self) -> None:
        if not self._backlog and self._is_paused and not self.is_closed and not self.is_clogged:
            self._is_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    # --- answers ---

    def write(self, data: bytes) -> None:
        """Send a frame, together with whatever else is sent in this turn."""
        if self.is_closed:
            return
        if not self._out:
            self._listener.schedule_flush(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > WRITE_AT_ONCE_BYTES:
            self.flush()

    def write_parts(self, head: bytes, parts: Sequence[memoryview], parts_bytes: int) -> None:
        """Send a frame whose body lies in pieces."""
        if self.is_closed:
            return
        if not self._out:
            self._listener.schedule_flush(self)
        self._out.append(head)
        self._out.extend(parts)
        self._out_bytes += len(head) + parts_bytes
        if self._out_bytes > WRITE_AT_ONCE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        self._out_bytes = 0
        if self._transport.is_closing():
            return
        self._seen = self._listener.loop.time()
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def notify(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a request of our own that needs no answer."""
        self.write(self._core.one_way_request(code, ext, body))

    def call(
        self, code: int, ext: dict[str, str], body: bytes, answered: Answered, *, timeout_ms: int = 10_000
    ) -> None:
        """Send a request of our own; its answer, or None, goes to ``answered``."""
        calls = self._calls
        if calls is None:
            calls = self._calls = PeerCalls(self._listener.loop, self.address)
        if self.is_closed or calls.is_full:
            answered(None, b"")
            return
        opaque, frame = self._core.request(code, ext, body)
        calls.add(opaque, answered, timeout_ms)
        self.write(frame)

    def defer(self, work: Callable[[], None]) -> None:
        """Do something once the peer takes data again."""
        if self._deferred is None:
            self._deferred = deque()
        if len(self._deferred) < DEFERRED_MAX:
            self._deferred.append(work)

    # --- the end ---

    def overdue(self, now: float, idle_s: float, stall_s: float) -> str:
        """Why this connection should be closed now; empty when it should not."""
        if self._stalled_since and now - self._stalled_since > stall_s:
            return f"the peer took nothing for {now - self._stalled_since:.0f} s"
        if self._core.bytes_buffered and not self._is_paused and now - self._partial_since > stall_s:
            return f"a request was not finished after {now - self._partial_since:.0f} s"
        if now - self._seen > idle_s and not self._is_paused:
            return f"silent for {now - self._seen:.0f} s"
        return ""

    def close_for(self, reason: str, *, fault: bool = False) -> None:
        """Close and say why. Answers collected before still go out when the peer takes them."""
        if self.is_closed or self._is_ending:
            return
        if fault:
            self._listener.counters.faults += 1
        level = logging.WARNING if fault else logging.INFO
        _log.log(level, "%s: connection of %s closed: %s", self._listener.name, self.address, reason)
        if self.unanswered and not self.is_clogged:
            self._is_ending = True  # what came whole before is answered first
            self._pause()
        else:
            self.close()

    def close(self) -> None:
        """Close once what was collected is written; at once when the peer does not take it."""
        self.flush()
        self.is_closed = True
        if self._transport is not None:
            if self.is_clogged:
                self._transport.abort()
            else:
                self._transport.close()

    def abort(self) -> None:
        """Close without waiting for anything."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def _drop_all(self) -> None:
        self._out = []
        self._backlog = None
        self._deferred = None
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.end()
