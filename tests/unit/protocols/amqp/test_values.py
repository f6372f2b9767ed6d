"""Field tables: golden bytes of every type, round trips, and what is refused."""

from __future__ import annotations

import pytest

from stratamq.protocols.amqp.replies import AmqpError
from stratamq.protocols.amqp.values import (
    DEPTH_MAX,
    Decimal,
    Float32,
    Timestamp,
    encode_table,
    read_table,
    require_utf8,
    same_value,
    type_name,
)

GOLDEN = {
    "t": b"t\x01",
    "b": b"b\xff",
    "B": b"B\xff",
    "s": b"s\xff\xfe",
    "u": b"u\xff\xfe",
    "I": b"I\xff\xff\xff\xfd",
    "i": b"i\xff\xff\xff\xfd",
    "l": b"l\xff\xff\xff\xff\xff\xff\xff\xfc",
    "f": b"f\x3f\xc0\x00\x00",
    "d": b"d\x3f\xf8\x00\x00\x00\x00\x00\x00",
    "D": b"D\x02\x00\x00\x01\x3a",
    "S": b"S\x00\x00\x00\x03abc",
    "x": b"x\x00\x00\x00\x02\x00\xff",
    "T": b"T\x00\x00\x00\x00\x5f\x5e\x10\x00",
    "V": b"V",
    "A": b"A\x00\x00\x00\x07I\x00\x00\x00\x01t\x00",
    "F": b"F\x00\x00\x00\x04\x01kt\x01",
}
VALUES = {
    "t": True, "b": -1, "B": 255, "s": -2, "u": 65534, "I": -3, "i": 4294967293, "l": -4, "f": 1.5, "d": 1.5,
    "D": (2, 314), "S": "abc", "x": b"\x00\xff", "T": 1_600_000_000, "V": None, "A": [1, False], "F": {"k": True},
}  # fmt: skip


def table_bytes(value: bytes, name: bytes = b"n") -> bytes:
    entry = bytes((len(name),)) + name + value
    return len(entry).to_bytes(4, "big") + entry


@pytest.mark.parametrize("tag", list(GOLDEN))
def test_every_type_is_read_and_written_back_as_it_was(tag):
    raw = table_bytes(GOLDEN[tag])
    table, end = read_table(raw, 0)
    assert end == len(raw)
    assert table == {"n": VALUES[tag]}
    assert encode_table(table) == raw


def test_both_letters_for_long_are_the_same():
    assert read_table(table_bytes(b"L" + GOLDEN["l"][1:]), 0)[0] == {"n": -4}


def test_strings_that_are_no_utf8_survive():
    raw = table_bytes(b"S\x00\x00\x00\x02\xff\xfe")
    assert encode_table(read_table(raw, 0)[0]) == raw


def test_of_two_entries_with_one_name_the_first_holds():
    entry = b"\x01nt\x01\x01nt\x00"
    assert read_table(len(entry).to_bytes(4, "big") + entry, 0)[0] == {"n": True}


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0\0\x05\x01nS\0\0", table_bytes(b"?"), table_bytes(b"S\0\0\0\x09abc"), table_bytes(b"T\0")]
)
def test_what_cannot_be_read_is_a_syntax_error(raw):
    with pytest.raises(AmqpError) as caught:
        read_table(raw, 0)
    assert caught.value.code == 502


@pytest.mark.parametrize("letter", [b"F", b"A"])
def test_nesting_is_bounded(letter):
    raw = b""
    for _ in range(DEPTH_MAX + 10):
        inner = (b"\x01n" if letter == b"F" else b"") + (raw or b"t\x01")
        raw = letter + len(inner).to_bytes(4, "big") + inner
    with pytest.raises(AmqpError, match="nested"):
        read_table(table_bytes(raw), 0)


def test_comparison_is_by_class_of_type_then_value():
    small, long = read_table(table_bytes(b"b\x05"), 0)[0]["n"], 5
    assert same_value(small, long)
    assert not same_value(1, True)
    assert not same_value("1", 1)
    assert not same_value(1.0, 1)
    assert same_value(Float32(1.5), 1.5)


def test_types_have_the_names_that_error_texts_use():
    named = {"I": "signedint", "l": "long", "S": "longstr", "t": "bool", "T": "timestamp", "d": "double", "V": "void"}
    for tag, name in named.items():
        assert type_name(read_table(table_bytes(GOLDEN[tag]), 0)[0]["n"]) == name
    assert type_name(Decimal((1, 2))) == "decimal"
    assert type_name(Timestamp(1)) == "timestamp"


def test_a_name_must_be_utf8():
    assert require_utf8("ö") == "ö"
    with pytest.raises(AmqpError) as caught:
        require_utf8(b"\xff".decode("utf-8", "surrogateescape"))
    assert caught.value.code == 501
