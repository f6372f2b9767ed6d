"""Static topics as operators make them, and what brokers and name servers tell of them."""

import json

import pytest

from stratamq.broker.broker import MAPPINGS_FILE, TOPICS_FILE
from stratamq.config import BrokerConfig
from tests.unit.server.harness import Harness

NAME = BrokerConfig().broker_name
CREATE = {
    "topic": "S",
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "force": "false",
}


def item(gen=0, queue_id=0, bname=NAME, logic=0):
    return {"gen": gen, "queueId": queue_id, "bname": bname, "logicOffset": logic, "startOffset": 0, "endOffset": -1}


def mapping(queues, *, epoch=1, total=2, **rest):
    return {"topic": "S", "bname": NAME, "totalQueues": total, "epoch": epoch, "hostedQueues": queues, **rest}


def create(harness, queues, *, epoch=1, total=2, **ext):
    return harness.ask(513, CREATE | ext, mapping(queues, epoch=epoch, total=total))


def test_a_static_topic_is_made_and_shown(harness):
    answer = create(harness, {0: [item(0, 1)], 1: [item(0, 0)]})
    assert (answer.code, answer.remark) == (0, None)
    shown = json.loads(harness.ask(351, {"topic": "S", "lo": "true"}).body)
    assert (shown["topicName"], shown["writeQueueNums"]) == ("S", 2)
    assert shown["mappingDetail"]["hostedQueues"]["0"] == [
        item(0, 1) | {"timeOfStart": -1, "timeOfEnd": -1},
    ]
    assert "mappingDetail" not in json.loads(harness.ask(351, {"topic": "S"}).body)
    table = json.loads(harness.ask(21).body)
    assert table["topicQueueMappingDetailMap"]["S"]["epoch"] == 1
    assert table["mappingDataVersion"]["counter"] == 1


def test_keys_without_quotes_are_read(harness):
    text = json.dumps(mapping({0: [item()]})).replace('"0":', "0:")
    assert harness.ask(513, CREATE, text.encode()).code == 0
    assert harness.broker.static_topics.find("S").led() == {0: 0}


@pytest.mark.parametrize(
    ("words", "ext", "body"),
    [
        ("not JSON", {}, b"{"),
        ("JSON object", {}, b"[]"),
        ("is of topic S", {"topic": "T"}, None),
        ("for broker x", {}, {"bname": "x"}),
        ("beyond the topic's 1", {"readQueueNums": "1", "writeQueueNums": "1"}, None),
        ("names queue 1", {}, {"totalQueues": 1}),
        ("belongs to the broker", {"topic": "TBW102"}, {"topic": "TBW102"}),
    ],
)
def test_what_cannot_be_served_changes_nothing(harness, words, ext, body):
    good = mapping({0: [item()], 1: [item(0, 1)]})
    answer = harness.ask(513, CREATE | ext, body if isinstance(body, bytes) else good | (body or {}))
    assert answer.code in (1, 29)
    assert words in answer.remark
    assert len(harness.broker.static_topics) == 0
    assert harness.broker.topics.find("S") is None
    assert harness.broker.topics.find("T") is None


def test_an_older_epoch_is_refused_unless_forced(harness):
    assert create(harness, {0: [item()]}, epoch=5).code == 0
    answer = create(harness, {0: [item()]}, epoch=4)
    assert (answer.code, "older" in answer.remark) == (1, True)
    assert create(harness, {0: [item(0, 1)]}, epoch=4, force="true").code == 0
    assert harness.broker.static_topics.find("S").led() == {0: 1}


def test_a_mapping_is_saved_and_read_again(harness, tmp_path):
    create(harness, {0: [item(0, 1)]})
    assert harness.broker.has_unsaved_tables
    saved = {file.path.rpartition("/")[2]: value for file, value in harness.broker.unsaved(with_offsets=False)}
    assert not harness.broker.has_unsaved_tables
    for file, value in ((harness.broker._open_file(name), value) for name, value in saved.items()):
        file.store(value)
    assert list(saved) == [MAPPINGS_FILE, TOPICS_FILE], "a topic without its mapping would pass for an ordinary one"
    harness.store.close()
    again = Harness(harness.directory)
    assert again.broker.static_topics.find("S").led() == {0: 1}
    again.close()


def test_a_failed_write_is_not_forgotten(harness):
    create(harness, {0: [item()]})
    harness.broker.unsaved(with_offsets=True)
    harness.broker.mark_unsaved()
    assert harness.broker.static_topics.is_dirty


def test_a_deleted_topic_is_static_no_more(harness):
    create(harness, {0: [item()]})
    assert harness.ask(215, {"topic": "S"}).code == 0
    assert "S" not in harness.broker.static_topics


def test_a_slave_takes_mappings_from_its_master(harness):
    create(harness, {0: [item()]})
    table = json.loads(harness.ask(21).body)
    harness.broker.delete_topic("S")
    harness.broker.adopt_topics(table)
    assert harness.broker.static_topics.find("S").led() == {0: 0}
