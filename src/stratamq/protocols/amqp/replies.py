"""Reply codes: what a refusal looks like on the wire, and which class of it ends the channel or the connection.

A soft error closes the channel on which it happened, a hard one the connection. The text that clients see is
``NAME - detail``; people and programs match on it, so details follow RabbitMQ's wording.

Source: AMQP 0-9-1, section 1.2; docs/protocols/amqp.md lists every text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratamq import errors
from stratamq.errors import RemoteProtocolError, StrataError

REPLY_NAMES: Final[Mapping[int, str]] = {
    200: "",
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}

NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

SOFT_CODES: Final = frozenset({311, 312, 313, 403, 404, 405, 406})
REPLY_TEXT_BYTES_MAX: Final = 255


class AmqpError(RemoteProtocolError):
    """A refusal with its reply code. ``detail`` is the text without the name of the code."""

    def __init__(self, code: int, detail: str, *, hard: bool | None = None) -> None:
        super().__init__(detail, reply_hint=code)
        self.code = code
        self.detail = detail
        self.is_hard = code not in SOFT_CODES if hard is None else hard

    def __str__(self) -> str:
        return f"{REPLY_NAMES.get(self.code, '')} - {self.detail}"

    def reply_text(self) -> str:
        """The text for the wire: cut to what a short string holds, at a character's border."""
        raw = str(self).encode("utf-8", "surrogateescape")
        if len(raw) <= REPLY_TEXT_BYTES_MAX:
            return str(self)
        return raw[:REPLY_TEXT_BYTES_MAX].decode("utf-8", "ignore")


CODE_OF_ERROR: Final[Mapping[type[StrataError], int]] = {
    errors.BrokerError: INTERNAL_ERROR,
    errors.TopicNotFound: NOT_FOUND,
    errors.TopicRefused: PRECONDITION_FAILED,
    errors.QueueNotFound: NOT_FOUND,
    errors.GroupNotFound: NOT_FOUND,
    errors.AccessDenied: ACCESS_REFUSED,
    errors.MessageTooLarge: PRECONDITION_FAILED,
    errors.MessageIllegal: PRECONDITION_FAILED,
    errors.FlowControlled: RESOURCE_ERROR,
    errors.ServiceUnavailable: RESOURCE_ERROR,
    errors.TimerRefused: RESOURCE_ERROR,
    errors.RecallRefused: PRECONDITION_FAILED,
    errors.SubscriptionUnknown: PRECONDITION_FAILED,
    errors.SubscriptionStale: PRECONDITION_FAILED,
    errors.FilterUnknown: PRECONDITION_FAILED,
    errors.FilterStale: PRECONDITION_FAILED,
    errors.SubscriptionIllegal: PRECONDITION_FAILED,
    errors.NothingFound: NOT_FOUND,
    errors.InvalidArgument: PRECONDITION_FAILED,
    errors.NotSupported: NOT_IMPLEMENTED,
    errors.MappingRefused: PRECONDITION_FAILED,
    errors.NotLeaderForQueue: PRECONDITION_FAILED,
    errors.MessageRefused: PRECONDITION_FAILED,
    errors.StoreFull: RESOURCE_ERROR,
    errors.StoreClosed: RESOURCE_ERROR,
    errors.StoreFailed: INTERNAL_ERROR,
}


def error_to_reply(error: Exception) -> AmqpError:
    """What to tell a client about whatever was raised; 541 for what nobody foresaw."""
    if isinstance(error, AmqpError):
        return error
    for kind in type(error).__mro__:
        code = CODE_OF_ERROR.get(kind)
        if code is not None:
            return AmqpError(code, str(error))
    return AmqpError(INTERNAL_ERROR, str(error) if isinstance(error, StrataError) else "internal error")
