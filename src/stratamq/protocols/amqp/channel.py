"""Contents in the making: a method that carries content, its header frame, its body frames, per channel.

While a content is unfinished its channel may carry nothing else; frames of other channels may come in between.

Source: AMQP 0-9-1, section 4.2.6.
"""

from __future__ import annotations

from typing import Final

from stratamq.protocols.amqp.frames import CONTENT_HEAD, CONTENT_HEAD_BYTES
from stratamq.protocols.amqp.replies import FRAME_ERROR, SYNTAX_ERROR, UNEXPECTED_FRAME, AmqpError

_unpack_head = CONTENT_HEAD.unpack_from
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
