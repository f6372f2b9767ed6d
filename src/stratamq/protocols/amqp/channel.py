"""Contents in the making: a method that carries content, its header frame, its body frames, per channel.

While a content is unfinished its channel may carry nothing else; frames of other channels may come in between.

Source: AMQP 0-9-1, section 4.2.6.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stratamq.protocols.amqp.frames import CONTENT_HEAD, CONTENT_HEAD_BYTES, FRAME_END, FRAME_HEAD
from stratamq.protocols.amqp.replies import FRAME_ERROR, SYNTAX_ERROR, UNEXPECTED_FRAME, AmqpError

_unpack_head = CONTENT_HEAD.unpack_from
_unpack_frame_head = FRAME_HEAD.unpack_from
_FRAME_HEAD_BYTES: Final = FRAME_HEAD.size
_BASIC_CLASS: Final = 60


class Content:
    """One content that is being received."""

    __slots__ = ("_body_bytes_max", "body", "header", "left", "method", "parts")

    def __init__(self, method: bytes, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self.method = method
        self.header: bytes | None = None
        self.left = 0
        self.parts: list[bytes] | None = []
        """Body frames so far; None for a body that is too large, which is counted and dropped."""
        self.body: bytes | None = b""
        """The whole body, once `left` is 0; None when it was dropped."""

    def take_header(self, payload: bytes) -> bool:
        """Take the header frame; True when no body follows. Raises AmqpError 501, 502 or 505."""
        if self.header is not None:
            raise AmqpError(UNEXPECTED_FRAME, "expected content body, got content header instead")
        if len(payload) < CONTENT_HEAD_BYTES + 2:
            raise AmqpError(SYNTAX_ERROR, "a content header is cut off")
        class_id, _, size = _unpack_head(payload)
        if class_id != _BASIC_CLASS:
            raise AmqpError(UNEXPECTED_FRAME, f"expected content header for class 60, got one for class {class_id}")
        self.header = payload
        self.left = size
        if size > self._body_bytes_max:
            self.parts = self.body = None
        return bool(size == 0)

    def take_body(self, payload: bytes) -> bool:
        """Take a body frame; True when the content is complete. Raises AmqpError 501 or 505."""
        if self.header is None:
            raise AmqpError(UNEXPECTED_FRAME, "expected content header for class 60, got content body instead")
        self.left -= len(payload)
        if self.left < 0:
            raise AmqpError(FRAME_ERROR, "a content body is longer than its header says")
        if self.parts is None:
            return self.left == 0
        self.parts.append(payload)
        if self.left:
            return False
        self.body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        return True


class Publish(NamedTuple):
    """A publish whose frames lay one behind the other, with one body frame."""

    front: bytes
    """Everything before the body: method frame, header frame, head of the body frame."""
    channel: int
    method: bytes
    header: bytes
    body_bytes: int


def whole_content(
    data: bytes, begun: int, at: int, last: Publish | None, payload_max: int, body_bytes_max: int
) -> Publish | None:
    """The publish whose method frame lies at ``begun`` and ends at ``at``, if its content follows in one body frame.

    None for everything else, what is wrong too: the caller takes it frame by frame. ``last`` is the one before: where
    the method is the same, the same object is used, whose hash is known.
    """
    end = len(data)
    if end - at < 2 * _FRAME_HEAD_BYTES + CONTENT_HEAD_BYTES + 4:
        return None
    channel = _unpack_frame_head(data, begun)[1]
    kind, on, size = _unpack_frame_head(data, at)
    header_end = at + _FRAME_HEAD_BYTES + size
    body_at = header_end + 1 + _FRAME_HEAD_BYTES
    if kind != 2 or on != channel or not CONTENT_HEAD_BYTES + 2 <= size <= payload_max or body_at > end:
        return None
    header = data[at + _FRAME_HEAD_BYTES : header_end]
    class_id, _, body_bytes = _unpack_head(header)
    kind, on, size = _unpack_frame_head(data, header_end + 1)
    stop = body_at + size
    if kind != 3 or on != channel or not size == body_bytes <= min(payload_max, body_bytes_max) or stop >= end:
        return None
    if class_id != _BASIC_CLASS or data[header_end] != FRAME_END or data[stop] != FRAME_END:
        return None
    method = data[begun + _FRAME_HEAD_BYTES : at - 1]
    if last is not None and last.method == method:
        method = last.method
    return Publish(data[begun:body_at], channel, method, header, body_bytes)
