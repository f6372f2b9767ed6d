"""The vectorised readers against the slow, obvious decoders."""

from __future__ import annotations

import tempfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratamq.formats import vector
from stratamq.formats.message import (
    MAGIC_BLANK,
    check_record,
    decode_host,
    decode_record,
    encode_host,
    encode_record,
)
from stratamq.formats.properties import decode_properties
from stratamq.formats.vector_properties import clean_utf8, split_properties
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.pipeline.reader import SCHEMA, arrow_batches
from tests.unit.logstore.tiny_store import TinyStore

NAMES = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "a", "TAGSX", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "x" * 17, "é", ""]
)
PIECES = st.one_of(
    st.tuples(NAMES, st.text(max_size=12)).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02".encode()),
    st.sampled_from(
        [b"\x01", b"\x02", b"\0", b"a", b"TAGS\x01", b"\x01\x02", b"a\x01b", b"\xc3", b"\xa9", b"\xff", b"\xe6\x01"]
    ),
    st.binary(max_size=4),
)
PROPERTIES = st.lists(PIECES, max_size=12).map(b"".join)
HOSTS = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 65535)), st.tuples(st.ip_addresses(v=6), st.integers(0, 65535))
).map(lambda pair: encode_host(str(pair[0]), pair[1]))
TOPICS = st.sampled_from(["orders", "t", "%RETRY%g", "x" * 127, "x" * 128, "y" * 200])


@given(st.lists(PROPERTIES, max_size=20))
def test_property_strings_are_split_as_decode_properties_does(rows):
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    data = np.frombuffer(b"".join(rows), dtype=np.uint8)
    found = split_properties(*clean_utf8(data, offsets))
    assert found.row_count == len(rows)
    for number, raw in enumerate(rows):
        expected = decode_properties(raw.decode("utf-8", "replace"))
        mine = range(int(found.row_starts[number]), int(found.row_starts[number + 1]))
        assert all(found.row[i] == number for i in mine)
        pairs = [
            (found.data[found.name_at[i] : found.value_at[i] - 1].tobytes().decode(), found.value(i).decode())
            for i in mine
        ]
        assert len(pairs) == len(expected)
        assert dict(pairs) == expected
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "a"):
        where = found.find(name.encode())
        values = [found.value(int(i)).decode() if i >= 0 else None for i in where]
        assert values == [decode_properties(raw.decode("utf-8", "replace")).get(name) for raw in rows]


@given(st.lists(st.lists(st.integers(0, 29), max_size=40), max_size=4))
def test_many_repeated_names(rows):
    raws = ["".join(f"n{i}\x01{at}\x02" for at, i in enumerate(row)) for row in rows]
    offsets = np.concatenate(([0], np.cumsum([len(raw) for raw in raws]))).astype(np.int64)
    found = split_properties(np.frombuffer("".join(raws).encode(), np.uint8), offsets)
    counts = np.diff(found.row_starts).tolist()
    assert counts == [len(decode_properties(raw)) for raw in raws]


RECORDS = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "queue_id": st.integers(0, 3),
        "body": st.binary(max_size=200),
        "properties": PROPERTIES,
        "sys_flag": st.sampled_from([0, 0, 0, 0x2, 0x4, 0x8, 0xC]),
        "stored": st.integers(0, 2**43),
        "born": st.integers(0, 2**43),
        "born_host": HOSTS,
        "store_host": HOSTS,
        "flag": st.integers(-(2**31), 2**31 - 1),
        "reconsume_times": st.integers(0, 2**31 - 1),
    }
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(RECORDS, max_size=40), st.integers(1, 50))
def test_arrow_batches_equal_the_slow_decoder(records, batch_rows):
    with tempfile.TemporaryDirectory() as folder:
        store = TinyStore(Path(folder) / "s", file_bytes=2048)
        for record in records:
            store.put(**record)
        store.write(abort="1")
        rows: dict[str, list] = {name: [] for name in SCHEMA.names}
        with StoreSnapshot.open(store.root) as snapshot:
            assert snapshot.max_physical_offset == store.end
            for queue in snapshot.queues():
                for batch in arrow_batches(snapshot, *queue[:4], batch_rows=batch_rows):
                    batch.validate(full=True)
                    assert batch.schema == SCHEMA
                    assert 0 < batch.num_rows <= batch_rows
                    for name in SCHEMA.names:
                        rows[name] += batch.column(name).to_pylist()
                views = arrow_batches(snapshot, *queue[:4], ["body"], views=True)
                bodies = [body for batch in views for body in batch.column("body").to_pylist()]
                whole = [r.body for r in store.records if (r.topic, r.queue_id) == queue[:2] and r.is_queued]
                assert bodies == whole
    queued = [record for record in store.records if record.is_queued]
    queued.sort(key=lambda record: (record.topic, record.queue_id, record.queue_offset))
    assert rows == expected_columns(queued)


def expected_columns(records):
    """What the columns must hold, from records decoded one by one."""
    found = [decode_properties(record.properties) for record in records]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return {
        "topic": [r.topic for r in records],
        "queue_id": [r.queue_id for r in records],
        "queue_offset": [r.queue_offset for r in records],
        "physical_offset": [r.physical_offset for r in records],
        "store_timestamp": [epoch + timedelta(milliseconds=r.store_timestamp) for r in records],
        "born_timestamp": [epoch + timedelta(milliseconds=r.born_timestamp) for r in records],
        "born_host": [str(decode_host(r.born_host)) for r in records],
        "store_host": [str(decode_host(r.store_host)) for r in records],
        "tags": [p.get("TAGS") for p in found],
        "keys": [p.get("KEYS") for p in found],
        "message_id": [p.get("UNIQ_KEY") or r.message_id for p, r in zip(found, records, strict=True)],
        "properties": [[(k, v) for k, v in ordered(p, r)] for p, r in zip(found, records, strict=True)],
        "body": [r.body for r in records],
        "flag": [r.flag for r in records],
        "sys_flag": [r.sys_flag for r in records],
        "reconsume_times": [r.reconsume_times for r in records],
    }


def ordered(found, record):
    """A repeated name stands where its last value stands."""
    last: dict[str, str] = {}
    for segment in record.properties.split("\x02"):
        name, cut, value = segment.partition("\x01")
        if name and cut and value:
            last.pop(name, None)
            last[name] = value
    assert last == found
    return last.items()


FLAWS = {"truncated": vector.TRUNCATED, "magic": vector.MAGIC, "length": vector.LENGTH, "offset": vector.OFFSET}


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=6), st.data())
def test_damage_is_seen_as_check_record_sees_it(records, data):
    log, positions = encode_all(records)
    for _ in range(data.draw(st.integers(0, 6))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(log), max(positions) + 50]))
    raw = bytes(log)
    checked = vector.check_records(vector.byte_view(raw), positions, end=end, physical_base=1000)
    crcs = vector.crc_matches(vector.byte_view(raw), checked)
    for number, position in enumerate(positions.tolist()):
        slow = check_record(raw, position, end, physical_offset=1000 + position)
        kind = slow.flaw.kind if slow.flaw else "blank" if slow.is_blank else None
        code = int(checked.flaws[number])
        if kind in ("crc", None):
            assert code == vector.OK
            assert bool(crcs[number]) == (kind is None)
            if kind is None and is_utf8(checked, number, raw):
                assert_same(decode_record(raw, position), checked, number, raw)
        else:
            # Where several things are wrong the order of the two may differ, but both must see something.
            assert code != vector.OK


def is_utf8(checked, number, raw):
    """The slow decoder refuses a topic that is no UTF-8; `check_record` and the vectorised check do not look."""
    at, length = int(checked.parts.topic_at[number]), int(checked.parts.topic_bytes[number])
    try:
        raw[at : at + length].decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_all(records):
    log, positions = bytearray(), []
    for record in records:
        positions.append(len(log))
        fields = dict(
            record, topic=record["topic"].encode(), store_timestamp=record["stored"], born_timestamp=record["born"]
        )
        del fields["stored"], fields["born"]
        log += encode_record(**fields, queue_offset=7, physical_offset=1000 + len(log))
    return log, np.array(positions, dtype=np.int64)


def assert_same(record, checked, number, raw):
    head = checked.heads[number]
    for name in ("size", "crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "reconsume_times"):
        assert int(head[name]) == getattr(record, name)
    assert int(head["store_timestamp"]) == record.store_timestamp
    parts = [int(part[number]) for part in checked.parts]
    assert raw[parts[0] : parts[0] + parts[1]] == record.body
    assert raw[parts[2] : parts[2] + parts[3]] == record.topic.encode()
    assert raw[parts[4] : parts[4] + parts[5]].decode("utf-8", "replace") == record.properties


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(300, 4000), st.booleans(), st.booleans())
def test_walking_in_lanes_equals_walking_one_by_one(seed, average, with_decoys, with_damage):
    random = np.random.default_rng(seed)
    log, positions = bytearray(), []
    while len(log) < 600_000:
        positions.append(len(log))
        body = random.bytes(int(random.integers(0, average)))
        if with_decoys and random.random() < 0.3:
            # A whole record inside a body that even says the right place: only the chain tells.
            at = len(log) + 88 + len(body)
            body += record_at(at, b"decoy" * int(random.integers(1, 50)))
        log += record_at(len(log), body)
    end = len(log)
    log += (8).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    if with_damage:
        end = positions[int(random.integers(len(positions)))]
        log[end + 4] ^= 0xFF
    walked = vector.walk(vector.byte_view(bytes(log)), 0, len(log), physical_base=0)
    assert walked.positions.tolist() == [position for position in positions if position < end]
    assert (walked.stop, walked.at_blank) == (end, not with_damage)


def record_at(position, body):
    host = encode_host("127.0.0.1", 1)
    return encode_record(
        body=body,
        topic=b"t",
        properties=b"",
        queue_id=0,
        flag=0,
        queue_offset=0,
        physical_offset=position,
        sys_flag=0,
        born_timestamp=0,
        born_host=host,
        store_timestamp=0,
        store_host=host,
    )


@given(st.binary(max_size=2000), st.sampled_from([0, 0x100, 0x200, 0x300]))
def test_compressed_bodies_come_back(body, kind):
    from stratamq.formats.arrow import decompress_body

    codec = {0x100: "lz4", 0x200: "zstd"}.get(kind)
    if codec is None:
        packed = zlib.compress(body)
    else:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(body)
        packed = sink.getvalue().to_pybytes()
    assert decompress_body(packed, kind) == body


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=30), st.booleans())
def test_gathered_bytes_are_the_ranges(ranges, with_long_one):
    data = np.random.default_rng(1).integers(0, 256, 461, dtype=np.uint8)
    if with_long_one:
        ranges = [*ranges, (0, 461)]
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    lengths = np.array([length for _, length in ranges], dtype=np.int64)
    expected = b"".join(data[start : start + length].tobytes() for start, length in ranges)
    assert vector.gather_bytes(data, starts, lengths).tobytes() == expected
