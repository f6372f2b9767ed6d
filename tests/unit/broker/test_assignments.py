"""Queues shared out by a broker: each to somebody, none to two who pull, as RocketMQ's two strategies do it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.broker.assignments import STRATEGIES, assign
from stratamq.broker.request_modes import POP, PULL

FIVE = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


def shares(queues, members, *, strategy="AVG", mode=PULL, share=0):
    return [assign(queues, members, one, strategy=strategy, mode=mode, share=share) for one in members]


@pytest.mark.parametrize(
    ("strategy", "parts"),
    [
        ("AVG", [[("a", 0), ("a", 1), ("a", 2)], [("b", 0), ("b", 1)]]),
        ("AVG_BY_CIRCLE", [[("a", 0), ("a", 2), ("b", 1)], [("a", 1), ("b", 0)]]),
        ("MACHINE_ROOM", [None, None]),
    ],
)
def test_two_members_share_the_queues_of_two_brokers(strategy, parts):
    assert shares(FIVE[::-1], ["x", "y"], strategy=strategy) == parts


@given(
    strategy=st.sampled_from(sorted(STRATEGIES)), queues=st.integers(0, 40), members=st.integers(1, 12), data=st.data()
)
def test_every_queue_is_pulled_by_one_member_and_shares_are_even(strategy, queues, members, data):
    there = data.draw(st.permutations([("b", number) for number in range(queues)]))
    names = data.draw(st.permutations([f"c{number:02d}" for number in range(members)]))
    parts = shares(there, names, strategy=strategy)
    assert sorted(queue for part in parts for queue in part) == sorted(there)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert assign(there, names, "stranger", strategy=strategy, mode=PULL, share=0) == []


@pytest.mark.parametrize("share", [-1, 0, 2, 9])
def test_who_shares_with_all_pops_from_whole_brokers(share):
    assert shares(FIVE, ["x", "y", "z"], mode=POP, share=share) == [[("a", -1), ("b", -1)]] * 3


def test_a_member_shares_its_queues_with_those_that_follow_it():
    first, second, third = shares(FIVE, ["x", "y", "z"], mode=POP, share=1)
    assert first == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert second == [("a", 2), ("b", 0), ("b", 1)]
    assert third == [("a", 0), ("a", 1), ("b", 1)]


def test_more_members_than_queues_get_one_each():
    parts = shares(FIVE[:2], ["p", "q", "r", "s"], mode=POP, share=1)
    assert parts == [[("a", 0)], [("a", 1)], [("a", 0)], [("a", 1)]]
    assert shares([], ["p", "q", "r"], mode=POP, share=1) == [[], [], []]
