"""Codecs of the queue store: what is encoded comes back, and any bytes at all give a value or a typed error."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import CorruptionError
from stratamq.formats import queue_frame as frames
from stratamq.formats import queue_journal as journal
from stratamq.formats import queue_manifest as manifest
from stratamq.formats import queue_messages as messages

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
RUNS = st.lists(st.tuples(U64, U32), max_size=5)
PUBLISH = st.builds(
    lambda targets, content, stored, expiry, priority: journal.Publish(
        targets, content, 0 if content is not None else stored, len(content or b""), expiry, priority
    ),
    st.lists(st.tuples(U32, U64), min_size=1, max_size=4),
    st.none() | st.binary(max_size=50),
    U64,
    U64,
    st.integers(0, 255),
)


@given(PUBLISH, U32, RUNS, U64, st.text(max_size=20))
def test_journal_records_come_back(publish, queue, runs, number, name):
    data = b"".join(
        [
            journal.encode_publish(publish),
            journal.encode_ack(queue, runs),
            journal.encode_mark(queue, number),
            journal.encode_declare(queue, name),
            journal.encode_delete(queue),
            journal.encode_purge(queue, number, runs),
        ]
    )
    assert list(journal.decode_records(data, 0, len(data), path="p")) == [
        publish,
        journal.Ack(queue, runs),
        journal.Mark(queue, number),
        journal.Declare(queue, name),
        journal.Delete(queue),
        journal.Purge(queue, number, runs),
    ]


@given(st.lists(st.integers(0, 60)))
def test_runs_hold_each_number_once(numbers):
    runs = journal.to_runs(numbers)
    assert [first + i for first, count in runs for i in range(count)] == sorted(set(numbers))
    assert all(a + count < b for (a, count), (b, _) in itertools.pairwise(runs))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), U32, st.data())
def test_frames_end_where_the_first_byte_changed(payloads, salt, data):
    header = frames.FileHeader(salt, 3, 7)
    raw = frames.encode_file_header(frames.JOURNAL_MAGIC, header)
    ends = []
    for at, payload in enumerate(payloads):
        raw += frames.encode_frame(salt, 7 + at, 0, [payload])
        ends.append(len(raw))
    assert frames.decode_file_header(raw, frames.JOURNAL_MAGIC, path="p") == header
    scan = frames.scan_frames(raw, header)
    assert [raw[frame.start : frame.end] for frame in scan.frames] == payloads
    assert scan.end == len(raw)
    at = data.draw(st.integers(frames.FILE_HEADER.size, len(raw) - 1))
    changed = bytearray(raw)
    changed[at] ^= data.draw(st.integers(1, 255))
    found = frames.scan_frames(bytes(changed), header).frames
    hit = sum(end <= at for end in ends)
    assert len(found) in (hit, len(payloads))
    assert [bytes(changed[f.start : f.end]) for f in found] == payloads[: len(found)]


@given(U32, U64, st.binary(max_size=64), st.lists(st.tuples(U64, U32, U64), max_size=4))
def test_manifest_segments_come_back(queue, number, bits, chunks):
    gone = bytes(byte & 1 for byte in bits)
    record = manifest.SegmentRecord(queue, number, number, len(gone), 3, 4, 5, 1, chunks, gone)
    raw = manifest.encode_manifest_record(record)
    assert list(manifest.decode_manifest_records(raw, 0, len(raw), path="p")) == [record]


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_typed_error(data):
    header = frames.FileHeader(1, 1, 1)
    frames.scan_frames(data, header)
    messages.scan_records(data, path="p")
    for decode in (
        lambda: list(journal.decode_records(data, 0, len(data), path="p")),
        lambda: list(manifest.decode_manifest_records(data, 0, len(data), path="p")),
        lambda: messages.decode_record(data, 1, path="p", offset=0),
        lambda: messages.decode_tables(data, path="p"),
        lambda: frames.decode_file_header(data, frames.JOURNAL_MAGIC, path="p"),
    ):
        try:
            decode()
        except CorruptionError as error:
            assert error.path == "p"  # noqa: PT017 - only some inputs are refused


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6))
def test_message_files_are_read_by_scan_as_by_footer(bodies):
    raw = b"".join(b"".join(messages.encode_record(at + 1, body)) for at, body in enumerate(bodies))
    table, end = messages.scan_records(raw, path="p")
    assert end == len(raw)
    footer = messages.encode_footer(table, 9)
    assert messages.decode_trailer(footer, len(raw) + len(footer), path="p") == (16 * len(bodies), 9)
    assert messages.decode_footer(footer, path="p", offset=end) == (table, 9)
    for at, body in enumerate(bodies):
        assert messages.decode_record(raw[table.offsets[at] :], at + 1, path="p", offset=0) == body
    for cut in range(1, messages.record_bytes(len(bodies[-1]))):
        assert len(messages.scan_records(raw[:-cut], path="p")[0].ids) == len(bodies) - 1
