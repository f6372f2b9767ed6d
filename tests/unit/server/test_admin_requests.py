"""What mqadmin and the dashboard ask of a broker beyond looking at topics and groups."""

from __future__ import annotations

import json

import pytest

from stratamq.config import BrokerConfig
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.server.live_settings import read_kept
from tests.unit.server.harness import FakePeer, Harness, records

T0 = 1_767_225_600_000


def reset(harness, **ext):
    fields = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    return harness.ask(222, fields | {key: str(value) for key, value in ext.items()})


# --- topics ---


def create(harness, topic="T", **ext):
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return harness.ask(17, fields | {"order": "false"} | ext)


def attributes_of(harness, topic="T"):
    return json.loads(harness.ask(351, {"topic": topic}).body)["attributes"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("message.type=FIFO", "no change of an attribute"),
        ("+message.type", "no change of an attribute"),
        ("+message.type=FIFO,+message.type=DELAY", "changed twice"),
        ("+colour=red", "unsupported key: colour"),
        ("-message.type", "only add attribute"),
        ("+message.type=RED", "must be one of"),
        ("+reserve.time=soon", "whole number"),
        ("+cleanup.policy=COMPACTION", "does not compact"),
        ("+message.type=MIXED", "not supported"),
    ],
)
def test_attributes_that_cannot_be_are_refused(harness, text, words):
    answer = create(harness, attributes=text)
    assert answer.code == 1
    assert words in answer.remark
    assert harness.ask(351, {"topic": "T"}).code == 17


def test_attributes_are_changed_one_by_one(harness):
    assert create(harness, attributes="+message.type=FIFO,+reserve.time=3,+queue.type=SimpleCQ").code == 0
    assert create(harness, attributes="-reserve.time").code == 0
    assert attributes_of(harness) == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert "nonexistent" in create(harness, attributes="-reserve.time").remark
    assert "unchangeable" in create(harness, attributes="-queue.type").remark


def test_topics_and_groups_come_in_lists_whole_or_not_at_all(harness):
    topics = [
        {"topicName": "A", "readQueueNums": 3, "writeQueueNums": 3, "attributes": {"+message.type": "FIFO"}},
        {"topicName": "B", "perm": 4},
    ]
    assert harness.ask(18, {}, {"topicConfigList": topics}).code == 0
    assert attributes_of(harness, "A") == {"message.type": "FIFO"}
    assert harness.broker.topics.get("B").perm == 4
    bad = [{"topicName": "C"}, {"topicName": "TBW102"}]
    assert harness.ask(18, {}, {"topicConfigList": bad}).code == 29
    assert "C" not in harness.broker.topics
    groups = [{"groupName": "g1", "retryMaxTimes": 3}, {"groupName": "g2"}]
    assert harness.ask(225, {}, {"groupConfigList": groups}).code == 0
    assert harness.broker.groups.get("g1").retry_max_times == 3
    assert harness.ask(225, {}, {"groupConfigList": [{"groupName": "g3"}, {"groupName": "a b"}]}).code == 29
    assert harness.broker.groups.find("g3") is None
    for code in (18, 225):
        assert harness.ask(code, {}, {"wrong": 1}).code == 1


def test_a_deleted_topic_leaves_nothing_behind(harness):
    gone = []
    harness.broker._on_topic_deleted = gone.append
    for topic in ("T", "Other"):
        harness.send(topic)
        harness.ask(15, {"consumerGroup": "g", "topic": topic, "queueId": 0, "commitOffset": 1})
    harness.broker.topics.ensure("%RETRY%g_T", queues=1)
    harness.broker.topics.ensure("%RETRY%shop_T", queues=1)
    harness.broker.groups.get("shop_T")
    harness.broker.groups.get("shop")
    assert harness.ask(215, {"topic": "T"}).code == 0
    assert gone == ["%RETRY%g_T", "T"]
    assert harness.ask(351, {"topic": "T"}).code == 17
    assert harness.broker.store.max_offset("T", 0) == 0
    assert harness.broker.offsets.pairs() == [("Other", "g")]
    assert "%RETRY%shop_T" in harness.broker.topics  # an ordinary group's
    assert harness.broker.has_unsaved_tables
    assert harness.ask(215, {"topic": "T"}).code == 0
    assert harness.ask(215, {"topic": "TBW102"}).code == 29
    harness.send("T")
    assert [record.queue_offset for record in records(harness.pull("T").body)] == [0]


def test_topics_without_settings_are_cleaned(harness):
    harness.send("T")
    harness.broker.topics.delete("T")
    assert harness.ask(316).code == 0
    assert ("T", 0) not in harness.store.queues()


# --- offsets ---


def test_a_reset_reaches_the_group_with_its_next_pull(harness):
    for _ in range(5):
        harness.send()
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 5})
    answer = reset(harness, queueId=0, offset=2)
    assert answer.body.decode() == '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
    assert harness.ask(14, {"consumerGroup": "g", "topic": "T", "queueId": 0}).ext["offset"] == "2"
    late = harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 5})
    assert (late.code, late.remark) == (0, "Offset has been previously reset")
    told = harness.pull(queueOffset=5, sysFlag=5, commitOffset=5)
    assert (told.code, told.ext["nextBeginOffset"]) == (21, "2")
    assert harness.ask(14, {"consumerGroup": "g", "topic": "T", "queueId": 0}).ext["offset"] == "2"
    assert harness.pull(queueOffset=2).code == 0
    assert harness.pull(consumerGroup="other", queueOffset=5).code == 19


def test_a_reset_wakes_the_pull_that_waits(harness):
    harness.send()
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    waiting = FakePeer(6000)
    harness.request(11, harness.pull_ext(queueOffset=1, sysFlag=6), peer=waiting)
    assert waiting.take() == []
    reset(harness, timestamp=0)
    (answer,) = waiting.take()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "0")


def test_a_reset_by_time_takes_all_queues(harness):
    create(harness)
    for queue in range(4):
        harness.send(e=queue)
    harness.clock.advance(1000)
    for queue in range(4):
        harness.send(e=queue)
    harness.broker.groups.get("g")
    reset(harness, timestamp=T0 + 500)
    assert harness.broker.offsets.of("g", "T") == {0: 1, 1: 1, 2: 1, 3: 1}
    reset(harness)
    assert harness.broker.offsets.of("g", "T") == {0: 2, 1: 2, 2: 2, 3: 2}


def test_a_reset_that_cannot_be_is_refused(harness):
    assert reset(harness).code == 17
    harness.send()
    assert reset(harness).code == 26
    harness.broker.groups.get("g")
    assert reset(harness, queueId=9).code == 29
    answer = reset(harness, queueId=0, offset=7)
    assert (answer.code, answer.remark) == (1, "Target offset 7 not in consume queue range [0-1]")


@pytest.fixture
def telling(tmp_path):
    """A broker that resets offsets through its clients."""
    made = Harness(tmp_path / "told", BrokerConfig(server_side_reset=False))
    yield made
    made.close()


def test_without_server_side_reset_members_are_told(telling):
    create(telling, readQueueNums="1", writeQueueNums="1")
    telling.send()
    telling.broker.groups.get("g")
    assert reset(telling).code == 206
    member = FakePeer(6001)
    telling.heartbeat("c", peer=member, g="T")
    assert "not exist" in reset(telling).remark
    telling.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    assert reset(telling, timestamp=0).code == 0
    assert member.notified[-1] == (220, {"topic": "T", "group": "g", "timestamp": "0"})
    assert telling.broker.offsets.of("g", "T") == {0: 1}


def test_offsets_are_cloned_and_compared(harness):
    for _ in range(4):
        harness.send()
    for group, offset in (("a", 1), ("b", 3)):
        harness.ask(15, {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": offset})
    assert harness.ask(314, {"srcGroup": "b", "destGroup": "c", "topic": "T", "offline": "true"}).code == 0
    assert harness.broker.offsets.of("c", "T") == {0: 3}
    found = json.loads(harness.ask(308, {"topic": "T", "compareGroup": "b"}).body)["correctionOffsets"]
    assert found == {"0": 1}
    found = json.loads(harness.ask(308, {"topic": "T", "compareGroup": "b", "filterGroups": "a"}).body)
    assert found["correctionOffsets"] == {"0": 3}
    ahead = json.loads(harness.ask(308, {"topic": "T", "compareGroup": "a", "filterGroups": "a"}).body)
    assert ahead["correctionOffsets"] == {"0": 2**63 - 1}


def test_a_group_is_forbidden_a_topic_and_allowed_again(harness):
    harness.send()
    answer = harness.ask(353, {"group": "g", "topic": "T", "readable": "false"})
    assert json.loads(answer.body) == {"group": "g", "readable": False, "topic": "T"}
    refused = harness.pull()
    assert (refused.code, "forbidden" in refused.remark) == (16, True)
    assert harness.pull(consumerGroup="other").code == 0
    assert harness.broker.groups.as_json()["forbiddenTable"] == {"g": {"T": 4}}
    harness.ask(353, {"group": "g", "topic": "T", "readable": "true"})
    assert harness.pull().code == 0
    assert harness.broker.groups.as_json()["forbiddenTable"] == {}


def test_time_spans(harness):
    harness.send()
    harness.clock.advance(10_000)
    harness.send()
    harness.clock.advance(5_000)
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    rows = json.loads(harness.ask(303, {"group": "g", "topic": "T"}).body)["consumeTimeSpanSet"]
    assert rows[0] == {
        "consumeTimeStamp": T0,
        "delayTime": 5_000,
        "maxTimeStamp": T0 + 10_000,
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
        "minTimeStamp": T0,
    }
    assert (rows[1]["minTimeStamp"], rows[1]["delayTime"]) == (-1, 0)
    assert harness.ask(303, {"group": "g", "topic": "X"}).code == 17


def test_the_whole_broker_s_lag(harness):
    for _ in range(3):
        harness.send()
    harness.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    text = harness.ask(317, {"isOrder": "false"}).body.decode()
    assert '"totalDiff":2,"totalInflightDiff":0' in text
    assert '{"g":[{"consumeTps":0.000,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{' in text
    assert '"totalDiff":0' in harness.ask(317, {"isOrder": "true"}).body.decode()


def test_a_subscription_and_a_queue_s_units(harness):
    for tag in "AB":
        harness.send(properties=f"TAGS\x01{tag}\x02")
    harness.heartbeat("c", g="T:A")
    found = json.loads(harness.ask(345, {"group": "g", "topic": "T"}).body)
    assert (found["group"], found["subscriptionData"]["subString"]) == ("g", "A")
    assert "subscriptionData" not in json.loads(harness.ask(345, {"group": "x", "topic": "T"}).body)
    ext = {"topic": "T", "queueId": "0", "index": "0", "count": "10", "consumerGroup": "g"}
    found = json.loads(harness.ask(321, ext).body)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 2)
    assert [unit["tagsCode"] for unit in found["queueData"]] == [65, 66]
    assert [unit["eval"] for unit in found["queueData"]] == [True, False]
    assert found["queueData"][1]["physicOffset"] == found["queueData"][0]["physicSize"]
    assert len(json.loads(harness.ask(321, ext | {"count": "1"}).body)["queueData"]) == 1
    assert "is not exist" in harness.ask(321, ext | {"index": "5"}).remark
    assert harness.ask(321, ext | {"topic": "X"}).code == 1
    assert harness.ask(321, ext | {"count": "-1"}).code == 29


# --- relays ---


def relay(harness, code=307, **ext):
    asking = FakePeer(7000)
    harness.request(code, {"consumerGroup": "g", "clientId": "c"} | ext, peer=asking)
    return asking


def test_a_client_s_answer_is_handed_back(harness):
    member = FakePeer(6002)
    harness.heartbeat("c", peer=member, g="T")
    asking = relay(harness, jstackEnable="true")
    ((code, ext, _, answered),) = member.called
    assert (code, ext["jstackEnable"]) == (307, "true")
    assert asking.take() == []
    answered(CommandHeader(code=0, opaque=1, flag=1), b'{"properties":{}}')
    (answer,) = asking.take()
    assert (answer.code, answer.body) == (0, b'{"properties":{}}')


def test_a_client_that_does_not_answer_or_is_not_there(harness):
    (answer,) = relay(harness).take()
    assert (answer.code, answer.remark) == (1, "The Consumer <g> <c> not online")
    member = FakePeer(6002)
    harness.heartbeat("c", peer=member, g="T")
    asking = relay(harness)
    member.called[0][3](None, b"")
    (answer,) = asking.take()
    assert (answer.code, "Timeout" in answer.remark) == (207, True)


def test_a_message_is_consumed_directly(harness):
    message_id = harness.send(body=b"once more").ext["msgId"]
    member = FakePeer(6002)
    harness.heartbeat("c", peer=member, g="T")
    relay(harness, 309, msgId=message_id)
    code, ext, body, _ = member.called[0]
    assert (code, ext["brokerName"]) == (309, "broker-a")
    assert b"once more" in body
    for wrong, expected in (("xyz", 29), ("7F00000100002A9F00000000000FFFFF", 1), ("", 29)):
        (answer,) = relay(harness, 309, msgId=wrong).take()
        assert answer.code == expected, wrong


def test_members_say_where_they_are(harness):
    asking = FakePeer(7000)
    harness.request(223, {"topic": "T", "group": "g"}, peer=asking)
    assert asking.take()[0].code == 1
    members = [FakePeer(6003), FakePeer(6004)]
    for number, member in enumerate(members):
        harness.heartbeat(f"c{number}", peer=member, g="T")
    harness.request(223, {"topic": "T", "group": "g"}, peer=asking)
    table = '{{"brokerName":"b\\"}","queueId":0,"topic":"T"}:5}'
    assert members[0].called[0][:2] == (221, {"topic": "T", "group": "g"})
    members[0].called[0][3](CommandHeader(code=0, opaque=1, flag=1), f'{{"messageQueueTable":{table}}}'.encode())
    assert asking.take() == []
    members[1].called[0][3](None, b"")
    (answer,) = asking.take()
    assert answer.body.decode() == f'{{"consumerTable":{{"c0":{table}}}}}'


# --- statistics ---


def test_what_went_through_in_a_minute(harness):
    statistics, clock = harness.broker.statistics, harness.clock
    for _ in range(30):
        clock.advance(1_000)
        harness.send(body=b"x" * 10)
        harness.pull(queueOffset=0)
        statistics.run_due(clock.wall_ms())
    put = json.loads(harness.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}).body)
    assert put["statsMinute"]["sum"] == put["statsDay"]["sum"] == 30
    assert put["statsMinute"]["tps"] == pytest.approx(1.0, rel=0.05)
    size = json.loads(harness.ask(315, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "T"}).body)
    assert size["statsMinute"]["sum"] == harness.store.max_physical_offset
    got = json.loads(harness.ask(315, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@g"}).body)
    assert got["statsMinute"]["sum"] == sum(range(1, 31))
    assert got["statsMinute"]["avgpt"] == pytest.approx(15.5)
    whole = json.loads(harness.ask(315, {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}).body)
    assert whole["statsMinute"]["sum"] == 30
    for name, key in (("TOPIC_PUT_NUMS", "X"), ("NOTHING", "T")):
        assert harness.ask(315, {"statsName": name, "statsKey": key}).code == 1
    assert '"topicPutTps":1.0' in harness.ask(202, {"topic": "T"}).body.decode()
    table = json.loads(harness.ask(28).body)["table"]
    ten, minute, _ = map(float, table["putTps"].split())
    assert ten == pytest.approx(1.0, rel=0.1) == minute
    assert int(table["putMessageSizeTotal"]) == harness.store.max_physical_offset
    assert int(table["earliestMessageTimeStamp"]) == T0 + 1_000
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    for _ in range(80):
        clock.advance(1_000)
        statistics.run_due(clock.wall_ms())
    put = json.loads(harness.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}).body)
    assert (put["statsMinute"]["sum"], put["statsHour"]["sum"]) == (0, 30)


# --- settings ---


def test_settings_change_while_the_broker_runs_and_are_kept(harness):
    assert harness.ask(25, {}, b"autoCreateTopicEnable=false\nbrokerPermission=4\nfileReservedTime=7\n").code == 0
    assert harness.send("T").code == 16
    shown = harness.ask(26).body.decode().splitlines()
    assert {"brokerPermission=4", "fileReservedTime=7", "autoCreateTopicEnable=false"} <= set(shown)
    assert harness.ask(25, {}, b"brokerPermission=6").code == 0
    assert harness.send("T").code == 17
    assert harness.ask(25, {}, b"autoCreateTopicEnable=true").code == 0
    assert harness.send("T").code == 0
    kept = read_kept(harness.live._path)
    assert kept == {"autoCreateTopicEnable": "true", "brokerPermission": "6", "fileReservedTime": "7"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"configBlackList=x", 16),
        (b"listenPort=1\nbrokerPermission=4", 29),
        (b"brokerName=other", 16),
        (b"brokerPermision=4", 29),
        (b"brokerPermission=99", 29),
        (b"brokerPermission=read", 29),
        (b"deleteWhen=noon", 29),
        (b"\xff=1", 1),
    ],
)
def test_settings_that_may_not_change_do_not(harness, text, code):
    before = harness.ask(26).body
    assert harness.ask(25, {}, text).code == code
    assert harness.ask(26).body == before
    assert harness.broker.config == BrokerConfig()
    assert read_kept(harness.live._path) == {}


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "TBW102", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", ""]
)
def test_topics_of_the_broker_itself_cannot_be_deleted(harness, topic):
    before = harness.broker.topics.configs().keys()
    answer = harness.ask(215, {"topic": topic})
    assert answer.code == 29
    assert harness.broker.topics.configs().keys() == before
