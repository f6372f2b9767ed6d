"""Rates of one object: the difference of its last two samples, by the clock that the caller gives."""

from __future__ import annotations

from stratamq.broker.amqp.traffic import Octets, Traffic
from stratamq.testing.clock import ManualClock


def test_rates_come_with_the_second_sample_and_go_when_nothing_moves():
    clock = ManualClock()
    octets = Octets()
    octets.recv_oct, octets.recv_cnt = 1_000_000, 10
    octets.sample(octets.values(), clock.monotonic_ms())
    assert octets.rates() == {}
    octets.recv_oct += 500
    clock.advance(5_000)
    octets.sample(octets.values(), clock.monotonic_ms())
    assert octets.rates() == {"recv_oct": 100.0, "recv_cnt": 0.0, "send_oct": 0.0, "send_cnt": 0.0}
    clock.advance(5_000)
    octets.sample(octets.values(), clock.monotonic_ms())
    assert octets.rates() == {}


def test_time_without_movement_does_not_count_for_the_next_rate():
    traffic = Traffic()
    for now_ms in (0, 5_000, 10_000):
        traffic.sample(traffic.values(0, 0), now_ms)
    traffic.publish = 10
    traffic.sample(traffic.values(10, 0), 15_000)
    assert traffic.rates()["publish"] == 2.0
    assert traffic.rates()["messages_ready"] == 2.0


def test_what_is_handed_out_in_any_way_adds_up_and_gauges_may_fall():
    traffic = Traffic()
    traffic.sample(traffic.values(8, 0), 0)
    traffic.deliver, traffic.deliver_no_ack, traffic.get, traffic.get_no_ack = 1, 2, 3, 4
    assert traffic.deliver_get == 10
    traffic.sample(traffic.values(3, 1), 1_000)
    rates = traffic.rates()
    assert (rates["deliver_get"], rates["get_no_ack"]) == (10.0, 4.0)
    assert (rates["messages"], rates["messages_ready"], rates["messages_unacknowledged"]) == (-4.0, -5.0, 1.0)


def test_a_second_sample_at_the_same_time_is_passed_over():
    traffic = Traffic()
    traffic.sample(traffic.values(0, 0), 7)
    traffic.publish = 1
    traffic.sample(traffic.values(0, 0), 7)
    assert traffic.rates() == {}
    traffic.sample(traffic.values(0, 0), 1_007)
    assert traffic.rates()["publish"] == 1.0


def test_values_are_in_the_order_of_their_names():
    traffic = Traffic()
    for number, name in enumerate(Traffic.COUNTERS):
        setattr(traffic, name, number + 1)
    named = dict(zip(Traffic.NAMES, traffic.values(100, 7), strict=True))
    assert all(named[name] == getattr(traffic, name) for name in (*Traffic.COUNTERS, "deliver_get"))
    assert (named["messages"], named["messages_ready"], named["messages_unacknowledged"]) == (107, 100, 7)
