"""Records of quorum queues: bytes as the format's page has them, and whatever else is there is corruption."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import CorruptionError
from stratamq.formats.quorum_record import (
    Begin,
    Changes,
    Definitions,
    Delete,
    Mark,
    Open,
    Put,
    Settle,
    Take,
    decode_first,
    decode_operations,
    encode_begin,
    encode_changes,
    encode_definitions,
    encode_delete,
    encode_header,
    encode_mark,
    encode_open,
    encode_put,
    encode_settle,
    encode_take,
)


def test_the_bytes_are_those_of_the_page() -> None:
    assert encode_header(7) == b"AQ\x01\0" + bytes(7) + b"\x07"
    assert encode_open(1, "q") == b"\x01\0\0\0\x05\0\0\0\x01q"
    assert encode_settle(1, [3, 4, 9]).hex() == "060000001c" + "00000001" + "000000000000000300000002" + (
        "000000000000000900000001"
    )
    assert (
        encode_put(2, [(1, 5)], b"x").hex()
        == "0300000015" + "0000000000000002" + "00000001" + "0000000100000005" + "78"
    )


def test_every_operation_comes_back() -> None:
    parts = [
        encode_open(1, "v\nq\n0"),
        encode_begin(3),
        encode_definitions({"queues": []}, {"v\nq\n0": 1}),
        encode_changes([["+", "queues", {}]]),
        encode_put(9, [(1, 0), (2, 6)], b"content"),
        encode_take(1, [4, 5, 7]),
        encode_mark(1, 9, 6),
        encode_settle(1, [4]),
        encode_delete(2),
    ]
    body = encode_header(0) + b"".join(parts)
    found = list(decode_operations(body, "here"))
    start = body.index(b"content")
    assert found == [
        Open(1, "v\nq\n0"),
        Begin(3),
        Definitions({"queues": []}, {"v\nq\n0": 1}),
        Changes([["+", "queues", {}]]),
        Put(9, ((1, 0), (2, 6)), start, 7),
        Take(1, ((4, 2), (7, 1))),
        Mark(1, 9, 6),
        Settle(1, ((4, 1),)),
        Delete(2),
    ]
    assert decode_first(body, "here") == 0


@given(st.binary(max_size=200), st.booleans())
def test_anything_else_is_corruption(data: bytes, has_header: bool) -> None:
    body = encode_header(0) + data if has_header else data
    found: list[object] = []
    with contextlib.suppress(CorruptionError):
        found.extend(decode_operations(body, "here"))
    assert len(found) <= len(data)


@pytest.mark.parametrize("kind", range(1, 10))
def test_an_operation_that_is_cut_off_is_corruption(kind: int) -> None:
    with pytest.raises(CorruptionError):
        list(decode_operations(encode_header(0) + bytes((kind, 0, 0, 0, 99)) + bytes(20), "here"))
