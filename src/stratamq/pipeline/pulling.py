"""Ranges of a queue pulled from a broker, as the same Arrow batches that its files give.

A broker gives few messages a pull (32, unless it is set otherwise), so several pulls are under way at once, each for
the offsets behind the one before. Answers are used in order. Memory: `PULLS_MAX` answers, each of which a broker bounds
(256 KiB, or one message), and one batch.

What is gone is loud, as with files: an offset below the queue's lowest, above its end, or passed over by the broker. A
connection that ends, a broker that is away and one that moved are tried again, from the first offset that is still
missing. The broker's order of answers, sizes and offsets are checked; nothing it sends is believed. A record of many
messages, of a topic with ``queue.type=BatchCQ``, is taken apart as soon as it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from stratamq.errors import CorruptionError, DataLost, PeerRefused, PeerUnreachable, PipelineError
from stratamq.formats import vector
from stratamq.formats.arrow import LogView, Rows, record_batch
from stratamq.formats.cold_segment import record_positions
from stratamq.formats.message import SYS_INNER_BATCH
from stratamq.formats.vector import Ints
from stratamq.logstore.light_queues import LMQ_PREFIX
from stratamq.logstore.snapshot import QueueRange
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.cluster import Cluster, queue_keys
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.reader import BATCH_ROWS, Lost, QueueSpan, Split
from stratamq.pipeline.unfolding import Unfolded, unfold
from stratamq.protocols.remoting.codes import ResponseCode
from stratamq.units import MiB

PULLS_MAX: Final = 8
"""Pulls under way at once: enough that the broker always has one to answer."""
PULL_MESSAGES_MAX: Final = 1024
BATCH_BYTES_MAX: Final = 16 * MiB
SAMPLED: Final = 32
"""Messages that are pulled from the middle of a range to learn how large its messages are."""
_PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

SkipLost = Callable[[Lost], None]


class Run(NamedTuple):
    """Records of one answer, in order: their bytes, where they begin, and the first one's offset."""

    first: int
    data: bytes
    positions: Ints


class _Nothing(Exception):
    """The broker gave nothing for an offset; ``stop`` is where it would go on."""

    def __init__(self, offset: int, stop: int) -> None:
        super().__init__(offset, stop)
        self.offset = offset
        self.stop = stop


class BrokerOrigin:
    """A broker to plan a read of."""

    def __init__(self, options: ReadOptions, *, trusts_topics: bool = False) -> None:
        self.options = options
        self.place = ";".join(options.namesrv)
        self.cluster = Cluster(options, trusts_topics=trusts_topics and options.topics is not None)
        self._ends: dict[QueueKey, tuple[int, int]] = {}

    def close(self) -> None:
        """End all connections."""
        self.cluster.calls.close()

    def keys(self) -> list[QueueKey]:
        """The queues of the topics that the options want."""
        options = self.options
        topics = sorted(options.topics) if options.topics is not None else self.cluster.topics()
        return queue_keys(self.cluster, [topic for topic in topics if options.wants_topic(topic)])

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """The range of one queue, the same at every question."""
        key = QueueKey(topic, queue_id)
        if key not in self._ends:
            self._ends[key] = self.cluster.ends(key)
        return QueueRange(topic, queue_id, *self._ends[key])

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """Offset of the first record stored at or after a time, found by halves: one small pull a step."""
        key = QueueKey(topic, queue_id)
        _, _, low, high, _ = self.queue(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            run = first_run(self.cluster, key, middle, high, 1)
            if run is None or run.first >= high:
                high = middle
                continue
            heads = vector.gather_heads(vector.byte_view(run.data), run.positions[:1])
            if int(heads["store_timestamp"][0]) < ms:
                low = run.first + 1
            else:
                high = middle
        return low

    def splits(self, spans: Sequence[QueueSpan], *, bytes_per_split: int) -> list[Split]:
        """Cut spans into pieces of equal numbers of messages, by the size of some in the middle."""
        found: list[Split] = []
        for topic, queue_id, lo, hi in spans:
            if lo >= hi:
                continue
            count = hi - lo
            size = self._message_bytes(QueueKey(topic, queue_id), lo, hi)
            pieces = min(count, max(1, round(count * size / bytes_per_split)))
            cuts = [lo + count * number // pieces for number in range(pieces + 1)]
            found.extend(Split(topic, queue_id, a, b, (b - a) * size) for a, b in pairwise(cuts))
        return found

    def _message_bytes(self, key: QueueKey, lo: int, hi: int) -> int:
        run = first_run(self.cluster, key, (lo + hi) // 2, hi, SAMPLED)
        return max(1, len(run.data) // len(run.positions)) if run is not None else 1


def first_run(cluster: Cluster, key: QueueKey, at: int, hi: int, count: int) -> Run | None:
    """Some records from an offset on, or from where the broker has any; None when there are none below ``hi``."""

    def ask() -> Run | None:
        address, offset = cluster.address(key.topic, 0), at
        while offset < hi:
            try:
                return _run_of(cluster, address, cluster.ask_pull(address, key, offset, count), key, offset, hi)
            except _Nothing as nothing:
                if nothing.stop <= offset:
                    return None
                offset = nothing.stop
        return None

    return cluster.patiently(key.topic, ask)


def broker_batches(
    cluster: Cluster,
    key: QueueKey,
    lo: int,
    hi: int,
    columns: Sequence[str],
    *,
    decompress: bool = True,
    skip_lost: SkipLost | None = None,
) -> Iterator[Any]:
    """The records ``[lo, hi)`` of a queue, in order, as pyarrow RecordBatches.

    Raises:
        DataLost: Records are gone, and ``skip_lost`` is None.
        PeerUnreachable, PeerRefused: No broker gave them for as long as patience lasts.
        CorruptionError, RemoteProtocolError: What came is not these records.
    """
    for runs in grouped(_runs(cluster, key, lo, hi, skip_lost)):
        yield batch_of(cluster.options.place, key, runs, columns, decompress=decompress)


def grouped(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Runs that follow each other without a hole, put together up to the size of a batch."""
    held: list[Run] = []
    rows = size = 0
    for run in runs:
        if held and (
            rows + len(run.positions) > BATCH_ROWS
            or size + len(run.data) > BATCH_BYTES_MAX
            or held[-1].first + len(held[-1].positions) != run.first
        ):
            yield held
            held, rows, size = [], 0, 0
        held.append(run)
        rows, size = rows + len(run.positions), size + len(run.data)
    if held:
        yield held


def batch_of(place: str, key: QueueKey, runs: Sequence[Run], columns: Sequence[str], *, decompress: bool) -> Any:
    """One batch of runs that follow each other without a hole. Raises CorruptionError."""
    data = runs[0].data if len(runs) == 1 else b"".join(run.data for run in runs)
    starts = np.cumsum([0, *(len(run.data) for run in runs[:-1])])
    positions = np.concatenate([run.positions + start for run, start in zip(runs, starts.tolist(), strict=True)])
    log = LogView.over(f"{place}, topic {key.topic}, queue {key.queue_id}", None, data)
    if key.topic.startswith(LMQ_PREFIX):  # a light queue's records are those of the topic they were sent to
        return record_batch(log, Rows(positions), columns, decompress=decompress)
    offsets = np.arange(runs[0].first, runs[0].first + len(positions), dtype=np.int64)
    rows = Rows(positions, topic=key.topic, queue_id=key.queue_id, queue_offsets=offsets)
    return record_batch(log, rows, columns, decompress=decompress)


def _runs(cluster: Cluster, key: QueueKey, lo: int, hi: int, skip_lost: SkipLost | None) -> Iterator[Run]:
    """All runs of a range, over losses and broken connections."""
    at, turn = lo, 0
    until = cluster.now() + cluster.options.retry_seconds
    while at < hi:
        try:
            for run in _stream(cluster, cluster.address(key.topic, turn), key, at, hi):
                yield run
                at = run.first + len(run.positions)
                until = cluster.now() + cluster.options.retry_seconds
        except _Nothing as nothing:
            lost = _lost(cluster, key, nothing, hi)
            if lost is not None:
                if skip_lost is None:
                    raise _data_lost(cluster, key, lost, lo, hi) from None
                skip_lost(lost)
                at = lost.hi
                continue
            if cluster.now() >= until:
                raise PipelineError(
                    f"the broker has offset {at} of topic {key.topic}, queue {key.queue_id}, and does not give it"
                ) from None
        except (PeerUnreachable, PeerRefused) as error:
            if not cluster.is_passing(error) or cluster.now() >= until:
                raise
        if at < hi:
            turn += 1
            cluster.forget(key.topic)
            cluster.pause()


def _lost(cluster: Cluster, key: QueueKey, nothing: _Nothing, hi: int) -> Lost | None:
    """What is gone at an offset for which a broker gave nothing; None when it should be there."""
    low, high = cluster.ends(key)
    if nothing.offset >= high:
        return Lost(*key, nothing.offset, hi)
    stop = max(low, nothing.stop)
    return Lost(*key, nothing.offset, min(stop, hi)) if stop > nothing.offset else None


def _data_lost(cluster: Cluster, key: QueueKey, lost: Lost, lo: int, hi: int) -> DataLost:
    low, high = cluster.ends(key)
    return DataLost(
        f"records of topic {key.topic}, queue {key.queue_id} are gone: wanted [{lo}, {hi}), missing [{lost.lo}, "
        f"{lost.hi}), the broker has [{low}, {high}). Retention may have removed them while the job ran; keep records "
        "longer, or set failOnDataLoss to false to read what is left"
    )


def _stream(cluster: Cluster, address: str, key: QueueKey, at: int, hi: int) -> Iterator[Run]:
    """Runs from one broker, without a hole; ends at ``hi``. Raises _Nothing where the broker gives nothing."""
    flying: deque[tuple[int, int, int]] = deque()
    ahead, step, is_known, full = at, PULL_MESSAGES_MAX, False, 0

    def ask(begin: int, stop: int) -> tuple[int, int, int]:
        return begin, stop, cluster.ask_pull(address, key, begin, stop - begin)

    try:
        while at < hi:
            while ahead < hi and len(flying) < (PULLS_MAX if is_known else 1):
                flying.append(ask(ahead, min(hi, ahead + step)))
                ahead = flying[-1][1]
            begin, stop, opaque = flying.popleft()
            run = _run_of(cluster, address, opaque, key, begin, stop)
            if run.first != begin:
                raise _Nothing(begin, run.first)
            yield run
            at, is_known = begin + len(run.positions), True
            if at < stop:  # what a broker gives at once is its to say
                step, full = len(run.positions), 0
                if flying:
                    flying.appendleft(ask(at, stop))
                else:
                    ahead = at
            else:
                full += 1
                if full >= 2 * PULLS_MAX:
                    step, full = min(2 * step, PULL_MESSAGES_MAX), 0
    finally:
        if flying:
            cluster.calls.drop(address)  # answers that nobody will take


def _run_of(cluster: Cluster, address: str, opaque: int, key: QueueKey, begin: int, stop: int) -> Run:
    """The records of a pull's answer below ``stop``.

    Raises:
        _Nothing: There are none.
        PeerRefused: The broker says no.
        CorruptionError: They are none, or of other offsets than asked for.
    """
    answer = cluster.calls.answer(address, opaque)
    where = f"topic {key.topic}, queue {key.queue_id}"
    if answer.code not in _PULLED:
        raise PeerRefused(address, f"a pull of {where} from offset {begin}", answer.code, answer.remark)
    if answer.code != ResponseCode.SUCCESS:
        (after,) = answer.numbers("nextBeginOffset")
        raise _Nothing(begin, after if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY else begin)
    data = bytes(answer.body)
    positions = record_positions(data)
    place = f"{address}, {where}"
    if not len(positions):
        raise CorruptionError(place, 0, "records", f"{len(data)} other bytes")
    heads = vector.gather_heads(vector.byte_view(data), positions)
    if int(positions[-1]) + int(heads["size"][-1]) != len(data):
        raise CorruptionError(place, int(positions[-1]), "records to the end of the answer", "something else")
    offsets = np.arange(begin, begin + len(positions), dtype=np.int64)
    is_light = key.topic.startswith(LMQ_PREFIX)
    if not is_light:
        offsets = heads["queue_offset"].astype(np.int64)
        if (heads["sys_flag"] & SYS_INNER_BATCH).any():
            data, positions, offsets = _from_offset(begin, unfold(LogView.over(place, None, data), Rows(positions)))
    if int(offsets[0]) < begin or (not is_light and (heads["queue_id"] != key.queue_id).any()):
        raise CorruptionError(place, 0, f"records from offset {begin} on", f"offset {int(offsets[0])}")
    # Up to the first hole: what lies behind one is asked for again, and then shows what is missing.
    count = int(np.argmax(np.append(np.diff(offsets) != 1, True))) + 1
    count = min(count, int(np.searchsorted(offsets[:count], stop)))
    if not count:
        raise _Nothing(begin, min(int(offsets[0]), stop))
    end = int(positions[count]) if count < len(positions) else len(data)
    return Run(int(offsets[0]), data[:end], positions[:count])


def _from_offset(begin: int, messages: Unfolded) -> Unfolded:
    """Without the messages below ``begin``, which lie in the same record as the first one wanted; all, when all do."""
    data, positions, offsets = messages
    row = int(np.argmax(offsets >= begin))
    start = int(positions[row])
    return Unfolded(data[start:], positions[row:] - start, offsets[row:])
