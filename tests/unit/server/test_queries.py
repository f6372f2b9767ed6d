"""Messages by key, id and time, and what operators ask."""

from __future__ import annotations

import json

import pytest

from tests.unit.server.harness import records


def test_messages_by_key(harness):
    for number in range(3):
        harness.send(properties=f"KEYS\x01same k{number}\x02UNIQ_KEY\x01u{number}\x02", body=b"%d" % number)
    ext = {"topic": "T", "key": "same", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62}
    answer = harness.ask(12, ext)
    assert answer.code == 0
    assert {record.body for record in records(answer.body)} == {b"0", b"1", b"2"}
    assert int(answer.ext["indexLastUpdatePhyoffset"]) > 0
    assert len(records(harness.ask(12, ext | {"maxNum": 1}).body)) == 1
    unique = harness.ask(12, ext | {"key": "u1", "maxNum": 0, "_UNIQUE_KEY_QUERY": "true"})
    assert [record.body for record in records(unique.body)] == [b"1"]
    assert harness.ask(12, ext | {"key": "nothing"}).code == 22
    assert harness.ask(12, ext | {"topic": "U"}).code == 22
    assert harness.ask(12, ext | {"maxNum": 0}).code == 29


def test_a_message_by_its_physical_offset(harness):
    harness.send(body=b"one")
    harness.send(body=b"two")
    first = records(harness.pull().body)[0]
    answer = harness.ask(33, {"offset": first.size})
    assert [record.body for record in records(answer.body)] == [b"two"]
    for offset in (-1, 3, 10**12):
        assert harness.ask(33, {"offset": offset}).code == 1


def test_offsets_by_end_and_time(harness):
    start = harness.clock.wall_ms()
    for _ in range(3):
        harness.send()
        harness.clock.advance(1000)
    queue = {"topic": "T", "queueId": 0}
    assert harness.ask(30, queue).ext == {"offset": "3"}
    assert harness.ask(31, queue).ext == {"offset": "0"}
    assert harness.ask(32, queue).ext == {"timestamp": str(start)}
    assert harness.ask(32, {"topic": "X", "queueId": 0}).ext == {"timestamp": "-1"}
    assert harness.ask(29, queue | {"timestamp": start + 500}).ext == {"offset": "1"}
    assert harness.ask(29, queue | {"timestamp": start + 500, "boundaryType": "UPPER"}).ext == {"offset": "0"}
    assert harness.ask(29, queue | {"timestamp": start + 10**9}).ext == {"offset": "3"}


# --- operators ---


def test_a_topic_is_made_and_shown(harness):
    ext = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": 8,
        "writeQueueNums": 8,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "+message.type=FIFO",
    }
    assert harness.ask(17, ext).code == 0
    config = json.loads(harness.ask(351, {"topic": "T"}).body)
    assert (config["topicName"], config["readQueueNums"], config["perm"]) == ("T", 8, 6)
    assert config["attributes"] == {"message.type": "FIFO"}
    assert harness.ask(17, ext | {"attributes": "-message.type"}).code == 0
    assert json.loads(harness.ask(351, {"topic": "T"}).body)["attributes"] == {}
    answer = harness.ask(21)
    assert "T" in json.loads(answer.body)["topicConfigTable"]
    assert int(answer.ext["totalTopicNum"]) == len(harness.broker.topics)
    assert harness.ask(351, {"topic": "X"}).code == 17
    assert harness.ask(17, ext | {"topic": "TBW102"}).code == 29
    assert harness.ask(17, ext | {"topic": "a b"}).code == 29
    assert "TBW102" in json.loads(harness.ask(305).body)["topicList"]


def test_statistics_of_a_topic_and_a_group(harness):
    for _ in range(3):
        harness.send()
    text = harness.ask(202, {"topic": "T"}).body.decode()
    assert '{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":1767225600000' in text
    assert '"maxOffset":3,"minOffset":0' in text
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 2})
    text = harness.ask(208, {"consumerGroup": "g"}).body.decode()
    assert '"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1767225600000,"pullOffset":2' in text
    for ext in ({"topic": "T"}, {"topicList": "T;U"}):
        assert "consumerOffset" in harness.ask(208, {"consumerGroup": "g"} | ext).body.decode()
    assert json.loads(harness.ask(300, {"topic": "T"}).body) == {"groupList": ["g"]}
    assert json.loads(harness.ask(343, {"group": "g"}).body) == {"topicList": ["T"]}
    assert harness.ask(202, {"topic": "X"}).code == 17


def test_groups_are_made_shown_and_deleted(harness):
    body = {"groupName": "g", "consumeEnable": False, "retryMaxTimes": 3, "groupRetryPolicy": None, "novelty": 1}
    assert harness.ask(200, {}, body).code == 0
    shown = json.loads(harness.ask(352, {"group": "g"}).body)
    assert (shown["consumeEnable"], shown["retryMaxTimes"], shown["retryQueueNums"]) == (False, 3, 1)
    assert "g" in json.loads(harness.ask(201).body)["subscriptionGroupTable"]
    assert harness.ask(207, {"groupName": "g", "cleanOffset": "true"}).code == 0
    assert harness.ask(352, {"group": "g"}).code == 26
    for bad in ({}, {"groupName": 5}, {"groupName": "g", "retryMaxTimes": "x"}):
        assert harness.ask(200, {}, bad).code == 1
    assert harness.ask(200, {}, {"groupName": "not legal"}).code == 29


def test_connections(harness):
    assert harness.ask(203, {"consumerGroup": "g"}).code == 206
    assert harness.ask(204, {"producerGroup": "p"}).code == 1
    harness.heartbeat(g="T:A")
    shown = json.loads(harness.ask(203, {"consumerGroup": "g"}).body)
    assert shown["connectionSet"] == [
        {"clientAddr": "127.0.0.1:5555", "clientId": "c", "language": "JAVA", "version": 475}
    ]
    assert shown["subscriptionTable"]["T"]["codeSet"] == [65]
    shown = json.loads(harness.ask(204, {"producerGroup": "p"}).body)
    assert shown["connectionSet"][0]["clientId"] == "c"
    shown = json.loads(harness.ask(328).body)["data"]["p"][0]
    assert shown["lastUpdateTimestamp"] == harness.clock.wall_ms()


def test_the_broker_itself(harness):
    harness.send()
    table = json.loads(harness.ask(28).body)["table"]
    assert table["msgPutTotalTodayNow"] == "1"
    assert int(table["commitLogMaxOffset"]) > 0
    assert all(isinstance(value, str) for value in table.values())
    lines = harness.ask(26).body.decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines
    assert "autoCreateTopicEnable=true" in lines
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    assert json.loads(harness.ask(43).body)["offsetTable"] == {"T@g": {"0": 1}}
    assert json.loads(harness.ask(45).body)["offsetTable"]["1"] == 0


@pytest.mark.parametrize("code", [12, 14, 15, 17, 29, 30, 33, 35, 36, 38, 202, 208, 310, 11])
def test_a_request_without_its_fields_is_answered(harness, code):
    answer = harness.ask(code)
    assert answer.code == 1
    assert "missing required field" in (answer.remark or "")
