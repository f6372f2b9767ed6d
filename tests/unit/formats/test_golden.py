"""The golden bytes of the store's own formats: written like that, and read like that."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratamq.formats.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    Progress,
    decode_checkpoint,
    decode_progress,
    encode_checkpoint,
)
from stratamq.formats.consume_queue import PREFILL_UNIT, UNIT_BYTES, decode_unit, encode_unit
from stratamq.formats.index import (
    ENTRY,
    ENTRY_BYTES,
    IndexEntry,
    IndexHeader,
    decode_entry,
    decode_header,
    encode_header,
)
from stratamq.formats.java import index_key_hash
from stratamq.formats.message import (
    check_record,
    decode_host,
    decode_record,
    encode_blank,
    encode_host,
    encode_record,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "records"


def golden(name: str) -> bytes:
    """The bytes of a golden file."""
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return b"".join(bytes.fromhex(line.partition(" | ")[0]) for line in lines if not line.startswith("#"))


RECORDS = {
    "record-v1.txt": {
        "body": b"hello",
        "topic": b"TopicTest",
        "properties": b"KEYS\x01key-1\x02TAGS\x01TagA\x02UNIQ_KEY\x017F0000010001\x02",
        "queue_id": 3,
        "flag": 0,
        "queue_offset": 7,
        "physical_offset": 1024,
        "sys_flag": 0,
        "born_timestamp": 1700000000000,
        "born_host": encode_host("10.0.0.1", 50000),
        "store_timestamp": 1700000000123,
        "store_host": encode_host("10.0.0.2", 10911),
    },
    "record-v2-ipv6.txt": {
        "body": b"\x00\xff",
        "topic": b"%RETRY%" + b"g" * 121,
        "properties": b"",
        "queue_id": 0,
        "flag": -1,
        "queue_offset": 0,
        "physical_offset": 2**31,
        "sys_flag": 8,
        "born_timestamp": 1700000000000,
        "born_host": encode_host("::1", 1),
        "store_timestamp": 1700000000001,
        "store_host": encode_host("2001:db8::2", 10911),
        "reconsume_times": 16,
        "prepared_transaction_offset": 1024,
    },
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(name):
    data, fields = golden(name), RECORDS[name]
    assert encode_record(**fields) == data
    assert check_record(data, 0, len(data), physical_offset=fields["physical_offset"]).flaw is None
    record = decode_record(data)
    assert (record.topic.encode(), record.body, record.properties.encode()) == (
        fields["topic"],
        fields["body"],
        fields["properties"],
    )
    assert decode_host(record.store_host).port == 10911


def test_blank():
    assert golden("blank.txt") == encode_blank(500)


def test_units():
    data = golden("units.txt")
    units = [decode_unit(data, at) for at in range(0, len(data), UNIT_BYTES)]
    assert units[0].is_prefill
    assert units[1] == (1024, 148, 2598919)
    assert PREFILL_UNIT + b"".join(encode_unit(*unit) for unit in units[1:]) == data


def test_index():
    header = IndexHeader(1700000000123, 1700000003123, 1024, 2048, 2, 3)
    assert encode_header(header) == golden("index-header.txt")
    assert decode_header(golden("index-header.txt")) == header
    entries = golden("index-entries.txt")
    assert decode_entry(entries, ENTRY_BYTES) == IndexEntry(index_key_hash("TopicTest", "key-1"), 2048, 3, 1)
    assert ENTRY.pack(*decode_entry(entries, 0)) == entries[:ENTRY_BYTES]


def test_checkpoint():
    checkpoint = Checkpoint(
        physic_msg_timestamp=10000,
        logics_msg_timestamp=9000,
        index_msg_timestamp=7000,
        confirm_physical_offset=4096,
    )
    progress = Progress(4096, 2048, 1024, 20231114221320000, 5, 6, 0xDEADBEEF)
    data = golden("checkpoint.txt").ljust(CHECKPOINT_BYTES, b"\0")
    assert encode_checkpoint(checkpoint, progress) == data
    assert (decode_checkpoint(data), decode_progress(data)) == (checkpoint, progress)
