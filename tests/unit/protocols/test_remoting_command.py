"""Headers and frames: the bytes that the protocol's description gives, and what peers are known to send."""

from __future__ import annotations

import json

import pytest

from stratamq.errors import LocalProtocolError, RemoteProtocolError
from stratamq.protocols.remoting.codes import language_name, request_name
from stratamq.protocols.remoting.command import (
    BinaryHeader,
    CommandHeader,
    decode_header,
    encode_frame,
    join_frame,
)
from stratamq.protocols.remoting.connection import RemotingConnection
from stratamq.protocols.remoting.headers import text_fields
from tests.unit.protocols import wire

ROUTE_JSON = b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":1,"version":475}'
ROUTE_BINARY = bytes.fromhex(
    "00 00 00 25 01 00 00 21 00 69 03 01 db 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 0c 00 05 74 6f 70 69 63"
    "00 00 00 01 54"
)


def receive(data: bytes) -> tuple[CommandHeader, bytes]:
    connection = RemotingConnection()
    ((header, body),) = connection.receive_data(data)
    assert connection.fault is None
    return header, bytes(body)


def test_route_request_in_json_has_the_bytes_described():
    frame = join_frame(0, ROUTE_JSON)
    assert len(ROUTE_JSON) == 92
    assert frame[:8] == bytes.fromhex("00 00 00 60 00 00 00 5c")
    header, body = receive(frame)
    assert (header.code, header.opaque, header.flag, header.version) == (105, 1, 0, 475)
    assert text_fields(header) == {"topic": "T"}
    assert body == b""


def test_route_request_in_binary_has_the_bytes_described():
    assert encode_frame(code=105, opaque=1, ext={"topic": "T"}, serialization=1) == ROUTE_BINARY
    header, _ = receive(ROUTE_BINARY)
    assert isinstance(header, BinaryHeader)
    assert (header.code, header.opaque, header.version, header.language_name) == (105, 1, 475, "PYTHON")
    assert text_fields(header) == {"topic": "T"}


def test_an_answer_is_written_with_text_values_and_no_nulls():
    answer = wire.one(encode_frame(code=0, opaque=7, flag=1, ext={"offset": "5"}, body=b"xyz"))
    assert (answer.code, answer.opaque, answer.flag, answer.ext, answer.body) == (0, 7, 1, {"offset": "5"}, b"xyz")
    assert answer.header["version"] == 475
    assert answer.header["language"] == "PYTHON"
    assert None not in answer.header.values()


def test_binary_leaves_out_remark_and_reads_empty_text_as_none():
    header, _ = receive(encode_frame(code=1, opaque=2, ext={"a": "", "b": "x"}, remark="why", serialization=1))
    assert header.remark == "why"
    assert text_fields(header) == {"b": "x"}
    header, _ = receive(encode_frame(code=1, opaque=2, serialization=1))
    assert header.remark is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"code":10,"opaque":1}', {}),
        ('{"code":10,"opaque":1,"extFields":null,"remark":null,"language":null}', {}),
        ('{"code":10,"opaque":1,"extFields":{"a":1,"b":true,"c":"x","d":null}}', {"a": "1", "b": "true", "c": "x"}),
        ('{"code":10,"opaque":1,"extFields":{"a":1.5,"b":{"c":[1]}}}', {"a": "1.5", "b": '{"c":[1]}'}),
        ('{"code":"10","opaque":"1","extFields":{"a":"1"},"flag":"0"}', {"a": "1"}),
        ('{"code":10,"opaque":1,"novelty":{"x":1},"serializeTypeCurrentRPC":"JSON"}', {}),
        ('{"code":10,"opaque":1,"extFields":{"p":"a\x01b\x02"}}', {"p": "a\x01b\x02"}),
        ('{"code":10,"opaque":1,"language":9}', {}),
    ],
)
def test_liberties_of_peers_are_taken(text, expected):
    header = decode_header(0, text.encode())
    assert (header.code, header.opaque) == (10, 1)
    assert text_fields(header) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"opaque":1}',
        b'{"code":"x","opaque":1}',
        b'{"code":99999999999,"opaque":1}',
        b'{"code":1e400,"opaque":1}',
        b'{"code":1,"opaque":[]}',
        b"\xff\xfe",
        b'{"code":1,"opaque":1,"language":"\xff"}',
        b"[" * 100_000,
        b'{"code":1,"opaque":1,"extFields":' + b"[" * 50_000,
    ],
)
def test_what_is_no_header_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        decode_header(0, text)


@pytest.mark.parametrize("cut", range(len(ROUTE_BINARY) - 8))
def test_a_cut_binary_header_is_refused(cut):
    with pytest.raises(RemoteProtocolError):
        decode_header(1, ROUTE_BINARY[8 : 8 + cut])


@pytest.mark.parametrize("at", [21, 25, 31])
def test_lengths_in_a_binary_header_are_checked(at):
    for value in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"):
        data = bytearray(ROUTE_BINARY[8:])
        data[at - 8 : at - 4] = value
        with pytest.raises(RemoteProtocolError):
            decode_header(1, bytes(data))


def test_a_code_that_does_not_fit_the_binary_header_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        encode_frame(code=200050, opaque=1, serialization=1)


def test_a_frame_longer_than_peers_take_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        encode_frame(code=0, opaque=1, body=bytes(17 * 1024 * 1024))


def test_names_of_codes_and_languages():
    assert request_name(310) == "310 (SEND_MESSAGE_V2)"
    assert request_name(77) == "77"
    assert [language_name(x) for x in (1, "GO", 99, "COBOL", None)] == ["CPP", "GO", "OTHER", "OTHER", "OTHER"]


def test_a_json_header_is_not_longer_than_it_must_be():
    header = encode_frame(code=0, opaque=1)[8:]
    assert b" " not in header
    assert json.loads(header)["code"] == 0
