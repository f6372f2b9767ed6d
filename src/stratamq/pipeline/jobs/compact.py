"""The job `compact`: flat segments of a cold tier joined into Parquet by Spark, beside a running broker.

A broker joins what is small itself; what takes more memory or time than it has is joined here. The owner of a queue is
the broker, and it stays so: nothing is claimed. A task reads segments that the newest manifest names, puts one new
object under a name that is used once, and reads that back. Then the driver swaps it in by one commit
(`tiered.joining.commit_join`), which is create-only and happens only if the newest manifest still names exactly the
segments that were read; the owner finds it at its next commit and goes on from there. So:

* killed before the commit: an object that nothing names (`stratamq tier gc` removes it), and the next run plans anew;
* killed behind it: it is done, and the next run finds nothing to do there;
* a broker, or a second run, that joins or expires the same segments: one of the two commits fails, and nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from stratamq.clock import Clock, SystemClock
from stratamq.config import TieredConfig
from stratamq.errors import CorruptionError, TierError
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import PARQUET, Manifest, Segment
from stratamq.formats.cold_names import Lifetime, escape_topic
from stratamq.formats.cold_segment import record_positions
from stratamq.pipeline.jobs.running import Json, Runner
from stratamq.tiered import commits, planning
from stratamq.tiered.backend import Backend, PrefixedBackend, open_backend
from stratamq.tiered.joining import Joiner, commit_join, flat_blocks, read_index
from stratamq.tiered.planning import Join

ROUNDS_MAX: Final = 1_000
"""Every round joins at least one run of segments, so a queue of so many runs is done."""


class Tier(NamedTuple):
    """A cold tier as tasks need it: its settings, and whose it is."""

    policy: TieredConfig
    broker: str

    def open(self) -> Backend:
        """Reach it. Close it after use."""
        return PrefixedBackend(open_backend(self.policy), escape_topic(self.broker))


class JoinTask(NamedTuple):
    """One join, to be made by a task."""

    tier: Tier
    life: Lifetime
    join: Join
    epoch: int
    unique: str
    made_ms: int


class Compacted(NamedTuple):
    """What was done: joins committed; segments, messages and bytes of records in them; stored bytes before and after;
    and joins that somebody else had made unnecessary."""

    joins: int
    segments: int
    messages: int
    raw_bytes: int
    bytes_before: int
    bytes_after: int
    overtaken: int


def plan(
    manifests: Sequence[Manifest], policy: TieredConfig, now_ms: int, *, topic: str | None = None, eager: bool = False
) -> list[tuple[Manifest, Join]]:
    """The next join of each queue, into Parquet or, of very many small ones that are not due, flat."""
    found = []
    for manifest in manifests:
        if topic in (None, manifest.topic):
            join = planning.plan_join(manifest, now_ms, policy, PARQUET, eager=eager)
            if join is not None:
                found.append((manifest, join))
    return found


def make(task: JoinTask) -> Json:
    """Make and put one joined segment, and read it back. Runs in a worker; changes no manifest.

    Raises CorruptionError when what was put does not give the same records.
    """
    backend = task.tier.open()
    try:
        new = Joiner(task.join.format).join(backend, task.life, task.join, task.epoch, task.unique, task.made_ms)
        expected = new.last - new.first + 1
        found = _count(backend, new)
        if found != expected:
            raise CorruptionError(new.name, 0, f"{expected} records", f"{found} records")
    finally:
        backend.close()
    answer: Json = msgspec.to_builtins(new)
    return answer


def _count(backend: Backend, segment: Segment) -> int:
    """Records that a segment gives out, each block compared with its checksum."""
    if segment.format == PARQUET:
        from stratamq.tiered.parquet import read_groups

        index = read_index(backend, segment)
        groups = read_groups(backend, segment, index, range(len(index.blocks)))
        return sum(len(record_positions(data)) for data in groups)
    return sum(block.messages for _, block in flat_blocks(backend.read(segment.name), segment))


def compact(
    runner: Runner,
    tier: Tier,
    *,
    topic: str | None = None,
    eager: bool = False,
    clock: Clock | None = None,
    chance: Callable[[int], bytes] = os.urandom,
) -> Compacted:
    """Join until nothing is left to join. Blocks.

    Raises TierError, BackendError; CorruptionError or PipelineError when a segment is damaged.
    """
    time = clock or SystemClock()
    done = Compacted(0, 0, 0, 0, 0, 0, 0)
    name = f"pipeline-compact-{chance(6).hex()}"
    backend = tier.open()
    try:
        for _ in range(ROUNDS_MAX):
            manifests = commits.find_all(backend).manifests
            wanted = plan(manifests, tier.policy, time.wall_ms(), topic=topic, eager=eager)
            if not wanted:
                return done
            tasks = [
                JoinTask(
                    tier,
                    manifest.life,
                    join,
                    manifest.epoch,
                    names.unique_part(time.wall_ms(), chance(8)),
                    time.wall_ms(),
                )
                for manifest, join in wanted
            ]
            began = time.monotonic_ms()
            answers = runner(make, tasks)
            if time.monotonic_ms() - began > tier.policy.orphan_grace_ms // 2:
                raise TierError("joining took so long that what was made may be taken for litter; run it again")
            before = done.joins
            for task, answer in zip(tasks, answers, strict=True):
                done = _commit(backend, task, msgspec.convert(answer, Segment), done, name, time.wall_ms())
            if done.joins == before:
                return done  # all were overtaken: the owner is at it
    finally:
        backend.close()
    return done


def _commit(backend: Backend, task: JoinTask, new: Segment, done: Compacted, name: str, now_ms: int) -> Compacted:
    old = task.join.segments
    grace_ms = task.tier.policy.delete_grace_ms
    try:
        commit_join(backend, task.life, old, new, name=name, now_ms=now_ms, grace_ms=grace_ms)
    except TierError as error:
        if error.retryable:
            raise
        return done._replace(overtaken=done.overtaken + 1)
    return done._replace(
        joins=done.joins + 1,
        segments=done.segments + len(old),
        messages=done.messages + new.last - new.first + 1,
        raw_bytes=done.raw_bytes + new.raw_bytes,
        bytes_before=done.bytes_before + sum(one.bytes for one in old),
        bytes_after=done.bytes_after + new.bytes,
    )


def rows_of(wanted: Sequence[tuple[Manifest, Join]]) -> list[tuple[Any, ...]]:
    """A plan for people: topic, queue, first and last offset, segments, bytes of records, format."""
    return [
        (
            manifest.topic,
            manifest.queue_id,
            join.segments[0].first,
            join.segments[-1].last,
            len(join.segments),
            sum(segment.raw_bytes for segment in join.segments),
            join.format,
        )
        for manifest, join in wanted
    ]
