"""One server-side AMQP connection, without I/O: received bytes in, events out, frames to send in `outgoing`.

The core owns the handshake (start, tune, open), the cutting of frames, contents, and the closing handshake. What
happens on channels is the caller's: each whole method, with its content where it has one, is an `Event`. A fault of
the peer is never an exception: it stands in `fault` after the events that came before it, and the caller answers with
`close`. After that nothing but the peer's close or close-ok is looked at.

Source: AMQP 0-9-1, section 2.2; RabbitMQ, deps/rabbit/src/rabbit_reader.erl.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.channel import Content, Publish, whole_content
from stratamq.protocols.amqp.codec import decode_method, spec_of
from stratamq.protocols.amqp.frames import (
    CONTENT_HEAD_BYTES,
    FRAME_BYTES_MIN,
    FRAME_END,
    FRAME_HEAD,
    FRAME_OVERHEAD,
    HEARTBEAT,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_0_9,
    SIZE_TOLERANCE,
    method_frame,
)
from stratamq.protocols.amqp.replies import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_ALLOWED,
    UNEXPECTED_FRAME,
    AmqpError,
)
from stratamq.protocols.amqp.values import Table

Event = tuple[int, bytes, bytes | None, bytes | None]
"""Channel, method payload, content header payload, body. The last two are None for a method without content; the body
alone is None for a content that is larger than allowed."""

_unpack_head = FRAME_HEAD.unpack_from
_PUBLISH: Final = spec_of(methods.BasicPublish).head
_CLOSE: Final = spec_of(methods.ConnectionClose).head
_CLOSE_OK: Final = spec_of(methods.ConnectionCloseOk).head
_UPDATE_SECRET: Final = spec_of(methods.ConnectionUpdateSecret).head


class State(enum.Enum):
    """How far a connection has come."""

    HEADER = "waits for the protocol header"
    START = "waits for start-ok"
    TUNE = "waits for tune-ok"
    OPEN = "waits for open"
    RUNNING = "running"
    CLOSING = "waits for close-ok"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server offers and allows. Bytes and seconds; 0 means no limit, or no heartbeats."""

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    body_bytes_max: int = 134_217_728


class Gate(Protocol):
    """Who may come in."""

    def login(self, mechanism: str, response: bytes) -> str:
        """Check a login and return the user. Raises AmqpError: 403 when refused, 503 for an unknown mechanism."""
        ...

    def open(self, virtual_host: str) -> None:
        """Check the virtual host for the user who logged in. Raises AmqpError 530."""
        ...


class AmqpConnection:
    """The core. Take `events` from `receive_data`, then `fault`, then `outgoing`."""

    def __init__(
        self, *, gate: Gate, limits: Limits, server_properties: Mapping[str, Any], mechanisms: bytes = b"PLAIN AMQPLAIN"
    ) -> None:
        self._gate = gate
        self._limits = limits
        self._server_properties = dict(server_properties)
        self._mechanisms = mechanisms
        self._partial = bytearray()
        self._needed = 0
        self._payload_max = FRAME_BYTES_MIN - FRAME_OVERHEAD + SIZE_TOLERANCE
        self._contents: dict[int, Content] = {}
        self._repeat: Publish | None = None
        """The newest publish that was one piece: mostly the next one differs in its body alone."""
        self._is_deaf = False
        self.state = State.HEADER
        self.outgoing: list[bytes] = []
        """Frames to send, in order; the caller empties it."""
        self.fault: AmqpError | None = None
        self.fault_method = (0, 0)
        """Class and method that the fault belongs to."""
        self.hang_up = False
        """Whether the connection is to be dropped without a close handshake."""
        self.user = ""
        self.virtual_host = ""
        self.client_properties: Table = {}
        self.channel_max = limits.channel_max
        self.frame_max = limits.frame_max
        self.heartbeat_s = limits.heartbeat_s

    @property
    def bytes_buffered(self) -> int:
        """Bytes held of frames and contents that are not complete yet."""
        held = len(self._partial)
        for content in self._contents.values():
            if content.parts:
                held += sum(map(len, content.parts))
        return held

    def capability(self, name: str) -> bool:
        """Whether the client said in its properties that it understands something."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def offer(self, mechanism: str) -> None:
        """Offer one more way to log in; before anything is received."""
        self._mechanisms += b" " + mechanism.encode("ascii")

    # --- receiving ---

    def receive_data(self, chunk: bytes) -> list[Event]:
        """Take what arrived and return the events it completes. Cost: about 2 us a published message."""
        data = chunk
        if self._partial:
            self._partial += chunk
            if len(self._partial) < self._needed:
                return []
            data = bytes(self._partial)
            self._partial = bytearray()
        events: list[Event] = []
        if self.state is State.HEADER:
            data = self._take_protocol_header(data)
        if self._is_deaf or self.state is State.HEADER:
            return events
        at = self._cut(data, events)
        if at < len(data) and not self._is_deaf:
            self._partial += memoryview(data)[at:]
        return events

    def _take_protocol_header(self, data: bytes) -> bytes:
        if len(data) < 8 and PROTOCOL_HEADER.startswith(data[:4]):
            self._partial += data
            self._needed = 8
            return b""
        if data[:8] in (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9):
            self.state = State.START
            start = methods.ConnectionStart(0, 9, self._server_properties, self._mechanisms, b"en_US")
            self.outgoing.append(method_frame(0, start))
            return data[8:]
        self.outgoing.append(PROTOCOL_HEADER)
        self._is_deaf = self.hang_up = True
        self.state = State.CLOSED
        return b""

    def _cut(self, data: bytes, events: list[Event]) -> int:
        """Take the whole frames at the front of ``data``; return how many bytes they had."""
        at, end = 0, len(data)
        contents = self._contents
        try:
            while end - at >= 7:
                repeat = self._repeat
                if repeat is not None and data.startswith(repeat.front, at):
                    body_at = at + len(repeat.front)
                    stop = body_at + repeat.body_bytes
                    is_free = repeat.channel not in contents and self.state is State.RUNNING
                    if is_free and stop < end and data[stop] == FRAME_END:
                        events.append((repeat.channel, repeat.method, repeat.header, data[body_at:stop]))
                        at = stop + 1
                        continue
                kind, channel, size = _unpack_head(data, at)
                if size > self._payload_max:
                    raise self._bad_frame(f"frame too large: size {size}, max {self._payload_max - SIZE_TOLERANCE}")
                stop = at + 7 + size
                if stop >= end:
                    self._needed = stop + 1 - at
                    return at
                if data[stop] != FRAME_END:
                    raise self._bad_frame(f"invalid frame end marker {data[stop]}")
                payload = data[at + 7 : stop]
                begun, at = at, stop + 1
                if self.state is not State.RUNNING or not channel:
                    self._take_control(kind, channel, payload, events)
                elif kind == 1:
                    if channel in contents:
                        raise AmqpError(UNEXPECTED_FRAME, "expected content header for class 60, got a method instead")
                    if payload[:4] == _PUBLISH:
                        whole = whole_content(
                            data, begun, at, self._repeat, self._payload_max, self._limits.body_bytes_max
                        )
                        if whole is not None:
                            self._repeat = whole
                            body_at = begun + len(whole.front)
                            at = body_at + whole.body_bytes + 1
                            events.append((channel, whole.method, whole.header, data[body_at : at - 1]))
                            continue
                        contents[channel] = Content(payload, self._limits.body_bytes_max)
                    else:
                        events.append((channel, payload, None, None))
                elif kind == 2 or kind == 3:
                    content = contents.get(channel)
                    if content is None:
                        raise AmqpError(UNEXPECTED_FRAME, "expected method frame, got a content frame instead")
                    if content.take_header(payload) if kind == 2 else content.take_body(payload):
                        del contents[channel]
                        events.append((channel, content.method, content.header, content.body))
                else:
                    raise self._unknown_frame(kind, channel)
        except AmqpError as error:
            self._note_fault(error)
        self._needed = 7
        return at

    def _note_fault(self, error: AmqpError) -> None:
        if self.fault is None:
            self.fault = error
        self._contents.clear()
        if self.state is not State.CLOSING:
            self.state = State.CLOSING if self.state is State.RUNNING else self.state

    def _bad_frame(self, text: str) -> AmqpError:
        self._is_deaf = True
        return AmqpError(FRAME_ERROR, text)

    def _unknown_frame(self, kind: int, channel: int) -> AmqpError:
        if kind == 8:
            return AmqpError(UNEXPECTED_FRAME, f"a heartbeat on channel {channel}")
        return self._bad_frame(f"unknown frame type {kind}")

    def _take_control(self, kind: int, channel: int, payload: bytes, events: list[Event]) -> None:
        """A frame on channel 0, or before the connection runs, or while it closes."""
        if self.state in (State.CLOSING, State.CLOSED):
            if kind == 1 and not channel and payload[:4] in (_CLOSE, _CLOSE_OK):
                if payload[:4] == _CLOSE:
                    self.outgoing.append(method_frame(0, methods.ConnectionCloseOk()))
                self.state = State.CLOSED
            return
        if kind == 8 and not channel:
            return
        if kind != 1:
            raise AmqpError(UNEXPECTED_FRAME, f"unexpected frame of type {kind} on channel {channel}")
        if channel:
            raise AmqpError(CHANNEL_ERROR, f"a method on channel {channel} before the connection is open")
        if self.state is State.RUNNING:
            if payload[:4] not in (_CLOSE, _UPDATE_SECRET):
                raise AmqpError(COMMAND_INVALID, f"unexpected method {payload[:4].hex()} on channel 0")
            if payload[:4] == _CLOSE:
                decode_method(payload)
                self.state = State.CLOSING
            events.append((0, payload, None, None))
            return
        self._handshake(payload)

    # --- handshake ---

    def _handshake(self, payload: bytes) -> None:
        arguments = decode_method(payload)
        spec = spec_of(type(arguments))
        self.fault_method = (spec.class_id, spec.method_id)
        if isinstance(arguments, methods.ConnectionClose):
            self.outgoing.append(method_frame(0, methods.ConnectionCloseOk()))
            self.state = State.CLOSED
        elif self.state is State.START and isinstance(arguments, methods.ConnectionStartOk):
            self._take_start_ok(arguments)
        elif self.state is State.TUNE and isinstance(arguments, methods.ConnectionTuneOk):
            self._take_tune_ok(arguments)
        elif self.state is State.OPEN and isinstance(arguments, methods.ConnectionOpen):
            self._gate.open(arguments.virtual_host)
            self.virtual_host = arguments.virtual_host
            self.outgoing.append(method_frame(0, methods.ConnectionOpenOk()))
            self.state = State.RUNNING
        else:
            raise AmqpError(
                COMMAND_INVALID, f"unexpected method {payload[:4].hex()}: the connection {self.state.value}"
            )
        self.fault_method = (0, 0)

    def _take_start_ok(self, arguments: methods.ConnectionStartOk) -> None:
        self.client_properties = arguments.client_properties
        try:
            self.user = self._gate.login(arguments.mechanism, arguments.response)
        except AmqpError as error:
            if error.code == ACCESS_REFUSED and not self.capability("authentication_failure_close"):
                self.hang_up = self._is_deaf = True
            raise
        offer = self._limits
        self.outgoing.append(
            method_frame(0, methods.ConnectionTune(offer.channel_max, offer.frame_max, offer.heartbeat_s))
        )
        self.state = State.TUNE

    def _take_tune_ok(self, chosen: methods.ConnectionTuneOk) -> None:
        self.channel_max = _negotiated("channel_max", chosen.channel_max, self._limits.channel_max, 1)
        self.frame_max = _negotiated("frame_max", chosen.frame_max, self._limits.frame_max, FRAME_BYTES_MIN)
        self.heartbeat_s = chosen.heartbeat
        room = self.frame_max - FRAME_OVERHEAD if self.frame_max else self._limits.body_bytes_max
        self._payload_max = room + SIZE_TOLERANCE
        self.state = State.OPEN

    # --- sending ---

    def close(self, error: AmqpError, class_id: int = 0, method_id: int = 0) -> None:
        """Begin to close: the peer is told why, and nothing but its close-ok is listened to any more."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSING
        self._contents.clear()
        self.outgoing.append(
            method_frame(0, methods.ConnectionClose(error.code, error.reply_text(), class_id, method_id))
        )

    def confirm_close(self) -> None:
        """Answer the peer's close, after everything of this connection has been shut down."""
        self.outgoing.append(method_frame(0, methods.ConnectionCloseOk()))
        self.state = State.CLOSED

    def check_silence(self, *, received_s_ago: float, sent_s_ago: float, ignore_receiving: bool) -> bool:
        """Send a heartbeat when one is due. False when the peer has been silent for too long."""
        interval = self.heartbeat_s
        if not interval or self.state in (State.HEADER, State.START, State.TUNE, State.OPEN):
            return True
        if sent_s_ago >= interval / 2:
            self.outgoing.append(HEARTBEAT)
        return ignore_receiving or received_s_ago < 2 * interval + 1


def body_size(header: bytes) -> int:
    """The body size that a content header states."""
    return int.from_bytes(header[4:CONTENT_HEAD_BYTES], "big")


def _negotiated(name: str, chosen: int, offered: int, lowest: int) -> int:
    if offered and (not chosen or chosen > offered):
        text = f"negotiated {name} = {chosen} is higher than the maximum allowed value ({offered})"
        if not chosen:
            text = f"negotiated {name} = no limit is higher than the maximum allowed value ({offered})"
        raise AmqpError(NOT_ALLOWED, text)
    if chosen and chosen < lowest:
        raise AmqpError(NOT_ALLOWED, f"negotiated {name} = {chosen} is lower than the minimum allowed value ({lowest})")
    return chosen
