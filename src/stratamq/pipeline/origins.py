"""Where records are read: files, a broker, the cold tier, or one of the first two with the tier behind it.

Planning asks an `Origin`; a task reads with a `RangeReader`. With a tier there is one range of offsets: the tier's
first to the local last. A planned range is read where it lay when it was planned, and elsewhere when it lies there no
more: local files that were deleted meanwhile are in the tier, because nothing is deleted before it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from stratamq.errors import BackendError, DataLost, ObjectMissing
from stratamq.logstore.batch_files import BelievedBatches, is_batch_queue
from stratamq.logstore.listing import list_batch_queues, list_queues
from stratamq.logstore.snapshot import QueueRange, StoreFiles, StoreSnapshot
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.batch_reader import split_batches
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.reader import Lost, QueueSpan, Split, arrow_batches, plan_splits

if TYPE_CHECKING:
    from stratamq.formats.cold_manifest import Segment
    from stratamq.pipeline.cluster import Cluster
    from stratamq.tiered.backend import Backend

PAUSE_SECONDS: Final = 0.5
SkipLost = Callable[[Lost], None]


class Origin(Protocol):
    """What planning asks of a place. Ends are those of the first question about a queue."""

    place: str
    """What it is, for people."""

    def keys(self) -> list[QueueKey]:
        """The queues that there are, of the topics that the options want; sorted."""
        ...

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """The range of one queue."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """Offset of the first record stored at or after a time; the queue's end when there is none."""
        ...

    def splits(self, spans: Sequence[QueueSpan], *, bytes_per_split: int) -> list[Split]:
        """Cut spans into tasks; no record is in two, and none is left out."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class FilesOrigin:
    """A store directory to plan a read of."""

    def __init__(self, path: str) -> None:
        """Open a snapshot. Raises NotAStore, and what `StoreSnapshot.open` raises."""
        self.place = path
        self._snapshot = StoreSnapshot.open(Path(path))
        self._batches: dict[QueueKey, BelievedBatches | None] = {}

    def close(self) -> None:
        """Close the snapshot."""
        self._snapshot.close()

    def keys(self) -> list[QueueKey]:
        """Every queue in the directory, of either kind."""
        return sorted({key for key, _ in (*list_queues(self.place), *list_batch_queues(self.place))})

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """The range of one queue. Raises QueueNotFound, StrayFile, BadLength."""
        batches = self._batches_of(topic, queue_id)
        return self._snapshot.queue(topic, queue_id) if batches is None else batches.range

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """Offset of the first record stored at or after a time; the queue's end when there is none."""
        batches = self._batches_of(topic, queue_id)
        if batches is not None:
            return batches.offset_where(lambda unit: unit.store_timestamp >= ms)
        return self._snapshot.offset_by_time(topic, queue_id, ms)

    def splits(self, spans: Sequence[QueueSpan], *, bytes_per_split: int) -> list[Split]:
        """Splits of about equal bytes, by what the units say."""
        found: list[Split] = []
        for span in spans:
            batches = self._batches_of(span.topic, span.queue_id)
            if batches is None:
                found += plan_splits(self._snapshot, [span], bytes_per_split=bytes_per_split)
            else:
                found += split_batches(batches, span, bytes_per_split)
        return found

    def _batches_of(self, topic: str, queue_id: int) -> BelievedBatches | None:
        """The queue where it is one of batches, as it was when first asked for."""
        key = QueueKey(topic, queue_id)
        if key not in self._batches:
            is_batch = is_batch_queue(self._snapshot.path, topic, queue_id)
            self._batches[key] = BelievedBatches(self._snapshot, topic, queue_id) if is_batch else None
        return self._batches[key]


class JoinedOrigin:
    """A store or a broker, and the tier behind it.

    From files everything is read that they have. A broker gives old messages out of its tier itself; those are read
    there without it.
    """

    def __init__(self, hot: Origin, cold: Origin, *, prefers_cold: bool) -> None:
        self.place = f"{hot.place} and {cold.place}"
        self._hot = hot
        self._cold = cold
        self._prefers_cold = prefers_cold
        self._keys: tuple[frozenset[QueueKey], frozenset[QueueKey]] | None = None

    def close(self) -> None:
        """Close both."""
        self._hot.close()
        self._cold.close()

    def keys(self) -> list[QueueKey]:
        """The queues of both."""
        return sorted(frozenset().union(*self._both()))

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """One range over both."""
        ranges = self._ranges(topic, queue_id)
        found = [one for one in ranges if one.min_offset < one.max_offset] or ranges[-1:]
        low, high = min(one.min_offset for one in found), max(one.max_offset for one in ranges)
        return QueueRange(topic, queue_id, low, high)

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """The offset by the tier where it has one below the local first, else by the local queue."""
        key = QueueKey(topic, queue_id)
        hot, cold = self._both()
        there = self.queue(topic, queue_id)
        if key in cold:
            found = self._cold.offset_by_time(topic, queue_id, ms)
            if found < self._cold.queue(topic, queue_id).max_offset and self._is_cold(key, found):
                return found
        return self._hot.offset_by_time(topic, queue_id, ms) if key in hot else there.max_offset

    def splits(self, spans: Sequence[QueueSpan], *, bytes_per_split: int) -> list[Split]:
        """Splits of both, in the order of offsets; each is of one side."""
        found: list[Split] = []
        for span in spans:
            for piece, is_cold in self._pieces(span):
                side = self._cold if is_cold else self._hot
                found += side.splits([piece], bytes_per_split=bytes_per_split)
        return found

    def _both(self) -> tuple[frozenset[QueueKey], frozenset[QueueKey]]:
        if self._keys is None:
            self._keys = frozenset(self._hot.keys()), frozenset(self._cold.keys())
        return self._keys

    def _ranges(self, topic: str, queue_id: int) -> list[QueueRange]:
        hot, cold = self._both()
        sides = ((self._cold, cold), (self._hot, hot))
        return [side.queue(topic, queue_id) for side, keys in sides if (topic, queue_id) in keys]

    def _is_cold(self, key: QueueKey, offset: int) -> bool:
        (_, is_cold), *_ = self._pieces(QueueSpan(*key, offset, offset + 1))
        return is_cold

    def _pieces(self, span: QueueSpan) -> list[tuple[QueueSpan, bool]]:
        """A span cut at the seams: (part, whether the tier is asked)."""
        hot, cold = self._both()
        key = QueueKey(span.topic, span.queue_id)
        if key not in cold or key not in hot:
            return [(span, key in cold)]
        first = self._cold if self._prefers_cold else self._hot
        own = first.queue(*key)
        lo, hi = max(span.lo, own.min_offset), min(span.hi, own.max_offset)
        if lo >= hi:
            return [(span, not self._prefers_cold)]
        parts = [(span.lo, lo, False), (lo, hi, True), (hi, span.hi, False)]
        return [(QueueSpan(*key, a, b), is_first == self._prefers_cold) for a, b, is_first in parts if a < b]


def open_origin(options: ReadOptions, *, trusts_topics: bool = False) -> Origin:
    """The place that the options name, to be closed by who asks. What the parts raise when they are opened.

    ``trusts_topics``: topics that the options name were there before, so a broker that lacks them is given time.
    """
    cold: Origin | None = None
    if options.tier:
        from stratamq.pipeline.cold import TierOrigin

        cold = TierOrigin(options)
        if not (options.path or options.namesrv):
            return cold
    hot: Origin
    if options.namesrv:
        from stratamq.pipeline.pulling import BrokerOrigin

        hot = BrokerOrigin(options, trusts_topics=trusts_topics)
    else:
        hot = FilesOrigin(options.path)
    return hot if cold is None else JoinedOrigin(hot, cold, prefers_cold=bool(options.namesrv))


class RangeReader:
    """Reads planned ranges in a task. A context manager; opens what it needs when it needs it."""

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], skip_lost: SkipLost | None, *, tier: Backend | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._skip_lost = skip_lost
        self._tier = tier
        self._cluster: Cluster | None = None
        self._files: StoreFiles | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.calls.close()
        if self._tier is not None:
            self._tier.close()

    def batches(self, key: QueueKey, lo: int, hi: int, segments: Sequence[Segment] | None) -> Iterator[Any]:
        """The records ``[lo, hi)`` in order; with ``segments`` out of the tier.

        Raises:
            DataLost: Records are nowhere any more, and nothing is to be skipped.
            PeerUnreachable, BackendError: A broker or the tier did not answer for as long as patience lasts.
            CorruptionError: What is there is something else.
        """
        if segments is not None:
            yield from self._cold(key, lo, hi, segments, then_hot=bool(self._options.path or self._options.namesrv))
        elif not self._options.tier:
            yield from self._hot(key, lo, hi, self._skip_lost)
        else:
            yield from self._hot_then_cold(key, lo, hi)

    def _hot(self, key: QueueKey, lo: int, hi: int, skip_lost: SkipLost | None) -> Iterator[Any]:
        decompress = self._options.decompress
        if self._options.namesrv:
            from stratamq.pipeline.cluster import Cluster
            from stratamq.pipeline.pulling import broker_batches

            self._cluster = self._cluster or Cluster(self._options, trusts_topics=True)
            yield from broker_batches(
                self._cluster, key, lo, hi, self._columns, decompress=decompress, skip_lost=skip_lost
            )
            return
        yield from arrow_batches(
            self._options.path, *key, lo, hi, self._columns, decompress=decompress, skip_lost=skip_lost
        )

    def _hot_then_cold(self, key: QueueKey, lo: int, hi: int) -> Iterator[Any]:
        lost: list[Lost] = []
        for batch in self._hot(key, lo, hi, lost.append):
            while lost:  # they lie before this batch
                one = lost.pop(0)
                yield from self._cold(key, one.lo, one.hi, (), then_hot=False)
            yield batch
        for one in lost:
            yield from self._cold(key, one.lo, one.hi, (), then_hot=False)

    def _cold(self, key: QueueKey, lo: int, hi: int, segments: Sequence[Segment], *, then_hot: bool) -> Iterator[Any]:
        from stratamq.pipeline import cold

        self._tier = self._tier or cold.open_tier(self._options)
        is_fresh, at = False, lo
        gone: set[str] = set()
        until = self._until()
        while at < hi:
            segment = next((one for one in segments if one.first <= at <= one.last and one.name not in gone), None)
            if segment is None and not is_fresh:
                manifest = self._patiently(lambda tier: cold.newest(tier, key))
                segments, is_fresh = () if manifest is None else manifest.segments, True
                continue
            if segment is None:
                stop = min([hi, *(one.first for one in segments if one.first > at)])
                yield from self._not_in_tier(key, at, stop, hi, then_hot=then_hot)
                at = stop
                continue
            try:
                for batch in cold.segment_batches(
                    self._tier, key, segment, at, min(hi, segment.last + 1), self._columns,
                    decompress=self._options.decompress,
                ):  # fmt: skip
                    yield batch
                    at += batch.num_rows
                    until = self._until()
            except ObjectMissing:
                gone.add(segment.name)  # it was joined with others, or has expired
                is_fresh = False
            except BackendError:
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _not_in_tier(self, key: QueueKey, lo: int, stop: int, hi: int, *, then_hot: bool) -> Iterator[Any]:
        """What the tier lacks: from the files or the broker, where they may have it."""
        if then_hot:
            yield from self._hot(key, lo, stop, self._skip_lost)
        elif self._skip_lost is not None:
            self._skip_lost(Lost(*key, lo, stop))
        else:
            raise DataLost(
                f"records of topic {key.topic}, queue {key.queue_id} are gone: wanted up to {hi}, missing [{lo}, "
                f"{stop}) in {self._options.place}. Retention may have removed them while the job ran; keep records "
                "longer, or set failOnDataLoss to false to read what is left"
            )

    def _until(self) -> float:
        return time.monotonic() + self._options.retry_seconds

    def _patiently(self, ask: Callable[[Backend], Any]) -> Any:
        """Ask the tier until it answers, or ``retrySeconds`` have gone by."""
        assert self._tier is not None
        until = self._until()
        while True:
            try:
                return ask(self._tier)
            except BackendError:
                if time.monotonic() >= until:
                    raise
            time.sleep(PAUSE_SECONDS)
