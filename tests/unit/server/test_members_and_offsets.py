"""Heartbeats, membership, consumer offsets, queue locks."""

from __future__ import annotations

import json

import pytest

from stratamq.broker.groups import GroupConfig
from stratamq.config import BrokerConfig
from tests.unit.server.harness import FakePeer, Harness


def test_a_heartbeat_makes_group_and_retry_topic(harness):
    answer = harness.heartbeat(g="T")
    assert answer.code == 0
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert harness.broker.groups.find("g") is not None
    assert harness.broker.topics.get("%RETRY%g").queues == 1
    answer = harness.ask(38, {"consumerGroup": "g"})
    assert json.loads(answer.body) == {"consumerIdList": ["c"]}
    assert harness.broker.producers.groups().keys() == {"p"}


def test_members_are_told_when_one_joins_or_leaves(harness):
    one, two = FakePeer(1), FakePeer(2)
    harness.heartbeat("one", peer=one, g="T")
    harness.heartbeat("two", peer=two, g="T")
    one.notified.clear()
    two.notified.clear()
    harness.heartbeat("one", peer=one, g="T")
    assert one.notified == two.notified == []
    assert harness.ask(35, {"clientID": "two", "producerGroup": "p", "consumerGroup": "g"}, peer=two).code == 0
    assert one.notified == [(40, {"consumerGroup": "g"})]
    assert two.notified == []
    harness.heartbeat("two", peer=two, g="T")
    one.notified.clear()
    harness.members.notify_groups(harness.broker.drop_connection(two))
    assert one.notified == [(40, {"consumerGroup": "g"})]
    assert json.loads(harness.ask(38, {"consumerGroup": "g"}).body) == {"consumerIdList": ["one"]}


def test_who_is_not_told(harness):
    one, two = FakePeer(1), FakePeer(2)
    harness.broker.groups.put(GroupConfig(group_name="quiet", notify_consumer_ids_changed_enable=False))
    harness.heartbeat("one", peer=one, quiet="T")
    harness.heartbeat("two", peer=two, quiet="T")
    for peer, client in ((one, "one"), (two, "two")):
        entry = {"groupName": "all", "messageModel": 0, "subscriptionDataSet": []}
        harness.ask(34, {}, {"clientID": client, "consumerDataSet": [entry]}, peer=peer)
    harness.members.notify_groups(harness.broker.drop_connection(two))
    assert one.notified == []


def test_a_silent_client_is_dropped(harness):
    one, two = FakePeer(1), FakePeer(2)
    harness.heartbeat("one", peer=one, g="T")
    harness.clock.advance(60_000)
    harness.heartbeat("two", peer=two, g="T")
    two.notified.clear()
    harness.clock.advance(60_001)
    harness.members.notify_groups(harness.broker.expire_clients())
    assert two.notified == [(40, {"consumerGroup": "g"})]


def test_a_group_without_members(harness):
    assert harness.ask(38, {"consumerGroup": "g"}).code == 1
    assert harness.ask(35, {"clientID": "c", "producerGroup": "", "consumerGroup": "g"}).code == 0


def test_a_heartbeat_without_subscriptions_keeps_those_known(harness):
    harness.heartbeat(g="T:A")
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g"}], "withoutSub": True, "heartbeatFingerprint": 5}
    assert harness.ask(34, {}, body).code == 0
    group = harness.broker.consumers.find("g")
    assert group is not None
    assert group.subscriptions["T"].expression == "A"


def test_a_heartbeat_too_large_is_refused(harness):
    groups = [{"groupName": f"g{number}"} for number in range(5000)]
    assert harness.ask(34, {}, {"clientID": "c", "consumerDataSet": groups}).code == 1
    assert harness.ask(34, {}, {"clientID": "c" * 2000}).code == 1
    assert len(harness.broker.groups) == 0


def test_a_group_that_may_not_be_made(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(auto_create_groups=False))
    assert harness.heartbeat(g="T").code == 26
    harness.close()


# --- offsets ---


def offset(harness, **ext):
    answer = harness.ask(14, {"consumerGroup": "g", "topic": "T", "queueId": 0} | ext)
    return answer.code, answer.ext.get("offset")


def test_a_new_group_on_a_young_topic_starts_at_zero(harness):
    harness.send()
    assert offset(harness) == (0, "0")
    assert offset(harness, setZeroIfNotFound="false") == (22, None)
    assert offset(harness, queueId=3) == (0, "0")


def test_a_new_group_on_a_queue_that_has_left_memory_starts_where_it_likes(harness, monkeypatch):
    harness.send()
    monkeypatch.setattr(type(harness.store), "is_in_memory", lambda self, physical_offset: False)
    assert offset(harness) == (22, None)
    monkeypatch.setattr(type(harness.store), "min_offset", lambda self, topic, queue_id: 5)
    assert offset(harness) == (22, None)


def test_offsets_are_kept(harness):
    harness.send()
    assert harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 5}).code == 0
    assert offset(harness) == (0, "5")
    harness.request(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3}, one_way=True)
    assert harness.peer.take() == []
    assert offset(harness) == (0, "3")
    assert harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": -1}).code == 29
    assert harness.ask(15, {"consumerGroup": "g", "topic": "X", "queueId": 0, "commitOffset": 5}).code == 17
    assert harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 99, "commitOffset": 5}).code == 29


def test_offsets_survive_a_restart(tmp_path):
    harness = Harness(tmp_path)
    harness.send()
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)
    assert harness.broker.unsaved(with_offsets=True) == []
    harness.close()
    again = Harness(tmp_path)
    assert offset(again) == (0, "1")
    assert again.broker.topics.get("T").queues == 4
    again.close()


def test_topics_lost_from_disk_come_back_from_the_store(tmp_path):
    harness = Harness(tmp_path)
    harness.send(e=2)
    harness.close()
    again = Harness(tmp_path)
    assert again.broker.topics_taken_back == ["T"]
    assert again.broker.topics.get("T").queues == 3
    assert again.pull(queueId=2).code == 0
    again.close()


# --- locks ---


def lock(harness, client, *queues, code=41):
    rows = [{"topic": "T", "brokerName": "broker-a", "queueId": queue} for queue in queues]
    answer = harness.ask(code, {}, {"consumerGroup": "g", "clientId": client, "mqSet": rows})
    assert answer.code == 0
    return [row["queueId"] for row in json.loads(answer.body)["lockOKMQSet"]] if code == 41 else None


def test_locks(harness):
    assert lock(harness, "one", 0, 1) == [0, 1]
    assert lock(harness, "two", 1, 2) == [2]
    lock(harness, "one", 1, code=42)
    assert lock(harness, "two", 1) == [1]
    harness.clock.advance(60_000)
    assert lock(harness, "two", 0, 1, 2) == [0, 1, 2]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{", b'{"clientID":"\\ud800","clientId":"\\ud800"}'])
def test_bad_bodies_are_answered(harness, body):
    for code in (34, 41, 42, 46):
        assert harness.ask(code, {}, body).code == 1
