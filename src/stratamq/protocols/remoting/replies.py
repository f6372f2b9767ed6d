"""Answers: errors to response codes, and the hot answers as formatted bytes.

`response_to_error` is total over `errors.BrokerError`; a test walks the tree. Answers to sends and pulls are made by
formatting one byte string, which costs a fifth of encoding a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from stratamq import errors
from stratamq.errors import RemoteProtocolError, StrataError
from stratamq.protocols.remoting.codes import FLAG_RESPONSE, LANGUAGE, SERIALIZE_JSON, VERSION, ResponseCode
from stratamq.protocols.remoting.command import FRAME_HEAD, CommandHeader, encode_frame
from stratamq.units import Buffer

CODE_OF_ERROR: Final[Mapping[type[StrataError], ResponseCode]] = {
    errors.TopicNotFound: ResponseCode.TOPIC_NOT_EXIST,
    errors.TopicRefused: ResponseCode.INVALID_PARAMETER,
    errors.QueueNotFound: ResponseCode.INVALID_PARAMETER,
    errors.GroupNotFound: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    errors.AccessDenied: ResponseCode.NO_PERMISSION,
    errors.MessageTooLarge: ResponseCode.MESSAGE_ILLEGAL,
    errors.MessageIllegal: ResponseCode.MESSAGE_ILLEGAL,
    errors.FlowControlled: ResponseCode.SYSTEM_BUSY,
    errors.TimerRefused: ResponseCode.SYSTEM_ERROR,
    errors.RecallRefused: ResponseCode.ILLEGAL_OPERATION,
    errors.ServiceUnavailable: ResponseCode.SERVICE_NOT_AVAILABLE,
    errors.SubscriptionUnknown: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    errors.SubscriptionStale: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    errors.SubscriptionIllegal: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    errors.FilterUnknown: ResponseCode.FILTER_DATA_NOT_EXIST,
    errors.FilterStale: ResponseCode.FILTER_DATA_NOT_LATEST,
    errors.NothingFound: ResponseCode.QUERY_NOT_FOUND,
    errors.InvalidArgument: ResponseCode.INVALID_PARAMETER,
    errors.NotSupported: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    errors.MappingRefused: ResponseCode.SYSTEM_ERROR,
    errors.NotLeaderForQueue: ResponseCode.NOT_LEADER_FOR_QUEUE,
    errors.MessageRefused: ResponseCode.MESSAGE_ILLEGAL,
    errors.StoreFull: ResponseCode.SERVICE_NOT_AVAILABLE,
    errors.StoreClosed: ResponseCode.SERVICE_NOT_AVAILABLE,
    errors.StoreFailed: ResponseCode.SERVICE_NOT_AVAILABLE,
}


def response_to_error(error: Exception) -> tuple[int, str]:
    """Response code and remark for whatever a handler raised; SYSTEM_ERROR for what nobody foresaw."""
    for kind in type(error).__mro__:
        code = CODE_OF_ERROR.get(kind)
        if code is not None:
            return code, str(error)
    if isinstance(error, RemoteProtocolError) and error.reply_hint is not None:
        return error.reply_hint, str(error)
    if isinstance(error, StrataError):
        return ResponseCode.SYSTEM_ERROR, str(error)
    return ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"


def encode_response(
    request: CommandHeader,
    code: int,
    *,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    body: Buffer = b"",
) -> bytes:
    """An answer as one frame, in the serialization of its request."""
    if remark is not None and not remark.isascii():
        remark = remark.encode("utf-8", "replace").decode()
    return encode_frame(
        code=code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        ext=ext,
        remark=remark,
        body=body,
        serialization=request.serialization,
    )


class SendReplies:
    """Makes answers to sends. Region and trace switch are the same in all of them."""

    __slots__ = ("_region", "_template", "_trace_on")

    def __init__(self, *, region: str, trace_on: bool) -> None:
        self._region = region
        self._trace_on = "true" if trace_on else "false"
        quoted = msgspec.json.encode(region).decode().replace("%", "%%")
        self._template = (
            f'{{"code":%d,"extFields":{{"MSG_REGION":{quoted},"TRACE_ON":"{self._trace_on}","msgId":"%s",'
            '"queueId":"%d","queueOffset":"%d","transactionId":%s%s},'
            f'"flag":1,"language":"{LANGUAGE}","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        )

    def encode(
        self,
        serialization: int,
        opaque: int,
        *,
        code: int,
        message_id: str,
        queue_id: int,
        queue_offset: int,
        unique_key: str,
        recall_handle: str = "",
    ) -> bytes:
        """The answer to a send that was stored. Cost: under 1 us for JSON."""
        if serialization != SERIALIZE_JSON:
            ext = self._ext(message_id, queue_id, queue_offset, unique_key)
            if recall_handle:
                ext["recallHandle"] = recall_handle
            return encode_frame(code=code, opaque=opaque, flag=FLAG_RESPONSE, ext=ext, serialization=serialization)
        key = f'"{unique_key}"' if unique_key.isalnum() and unique_key.isascii() else _quoted(unique_key)
        handle = f',"recallHandle":"{recall_handle}"' if recall_handle else ""
        header = (self._template % (code, message_id, queue_id, queue_offset, key, handle, opaque)).encode()
        length = len(header)
        return FRAME_HEAD.pack(4 + length, length) + header

    def _ext(self, message_id: str, queue_id: int, queue_offset: int, unique_key: str) -> dict[str, str]:
        return {
            "MSG_REGION": self._region,
            "TRACE_ON": self._trace_on,
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": unique_key,
        }

    def refused_ext(self) -> dict[str, str]:
        """The extFields of an answer to a send that was not stored: some clients fail when there are none at all."""
        return {"MSG_REGION": self._region, "TRACE_ON": self._trace_on}


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


_PULL_TEMPLATE: Final = (
    b'{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d"},"flag":1,"language":"'
    + LANGUAGE.encode()
    + b'","opaque":%d,"remark":"%b","serializeTypeCurrentRPC":"JSON","version":'
    + str(VERSION).encode()
    + b"}"
)


def encode_pull_head(
    serialization: int,
    opaque: int,
    *,
    code: int,
    remark: bytes,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    suggested_broker: int,
    body_bytes: int,
    offset_delta: int | None = None,
) -> bytes:
    """An answer to a pull up to its body, which is sent from where it lies. ``remark`` is plain ASCII.

    With ``offset_delta``, for static topics, clients add it to the queue offsets in the records.
    """
    if serialization == SERIALIZE_JSON and offset_delta is None:
        header = _PULL_TEMPLATE % (code, max_offset, min_offset, next_offset, suggested_broker, opaque, remark)
        length = len(header)
        return FRAME_HEAD.pack(4 + length + body_bytes, length) + header
    ext = {
        "maxOffset": str(max_offset),
        "minOffset": str(min_offset),
        "nextBeginOffset": str(next_offset),
        "suggestWhichBrokerId": str(suggested_broker),
    }
    if offset_delta is not None:
        ext["offsetDelta"] = str(offset_delta)
    frame = encode_frame(
        code=code,
        opaque=opaque,
        flag=FLAG_RESPONSE,
        ext=ext,
        remark=remark.decode(),
        serialization=serialization,
    )
    mark = FRAME_HEAD.unpack_from(frame)[1]
    return FRAME_HEAD.pack(len(frame) - 4 + body_bytes, mark) + frame[8:]
