"""Options of the source: every value checked, every mistake named."""

from __future__ import annotations

import pytest

from stratamq.errors import ConfigError, PipelineError
from stratamq.pipeline.options import EARLIEST, LATEST, OPTIONS, ReadOptions, parse_options


def test_only_a_path_means_everything():
    assert parse_options({"path": "d"}) == ReadOptions(path="d")
    assert parse_options({"path": "file:///data/d"}).path == "/data/d"
    options = parse_options({"path": "d"})
    assert (options.starting_offset, options.ending_offset) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.wants_topic("anything")


def test_names_are_compared_without_case_as_spark_lowers_them():
    given = {"PATH": "d", "bytespersplit": "1m", "FailOnDataLoss": "False", "minpartitions": "7", "DECOMPRESS": "false"}
    options = parse_options(given)
    assert options.bytes_per_split == 1 << 20
    assert not options.fail_on_data_loss
    assert not options.decompress
    assert options.partitions_min == 7


def test_topics_by_list_and_by_pattern():
    options = parse_options({"path": "d", "topics": "a, b"})
    assert options.topics == frozenset({"a", "b"})
    assert [options.wants_topic(topic) for topic in ("a", "b", "ab")] == [True, True, False]
    assert parse_options({"path": "d", "subscribe": "a"}).topics == frozenset({"a"})
    options = parse_options({"path": "d", "subscribePattern": "or.*"})
    assert [options.wants_topic(topic) for topic in ("orders", "more", "or")] == [True, False, True]


def test_offsets_as_kafkas_source_has_them():
    options = parse_options({"path": "d", "startingOffsets": "latest", "endingOffsets": '{"a": {"0": 5, "3": -1}}'})
    assert options.starting_offset == LATEST
    assert options.ending_offset == LATEST
    assert options.ending_offsets == {"a": {0: 5, 3: -1}}
    assert parse_options({"path": "d", "startingOffsets": '{"a": {"0": -2}}'}).starting_offset == EARLIEST


@pytest.mark.parametrize(("text", "size"), [("65536", 65536), ("64k", 65536), ("64KiB", 65536), ("2 GB", 2 << 30)])
def test_sizes(text, size):
    assert parse_options({"path": "d", "bytesPerSplit": text}).bytes_per_split == size


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queues", "1,x"),
        ("queues", "-1"),
        ("topics", "a,,b"),
        ("columns", ""),
        ("subscribePattern", "("),
        ("startingOffsets", "soon"),
        ("startingOffsets", '{"a": 5}'),
        ("startingOffsets", '{"a": {"0": -3}}'),
        ("startingOffsets", '{"a": {"0": true}}'),
        ("startingOffsets", '{"a": {"x": 1}}'),
        ("endingOffsets", "[]"),
        ("startingTimestamp", "yesterday"),
        ("endingTimestamp", "-5"),
        ("bytesPerSplit", "12"),
        ("bytesPerSplit", "-64m"),
        ("minPartitions", "0"),
        ("minPartitions", "1000000"),
        ("failOnDataLoss", "maybe"),
        ("pushdown", "yes"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(option, value):
    with pytest.raises(ConfigError, match=option) as caught:
        parse_options({"path": "d", option: value})
    assert caught.value.allowed


def test_an_unknown_option_is_named_with_those_that_exist():
    with pytest.raises(PipelineError, match="no option startingOfsets; it knows path, namesrv") as caught:
        parse_options({"path": "d", "startingOfsets": "latest"})
    assert all(name in str(caught.value) for name in OPTIONS)


def test_what_contradicts_or_is_missing():
    with pytest.raises(PipelineError, match="topics and subscribePattern exclude each other"):
        parse_options({"path": "d", "topics": "a", "subscribePattern": "a"})
    with pytest.raises(PipelineError, match="needs the option path"):
        parse_options({"topics": "a"})
