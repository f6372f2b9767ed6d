"""REGISTER_BROKER (103) and what else brokers and operators tell the name server: 104, 205, 216, 217, 322, 327, 904.

Source: apache/rocketmq namesrv/.../DefaultRequestProcessor.java, remoting/.../RegisterBrokerBody.java.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from stratamq.clock import Clock
from stratamq.nameserver.kv import KvConfig
from stratamq.nameserver.routes import (
    BROKER_TIMEOUT_MS,
    DataVersion,
    QueueData,
    QueueMapping,
    Registration,
    RouteTable,
)
from stratamq.protocols.remoting.bodies import body_error, dump, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.fastjson import loads
from stratamq.protocols.remoting.headers import (
    BrokerHeader,
    BrokerNameHeader,
    HeaderReader,
    RegisterBrokerHeader,
    TopicHeader,
)
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.units import MiB

_read_register: Final = HeaderReader(RegisterBrokerHeader)
_read_broker: Final = HeaderReader(BrokerHeader)
_read_broker_name: Final = HeaderReader(BrokerNameHeader)
_read_topic: Final = HeaderReader(TopicHeader)
_U32: Final = struct.Struct(">i")
INFLATED_BYTES_MAX: Final = 64 * MiB


class BrokerRequests:
    """Keeps the route table as brokers and operators say."""

    def __init__(self, routes: RouteTable, kv: KvConfig, clock: Clock) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock

    @serves(RequestCode.REGISTER_BROKER)
    def register(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take a broker with its topics; answer with the order settings."""
        fields = _read_register(header)
        if fields.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != fields.body_crc32:
            raise body_error(f"the body's CRC-32 is not {fields.body_crc32}")
        said = decode_registration(body, compressed=fields.compressed)
        timeout_ms = fields.heartbeat_timeout_millis or BROKER_TIMEOUT_MS
        answer = self._routes.register(
            Registration(
                cluster=fields.cluster_name,
                name=fields.broker_name,
                address=fields.broker_addr,
                broker_id=fields.broker_id,
                ha_address=fields.ha_server_addr,
                version=said.version,
                topics=said.topics,
                mappings=said.mappings,
                timeout_ms=timeout_ms if timeout_ms > 0 else BROKER_TIMEOUT_MS,
                is_acting_master_enabled=bool(fields.enable_acting_master),
                zone=fields.zone_name,
            ),
            now_ms=self._clock.monotonic_ms(),
            connection=peer,
        )
        ext = {"haServerAddr": answer.ha_address, "masterAddr": answer.master_address}
        text = dump({"table": self._kv.order_topics()}).encode()
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body=text)

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take a broker's address away."""
        fields = _read_broker(header)
        self._routes.unregister(fields.cluster_name, fields.broker_name, fields.broker_addr, fields.broker_id)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.BROKER_HEARTBEAT)
    def heartbeat(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Note that a broker is alive."""
        fields = _read_broker(header)
        self._routes.touch(fields.cluster_name, fields.broker_addr, now_ms=self._clock.monotonic_ms())
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.QUERY_DATA_VERSION)
    def data_version(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Say whether a broker's topics changed since it registered."""
        fields = _read_broker(header)
        theirs = _version(load_object(body))
        ours = self._routes.data_version(fields.cluster_name, fields.broker_addr)
        self._routes.touch(fields.cluster_name, fields.broker_addr, now_ms=self._clock.monotonic_ms())
        text = b"" if ours is None else dump(_version_json(ours)).encode()
        changed = "false" if ours == theirs else "true"
        return encode_response(header, ResponseCode.SUCCESS, ext={"changed": changed}, body=text)

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take the write permission of a broker's topics in this name server."""
        count = self._routes.set_write_perm(_read_broker_name(header).broker_name, writable=False)
        return encode_response(header, ResponseCode.SUCCESS, ext={"wipeTopicCount": str(count)})

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Give the write permission of a broker's topics back in this name server."""
        count = self._routes.set_write_perm(_read_broker_name(header).broker_name, writable=True)
        return encode_response(header, ResponseCode.SUCCESS, ext={"addTopicCount": str(count)})

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Forget a topic's route."""
        fields = _read_topic(header)
        self._routes.delete_topic(fields.topic, fields.cluster_name or None)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    def register_topic(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take a topic's queues on known brokers."""
        queues = load_object(body).get("queueDatas")
        if not isinstance(queues, list):
            raise body_error("queueDatas is missing")
        data = {str(entry.get("brokerName")): _queue_data(entry) for entry in queues if isinstance(entry, dict)}
        self._routes.add_topic(_read_topic(header).topic, data)
        return encode_response(header, ResponseCode.SUCCESS)


class Said(NamedTuple):
    """What the body of a registration says."""

    version: DataVersion = DataVersion()
    topics: Mapping[str, QueueData] = {}
    mappings: Mapping[str, QueueMapping] = {}


def decode_registration(body: memoryview, *, compressed: bool) -> Said:
    """A broker's topics, from the JSON or the compressed body. Raises RemoteProtocolError."""
    if not body:
        return Said()
    if compressed:
        return _decode_compressed(body)
    given = loads(body)  # real brokers leave the quotes off the queue numbers of a mapping
    if not isinstance(given, dict):
        raise body_error("body must be a JSON object")
    wrapper = given.get("topicConfigSerializeWrapper")
    if not isinstance(wrapper, dict):
        return Said()
    table = wrapper.get("topicConfigTable")
    topics = {name: _queue_data(entry) for name, entry in (table or {}).items() if isinstance(entry, dict)}
    infos = wrapper.get("topicQueueMappingInfoMap")
    mappings = {name: queue_mapping(entry) for name, entry in (infos or {}).items() if isinstance(entry, dict)}
    return Said(_version(wrapper.get("dataVersion")), topics, mappings)


def _decode_compressed(body: memoryview) -> Said:
    """Layout inside: length i32, data version JSON | topic count i32, then length i32 and text of each | length i32,
    filter servers JSON | mapping count i32, then length i32 and JSON of each. Brokers before 5.0 end before the last.
    """
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
        version_bytes = _U32.unpack_from(data)[0]
        at = 4 + version_bytes
        version = _version(json.loads(data[4:at]))
        count = _U32.unpack_from(data, at)[0]
        at += 4
        topics: dict[str, QueueData] = {}
        for _ in range(count):
            length = _U32.unpack_from(data, at)[0]
            if length < 0:
                raise ValueError(f"a text of {length} bytes")
            name, reads, writes, perm = data[at + 4 : at + 4 + length].decode().split(" ")[:4]
            topics[name] = QueueData(int(reads), int(writes), int(perm))
            at += 4 + length
        mappings = _decode_mappings(data, at)
    except (zlib.error, struct.error, ValueError, UnicodeDecodeError) as error:
        raise body_error(f"compressed registration cannot be read: {error}") from error
    return Said(version, topics, mappings)


def _decode_mappings(data: bytes, at: int) -> dict[str, QueueMapping]:
    """What follows the topics of a compressed body."""
    if at + 4 > len(data):
        return {}
    at += 4 + _U32.unpack_from(data, at)[0]
    if at < 0 or at + 4 > len(data):
        return {}
    count = _U32.unpack_from(data, at)[0]
    at += 4
    found: dict[str, QueueMapping] = {}
    for _ in range(count):
        length = _U32.unpack_from(data, at)[0]
        if length < 0:
            raise ValueError(f"a mapping of {length} bytes")
        entry = loads(data[at + 4 : at + 4 + length])
        if isinstance(entry, dict):
            found[str(entry.get("topic"))] = queue_mapping(entry)
        at += 4 + length
    return found


def _queue_data(entry: Mapping[str, Any]) -> QueueData:
    def number(name: str, default: int) -> int:
        value = entry.get(name)
        try:
            return default if value is None else int(value)
        except (TypeError, ValueError) as error:
            raise body_error(f"{name} is {value!r}, not a number") from error

    return QueueData(
        number("readQueueNums", 16), number("writeQueueNums", 16), number("perm", 6), number("topicSysFlag", 0)
    )


def queue_mapping(entry: Mapping[str, Any]) -> QueueMapping:
    """What a broker says it leads of a static topic. Raises RemoteProtocolError."""
    led = entry.get("currIdMap") or {}
    try:
        pairs = sorted((int(logical), int(physical)) for logical, physical in led.items())
        total, epoch = int(entry.get("totalQueues") or 0), int(entry.get("epoch") or 0)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise body_error(f"a queue mapping cannot be read: {error}") from error
    return QueueMapping(total, epoch, str(entry.get("scope") or ""), bool(entry.get("dirty")), tuple(pairs))


def _version(value: Any) -> DataVersion:
    fields = value if isinstance(value, dict) else {}
    numbers = [fields.get(name) for name in ("stateVersion", "timestamp", "counter")]
    return DataVersion(*[number if isinstance(number, int) else 0 for number in numbers])


def _version_json(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}
