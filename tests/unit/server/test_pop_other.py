"""Check-points and acks that another broker wrote: they come out of its timer, in eight queues of the revive topic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratamq.formats.properties import encode_properties
from stratamq.logstore.types import Message
from tests.unit.server.harness import Harness
from tests.unit.server.test_pop import INVISIBLE, ack, bodies, fill, handles, later, pop

GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.fixture
def harness(tmp_path):
    harness = Harness(tmp_path)
    fill(harness, 4)
    assert harness.broker.groups.get("g")
    harness.broker.offsets.commit("g", "T", 0, 4)
    yield harness
    harness.close()


def restart(harness: Harness, *, is_saved: bool = True) -> Harness:
    """Stop and start over the same directory."""
    if is_saved:
        for file, value in harness.broker.unsaved(with_offsets=True):
            file.store(value)
    harness.close()
    return Harness(harness.directory, clock=harness.clock)


def put(harness: Harness, tag: str, queue: int, body: dict[str, Any], *, is_timed: bool = True) -> None:
    """A record of the revive topic as RocketMQ's timer delivers it."""
    now = str(harness.clock.wall_ms())
    properties = {"TAGS": tag} | ({"TIMER_OUT_MS": now, "TIMER_DELIVER_MS": now} if is_timed else {})
    data = json.dumps(body).encode()
    host = harness.peer.born_host
    message = Message(
        topic=TOPIC,
        queue_id=queue,
        body=data,
        properties=encode_properties(properties),
        born_timestamp=harness.clock.wall_ms(),
        born_host=host,
    )
    harness.store.append((message,))
    harness.store.commit()


def checkpoint(harness: Harness, queue: int, pop_ms: int, **rest: Any) -> None:
    body = {"so": 0, "pt": pop_ms, "it": INVISIBLE, "bm": 0, "n": 4, "q": 0, "t": "T", "c": "g", "ro": 0}
    put(harness, "ck", queue, body | {"d": [0, 1, 2, 3], "bn": "broker-a"}, **rest)


def their_ack(harness: Harness, queue: int, pop_ms: int, offset: int) -> None:
    put(harness, "ack", queue, {"ao": offset, "so": 0, "c": "g", "t": "T", "q": 0, "pt": pop_ms, "bn": "broker-a"})


def their_handle(pop_ms: int, offset: int) -> tuple[str, int, str]:
    return "T", offset, f"0 {pop_ms} {INVISIBLE} 3 0 broker-a 0 {offset}"


def given_back(harness: Harness) -> list[bytes]:
    """What comes again in the time that another broker's acks may take to come."""
    for _ in range(8):
        later(harness, 1_000)
    answer = pop(harness)
    return bodies(answer) if answer.code == 0 else []


@pytest.mark.parametrize("queue", [0, 3])
def test_what_a_timer_brings_is_given_back_but_for_what_was_acknowledged(harness, queue):
    assert pop(harness).code == 210
    pop_ms = harness.clock.wall_ms()
    later(harness, INVISIBLE - 1_000)
    checkpoint(harness, queue, pop_ms)
    later(harness, 1_000)
    later(harness, 500)  # its end is over, and acks are still to come
    assert pop(harness).code == 210
    their_ack(harness, queue, pop_ms, 1)
    assert given_back(harness) == [b"0", b"2", b"3"]


def test_records_of_others_between_own_ones_are_read(harness):
    fill(harness, 2)
    (first, _), pop_ms = handles(pop(harness)), harness.clock.wall_ms()
    checkpoint(harness, 0, pop_ms - 1)
    assert ack(harness, first).code == 0
    later(harness, INVISIBLE)
    assert given_back(harness) == [b"1", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_ack_before_its_check_point_comes_out_of_the_timer_counts(harness, is_restarted):
    harness.broker.pop.timed = lambda: 1
    pop_ms = harness.clock.wall_ms()
    for offset in (0, 2):
        assert ack(harness, their_handle(pop_ms, offset)).code == 0
    if is_restarted:
        later(harness, 1_000)
        harness = restart(harness)
    later(harness, INVISIBLE - 1_000)
    checkpoint(harness, 5, pop_ms)
    assert given_back(harness) == [b"1", b"3"]
    harness.close()


def test_an_ack_counts_though_the_timer_counts_nothing(harness):
    """What was popped before the start may be another broker's, whose counts of its timer a kill has lost."""
    pop_ms = harness.clock.wall_ms()
    later(harness, 1_000)
    harness = restart(harness)
    harness.broker.pop.timer_ms = lambda: harness.clock.wall_ms()
    assert harness.broker.pop.timed() == 0
    for offset in (0, 2):
        assert ack(harness, their_handle(pop_ms, offset)).code == 0
    later(harness, INVISIBLE - 2_000)
    checkpoint(harness, 5, pop_ms)
    assert given_back(harness) == [b"1", b"3"]
    harness.close()


def test_acks_ahead_of_nothing_are_forgotten(harness):
    harness.broker.pop.timed = lambda: 1
    assert ack(harness, their_handle(harness.clock.wall_ms(), 0)).code == 0
    assert harness.broker.pop.open_count == 1
    later(harness, INVISIBLE)
    assert given_back(harness) == []
    assert harness.broker.pop.open_count == 0


def test_without_anything_in_the_timer_an_unknown_ack_leaves_nothing(harness):
    assert ack(harness, their_handle(harness.clock.wall_ms(), 0)).code == 0
    assert (harness.broker.pop.open_count, harness.store.max_offset(TOPIC, 0)) == (0, 0)


@pytest.mark.parametrize("is_saved", [False, True])
def test_open_ones_of_all_queues_are_read_back(harness, is_saved):
    pop_ms = harness.clock.wall_ms()
    checkpoint(harness, 5, pop_ms)
    later(harness, 1_000)
    harness = restart(harness, is_saved=is_saved)
    harness.broker.offsets.commit("g", "T", 0, 4)
    later(harness, INVISIBLE)
    assert given_back(harness) == [b"0", b"1", b"2", b"3"]
    assert harness.broker.offsets.find(GROUP, TOPIC, 5) == 0
    harness = restart(harness)
    later(harness, INVISIBLE)
    assert given_back(harness) == [b"0", b"1", b"2", b"3"]  # from the retry topic: they were not acknowledged
    later(harness, INVISIBLE)
    harness.close()


def test_a_timer_that_is_behind_may_still_bring_acks(harness):
    pop_ms = harness.clock.wall_ms()
    reached = pop_ms
    harness.broker.pop.timer_ms = lambda: reached
    checkpoint(harness, 1, pop_ms)
    later(harness, INVISIBLE)
    assert given_back(harness) == []
    their_ack(harness, 1, pop_ms, 3)
    reached = pop_ms + INVISIBLE + 1_000
    assert given_back(harness) == [b"0", b"1", b"2"]


def test_positions_are_those_of_the_last_record_that_is_not_needed(harness):
    fill(harness, 2)
    first = handles(pop(harness, maxMsgNums=1))[0]
    pop(harness, maxMsgNums=1)
    later(harness, 1_000)
    assert harness.broker.offsets.find(GROUP, TOPIC, 0) is None
    assert ack(harness, first).code == 0
    later(harness, 1_000)
    assert harness.broker.offsets.find(GROUP, TOPIC, 0) == 0


def test_a_position_of_an_earlier_version_names_the_first_record_that_is_needed(harness):
    pop_ms = harness.clock.wall_ms()
    checkpoint(harness, 0, pop_ms, is_timed=False)
    harness.broker.offsets.commit(GROUP, TOPIC, 0, 0)
    harness = restart(harness)
    later(harness, INVISIBLE)
    assert given_back(harness) == [b"0", b"1", b"2", b"3"]
    harness.close()
