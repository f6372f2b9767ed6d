"""Helpers that take frames apart the slow and plain way, independent of the code under test."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """A frame, taken apart."""

    code: int
    opaque: int
    flag: int
    ext: dict[str, str]
    remark: str | None
    body: bytes
    header: dict[str, Any] = field(default_factory=dict)


def split(data: bytes) -> list[Answer]:
    """Take apart all frames of ``data``; every one must be whole."""
    answers = []
    while data:
        length, mark = struct.unpack_from(">II", data)
        header_bytes = mark & 0xFFFFFF
        frame, data = data[8 : 4 + length], data[4 + length :]
        assert len(frame) == length - 4
        header, body = frame[:header_bytes], frame[header_bytes:]
        answers.append(_json(header, body) if mark >> 24 == 0 else _binary(header, body))
    return answers


def one(data: bytes) -> Answer:
    """The only frame of ``data``."""
    (answer,) = split(data)
    return answer


def _json(header: bytes, body: bytes) -> Answer:
    fields = json.loads(header)
    ext = fields.get("extFields", {})
    assert all(isinstance(value, str) for value in ext.values()), "ext values must be strings on output"
    return Answer(fields["code"], fields["opaque"], fields["flag"], ext, fields.get("remark"), body, fields)


def _binary(header: bytes, body: bytes) -> Answer:
    code, language, version, opaque, flag, remark_bytes = struct.unpack_from(">hBhiii", header)
    at = 17 + remark_bytes
    remark = header[17:at].decode() or None
    end = at + 4 + struct.unpack_from(">i", header, at)[0]
    assert end == len(header)
    at += 4
    ext = {}
    while at < end:
        (key_bytes,) = struct.unpack_from(">h", header, at)
        key = header[at + 2 : at + 2 + key_bytes].decode()
        at += 2 + key_bytes
        (value_bytes,) = struct.unpack_from(">i", header, at)
        ext[key] = header[at + 4 : at + 4 + value_bytes].decode()
        at += 4 + value_bytes
    return Answer(code, opaque, flag, ext, remark, body, {"language": language, "version": version})
