"""Formats of the cold tier: names, manifests, segments."""

from __future__ import annotations

import itertools
import zlib

import msgspec
import pytest

from stratamq.errors import BadMagic, ChecksumMismatch, CorruptionError
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import Gap, Manifest, Segment, decode_manifest, encode_manifest, flaws_of, follows
from stratamq.formats.cold_names import Lifetime
from stratamq.formats.cold_segment import (
    IndexBuilder,
    SegmentBuilder,
    check_head,
    decode_block,
    decode_index,
    make_block,
    record_positions,
)
from stratamq.formats.java import index_key_hash
from stratamq.formats.message import MAGIC_V1, encode_host, encode_record

HOST = encode_host("127.0.0.1", 10911)
MAGIC = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")


def record(offset: int, *, body: bytes = b"body", properties: bytes = b"", time_ms: int = 5, topic: bytes = b"T"):
    return encode_record(
        body=body,
        topic=topic,
        properties=properties,
        queue_id=0,
        flag=0,
        queue_offset=offset,
        physical_offset=offset * 1000,
        sys_flag=0,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=time_ms,
        store_host=HOST,
    )


def segment(first: int, last: int, **changes) -> Segment:
    values = {
        "name": f"s/{first}",
        "format": "flat",
        "first": first,
        "last": last,
        "bytes": 10,
        "raw_bytes": 20,
        "min_ms": 1,
        "max_ms": 2,
        "index_name": f"s/{first}",
        "index_at": 5,
        "index_bytes": 5,
        "sealed_ms": 3,
    }
    return Segment(**(values | changes))


def manifest(**changes) -> Manifest:
    values = {
        "topic": "T",
        "queue_id": 3,
        "incarnation": 1,
        "version": 4,
        "epoch": 2,
        "writer": "w",
        "written_ms": 9,
        "start": 0,
        "end": 0,
    }
    return Manifest(**(values | changes))


# --- names ---


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "a|b", "with.dot", "straße", "x" * 127])
def test_a_topic_is_found_again_in_its_name(topic):
    written = names.escape_topic(topic)
    assert set(written) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
    assert names.unescape_topic(written) == topic


@pytest.mark.parametrize("text", ["", "a/b", "a.2", "a.zz", ".41", "%"])
def test_what_was_never_a_topic_is_refused(text):
    with pytest.raises(ValueError, match=r"topic|decode"):
        names.unescape_topic(text)


def test_names_of_manifests_are_read_back():
    life = Lifetime("%DLQ%g", 7, 2)
    assert names.parse_manifest_name(names.manifest_name(life, 12)) == (life, 12)
    assert names.parse_manifest_name(names.tomb_name(life)) == (life, None)
    assert names.manifest_name(life, 9) < names.manifest_name(life, 10) < names.tomb_name(life)
    assert names.parse_manifest_name("m/a b/1/00000001/" + "0" * 20) is None
    assert names.parse_manifest_name("s/T/1/00000001/x.seg") is None


def test_names_of_data_say_who_made_them_and_when():
    life = Lifetime("T", 0, 1)
    unique = names.unique_part(1_700_000_000_123, bytes(range(8)))
    for name in (
        names.segment_name(life, 5, 9, 3, unique),
        names.segment_name(life, 5, 9, 3, unique, kind="idx"),
        names.parquet_name(life, 5, 9, 3, unique, time_ms=1_700_000_000_000),
    ):
        assert names.parse_data_name(name) == (3, 1_700_000_000_123)
    assert "date=2023-11-14/queue=0/" in name
    assert names.parse_data_name("s/T/0/00000001/other.seg") is None


# --- manifests ---


def test_a_manifest_is_read_back():
    gap = Gap(first=10, last=14, noted_ms=5, reason="why")
    value = manifest(start=2, end=20, segments=(segment(2, 9), segment(15, 19)), gaps=(gap,))
    assert decode_manifest(encode_manifest(value), path="x") == value


def test_a_member_from_the_future_is_left_alone():
    text = msgspec.json.encode({**msgspec.to_builtins(manifest()), "more": 1}) + b"\n"
    data = b"stratamq-manifest 1 %08x %d\n" % (zlib.crc32(text), len(text)) + text
    assert decode_manifest(data, path="x") == manifest()


def test_any_changed_byte_of_a_manifest_is_seen():
    data = encode_manifest(manifest(end=10, segments=(segment(0, 9),)))
    for at in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_manifest(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], path="x")
    for cut in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_manifest(data[:cut], path="x")


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 11, "segments": (segment(0, 9),)},
        {"end": 20, "segments": (segment(0, 9), segment(11, 19))},
        {"end": 20, "segments": (segment(0, 9), segment(9, 19))},
        {"end": 20, "segments": (segment(10, 19), segment(0, 9))},
        {"end": 10, "segments": (segment(0, 9, format="other"),)},
        {"start": 1, "end": 10, "segments": (segment(0, 9),)},
    ],
)
def test_a_manifest_with_holes_or_overlaps_is_refused(changes):
    value = manifest(**changes)
    assert flaws_of(value)
    with pytest.raises(CorruptionError):
        decode_manifest(encode_manifest(value), path="x")


def test_nothing_moves_backwards_from_one_version_to_the_next():
    before = manifest(start=5, end=10, segments=(segment(5, 9),))
    good = msgspec.structs.replace(before, version=5)
    assert follows(before, good) == []
    assert follows(before, msgspec.structs.replace(good, epoch=1))
    assert follows(before, msgspec.structs.replace(good, version=6))
    assert follows(before, msgspec.structs.replace(good, incarnation=2))
    assert follows(before, msgspec.structs.replace(good, start=4, segments=(segment(4, 9),)))
    assert follows(before, msgspec.structs.replace(good, end=9, segments=(segment(5, 8),)))


# --- segments ---


def built(records: list[bytes], first: int = 100, per_block: int = 3) -> tuple[bytes, int, int]:
    builder = SegmentBuilder()
    for at in range(0, len(records), per_block):
        builder.add(make_block(records[at : at + per_block], first + at, "T", path="p"))
    parts, index_at, index_bytes = builder.finish()
    return b"".join(parts), index_at, index_bytes


def test_records_come_back_byte_for_byte():
    records = [record(100 + n, body=bytes([n]) * n, time_ms=50 - n) for n in range(10)]
    data, index_at, index_bytes = built(records)
    check_head(data, path="p")
    assert index_at + index_bytes == len(data)
    index = decode_index(data[index_at:], path="p", at=index_at)
    assert (index.first, index.last, index.messages, index.raw_bytes) == (100, 109, 10, sum(map(len, records)))
    blocks = []
    for number, row in enumerate(index.blocks):
        stored = data[int(row["position"]) : int(row["position"]) + int(row["stored_bytes"])]
        blocks.append(decode_block(stored, index, number, path="p"))
    assert b"".join(blocks) == b"".join(records)
    assert [index.block_of(offset) for offset in (100, 102, 103, 109)] == [0, 0, 1, 3]
    assert (index.blocks["min_ms"][0], index.blocks["max_ms"][0]) == (48, 50)
    assert record_positions(blocks[3]).tolist() == [0]


@pytest.mark.parametrize(
    "bodies",
    [
        [b"", b"a" * 300, b"b"],
        [b"one", MAGIC * 3, b"three"],  # what looks like a record's beginning stands in a body
        [MAGIC[1:], MAGIC[:3], b"three"],
        [b"one", record(7), b"three"],
    ],
)
def test_records_are_found_whatever_their_bodies_hold(bodies):
    records = [record(100 + n, body=body) for n, body in enumerate(bodies)]
    records.append(record(110, topic=b"t" * 200))  # the second magic number
    assert not len(record_positions(b""))
    for count in range(1, len(records) + 1):
        data = b"".join(records[:count])
        found = [0, *itertools.accumulate(map(len, records[:count]))]
        assert record_positions(data).tolist() == found[:-1]
        for cut in (data[:-1], data + b"\0", data + MAGIC, data + records[0][:-1]):
            whole = found[:-1] if len(cut) > len(data) else found[:-2]
            assert record_positions(cut).tolist() == whole, "up to where records end"


def test_keys_are_found():
    properties = [b"KEYS\x01a b\x02UNIQ_KEY\x01u0\x02", b"", "KEYS\x01ä a\x02".encode(), b"KEYS\x01\xff\x02TAGS\x01t"]
    data, index_at, _ = built([record(100 + n, properties=text) for n, text in enumerate(properties)], per_block=2)
    index = decode_index(data[index_at:], path="p", at=index_at)
    for key, offsets in (("a", [100, 102]), ("b", [100]), ("u0", [100]), ("ä", [102]), ("none", [])):
        number = index_key_hash("T", key)
        assert index.offsets_of(number) == offsets
        assert index.may_have(number) or not offsets


def test_a_key_that_is_not_there_is_mostly_ruled_out_by_the_filter():
    records = [record(100 + n, properties=b"KEYS\x01k%d\x02" % n) for n in range(500)]
    data, index_at, _ = built(records, per_block=100)
    index = decode_index(data[index_at:], path="p", at=index_at)
    assert all(index.may_have(index_key_hash("T", f"k{n}")) for n in range(500))
    assert sum(index.may_have(index_key_hash("T", f"other{n}")) for n in range(1000)) < 50


def test_a_segment_without_keys_has_no_filter():
    data, index_at, index_bytes = built([record(100)])
    assert index_bytes == 48 + 64
    index = decode_index(data[index_at:], path="p", at=index_at)
    assert index.filter == b""
    assert index.offsets_of(5) == []


def test_any_changed_byte_of_an_index_is_seen():
    data, index_at, _ = built([record(100 + n, properties=b"KEYS\x01k\x02") for n in range(4)])
    tail = data[index_at:]
    for at in range(len(tail)):
        with pytest.raises(CorruptionError):
            decode_index(tail[:at] + bytes([tail[at] ^ 1]) + tail[at + 1 :], path="p", at=index_at)
    for cut in range(len(tail)):
        with pytest.raises(CorruptionError):
            decode_index(tail[:cut], path="p", at=index_at)
    with pytest.raises(CorruptionError):
        decode_index(tail, path="p", at=index_at + 1)


def test_any_changed_byte_of_a_block_is_seen():
    data, index_at, _ = built([record(100 + n) for n in range(3)])
    index = decode_index(data[index_at:], path="p", at=index_at)
    stored = data[8:index_at]
    for at in range(len(stored)):
        with pytest.raises(CorruptionError):
            decode_block(stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :], index, 0, path="p")
    with pytest.raises(CorruptionError):
        decode_block(stored[:-1], index, 0, path="p")


def test_what_is_no_run_of_records_is_refused():
    with pytest.raises(CorruptionError):
        make_block([record(100), record(102)], 100, "T", path="p")
    with pytest.raises(CorruptionError):
        make_block([record(100)[:-1]], 100, "T", path="p")
    with pytest.raises(CorruptionError):
        make_block([], 100, "T", path="p")
    with pytest.raises(BadMagic):
        check_head(b"SQcs\2\0\0\0", path="p")
    with pytest.raises(BadMagic):
        check_head(b"S", path="p")


def test_the_index_of_another_object_is_not_taken():
    builder = IndexBuilder()
    builder.add(make_block([record(1)], 1, "T", path="p"), 0, 10)
    data = builder.encode(8)
    assert decode_index(data, path="p", at=8).first == 1
    with pytest.raises(ChecksumMismatch):
        decode_index(data[:5] + b"\x99" + data[6:], path="p", at=8)
