"""One broker: its tables, its store, and what ties them together. No socket and no timer in here.

Tables announce their changes; `Broker.unsaved` says what has to be written. Whoever runs the broker writes it, calls
`Broker.expire_clients` now and then, and tells the name server of every topic that changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from stratamq.broker.assignments import FindQueues, queues_here
from stratamq.broker.clients import ConsumerTable, ProducerTable
from stratamq.broker.delays import Delays
from stratamq.broker.filters import FilterTable
from stratamq.broker.groups import GroupTable
from stratamq.broker.half_counts import HalfCounts
from stratamq.broker.light import (
    LIGHT_OFFSETS_FILE,
    LightGroupTable,
    LightOffsetsFile,
    LightTopicTable,
    load_offsets,
)
from stratamq.broker.locks import QueueLocks
from stratamq.broker.long_polling import WaitingPulls
from stratamq.broker.neighbours import Neighbours, NoNeighbours
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.pop import Pop
from stratamq.broker.pop_order import PopOrder
from stratamq.broker.ports import CommitterSurface, SavedTable, SavedValue, StoreSurface, Worker
from stratamq.broker.replica import Replica
from stratamq.broker.request_modes import RequestModes
from stratamq.broker.sending import Sending, UniqueKeys
from stratamq.broker.static_topics import StaticTopics
from stratamq.broker.statistics import Statistics, Totals
from stratamq.broker.timers import Timers
from stratamq.broker.topics import (
    CHECK_MAX_TOPIC,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    SCHEDULE_QUEUES,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    TopicConfig,
    TopicTable,
)
from stratamq.broker.transactions import Transactions
from stratamq.clock import Clock
from stratamq.config import BrokerConfig, StoreConfig, parse_delay_levels
from stratamq.errors import StrataError

_log = logging.getLogger(__name__)
TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
FILTERS_FILE: Final = "consumerFilter.json"
TIMER_METRICS_FILE: Final = "timermetrics"
HALF_COUNTS_FILE: Final = "transactionMetrics"
DELAYS_FILE: Final = "delayOffset.json"
POP_ORDER_FILE: Final = "consumerOrderInfo.json"
REQUEST_MODES_FILE: Final = "messageRequestMode.json"
MAPPINGS_FILE: Final = "topicQueueMapping.json"


@dataclass(slots=True)
class Counters:
    """What a broker has done since it started."""

    started_ms: int
    messages_put: int = 0
    bytes_put: int = 0
    puts_failed: int = 0
    messages_got: int = 0
    bytes_got: int = 0
    gets_found: int = 0
    gets_missed: int = 0
    requests_refused: int = 0


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where clients reach the broker. ``host_bytes`` is the form that records hold."""

    host: str
    port: int
    host_bytes: bytes

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class _Dirty:
    topics: bool = False
    groups: bool = False


class Broker:
    """All that one broker knows."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: StoreConfig,
        address: BrokerAddress,
        store: StoreSurface,
        committer: CommitterSurface,
        open_file: Callable[[str], SavedValue],
        clock: Clock,
        process_id: int = 0,
        on_topic_changed: Callable[[TopicConfig], None] = lambda config: None,
        on_topic_deleted: Callable[[str], None] = lambda topic: None,
    ) -> None:
        self.config = config
        self.own_topics = frozenset((config.cluster_name, config.broker_name, f"{config.cluster_name}_REPLY_TOPIC"))
        """Topics that the broker made for itself under names of its own, besides `topics.is_system_topic`."""
        self.address = address
        self.store = store
        self.committer = committer
        self.clock = clock
        self._open_file = open_file
        self.workers: list[Worker] = []
        """Called when their time has come, by whoever runs the broker."""
        self.arrival_listeners: list[Callable[[str], None]] = []
        """Told the topic of everything that comes in."""
        self.watchers: dict[str, Callable[[int], None]] = {}
        """By topic: who is told the queue when something comes into it."""
        self._tables: list[tuple[SavedValue, SavedTable]] = []
        self.is_accepting = True
        """False while the broker stops: sends are refused, pulls no longer wait."""
        self.replica = Replica()
        self.neighbours: Neighbours = NoNeighbours()
        self.find_queues: FindQueues = queues_here(config.broker_name, lambda topic: self.topics.find(topic))
        self._on_topic_changed = on_topic_changed
        self._on_topic_deleted = on_topic_deleted
        self._dirty = _Dirty()
        self._open_topics(is_light=store_config.light_queues)
        self._open_offsets(is_light=store_config.light_queues)
        self.filters = FilterTable(open_file(FILTERS_FILE).load(), wall_ms=clock.wall_ms)
        self.keep_table(FILTERS_FILE, self.filters)
        self.consumers = ConsumerTable()
        self.producers = ProducerTable()
        self.locks = QueueLocks()
        self.waiting = WaitingPulls(waiters_max=config.waiting_pulls_max)
        self._add_workers()
        self.sending = Sending(
            self.topics,
            UniqueKeys(address.host_bytes, process_id=process_id, start_ms=clock.wall_ms()),
            cluster=config.cluster_name,
            region=config.region,
            trace_on=config.trace_on,
            permission=config.permission,
            body_bytes_max=store_config.message_body_bytes_max,
        )
        self.counters = Counters(started_ms=clock.wall_ms())
        self.statistics = Statistics(now_ms=clock.wall_ms(), totals=self._totals, cluster=config.cluster_name)
        self.workers.append(self.statistics)
        self.host_hex = address.host_bytes.hex().upper()
        self._make_own_topics()
        for topic in self.topics.configs().values():
            store.set_queue_type(topic.topic_name, is_batch=topic.is_batch)
        self.topics_taken_back = self.topics.take_back(store.queues())

    def _open_topics(self, *, is_light: bool) -> None:
        """Topics, groups and the mappings of static topics."""
        wall_ms, config = self.clock.wall_ms, self.config
        self._topics_file, self._groups_file = self._open_file(TOPICS_FILE), self._open_file(GROUPS_FILE)
        topics_kind, groups_kind = (LightTopicTable, LightGroupTable) if is_light else (TopicTable, GroupTable)
        self.topics = topics_kind(self._topics_file.load(), wall_ms=wall_ms, on_change=self._topic_changed)
        self.groups = groups_kind(
            self._groups_file.load(),
            auto_create=config.auto_create_groups,
            wall_ms=wall_ms,
            on_change=self._groups_changed,
        )
        self._mappings_file = self._open_file(MAPPINGS_FILE)
        self.static_topics = StaticTopics(self._mappings_file.load(), broker_name=config.broker_name, wall_ms=wall_ms)

    def _open_offsets(self, *, is_light: bool) -> None:
        file, wall_ms = self._open_file(OFFSETS_FILE), self.clock.wall_ms
        if not is_light:
            self.offsets = OffsetTable(file.load(), wall_ms=wall_ms)
            self.keep_table(OFFSETS_FILE, self.offsets)
            return
        self.offsets = table = load_offsets(file, self._open_file(LIGHT_OFFSETS_FILE), wall_ms=wall_ms)
        self.keep_table(OFFSETS_FILE, table)
        self.keep_table(LIGHT_OFFSETS_FILE, LightOffsetsFile(table))

    def _add_workers(self) -> None:
        """The parts that do something when its time has come."""
        store, committer, config = self.store, self.committer, self.config
        self.delays = Delays(
            store, committer, parse_delay_levels(config.delay_levels), self._open_file(DELAYS_FILE).load()
        )
        self.keep_table(DELAYS_FILE, self.delays)
        self.workers.append(self.delays)
        self.watchers[SCHEDULE_TOPIC] = self.delays.arrived
        self.timers = Timers(store, committer, config)
        self.keep_table(TIMER_METRICS_FILE, self.timers.metrics)
        self.workers.append(self.timers)
        self.half_counts = HalfCounts(self._open_file(HALF_COUNTS_FILE).load())
        self.keep_table(HALF_COUNTS_FILE, self.half_counts)
        self.transactions = Transactions(
            store,
            committer,
            self.offsets,
            config,
            host=self.address.host_bytes,
            now_ms=self.clock.wall_ms(),
            counts=self.half_counts,
        )
        self.workers.append(self.transactions)
        self.pop = Pop(
            store,
            committer,
            offsets=self.offsets,
            topics=self.topics,
            groups=self.groups,
            config=config,
            host=self.address.host_bytes,
        )
        self.pop.timed = lambda: self.timers.metrics.count(self.pop.topic)
        self.pop.timer_ms = lambda: self.timers.reached_ms
        self.pop.began_ms = self.clock.wall_ms()
        self.workers.append(self.pop)
        self.pop_order = PopOrder(self._open_file(POP_ORDER_FILE).load())
        self.keep_table(POP_ORDER_FILE, self.pop_order)
        self.request_modes = RequestModes(self._open_file(REQUEST_MODES_FILE).load())
        self.keep_table(REQUEST_MODES_FILE, self.request_modes)

    def _make_own_topics(self) -> None:
        config, ensure = self.config, self.topics.ensure
        if config.auto_create_topics:
            perm = PERM_READ | PERM_WRITE | PERM_INHERIT
            template = ensure(TEMPLATE_TOPIC, queues=config.default_topic_queues, perm=perm)
            if (template.write_queue_nums, template.perm) != (config.default_topic_queues, perm):
                template.read_queue_nums = template.write_queue_nums = config.default_topic_queues
                template.perm = perm
                self.topics.put(template)
        else:
            template_left = self.topics.find(TEMPLATE_TOPIC)
            if template_left is not None and template_left.perm & PERM_INHERIT:
                template_left.perm &= ~PERM_INHERIT
                self.topics.put(template_left)
        ensure("SELF_TEST_TOPIC", queues=1)
        ensure("BenchmarkTest", queues=1024)
        ensure(config.cluster_name, queues=16, perm=PERM_READ | PERM_WRITE | PERM_INHERIT)
        ensure(config.broker_name, queues=1, perm=PERM_READ | PERM_WRITE | PERM_INHERIT)
        ensure("OFFSET_MOVED_EVENT", queues=1)
        ensure(f"{config.cluster_name}_REPLY_TOPIC", queues=1)
        ensure(SCHEDULE_TOPIC, queues=max(SCHEDULE_QUEUES, self.delays.levels))
        if config.timer_wheel:
            ensure(TIMER_TOPIC, queues=1)
        ensure(HALF_TOPIC, queues=1)
        ensure(HALF_OP_TOPIC, queues=1)
        ensure(CHECK_MAX_TOPIC, queues=1)
        ensure(self.pop.topic, queues=8)

    def _totals(self) -> Totals:
        counters = self.counters
        return Totals(counters.messages_put, counters.gets_found, counters.gets_missed, counters.messages_got)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take settings that may change while the broker runs; the others have to be as they were."""
        before, self.config = self.config, config
        self.groups.auto_create = config.auto_create_groups
        self.sending.set_permission(config.permission)
        self.timers.config = config
        self.transactions.config = config
        self.pop.config = config
        if (before.auto_create_topics, before.default_topic_queues) != (
            config.auto_create_topics,
            config.default_topic_queues,
        ):
            self._make_own_topics()

    def delete_topic(self, topic: str) -> None:
        """Forget a topic: its settings, its queues in the store, and everybody's offsets and counts in it.

        Blocks while the store removes the queues' files. Harmless when it is not there.
        """
        self.static_topics.delete(topic)
        if self.topics.delete(topic):
            self._dirty.topics = True
        self.offsets.delete_topic(topic)
        self.statistics.forget_topic(topic)
        self.half_counts.forget_topic(topic)
        self.store.delete_topic(topic)
        self._on_topic_deleted(topic)

    def keep_table(self, file_name: str, table: SavedTable) -> None:
        """Have a table written to a file of the folder ``config`` as often as consumer offsets are."""
        self._tables.append((self._open_file(file_name), table))

    # --- what a slave copies ---

    def adopt_topics(self, stored: Any) -> None:
        """Take the topics of the master, as GET_ALL_TOPIC_CONFIG gives them, in place of the own ones.

        Queues of topics that are gone stay in the store: records of a new topic of that name may lie in them already.
        """
        self.static_topics.adopt(stored)
        changed = self.topics.adopt(stored)
        if changed is not None:
            self._dirty.topics = True
            for config in changed:
                self._on_topic_changed(config)

    def adopt_groups(self, stored: Any) -> None:
        """Take the consumer groups of the master in place of the own ones."""
        self.groups.adopt(stored)

    # --- work that is due ---

    def run_due(self) -> None:
        """Let every part do what is due now. Called every tenth of a second."""
        now = self.clock.wall_ms()
        for worker in (self.statistics,) if self.replica.is_slave else self.workers:
            due = worker.next_due_ms()
            if due is not None and due <= now:
                try:
                    worker.run_due(now)
                except (StrataError, OSError) as error:  # one part in trouble must not stop the others
                    _log.error("%s could not do its work, trying again: %s", type(worker).__name__, error)

    # --- what changed ---

    def _topic_changed(self, config: TopicConfig) -> None:
        self.store.set_queue_type(config.topic_name, is_batch=config.is_batch)
        self._dirty.topics = True
        self._on_topic_changed(config)

    def _groups_changed(self) -> None:
        self._dirty.groups = True

    def unsaved(self, *, with_offsets: bool) -> list[tuple[SavedValue, Any]]:
        """What has to be written to which file now; it counts as written from then on."""
        found: list[tuple[SavedValue, Any]] = []
        if self.static_topics.is_dirty:  # before the topics: one without its mapping would pass for an ordinary one
            self.static_topics.is_dirty = False
            found.append((self._mappings_file, self.static_topics.as_json()))
        if self._dirty.topics:
            self._dirty.topics = False
            found.append((self._topics_file, self.topics.as_json()))
        if self._dirty.groups:
            self._dirty.groups = False
            found.append((self._groups_file, self.groups.as_json()))
        if with_offsets:
            for file, table in self._tables:
                if table.is_dirty:
                    found.append((file, table.as_json()))
                    table.is_dirty = False
        return found

    @property
    def has_unsaved_tables(self) -> bool:
        """Whether topics, their queue mappings or groups changed since they were written."""
        return self._dirty.topics or self._dirty.groups or self.static_topics.is_dirty

    def mark_unsaved(self) -> None:
        """A write failed: everything counts as unsaved again."""
        self._dirty.topics = self._dirty.groups = self.static_topics.is_dirty = True
        for _, table in self._tables:
            table.is_dirty = True

    # --- clients that leave ---

    def drop_connection(self, connection: Hashable) -> list[str]:
        """A connection is gone; return the consumer groups whose members have to know."""
        self.waiting.drop_connection(connection)
        self.producers.drop_connection(connection)
        return self.groups_left(self.consumers.drop_connection(connection))

    def groups_left(self, groups: list[str]) -> list[str]:
        """Members have left these consumer groups; returns the same. Filters of those left by all are dead."""
        for group in groups:
            if self.consumers.find(group) is None:
                self.filters.unregister(group)
        return groups

    def expire_clients(self) -> list[str]:
        """Drop clients that were silent too long; return the consumer groups whose members have to know."""
        now = self.clock.monotonic_ms()
        self.producers.expire(now)
        self.locks.expire(now)
        return self.groups_left(sorted({group for group, _ in self.consumers.expire(now)}))

    def retry_topic_of(self, group: str) -> None:
        """Make sure that ``%RETRY%group`` is there."""
        name = "%RETRY%" + group
        if self.topics.find(name) is None:
            config = self.groups.get(group)
            if config.retry_queue_nums > 0:
                self.topics.ensure(name, queues=config.retry_queue_nums)
