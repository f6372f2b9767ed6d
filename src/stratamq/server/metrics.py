"""Prometheus metrics, under the names that RocketMQ's dashboards chart; what RocketMQ has no name for begins stratamq_.

Values are read when asked for; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratamq.broker.broker import Broker
from stratamq.server import views
from stratamq.server.remoting import RemotingListener


class BrokerCollector(Collector):
    """Makes the metrics of one broker."""

    def __init__(self, broker: Broker, listeners: Sequence[RemotingListener]) -> None:
        self._broker = broker
        self._listeners = listeners
        self._labels = ["cluster", "node_id"]
        self._values = [broker.config.cluster_name, broker.config.broker_name]

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        yield from self._traffic()
        yield from self._store()
        yield from self._topics()
        yield from self._groups()
        yield from self._connections()
        yield from self._replication()

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    def _traffic(self) -> Iterable[Metric]:
        counters = self._broker.counters
        yield self._counter("rocketmq_messages_in", "Messages stored", counters.messages_put)
        yield self._counter("rocketmq_throughput_in", "Bytes of records stored", counters.bytes_put)
        yield self._counter("rocketmq_messages_out", "Messages given to consumers", counters.messages_got)
        yield self._counter("rocketmq_throughput_out", "Bytes of records given to consumers", counters.bytes_got)
        yield self._counter("stratamq_puts_failed", "Messages the store refused", counters.puts_failed)
        yield self._gauge("stratamq_waiting_pulls", "Pulls that wait for messages", len(self._broker.waiting))

    def _store(self) -> Iterable[Metric]:
        status = self._broker.store.status()
        size = status.max_physical_offset - status.min_physical_offset
        behind = status.max_physical_offset - status.flushed_physical_offset
        yield self._gauge("rocketmq_storage_size", "Bytes of the commit log", size)
        yield self._gauge("rocketmq_storage_flush_behind_bytes", "Bytes written but not yet synced", behind)
        yield self._gauge("stratamq_store_writable", "1 while the store takes messages", float(status.is_writable))

    def _topics(self) -> Iterable[Metric]:
        offsets = GaugeMetricFamily(
            "rocketmq_producer_offset", "Messages ever sent to a topic", labels=["cluster", "broker", "topic"]
        )
        for row in views.topics(self._broker):
            total = sum(queue["max_offset"] for queue in row["queues"])
            offsets.add_metric([*self._values, row["topic"]], total)
        yield offsets

    def _groups(self) -> Iterable[Metric]:
        labels = ["cluster", "consumer_group", "topic"]
        lag = GaugeMetricFamily("rocketmq_consumer_lag_messages", "Messages not yet consumed", labels=labels)
        members = GaugeMetricFamily(
            "rocketmq_consumer_connections", "Connected consumers", labels=["cluster", "consumer_group"]
        )
        for row in views.groups(self._broker):
            members.add_metric([self._values[0], row["group"]], row["members"])
            for topic in row["topics"]:
                lag.add_metric([self._values[0], row["group"], topic["topic"]], topic["lag"])
        yield lag
        yield members
        count = sum(len(clients) for clients in self._broker.producers.groups().values())
        yield self._gauge("rocketmq_producer_connections", "Connected producers", count)

    def _replication(self) -> Iterable[Metric]:
        facts = self._broker.replica.facts()
        for name, key, text in (
            ("stratamq_slaves", "haSlaves", "Slaves that are connected"),
            ("stratamq_slaves_in_sync", "haSlavesInSync", "Slaves less than haMaxGapNotInSync behind"),
            ("stratamq_slave_behind_bytes", "haSlaveBehindBytes", "Log bytes that the slowest slave has not got"),
            ("stratamq_follows_master", "haFollowsMaster", "1 while this slave follows its master"),
            ("stratamq_behind_master_bytes", "haBehindMasterBytes", "Log bytes that this slave knows of and lacks"),
        ):
            if key in facts:
                yield self._gauge(name, text, float(facts[key]))

    def _connections(self) -> Iterable[Metric]:
        labels = ["port"]
        open_now = GaugeMetricFamily("stratamq_connections", "Open connections", labels=labels)
        accepted = CounterMetricFamily("stratamq_connections_accepted", "Connections accepted", labels=labels)
        refused = CounterMetricFamily("stratamq_connections_refused", "Connections over the limit", labels=labels)
        faults = CounterMetricFamily("stratamq_connection_faults", "Connections closed for bad bytes", labels=labels)
        requests = CounterMetricFamily("stratamq_requests", "Requests received", labels=labels)
        failed = CounterMetricFamily("stratamq_requests_failed", "Requests answered with an error", labels=labels)
        shed = CounterMetricFamily("stratamq_requests_shed", "Sends refused after waiting too long", labels=labels)
        for listener in self._listeners:
            counters, name = listener.counters, [listener.name]
            open_now.add_metric(name, len(listener.peers))
            accepted.add_metric(name, counters.accepted)
            refused.add_metric(name, counters.refused)
            faults.add_metric(name, counters.faults)
            requests.add_metric(name, counters.requests)
            failed.add_metric(name, counters.requests_failed)
            shed.add_metric(name, counters.requests_shed)
        yield from (open_now, accepted, refused, faults, requests, failed, shed)
