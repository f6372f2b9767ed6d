"""Cutting frames out of what arrives, and what a peer may not do."""

from __future__ import annotations

import struct

import pytest

from stratamq.protocols.remoting.command import encode_frame
from stratamq.protocols.remoting.connection import RemotingConnection
from tests.unit.protocols import wire

FRAME = encode_frame(code=10, opaque=5, ext={"topic": "T"}, body=b"hello")


def test_one_byte_at_a_time():
    connection = RemotingConnection()
    for byte in FRAME[:-1]:
        assert connection.receive_data(bytes((byte,))) == []
    ((header, body),) = connection.receive_data(FRAME[-1:])
    assert (header.opaque, bytes(body)) == (5, b"hello")
    assert connection.bytes_buffered == 0


def test_many_in_one_piece_and_a_half():
    connection = RemotingConnection()
    commands = connection.receive_data(FRAME * 3 + FRAME[:20])
    assert [bytes(body) for _, body in commands] == [b"hello"] * 3
    assert connection.bytes_buffered == 20
    assert len(connection.receive_data(FRAME[20:])) == 1


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (struct.pack(">I", 0), "0 bytes"),
        (struct.pack(">I", 3), "3 bytes"),
        (struct.pack(">i", -1), "4294967295 bytes"),
        (struct.pack(">I", 16 * 1024 * 1024 + 1), "allowed are 4 to"),
        (struct.pack(">II", 100, 97), "a header of 97 bytes in a frame of 100"),
        (struct.pack(">II", 100, 0xFFFFFF), "a header of 16777215"),
        (struct.pack(">II", 100, 2 << 24 | 10), "serialization 2"),
        (struct.pack(">II", 100, 0xFF000010), "serialization 255"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (struct.pack(">II", 14, 10) + b"0123456789", "cannot be read"),
    ],
)
def test_bad_bytes_are_a_fault_after_the_good_commands(head, text):
    connection = RemotingConnection()
    commands = connection.receive_data(FRAME + head)
    assert len(commands) == 1
    assert text in str(connection.fault)
    assert connection.receive_data(FRAME) == []


def test_a_promise_of_a_long_frame_takes_no_memory():
    connection = RemotingConnection()
    connection.receive_data(struct.pack(">II", 16 * 1024 * 1024, 100) + b"x")
    assert connection.fault is None
    assert connection.bytes_buffered == 9


def test_the_limit_is_a_setting():
    connection = RemotingConnection(frame_bytes_max=64)
    connection.receive_data(FRAME)
    assert "allowed are 4 to 64" in str(connection.fault)


def test_own_requests_are_numbered_and_one_way():
    connection = RemotingConnection()
    first, second = (wire.one(connection.one_way_request(40, {"consumerGroup": "g"})) for _ in range(2))
    assert (first.code, first.flag, first.ext) == (40, 2, {"consumerGroup": "g"})
    assert second.opaque == first.opaque + 1
