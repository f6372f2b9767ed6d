"""Light queues and topics of batches as clients see them."""

from __future__ import annotations

import dataclasses
import os

import pytest

from stratamq.files.durable import ConfigFile
from stratamq.formats.properties import decode_properties
from stratamq.protocols.remoting.bodies import encode_batch
from stratamq.protocols.remoting.codes import RequestCode
from tests.unit.server import harness as harness_module
from tests.unit.server.harness import FakePeer, Harness, records

BATCH = {"a": "p", "b": "B", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "m": "true"}


@pytest.fixture(autouse=True)
def _with_light_queues(monkeypatch):
    config = dataclasses.replace(harness_module.SMALL, light_queues=True, multi_dispatch=True, light_queues_max=3)
    monkeypatch.setattr(harness_module, "SMALL", config)


@pytest.fixture
def opened(tmp_path):
    one = Harness(tmp_path)
    yield one
    one.store.close()


def light(*names):
    return f"INNER_MULTI_DISPATCH\x01{','.join(names)}\x02"


def save(harness):
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)


def make_topic_of_batches(harness):
    ext = {
        "topic": "B",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }
    assert harness.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


def test_a_light_queue_is_read_as_a_topic_that_nobody_made(opened):
    for number in range(3):
        assert opened.send("P", f"{number}".encode(), light("%LMQ%a", "%LMQ%b")).code == 0
    found = records(opened.pull("%LMQ%a").body)
    assert [record.body for record in found] == [b"0", b"1", b"2"]
    assert decode_properties(found[2].properties)["INNER_MULTI_QUEUE_OFFSET"] == "2,2"
    ext = {"topic": "%LMQ%a", "queueId": "0"}
    assert opened.ask(RequestCode.GET_MAX_OFFSET, ext).ext["offset"] == "3"
    assert opened.ask(RequestCode.GET_MIN_OFFSET, ext).ext["offset"] == "0"
    by_time = ext | {"timestamp": "1"}
    assert opened.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, by_time).ext["offset"] == "0"
    assert opened.pull("%LMQ%nothing").code == 19
    assert opened.pull("%LMQ%a", queueId=1).code != 0
    assert not any(name.startswith("%LMQ%") for name in opened.broker.topics.names())


def test_a_pull_of_a_light_queue_waits_and_is_woken(opened):
    waiting = FakePeer()
    opened.request(RequestCode.PULL_MESSAGE, opened.pull_ext("%LMQ%a", sysFlag=6), peer=waiting)
    assert waiting.take() == []
    opened.send("P", b"x", light("%LMQ%a"))
    (answer,) = waiting.take()
    assert [record.body for record in records(answer.body)] == [b"x"]


def test_no_more_light_queues_than_allowed(opened):
    assert opened.send("P", b"x", light("%LMQ%a", "%LMQ%b", "%LMQ%c")).code == 0
    answer = opened.send("P", b"x", light("%LMQ%d"))
    assert answer.code != 0
    assert "maxLmqConsumeQueueNum" in answer.remark
    assert opened.send("P", b"x", light("%LMQ%c")).code == 0


def test_offsets_in_light_queues_are_kept(tmp_path):
    one = Harness(tmp_path)
    one.send("P", b"x", light("%LMQ%a"))
    update = {"topic": "%LMQ%a", "queueId": "0", "commitOffset": "7"}
    for group in ("plain", "%LMQ%g"):
        assert one.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update | {"consumerGroup": group}).code == 0
    save(one)
    one.store.close()
    stored = ConfigFile(str(tmp_path / "config/lmqConsumerOffset.json")).load()
    assert stored["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 7}
    assert stored["offsetTable"] == {"%LMQ%a@plain": {"0": 7}}
    groups = ConfigFile(str(tmp_path / "config/subscriptionGroup.json")).load()["subscriptionGroupTable"]
    assert "%LMQ%g" not in groups
    two = Harness(tmp_path)
    for group in ("plain", "%LMQ%g"):
        query = {"topic": "%LMQ%a", "queueId": "0", "consumerGroup": group}
        assert two.ask(RequestCode.QUERY_CONSUMER_OFFSET, query).ext["offset"] == "7"
    two.store.close()


@pytest.mark.parametrize(("newer", "offset"), [("lmqConsumerOffset.json", 5), ("consumerOffset.json", 9)])
def test_whichever_offsets_were_written_last_count(tmp_path, newer, offset):
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":3},"offsetTable":{"T@g":{0:5}}}')
    (folder / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:9}}}')
    for name in ("lmqConsumerOffset.json", "consumerOffset.json"):
        os.utime(folder / name, (1000 + (name == newer), 1000 + (name == newer)))
    one = Harness(tmp_path)
    assert one.broker.offsets.find("g", "T", 0) == offset
    assert one.broker.offsets.find("%LMQ%g", "%LMQ%a", 0) == 3
    one.store.close()


def test_a_batch_to_a_topic_of_batches_is_one_record(opened):
    make_topic_of_batches(opened)
    body = encode_batch([(0, b"one", "UNIQ_KEY\x01a\x02"), (0, b"two", "UNIQ_KEY\x01b\x02")])
    answer = opened.ask(320, BATCH | {"i": "UNIQ_KEY\x01whole\x02"}, body)
    assert (answer.code, answer.ext["queueOffset"], answer.ext["batchUniqId"]) == (0, "0", "whole")
    assert "," not in answer.ext["msgId"]
    answer = opened.ask(320, BATCH | {"i": "UNIQ_KEY\x01next\x02"}, body)
    assert answer.ext["queueOffset"] == "2"
    assert opened.send("B", b"single").ext["queueOffset"] == "4"
    answer = opened.ask(320, BATCH, body)  # a client that knows no inner batches
    assert answer.ext["queueOffset"] == "5"
    assert answer.ext["msgId"].count(",") == 1
    found = records(opened.pull("B").body)
    assert [(record.queue_offset, record.sys_flag) for record in found] == [(0, 192), (2, 192), (4, 0), (5, 0), (6, 0)]
    known = decode_properties(found[1].properties)
    assert (known["INNER_NUM"], known["INNER_BASE"], known["UNIQ_KEY"]) == ("2", "2", "next")
    assert found[1].body == body
    answer = opened.pull("B", queueOffset=3)
    assert records(answer.body)[0].queue_offset == 2
    assert answer.ext["nextBeginOffset"] == "7"
    assert opened.ask(RequestCode.GET_MAX_OFFSET, {"topic": "B", "queueId": "0"}).ext["offset"] == "7"


def test_a_topic_of_batches_stays_one(tmp_path):
    one = Harness(tmp_path)
    make_topic_of_batches(one)
    one.send("B", b"x")
    save(one)
    one.store.close()
    two = Harness(tmp_path)
    assert two.send("B", b"y").ext["queueOffset"] == "1"
    assert (tmp_path / "batchconsumequeue/B/0").is_dir()
    assert not (tmp_path / "consumequeue/B").exists()
    assert two.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "B"}).code == 0
    assert not (tmp_path / "batchconsumequeue/B").exists()
    assert two.send("B", b"z").ext["queueOffset"] == "0"
    assert (tmp_path / "consumequeue/B/0").is_dir()
    two.store.close()


def test_an_inner_batch_elsewhere_is_refused(opened):
    assert opened.send("T", b"x", "INNER_NUM\x012\x02").code == 13
    assert opened.send("T", b"x", f=0xC0).code == 13


def test_a_topic_of_batches_is_not_popped(opened):
    make_topic_of_batches(opened)
    opened.send("B", b"x")
    ext = {"consumerGroup": "g", "topic": "B", "queueId": "-1", "maxMsgNums": "8", "invisibleTime": "60000"}
    answer = opened.ask(RequestCode.POP_MESSAGE, ext | {"pollTime": "0", "bornTime": "0", "initMode": "0"})
    assert (answer.code, "pulled, not popped" in answer.remark) == (29, True)
    assert answer.body == b""
    assert records(opened.pull("B").body)[0].body == b"x"
