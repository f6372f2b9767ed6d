"""The extFields of operators' requests, typed as in `headers`.

Source: apache/rocketmq remoting/.../protocol/header/*.java.
"""

from __future__ import annotations

from stratamq.protocols.remoting.command import Int32, Int64
from stratamq.protocols.remoting.headers import ExtFields


class ResetOffsetHeader(ExtFields):
    """INVOKE_BROKER_TO_RESET_OFFSET (222). A queue id below 0 means all queues, a time below 0 their ends."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = True
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatusHeader(ExtFields):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223). ``client_addr`` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class RelayHeader(ExtFields):
    """GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309): to whom, and for 309 which message."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None
    topic: str | None = None


class CloneOffsetHeader(ExtFields):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class CorrectionHeader(ExtFields):
    """QUERY_CORRECTION_OFFSET (308). ``filter_groups`` are joined by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class TopicOfGroupHeader(ExtFields):
    """QUERY_CONSUME_TIME_SPAN (303), QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str


class BrokerConsumeStatsHeader(ExtFields):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class ConsumeQueueHeader(ExtFields):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ForbiddenHeader(ExtFields):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool | None = None


class StatsHeader(ExtFields):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class DeleteTopicHeader(ExtFields):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str
