"""One remoting command: its header and body, in both header forms.

Frame, big-endian::

    length u32 of all that follows | mark u32: serialization u8, header length u24 | header | body

Header, serialization 0, JSON: ``code``, ``language``, ``version``, ``opaque``, ``flag``, ``remark``, ``extFields``
(text to text). Peers take liberties on input: raw numbers, booleans and nulls among the extFields, unknown members.

Header, serialization 1, ROCKETMQ: code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark length i32 and
UTF-8 | extFields length i32, then repeated: key length i16, key, value length i32, value.

A header keeps its extFields undecoded (``ext``, JSON), whichever form it came in: what they are is the request code's
business (`headers`). An answer goes out in the form of its request.

Source: apache/rocketmq remoting/.../RemotingCommand.java, RocketMQSerializable.java.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

import msgspec

from stratamq.errors import LocalProtocolError, RemoteProtocolError
from stratamq.protocols.remoting.codes import (
    FLAG_ONE_WAY,
    FLAG_RESPONSE,
    LANGUAGE,
    LANGUAGES,
    SERIALIZE_JSON,
    SERIALIZE_ROCKETMQ,
    VERSION,
    language_name,
)
from stratamq.units import Buffer, MiB

FRAME_BYTES_MAX: Final = 16 * MiB
"""Longest frame taken, without its length word; RocketMQ's default."""
FRAME_HEAD: Final = struct.Struct(">II")
HEADER_BYTES_MASK: Final = 0xFFFFFF

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_NO_EXT: Final = msgspec.Raw(b"{}")
_BINARY_HEAD: Final = struct.Struct(">hBhiii")
_BINARY_BYTES_MIN: Final = _BINARY_HEAD.size + 4
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


class CommandHeader(msgspec.Struct, gc=False):
    """A decoded header. ``ext`` is the JSON text of the extFields, not looked into yet."""

    serialization: ClassVar[int] = SERIALIZE_JSON

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    ext: msgspec.Raw = msgspec.field(default=_NO_EXT, name="extFields")
    language: str | int | None = None
    remark: str | None = None

    @property
    def is_response(self) -> bool:
        """Whether this answers something we asked."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no answer, not even an error."""
        return bool(self.flag & FLAG_ONE_WAY)

    @property
    def language_name(self) -> str:
        """The sender's language by name."""
        return language_name(self.language)


class BinaryHeader(CommandHeader, gc=False):
    """A header that came in the ROCKETMQ form; answers to it go out in that form."""

    serialization: ClassVar[int] = SERIALIZE_ROCKETMQ


_json_decoder = msgspec.json.Decoder(CommandHeader)


def decode_header(serialization: int, data: bytes | bytearray) -> CommandHeader:
    """Decode a header. Raises RemoteProtocolError when it cannot be one. Cost: about 1 us for JSON."""
    if serialization == SERIALIZE_JSON:
        try:
            return _json_decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return _decode_json_tolerantly(data)
    if serialization == SERIALIZE_ROCKETMQ:
        return _decode_binary(data)
    raise RemoteProtocolError(f"unknown header serialization {serialization}: known are 0 (JSON) and 1 (ROCKETMQ)")


def _decode_json_tolerantly(data: bytes | bytearray) -> CommandHeader:
    try:
        value = json.loads(data, strict=False)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
        fields = {name: value[name] for name in ("code", "opaque", "flag", "version") if value.get(name) is not None}
        language, remark = value.get("language"), value.get("remark")
        header = CommandHeader(
            ext=msgspec.Raw(msgspec.json.encode(value.get("extFields") or {})),
            language=language if isinstance(language, str | int) else None,
            remark=None if remark is None else str(remark),
            **{name: int(number) for name, number in fields.items()},
        )
        if any(not -(2**31) <= getattr(header, name) < 2**31 for name in fields):
            raise ValueError("a number does not fit 32 bits")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RemoteProtocolError(f"header of {len(data)} bytes cannot be read: {error}") from error
    return header


def _decode_binary(data: bytes | bytearray) -> CommandHeader:
    if len(data) < _BINARY_BYTES_MIN:
        raise RemoteProtocolError(f"binary header of {len(data)} bytes, at least {_BINARY_BYTES_MIN} are needed")
    code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(data)
    ext_at = _BINARY_HEAD.size + remark_bytes
    if remark_bytes < 0 or ext_at + 4 > len(data):
        raise RemoteProtocolError(f"binary header: a remark of {remark_bytes} bytes does not fit into {len(data)}")
    ext_bytes = _I32.unpack_from(data, ext_at)[0]
    end = ext_at + 4 + ext_bytes
    if ext_bytes < 0 or end > len(data):
        raise RemoteProtocolError(f"binary header: extFields of {ext_bytes} bytes do not fit into {len(data)}")
    try:
        remark = data[_BINARY_HEAD.size : ext_at].decode() if remark_bytes else None
        fields = _decode_binary_fields(data, ext_at + 4, end)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"binary header: {error}") from error
    return BinaryHeader(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        ext=msgspec.Raw(msgspec.json.encode(fields)) if fields else _NO_EXT,
        language=language,
        remark=remark,
    )


def _decode_binary_fields(data: bytes | bytearray, at: int, end: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while at < end:
        if at + 2 > end:
            raise RemoteProtocolError("binary header: extFields end inside an entry")
        key_bytes = _I16.unpack_from(data, at)[0]
        value_at = at + 2 + key_bytes + 4
        if key_bytes < 0 or value_at > end:
            raise RemoteProtocolError(f"binary header: an extFields key of {key_bytes} bytes does not fit")
        value_bytes = _I32.unpack_from(data, value_at - 4)[0]
        if value_bytes < 0 or value_at + value_bytes > end:
            raise RemoteProtocolError(f"binary header: an extFields value of {value_bytes} bytes does not fit")
        if value_bytes:
            fields[data[at + 2 : value_at - 4].decode()] = data[value_at : value_at + value_bytes].decode()
        at = value_at + value_bytes
    return fields


def encode_frame(
    *,
    code: int,
    opaque: int,
    flag: int = 0,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    body: Buffer = b"",
    serialization: int = SERIALIZE_JSON,
    version: int = VERSION,
    language: str = LANGUAGE,
) -> bytes:
    """One whole frame. Cost: 2 to 5 us; hot answers have their own formatted bytes (`replies`).

    Raises LocalProtocolError when it does not fit: code or version over 16 bits in the binary form, or a frame
    longer than `FRAME_BYTES_MAX`.
    """
    if serialization == SERIALIZE_ROCKETMQ:
        header = _encode_binary(code, language, version, opaque, flag, remark, ext)
    else:
        fields: dict[str, object] = {"code": code}
        if ext:
            fields["extFields"] = dict(ext)
        fields |= {"flag": flag, "language": language, "opaque": opaque}
        if remark is not None:
            fields["remark"] = remark
        fields["serializeTypeCurrentRPC"] = "JSON"
        fields["version"] = version
        header = msgspec.json.encode(fields)
    return join_frame(serialization, header, body)


def join_frame(serialization: int, header: bytes, body: Buffer = b"") -> bytes:
    """Length word, mark, header and body in one piece."""
    length = 4 + len(header) + len(body)
    if length > FRAME_BYTES_MAX or len(header) > HEADER_BYTES_MASK:
        raise LocalProtocolError(f"a frame of {length} bytes is longer than the {FRAME_BYTES_MAX} that peers take")
    return FRAME_HEAD.pack(length, serialization << 24 | len(header)) + header + body


def _encode_binary(
    code: int, language: str, version: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str] | None
) -> bytes:
    note = (remark or "").encode()
    parts: list[bytes] = []
    for key, value in (ext or {}).items():
        raw_key, raw_value = key.encode(), value.encode()
        parts += (_I16.pack(len(raw_key)), raw_key, _I32.pack(len(raw_value)), raw_value)
    fields = b"".join(parts)
    try:
        head = _BINARY_HEAD.pack(code, LANGUAGES.index(language), version, opaque, flag, len(note))
    except struct.error as error:
        raise LocalProtocolError(f"code {code}, version {version} do not fit the binary header: {error}") from error
    return b"".join((head, note, _I32.pack(len(fields)), fields))
