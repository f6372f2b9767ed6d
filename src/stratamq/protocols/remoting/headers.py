"""The extFields of each request, typed.

A `HeaderReader` decodes the raw extFields of one kind of request straight into a struct: text to numbers and booleans
on the way. What that refuses goes through a tolerant second try that turns every value into text first, for peers that
send raw numbers, booleans and nulls, or control characters as they are.

Wire names are Java's camel case; short sends use one letter a field. Unknown fields (``ns``, ``bname``, ``AccessKey``,
...) are ignored.

Source: apache/rocketmq remoting/.../protocol/header/*.java.
"""

from __future__ import annotations

import json
from typing import Any, Final, Generic, TypeVar

import msgspec

from stratamq.errors import RemoteProtocolError
from stratamq.protocols.remoting.codes import ResponseCode
from stratamq.protocols.remoting.command import CommandHeader, Int32, Int64

T = TypeVar("T", bound="ExtFields")


class ExtFields(msgspec.Struct, rename="camel", gc=False):
    """Base of all request headers.

    In those about queues ``lo`` is false when the queue is a physical one, of a static topic too.
    """


class HeaderReader(Generic[T]):
    """Decodes the extFields of one kind of request."""

    __slots__ = ("_fast", "_kind")

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._fast = msgspec.json.Decoder(kind, strict=False)

    def __call__(self, header: CommandHeader) -> T:
        """Decode. Raises RemoteProtocolError (reply hint SYSTEM_ERROR) when a field is missing or malformed."""
        try:
            return self._fast.decode(header.ext)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._read_tolerantly(header)

    def _read_tolerantly(self, header: CommandHeader) -> T:
        try:
            return msgspec.convert(text_fields(header), self._kind, strict=False)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise RemoteProtocolError(
                f"request header cannot be read: {error}", reply_hint=ResponseCode.SYSTEM_ERROR
            ) from error


def text_fields(header: CommandHeader) -> dict[str, str]:
    """All extFields as text; nulls are left out. Raises ValueError when they are no JSON object."""
    fields = json.loads(bytes(header.ext), strict=False)
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ValueError("extFields must be an object")
    texts = {name: _as_text(value) for name, value in fields.items() if value is not None}
    "".join(texts.values()).encode()  # half a surrogate pair is no text: UnicodeEncodeError is a ValueError
    return texts


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


# --- sending ----------------------------------------------------------------------------------------------------


class SendHeader(ExtFields):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE: long names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    lo: bool | None = None


class SendHeaderV2(ExtFields):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): one letter a field, same meaning as `SendHeader`."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: Int32 | None = msgspec.field(name="j", default=None)
    max_reconsume_times: Int32 | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)
    lo: bool | None = None


AnySendHeader = SendHeader | SendHeaderV2


class SendBackHeader(ExtFields):
    """CONSUMER_SEND_MSG_BACK (36). The C++ client sends the first three only."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    max_reconsume_times: Int32 | None = None


# --- reading ----------------------------------------------------------------------------------------------------


PULL_COMMITS: Final = 1
PULL_MAY_WAIT: Final = 2
PULL_HAS_SUBSCRIPTION: Final = 4


class PullHeader(ExtFields):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    lo: bool | None = None


class QueueHeader(ExtFields):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    lo: bool | None = None


class SearchOffsetHeader(ExtFields):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    lo: bool | None = None


class QueryMessageHeader(ExtFields):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    is_unique_key: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class ViewMessageHeader(ExtFields):
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: Int64
    topic: str | None = None


# --- membership and offsets --------------------------------------------------------------------------------------


class QueryOffsetHeader(ExtFields):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    lo: bool | None = None


class UpdateOffsetHeader(ExtFields):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    lo: bool | None = None


class UnregisterClientHeader(ExtFields):
    """UNREGISTER_CLIENT (35). Empty group names occur and mean none."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(ExtFields):
    """GET_CONSUMER_LIST_BY_GROUP (38), GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class ProducerGroupHeader(ExtFields):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class GroupHeader(ExtFields):
    """QUERY_TOPICS_BY_CONSUMER (343), GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class DeleteGroupHeader(ExtFields):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool | None = None


class ConsumeStatsHeader(ExtFields):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ConsumeTimeHeader(ExtFields):
    """QUERY_CONSUME_TIME_SPAN (303) and QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


class TopicHeader(ExtFields):
    """Requests about one topic: 202, 216, 217, 300, 351."""

    topic: str
    cluster_name: str | None = None
    lo: bool | None = None


class CreateTopicHeader(ExtFields):
    """UPDATE_AND_CREATE_TOPIC (17), UPDATE_AND_CREATE_STATIC_TOPIC (513)."""

    topic: str
    default_topic: str | None
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool | None = None
    attributes: str | None = None
    force: bool | None = None


# --- name server -------------------------------------------------------------------------------------------------


class RouteHeader(ExtFields):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerHeader(ExtFields):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str = ""
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int64 = 0
    zone_name: str | None = msgspec.field(name="__ZONE_NAME", default=None)


class BrokerHeader(ExtFields):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322), BROKER_HEARTBEAT (904), GET_BROKER_MEMBER_GROUP (901)."""

    broker_name: str
    cluster_name: str = ""
    broker_addr: str = ""
    broker_id: Int64 = 0


class BrokerNameHeader(ExtFields):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class ClusterHeader(ExtFields):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class KvHeader(ExtFields):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str
    value: str | None = None


class NamespaceHeader(ExtFields):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


read_send: Final = HeaderReader(SendHeader)
read_send_v2: Final = HeaderReader(SendHeaderV2)
read_pull: Final = HeaderReader(PullHeader)
read_update_offset: Final = HeaderReader(UpdateOffsetHeader)
