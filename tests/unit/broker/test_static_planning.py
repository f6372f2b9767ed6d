"""Static topics: who gets which queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.broker.static_planning import plan_queues
from stratamq.broker.static_topics import StaticTopics
from stratamq.errors import InvalidArgument

NAMES = ["a", "b", "c"]


@given(st.lists(st.tuples(st.integers(1, 6), st.sets(st.sampled_from(NAMES), min_size=1)), min_size=1, max_size=4))
def test_queues_are_shared_evenly_stay_where_they_are_and_every_broker_takes_the_plan(steps):
    tables = {name: StaticTopics(broker_name=name, wall_ms=lambda: 0) for name in NAMES}
    known, total, leaders = {}, 0, {}
    for more, targets in steps:
        total += more
        known = plan_queues("S", total, sorted(targets), NAMES, known, now_ms=5)
        for name, share in known.items():
            tables[name].put(tables[name].accept(share.mapping))
            assert sorted(share.mapping.led().values()) == list(range(share.queues))
        now = {number: name for name, table in tables.items() for number in table.find("S").led()}
        assert sorted(now) == list(range(total))
        assert leaders.items() <= now.items()
        assert {now[number] for number in now.keys() - leaders.keys()} <= targets
        leaders = now
    if len(steps) == 1:
        counts = [known[name].queues for name in steps[0][1]]
        assert max(counts) - min(counts) <= 1


def test_a_plan_follows_the_one_before():
    first = plan_queues("S", 2, ["a"], [], {}, now_ms=10)
    assert (first["a"].mapping.epoch, first["a"].queues) == (10, 2)
    second = plan_queues("S", 3, ["a"], ["b"], first, now_ms=10)
    assert (second["a"].mapping.epoch, second["b"].mapping.epoch) == (1010, 1010)
    assert (second["b"].queues, second["b"].mapping.hosted_queues) == (0, {})


@pytest.mark.parametrize("total", [1, 2])
def test_queues_do_not_become_fewer(total):
    known = plan_queues("S", 2, ["a"], [], {}, now_ms=10)
    with pytest.raises(InvalidArgument, match="has 2 queues; a static topic can only get more"):
        plan_queues("S", total, ["a"], [], known, now_ms=10)


def test_brokers_that_contradict_each_other_are_left_alone():
    old, new = (plan_queues("S", 2, ["a", "b"], [], {}, now_ms=now) for now in (1, 2))
    with pytest.raises(InvalidArgument, match="different epochs"):
        plan_queues("S", 3, ["a"], [], {"a": old["a"], "b": new["b"]}, now_ms=5)
    with pytest.raises(InvalidArgument, match=r"has 2 queues, its brokers lead \[0\]"):
        plan_queues("S", 3, ["a"], [], {"a": old["a"]}, now_ms=5)
