"""What the HTTP port says of retention: what goes next, what stays and until when, who loses what; and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.retention import MANUAL_ROUNDS
from stratamq.logstore.retention_losses import sum_by_group
from stratamq.logstore.retention_service import QUEUES_A_STEP, RetentionService
from stratamq.logstore.retention_values import Cause, Decision, Plan

FILES_SHOWN_MAX: Final = 10_000
"""Files in one answer at most, of those that go and of those that stay."""
CAUSES: Final = (Cause.EXPIRED, Cause.FORCED, Cause.RETRY)
"""Why files go."""


async def retention_view(service: RetentionService, *, requested: bool = False) -> dict[str, Any]:
    """The plan of the next round, or of the rounds after an operator's request, and what was deleted so far.

    Lets others run between queues, because it looks at all of them for what groups would lose.
    """
    decided, disks, steps = service.preview(requested=requested)
    losses = []
    for number, loss in enumerate(steps):
        if loss is not None:
            losses.append(loss)
        if number % QUEUES_A_STEP == QUEUES_A_STEP - 1:
            await asyncio.sleep(0)
    columns = ("group", "topic", "messages", "bytes", "oldest_ms")
    return {
        "may_delete": decided.trigger.may_delete,
        "trigger": decided.trigger.reason,
        "goes": [_file(row) for row in decided.deletions[:FILES_SHOWN_MAX]],
        "stays": [_file(row) for row in decided.log if not row.goes][:FILES_SHOWN_MAX],
        "losses": [dict(zip(columns, row, strict=True)) for row in sum_by_group(losses)],
        "frees_bytes": sum(row.frees_bytes for row in decided.deletions),
        "min_offset_after": decided.min_offset_after,
        "warning": decided.warning,
        "disks": _disks(decided, disks.log),
        "queue_disk": _disk(disks.queues),
        **totals(service),
    }


def totals(service: RetentionService) -> dict[str, Any]:
    """What retention did since the start, and whether the disk keeps messages from being taken. Cheap."""
    by_cause = {cause.value: service.deleted_by_cause.get(cause, (0, 0)) for cause in CAUSES}
    return {
        "is_blocked": service.state.is_full,
        "blocked_since_ms": service.blocked_since_ms or None,
        "blocked_times": service.blocked_times,
        "last_round_ms": service.last_round_ms or None,
        "manual_rounds": service.state.manual_rounds,
        "deleted": {name: {"files": files, "bytes": size} for name, (files, size) in by_cause.items()},
        "failures": [{"file": path, "error": f.error, "attempts": f.attempts} for path, f in _failures(service)],
    }


def request_deletion(service: RetentionService) -> dict[str, Any]:
    """Let the next rounds delete at any hour, as the remoting request 329 does."""
    service.request()
    return {"rounds": MANUAL_ROUNDS, "interval_ms": service.policy.clean_interval_ms}


def is_loopback(address: str | None) -> bool:
    """Whether a peer's address is this machine's own."""
    try:
        found = ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


class RetentionCollector(Collector):
    """Makes the metrics of retention."""

    def __init__(self, service: RetentionService, values: Sequence[str]) -> None:
        """``values``: names of cluster and broker."""
        self._service = service
        self._labels = ["cluster", "node_id"]
        self._values = list(values)

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        service = self._service
        labels = [*self._labels, "reason"]
        files = CounterMetricFamily("stratamq_retention_deleted_files", "Commit-log files deleted", labels=labels)
        size = CounterMetricFamily("stratamq_retention_deleted_bytes", "Disk space freed", labels=labels)
        for cause in CAUSES:
            count, freed = service.deleted_by_cause.get(cause, (0, 0))
            files.add_metric([*self._values, cause.value], count)
            size.add_metric([*self._values, cause.value], freed)
        yield from (files, size)
        lost = CounterMetricFamily(
            "stratamq_retention_lost_messages", "Messages deleted that a group had not read", labels=self._labels
        )
        lost.add_metric(self._values, sum(messages for messages, _ in service.lost.values()))
        times = CounterMetricFamily(
            "stratamq_retention_blocked_times", "How often the disk passed the warning mark", labels=self._labels
        )
        times.add_metric(self._values, service.blocked_times)
        yield from (lost, times)
        yield self._gauge("blocked", "1 while the disk keeps messages from being taken", float(service.state.is_full))
        since = service.blocked_since_ms / 1000
        yield self._gauge("blocked_since_seconds", "Unix time since when it does; 0 while it does not", since)
        yield self._gauge("last_round_seconds", "Unix time of the last round", service.last_round_ms / 1000)
        yield self._gauge("failures", "Files that could not be deleted", len(_failures(service)))

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"stratamq_retention_{name}", text, labels=self._labels)
        family.add_metric(self._values, value)
        return family


def _failures(service: RetentionService) -> list[tuple[str, Any]]:
    return sorted(service.state.failures.items())


def _file(row: Decision) -> dict[str, Any]:
    return {
        "file": row.path,
        "cause": row.cause.value,
        "reason": row.reason,
        "frees_bytes": row.frees_bytes,
        "due_ms": row.due_ms,
    }


def _disks(decided: Plan, before: Sequence[DiskUsage]) -> list[dict[str, Any]]:
    pairs = zip(before, decided.disk_after, strict=True)
    return [{**_disk(now), "percent_after": then.percent if then.is_known else None} for now, then in pairs]


def _disk(usage: DiskUsage) -> dict[str, Any]:
    percent = usage.percent if usage.is_known else None
    return {
        "path": usage.path,
        "percent": percent,
        "total_bytes": usage.total_bytes,
        "usable_bytes": usage.usable_bytes,
    }
