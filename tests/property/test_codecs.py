"""The store's codecs for any input: what is written is read back, whatever is cut off or changed is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.formats.checkpoint import Checkpoint, Progress, decode_checkpoint, decode_progress, encode_checkpoint
from stratamq.formats.config_json import decode_config_json, encode_config_json
from stratamq.formats.consume_queue import Unit, decode_unit, encode_unit, units_view
from stratamq.formats.index import (
    HEADER,
    IndexHeader,
    decode_header,
    encode_header,
)
from stratamq.formats.java import index_key_hash, index_key_hashes, string_hash
from stratamq.formats.message import (
    check_record,
    decode_record,
    encode_host,
    encode_record,
    offset_message_id,
    parse_offset_message_id,
    record_size,
)
from stratamq.formats.properties import decode_properties, encode_properties, find_property
from stratamq.logstore.scan import Scanned, parse_record

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NATURAL64 = st.integers(0, 2**63 - 1)
HOSTS = st.builds(
    encode_host, st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str)), st.integers(0, 65535)
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TOPICS = st.text("abcXYZ019_-%|", min_size=1, max_size=127)
LONG_TOPICS = st.text("ab", min_size=121, max_size=248).map(lambda text: "%RETRY%" + text)
# Sys flags without the host bits, which follow from the hosts.
SYS_FLAGS = st.integers(0, 0x7FF).map(lambda flag: flag & ~0x30)


@st.composite
def records(draw):
    """Fields of a record, and its bytes."""
    fields = {
        "body": draw(st.binary(max_size=300)),
        "topic": draw(st.one_of(TOPICS, LONG_TOPICS)).encode(),
        "properties": draw(TEXT).encode()[:32767],
        "queue_id": draw(st.integers(0, 2**31 - 1)),
        "flag": draw(I32),
        "queue_offset": draw(st.integers(0, 2**63 // 20 - 1)),
        "physical_offset": draw(NATURAL64),
        "sys_flag": draw(SYS_FLAGS),
        "born_timestamp": draw(I64),
        "born_host": draw(HOSTS),
        "store_timestamp": draw(I64),
        "store_host": draw(HOSTS),
        "reconsume_times": draw(I32),
        "prepared_transaction_offset": draw(I64),
    }
    return fields, encode_record(**fields)


@given(records(), st.binary(max_size=9), st.binary(max_size=9))
def test_a_record_is_read_back_from_anywhere(made, before, behind):
    fields, data = made
    where = before + data + behind
    checked = check_record(where, len(before), len(where), physical_offset=fields["physical_offset"])
    assert (checked.size, checked.is_blank, checked.flaw) == (len(data), False, None)
    record = decode_record(where, len(before))
    for name, value in fields.items():
        found = getattr(record, name)
        if name == "sys_flag":
            assert found & ~0x30 == value
        elif name == "topic":
            assert found.encode() == value
        elif name == "properties":
            assert found == value.decode("utf-8", "replace")
        else:
            assert found == value
    parts = {"body_bytes": len(fields["body"]), "topic_bytes": len(fields["topic"])}
    parts["properties_bytes"] = len(fields["properties"])
    assert record_size(**parts, sys_flag=record.sys_flag) == record.size == len(data)
    scanned = parse_record(memoryview(where), len(before), len(data), {})
    assert isinstance(scanned, Scanned)
    assert (scanned.topic, scanned.properties, scanned.queue_offset) == (
        record.topic,
        record.properties,
        record.queue_offset,
    )


@given(records(), st.data())
def test_a_record_cut_anywhere_is_noticed(made, data):
    fields, record = made
    end = data.draw(st.integers(0, len(record) - 1))
    assert check_record(record, 0, end, physical_offset=fields["physical_offset"]).flaw is not None
    zeroed = record[:end] + bytes(len(record) - end)
    body_end = len(record) - len(fields["properties"]) - 2 - len(fields["topic"]) - 2
    if end < body_end and any(record[end:body_end]):
        assert check_record(zeroed, 0, len(zeroed), physical_offset=fields["physical_offset"]).flaw is not None


@given(records(), st.data())
def test_a_changed_body_or_place_is_noticed(made, data):
    fields, record = made
    at = data.draw(st.integers(0, max(0, len(fields["body"]) - 1)))
    head = len(record) - 2 - len(fields["properties"]) - len(fields["topic"]) - len(fields["body"])
    head -= 2 if len(fields["topic"]) > 127 else 1
    if fields["body"]:
        changed = bytearray(record)
        changed[head + at] ^= 1 << data.draw(st.integers(0, 7))
        assert (
            check_record(bytes(changed), 0, len(record), physical_offset=fields["physical_offset"]).flaw.kind == "crc"
        )
    other = data.draw(NATURAL64.filter(lambda value: value != fields["physical_offset"]))
    assert check_record(record, 0, len(record), physical_offset=other).flaw.kind == "offset"


@given(st.binary(max_size=400), st.integers(0, 400))
def test_no_bytes_make_the_check_fail_in_another_way(data, position):
    checked = check_record(data, min(position, len(data)), len(data), physical_offset=0)
    if checked.flaw is None and not checked.is_blank:
        decode_record(data, min(position, len(data)))


@given(HOSTS, NATURAL64)
def test_message_ids(host, physical_offset):
    found = parse_offset_message_id(offset_message_id(host, physical_offset))
    assert (encode_host(*found[0]), found[1]) == (host, physical_offset)


@given(st.lists(st.tuples(I64, I32, I64)))
def test_units(units):
    data = b"".join(encode_unit(*unit) for unit in units)
    assert [decode_unit(data, 20 * number) for number in range(len(units))] == [Unit(*unit) for unit in units]
    assert [tuple(row) for row in units_view(data, 0, len(units)).tolist()] == units


@given(st.tuples(NATURAL64, NATURAL64, NATURAL64, NATURAL64, NATURAL64), st.binary(min_size=60, max_size=60))
def test_checkpoints(fields, noise):
    names = ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp", "master_flushed_offset")
    checkpoint = Checkpoint(**dict(zip((*names, "confirm_physical_offset"), fields, strict=True)))
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    assert decode_progress(encode_checkpoint(checkpoint)[:64] + noise) is None


@given(st.tuples(I64, I64, I64, I64, I32, I32, st.integers(0, 2**32 - 1)))
def test_positions(fields):
    progress = Progress(*fields)
    data = encode_checkpoint(Checkpoint(), progress)
    assert decode_progress(data) == progress
    assert len(data) == 4096


@given(st.tuples(I64, I64, I64, I64, I32, st.integers(1, 2**31 - 1)))
def test_index_headers(fields):
    header = IndexHeader(*fields)
    assert decode_header(encode_header(header)) == header
    assert len(encode_header(header)) == HEADER.size


# A value or name without the separators; RocketMQ drops empty ones.
PIECES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@given(st.dictionaries(PIECES, PIECES))
def test_properties(properties):
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text[:-1]) == properties
    for name, value in properties.items():
        assert find_property(text, name) == value


@given(st.text("\x01\x02abKEYS", max_size=30), st.sampled_from(["a", "b", "KEYS", "K", "ab"]))
def test_one_property_is_found_as_in_the_whole_map(text, name):
    assert find_property(text, name) == decode_properties(text).get(name)


@given(st.text())
def test_java_hash_is_the_definition(text):
    h = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        h = (31 * h + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFFFFFF
    assert string_hash(text) & 0xFFFFFFFF == h


@given(st.lists(st.tuples(TOPICS, st.one_of(TEXT, st.text("abc019", max_size=40))), max_size=80))
def test_bulk_hashes_are_the_single_ones(pairs):
    assert index_key_hashes(pairs) == [index_key_hash(*pair) for pair in pairs]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXT, inner), st.dictionaries(st.integers(), inner)),
    max_leaves=20,
)


def with_text_keys(value):
    """What comes back of a value: integer keys are text."""
    if isinstance(value, dict):
        return {str(key): with_text_keys(member) for key, member in value.items()}
    return [with_text_keys(member) for member in value] if isinstance(value, list) else value


@given(JSON)
def test_config_json(value):
    assert decode_config_json(encode_config_json(value)) == with_text_keys(value)


@given(st.text('{}[]":,0123ab\\ \n', max_size=40))
def test_any_text_is_json_or_a_value_error(text):
    try:
        value = decode_config_json(text)
    except ValueError:
        return
    assert decode_config_json(encode_config_json(value)) == value


def test_a_number_out_of_range_is_an_error_not_a_wrong_record():
    with pytest.raises(Exception, match=r".*"):
        encode_unit(2**63, 1, 1)
