"""Answers: every error has a code, and the formatted answers say what the encoded ones would."""

from __future__ import annotations

import pytest

from stratamq import errors
from stratamq.errors import BrokerError, RemoteProtocolError, StrataError
from stratamq.protocols.remoting.codes import ResponseCode
from stratamq.protocols.remoting.command import BinaryHeader, CommandHeader
from stratamq.protocols.remoting.replies import (
    CODE_OF_ERROR,
    SendReplies,
    encode_pull_head,
    encode_response,
    response_to_error,
)
from tests.unit.protocols import wire


def all_below(kind: type[StrataError]) -> list[type[StrataError]]:
    return [below for direct in kind.__subclasses__() for below in (direct, *all_below(direct))]


@pytest.mark.parametrize("kind", all_below(BrokerError), ids=lambda kind: kind.__name__)
def test_every_broker_error_has_a_code(kind):
    assert kind in CODE_OF_ERROR
    code, remark = response_to_error(kind("what went wrong"))
    assert code == CODE_OF_ERROR[kind] != ResponseCode.SUCCESS
    assert remark == "what went wrong"


def test_other_errors_have_one_too():
    assert response_to_error(errors.StoreFailed("sync", "f", "EIO"))[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert response_to_error(errors.CorruptionError("f", 1, 2, 3))[0] == ResponseCode.SYSTEM_ERROR
    assert response_to_error(RemoteProtocolError("x", reply_hint=206)) == (206, "x")
    assert response_to_error(RemoteProtocolError("x")) == (1, "x")
    assert response_to_error(KeyError("k")) == (1, "KeyError: 'k'")


@pytest.mark.parametrize("serialization", [0, 1])
@pytest.mark.parametrize("key", ["7F0000010001", 'q"uote\\d', "", "päck", "a,b"])
def test_the_answer_to_a_send(serialization, key):
    replies = SendReplies(region='100% "Default"', trace_on=True)
    answer = wire.one(
        replies.encode(serialization, -5, code=0, message_id="7F00", queue_id=3, queue_offset=2**40, unique_key=key)
    )
    assert (answer.code, answer.opaque, answer.flag, answer.body) == (0, -5, 1, b"")
    expected = {
        "MSG_REGION": '100% "Default"',
        "TRACE_ON": "true",
        "msgId": "7F00",
        "queueId": "3",
        "queueOffset": str(2**40),
        "transactionId": key,
    }
    assert answer.ext == expected
    assert set(replies.refused_ext()) == {"MSG_REGION", "TRACE_ON"}


@pytest.mark.parametrize("serialization", [0, 1])
def test_the_answer_to_a_pull(serialization):
    head = encode_pull_head(
        serialization,
        9,
        code=0,
        remark=b"FOUND",
        next_offset=40,
        min_offset=1,
        max_offset=100,
        suggested_broker=0,
        body_bytes=3,
    )
    answer = wire.one(head + b"abc")
    assert (answer.code, answer.opaque, answer.flag, answer.remark, answer.body) == (0, 9, 1, "FOUND", b"abc")
    assert answer.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "40",
        "minOffset": "1",
        "maxOffset": "100",
    }


def test_a_remark_that_is_no_text_is_mended():
    assert (
        wire.one(encode_response(CommandHeader(code=1), 1, remark="half \ud800 a pair, ä")).remark == "half ? a pair, ä"
    )


def test_an_answer_takes_the_form_of_its_request():
    json_answer = encode_response(CommandHeader(code=30, opaque=4), 0, ext={"offset": "1"})
    binary_answer = encode_response(BinaryHeader(code=30, opaque=4), 0, ext={"offset": "1"})
    assert (json_answer[4], binary_answer[4]) == (0, 1)
    assert wire.one(json_answer).ext == wire.one(binary_answer).ext == {"offset": "1"}
