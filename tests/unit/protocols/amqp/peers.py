"""A client's half of the protocol for tests: frames to send, and the frames of an answer taken apart."""

from __future__ import annotations

import struct
from typing import Any

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import decode_method, encode_method
from stratamq.protocols.amqp.connection import AmqpConnection, Limits
from stratamq.protocols.amqp.frames import FRAME_HEAD, PROTOCOL_HEADER, content_frames, method_frame
from stratamq.protocols.amqp.properties import encode_properties
from stratamq.protocols.amqp.replies import AmqpError

CAPABILITIES = {
    "authentication_failure_close": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
}


class OpenGate:
    """Lets guest into /, nobody else anywhere."""

    def login(self, mechanism: str, response: bytes) -> str:
        if (mechanism, response) != ("PLAIN", b"\0guest\0guest"):
            raise AmqpError(403, "Login was refused", hard=True)
        return "guest"

    def open(self, virtual_host: str) -> None:
        if virtual_host != "/":
            raise AmqpError(530, f"vhost {virtual_host} not found")


def start_ok(*, response: bytes = b"\0guest\0guest", capabilities: dict | None = None) -> bytes:
    properties = {"capabilities": CAPABILITIES if capabilities is None else capabilities}
    return method_frame(0, methods.ConnectionStartOk(properties, "PLAIN", response, "en_US"))


def handshake(*, vhost: str = "/", channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    """All that a client sends until its connection is open, in one piece."""
    tune = method_frame(0, methods.ConnectionTuneOk(channel_max, frame_max, heartbeat))
    return PROTOCOL_HEADER + start_ok() + tune + method_frame(0, methods.ConnectionOpen(vhost))


def publish(
    channel: int, exchange: str, key: str, body: bytes = b"", *, mandatory: bool = False, **properties: Any
) -> bytes:
    payload = encode_method(methods.BasicPublish(exchange, key, mandatory, False))
    return content_frames(channel, payload, encode_properties(properties), body, 131_072)


def frames_of(data: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, channel and payload of each frame."""
    found = []
    at = 0
    while at < len(data):
        kind, channel, size = FRAME_HEAD.unpack_from(data, at)
        assert data[at + 7 + size] == 0xCE
        found.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += 8 + size
    return found


def answers(outgoing: list[bytes]) -> list[Any]:
    """What was sent: (channel, method) for a method, the body for each content, None for a heartbeat."""
    found: list[Any] = []
    for kind, channel, payload in frames_of(b"".join(outgoing)):
        if kind == 1:
            found.append((channel, decode_method(payload)))
        elif kind == 2:
            found.append(b"")
        elif kind == 3:
            found[-1] += payload
        else:
            found.append(None)
    outgoing.clear()
    return found


def new_core(**limits: int) -> AmqpConnection:
    return AmqpConnection(gate=OpenGate(), limits=Limits(**limits), server_properties={"product": "test"})


def running_core(**limits: int) -> AmqpConnection:
    core = new_core(**limits)
    assert core.receive_data(handshake()) == []
    core.outgoing.clear()
    return core


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end
