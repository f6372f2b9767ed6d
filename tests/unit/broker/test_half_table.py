"""What is known of half messages: chains of copies, what is finished, and how much is remembered."""

from __future__ import annotations

from stratamq.broker.half_messages import Half
from stratamq.broker.half_table import HalfTable


def test_a_chain_is_finished_as_a_whole():
    table = HalfTable(0, limit=10)
    table.copied(Half(0, 0), 5)
    table.copied(Half(5, 0), 9)
    assert table.finish(Half(5, 0)) == 9
    assert all(table.is_finished(half) for half in (Half(0, 0), Half(5, 0), Half(9, 0)))
    assert not table.is_finished(Half(6, 6))


def test_a_chain_is_one_open_half_when_it_is_read_back():
    table = HalfTable(3, limit=10)
    table.finish_at(4)
    found = [Half(3, 3), Half(4, 4), Half(5, 3), Half(6, 1), Half(7, 1), Half(8, 8)]
    assert [table.learn(half) for half in found] == [True, False, False, True, False, True]
    assert [table.newest(Half(3, 3)), table.newest(Half(6, 1)), table.newest(Half(8, 8))] == [5, 7, 8]


def test_a_mark_for_any_copy_holds_for_later_ones():
    table = HalfTable(0, limit=10)
    table.finish_at(2)
    assert [table.learn(half) for half in (Half(0, 0), Half(2, 0), Half(4, 0))] == [True, False, False]
    assert table.is_finished(Half(0, 0))


def test_the_oldest_that_were_passed_are_forgotten():
    table = HalfTable(0, limit=3)
    for offset in range(5):
        table.finish(Half(offset, offset))
    assert table.pass_finished()
    assert (table.position, table.finished_count) == (5, 0)
    assert [table.is_finished(Half(offset, offset)) for offset in range(5)] == [False, False, True, True, True]
    for first in range(10, 15):
        table.copied(Half(first, first), first + 100)
    assert [table.newest(Half(first, first)) for first in range(10, 15)] == [10, 11, 112, 113, 114]
