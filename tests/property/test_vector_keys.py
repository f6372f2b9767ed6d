"""Vectorised hashes against Java's, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stratamq.formats import java
from stratamq.formats.properties import decode_properties, encode_properties, split_keys
from stratamq.formats.vector_keys import fingerprints, index_keys, java_hashes, tag_index_keys
from stratamq.formats.vector_properties import split_properties

TEXTS = st.one_of(
    st.text(max_size=20), st.text("abc ", max_size=600), st.sampled_from(["polygenelubricants", "😀", ""])
)


def joined(texts):
    raws = [text.encode() for text in texts]
    lengths = np.array([len(raw) for raw in raws], dtype=np.int64)
    ends = np.cumsum(lengths)
    return np.frombuffer(b"".join(raws) or b"\0", dtype=np.uint8), ends - lengths, lengths


@given(st.lists(TEXTS, max_size=30))
def test_java_hashes(texts):
    hashes = java_hashes(*joined(texts))
    assert [java.signed32(value) for value in hashes.tolist()] == [java.string_hash(text) for text in texts]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_fingerprints_are_equal_for_equal_bytes_only(ranges):
    lengths = np.array([len(one) for one in ranges], dtype=np.int64)
    ends = np.cumsum(lengths)
    data = np.frombuffer(b"".join(ranges) + bytes(8), dtype=np.uint8)
    marks = fingerprints(data, ends - lengths, lengths).tolist()
    by_mark = dict(zip(marks, ranges, strict=True))
    assert [by_mark[mark] for mark in marks] == ranges
    assert len(set(marks)) == len(set(ranges))


KEY = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["T", "orders"]), KEY, KEY, KEY), max_size=20))
def test_index_entries_of_records(rows):
    raws = [encode_properties({"KEYS": keys, "UNIQ_KEY": unique, "TAGS": tags}) for _, keys, unique, tags in rows]
    data, starts, _ = joined(raws)
    offsets = np.concatenate((starts, [sum(len(raw.encode()) for raw in raws)])).astype(np.int64)
    found = split_properties(data[: offsets[-1]], offsets)
    prefix = np.array([java.hash_units(java.utf16_units(topic + "#")) for topic, *_ in rows], dtype=np.uint32)
    tag_prefix = np.array([java.hash_units(java.utf16_units(topic + "#T#")) for topic, *_ in rows], dtype=np.uint32)
    expected, expected_tags = [], []
    for number, ((topic, *_), raw) in enumerate(zip(rows, raws, strict=True)):
        properties = decode_properties(raw)
        keys = ([properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []) + split_keys(properties.get("KEYS", ""))
        expected += [(number, java.index_key_hash(topic, key)) for key in keys]
        if "TAGS" in properties:
            expected_tags.append((number, java.index_key_hash(topic, "T#" + properties["TAGS"])))
    assert sorted(zip(*(part.tolist() for part in index_keys(found, prefix)), strict=True)) == sorted(expected)
    assert list(zip(*(part.tolist() for part in tag_index_keys(found, tag_prefix)), strict=True)) == expected_tags
