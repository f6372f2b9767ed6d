"""Groups' filters: which counts, when it is dead, what its file holds."""

from __future__ import annotations

import pytest

from stratamq.broker.filters import DEAD_FILTERS_KEPT_MS, FilterTable, bloom_positions
from stratamq.broker.subscriptions import EXPRESSION_SQL92, Subscription

NOW = 1_795_243_302_837


def subscription(expression: str, version: int = 1, topic: str = "T", kind: str = EXPRESSION_SQL92) -> Subscription:
    return Subscription(topic, expression, frozenset(), None, version, kind)


def make(saved: object = None, now: int = NOW) -> tuple[FilterTable, list[int]]:
    clock = [now]
    return FilterTable(saved, wall_ms=lambda: clock[0]), clock


def test_the_file_is_what_rocketmq_writes():
    """Values of a broker of version 5.5.0 for the same consumer."""
    table, _ = make()
    table.register("g1", [subscription("price BETWEEN 5 AND 9", 1_795_243_303_699)])
    assert table.as_json() == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "g1": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [93, 25, 69]},
                        "bornTime": NOW,
                        "clientVersion": 1_795_243_303_699,
                        "consumerGroup": "g1",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "price BETWEEN 5 AND 9",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }
    }


def test_bloom_positions_of_any_length():
    for length in range(70):
        found = bloom_positions("g" * length)
        assert len(found) == 3
        assert all(0 <= position < 112 for position in found)


def test_the_newest_version_counts():
    table, _ = make()
    table.register("g", [subscription("a > 2", 2)])
    table.register("g", [subscription("a > 1", 1)])
    assert table.find("g", "T").sql.expression == "a > 2"
    table.register("g", [subscription("a > 3", 3)])
    assert table.find("g", "T").sql.expression == "a > 3"
    born = table.find("g", "T").born_ms
    table.register("g", [subscription("a > 3", 4)])
    assert (table.find("g", "T").version, table.find("g", "T").born_ms) == (4, born)
    table.register("g", [subscription("a >", 5)])
    assert table.find("g", "T") is None


def test_tags_are_no_filters_and_topics_left_out_are_dead():
    table, clock = make()
    table.register("g", [subscription("a", kind="TAG")])
    assert table.find("g", "T") is None
    assert not table.is_dirty
    table.register("g", [subscription("a > 1"), subscription("b > 1", topic="U")])
    clock[0] += 5
    table.register("g", [subscription("a > 1")])
    assert not table.find("g", "T").is_dead
    assert (table.find("g", "U").is_dead, table.find("g", "U").dead_ms) == (True, NOW + 5)


def test_the_dead_are_forgotten_after_a_day():
    table, clock = make()
    table.register("g", [subscription("a > 1")])
    table.unregister("g")
    clock[0] += DEAD_FILTERS_KEPT_MS - 1
    assert "T" in table.as_json()["filterDataByTopic"]
    clock[0] += 1
    assert table.as_json() == {"filterDataByTopic": {}}
    assert table.find("g", "T") is None


@pytest.mark.parametrize(
    "saved",
    [
        [],
        {"filterDataByTopic": 5},
        {"filterDataByTopic": {"T": None}},
        {"filterDataByTopic": {"T": {"groupFilterData": {"g": 7}}}},
        {"filterDataByTopic": {"T": {"groupFilterData": {"g": {"expressionType": "SQL92"}}}}},
        {"filterDataByTopic": {"T": {"groupFilterData": {"g": {"expressionType": "SQL92", "expression": "a > 1"}}}}},
    ],
)
def test_a_file_with_nonsense_in_it_is_read_all_the_same(saved):
    table, _ = make(saved)
    assert table.find("g", "T") is None
    assert table.as_json() == {"filterDataByTopic": {}}
