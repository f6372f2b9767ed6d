"""Searching a damaged log for the next record that is good."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratamq.formats.message import MAGIC_V1, MAGIC_V2
from stratamq.logstore import scan

_MAGICS = [magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)]


@given(
    pieces=st.lists(st.sampled_from([*_MAGICS, _MAGICS[0][:3], b"\0", b"\0" * 7, b"x" * 5]), max_size=40),
    start=st.integers(0, 60),
    block=st.integers(1, 20),
)
def test_magic_numbers_are_found_in_order_wherever_blocks_end(pieces: list[bytes], start: int, block: int) -> None:
    data = b"".join(pieces)
    expected = [at for at in range(start, len(data) - 7) if data[at + 4 : at + 8] in _MAGICS]
    assert list(scan.magic_places(memoryview(data), start, block_bytes=block)) == expected
