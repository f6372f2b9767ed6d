"""The name server of this process: route table, key-value settings, port. Real brokers may register here as well."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratamq.broker.broker import Broker
from stratamq.broker.ports import SavedValue
from stratamq.broker.topics import TopicConfig
from stratamq.clock import Clock
from stratamq.config import ServerConfig
from stratamq.nameserver.kv import KvConfig
from stratamq.nameserver.routes import DataVersion, QueueData, Registration, RouteTable
from stratamq.server.live_settings import LIVE_NAMES, LiveSettings, with_kept
from stratamq.server.remoting import RemotingListener, RemotingPeer
from stratamq.server.requests.base import collect
from stratamq.server.requests.namesrv_brokers import BrokerRequests, queue_mapping
from stratamq.server.requests.namesrv_kv import KvRequests
from stratamq.server.requests.namesrv_routes import RouteRequests
from stratamq.server.requests.settings import NameSettingsRequests
from stratamq.server.tls import Tls

_log = logging.getLogger(__name__)


class NameServer:
    """Routes for clients. ``file`` keeps the key-value settings, ``kept`` what operators changed of the others."""

    def __init__(
        self, config: ServerConfig, clock: Clock, file: SavedValue, kept: Path, tls: Tls | None = None
    ) -> None:
        self._clock = clock
        self._file = file
        self.routes = RouteTable()
        self.kv = KvConfig(file.load(), on_change=self._save)
        configs = with_kept({ServerConfig: config}, kept, LIVE_NAMES)
        handlers = collect(
            RouteRequests(self.routes, self.kv, lambda: self.listener.config.order_topics),
            BrokerRequests(self.routes, self.kv, clock),
            KvRequests(self.kv),
            NameSettingsRequests(LiveSettings(configs, kept, apply=self._take_changed, live=LIVE_NAMES)),
        )
        self.listener = RemotingListener(
            "name server", configs[ServerConfig], handlers, on_lost=self._peer_lost, tls=tls
        )

    def _take_changed(self, configs: Mapping[type[Any], Any]) -> None:
        self.listener.config = configs[ServerConfig]

    def register_own(self, broker: Broker) -> None:
        """Take the broker of this process with all its topics; it does not expire."""
        version = broker.topics.version
        self.routes.register(
            Registration(
                cluster=broker.config.cluster_name,
                name=broker.config.broker_name,
                address=str(broker.address),
                version=DataVersion(version.state_version, version.timestamp, version.counter),
                topics={
                    name: _queue_data(topic.routed(broker.config.permission))
                    for name, topic in broker.topics.configs().items()
                },
                mappings={topic: queue_mapping(info) for topic, info in broker.static_topics.infos().items()},
            ),
            now_ms=self._clock.monotonic_ms(),
            permanent=True,
        )

    def update_own(self, broker: Broker, topic: TopicConfig) -> None:
        """A topic of the broker of this process was made or changed."""
        routed = topic.routed(broker.config.permission)
        name, mapping = broker.config.broker_name, broker.static_topics.find(topic.topic_name)
        self.routes.add_topic(topic.topic_name, {name: _queue_data(routed)})
        self.routes.set_mapping(topic.topic_name, name, None if mapping is None else queue_mapping(mapping.info()))

    def forget_own(self, broker_name: str, topic: str) -> None:
        """A topic of the broker of this process is gone."""
        self.routes.forget_queues(topic, broker_name)

    def expire(self) -> None:
        """Drop brokers that were silent too long."""
        for address in self.routes.expire(self._clock.monotonic_ms()):
            _log.warning("broker %s is silent: its routes are gone", address)

    def _peer_lost(self, peer: RemotingPeer) -> None:
        for address in self.routes.drop_connection(peer):
            _log.warning("broker %s has disconnected: its routes are gone", address)

    def _save(self, value: Any) -> None:
        self._file.store(value)


def _queue_data(topic: TopicConfig) -> QueueData:
    return QueueData(topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
