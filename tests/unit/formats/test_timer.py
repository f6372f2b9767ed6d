"""Timer files, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.formats.timer import (
    SLOT_DTYPE,
    UNIT_DTYPE,
    WHEEL_BYTES,
    TimerCheckpoint,
    TimerUnit,
    decode_checkpoint_file,
    decode_unit,
    encode_blank,
    encode_checkpoint,
    encode_checkpoint_file,
    encode_unit,
    units_per_file,
)

UNIT = TimerUnit(-1, 3, 1_767_225_600_000, 5_000, 0x1234, 300, -7)
UNIT_HEX = (
    "00000034" "ffffffffffffffff" "00000003" "0000019b76daa800" "00001388" "0000000000001234" "0000012c" "fffffff9"
    "0000000000000000"
)  # fmt: skip

I64 = st.integers(0, 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)


def test_a_unit_is_what_the_page_says() -> None:
    data = encode_unit(UNIT)
    assert data.hex() == UNIT_HEX
    assert decode_unit(data) == UNIT
    assert UNIT.slot_ms == 1_767_225_605_000
    row = np.frombuffer(data, UNIT_DTYPE)[0]
    assert (row["physical_offset"], row["message_bytes"], row["topic_hash"]) == (0x1234, 300, -7)


def test_the_blank_and_how_much_fits() -> None:
    assert encode_blank(16).hex() == "000000100000000000000000cbd43194"
    assert (units_per_file(100 * 1024 * 1024) - 1) * 52 == 104_857_532
    assert WHEEL_BYTES == 38_707_200
    assert (SLOT_DTYPE.itemsize, UNIT_DTYPE.itemsize) == (32, 52)


@pytest.mark.parametrize("data", [b"", bytes(52), encode_blank(100) + bytes(36), bytes.fromhex(UNIT_HEX)[:51]])
def test_what_is_no_unit_is_none(data: bytes) -> None:
    assert decode_unit(data) is None


@given(st.builds(TimerUnit, I64, st.sampled_from([1, 3, 5, 7]), I64, I32, I64, I32, I32))
def test_units_come_back(unit: TimerUnit) -> None:
    assert decode_unit(b"x" + encode_unit(unit), 1) == unit


@given(st.binary(max_size=120))
def test_any_bytes_are_read_as_a_checkpoint_or_none(data: bytes) -> None:
    found = decode_checkpoint_file(data)
    assert min(found[:3]) >= 0
    assert not found.is_exact
    assert decode_unit(data) is None or data[:4] == b"\0\0\0\x34"


def test_a_checkpoint_that_rocketmq_changed_is_not_exact() -> None:
    checkpoint = TimerCheckpoint(1_000, 52, 1, 1, 0, 7, 9, 2_000, 104)
    data = encode_checkpoint_file(checkpoint)
    assert decode_checkpoint_file(data + bytes(4_000)) == checkpoint._replace(is_exact=True)
    assert data[:56] == encode_checkpoint(checkpoint)
    assert encode_checkpoint(checkpoint)[:24].hex() == "00000000000003e800000000000000340000000000000001"
    theirs = encode_checkpoint(checkpoint._replace(log_end=104)) + data[56:]
    assert decode_checkpoint_file(theirs) == TimerCheckpoint(1_000, 104, 1, 1, 0, 7, 9)
