"""Remoting for any input: chunking does not matter, codecs go round, garbage is a typed fault."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import MessageIllegal, RemoteProtocolError
from stratamq.protocols.remoting import headers
from stratamq.protocols.remoting.bodies import decode_batch, decode_heartbeat, encode_batch
from stratamq.protocols.remoting.command import CommandHeader, decode_header, encode_frame
from stratamq.protocols.remoting.connection import RemotingConnection
from stratamq.protocols.remoting.headers import ExtFields, HeaderReader, text_fields
from tests.unit.protocols import wire

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, dict[str, object]]:
    """A frame with what is in it."""
    serialization = draw(st.sampled_from([0, 1]))
    parts: dict[str, object] = {
        "code": draw(st.integers(0, 32767)),
        "opaque": draw(int32),
        "flag": draw(st.integers(0, 3)),
        "ext": draw(st.dictionaries(texts, texts, max_size=5)),
        "remark": draw(st.none() | texts),
        "body": draw(st.binary(max_size=200)),
        "version": draw(st.integers(0, 32767)),
    }
    return encode_frame(serialization=serialization, **parts), parts  # type: ignore[arg-type]


@given(st.lists(frames(), max_size=6), st.data())
def test_any_chunking_gives_the_same_commands(made, data):
    stream = b"".join(frame for frame, _ in made)
    connection = RemotingConnection()
    got = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += [(header, bytes(body)) for header, body in connection.receive_data(stream[:cut])]
        stream = stream[cut:]
    assert connection.fault is None
    assert connection.bytes_buffered == 0
    assert len(got) == len(made)
    for (header, body), (_, parts) in zip(got, made, strict=True):
        assert (header.code, header.opaque, header.flag) == (parts["code"], parts["opaque"], parts["flag"])
        assert header.version == parts["version"]
        assert body == parts["body"]
        binary = header.serialization == 1
        expected = {key: value for key, value in parts["ext"].items() if value or not binary}
        assert text_fields(header) == expected
        assert header.remark == (parts["remark"] or None if binary else parts["remark"])


@given(frames())
def test_the_plain_reader_of_the_tests_agrees(made):
    frame, parts = made
    answer = wire.one(frame)
    assert (answer.code, answer.opaque, answer.flag, answer.body) == (
        parts["code"],
        parts["opaque"],
        parts["flag"],
        parts["body"],
    )
    assert answer.ext == parts["ext"]


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_random_bytes_end_in_commands_or_a_fault(chunks):
    connection = RemotingConnection()
    total = 0
    for chunk in chunks:
        connection.receive_data(chunk)
        total += len(chunk)
        assert connection.bytes_buffered <= total


@given(frames(), st.data())
def test_a_flipped_byte_ends_in_commands_or_a_fault(made, data):
    frame = bytearray(made[0])
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    connection = RemotingConnection()
    commands = connection.receive_data(bytes(frame))
    assert commands or connection.fault is not None or connection.bytes_buffered == len(frame)
    for header, _ in commands:
        for kind in ExtFields.__subclasses__():
            with contextlib.suppress(RemoteProtocolError):
                HeaderReader(kind)(header)


@given(st.sampled_from([0, 1]), st.binary(max_size=200))
def test_a_random_header_is_decoded_or_refused(serialization, data):
    try:
        header = decode_header(serialization, data)
    except RemoteProtocolError:
        return
    assert isinstance(header, CommandHeader)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
_NAMES = ["clientID", "producerDataSet", "consumerDataSet", "groupName", "messageModel", "subscriptionDataSet", "topic"]


@given(
    st.dictionaries(
        st.sampled_from(_NAMES), json_values | st.lists(st.dictionaries(st.sampled_from(_NAMES), json_values))
    )
)
def test_any_json_is_a_heartbeat_or_refused(body):
    try:
        heartbeat = decode_heartbeat(json.dumps(body).encode())
    except RemoteProtocolError:
        return
    assert heartbeat.client_id == body["clientID"]


@given(st.dictionaries(st.sampled_from("abcdefghijklm"), st.none() | st.booleans() | st.integers() | texts))
def test_any_ext_fields_are_a_send_or_refused(ext):
    frame = json.dumps({"code": 310, "opaque": 1, "extFields": ext}).encode()
    header = decode_header(0, frame)
    try:
        fields = headers.read_send_v2(header)
    except RemoteProtocolError:
        return
    assert -(2**31) <= fields.queue_id < 2**31


@given(st.lists(st.tuples(int32, st.binary(max_size=50), texts), min_size=1, max_size=8))
def test_batches_go_round(items):
    decoded = decode_batch(memoryview(encode_batch(items)))
    assert [(item.flag, bytes(item.body), item.properties) for item in decoded] == items


@given(st.binary(max_size=120))
def test_random_bytes_are_a_batch_or_refused(data):
    try:
        items = decode_batch(memoryview(data))
    except MessageIllegal:
        return
    assert sum(22 + len(item.body) + len(item.properties.encode()) for item in items) == len(data)
