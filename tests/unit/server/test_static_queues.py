"""Sending to and reading from static topics: one broker, and two of which one has taken a queue over."""

import pytest

from stratamq.broker.neighbours import NeighbourAnswer, NoNeighbours
from stratamq.config import BrokerConfig
from stratamq.protocols.remoting.bodies import encode_batch
from tests.unit.server.harness import FakePeer, Harness, records
from tests.unit.server.test_static_requests import CREATE

MOVED, AGAIN, NOT_FOUND, NOT_LEADER = 21, 20, 19, 501


class Beside:
    """The other broker, asked directly: `Neighbours` without sockets."""

    def __init__(self):
        self.brokers = {}
        self.asked = []

    def ask(self, broker_name, code, ext, answered):
        self.asked.append((broker_name, code))
        peer = FakePeer()
        answer = self.brokers[broker_name].ask(code, dict(ext), peer=peer)
        answered(NeighbourAnswer(answer.code, answer.remark, answer.ext, answer.body))


def item(gen=0, queue_id=0, bname="a", logic=0, **rest):
    return {"gen": gen, "queueId": queue_id, "bname": bname, "logicOffset": logic, **rest}


def give(harness, queues, *, epoch):
    """What an operator's tool tells a broker of topic S."""
    name = harness.broker.config.broker_name
    body = {"topic": "S", "bname": name, "totalQueues": 4, "epoch": epoch, "hostedQueues": queues}
    answer = harness.ask(513, CREATE, body)
    assert (answer.code, answer.remark) == (0, None)


@pytest.fixture
def pair(tmp_path):
    beside = Beside()
    for name in "ab":
        harness = Harness(tmp_path / name, BrokerConfig(broker_name=name))
        harness.broker.neighbours = beside
        harness.heartbeat(g="S:*")
        beside.brokers[name] = harness
    yield beside.brokers["a"], beside.brokers["b"], beside
    for harness in beside.brokers.values():
        harness.close()


@pytest.fixture
def one(pair):
    """A broker that leads logical queues 0 (in its queue 1) and 2 (in its queue 0, from 1000 on)."""
    harness = pair[0]
    give(harness, {0: [item(0, 1)], 2: [item(0, 0, logic=1000)]}, epoch=1)
    return harness


@pytest.fixture
def moved(pair):
    """Queue 0 of S holds three messages at a and, from 10000 on, two at b, which leads it now."""
    a, b, beside = pair
    give(a, {0: [item(0, 1)]}, epoch=1)
    for number in range(3):
        a.clock.advance(10)
        assert a.send("S", body=f"old {number}".encode()).code == 0
    both = [item(0, 1), item(1, 0, "b", 10_000)]
    give(b, {0: both}, epoch=2)
    give(a, {0: both}, epoch=2)
    b.clock.advance(1000)
    for number in range(2):
        b.clock.advance(10)
        assert b.send("S", body=f"new {number}".encode()).code == 0
    return a, b, beside


def offset(harness, code, queue_id, **ext):
    answer = harness.ask(code, {"topic": "S", "queueId": str(queue_id)} | ext)
    assert (answer.code, answer.remark) == (0, None)
    return int(answer.ext.get("offset") or answer.ext["timestamp"])


def bodies(answer):
    return [bytes(record.body) for record in records(answer.body)]


# --- one broker ---


def test_a_send_is_told_the_logical_queue_and_offset(one):
    for number in range(2):
        answer = one.send("S", e="2")
        assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", str(1000 + number))
    assert one.send("S", e="0").ext["queueOffset"] == "0"
    assert (one.store.max_offset("S", 0), one.store.max_offset("S", 1)) == (2, 1)


def test_a_send_to_any_queue_goes_to_one_that_is_led_here(one):
    answer = one.send("S", e="-1")
    assert (answer.code, answer.ext["queueId"]) == (0, "0")


def test_a_batch_is_told_its_first_logical_offset(one):
    body = encode_batch([(0, b"x", ""), (0, b"y", "")])
    answer = one.send("S", body=body, e="2", m="true")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "1000")


def test_a_half_message_keeps_the_offset_that_ends_its_transaction(one):
    answer = one.send("S", e="2", f="4", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")


def test_a_pull_reads_logical_offsets(one):
    for number in range(3):
        one.send("S", body=b"%d" % number, e="2")
    answer = one.pull("S", queueId=2, queueOffset=1001)
    assert (answer.code, bodies(answer)) == (0, [b"1", b"2"])
    told = {name: answer.ext[name] for name in ("nextBeginOffset", "minOffset", "maxOffset", "offsetDelta")}
    assert told == {"nextBeginOffset": "1003", "minOffset": "1000", "maxOffset": "1003", "offsetDelta": "1000"}
    below = one.pull("S", queueId=2, queueOffset=7)
    assert (below.code, below.ext["nextBeginOffset"]) == (MOVED, "1000")
    above = one.pull("S", queueId=2, queueOffset=5000)
    assert (above.code, above.ext["nextBeginOffset"]) == (MOVED, "1003")
    assert one.pull("S", queueId=2, queueOffset=1003).code == NOT_FOUND


def test_a_waiting_pull_is_woken_by_a_send(one):
    one.peer.take()
    one.request(11, one.pull_ext("S", queueId=2, queueOffset=1000, sysFlag=6))
    assert one.peer.take() == []
    other = FakePeer()
    one.request(310, {"a": "p", "b": "S", "c": "", "d": "4", "e": "2", "f": "0", "g": "1", "h": "0"}, b"x", peer=other)
    (answer,) = one.peer.take()
    assert (answer.code, answer.ext["nextBeginOffset"], bodies(answer)) == (0, "1001", [b"x"])


def test_a_waiting_pull_is_told_when_its_queue_has_moved(one):
    one.peer.take()
    one.request(11, one.pull_ext("S", queueId=0, queueOffset=0, sysFlag=6))
    assert one.peer.take() == []
    other = FakePeer()
    body = {
        "topic": "S",
        "bname": "a",
        "totalQueues": 4,
        "epoch": 9,
        "hostedQueues": {0: [item(0, 1), item(1, 0, "b", 100)]},
    }
    assert one.ask(513, CREATE, body, peer=other).code == 0
    (answer,) = one.peer.take()
    assert answer.code == NOT_LEADER


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (30, {}),
        (31, {}),
        (32, {}),
        (29, {"timestamp": "5"}),
        (14, {"consumerGroup": "g"}),
        (15, {"consumerGroup": "g", "commitOffset": "3"}),
    ],
)
def test_who_does_not_lead_a_queue_says_so(one, code, ext):
    answer = one.ask(code, {"topic": "S", "queueId": "3"} | ext)
    assert (answer.code, "S-3 is not led by broker a" in answer.remark) == (NOT_LEADER, True)


def test_sends_and_pulls_to_who_does_not_lead_are_refused(one):
    assert one.send("S", e="1").code == NOT_LEADER
    assert one.pull("S", queueId=1).code == NOT_LEADER


def test_physical_queues_stay_within_reach(one):
    one.send("S", e="2")
    assert offset(one, 30, 0, lo="false") == 1
    assert one.pull("S", queueId=0, lo="false").code == 0
    assert "offsetDelta" not in one.pull("S", queueId=0, lo="false").ext


def test_ends_and_times_are_logical(one):
    before = one.clock.wall_ms()
    for _ in range(2):
        one.clock.advance(100)
        one.send("S", e="2")
    assert (offset(one, 30, 2), offset(one, 31, 2)) == (1002, 1000)
    assert offset(one, 32, 2) == before + 100
    assert offset(one, 29, 2, timestamp=str(before + 150)) == 1001


def test_a_groups_offset_is_kept_by_physical_queue(one):
    assert offset(one, 15 - 1, 0, consumerGroup="g") == 0
    update = {"topic": "S", "queueId": "2", "consumerGroup": "g", "commitOffset": "1007"}
    assert one.ask(15, update).code == 0
    assert one.broker.offsets.find("g", "S", 0) == 7
    assert offset(one, 14, 2, consumerGroup="g") == 1007
    assert one.ask(14, {"topic": "S", "queueId": "2", "consumerGroup": "other"}).code == 22
    assert one.ask(15, update | {"commitOffset": "4"}).code == 29


def test_a_pull_commits_what_is_in_its_item(one):
    one.send("S", e="2")
    one.pull("S", queueId=2, queueOffset=1000, sysFlag=5, commitOffset=1000)
    assert one.broker.offsets.find("g", "S", 0) == 0


def test_static_topics_are_not_popped(one):
    ext = {"consumerGroup": "g", "topic": "S", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "1000"}
    rest = {"pollTime": "0", "bornTime": "0", "initMode": "0", "exp": "*", "expType": "TAG"}
    answer = one.ask(200050, ext | rest)
    assert (answer.code, "pulled, not popped" in answer.remark) == (3, True)


# --- two brokers ---


def test_a_consumer_reads_on_over_the_move(moved):
    _, b, beside = moved
    at, got, codes = 0, [], []
    for _ in range(6):
        answer = b.pull("S", queueOffset=at)
        codes.append(answer.code)
        got += [
            (record.queue_offset + int(answer.ext["offsetDelta"]), bytes(record.body))
            for record in records(answer.body)
        ]
        at = int(answer.ext["nextBeginOffset"])
        if answer.code == NOT_FOUND:
            break
    assert codes == [0, AGAIN, 0, NOT_FOUND]
    assert got == [(0, b"old 0"), (1, b"old 1"), (2, b"old 2"), (10_000, b"new 0"), (10_001, b"new 1")]
    assert at == 10_002
    assert beside.asked == [("a", 11), ("a", 11)]


def test_a_pull_in_the_gap_goes_on_at_the_new_queue(moved):
    answer = moved[1].pull("S", queueOffset=5000)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (AGAIN, "10000")


def test_a_pull_that_may_wait_does_not_at_a_queue_that_grows_no_more(moved):
    answer = moved[1].ask(11, moved[1].pull_ext("S", queueOffset=3, sysFlag=6))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (AGAIN, "10000")


def test_a_pull_is_filtered_where_it_is_read(moved):
    _, b, _ = moved
    assert bodies(b.pull("S", queueOffset=0, subscription="other")) == []
    b.heartbeat(h="S:*")
    b.broker.groups.get("h")
    assert bodies(b.pull("S", queueOffset=1, consumerGroup="h", sysFlag=0)) == [b"old 1", b"old 2"]


def test_ends_and_times_span_both(moved):
    a, b, _ = moved
    assert (offset(b, 31, 0), offset(b, 30, 0)) == (0, 10_002)
    first = offset(b, 32, 0)
    assert first == a.store.earliest_store_time("S", 1)
    assert offset(b, 29, 0, timestamp=str(first + 10)) == 1
    assert offset(b, 29, 0, timestamp=str(first - 5000)) == 0
    assert offset(b, 29, 0, timestamp=str(b.store.earliest_store_time("S", 0))) == 10_000


def test_offsets_are_kept_where_they_lie(moved):
    a, b, beside = moved
    update = {"topic": "S", "queueId": "0", "consumerGroup": "g", "commitOffset": "2"}
    assert b.ask(15, update).code == 0
    assert (a.broker.offsets.find("g", "S", 1), b.broker.offsets.find("g", "S", 0)) == (2, None)
    assert offset(b, 14, 0, consumerGroup="g") == 2
    assert b.ask(15, update | {"commitOffset": "10001"}).code == 0
    assert b.broker.offsets.find("g", "S", 0) == 1
    beside.asked.clear()
    assert offset(b, 14, 0, consumerGroup="g") == 10_001
    assert beside.asked == []
    assert b.ask(14, {"topic": "S", "queueId": "0", "consumerGroup": "nobody"}).code == 22


def test_a_one_way_report_of_an_offset_elsewhere_is_not_answered(moved):
    a, b, _ = moved
    b.peer.take()
    b.request(15, {"topic": "S", "queueId": "0", "consumerGroup": "g", "commitOffset": "1"}, one_way=True)
    assert (b.peer.take(), a.broker.offsets.find("g", "S", 1)) == ([], 1)


def test_while_the_new_begin_is_not_decided_nothing_is_read_there(pair):
    a, b, _ = pair
    give(a, {0: [item(0, 1)]}, epoch=1)
    a.send("S")
    both = [item(0, 1), item(1, 0, "b", -1)]
    give(b, {0: both}, epoch=2)
    give(a, {0: both}, epoch=2)
    answer = b.send("S")
    assert (answer.code, answer.ext["queueOffset"]) == (0, "-1")
    assert offset(b, 30, 0) == 1
    answer = b.pull("S", queueOffset=1)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (NOT_FOUND, "1")
    give(b, {0: [item(0, 1), item(1, 0, "b", 10_000)]}, epoch=2)
    assert b.pull("S", queueOffset=1).ext["nextBeginOffset"] == "10000"
    assert offset(b, 30, 0) == 10_001


def test_nothing_behind_the_end_of_an_item_is_given(moved):
    _, b, _ = moved
    give(b, {0: [item(0, 1, endOffset=2), item(1, 0, "b", 10_000)]}, epoch=3)
    assert bodies(b.pull("S", queueOffset=0)) == [b"old 0", b"old 1"]
    assert b.pull("S", queueOffset=2).ext["nextBeginOffset"] == "10000"


def test_a_neighbour_that_refuses_is_quoted(moved):
    a, b, _ = moved
    a.broker.groups.get("g").consume_enable = False
    answer = b.pull("S", queueOffset=0)
    assert (answer.code, "may not consume" in answer.remark) == (16, True)


def test_a_neighbour_that_is_not_there_is_named(moved):
    _, b, _ = moved
    b.broker.neighbours = NoNeighbours()
    for code, ext in ((11, b.pull_ext("S")), (31, {"topic": "S", "queueId": "0"})):
        answer = b.ask(code, ext)
        assert (answer.code, answer.remark) == (1, "broker a is not known here")
    assert b.peer.unanswered == 0


def test_a_queue_that_came_back_is_read_in_order(moved):
    a, b, _ = moved
    three = [item(0, 1), item(1, 0, "b", 10_000), item(2, 0, "a", 20_000)]
    give(a, {0: three}, epoch=3)
    give(b, {0: three}, epoch=3)
    assert a.send("S", body=b"back").ext["queueOffset"] == "20000"
    at, got = 0, []
    for _ in range(8):
        answer = a.pull("S", queueOffset=at)
        got += bodies(answer)
        at = int(answer.ext["nextBeginOffset"])
    assert got == [b"old 0", b"old 1", b"old 2", b"new 0", b"new 1", b"back"]
    assert at == 20_001
