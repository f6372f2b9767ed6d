"""The extFields of pop requests, typed as in `headers`.

Source: apache/rocketmq remoting/.../protocol/header/PopMessageRequestHeader.java and its neighbours.
"""

from __future__ import annotations

from stratamq.protocols.remoting.command import Int32, Int64
from stratamq.protocols.remoting.headers import ExtFields


class PopHeader(ExtFields):
    """POP_MESSAGE (200050). A queue id of -1 means any; times are milliseconds."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64 = 0
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class AckHeader(ExtFields):
    """ACK_MESSAGE (200051). ``extra_info`` is POP_CK."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleHeader(ExtFields):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class PeekHeader(ExtFields):
    """PEEK_MESSAGE (200052)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class NotificationHeader(ExtFields):
    """NOTIFICATION (200054): is there something to pop?"""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64 = 0
    born_time: Int64 = 0
    order: bool | None = None
    attempt_id: str | None = None


class PollingInfoHeader(ExtFields):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32
