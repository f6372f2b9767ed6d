"""What the HTTP port says of a cold tier: one JSON object, and metrics under the names of RocketMQ's tiered store where
it has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratamq.tiered import inspecting
from stratamq.tiered.store import TieredStore

COUNTERS = (
    ("rocketmq_tiered_store_messages_dispatch", "uploaded_messages", "Messages uploaded"),
    ("rocketmq_tiered_store_provider_upload_bytes", "uploaded_bytes", "Bytes of records uploaded"),
    ("stratamq_tier_uploaded_segments", "uploaded_segments", "Segments uploaded"),
    ("stratamq_tier_joined_segments", "joined_segments", "Segments joined into larger ones"),
    ("stratamq_tier_expired_segments", "expired_segments", "Segments expired"),
    ("stratamq_tier_deleted_objects", "deleted_objects", "Objects deleted"),
    ("stratamq_tier_conflicts", "conflicts", "Commits that somebody else was faster with"),
    ("stratamq_tier_failures", "failures", "Failures of the backend"),
    ("stratamq_tier_gap_messages", "gap_messages", "Messages lost because local files went before the upload"),
)


def tier_view(store: TieredStore) -> dict[str, Any]:
    """State of a cold tier: the whole, each queue, and what is wrong."""
    service = store.service
    sums = inspecting.total(list(service.manifests.values()))
    problems = service.problems()
    queues = []
    for key, manifest in sorted(service.manifests.items()):
        lag = service.lag(key)
        queues.append(
            {
                "topic": key[0],
                "queue": key[1],
                "start": manifest.start,
                "end": manifest.end,
                "segments": len(manifest.segments),
                "bytes": sum(segment.bytes for segment in manifest.segments),
                "waiting_messages": lag.messages,
                "waiting_bytes": lag.bytes,
                "waiting_ms": lag.age_ms,
                "gaps": [[gap.first, gap.last] for gap in manifest.gaps],
                "problem": problems.get(key, ""),
            }
        )
    return {
        "address": service.tier.backend.address,
        "level": store.policy.level.value,
        "epoch": service.writer.epoch if service.writer is not None else None,
        "failure": service.failure or service.last_error,
        "is_writing": service.writer is not None and not service.failure and not service.failures,
        **sums._asdict(),
        "keep_from": service.keep_from(),
        "waiting_reads": store.reads.waiting,
        "cache_bytes": store.cache.bytes,
        "counters": dict(service.tier.counters),
        "problems": [{"topic": key[0], "queue": key[1], "problem": text} for key, text in sorted(problems.items())],
        "queues": queues,
    }


class TierCollector(Collector):
    """Makes the metrics of a cold tier."""

    def __init__(self, store: TieredStore, values: Sequence[str]) -> None:
        """``values``: names of cluster and broker."""
        self._store = store
        self._labels = ["cluster", "node_id"]
        self._values = list(values)

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        store, service = self._store, self._store.service
        for name, counter, text in COUNTERS:
            family = CounterMetricFamily(name, text, labels=self._labels)
            family.add_metric(self._values, service.tier.counters.get(counter, 0))
            yield family
        fetched = CounterMetricFamily(
            "rocketmq_tiered_store_provider_download_bytes", "Bytes read from the tier", labels=self._labels
        )
        fetched.add_metric(self._values, store.reads.blocks.fetched_bytes)
        hits = CounterMetricFamily("rocketmq_tiered_store_read_ahead_cache_hit", "Blocks found", labels=self._labels)
        hits.add_metric(self._values, store.cache.hits)
        access = CounterMetricFamily(
            "rocketmq_tiered_store_read_ahead_cache_access", "Blocks looked for", labels=self._labels
        )
        access.add_metric(self._values, store.cache.hits + store.cache.misses)
        yield from (fetched, hits, access)
        yield self._gauge("rocketmq_tiered_store_read_ahead_cache_bytes", "Bytes in the cache", store.cache.bytes)
        is_writing = service.writer is not None and not service.failure and not service.failures
        yield self._gauge("stratamq_tier_writing", "1 while the tier can be written", float(is_writing))
        yield self._gauge("stratamq_tier_waiting_reads", "Requests that wait for the tier", store.reads.waiting)
        yield self._gauge("stratamq_tier_problems", "Queues that are not tiered though wanted", len(service.problems()))
        yield from self._lags()

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    def _lags(self) -> Iterable[Metric]:
        """Per topic: sums of messages and bytes that wait, and the age of the oldest."""
        service = self._store.service
        rows: dict[str, list[int]] = {}
        for key in {*service.manifests, *service.owners}:
            lag, row = service.lag(key), rows.setdefault(key[0], [0, 0, 0])
            rows[key[0]] = [row[0] + lag.messages, row[1] + lag.bytes, max(row[2], lag.age_ms)]
        labels = [*self._labels, "topic"]
        behind = GaugeMetricFamily("rocketmq_tiered_store_dispatch_behind", "Messages not uploaded yet", labels=labels)
        size = GaugeMetricFamily("stratamq_tier_waiting_bytes", "Bytes not uploaded yet", labels=labels)
        age = GaugeMetricFamily(
            "stratamq_tier_waiting_seconds", "Age of the oldest that is not uploaded", labels=labels
        )
        for topic, (messages, waiting_bytes, age_ms) in sorted(rows.items()):
            behind.add_metric([*self._values, topic], messages)
            size.add_metric([*self._values, topic], waiting_bytes)
            age.add_metric([*self._values, topic], age_ms / 1000)
        yield from (behind, size, age)
