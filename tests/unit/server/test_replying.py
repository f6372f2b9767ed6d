"""Request-reply: a reply is pushed to who asked, stored, and the replier told how it went."""

from __future__ import annotations

import pytest

from stratamq.config import BrokerConfig
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.logstore.types import PutResult, PutStatus
from stratamq.protocols.remoting.command import CommandHeader
from tests.unit.server.harness import FakePeer, Harness, records

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKED = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "c-1", "TTL": "3000", "MSG_TYPE": "reply"}


@pytest.fixture
def asker(harness):
    peer = FakePeer(port=7777)
    harness.heartbeat("asker", peer=peer)
    peer.take()
    return peer


def reply(harness, properties=ASKED, *, code=325, one_way=False, **changes):
    long_names = {
        "producerGroup": "p",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": "1767225600000",
        "flag": "7",
        "properties": encode_properties(properties),
    }
    ext = dict(zip("abcdefghi", (long_names | changes).values(), strict=True)) if code == 325 else long_names | changes
    harness.request(code, ext, b"answer", one_way=one_way)


def answered(peer, code=0):
    (call,) = peer.called
    peer.called.clear()
    call[3](CommandHeader(code=code, opaque=1, flag=1), b"")


def stored(harness):
    return [record.body for record in records(harness.pull(TOPIC).body)]


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_is_pushed_to_who_asked_and_stored(harness, asker, code):
    reply(harness, code=code)
    assert harness.peer.take() == []
    assert harness.peer.unanswered == 1
    number, ext, body, _ = asker.called[0]
    assert (number, body) == (326, b"answer")
    pushed = decode_properties(ext.pop("properties"))
    assert pushed == ASKED | {"PUSH_REPLY_TIME": str(harness.clock.wall_ms())}
    assert ext == {
        "producerGroup": "p",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": "1767225600000",
        "flag": "7",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "127.0.0.1:5555",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(harness.clock.wall_ms()),
    }
    answered(asker)
    (answer,) = harness.peer.take()
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert len(answer.ext["msgId"]) == 32
    assert harness.peer.unanswered == 0
    assert stored(harness) == [b"answer"]
    (record,) = records(harness.pull(TOPIC).body)
    assert "PUSH_REPLY_TIME" not in record.properties


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        (ASKED | {"REPLY_TO_CLIENT": "nobody"}, "push reply message fail, channel of <nobody> not found."),
        ({"MSG_TYPE": "reply"}, "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
def test_a_reply_to_nobody_is_stored_and_the_replier_told(harness, asker, properties, remark):
    reply(harness, properties)
    (answer,) = harness.peer.take()
    assert (answer.code, answer.remark) == (1, remark)
    assert asker.called == []
    assert stored(harness) == [b"answer"]


@pytest.mark.parametrize("code", [1, None])
def test_a_push_that_is_not_taken_is_told(harness, asker, code):
    reply(harness)
    if code is None:
        asker.called[0][3](None, b"")
    else:
        answered(asker, code)
    (answer,) = harness.peer.take()
    assert (answer.code, answer.remark) == (1, "push reply message to asker fail.")
    assert harness.peer.unanswered == 0


def test_one_way_replies_are_pushed_and_not_answered(harness, asker):
    reply(harness, one_way=True)
    answered(asker)
    assert harness.peer.take() == []
    assert stored(harness) == [b"answer"]


def test_replies_need_not_be_stored(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(store_reply_messages=False))
    asker = FakePeer(port=7777)
    harness.heartbeat("asker", peer=asker)
    reply(harness)
    answered(asker)
    (answer,) = harness.peer.take()
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert stored(harness) == []
    harness.close()


def test_a_reply_that_was_pushed_but_cannot_be_stored_counts_as_sent(harness, asker):
    harness.committer.refuse_with = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), "disk full")
    reply(harness)
    answered(asker)
    (answer,) = harness.peer.take()
    assert (answer.code, answer.ext["msgId"]) == (0, "0")
    assert harness.broker.counters.puts_failed == 1


def test_replies_to_missing_topics_and_in_batches_are_refused(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(auto_create_topics=False))
    for changes, code in (({"topic": "missing"}, 17), ({"queueId": "9"}, 29)):
        reply(harness, **changes)
        assert harness.peer.take()[0].code == code
    reply(harness, code=324, batch="true")
    assert harness.peer.take()[0].code == 13
    assert harness.peer.unanswered == 0
    harness.close()


def test_a_client_is_found_by_its_last_connection(harness, asker):
    newer = FakePeer(port=8888)
    harness.heartbeat("asker", peer=newer)
    reply(harness)
    assert (len(asker.called), len(newer.called)) == (0, 1)
    harness.broker.drop_connection(asker)
    assert harness.broker.producers.find_client("asker").connection is newer
    harness.broker.drop_connection(newer)
    assert harness.broker.producers.find_client("asker") is None
