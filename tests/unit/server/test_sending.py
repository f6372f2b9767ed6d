"""Requests that bring messages: 10, 310, 320, 36, and what becomes of delays and retries."""

from __future__ import annotations

import zlib

import pytest

from stratamq.broker.groups import GroupConfig
from stratamq.broker.topics import TopicConfig
from stratamq.config import BrokerConfig
from stratamq.formats.properties import decode_properties, encode_properties
from stratamq.logstore.types import PutResult, PutStatus
from stratamq.protocols.remoting.bodies import encode_batch
from tests.unit.server.harness import Harness, records


def test_a_send_is_answered_with_all_that_clients_read(harness):
    answer = harness.send(properties="UNIQ_KEY\x01ABC\x02TAGS\x01TagA\x02")
    assert answer.code == 0
    assert answer.ext == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "7F00000100002A9F0000000000000000",
        "queueId": "0",
        "queueOffset": "0",
        "transactionId": "ABC",
    }
    assert harness.send().ext["queueOffset"] == "1"
    assert harness.peer.unanswered == 0


def test_a_message_is_stored_with_the_brokers_properties(harness):
    harness.send(properties="UNIQ_KEY\x01ABC\x02K\x01v")
    harness.send(properties="")
    first, second = records(harness.pull().body)
    assert decode_properties(first.properties) == {
        "UNIQ_KEY": "ABC",
        "K": "v",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert len(decode_properties(second.properties)["UNIQ_KEY"]) == 32
    assert (first.body, first.topic, first.born_timestamp) == (b"hello", "T", 1767225600000)
    assert first.born_host == harness.peer.born_host


def test_properties_that_a_broker_set_before_are_replaced(harness):
    harness.send(properties="MSG_REGION\x01far\x02POP_CK\x01x\x02K\x01v\x02CLUSTER\x01other\x02")
    found = records(harness.pull().body)[0].properties
    assert found.count("MSG_REGION\x01") == 1
    known = decode_properties(found)
    assert (known["MSG_REGION"], known["CLUSTER"], known["K"]) == ("DefaultRegion", "DefaultCluster", "v")
    assert "POP_CK" not in known


def test_a_send_in_the_dialect_of_the_cpp_client(harness):
    ext = {
        "producerGroup": "g",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": "1767225600000",
        "flag": 7,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "0",
        "batch": "0",
    }
    answer = harness.ask(10, ext, b"x", version=63)
    assert (answer.code, answer.ext["queueId"]) == (0, "1")
    batch = encode_batch([(3, b"one", "TAGS\x01A\x02"), (4, b"two", "")])
    answer = harness.ask(10, ext | {"batch": "1"}, batch, version=63)
    assert answer.code == 0
    found = records(harness.pull(queueId=1).body)
    assert [(record.body, record.flag) for record in found] == [(b"x", 7), (b"one", 3), (b"two", 4)]


def test_a_batch_is_answered_with_all_ids(harness):
    batch = encode_batch([(0, b"one", "UNIQ_KEY\x01a\x02"), (0, b"two", "UNIQ_KEY\x01b\x02")])
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "m": "true"}
    answer = harness.ask(320, ext, batch)
    assert answer.code == 0
    first, second = answer.ext["msgId"].split(",")
    assert first.endswith("0" * 16)
    assert second > first
    assert answer.ext["transactionId"] == "a,b"
    assert answer.ext["queueOffset"] == "0"
    for bad in (b"", batch[:-1], batch + b"x"):
        assert harness.ask(320, ext, bad).code == 13
    assert harness.ask(320, ext | {"b": "%RETRY%g"}, batch).code == 13
    delayed = encode_batch([(0, b"one", "DELAY\x013\x02")])
    assert harness.ask(320, ext, delayed).code == 13


def test_a_batch_that_was_compressed_as_a_whole_is_unpacked(harness):
    batch = encode_batch([(0, b"one" * 1000, ""), (0, b"two" * 1000, "")])
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "1", "g": "1", "h": "0", "m": "true"}
    packed = zlib.compress(batch)
    assert harness.ask(320, ext, packed).code == 0
    assert harness.ask(320, ext | {"f": str(0x301)}, packed).code == 0
    stored = records(harness.pull().body)
    assert [record.body[:3] for record in stored] == [b"one", b"two"] * 2
    assert {record.sys_flag for record in stored} == {0}
    bomb = zlib.compress(bytes(64 << 20))
    for bad in (b"", batch, packed[:-6], bomb):
        assert harness.ask(320, ext, bad).code == 13
    assert harness.ask(320, ext | {"f": str(0x201)}, packed).code == 13


def test_a_one_way_send_gets_no_answer(harness):
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    harness.request(310, ext, b"x", one_way=True)
    harness.request(310, ext | {"b": "bad name"}, b"x", one_way=True)
    assert harness.peer.take() == []
    assert len(records(harness.pull().body)) == 1


def test_a_binary_request_gets_a_binary_answer(harness):
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    answer = harness.ask(310, ext, b"x", binary=True)
    assert answer.header.keys() == {"language", "version"}
    assert answer.ext["queueOffset"] == "0"
    answer = harness.ask(11, harness.pull_ext(), binary=True)
    assert records(answer.body)[0].body == b"x"


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"b": "bad name"}, 29, "not legal"),
        ({"b": ""}, 29, "empty"),
        ({"b": "x" * 200}, 29, "at most 127"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, 16, "belongs to the broker"),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, "belongs to the broker"),
        ({"c": "missing"}, 17, "cannot be made"),
        ({"d": "0"}, 29, "cannot have 0 queues"),
        ({"b": "known", "e": "2"}, 29, "there is no queue 2"),
        ({"b": "readonly"}, 16, "not writable"),
        ({"b": "%RETRY%nobody"}, 26, "does not exist"),
        ({"f": "4"}, 13, "TRAN_MSG"),
        ({"i": "DELAY\x01soon\x02"}, 13, "DELAY"),
        ({"i": "TIMER_DELIVER_MS\x011767225600000\x02"}, 1, "timerWheelEnable"),
        ({"i": "TIMER_DELAY_SEC\x01soon\x02"}, 13, "TIMER_DELAY_SEC"),
        ({"i": "K\x01" + "v" * 40_000 + "\x02"}, 13, "properties"),
        ({"e": "x"}, 1, "queue"),
    ],
)
def test_what_is_refused(harness, change, code, text):
    harness.broker.topics.ensure("known", queues=2)
    harness.broker.topics.ensure("readonly", queues=2, perm=4)
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    answer = harness.ask(310, ext | change, b"x")
    assert answer.code == code
    assert text in (answer.remark or "").replace("$.e", "queue")
    assert harness.store.max_physical_offset == 0
    assert harness.peer.unanswered == 0


def test_a_body_longer_than_allowed_is_refused(harness):
    answer = harness.send(body=bytes(100_001))
    assert (answer.code, "at most 100000" in (answer.remark or "")) == (13, True)
    assert harness.send(body=bytes(100_000)).code == 0
    assert harness.send(body=b"").code == 0


def test_a_negative_queue_means_any(harness):
    assert {harness.send(e=-1).ext["queueId"] for _ in range(40)} == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutStatus.OS_PAGE_CACHE_BUSY, 2),
        (PutStatus.PROPERTIES_SIZE_EXCEEDED, 13),
        (PutStatus.UNKNOWN_ERROR, 1),
        (PutStatus.CREATE_MAPPED_FILE_FAILED, 1),
    ],
)
def test_what_the_store_refuses_is_said(harness, status, code):
    harness.committer.refuse_with = PutResult(status, (), "why")
    answer = harness.send()
    busy = "[PC_SYNCHRONIZED]broker busy, start flow control for a while: " if code == 2 else ""
    assert (answer.code, answer.remark) == (code, f"{busy}why")
    assert answer.ext["TRACE_ON"] == "true"
    assert harness.broker.counters.puts_failed == 1


def test_stored_but_not_synced_in_time_is_no_error(harness):
    harness.committer.held = []
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    harness.request(310, ext, b"x")
    assert harness.peer.unanswered == 1
    assert harness.peer.take() == []
    harness.committer.held[0]()
    assert harness.peer.take()[0].code == 0
    assert harness.peer.unanswered == 0


def test_a_stopping_broker_takes_nothing(harness):
    harness.broker.is_accepting = False
    assert harness.send().code == 14
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    assert harness.ask(320, ext, encode_batch([(0, b"x", "")])).code == 14


def test_a_read_only_broker_takes_nothing(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(permission=4))
    assert harness.send().code == 16
    harness.close()


def test_no_topic_is_made_when_that_is_off(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(auto_create_topics=False))
    answer = harness.send()
    assert answer.code == 17
    assert "autoCreateTopicEnable" in (answer.remark or "")
    harness.close()


# --- delays and retries ---


def test_a_delayed_message_waits_in_the_log_and_then_comes(harness):
    assert harness.send(properties="DELAY\x012\x02TAGS\x01A\x02UNIQ_KEY\x01u\x02").code == 0
    assert harness.pull().code == 19
    delays = harness.broker.delays
    assert delays.next_due_ms() is not None
    delays.run_due(harness.clock.wall_ms())
    due = delays.next_due_ms()
    assert due == harness.clock.wall_ms() + 5000
    harness.clock.advance(4999)
    delays.run_due(harness.clock.wall_ms())
    assert harness.pull().code == 19
    harness.clock.advance(1)
    delays.run_due(harness.clock.wall_ms())
    (record,) = records(harness.pull().body)
    known = decode_properties(record.properties)
    assert (record.body, known["TAGS"], known["UNIQ_KEY"]) == (b"hello", "A", "u")
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & known.keys()
    delays.run_due(harness.clock.wall_ms())
    assert delays.next_due_ms() is None
    assert delays.as_json()["offsetTable"][2] == 1


def test_a_level_above_the_highest_is_the_highest(harness):
    harness.send(properties="DELAY\x0199\x02")
    assert harness.store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1


def test_delivery_goes_on_where_it_was_after_a_restart(tmp_path):
    harness = Harness(tmp_path)
    for number in range(3):
        harness.send(properties="DELAY\x011\x02", body=b"%d" % number)
        harness.clock.advance(700)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    assert len(records(harness.pull().body)) == 2
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)
    harness.close()
    again = Harness(tmp_path, clock=harness.clock)
    again.clock.advance(5000)
    again.broker.delays.run_due(again.clock.wall_ms())
    assert [record.body for record in records(again.pull().body)] == [b"0", b"1", b"2"]
    again.close()


def test_delivery_that_fails_is_tried_again(harness):
    harness.send(properties="DELAY\x011\x02")
    harness.clock.advance(1000)
    harness.committer.refuse_with = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), "full")
    harness.broker.delays.run_due(harness.clock.wall_ms())
    harness.committer.refuse_with = None
    harness.broker.delays.run_due(harness.clock.wall_ms())
    assert harness.pull().code == 19
    harness.clock.advance(1000)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    assert len(records(harness.pull().body)) == 1


def test_a_delivery_that_fails_in_the_middle_loses_nothing(harness, monkeypatch):
    for number in range(5):
        harness.send(properties="DELAY\x011\x02", body=b"%d" % number)
    harness.clock.advance(1000)
    put, calls = harness.committer.put, []

    def fail_third(messages, done):
        calls.append(1)
        if len(calls) == 3:
            done(PutResult(PutStatus.OS_PAGE_CACHE_BUSY, (), "busy"))
        else:
            put(messages, done)

    monkeypatch.setattr(harness.committer, "put", fail_third)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    assert harness.broker.delays.as_json()["offsetTable"][1] == 2
    harness.clock.advance(1000)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    assert {record.body for record in records(harness.pull().body)} == {b"0", b"1", b"2", b"3", b"4"}


def test_a_delayed_message_that_nobody_can_store_holds_up_no_other(harness, caplog):
    harness.send(properties="DELAY\x011\x02")
    harness.send(properties="DELAY\x011\x02", body=b"next")
    harness.clock.advance(1000)
    harness.committer.refuse_with = PutResult(PutStatus.MESSAGE_ILLEGAL, (), "too odd")
    harness.broker.delays.run_due(harness.clock.wall_ms())
    assert harness.broker.delays.next_due_ms() is None
    assert "too odd" in caplog.text


def test_more_than_a_batch_is_delivered(harness):
    for number in range(100):
        harness.send(properties="DELAY\x011\x02", body=b"%03d" % number)
    harness.clock.advance(1000)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    bodies = []
    offset = 0
    while (answer := harness.pull(queueOffset=offset)).code == 0:
        bodies += [record.body for record in records(answer.body)]
        offset = int(answer.ext["nextBeginOffset"])
    assert bodies == [b"%03d" % number for number in range(100)]


def test_a_failed_message_goes_to_the_retry_topic_after_a_delay(harness):
    harness.send(properties=encode_properties({"TAGS": "A", "KEYS": "k", "UNIQ_KEY": "u"}))
    harness.heartbeat(g="T")
    (record,) = records(harness.pull().body)
    answer = harness.ask(36, {"offset": record.physical_offset, "group": "g", "delayLevel": 0})
    assert answer.code == 0
    assert harness.pull("%RETRY%g").code == 19
    harness.clock.advance(10_000)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    (retry,) = records(harness.pull("%RETRY%g").body)
    known = decode_properties(retry.properties)
    assert (retry.reconsume_times, retry.body) == (1, b"hello")
    assert (known["RETRY_TOPIC"], known["TAGS"], known["KEYS"]) == ("T", "A", "k")
    assert known["ORIGIN_MESSAGE_ID"] == record.message_id
    ext = {"offset": retry.physical_offset, "group": "g", "delayLevel": 1, "originMsgId": "X"}
    assert harness.ask(36, ext).code == 0
    harness.clock.advance(1000)
    harness.broker.delays.run_due(harness.clock.wall_ms())
    again = records(harness.pull("%RETRY%g", queueOffset=1).body)[0]
    assert again.reconsume_times == 2
    assert decode_properties(again.properties)["ORIGIN_MESSAGE_ID"] == record.message_id
    assert decode_properties(again.properties)["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize("ext", [{"delayLevel": -1}, {"delayLevel": 0, "maxReconsumeTimes": 0}])
def test_a_message_given_up_goes_to_the_dead_letters(harness, ext):
    harness.send()
    harness.heartbeat(g="T")
    assert harness.ask(36, {"offset": 0, "group": "g", **ext}).code == 0
    (dead,) = records(harness.pull("%DLQ%g").body)
    assert dead.reconsume_times == 1
    assert harness.broker.topics.get("%DLQ%g").queues == 1


def test_an_old_client_has_no_say_in_the_number_of_tries(harness):
    harness.send()
    harness.heartbeat(g="T")
    ext = {"offset": 0, "group": "g", "delayLevel": 0, "maxReconsumeTimes": 0}
    assert harness.ask(36, ext, version=63).code == 0
    assert harness.broker.topics.find("%DLQ%g") is None


def test_what_cannot_be_sent_back(harness):
    harness.send()
    assert harness.ask(36, {"offset": 0, "group": "nobody", "delayLevel": 0}).code == 26
    harness.heartbeat(g="T")
    for offset in (-5, 7, 10**15):
        assert harness.ask(36, {"offset": offset, "group": "g", "delayLevel": 0}).code == 1
    harness.broker.groups.put(GroupConfig(group_name="g", retry_queue_nums=0))
    assert harness.ask(36, {"offset": 0, "group": "g", "delayLevel": 0}).code == 0
    harness.broker.groups.put(GroupConfig(group_name="g"))
    harness.broker.topics.put(TopicConfig(topic_name="%RETRY%g", perm=4))
    assert harness.ask(36, {"offset": 0, "group": "g", "delayLevel": 0}).code == 16
    harness.broker.is_accepting = False
    assert harness.ask(36, {"offset": 0, "group": "g", "delayLevel": 0}).code == 14


def test_a_client_that_sends_to_the_retry_topic_itself(harness):
    harness.heartbeat(g="T")
    assert harness.send("%RETRY%g", j=3, l=16).code == 0
    (retry,) = records(harness.pull("%RETRY%g").body)
    assert retry.reconsume_times == 3
    assert harness.send("%RETRY%g", j=17, l=16).code == 0
    assert len(records(harness.pull("%DLQ%g").body)) == 1
    harness.broker.locks.lock("g", "c", [("%RETRY%g", 0)], harness.clock.monotonic_ms())
    assert harness.send("%RETRY%g", j=1).code == 0
    assert len(records(harness.pull("%DLQ%g").body)) == 2
