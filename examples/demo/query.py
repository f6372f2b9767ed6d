"""QUERY_MESSAGE over the wire: one hand-made remoting frame, with none of StrataMQ's own protocol code in between.

Frame: length u32 | header length u32 (top byte: 0 = JSON) | header | body. The body of the answer is commit-log records
one after the other.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from stratamq.formats.message import Record, decode_record

QUERY_MESSAGE = 12
SUCCESS = 0
QUERY_NOT_FOUND = 22
TIMEOUT_SECONDS = 20.0


class QueryFailed(Exception):
    """The broker answered with an error."""


def query_by_key(address: str, topic: str, key: str, *, most: int = 32) -> list[Record]:
    """Ask the broker at ``host:port`` for the messages of a topic that carry a key.

    Raises:
        QueryFailed: The broker answered with something else than messages or "none found".
        OSError: No connection, or no answer in 20 s.
    """
    header = {
        "code": QUERY_MESSAGE,
        "language": "PYTHON",
        "version": 0,
        "opaque": 1,
        "flag": 0,
        "extFields": {
            "topic": topic,
            "key": key,
            "maxNum": str(most),
            "beginTimestamp": "0",
            "endTimestamp": str(int(time.time() * 1000) + 60_000),
        },
    }
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(encode_frame(header))
        answer, body = _read_frame(connection)
    if answer["code"] == QUERY_NOT_FOUND:
        return []
    if answer["code"] != SUCCESS:
        raise QueryFailed(f"the broker answered code {answer['code']}: {answer.get('remark')}")
    return decode_records(body)


def encode_frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One request frame with a JSON header."""
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def decode_records(body: bytes) -> list[Record]:
    """Commit-log records that stand one after the other."""
    records = []
    at = 0
    while at < len(body):
        records.append(decode_record(body, at))
        at += records[-1].size
    return records


def _read_frame(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack(">I", _read(connection, 4))
    frame = _read(connection, length)
    header_bytes = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
    return json.loads(frame[4 : 4 + header_bytes]), frame[4 + header_bytes :]


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection in the middle of an answer")
        data += piece
    return bytes(data)
