"""AMQP for any input: tables round trip, any chunking gives the same events, noise is a fault, no exception."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import HEARTBEAT, method_frame
from stratamq.protocols.amqp.replies import AmqpError
from stratamq.protocols.amqp.values import Decimal, Timestamp, encode_table, read_table
from tests.unit.protocols.amqp.peers import handshake, new_core, publish, raw_frame, running_core

NAMES = st.text(max_size=20)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1)).map(Decimal),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_tables_round_trip(table):
    raw = encode_table(table)
    assert read_table(raw, 0) == (table, len(raw))


@given(st.binary(max_size=200))
def test_noise_is_no_table_or_a_table(raw):
    try:
        table, _ = read_table(len(raw).to_bytes(4, "big") + raw, 0)
    except AmqpError:
        return
    assert list(read_table(encode_table(table), 0)[0]) == list(table)


PIECES = st.one_of(
    st.builds(publish, st.integers(1, 3), st.just("e"), st.text(max_size=5), st.binary(max_size=40)),
    st.builds(lambda channel: method_frame(channel, methods.BasicAck(1, False)), st.integers(1, 3)),
    st.just(HEARTBEAT),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[low:high] for low, high in itertools.pairwise(marks)]


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_chunking_gives_the_same_events(pieces, places):
    data = handshake() + b"".join(pieces)
    whole, chunked = new_core(), new_core()
    expected = whole.receive_data(data)
    found = [event for chunk in cut(data, places) for event in chunked.receive_data(chunk)]
    assert found == expected
    assert chunked.outgoing == whole.outgoing
    assert chunked.fault is None
    assert chunked.bytes_buffered == 0


FRAMES = st.builds(
    raw_frame, st.sampled_from([1, 2, 3, 8, 9]), st.integers(0, 3), st.binary(max_size=40),
    st.sampled_from([b"\xce", b"\xce", b"\xce", b"\x00"]),
)  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(st.one_of(FRAMES, PIECES, st.binary(max_size=30)), max_size=8), st.lists(st.integers(0, 2000), max_size=6)
)
def test_random_frames_give_the_same_fault_in_any_chunking(pieces, places):
    data = b"".join(pieces)
    whole, chunked = running_core(), running_core()
    expected = whole.receive_data(data)
    found = [event for chunk in cut(data, places) for event in chunked.receive_data(chunk)]
    assert found == expected
    assert str(chunked.fault) == str(whole.fault)
    assert whole.bytes_buffered <= len(data)


ALIKE = st.sampled_from(
    [publish(1, "e", "k", body, delivery_mode=2) for body in (b"aaaa", b"bbbb", b"longer", b"")]
    + [publish(2, "e", "k", b"aaaa", delivery_mode=2), publish(1, "e", "other", b"aaaa"), raw_frame(8, 0, b"")]
)


@settings(max_examples=300)
@given(st.lists(ALIKE, max_size=12), st.integers(0, 10_000), st.integers(0, 255))
def test_publishes_that_are_recognised_are_taken_as_frame_by_frame(pieces, place, other):
    """Fed byte by byte nothing is ever recognised; one byte may be wrong."""
    data = bytearray(b"".join(pieces))
    if data:
        data[place % len(data)] ^= other
    whole, bytewise = running_core(), running_core()
    expected = [event for at in range(len(data)) for event in bytewise.receive_data(bytes(data[at : at + 1]))]
    assert whole.receive_data(bytes(data)) == expected
    assert str(whole.fault) == str(bytewise.fault)
    assert whole.fault is not None or whole.bytes_buffered == bytewise.bytes_buffered
