"""A broken connection: a dead leader is replaced without waiting, and a false alarm changes nothing."""

from __future__ import annotations

from tests.simulation.deck import TIMES, Deck


def leading_deck() -> Deck:
    deck = Deck(["n1", "n2", "n3"])
    deck.expire("n1")
    deck.deliver()
    assert deck.cores["n1"].serves
    deck.beat("n1")
    deck.deliver()
    assert deck.cores["n2"].leader == deck.cores["n3"].leader == "n1"
    return deck


def test_a_leader_whose_connections_break_is_replaced_before_an_election_timeout() -> None:
    deck = leading_deck()
    deck.crash("n1")
    for name in ("n2", "n3"):
        deck.cores[name].lost("n1")
    before = deck.cores["n2"].now_ms
    while not any(core.is_leader for core in deck.cores.values()):
        assert deck.cores["n2"].now_ms < before + TIMES.election_min_ms
        deck.beat("n2")
        deck.deliver()


def test_a_false_alarm_deposes_nobody() -> None:
    deck = leading_deck()
    term = deck.cores["n1"].term
    deck.cores["n2"].lost("n1")
    for _ in range(4):
        deck.beat("n2")
        deck.deliver()
        deck.beat("n1")
        deck.deliver()
    assert deck.cores["n1"].serves
    assert {core.term for core in deck.cores.values()} == {term}


def test_other_connections_do_not_matter() -> None:
    deck = leading_deck()
    deadline = deck.cores["n2"]._election_deadline_ms
    deck.cores["n2"].lost("n3")
    deck.cores["n2"].lost("")
    assert deck.cores["n2"]._election_deadline_ms == deadline
