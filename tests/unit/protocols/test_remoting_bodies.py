"""Bodies: heartbeats in every dialect, batches, maps with objects as keys."""

from __future__ import annotations

import json

import pytest

from stratamq.errors import MessageIllegal, RemoteProtocolError
from stratamq.protocols.remoting.bodies import (
    MessageQueue,
    decode_batch,
    decode_heartbeat,
    decode_lock_request,
    decode_subscription,
    encode_batch,
    encode_queue_map,
)

BATCH_ITEM = bytes.fromhex("00 00 00 1f 00000000 00000000 00000000 00 00 00 02 68 69 00 07 4b 45 59 53 01 6b 02")


def test_the_batch_item_described():
    ((flag, body, properties),) = decode_batch(memoryview(BATCH_ITEM))
    assert (flag, bytes(body), properties) == (0, b"hi", "KEYS\x01k\x02")
    assert encode_batch([(0, b"hi", "KEYS\x01k\x02")]) == BATCH_ITEM


@pytest.mark.parametrize("cut", range(1, len(BATCH_ITEM)))
def test_a_cut_batch_is_refused(cut):
    with pytest.raises(MessageIllegal):
        decode_batch(memoryview(BATCH_ITEM + BATCH_ITEM[:cut]))


def test_lengths_of_a_batch_are_checked():
    with pytest.raises(MessageIllegal, match="empty"):
        decode_batch(memoryview(b""))
    for at in (0, 16, 22):
        for value in (b"\xff\xff", b"\x7f\xff", b"\x00\x00"):
            bad = bytearray(BATCH_ITEM)
            bad[at : at + 2] = value
            if bytes(bad) != BATCH_ITEM:
                with pytest.raises(MessageIllegal):
                    decode_batch(memoryview(bad))
    with pytest.raises(MessageIllegal, match="UTF-8"):
        decode_batch(memoryview(BATCH_ITEM[:-2] + b"\xff\x02"))


def test_the_heartbeat_of_a_java_client():
    body = {
        "clientID": "10.0.0.1@1",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": "g",
                "messageModel": "BROADCASTING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [2598919],
                        "expressionType": "TAG",
                        "subString": "TagA",
                        "subVersion": 1767225600000,
                        "tagsSet": ["TagA"],
                        "topic": "T",
                    }
                ],
                "unitMode": False,
            }
        ],
        "heartbeatFingerprint": 0,
        "isWithoutSub": False,
        "producerDataSet": [{"groupName": "p"}, {"groupName": "CLIENT_INNER_PRODUCER"}],
    }
    heartbeat = decode_heartbeat(json.dumps(body).encode())
    assert heartbeat.client_id == "10.0.0.1@1"
    assert heartbeat.producer_groups == ("p", "CLIENT_INNER_PRODUCER")
    (consumer,) = heartbeat.consumers
    assert (consumer.group, consumer.message_model) == ("g", "BROADCASTING")
    assert consumer.consume_from == "CONSUME_FROM_FIRST_OFFSET"
    (subscription,) = consumer.subscriptions
    assert (subscription.topic, subscription.expression, subscription.version) == ("T", "TagA", 1767225600000)


def test_the_heartbeat_of_the_cpp_client():
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": 1,
                "messageModel": 1,
                "consumeFromWhere": 0,
                "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": "17"}],
            }
        ],
        "producerDataSet": [],
    }
    (consumer,) = decode_heartbeat(json.dumps(body).encode()).consumers
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert consumer.consume_from == "CONSUME_FROM_LAST_OFFSET"
    assert (consumer.subscriptions[0].version, consumer.subscriptions[0].expression_type) == (17, "TAG")


@pytest.mark.parametrize(
    ("value", "name"),
    [(0, "BROADCASTING"), ("0", "BROADCASTING"), (1, "CLUSTERING"), (7, "CLUSTERING"), ("x", "CLUSTERING")],
)
def test_enums_by_ordinal(value, name):
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "messageModel": value}]}
    assert decode_heartbeat(json.dumps(body).encode()).consumers[0].message_model == name


def test_odd_heartbeats_do_not_fail():
    for body in (
        {"clientID": "c"},
        {"clientID": "c", "producerDataSet": None, "consumerDataSet": "x"},
        {"clientID": "c", "producerDataSet": [None, 5, {}], "consumerDataSet": [{"groupName": None}]},
        {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": None}]}]},
    ):
        assert decode_heartbeat(json.dumps(body).encode()).client_id == "c"
    for text in (b"", b"[]", b"{}", b'{"clientID":5}', b"\xff"):
        with pytest.raises(RemoteProtocolError):
            decode_heartbeat(text)


def test_lock_and_check_bodies():
    body = {
        "clientId": "c",
        "consumerGroup": "g",
        "mqSet": [{"brokerName": "b", "queueId": "3", "topic": "T"}],
        "onlyThisBroker": False,
    }
    request = decode_lock_request(json.dumps(body).encode())
    assert (request.group, request.client_id, request.queues) == ("g", "c", (MessageQueue("T", "b", 3),))
    check = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "expressionType": "SQL92"}}
    client, group, subscription = decode_subscription(json.dumps(check).encode())
    assert (client, group) == ("c", "g")
    assert subscription is not None
    assert subscription.expression_type == "SQL92"


def test_a_map_by_queue_has_the_queue_itself_as_key():
    text = encode_queue_map([(MessageQueue("t", "b", 0), {"x": 5})])
    assert text == '{{"brokerName":"b","queueId":0,"topic":"t"}:{"x":5}}'
