"""The commit-log record: the reference's bytes, every check, every flaw."""

from __future__ import annotations

import struct

import pytest

from stratamq.formats.message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    check_record,
    decode_host,
    decode_record,
    encode_blank,
    encode_host,
    encode_record,
    encode_topic,
    head_bytes,
    offset_message_id,
    parse_offset_message_id,
    record_crc_flaw,
    record_size,
)
from stratamq.formats.properties import encode_properties

REFERENCE = bytes.fromhex(
    "00 00 00 94 da a3 20 a7 36 10 a6 86 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 00"
    "00 00 04 00 00 00 00 00 00 00 01 8b cf e5 68 00 0a 00 00 01 00 00 c3 50 00 00 01 8b cf e5 68 7b"
    "0a 00 00 02 00 00 2a 9f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 05 68 65 6c 6c 6f 09 54 6f"
    "70 69 63 54 65 73 74 00 2b 4b 45 59 53 01 6b 65 79 2d 31 02 54 41 47 53 01 54 61 67 41 02 55 4e"
    "49 51 5f 4b 45 59 01 37 46 30 30 30 30 30 31 30 30 30 31 02"
)
FIELDS = {
    "body": b"hello",
    "topic": b"TopicTest",
    "properties": encode_properties({"KEYS": "key-1", "TAGS": "TagA", "UNIQ_KEY": "7F0000010001"}).encode(),
    "queue_id": 3,
    "flag": 0,
    "queue_offset": 7,
    "physical_offset": 1024,
    "sys_flag": 0,
    "born_timestamp": 1700000000000,
    "born_host": encode_host("10.0.0.1", 50000),
    "store_timestamp": 1700000000123,
    "store_host": encode_host("10.0.0.2", 10911),
}


def test_the_reference_record():
    assert encode_record(**FIELDS) == REFERENCE
    record = decode_record(b"xx" + REFERENCE, 2)
    assert (record.topic, record.body, record.queue_offset, record.physical_offset) == ("TopicTest", b"hello", 7, 1024)
    assert record.message_id == "0A00000200002A9F0000000000000400"
    assert str(decode_host(record.born_host)) == "10.0.0.1:50000"
    assert (record.crc, record.is_queued, record.transaction_state) == (907060870, True, 0)
    assert check_record(REFERENCE, 0, len(REFERENCE), physical_offset=1024) == (148, False, None)


def test_ipv6_hosts_set_their_bits_and_take_twelve_bytes():
    born, stored = encode_host("::1", 1), encode_host("2001:db8::2", 2)
    data = encode_record(**(FIELDS | {"born_host": born, "store_host": stored}))
    assert len(data) == 148 + 24
    record = decode_record(data)
    assert record.sys_flag == SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
    assert str(decode_host(record.store_host)) == "[2001:db8::2]:2"
    assert len(record.message_id) == 56
    assert check_record(data, 0, len(data), physical_offset=1024).flaw is None
    assert [head_bytes(flag) for flag in (0, SYS_BORN_HOST_V6, SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)] == [88, 100, 112]
    # Bits that say otherwise than the hosts' lengths are put right.
    assert decode_record(encode_record(**(FIELDS | {"sys_flag": SYS_BORN_HOST_V6}))).sys_flag == 0


def test_long_topics_have_a_two_byte_length():
    assert encode_topic(b"t" * 127)[0] == 127
    assert encode_topic(b"t" * 128)[:2] == b"\x00\x80"
    data = encode_record(**(FIELDS | {"topic": b"t" * 200}))
    assert decode_record(data).magic == MAGIC_V2
    assert decode_record(data).topic == "t" * 200
    assert check_record(data, 0, len(data), physical_offset=1024).flaw is None
    sizes = {"body_bytes": 5, "topic_bytes": 200, "properties_bytes": 43, "sys_flag": 0}
    assert record_size(**sizes) == len(data)
    assert record_size(**(sizes | {"topic_bytes": 9})) == 148


def test_message_ids_go_both_ways():
    text = offset_message_id(encode_host("10.0.0.2", 10911), 1024)
    assert parse_offset_message_id(text) == (("10.0.0.2", 10911), 1024)
    for bad in ("", "00", text[:-1], text + "00", "Z" * 32):
        with pytest.raises(ValueError, match=r".+"):
            parse_offset_message_id(bad)


def flawed(at, data, *, where=1024):
    changed = bytearray(REFERENCE)
    changed[at : at + len(data)] = data
    return check_record(bytes(changed), 0, len(changed), physical_offset=where)


@pytest.mark.parametrize(
    ("at", "data", "kind", "position"),
    [
        (4, b"\0", "magic", 4),
        (0, struct.pack(">i", 90), "length", 0),
        (0, struct.pack(">i", 149), "truncated", 0),
        (0, struct.pack(">i", 147), "length", 103),
        (0, struct.pack(">i", -1), "length", 0),
        (84, struct.pack(">i", -1), "length", 84),
        (84, struct.pack(">i", 58), "length", 84),
        (84, struct.pack(">i", 6), "length", 84 + 4 + 6 + 1 + ord("T")),
        (93, b"\0", "length", 93),
        (93, b"\x80", "length", 93),
        (93, b"\x7f", "length", 94 + 127),
        (103, struct.pack(">h", 42), "length", 103),
        (103, struct.pack(">h", -43), "length", 103),
        (36, struct.pack(">i", SYS_BORN_HOST_V6), "length", 96),
        (28, struct.pack(">q", 1025), "offset", 28),
        (90, b"L", "crc", 8),
        (8, b"\xff", "crc", 8),
    ],
)
def test_flaws_are_told_apart_and_located(at, data, kind, position):
    flaw = flawed(at, data).flaw
    assert (flaw.kind, flaw.position) == (kind, position)
    assert flaw.expected != flaw.found


def test_checks_can_be_left_out():
    assert flawed(28, struct.pack(">q", 1025), where=None).flaw is None
    damaged = REFERENCE.replace(b"hello", b"jello")
    assert check_record(damaged, 0, 148, physical_offset=1024, verify_crc=False).flaw is None
    assert check_record(damaged, 0, 148, physical_offset=1024) == (148, False, ("crc", 8, "4CD0F5E6", "3610A686"))


@pytest.mark.parametrize("end", range(0, 148, 7))
def test_a_record_that_ends_early_is_never_good(end):
    assert check_record(REFERENCE[:end], 0, end, physical_offset=1024).flaw is not None


def test_blanks():
    assert encode_blank(500) == struct.pack(">ii", 500, MAGIC_BLANK)
    assert check_record(encode_blank(500), 0, 8, physical_offset=0) == (500, True, None)
    assert check_record(encode_blank(7), 0, 8, physical_offset=0).flaw.kind == "length"
    assert check_record(bytes(100), 0, 100, physical_offset=0).flaw.kind == "magic"
    assert MAGIC_V1 & 0xFFFFFFFF == 0xDAA320A7


def test_the_checksum_over_the_whole_record():
    import zlib

    plain = encode_record(**(FIELDS | {"properties": b"A\x01b\x02" + b"__CRC32#\x01" + b"0" * 10 + b"\x02"}))
    digits = str(zlib.crc32(plain[:-20]) & 0x7FFFFFFF)[::-1].ljust(10, "0").encode()
    good = plain[:-11] + digits + b"\x02"
    assert record_crc_flaw(good, 0, len(good)) is None
    bad = good.replace(b"TopicTest", b"TopicTesT")
    assert record_crc_flaw(bad, 0, len(bad)).kind == "crc"
    assert record_crc_flaw(REFERENCE, 0, len(REFERENCE)) is None
