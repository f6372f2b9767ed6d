"""Both tiers as one store: reads, offsets by time, keys, and local files that wait for the tier."""

from __future__ import annotations

import dataclasses
import random

import pytest

from stratamq.config import RetentionConfig, TieredConfig, TieredLevel
from stratamq.errors import FlowControlled, ReadPending, ServiceUnavailable
from stratamq.formats.java import tags_code
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.types import GetStatus
from stratamq.testing.backend import FaultyBackend
from stratamq.testing.clock import ManualClock
from stratamq.tiered.backend import MemoryBackend
from stratamq.tiered.cache import BlockCache
from stratamq.tiered.local import LogQueues
from stratamq.tiered.owner import run_inline
from stratamq.tiered.planning import HOUR_MS
from stratamq.tiered.service import TierService, open_tier
from stratamq.tiered.store import TieredStore
from tests.unit.logstore.stores import message, open_store, put, records_of
from tests.unit.logstore.test_retention_service import Probe

POLICY = TieredConfig(compact=False, reserved_hours=10_000, seal_bytes=4096)


class Both:
    """A log store with small files, its tier, its retention, and a thread that runs when the test lets it."""

    def __init__(self, directory, *, policy: TieredConfig = POLICY, retention: RetentionConfig | None = None) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.backend = FaultyBackend(MemoryBackend())
        self.policy = policy
        self.retention_config = retention or RetentionConfig()
        self.probe = Probe()
        self.inline = True
        self.held: list = []
        self.open()

    def open(self) -> None:
        self.local = open_store(self.directory / "s", clock=self.clock)
        opened = open_tier(self.policy, str(self.directory / "tier"), "b", self.clock, backend=self.backend)
        self.service = TierService(opened, LogQueues(self.local), self.policy, self.clock)
        self.store = TieredStore(self.local, self.service, self.policy, self.spawn)
        self.retention = RetentionService(
            self.local,
            self.retention_config,
            clock=self.clock,
            offsets=dict,
            probe=self.probe,
            keep_from=self.service.keep_from,
            is_tiered=self.service.is_tiered,
        )

    def with_level(self, level: TieredLevel) -> TieredStore:
        return TieredStore(self.local, self.service, dataclasses.replace(self.policy, level=level), self.spawn)

    def spawn(self, work, done) -> None:
        def run() -> None:
            try:
                answer = work()
            except Exception as error:
                done(None, error)
            else:
                done(answer, None)

        if self.inline:
            run()
        else:
            self.held.append(run)

    def run_held(self) -> None:
        held, self.held = self.held, []
        for run in held:
            run()

    def tier_all(self) -> None:
        for _ in range(50):
            works = self.service.due(drain=True)
            if not works:
                return
            for work in works:
                run_inline(work)
        raise AssertionError("it never ends")

    def clean(self, hours: int = 73) -> None:
        """Let local files expire and go, as many rounds as there are files."""
        self.clock.advance(hours * HOUR_MS)
        for _ in range(10):
            self.retention.request()
            for step in self.retention.round():
                if step.blocking is not None:
                    step.blocking()

    def fill(self, count: int, *, topic: str = "T", queue_id: int = 0, **properties) -> None:
        for number in range(count):
            self.clock.advance(1000)
            body = b"%04d" % number * 200
            tags = "even" if number % 2 == 0 else "odd"
            keyed = {"KEYS": f"k{number} all", "TAGS": tags, **properties}
            put(self.local, message(body, topic=topic, queue_id=queue_id, **keyed))

    def close(self) -> None:
        self.service.close()
        self.local.close()


@pytest.fixture
def both(tmp_path):
    made = Both(tmp_path)
    yield made
    made.close()


def read_everything(store, topic="T", queue_id=0, start=None, **arguments):
    """Offset and body of all messages, read as a consumer does."""
    found = []
    offset = store.min_offset(topic, queue_id) if start is None else start
    for _ in range(10_000):
        result = store.get(topic, queue_id, offset, 7, **arguments)
        for view in result.records:
            found += [(record.queue_offset, record.body) for record in records_of(view)]
        if result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY):
            return found
        assert result.next_offset > offset, result
        offset = result.next_offset
    raise AssertionError("it never ends")


def expected(count, start=0):
    return [(number, b"%04d" % number * 200) for number in range(start, count)]


def test_a_consumer_reads_across_the_tiers(both):
    both.fill(100)
    both.tier_all()
    both.clean()
    both.fill(0)
    assert both.local.min_offset("T", 0) > 80
    assert both.store.min_offset("T", 0) == 0
    assert both.store.max_offset("T", 0) == 100
    assert read_everything(both.store) == expected(100)
    result = both.store.get("T", 0, 50, 3)
    assert (result.status, result.min_offset, result.max_offset, result.next_offset) == (GetStatus.FOUND, 0, 100, 53)
    assert result.message_count == 3
    assert result.total_bytes == sum(map(len, result.records))


def test_what_local_files_have_is_read_from_them(both):
    both.fill(50)
    both.tier_all()
    reads = both.store.reads.blocks.fetches
    assert read_everything(both.store) == expected(50)
    assert both.store.reads.blocks.fetches == reads


@pytest.mark.parametrize("level", list(TieredLevel))
def test_levels(both, level):
    both.fill(60)
    both.tier_all()
    both.clean()
    low = both.local.min_offset("T", 0)
    store = both.with_level(level)
    if level is TieredLevel.DISABLE:
        assert store.min_offset("T", 0) == low
        assert store.get("T", 0, 0, 8).status is GetStatus.OFFSET_TOO_SMALL
        assert read_everything(store) == expected(60, low)
        return
    assert read_everything(store) == expected(60)
    asked = store.cache.hits + store.cache.misses
    store.get("T", 0, low, 1)
    assert (store.cache.hits + store.cache.misses > asked) == (level is TieredLevel.FORCE)


def test_not_in_memory_asks_the_tier_for_what_is_cold_on_the_disk(both):
    both.fill(30)
    both.tier_all()
    store = both.with_level(TieredLevel.NOT_IN_MEM)
    store.get("T", 0, 5, 3)
    assert store.reads.blocks.fetches == 0
    both.local.is_in_memory = lambda physical_offset: False
    assert store.get("T", 0, 5, 3).message_count == 3
    assert store.reads.blocks.fetches > 0
    store.cache = BlockCache(1)
    both.backend.is_down = True
    assert store.get("T", 0, 25, 3).message_count == 3  # the disk has it all the same


def test_filters_work_on_cold_messages(both):
    class Odd:
        cost = 1

        def matches(self, properties: str) -> bool:
            return "TAGS\x01odd" in properties

    both.fill(60)
    both.tier_all()
    both.clean()
    odd = [row for row in expected(60) if row[0] % 2]
    assert read_everything(both.store, tags_codes=frozenset({tags_code("odd")})) == odd
    assert read_everything(both.store, matching=Odd()) == odd
    assert read_everything(both.store, tags_codes=frozenset({tags_code("none")})) == []


def test_limits_hold_for_cold_messages(both):
    both.fill(60)
    both.tier_all()
    both.clean()
    size = both.store.get("T", 0, 0, 1).total_bytes
    assert both.store.get("T", 0, 0, 32, max_bytes=3 * size).message_count == 3
    assert both.store.get("T", 0, 0, 32, max_bytes=1).message_count == 1
    assert both.store.get("T", 0, 0, 10_000).message_count <= both.local.config.transfer_messages_max


def test_who_waits_is_told_once_and_finds_the_answer(both):
    both.fill(60)
    both.tier_all()
    both.clean()
    both.inline = False
    told = []
    for _ in range(3):
        with pytest.raises(ReadPending) as pending:
            both.store.get("T", 0, 3, 2)
        pending.value.when_ready(lambda: told.append(both.store.get("T", 0, 3, 2).message_count))
    assert both.store.reads.waiting == 3
    assert len(both.held) == 1
    both.run_held()
    assert told == [2, 2, 2]
    assert both.store.reads.waiting == 0
    assert both.store.get("T", 0, 3, 2).message_count == 2


def test_an_answer_is_found_even_if_the_cache_keeps_nothing(both):
    both.fill(60)
    both.tier_all()
    both.clean()
    both.inline = False
    both.store.cache.bytes_max = 0
    told = []
    with pytest.raises(ReadPending) as pending:
        both.store.get("T", 0, 3, 2)
    pending.value.when_ready(lambda: told.append(both.store.get("T", 0, 3, 2).message_count))
    both.run_held()
    assert told == [1]  # no more than the one block that was kept for it


def test_too_many_who_wait_are_refused(tmp_path):
    both = Both(tmp_path, policy=dataclasses.replace(POLICY, fetches_waiting_max=2))
    both.fill(60)
    both.tier_all()
    both.clean()
    both.inline = False
    for offset in (0, 20):
        with pytest.raises(ReadPending):
            both.store.get("T", 0, offset, 2)
    with pytest.raises(FlowControlled):
        both.store.get("T", 0, 40, 2)
    both.run_held()
    both.close()


def test_a_backend_that_is_down_is_said_and_not_taken_for_an_end(both):
    both.fill(60)
    both.tier_all()
    both.clean()
    both.backend.is_down = True
    with pytest.raises(ServiceUnavailable, match="503"):
        both.store.get("T", 0, 0, 2)
    with pytest.raises(ServiceUnavailable):
        both.store.query("T", "k1", 5, 0, 2**62)
    assert both.store.get("T", 0, 59, 2).message_count == 1
    both.backend.is_down = False
    assert read_everything(both.store) == expected(60)


def test_one_read_fetches_ahead(tmp_path):
    both = Both(tmp_path)
    both.fill(200)
    both.tier_all()
    both.clean()
    assert read_everything(both.store)[:150] == expected(150)
    segments = len(both.service.manifests["T", 0].segments)
    assert segments >= 30
    assert both.store.reads.blocks.fetches < 2 * segments
    before = len(both.backend.calls)
    read_everything(both.store)
    assert len(both.backend.calls) == before
    both.close()


def test_the_cache_is_bounded(both):
    both.fill(100)
    both.tier_all()
    both.clean()
    both.store.cache.bytes_max = 20_000
    assert read_everything(both.store) == expected(100)
    assert both.store.cache.bytes <= 20_000


def test_offsets_by_time_over_both_tiers(both):
    both.fill(40)
    both.tier_all()
    both.clean()
    both.fill(10)
    both.tier_all()
    times = [
        record.store_timestamp
        for offset in range(50)
        for record in records_of(both.store.get("T", 0, offset, 1).records[0])
    ]
    for ms in sorted({*times, *(t - 1 for t in times), *(t + 1 for t in times), 0, 2**60}):
        lower = next((n for n, t in enumerate(times) if t >= ms), 50)
        upper = max((n for n, t in enumerate(times) if t <= ms), default=0)
        assert both.store.offset_by_time("T", 0, ms) == lower, ms
        assert both.store.offset_by_time("T", 0, ms, True) == upper, ms
    assert both.store.earliest_store_time("T", 0) == times[0]


def test_keys_over_both_tiers(both):
    both.fill(40)
    both.tier_all()
    both.clean()
    both.fill(3)

    def offsets(key, count=64, begin=0, end=2**62):
        found = both.store.query("T", key, count, begin, end)
        return [record.queue_offset for view in found.records for record in records_of(view)]

    assert offsets("k7") == [7]
    assert offsets("k2") == [2, 42]
    assert offsets("none") == []
    assert offsets("all", 5) == [38, 39, 40, 41, 42]
    stored = both.clock.wall_ms()
    assert offsets("k2", begin=stored - 100_000) == [42]
    assert offsets("k2", end=stored - 100_000) == [2]


def test_force_reads_keys_once(both):
    both.fill(10)
    both.tier_all()
    store = both.with_level(TieredLevel.FORCE)
    assert len(store.query("T", "k3", 10, 0, 2**62).records) == 1


# --- local files ---


def test_local_files_wait_for_the_tier(both):
    both.fill(60)
    both.backend.is_down = True
    before = len(both.local.retained()[0].bases)
    both.clean()
    assert len(both.local.retained()[0].bases) == before
    assert "cold tier" in both.retention.last_plan.log[0].reason
    both.backend.is_down = False
    both.clock.advance(120_000)
    both.tier_all()
    both.clean()
    assert len(both.local.retained()[0].bases) < before
    assert read_everything(both.store) == expected(60)


def test_what_the_tier_has_is_not_said_to_be_lost(both):
    both.fill(60)
    both.tier_all()
    both.clean()
    assert both.retention.deleted_files > 0
    assert both.retention.lost == {}


def test_an_operator_may_allow_a_gap_and_it_is_recorded(tmp_path):
    both = Both(tmp_path, retention=RetentionConfig(cold_gap_allowed=True))
    both.fill(20)
    both.tier_all()
    both.fill(40)
    both.backend.is_down = True
    both.probe.percent = 88
    both.clean(1)
    assert both.retention.gaps
    assert sum(messages for messages, _ in both.retention.lost.values()) > 0
    both.backend.is_down = False
    both.clock.advance(120_000)
    both.tier_all()
    (gap,) = both.service.manifests["T", 0].gaps
    assert gap.first == 20
    assert gap.last < 60
    bodies = [(number, b"%04d" % (number if number < 20 else number - 20) * 200) for number in range(60)]
    assert read_everything(both.store) == [row for row in bodies if not gap.first <= row[0] <= gap.last]
    both.close()


def test_an_hour_without_a_backend_under_load_loses_nothing(tmp_path):
    both = Both(tmp_path)
    both.fill(20)
    both.tier_all()
    both.backend.is_down = True
    for minute in range(60):
        both.fill(3, KEYS=f"m{minute}")
        both.clock.advance(57_000)
        for work in both.service.due():
            run_inline(work)
        for step in both.retention.round():
            if step.blocking is not None:
                step.blocking()
    assert both.local.min_offset("T", 0) == 0
    assert both.service.lag(("T", 0)).messages == 180
    both.backend.is_down = False
    both.clock.advance(60_000)
    both.tier_all()
    both.clean()
    assert [offset for offset, _ in read_everything(both.store)] == list(range(200))
    assert both.service.manifests["T", 0].gaps == ()
    both.close()


def test_a_disk_that_was_lost_goes_on_behind_the_tier(both, tmp_path):
    both.fill(30)
    both.tier_all()
    both.local.close()
    both.service.close()
    both.directory = tmp_path / "new"
    both.open()
    for manifest in both.service.manifests.values():
        assert LogQueues(both.local).begin_at((manifest.topic, manifest.queue_id), manifest.end)
    assert both.store.queues() == [("T", 0)]
    both.fill(30)
    both.tier_all()
    found = read_everything(both.store)
    assert [offset for offset, _ in found] == list(range(60))
    assert both.service.problems() == {}
    both.local.close()
    both.local = open_store(both.directory / "s", clock=both.clock)
    assert (both.local.min_offset("T", 0), both.local.max_offset("T", 0)) == (30, 60)


def test_a_topic_that_is_deleted_is_gone_from_both(both):
    both.fill(30)
    both.tier_all()
    both.clean()
    both.store.delete_topic("T")
    assert both.store.queues() == []
    assert both.store.get("T", 0, 0, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    both.fill(5)
    both.tier_all()
    assert read_everything(both.store) == expected(5)
    assert both.service.manifests["T", 0].incarnation == 2


def test_many_queues_in_any_order(tmp_path):
    both = Both(tmp_path, policy=dataclasses.replace(POLICY, uploads_max=2))
    rng = random.Random(5)
    counts = dict.fromkeys([("A", 0), ("A", 1), ("B", 0), ("%RETRY%g", 0)], 0)
    for _ in range(200):
        topic, queue_id = rng.choice(list(counts))
        counts[topic, queue_id] += 1
        put(both.local, message(b"%d" % counts[topic, queue_id] * 50, topic=topic, queue_id=queue_id))
        if rng.random() < 0.1:
            both.tier_all()
        if rng.random() < 0.05:
            both.clean()
    both.tier_all()
    both.clean()
    for (topic, queue_id), count in counts.items():
        assert [body for _, body in read_everything(both.store, topic, queue_id)] == [
            b"%d" % (n + 1) * 50 for n in range(count)
        ]
    both.close()
