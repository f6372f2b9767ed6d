"""A log store and its cold tier as one store with one row of offsets. Whoever reads does not know which tier answers.

Everything runs on the store's thread and nothing waits. What is not in memory is fetched by a thread meanwhile: the
read raises `ReadPending`, and who asked is told when to ask again; the same question then finds its answer waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

from stratamq.config import TieredConfig, TieredLevel
from stratamq.errors import CorruptionError, FlowControlled, ReadPending, ServiceUnavailable, TierError
from stratamq.formats.cold_manifest import Manifest
from stratamq.formats.consume_queue import Unit
from stratamq.logstore.queries import QUERY_MAX
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import GetResult, GetStatus, QueryResult, RecordFilter
from stratamq.tiered import reading
from stratamq.tiered.cache import BlockCache, FetchedBlocks, HeldBlocks, Missing
from stratamq.tiered.reading import Blocks, Wanted
from stratamq.tiered.service import TierService

_T = TypeVar("_T")
Spawn = Callable[[Callable[[], Any], Callable[[Any, Exception | None], None]], None]
"""Runs the first in a thread and calls the second, on the store's thread, with its answer or its error."""


class ColdReads:
    """Answers that are being fetched, and who waits for them. Bounded by ``fetches_waiting_max``."""

    def __init__(self, blocks: FetchedBlocks, waiting_max: int, spawn: Spawn) -> None:
        self.blocks = blocks
        self.waiting = 0
        self._waiting_max = waiting_max
        self._spawn = spawn
        self._jobs: dict[Hashable, list[Callable[[], None]]] = {}
        self._answers: dict[Hashable, tuple[Any, Exception | None]] = {}
        self._latest: tuple[Any, Exception | None] = (None, None)

    def ask(self, key: Hashable, what: str, work: Callable[[Blocks], _T]) -> _T:
        """The answer of ``work``, which is done in a thread with blocks that are fetched.

        Raises:
            ReadPending: It is being worked on.
            FlowControlled: Too many wait.
            TierError, CorruptionError: It ended so.
        """
        if key not in self._answers:
            if self.waiting >= self._waiting_max or len(self._jobs) >= self._waiting_max:
                raise FlowControlled("[REJECTREQUEST] too many reads are waiting for the cold tier")
            if key not in self._jobs:
                self._jobs[key] = []
                self._spawn(partial(work, self.blocks), partial(self._done, key))
            if key in self._jobs:
                raise ReadPending(what, partial(self._wait, key))
            answer, error = self._latest
        else:
            answer, error = self._answers[key]
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]

    def _wait(self, key: Hashable, wake: Callable[[], None]) -> None:
        self.waiting += 1
        self._jobs[key].append(wake)

    def _done(self, key: Hashable, answer: Any, error: Exception | None) -> None:
        """Tell who waits; the answer is there as long as they are being told."""
        waiters = self._jobs.pop(key)
        self.waiting -= len(waiters)
        self._answers[key] = self._latest = (answer, error)
        try:
            for wake in waiters:
                wake()
        finally:
            del self._answers[key]
            if waiters:
                self._latest = (None, None)


class TieredStore:
    """Reads of a log store with a cold tier behind it. Fills what `broker.ports.StoreSurface` asks for."""

    def __init__(self, local: LogStore, service: TierService, policy: TieredConfig, spawn: Spawn) -> None:
        self.local = local
        self.service = service
        self.policy = policy
        self.cache = BlockCache(policy.cache_bytes)
        self._held = HeldBlocks(self.cache)
        self.reads = ColdReads(
            FetchedBlocks(self.cache, service.tier.backend, policy.read_ahead_bytes), policy.fetches_waiting_max, spawn
        )
        self._manifests = service.manifests
        self._level = policy.level
        self._bytes_max = local.config.transfer_bytes_max
        self._messages_max = local.config.transfer_messages_max

    # --- reading a queue --------------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int | None = None,
        tags_codes: frozenset[int] | None = None,
        matching: RecordFilter | None = None,
    ) -> GetResult:
        """As `LogStore.get`, over both tiers; one answer comes from one of them.

        Raises ReadPending, FlowControlled, ServiceUnavailable (the tier cannot be reached), CorruptionError. Costs a
        microsecond more than the local read where it is that.
        """
        key = (topic, queue_id)
        manifest = self._manifests.get(key)
        if manifest is None and key not in self.service.broken:
            return self._local_get(topic, queue_id, offset, max_messages, max_bytes, tags_codes, matching)
        if self._wants_cold(key, manifest, offset):
            wanted = Wanted(
                offset,
                max(1, min(max_messages, self._messages_max)),
                min(self._bytes_max, max_bytes if max_bytes is not None else self._bytes_max),
                tags_codes,
                matching,
            )
            try:
                return self._cold_get(key, manifest, wanted)
            except (ServiceUnavailable, CorruptionError):
                if offset < self.local.min_offset(topic, queue_id) or self._nothing_local(key):
                    raise
        found = self._local_get(topic, queue_id, offset, max_messages, max_bytes, tags_codes, matching)
        return self._widened(key, found, manifest)

    def _local_get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int | None,
        tags_codes: frozenset[int] | None,
        matching: RecordFilter | None,
    ) -> GetResult:
        return self.local.get(
            topic, queue_id, offset, max_messages, max_bytes=max_bytes, tags_codes=tags_codes, matching=matching
        )

    def _nothing_local(self, key: tuple[str, int]) -> bool:
        return not self.local.max_offset(*key)

    def _wants_cold(self, key: tuple[str, int], manifest: Manifest | None, offset: int) -> bool:
        """Whether the tier answers for an offset."""
        level = self._level
        if level is TieredLevel.DISABLE or offset < 0:
            return False
        is_local = offset >= self.local.min_offset(*key) and not self._nothing_local(key)
        if manifest is None:
            return not is_local
        if not manifest.start <= offset < manifest.end:
            return False
        if not is_local or level is TieredLevel.FORCE:
            return True
        units = self.local.units(*key, offset, 1)
        if not units or units[0].physical_offset < self.local.min_physical_offset:
            return True  # its file is gone, and the queue has not been corrected yet
        return level is TieredLevel.NOT_IN_MEM and not self.local.is_in_memory(units[0].physical_offset)

    def _cold_get(self, key: tuple[str, int], manifest: Manifest | None, wanted: Wanted) -> GetResult:
        if manifest is None:
            raise ServiceUnavailable(f"the cold tier of {key[0]}/{key[1]} cannot be read: {self.service.broken[key]}")
        try:
            found = reading.read(manifest, wanted, self._held)
        except Missing:
            found = self._fetched_get(key, manifest, wanted)
        return self._widened(key, found, manifest)

    def _fetched_get(self, key: tuple[str, int], manifest: Manifest, wanted: Wanted) -> GetResult:
        """Have the block fetched that holds the offset. The question names no filter: who reads there shares it."""
        offset = wanted.offset
        what = f"offset {offset} of {key[0]}/{key[1]}"
        block = self._ask(
            ("get", manifest.life, offset), what, lambda blocks: reading.block_at(manifest, offset, blocks)
        )
        if block is None:
            raise ServiceUnavailable(f"the cold tier does not give out {what}: it was taken away meanwhile")
        return reading.read_within(manifest, wanted, block)

    def _ask(self, question: Hashable, what: str, work: Callable[[Blocks], _T]) -> _T:
        try:
            return self.reads.ask(question, what, work)
        except ReadPending:
            raise
        except TierError as error:
            raise ServiceUnavailable(f"the cold tier does not give out {what}: {error}") from error

    def _widened(self, key: tuple[str, int], found: GetResult, manifest: Manifest | None) -> GetResult:
        """An answer whose offsets are those of both tiers."""
        if manifest is None or not manifest.segments:
            return found
        low, high = self.min_offset(*key), self.max_offset(*key)
        if found.status is GetStatus.OFFSET_TOO_SMALL and low < found.next_offset:
            found = found._replace(next_offset=low)
        return found._replace(min_offset=low, max_offset=high)

    # --- ends -------------------------------------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest offset of a queue in either tier; 0 for an unknown queue."""
        low = self.local.min_offset(topic, queue_id)
        manifest = self._manifests.get((topic, queue_id))
        if manifest is None or not manifest.segments or self._level is TieredLevel.DISABLE:
            return low
        return manifest.start if self._nothing_local((topic, queue_id)) else min(low, manifest.start)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One more than the newest offset that can be read."""
        high = self.local.max_offset(topic, queue_id)
        manifest = self._manifests.get((topic, queue_id))
        if high or manifest is None or not manifest.segments or self._level is TieredLevel.DISABLE:
            return high
        return manifest.end

    def queues(self) -> list[tuple[str, int]]:
        """All queues that hold or held messages, in either tier."""
        return sorted({*((key.topic, key.queue_id) for key in self.local.queues()), *self._manifests})

    # --- the rest ---------------------------------------------------------------------------------------------------

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[Unit]:
        """Consume-queue units, of local files only."""
        return self.local.units(topic, queue_id, offset, count)

    def is_in_memory(self, physical_offset: int) -> bool:
        """Whether a record is likely in the page cache."""
        return self.local.is_in_memory(physical_offset)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record at a physical offset, when local files have it: places in the log mean nothing in the tier."""
        return self.local.record_at(physical_offset)

    def _cold_part(self, topic: str, queue_id: int) -> tuple[Manifest, int] | None:
        """A queue's manifest when the tier has what local files lack, and the offset from which on they have all."""
        manifest = self._manifests.get((topic, queue_id))
        if manifest is None or not manifest.segments or self._level is TieredLevel.DISABLE:
            return None
        below = self.local.min_offset(topic, queue_id)
        if self._nothing_local((topic, queue_id)) or self._level is TieredLevel.FORCE:
            below = manifest.end
        return (manifest, below) if manifest.start < below else None

    def offset_by_time(self, topic: str, queue_id: int, ms: int, upper: bool = False) -> int:
        """As `LogStore.offset_by_time`, over both tiers. Raises ReadPending, ServiceUnavailable."""
        part = self._cold_part(topic, queue_id)
        if part is None:
            return self.local.offset_by_time(topic, queue_id, ms, upper)
        manifest, below = part
        if upper:
            found = self._local_upper(topic, queue_id, ms)
            if found is None:
                found = self._by_time("upper", part, ms)
            return 0 if found is None else found
        found = self._by_time("lower", part, ms)
        if found is not None:
            return found
        if self._nothing_local((topic, queue_id)):
            return manifest.end
        return max(below, self.local.offset_by_time(topic, queue_id, ms))

    def _local_upper(self, topic: str, queue_id: int, ms: int) -> int | None:
        earliest = self.local.earliest_store_time(topic, queue_id)
        if self._level is TieredLevel.FORCE or not 0 <= earliest <= ms:
            return None
        return self.local.offset_by_time(topic, queue_id, ms, True)

    def _by_time(self, side: str, part: tuple[Manifest, int], ms: int) -> int | None:
        manifest, below = part
        search = reading.last_at_or_before if side == "upper" else reading.first_at_or_after
        try:
            return search(manifest, ms, self._held, below=below)
        except Missing:
            question = (side, manifest.life, below, ms)
            return self._ask(question, f"time {ms}", lambda blocks: search(manifest, ms, blocks, below=below))

    def offset_before_time(self, topic: str, queue_id: int, ms: int) -> int:
        """An offset at or before the first one stored at or after a time: no further back than one segment. Never
        waits."""
        part = self._cold_part(topic, queue_id)
        if part is not None:
            for segment in part[0].segments:
                if segment.max_ms >= ms:
                    return segment.first
        return self.local.offset_by_time(topic, queue_id, ms)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's oldest message; -1 when it is empty. In the tier the lowest of its oldest segment."""
        part = self._cold_part(topic, queue_id)
        if part is None:
            return self.local.earliest_store_time(topic, queue_id)
        return part[0].segments[0].min_ms

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """As `LogStore.query`, over both tiers: local files first, then the tier until there are enough.

        Raises ReadPending, ServiceUnavailable.
        """
        count = min(max_count, QUERY_MAX)
        found = self.local.query(topic, key, count, begin_ms, end_ms)
        parts = []
        for name, queue_id in [known for known in self._manifests if known[0] == topic]:
            part = self._cold_part(name, queue_id)
            if part is not None:
                parts.append(part)
        missing = count - len(found.records)
        if missing <= 0 or not parts:
            return found
        overlapping = any(
            segment.max_ms >= begin_ms and segment.min_ms <= end_ms
            for manifest, _ in parts
            for segment in manifest.segments
        )
        if not overlapping:
            return found

        def work(blocks: Blocks) -> list[bytes]:
            hits = []
            for manifest, below in parts:
                hits += reading.find_by_key(manifest, key, missing, begin_ms, end_ms, blocks, below=below)
            hits.sort(key=lambda hit: hit[0])
            return [record for _, _, record in hits[-missing:]]

        question = ("query", topic, key, missing, begin_ms, end_ms)
        cold = self._ask(question, f"key {key} of topic {topic}", work)
        if self._level is TieredLevel.FORCE:
            seen = {bytes(record) for record in found.records}
            cold = [record for record in cold if record not in seen]
        records = [*(memoryview(record) for record in cold), *found.records]
        return found._replace(records=records)

    def set_queue_type(self, topic: str, *, is_batch: bool) -> None:
        """Say whether a topic has queues of batches; those are not copied."""
        self.local.set_queue_type(topic, is_batch=is_batch)

    def delete_topic(self, topic: str) -> None:
        """Remove all queues of a topic, in both tiers; noted for the tier first, so that no crash brings it back."""
        self.service.delete_topic(topic)
        self.local.delete_topic(topic)

    def status(self) -> Any:
        """Positions and health of the local store."""
        return self.local.status()
