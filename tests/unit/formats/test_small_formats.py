"""Consume-queue units, checkpoint, index arithmetic, properties, Java's hash: the reference's vectors and the edges."""

from __future__ import annotations

import pytest

from stratamq.formats.checkpoint import (
    Checkpoint,
    Progress,
    decode_checkpoint,
    decode_progress,
    encode_checkpoint,
)
from stratamq.formats.consume_queue import PREFILL_UNIT, Unit, decode_unit, encode_unit, units_view
from stratamq.formats.index import (
    IndexEntry,
    IndexHeader,
    decode_entry,
    decode_header,
    encode_header,
    entry_position,
    index_file_bytes,
    slot_position,
    time_delta_seconds,
)
from stratamq.formats.java import index_key_hash, index_key_hashes, string_hash, tags_code, utf16_units
from stratamq.formats.properties import decode_properties, encode_properties, find_property, split_keys

# --- consume queue ---


def test_the_reference_unit():
    data = bytes.fromhex("00 00 00 00 00 00 04 00 00 00 00 94 00 00 00 00 00 27 a8 07")
    assert encode_unit(1024, 148, tags_code("TagA")) == data
    assert decode_unit(b"-" + data, 1) == Unit(1024, 148, 2598919)
    assert encode_unit(0, 1, -1).endswith(b"\xff" * 8)


def test_kinds_of_units():
    assert decode_unit(PREFILL_UNIT).is_prefill
    assert decode_unit(PREFILL_UNIT).is_valid
    assert not decode_unit(bytes(20)).is_valid
    assert not Unit(-1, 5, 0).is_valid
    assert not Unit(0, 148, 0).is_prefill


def test_units_as_an_array():
    array = units_view(b"xx" + encode_unit(1, 2, 3) + encode_unit(4, 5, -6), 2, 2)
    assert array["physical_offset"].tolist() == [1, 4]
    assert array["tags_code"].tolist() == [3, -6]


# --- checkpoint ---

FIELDS = Checkpoint(
    physic_msg_timestamp=10_000,
    logics_msg_timestamp=9_000,
    index_msg_timestamp=7_000,
    master_flushed_offset=3,
    confirm_physical_offset=4,
)
PROGRESS = Progress(1, 2, 3, 20231114221320000, 5, 6, 0xFFFFFFFF)


def test_checkpoint_times():
    data = encode_checkpoint(FIELDS)
    assert len(data) == 4096
    assert data[:8] == (10_000).to_bytes(8, "big")
    assert not any(data[40:])
    assert decode_checkpoint(data) == FIELDS
    assert (FIELDS.min_timestamp, FIELDS.min_timestamp_index) == (6_000, 6_000)
    assert Checkpoint(physic_msg_timestamp=100, logics_msg_timestamp=9_000).min_timestamp == 0
    assert decode_checkpoint(b"\xff" * 4096) == Checkpoint()


def test_positions_count_only_while_nobody_else_changed_the_checkpoint():
    data = encode_checkpoint(FIELDS, PROGRESS)
    assert data[:40] == encode_checkpoint(FIELDS)[:40]
    assert decode_checkpoint(data) == FIELDS
    assert decode_progress(data) == PROGRESS
    assert decode_progress(encode_checkpoint(FIELDS)) is None
    assert decode_progress(data[:100]) is None
    for at in range(124):  # RocketMQ 5.5 has a field at 40, and may get more
        assert decode_progress(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None, at
    assert decode_progress(data[:124] + b"x" + data[125:]) == PROGRESS


# --- index ---


def test_index_positions():
    assert index_file_bytes(5_000_000, 20_000_000) == 420_000_040
    assert slot_position(5_000_000, 204089217) == 40 + 4 * 4089217
    assert entry_position(5_000_000, 1) == 20_000_060


def test_index_headers_and_entries():
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    assert decode_header(encode_header(header)) == header
    assert decode_header(bytes(40)).index_count == 1
    assert decode_entry(bytes(19) + b"\x09", 0) == IndexEntry(0, 0, 0, 9)


@pytest.mark.parametrize(
    ("stored", "begin", "expected"),
    [(5_999, 1_000, 4), (1_000, 5_000, 0), (5_000, 0, 0), (5_000, -1, 0), (2**62, 1, 2**31 - 1)],
)
def test_index_times(stored, begin, expected):
    assert time_delta_seconds(stored, begin) == expected


# --- Java's hash ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("标签", 857175),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
        ("TopicTest#7F000001ABCD18B4AAC20000000000", -478482308),
    ],
)
def test_string_hash(text, expected):
    assert string_hash(text) == expected
    assert tags_code(text) == expected


def test_index_key_hashes_one_by_one_and_in_bulk():
    pairs = [("TopicTest", "key-1"), ("TopicTest", "7F000001ABCD18B4AAC20000000000"), ("T", "ü"), ("T", "x" * 5000)]
    expected = [204089217, 478482308, index_key_hash("T", "ü"), index_key_hash("T", "x" * 5000)]
    assert index_key_hashes(pairs) == expected
    assert index_key_hashes(pairs * 20) == expected * 20
    assert index_key_hashes(pairs[:2] * 20) == expected[:2] * 20
    assert index_key_hashes([]) == []
    assert min(index_key_hashes([("T", f"k{number}") for number in range(1000)])) >= 0


def test_the_smallest_number_becomes_zero():
    # "polygenelubricants" cannot be topic#key; this pair hashes to -2^31 as well.
    unsigned = [index_key_hash("", ""), index_key_hash("a", "b")]
    assert all(value >= 0 for value in unsigned)


def test_surrogates_count_as_units():
    assert list(utf16_units("\U0001f600")) == [0xD83D, 0xDE00]
    assert list(utf16_units("\ud800")) == [0xD800]


# --- properties ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),
        ("a\x01\x02", {}),
        ("\x01b\x02", {}),
        ("ab\x02", {}),
        ("abc\x02", {}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("a\x01b\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
    ],
)
def test_properties_are_read_with_rocketmqs_tolerance(text, expected):
    assert decode_properties(text) == expected
    for name in ("a", "c", "b", ""):
        assert find_property(text, name) == expected.get(name)


def test_properties_are_written_with_a_last_separator():
    assert encode_properties({"a": "b", "c": "d"}) == "a\x01b\x02c\x01d\x02"


def test_keys_are_split_at_single_spaces():
    assert split_keys("k1  k2 ") == ["k1", "k2"]
