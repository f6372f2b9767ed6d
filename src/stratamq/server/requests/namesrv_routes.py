"""GET_ROUTEINFO_BY_TOPIC (105) and the other questions about routes: 106, 206, 224, 304, 901.

The keys of ``brokerAddrs`` are broker ids. Clients from V4_9_4 on, and those that ask for it, get them quoted; older
ones get fastjson's bare numbers, which some of them need. No blank stands anywhere in the text: one client cuts it by
hand.

Source: apache/rocketmq namesrv/.../ClientRequestProcessor.java, DefaultRequestProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratamq.errors import TopicNotFound
from stratamq.nameserver.kv import KvConfig
from stratamq.nameserver.routes import BrokerData, QueueMapping, Route, RouteTable
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import BrokerHeader, ClusterHeader, HeaderReader, RouteHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_read_route: Final = HeaderReader(RouteHeader)
_read_cluster: Final = HeaderReader(ClusterHeader)
_read_broker: Final = HeaderReader(BrokerHeader)
_CACHED_ROUTES_MAX: Final = 10_000


class RouteRequests:
    """Answers who owns what. ``tells_order`` says whether a route carries its topic's order settings."""

    def __init__(self, routes: RouteTable, kv: KvConfig, tells_order: Callable[[], bool] = lambda: False) -> None:
        self._tells_order = tells_order
        self._routes = routes
        self._kv = kv
        self._cache: dict[tuple[str, bool], bytes] = {}
        self._cache_generation = -1

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the brokers and queues of a topic."""
        fields = _read_route(header)
        is_standard = header.version >= VERSION_STANDARD_JSON or bool(fields.accept_standard_json_only)
        text = self._route_text(fields.topic, is_standard)
        order = self._kv.order_topics().get(fields.topic) if self._tells_order() else None
        if order is not None:
            text = f'{{"orderTopicConf":{dump(order)},'.encode() + text[1:]
        return encode_response(header, ResponseCode.SUCCESS, body=text)

    def _route_text(self, topic: str, is_standard: bool) -> bytes:
        if self._cache_generation != self._routes.generation or len(self._cache) > _CACHED_ROUTES_MAX:
            self._cache.clear()
            self._cache_generation = self._routes.generation
        text = self._cache.get((topic, is_standard))
        if text is None:
            route = self._routes.route(topic)
            if route is None:
                raise TopicNotFound(
                    f"No topic route info in name server for the topic: {topic}\n"
                    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
                )
            text = self._cache[topic, is_standard] = encode_route(topic, route, is_standard=is_standard).encode()
        return text

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return all brokers and clusters."""
        is_standard = header.version >= VERSION_STANDARD_JSON
        brokers = ",".join(
            f"{dump(data.name)}:{encode_broker(data, is_standard=is_standard)}" for data in self._routes.brokers()
        )
        text = f'{{"brokerAddrTable":{{{brokers}}},"clusterAddrTable":{dump(self._routes.clusters())}}}'
        return encode_response(header, ResponseCode.SUCCESS, body=text.encode())

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def all_topics(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the names of all topics."""
        return _topic_list(header, self._routes.topics())

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the names of a cluster's topics."""
        return _topic_list(header, self._routes.topics_of_cluster(_read_cluster(header).cluster))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the names of clusters and brokers, which are topics too, and one broker's address."""
        clusters = self._routes.clusters()
        names = sorted({*clusters, *(name for names in clusters.values() for name in names)})
        addresses = [address for data in self._routes.brokers() for address in data.addresses.values()]
        answer: dict[str, object] = {"topicList": names}
        if addresses:
            answer["brokerAddr"] = addresses[0]
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    @serves(RequestCode.GET_BROKER_MEMBER_GROUP)
    def member_group(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the addresses of one broker name."""
        fields = _read_broker(header)
        data = self._routes.broker(fields.broker_name)
        addresses = data.addresses if data is not None else {}
        text = (
            f'{{"brokerMemberGroup":{{"brokerAddrs":{_addresses(addresses, is_standard=True)},'
            f'"brokerName":{dump(fields.broker_name)},"cluster":{dump(fields.cluster_name)}}}}}'
        )
        return encode_response(header, ResponseCode.SUCCESS, body=text.encode())


def encode_route(topic: str, route: Route, *, is_standard: bool) -> str:
    """A topic's route as clients read it, members in alphabetical order."""
    brokers = ",".join(encode_broker(data, is_standard=is_standard) for data in route.brokers)
    queues = ",".join(
        dump(
            {
                "brokerName": name,
                "perm": data.perm,
                "readQueueNums": data.read_queues,
                "topicSysFlag": data.sys_flag,
                "writeQueueNums": data.write_queues,
            }
        )
        for name, data in route.queues.items()
    )
    mappings = {name: mapping_json(topic, name, mapping) for name, mapping in route.mappings.items()}
    static = f',"topicQueueMappingByBroker":{dump(mappings)}' if mappings else ""
    return f'{{"brokerDatas":[{brokers}],"filterServerTable":{{}},"queueDatas":[{queues}]{static}}}'


def mapping_json(topic: str, broker_name: str, mapping: QueueMapping) -> dict[str, object]:
    """What one broker leads of a static topic, under RocketMQ's member names."""
    return {
        "bname": broker_name,
        "currIdMap": {str(logical): physical for logical, physical in mapping.led},
        "dirty": mapping.is_dirty,
        "epoch": mapping.epoch,
        "scope": mapping.scope,
        "topic": topic,
        "totalQueues": mapping.total_queues,
    }


def encode_broker(data: BrokerData, *, is_standard: bool) -> str:
    """One broker name with its addresses."""
    zone = f',"zoneName":{dump(data.zone)}' if data.zone else ""
    return (
        f'{{"brokerAddrs":{_addresses(data.addresses, is_standard=is_standard)},"brokerName":{dump(data.name)},'
        f'"cluster":{dump(data.cluster)},"enableActingMaster":{dump(data.is_acting_master_enabled)}{zone}}}'
    )


def _addresses(addresses: dict[int, str], *, is_standard: bool) -> str:
    quote = '"' if is_standard else ""
    return "{" + ",".join(f"{quote}{key}{quote}:{dump(value)}" for key, value in sorted(addresses.items())) + "}"


def _topic_list(header: CommandHeader, topics: list[str]) -> bytes:
    return encode_response(header, ResponseCode.SUCCESS, body=dump({"topicList": topics}).encode())
