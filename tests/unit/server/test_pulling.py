"""Pulls: what is found, what is said otherwise, who waits and who is woken."""

from __future__ import annotations

import pytest

from stratamq.broker.groups import GroupConfig
from stratamq.config import BrokerConfig
from tests.unit.server.harness import FakePeer, Harness, records


def offsets(answer):
    return tuple(int(answer.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


def test_records_come_as_they_lie_in_the_log(harness):
    for number in range(5):
        harness.send(body=b"m%d" % number)
    answer = harness.pull(queueOffset=1, maxMsgNums=3)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert [record.body for record in records(answer.body)] == [b"m1", b"m2", b"m3"]
    assert [record.queue_offset for record in records(answer.body)] == [1, 2, 3]
    assert offsets(answer) == (4, 0, 5)
    assert answer.ext["suggestWhichBrokerId"] == "0"
    assert len(records(harness.pull(maxMsgBytes=1).body)) == 1


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"), [(3, 19, 3), (4, 21, 3), (10**15, 21, 3), (-1, 21, 0), (-(2**62), 21, 0)]
)
def test_offsets_outside_of_a_queue(harness, offset, code, next_offset):
    for _ in range(3):
        harness.send()
    answer = harness.pull(queueOffset=offset)
    assert answer.code == code
    assert offsets(answer) == (next_offset, 0, 3)
    assert answer.body == b""


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (5, 21)])
def test_an_empty_queue(harness, offset, code):
    harness.broker.topics.ensure("T", queues=1)
    answer = harness.pull(queueOffset=offset)
    assert (answer.code, offsets(answer)) == (code, (0, 0, 0))


def test_tags_are_filtered_and_what_was_examined_is_skipped(harness):
    for tag in "ABAC":
        harness.send(properties=f"TAGS\x01{tag}\x02", body=tag.encode())
    answer = harness.pull(subscription="A || C")
    assert [record.body for record in records(answer.body)] == [b"A", b"A", b"C"]
    answer = harness.pull(subscription="X")
    assert (answer.code, offsets(answer)) == (20, (4, 0, 4))
    assert harness.pull(subscription=" || ").code == 23


def test_checks_in_their_order(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(auto_create_groups=False))
    topics = harness.broker.topics
    assert harness.pull().code == 26
    harness.broker.groups.put(GroupConfig(group_name="g", consume_enable=False))
    assert harness.pull().code == 16
    harness.broker.groups.put(GroupConfig(group_name="g"))
    assert harness.pull().code == 17
    topics.ensure("T", queues=2, perm=2)
    assert harness.pull(queueId=9).code == 16
    topics.ensure("R", queues=2)
    assert harness.pull("R", queueId=2).code == 29
    assert harness.pull("R", queueId=-1).code == 29
    assert harness.pull("R", maxMsgNums=0).code == 29
    assert harness.pull("R", expressionType="SQL92").code == 23
    assert harness.pull("R", sysFlag=0).code == 24
    assert harness.pull("R", subscription=None, queueOffset=None).code == 1
    harness.close()
    closed = Harness(tmp_path, BrokerConfig(permission=2))
    assert closed.pull("R").code == 16
    closed.close()


def test_the_heartbeats_subscription_is_used_when_the_pull_has_none(harness):
    for tag in "AB":
        harness.send(properties=f"TAGS\x01{tag}\x02", body=tag.encode())
    harness.heartbeat(g="T:B")
    assert [record.body for record in records(harness.pull(sysFlag=0).body)] == [b"B"]
    assert harness.pull(sysFlag=0, subVersion=1).code == 0
    assert harness.pull(sysFlag=0, subVersion=2).code == 25
    harness.broker.topics.ensure("U", queues=1)
    assert harness.pull("U", sysFlag=0).code == 24


def test_broadcasting_may_be_forbidden(harness):
    harness.broker.topics.ensure("T", queues=1)
    harness.broker.groups.put(GroupConfig(group_name="g", consume_broadcast_enable=False))
    subscription = {"topic": "T", "subString": "*"}
    entry = {"groupName": "g", "messageModel": "BROADCASTING", "subscriptionDataSet": [subscription]}
    harness.ask(34, {}, {"clientID": "c", "consumerDataSet": [entry]})
    assert harness.pull(sysFlag=0).code == 16


def test_a_pull_commits_an_offset_when_it_says_so(harness):
    harness.send()
    harness.pull(commitOffset=1)
    assert harness.broker.offsets.find("g", "T", 0) is None
    harness.pull(commitOffset=1, sysFlag=5)
    assert harness.broker.offsets.find("g", "T", 0) == 1


# --- waiting ---


def test_a_pull_waits_for_a_message(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    assert harness.peer.take() == []
    assert len(harness.broker.waiting) == 1
    other = FakePeer()
    harness.request(310, _send_ext(), b"new", peer=other)
    (answer,) = harness.peer.take()
    assert (answer.code, [record.body for record in records(answer.body)]) == (0, [b"new"])
    assert len(harness.broker.waiting) == 0


def _send_ext(tag: str = "", queue_id: int = 0) -> dict[str, str]:
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0"}
    return ext | ({"i": f"TAGS\x01{tag}\x02"} if tag else {})


def test_only_matching_messages_of_its_queue_wake_a_pull(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6, subscription="A"))
    other = FakePeer()
    harness.request(310, _send_ext("B"), b"b", peer=other)
    harness.request(310, _send_ext("A", 1), b"elsewhere", peer=other)
    assert harness.peer.take() == []
    harness.request(310, _send_ext("A"), b"a", peer=other)
    (answer,) = harness.peer.take()
    assert [record.body for record in records(answer.body)] == [b"a"]


def test_a_pull_that_waited_in_vain_is_answered_at_its_time(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6, suspendTimeoutMillis=15000))
    harness.clock.advance(14_999)
    harness.pulls.expire()
    assert harness.peer.take() == []
    harness.clock.advance(1)
    harness.pulls.expire()
    (answer,) = harness.peer.take()
    assert (answer.code, offsets(answer)) == (19, (1, 0, 1))


@pytest.mark.parametrize("ext", [{"sysFlag": 4}, {"sysFlag": 6, "suspendTimeoutMillis": 0}])
def test_a_pull_that_may_not_wait_is_answered_at_once(harness, ext):
    harness.send()
    assert harness.pull(queueOffset=1, **ext).code == 19


def test_without_long_polling_a_pull_waits_shortly(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(long_polling=False))
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6, suspendTimeoutMillis=15000))
    harness.clock.advance(1000)
    harness.pulls.expire()
    assert harness.peer.take()[0].code == 19
    harness.close()


def test_too_many_waiting_pulls_are_told_to_come_again(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(waiting_pulls_max=1))
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    answer = harness.pull(queueOffset=1, sysFlag=6)
    assert (answer.code, "[REJECTREQUEST]" in (answer.remark or "")) == (2, True)
    harness.close()


def test_a_peer_that_takes_nothing_gets_its_messages_later(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    harness.peer.is_clogged = True
    harness.request(310, _send_ext(), b"new", peer=FakePeer())
    assert harness.peer.take() == []
    harness.peer.is_clogged = False
    harness.peer.deferred.pop()()
    assert records(harness.peer.take()[0].body)[0].body == b"new"


def test_a_gone_peer_is_forgotten(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    harness.broker.drop_connection(harness.peer)
    assert len(harness.broker.waiting) == 0
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    harness.peer.is_closed = True
    harness.request(310, _send_ext(), b"new", peer=FakePeer())
    assert harness.peer.take() == []


def test_a_stopping_broker_refuses_who_waits(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    harness.broker.is_accepting = False
    harness.pulls.release_all()
    assert harness.peer.take()[0].code == 14
    assert harness.pull(queueOffset=1, sysFlag=6).code == 14


def test_a_lost_wake_up_is_made_good(harness):
    harness.send()
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6))
    harness.pulls.check_behind()
    assert harness.peer.take() == []
    harness.committer.on_arrivals = lambda arrivals: None
    harness.request(310, _send_ext(), b"new", peer=FakePeer())
    assert harness.peer.take() == []
    harness.pulls.check_behind()
    assert records(harness.peer.take()[0].body)[0].body == b"new"


def test_who_is_far_behind_is_sent_to_a_slave_where_slaves_are_read(harness):
    for _ in range(5):
        harness.send(body=bytes(500))
    harness.broker.groups.put(GroupConfig(group_name="g", broker_id=0, which_broker_when_consume_slowly=7))

    def suggested(offset: int) -> str:
        return harness.pull(queueOffset=offset, maxMsgNums=1).ext["suggestWhichBrokerId"]

    assert {suggested(offset) for offset in range(5)} == {"0"}  # nobody is
    harness.broker.replica.far_behind_bytes = 1000
    assert [suggested(offset) for offset in range(6)] == ["7", "7", "7", "0", "0", "0"]
