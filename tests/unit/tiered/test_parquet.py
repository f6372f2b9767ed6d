"""Parquet segments: the same records byte for byte, and columns that others can read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratamq.config import TieredConfig
from stratamq.errors import CorruptionError
from stratamq.formats.cold_segment import RawBlock, record_positions
from stratamq.formats.message import encode_host, encode_record, offset_message_id
from stratamq.tiered import parquet_rows
from stratamq.tiered.parquet import SCHEMA, record_of, records_of, regrouped, row_of, table_of_block
from stratamq.units import MiB
from tests.unit.tiered.test_owner import KEY, local_records
from tests.unit.tiered.world import BROKER, World

V6 = encode_host("2001:db8::1", 1)
V4 = encode_host("10.0.0.1", 5)
POLICY = TieredConfig(compact_format="parquet", compact_bytes=70_000, compact_bytes_max=10**8, delete_grace_ms=0)


def record(**changes) -> bytes:
    values = {
        "body": b"body",
        "topic": b"T",
        "properties": b"KEYS\x01k\x02TAGS\x01t\x02",
        "queue_id": 3,
        "flag": -7,
        "queue_offset": 5,
        "physical_offset": 2**40,
        "sys_flag": 0,
        "born_timestamp": 1,
        "born_host": V4,
        "store_timestamp": 2,
        "store_host": V4,
        "reconsume_times": 2,
        "prepared_transaction_offset": -1,
    }
    return encode_record(**(values | changes))


@pytest.mark.parametrize(
    "data",
    [
        record(),
        record(body=b"", properties=b""),
        record(born_host=V6),
        record(store_host=V6),
        record(born_host=V6, store_host=V6, topic=b"t" * 200),
        record(properties=b"\xff\xfe broken"),
        record(properties=b"a"),
        record(topic="ü".encode()),
        record(born_timestamp=-(2**62), store_timestamp=2**62),
        record()[:8] + b"\0\0\0\1" + record()[12:],
    ],
)
def test_a_record_is_made_again_from_its_row(data):
    row = row_of(data)
    assert row["record"] is None
    assert record_of(row) == data


def test_a_record_that_its_columns_do_not_give_is_kept_whole():
    wide = bytearray(record())
    wide[4:8] = (0xDAA320AB).to_bytes(4, "big")  # two bytes for the length of a topic that fits one
    at = wide.index(b"\x01T")
    wide[at : at + 1] = b"\x00\x01"
    wide[0:4] = len(wide).to_bytes(4, "big")
    row = row_of(bytes(wide))
    assert record_of(row) == bytes(wide)


PROPERTIES = [
    b"UNIQ_KEY\x01u1\x02KEYS\x01k\x02TAGS\x01t\x02custom\x01c\x02",
    b"KEYS\x01only\x02",
    b"",
    b"\xff\xfe broken\x01v\x02",
    "ä\x01ö\x02TAGS\x01ü\x02".encode(),
    b"TAGS\x01\x02KEYS\x01a b\x02KEYS\x01c\x02",
    b"no separator",
]


def block_of(records: list[bytes]) -> tuple[bytes, np.ndarray]:
    data = b"".join(records)
    return data, record_positions(data)


def test_the_fast_way_says_what_the_plain_one_does():
    rows = [
        record(queue_offset=n, body=b"b" * n, properties=text, flag=n, reconsume_times=n, born_timestamp=n)
        for n, text in enumerate(PROPERTIES * 3)
    ]
    data, positions = block_of(rows)
    fast = parquet_rows.table_of(data, positions, "T", SCHEMA)
    plain = pa.Table.from_pylist([row_of(one) for one in rows], schema=SCHEMA)
    for name in SCHEMA.names:
        assert fast.column(name).to_pylist() == plain.column(name).to_pylist(), name
    assert parquet_rows.records_of(plain) == data
    assert records_of(fast) == records_of(plain) == data


@pytest.mark.parametrize("odd", [{"born_host": V6}, {"store_host": V6}, {"topic": b"t" * 200}, {"topic": b"U"}])
def test_what_the_fast_way_does_not_take_goes_the_plain_one(odd):
    rows = [record(queue_offset=0), record(queue_offset=1, **odd), record(queue_offset=2)]
    data, positions = block_of(rows)
    assert parquet_rows.table_of(data, positions, "T", SCHEMA) is None
    table = table_of_block(data, "T")
    assert table.num_rows == 3
    assert records_of(table) == data


def test_nulls_where_there_can_be_none_are_damage():
    table = pa.Table.from_pylist([row_of(record())], schema=SCHEMA)
    for name in ("body", "flag", "store_host"):
        at = SCHEMA.get_field_index(name)
        with pytest.raises(ValueError, match="nulls"):
            records_of(table.set_column(at, name, pa.nulls(1, SCHEMA.field(name).type)))


def test_ids_name_the_place_where_a_record_lay_and_a_block_is_no_such_place():
    rows = [record(queue_offset=n, physical_offset=7000 + n, properties=text) for n, text in enumerate(PROPERTIES)]
    table = table_of_block(b"".join(rows), "T")
    assert table["message_id"].to_pylist() == [
        "u1", *(offset_message_id(V4, 7000 + n) for n in range(1, len(PROPERTIES)))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("blocks", "messages", "size", "groups"),
    [
        (10, 400, 40_000, [4000]),  # small messages share a row group until it has a mebibyte
        (10, 400, 160_000, [2400, 1600]),
        (10, 400, 1_200_000, [800] * 5),
        (4, 10, 3 * MiB, [20, 20]),  # few messages, but as many bytes as may be
        (3, 1, 9 * MiB, [1, 1, 1]),
    ],
)
def test_row_groups_are_neither_small_nor_large(blocks, messages, size, groups):
    none = np.zeros(0, dtype=np.uint32)
    given = [RawBlock(bytes([n]) * size, 5 + n * messages, messages, n, n, none, none) for n in range(blocks)]
    found = list(regrouped(iter(given)))
    assert [one.messages for one in found] == groups
    assert b"".join(one.data for one in found) == b"".join(one.data for one in given)
    assert [one.first for one in found] == [5, *(5 + np.cumsum(groups[:-1])).tolist()]
    assert (found[0].min_ms, found[-1].max_ms) == (0, blocks - 1)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, policy=POLICY)
    for n in range(30):
        world.local.produce(KEY, 5, body=b"%d" % n * 800, properties=b"KEYS\x01k%d\x02TAGS\x01a\x02" % n)
        world.settle()
    world.advance(180)
    yield world
    world.close()


def test_joining_into_parquet_keeps_every_byte(world):
    manifest = world.manifest(KEY)
    assert manifest.segments[0].format == "parquet"
    assert world.stored(KEY) == local_records(world)
    left = {segment.name for segment in manifest.segments} | {segment.index_name for segment in manifest.segments}
    assert {entry.name for entry in world.objects.list("s/")} | {e.name for e in world.objects.list("lake/")} == left


def test_others_read_the_columns(world):
    segment = world.manifest(KEY).segments[0]
    assert "/date=2023-11-14/queue=0/" in segment.name
    table = pq.read_table(pa.BufferReader(world.objects.read(segment.name)))
    assert table["queue_offset"].to_pylist() == list(range(segment.first, segment.last + 1))
    assert table["body"][0].as_py() == b"0" * 800
    assert table["keys"][5].as_py() == "k1"
    assert dict(table["properties"][5].as_py()) == {"KEYS": "k1", "TAGS": "a"}
    assert table["store_timestamp"][0].as_py().year == 2023


def test_damage_is_found(world):
    segment = world.manifest(KEY).segments[0]
    name = f"{BROKER}/{segment.name}"
    data = bytearray(world.backend.inner.objects[name])
    seen = 0
    for at in range(4, len(data), 97):
        world.backend.inner.objects[name] = bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            assert world.stored(KEY) == local_records(world)  # a statistic or a column that the broker does not use
        except CorruptionError:
            seen += 1
    assert seen > 3
