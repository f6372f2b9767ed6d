"""The commit-log record: one message as it lies on disk and as it goes over the wire to a consumer.

Big-endian. With IPv4 hosts (each IPv6 host adds 12 bytes to all that follows):

====== ===== ============================================================================================
offset size  field
====== ===== ============================================================================================
0      4     total size, this field included
4      4     magic: DAA320A7 (v1, 1-byte topic length) or DAA320AB (v2, 2-byte topic length)
8      4     body CRC: CRC-32 of the body as stored, AND 0x7FFFFFFF
12     4     queue id
16     4     flag, the application's own number
20     8     queue offset (ordinal, not bytes)
28     8     physical offset: the record's own position in the commit-log stream
36     4     sys flag
40     8     born timestamp (producer's clock, ms)
48     8/20  born host: address 4/16, port i32
56     8     store timestamp (broker's clock, ms)
64     8/20  store host
72     4     reconsume times
76     8     prepared transaction offset
84     4+B   body length, body
88+B   1+T   topic length, topic (v2: 2+T)
...    2+P   properties length, properties
====== ===== ============================================================================================

A file ends with a blank record of at least 8 bytes: i32 bytes left in the file, i32 magic CBD43194; what follows those
8 bytes is undefined. A record never spans two files, and 8 bytes always stay free for the blank.

Source: docs/formats/commit-log.md; apache/rocketmq store/.../MessageExtEncoder.java, CommitLog.java.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratamq.formats.properties import RECORD_CRC
from stratamq.units import Buffer

MAGIC_V1: Final = 0xDAA320A7 - 2**32
MAGIC_V2: Final = 0xDAA320AB - 2**32
MAGIC_BLANK: Final = 0xCBD43194 - 2**32

BLANK_BYTES: Final = 8
FIXED_BYTES_V1: Final = 91
"""Size of a v1 record with IPv4 hosts and empty body, topic and properties."""
RECORD_BYTES_MIN: Final = FIXED_BYTES_V1
IPV6_EXTRA_BYTES: Final = 12
TOPIC_V1_BYTES_MAX: Final = 127

SYS_COMPRESSED: Final = 0x1
SYS_MULTI_TAGS: Final = 0x2
SYS_TRANSACTION_MASK: Final = 0xC
SYS_TRANSACTION_PREPARED: Final = 0x4
SYS_TRANSACTION_COMMIT: Final = 0x8
SYS_TRANSACTION_ROLLBACK: Final = 0xC
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_HOSTS_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
SYS_NEED_UNWRAP: Final = 0x40
SYS_INNER_BATCH: Final = 0x80
SYS_COMPRESSION_MASK: Final = 0x700
SYS_COMPRESSION_ZLIB: Final = 0x300
"""0 means zlib too: clients older than the other compressions write nothing there."""

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
RECORD_CRC_BYTES: Final = 20
CRC_MASK: Final = 0x7FFFFFFF

SIZE_AND_MAGIC: Final = struct.Struct(">ii")
HEAD_V4: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
"""All fixed fields up to and with the body length, both hosts IPv4: 88 bytes."""
_HEAD_BY_SYS_FLAG: Final = {
    0: HEAD_V4,
    SYS_BORN_HOST_V6: struct.Struct(">iiiiiqqiq20sq8siqi"),
    SYS_STORE_HOST_V6: struct.Struct(">iiiiiqqiq8sq20siqi"),
    SYS_HOSTS_V6: struct.Struct(">iiiiiqqiq20sq20siqi"),
}
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class Host(NamedTuple):
    """An address and a port, as text and number."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def encode_host(address: str, port: int) -> bytes:
    """Address (4 or 16 bytes) and i32 port, as records hold them. Raises ValueError when it is no IP address."""
    return ipaddress.ip_address(address).packed + _I32.pack(port)


def decode_host(data: bytes) -> Host:
    """Read 8 or 20 bytes of host."""
    return Host(str(ipaddress.ip_address(data[:-4])), _I32.unpack(data[-4:])[0])


def body_crc(body: Buffer) -> int:
    """CRC-32 of a body with the sign bit cleared."""
    return zlib.crc32(body) & CRC_MASK


def head_bytes(sys_flag: int) -> int:
    """Where the body of a record with this sys flag begins: 88, 100 or 112."""
    return _HEAD_BY_SYS_FLAG[sys_flag & SYS_HOSTS_V6].size


def head_struct(sys_flag: int) -> struct.Struct:
    """The fixed fields, up to and with the body length, of records with this sys flag's host kinds."""
    return _HEAD_BY_SYS_FLAG[sys_flag & SYS_HOSTS_V6]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A decoded commit-log record. ``properties`` is the property string as stored."""

    size: int
    magic: int
    crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: str

    @property
    def transaction_state(self) -> int:
        """The transaction bits of the sys flag."""
        return self.sys_flag & SYS_TRANSACTION_MASK

    @property
    def is_queued(self) -> bool:
        """Whether the record belongs into a consume queue (prepared and rolled-back ones do not)."""
        return self.transaction_state in (0, SYS_TRANSACTION_COMMIT)

    @property
    def message_id(self) -> str:
        """The offset message id: hex of store host and physical offset, 32 or 56 characters."""
        return offset_message_id(self.store_host, self.physical_offset)


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Upper-case hex of address, i32 port and i64 physical offset."""
    return (store_host + _I64.pack(physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """Host and physical offset of an offset message id. Raises ValueError when it is none."""
    if len(text) not in (32, 56):
        raise ValueError(f"an offset message id has 32 or 56 hex digits, this has {len(text)}")
    raw = bytes.fromhex(text)
    return decode_host(raw[:-8]), _I64.unpack(raw[-8:])[0]


def record_size(*, body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int) -> int:
    """Length of the record that `encode_record` makes of such parts. ``sys_flag`` tells the host kinds."""
    topic_length_bytes = 1 if topic_bytes <= TOPIC_V1_BYTES_MAX else 2
    return head_bytes(sys_flag) + body_bytes + topic_length_bytes + topic_bytes + 2 + properties_bytes


def encode_topic(topic: bytes) -> bytes:
    """Length and topic: one length byte up to 127 bytes, else two."""
    if len(topic) <= TOPIC_V1_BYTES_MAX:
        return bytes((len(topic),)) + topic
    return _I16.pack(len(topic)) + topic


def encode_record(
    *,
    body: Buffer,
    topic: bytes,
    properties: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """One record as bytes; sets the host bits of ``sys_flag`` from the hosts' lengths.

    Raises struct.error when a number does not fit its field: callers check lengths before (`record_size`).
    """
    sys_flag &= ~SYS_HOSTS_V6
    if len(born_host) == 20:
        sys_flag |= SYS_BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= SYS_STORE_HOST_V6
    head = _HEAD_BY_SYS_FLAG[sys_flag & SYS_HOSTS_V6]
    body_bytes = len(body)
    topic_part = encode_topic(topic)
    size = head.size + body_bytes + len(topic_part) + 2 + len(properties)
    return b"".join(
        (
            head.pack(
                size,
                MAGIC_V1 if len(topic) <= TOPIC_V1_BYTES_MAX else MAGIC_V2,
                zlib.crc32(body) & CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_bytes,
            ),
            body,
            topic_part,
            _I16.pack(len(properties)),
            properties,
        )
    )


def encode_blank(bytes_left: int) -> bytes:
    """The 8 bytes that end a file in which ``bytes_left`` bytes were free."""
    return SIZE_AND_MAGIC.pack(bytes_left, MAGIC_BLANK)


def decode_record(data: Buffer, position: int = 0) -> Record:
    """Decode the record at ``position``.

    The caller has checked it (`check_record`): here no bounds are looked at beyond those of ``data``. Copies the body.

    Raises:
        struct.error, ValueError: The bytes are no record, or end inside it.
    """
    sys_flag = _I32.unpack_from(data, position + SYS_FLAG_AT)[0]
    head = _HEAD_BY_SYS_FLAG[sys_flag & SYS_HOSTS_V6]
    fields = head.unpack_from(data, position)
    body_at = position + head.size
    topic_at = body_at + fields[14]
    if fields[1] == MAGIC_V2:
        topic_bytes = _I16.unpack_from(data, topic_at)[0]
        topic_at += 2
    else:
        topic_bytes = data[topic_at]
        topic_at += 1
    properties_at = topic_at + topic_bytes + 2
    properties_bytes = _I16.unpack_from(data, properties_at - 2)[0]
    return Record(
        size=fields[0],
        magic=fields[1],
        crc=fields[2],
        queue_id=fields[3],
        flag=fields[4],
        queue_offset=fields[5],
        physical_offset=fields[6],
        sys_flag=sys_flag,
        born_timestamp=fields[8],
        born_host=fields[9],
        store_timestamp=fields[10],
        store_host=fields[11],
        reconsume_times=fields[12],
        prepared_transaction_offset=fields[13],
        body=bytes(data[body_at : body_at + fields[14]]),
        topic=str(data[topic_at : topic_at + topic_bytes], "utf-8"),
        properties=str(data[properties_at : properties_at + properties_bytes], "utf-8", "replace"),
    )


def decode_records(pieces: Iterable[Buffer]) -> Iterator[Record]:
    """Decode records that lie back to back in each of some pieces, such as those that a read of a queue found.

    Each is decoded when it is asked for; what `decode_record` says of its caller holds here too.
    """
    for data in pieces:
        position = 0
        while position < len(data):
            record = decode_record(data, position)
            yield record
            position += record.size


def properties_text(data: Buffer, position: int = 0) -> str:
    """The property string of the record at ``position``; of a checked record, as for `decode_record`, and as there.

    Cost: about 1 us; the body is not touched.
    """
    sys_flag = _I32.unpack_from(data, position + SYS_FLAG_AT)[0]
    body_at = position + _HEAD_BY_SYS_FLAG[sys_flag & SYS_HOSTS_V6].size
    topic_at = body_at + _I32.unpack_from(data, body_at - 4)[0]
    if _I32.unpack_from(data, position + MAGIC_AT)[0] == MAGIC_V2:
        properties_at = topic_at + 2 + _I16.unpack_from(data, topic_at)[0] + 2
    else:
        properties_at = topic_at + 1 + data[topic_at] + 2
    length = _I16.unpack_from(data, properties_at - 2)[0]
    return str(data[properties_at : properties_at + length], "utf-8", "replace")


class Flaw(NamedTuple):
    """What is wrong with a record: kind, byte position in the buffer, what was expected and what was found."""

    kind: str
    position: int
    expected: object
    found: object


class Checked(NamedTuple):
    """Outcome of `check_record`. ``size`` is how far to step; a flaw that leaves the length in doubt has size 0."""

    size: int
    is_blank: bool
    flaw: Flaw | None


def check_record(
    data: Buffer, position: int, end: int, *, physical_offset: int | None, verify_crc: bool = True
) -> Checked:
    """Check the record at ``position`` of a buffer whose data ends at ``end``, without decoding it.

    Looked at: room, magic, every inner length against the record's size, the embedded physical offset (when
    ``physical_offset`` is given), and the body's CRC. A blank record is good; that its size reaches to the end of
    the file is for the caller to check, who knows where that is.

    Cost: about 1 us and one CRC over the body.
    """
    room = end - position
    if room < BLANK_BYTES:
        return Checked(0, False, Flaw("truncated", position, f"{BLANK_BYTES} bytes", f"{room} bytes"))
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        if size < BLANK_BYTES:
            return Checked(0, True, Flaw("length", position, f"at least {BLANK_BYTES}", size))
        return Checked(size, True, None)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Checked(
            0, False, Flaw("magic", position + MAGIC_AT, "DAA320A7 or DAA320AB", f"{magic & 0xFFFFFFFF:08X}")
        )
    if size < RECORD_BYTES_MIN:
        return Checked(0, False, Flaw("length", position, f"at least {RECORD_BYTES_MIN}", size))
    if size > room:
        return Checked(0, False, Flaw("truncated", position, f"at most {room} bytes", f"{size} bytes"))
    sys_flag = _I32.unpack_from(data, position + SYS_FLAG_AT)[0]
    head = _HEAD_BY_SYS_FLAG[sys_flag & SYS_HOSTS_V6]
    flaw = _flaw_of_parts(data, position, size, magic, head.size)
    if flaw is not None:
        return Checked(0, False, flaw)
    if physical_offset is not None:
        stated = _I64.unpack_from(data, position + PHYSICAL_OFFSET_AT)[0]
        if stated != physical_offset:
            return Checked(size, False, Flaw("offset", position + PHYSICAL_OFFSET_AT, physical_offset, stated))
    if verify_crc:
        body_bytes = _I32.unpack_from(data, position + head.size - 4)[0]
        if body_bytes:
            stored = _I32.unpack_from(data, position + 8)[0]
            body_at = position + head.size
            with memoryview(data) as view:
                computed = zlib.crc32(view[body_at : body_at + body_bytes]) & CRC_MASK
            if stored != computed:
                return Checked(size, False, Flaw("crc", position + 8, f"{computed:08X}", f"{stored & 0xFFFFFFFF:08X}"))
    return Checked(size, False, None)


def _flaw_of_parts(data: Buffer, position: int, size: int, magic: int, head_size: int) -> Flaw | None:
    """Walk body, topic and properties lengths; they must fill the record exactly."""
    record_end = position + size
    at = position + head_size
    if at + 1 > record_end:
        return Flaw("length", position, f"at least {head_size}", size)
    body_bytes = _I32.unpack_from(data, at - 4)[0]
    topic_length_bytes = 2 if magic == MAGIC_V2 else 1
    if body_bytes < 0 or at + body_bytes + topic_length_bytes + 2 > record_end:
        return Flaw("length", at - 4, f"a body of at most {size - head_size} bytes", body_bytes)
    at += body_bytes
    topic_bytes = _I16.unpack_from(data, at)[0] if topic_length_bytes == 2 else data[at]
    at += topic_length_bytes
    if topic_bytes <= 0 or (topic_length_bytes == 1 and topic_bytes > TOPIC_V1_BYTES_MAX):
        return Flaw("length", at - topic_length_bytes, "a topic", topic_bytes)
    at += topic_bytes
    if at + 2 > record_end:
        return Flaw("length", at, "room for the properties", f"{record_end - at} bytes")
    properties_bytes = _I16.unpack_from(data, at)[0]
    if properties_bytes < 0 or at + 2 + properties_bytes != record_end:
        return Flaw("length", at, f"{record_end - at - 2} bytes of properties", properties_bytes)
    return None


def record_crc_flaw(data: Buffer, position: int, size: int) -> Flaw | None:
    """Check the CRC over the whole record, where the record ends with one (``__CRC32#``, ten digits, lowest first).

    Source: apache/rocketmq MessageExtEncoder.java, enabledAppendPropCRC (since 5.2.0).
    """
    at = position + size - RECORD_CRC_BYTES
    name = f"{RECORD_CRC}\x01".encode()
    if bytes(data[at : at + len(name)]) != name or data[position + size - 1] != 2:
        return None
    digits = bytes(data[at + len(name) : position + size - 1])
    with memoryview(data) as view:
        computed = zlib.crc32(view[position:at]) & CRC_MASK
    expected = str(computed)[::-1].ljust(10, "0").encode()
    return None if digits == expected else Flaw("crc", at, expected.decode(), digits.decode("latin-1"))
