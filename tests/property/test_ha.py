"""Replication streams in any chunking: every frame, every report and every record comes out whole and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import LogsDiffer
from stratamq.formats.message import encode_blank
from stratamq.replication.ha_following import Following, RecordCutter
from stratamq.replication.ha_wire import FRAME_HEAD, REPORT, Frame, FrameReader, ReportReader

FILE = 512
CUTS = st.lists(st.integers(1, 90), min_size=1, max_size=50)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in pieces of these sizes, again and again."""
    found = []
    at = number = 0
    while at < len(data):
        found.append(data[at : at + cuts[number % len(cuts)]])
        at += cuts[number % len(cuts)]
        number += 1
    return found


@given(st.lists(st.tuples(st.integers(0, 2**62), st.binary(max_size=100))), CUTS)
def test_frames_in_any_chunking(frames, cuts):
    data = b"".join(FRAME_HEAD.pack(offset, len(body)) + body for offset, body in frames)
    reader = FrameReader()
    assert [frame for chunk in chunks(data, cuts) for frame in reader.feed(chunk)] == [
        Frame(*frame) for frame in frames
    ]


@given(st.lists(st.integers(0, 2**62), min_size=1), CUTS)
def test_reports_in_any_chunking(offsets, cuts):
    reader = ReportReader()
    seen = [reader.feed(chunk) for chunk in chunks(b"".join(map(REPORT.pack, offsets)), cuts)]
    found = [offset for offset in seen if offset is not None]
    assert found[-1] == offsets[-1]
    rest = iter(offsets)
    assert all(offset in rest for offset in found)  # in the order sent


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """A log of small files, and where its records end."""
    data = b""
    ends = []
    for size in draw(st.lists(st.integers(12, 200), min_size=1, max_size=30)):
        room = FILE - len(data) % FILE
        if size + 8 > room:
            data += encode_blank(room).ljust(room, b"\0")
        data += size.to_bytes(4, "big") + draw(st.binary(min_size=size - 4, max_size=size - 4))
        ends.append(len(data))
    return data, ends


@given(logs(), CUTS)
def test_records_in_any_chunking(log, cuts):
    data, ends = log
    cutter = RecordCutter(0, FILE, 10_000)
    stored = b""
    for chunk in chunks(data, cuts):
        for run in cutter.feed(chunk):
            stored += run
            assert len(stored) in ends
        assert len(stored) == cutter.position
    assert stored == data


@given(logs(), CUTS, st.data())
def test_a_slave_follows_from_the_end_of_any_record(log, cuts, choice):
    data, ends = log
    have = choice.draw(st.sampled_from(ends))
    slave = Following(
        start=0,
        end=have,
        read=lambda offset, size: memoryview(data)[offset : offset + size],
        compare_bytes=choice.draw(st.integers(1, 1000)),
        file_bytes=FILE,
        waiting_bytes_max=10_000,
    )
    at = slave.report(have)
    assert 0 < at <= have
    stored = data[:have]
    for chunk in chunks(data[at:], cuts):
        stored += b"".join(slave.receive(Frame(at, chunk)))
        at += len(chunk)
        assert slave.report(len(stored)) <= len(stored)
    assert stored == data


@given(logs(), CUTS, st.data())
def test_a_slave_whose_last_bytes_differ_takes_nothing(log, cuts, choice):
    data, ends = log
    have = choice.draw(st.sampled_from(ends))
    place = choice.draw(st.integers(1, have - 1))
    own = bytearray(data[:have])
    own[place] ^= 1
    slave = Following(
        start=0,
        end=have,
        read=lambda offset, size: memoryview(bytes(own))[offset : offset + size],
        compare_bytes=have,
        file_bytes=FILE,
        waiting_bytes_max=10_000,
    )

    def feed() -> None:
        at = slave.report(have)
        for chunk in chunks(data[at:], cuts):
            assert not slave.receive(Frame(at, chunk))
            at += len(chunk)

    with pytest.raises(LogsDiffer, match=f"bytes at {place} "):
        feed()
