"""Offsets of a stream: their form, how a limit is shared, and which losses are seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import DataLost, PipelineError
from stratamq.pipeline.progression import (
    BrokerQueue,
    batch_ranges,
    check_losses,
    decode_offsets,
    encode_end,
    encode_offsets,
    next_end,
    on_brokers,
    share_limit,
)

TOPICS, NUMBERS = st.sampled_from(["a", "b", "c"]), st.integers(0, 12)
KEYS = st.builds(BrokerQueue, TOPICS, NUMBERS, st.just(""))
BROKERS = ["b1", "odd/7", "ü"]
NAMED = st.builds(BrokerQueue, TOPICS, NUMBERS, st.sampled_from(BROKERS))
A0 = BrokerQueue("a", 0)


@given(st.dictionaries(KEYS, st.integers(0, 2**62)))
def test_offsets_survive_a_checkpoint_in_a_fixed_order(offsets):
    document = encode_offsets(offsets)
    assert decode_offsets(document) == offsets
    backwards = dict(sorted(offsets.items(), reverse=True))
    assert repr(encode_offsets(backwards)) == repr(document)


@given(st.dictionaries(NAMED, st.tuples(st.integers(0, 2**40), st.integers(0, 9))))
def test_offsets_on_several_brokers_survive_as_well(ranges):
    offsets = {key: lo for key, (lo, _) in ranges.items()}
    brokers = sorted({key.broker for key in ranges})
    assert on_brokers(decode_offsets(encode_offsets(offsets)), brokers) == offsets
    end = encode_end(offsets, {key: lo + count for key, (lo, count) in ranges.items()})
    assert on_brokers(batch_ranges(end), brokers) == {key: (lo, lo + n) for key, (lo, n) in ranges.items() if n}


def test_brokers_are_named_where_there_are_several():
    one = {BrokerQueue("a", 3, "x"): 7, BrokerQueue("a", 10, "x"): 8}
    assert encode_offsets(one) == {"a": {"3": 7, "10": 8}}
    assert encode_offsets({**one, BrokerQueue("a", 3, "y"): 9}) == {"a": {"x/3": 7, "y/3": 9, "x/10": 8}}


def test_checkpoints_of_another_set_of_brokers_go_on_or_are_refused():
    old, new = {"a": {"0": 5}}, {"a": {"x/0": 5, "y/0": 6}}
    assert on_brokers(decode_offsets(old), [""]) == {A0: 5}
    assert on_brokers(decode_offsets(old), ["x"]) == {BrokerQueue("a", 0, "x"): 5}
    with pytest.raises(PipelineError, match="brokers x, y now: go on with one by the option broker"):
        on_brokers(decode_offsets(old), ["x", "y"])
    both = {BrokerQueue("a", 0, "x"): 5, BrokerQueue("a", 0, "y"): 6}
    for brokers in (["x", "y"], ["x"], ["x", "y", "z"]):
        assert on_brokers(decode_offsets(new), brokers) == both, "a broker that is away keeps its offset"
    with pytest.raises(PipelineError, match="has offsets of the brokers x, y"):
        on_brokers(decode_offsets(new), [""])


@pytest.mark.parametrize(
    "document", [{"a": 1}, {"a": {"x": 1}}, {"a": {"0": -1}}, {"a": {"0": True}}, {"a": {"/0": 1}}, {"a": {"b/": 1}}]
)
def test_a_foreign_checkpoint_is_refused(document):
    with pytest.raises(PipelineError, match="checkpoint"):
        decode_offsets(document)


@given(st.dictionaries(KEYS, st.integers(1, 10**12), min_size=1), st.integers(1, 10**12))
def test_a_limit_is_shared_to_the_last_record(backlog, limit):
    shares = share_limit(backlog, limit)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= shares[key] <= backlog[key] for key in backlog)


@given(st.dictionaries(KEYS, st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 50), st.integers(1, 10_000))
def test_a_limited_stream_comes_to_its_end(latest, rows, size):
    at = dict.fromkeys(latest, 0)
    for _ in range(1 + sum(latest.values())):
        waiting = {key: 100 * (latest[key] - at[key]) for key in latest}
        after = next_end(at, latest, rows_max=rows, sizes=waiting, bytes_max=size)
        assert sum(after.values()) - sum(at.values()) <= max(1, min(rows, size // 100))
        if after == at:
            break
        at = after
    assert at == latest


def test_losses_are_told_apart():
    check_losses({A0: 5}, {A0: 5}, {A0: 5})
    with pytest.raises(DataLost, match="4 of topic a, queue 0, but the store has 5 to 9"):
        check_losses({A0: 4}, {A0: 5}, {A0: 9})
    with pytest.raises(DataLost, match="10 of topic a"):
        check_losses({A0: 10}, {A0: 5}, {A0: 9})
    with pytest.raises(DataLost, match="is gone from the store"):
        check_losses({A0: 4}, {}, {})


@given(st.dictionaries(KEYS, st.tuples(st.integers(0, 1000), st.integers(0, 5))))
def test_an_end_says_what_its_batch_reads(ranges):
    start = {key: lo for key, (lo, _) in ranges.items()}
    ends = {key: lo + count for key, (lo, count) in ranges.items()}
    document = encode_end(start, ends)
    assert batch_ranges(document) == {key: (lo, lo + count) for key, (lo, count) in ranges.items() if count}
    assert decode_offsets(document) == ends
    assert batch_ranges(encode_offsets(ends)) == {}


def test_a_beginning_without_end_is_refused():
    with pytest.raises(PipelineError, match="without end"):
        batch_ranges({"": {"a": {"0": 1}}, "a": {"1": 5}})
