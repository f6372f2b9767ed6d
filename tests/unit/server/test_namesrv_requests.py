"""What clients, brokers and operators ask the name server."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from stratamq.clock import SystemClock
from stratamq.nameserver.kv import KvConfig
from stratamq.nameserver.routes import DataVersion, QueueData, Registration, RouteTable
from stratamq.protocols.remoting.replies import encode_response, response_to_error
from stratamq.server.requests.base import collect
from stratamq.server.requests.namesrv_brokers import BrokerRequests
from stratamq.server.requests.namesrv_kv import KvRequests
from stratamq.server.requests.namesrv_routes import RouteRequests
from tests.unit.protocols import wire
from tests.unit.protocols.test_remoting_headers import header
from tests.unit.server.harness import FakePeer


class NameServerHarness:
    def __init__(self) -> None:
        self.routes, self.kv = RouteTable(), KvConfig()
        self.peer = FakePeer()
        self.tells_order = False
        self._handlers = collect(
            RouteRequests(self.routes, self.kv, lambda: self.tells_order),
            BrokerRequests(self.routes, self.kv, SystemClock()),
            KvRequests(self.kv),
        )

    def ask(self, code, body=b"", *, version=475, **ext):
        asked = header(**ext)
        asked.version = version
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = self._handlers[code](self.peer, asked, memoryview(data))
        except Exception as error:
            number, remark = response_to_error(error)
            answer = encode_response(asked, number, remark=remark)
        assert answer is not None
        return wire.one(answer)


@pytest.fixture
def server() -> NameServerHarness:
    made = NameServerHarness()
    made.routes.register(
        Registration(
            cluster="C",
            name="broker-a",
            address="10.0.0.5:10911",
            version=DataVersion(1, 2, 3),
            topics={"T": QueueData(4, 4, 6), "U": QueueData(8, 8, 7)},
        ),
        now_ms=0,
    )
    return made


STANDARD = (
    '{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.5:10911"},"brokerName":"broker-a","cluster":"C",'
    '"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)


@pytest.mark.parametrize(
    ("version", "ext", "is_standard"),
    [
        (475, {}, True),
        (401, {}, True),
        (400, {}, False),
        (317, {}, False),
        (63, {"acceptStandardJsonOnly": "true"}, True),
        (63, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_a_route_in_the_dialect_of_the_client(server, version, ext, is_standard):
    answer = server.ask(105, topic="T", version=version, **ext)
    expected = STANDARD if is_standard else STANDARD.replace('{"0":', "{0:")
    assert (answer.code, answer.body.decode()) == (0, expected)
    assert server.ask(105, topic="T", version=version, **ext).body == answer.body


def test_a_route_follows_changes(server):
    server.ask(105, topic="T")
    server.routes.unregister("C", "broker-a", "10.0.0.5:10911", 0)
    answer = server.ask(105, topic="T")
    assert answer.code == 17
    assert (answer.remark or "").startswith("No topic route info in name server for the topic: T\n")


def test_lists(server):
    cluster = json.loads(server.ask(106).body)
    assert cluster["clusterAddrTable"] == {"C": ["broker-a"]}
    assert cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "10.0.0.5:10911"}
    assert b"{0:" in server.ask(106, version=317).body
    assert json.loads(server.ask(206).body) == {"topicList": ["T", "U"]}
    assert json.loads(server.ask(224, cluster="C").body) == {"topicList": ["T", "U"]}
    assert json.loads(server.ask(304).body) == {"topicList": ["C", "broker-a"], "brokerAddr": "10.0.0.5:10911"}
    group = json.loads(server.ask(901, clusterName="C", brokerName="broker-a").body)["brokerMemberGroup"]
    assert group == {"brokerAddrs": {"0": "10.0.0.5:10911"}, "brokerName": "broker-a", "cluster": "C"}


def registration_body() -> dict:
    config = {"perm": 6, "readQueueNums": 2, "writeQueueNums": 2, "topicName": "V", "attributes": {}}
    return {
        "topicConfigSerializeWrapper": {
            "topicConfigTable": {"V": config, "W": {"topicName": "W"}},
            "dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 5},
            "topicQueueMappingInfoMap": {},
        },
        "filterServerList": [],
    }


REGISTER = {
    "brokerName": "broker-b",
    "brokerAddr": "10.0.0.6:10911",
    "clusterName": "C",
    "haServerAddr": "10.0.0.6:10912",
    "brokerId": "0",
    "compressed": "false",
    "enableActingMaster": "false",
}


def test_a_real_brokers_registration(server):
    body = json.dumps(registration_body()).encode()
    server.kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:8")
    crc = str(zlib.crc32(body) & 0x7FFFFFFF)
    answer = server.ask(103, body, **REGISTER, bodyCrc32=crc)
    assert (answer.code, answer.ext) == (0, {"haServerAddr": "", "masterAddr": ""})
    assert json.loads(answer.body) == {"table": {"T": "broker-a:8"}}
    route = json.loads(server.ask(105, topic="V").body)
    assert route["queueDatas"][0]["readQueueNums"] == 2
    assert json.loads(server.ask(105, topic="W").body)["queueDatas"][0]["readQueueNums"] == 16
    slave = server.ask(103, body, **REGISTER | {"brokerId": "1", "brokerAddr": "10.0.0.7:10911"})
    assert slave.ext == {"haServerAddr": "10.0.0.6:10912", "masterAddr": "10.0.0.6:10911"}
    assert server.ask(103, body, **REGISTER, bodyCrc32="5").code == 1
    answer = server.ask(322, {"counter": 7, "stateVersion": 0, "timestamp": 5}, **REGISTER)
    assert answer.ext == {"changed": "false"}
    answer = server.ask(322, {"counter": 8, "stateVersion": 0, "timestamp": 5}, **REGISTER)
    assert (answer.ext, json.loads(answer.body)["counter"]) == ({"changed": "true"}, 7)
    assert server.ask(904, **REGISTER).code == 0
    assert server.routes.drop_connection(server.peer) == ["10.0.0.6:10911", "10.0.0.7:10911"]
    assert server.ask(105, topic="V").code == 17


def test_a_brokers_farewell(server):
    server.ask(103, registration_body(), **REGISTER)
    assert server.ask(104, **REGISTER).code == 0
    assert server.ask(105, topic="V").code == 17


LED = {"bname": "broker-b", "dirty": False, "epoch": 7, "scope": "__global__", "topic": "V", "totalQueues": 3}


def test_a_route_says_which_queues_of_a_static_topic_a_broker_leads(server):
    body = registration_body()
    wrapper = body["topicConfigSerializeWrapper"]
    wrapper["topicQueueMappingInfoMap"] = {"V": LED | {"currIdMap": {"2": 0, "1": 1}}}
    unquoted = json.dumps(body).replace('"2":', "2:").replace('"1":', "1:").encode()
    assert server.ask(103, unquoted, **REGISTER).code == 0
    route = json.loads(server.ask(105, topic="V").body)
    assert route["topicQueueMappingByBroker"] == {"broker-b": LED | {"currIdMap": {"1": 1, "2": 0}}}
    assert "topicQueueMappingByBroker" not in json.loads(server.ask(105, topic="W").body)
    wrapper["dataVersion"]["counter"] += 1
    wrapper["topicQueueMappingInfoMap"] = {}
    assert server.ask(103, body, **REGISTER).code == 0
    assert "topicQueueMappingByBroker" not in json.loads(server.ask(105, topic="V").body)


def test_a_mapping_goes_with_its_broker(server):
    body = registration_body()
    body["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {"V": LED | {"currIdMap": {}}}
    server.ask(103, body, **REGISTER)
    server.ask(104, **REGISTER)
    assert server.ask(105, topic="V").code == 17
    assert server.routes._mappings == {}


@pytest.mark.parametrize("wrong", [{"currIdMap": [1]}, {"currIdMap": {"x": 1}}, {"epoch": "y"}, {"totalQueues": [1]}])
def test_a_bad_mapping_is_answered(server, wrong):
    body = registration_body()
    body["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {"V": LED | wrong}
    assert server.ask(103, body, **REGISTER).code == 1
    assert server.ask(105, topic="V").code == 17


@pytest.mark.parametrize("tail", [b"", struct.pack(">i", 0), struct.pack(">i", 1) + struct.pack(">i", 2) + b"{}"])
def test_a_compressed_registration_ends_with_mappings(server, tail):
    text = json.dumps(LED | {"currIdMap": {"0": 0}}).encode()
    whole = zlib.decompress(compressed()) + struct.pack(">ii", 1, len(text)) + text
    assert server.ask(103, zlib.compress(whole), **REGISTER | {"compressed": "true"}).code == 0
    assert json.loads(server.ask(105, topic="V").body)["topicQueueMappingByBroker"]["broker-b"]["epoch"] == 7
    broken = zlib.compress(whole[:-1])
    assert server.ask(103, broken, **REGISTER | {"compressed": "true"}).code == 1
    assert (
        server.ask(103, zlib.compress(zlib.decompress(compressed()) + tail), **REGISTER | {"compressed": "true"}).code
        == 0
    )


def compressed(*, count: int = 2) -> bytes:
    version = b'{"counter":9,"stateVersion":0,"timestamp":5}'
    topics = [b"V 2 2 6 SINGLE_TAG {}", b"W 3 3 6 SINGLE_TAG {}"]
    data = struct.pack(">i", len(version)) + version + struct.pack(">i", count)
    data += b"".join(struct.pack(">i", len(topic)) + topic for topic in topics) + struct.pack(">i", 2) + b"[]"
    return zlib.compress(data)


def test_a_compressed_registration(server):
    assert server.ask(103, compressed(), **REGISTER | {"compressed": "true"}).code == 0
    assert json.loads(server.ask(105, topic="W").body)["queueDatas"][0]["readQueueNums"] == 3


@pytest.mark.parametrize("body", [b"x", compressed(count=100), compressed(count=-1)[:20], zlib.compress(b"\xff" * 40)])
def test_a_bad_compressed_registration_is_answered(server, body):
    assert server.ask(103, body, **REGISTER | {"compressed": "true"}).code == 1


@pytest.mark.parametrize(
    "body", [b"{", b"[]", {"topicConfigSerializeWrapper": {"topicConfigTable": {"V": {"perm": "x"}}}}]
)
def test_a_bad_registration_is_answered(server, body):
    assert server.ask(103, body, **REGISTER).code == 1


def test_operators_change_routes(server):
    assert server.ask(205, brokerName="broker-a").ext == {"wipeTopicCount": "2"}
    assert json.loads(server.ask(105, topic="T").body)["queueDatas"][0]["perm"] == 4
    assert server.ask(327, brokerName="broker-a").ext == {"addTopicCount": "2"}
    assert json.loads(server.ask(105, topic="T").body)["queueDatas"][0]["perm"] == 6
    assert server.ask(216, topic="T").code == 0
    assert server.ask(105, topic="T").code == 17
    queues = [{"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}]
    assert server.ask(217, {"queueDatas": queues}, topic="T").code == 0
    assert server.ask(105, topic="T").body.decode() == STANDARD
    assert server.ask(217, {}, topic="T").code == 1


def test_key_value_settings(server):
    assert server.ask(100, namespace="n", key="k", value="v").code == 0
    assert server.ask(101, namespace="n", key="k").ext == {"value": "v"}
    assert json.loads(server.ask(219, namespace="n").body) == {"table": {"k": "v"}}
    assert server.ask(102, namespace="n", key="k").code == 0
    assert server.ask(101, namespace="n", key="k").code == 22
    assert server.ask(219, namespace="n").code == 22
    assert server.ask(100, namespace="n", key="k").code == 29


def test_a_route_carries_order_settings_when_that_is_on(server):
    server.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    plain = server.ask(105, topic="T").body
    assert b"orderTopicConf" not in plain
    server.tells_order = True
    told = json.loads(server.ask(105, topic="T").body)
    assert told.pop("orderTopicConf") == "broker-a:4"
    assert told == json.loads(plain)
    assert b"orderTopicConf" not in server.ask(105, topic="U").body
