"""The job `replay`: messages of a store, a broker, a cold tier or an exported table sent to topics again.

Order is kept within a source queue: its pieces are sent one after the other, into one target queue (its number, modulo
how many the target has). Pieces of different queues go side by side, a wave at a time; the state file says which waves
are done, and where the target's queues ended when the one in flight began.

Every message carries the property `KEY`, made of the replay's name and the place that the message came from, so that
consumers can tell a repeat. Repeats are not made by a kill of ours: a task that may have sent before (its wave was in
flight when the run was killed, it is tried again by Spark, or an answer did not come) first reads back what the target
queue has got since the wave began, and leaves out what is there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stratamq.errors import PeerRefused, PeerUnreachable, PipelineError
from stratamq.files.durable import replace_file
from stratamq.formats.properties import KEYS, TAGS, encode_properties, split_keys
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.cluster import Cluster
from stratamq.pipeline.jobs.running import Json, Runner, fingerprint
from stratamq.pipeline.jobs.table import Table
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.origins import RangeReader
from stratamq.pipeline.plan import plan_read
from stratamq.pipeline.pulling import broker_batches
from stratamq.pipeline.sending import Producer, Target

KEY: Final = "STRATA_REPLAY_KEY"
BATCH_BYTES_MAX: Final = 1 << 20
BATCH_MESSAGES_MAX: Final = 512
RETRIES: Final = 5
RETRY_SECONDS: Final = 0.5
COLUMNS: Final = ("queue_offset", "flag", "properties", "body")
OWN_TO_BROKER: Final = frozenset(
    {
        *("DELAY", "TIMER_DELAY_LEVEL", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"),
        *("TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID", "CLUSTER", "__CRC32#", KEY),
        *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE"),
    }
)
"""Properties that would have a message delayed, or half committed, once more, or that say where it lay."""


class Piece(NamedTuple):
    """Messages of one queue to be sent: a range ``[lo, hi)`` of the source, or some files of a table that hold it."""

    topic: str
    queue_id: int
    lo: int
    hi: int
    is_cold: bool
    files: tuple[str, ...]


class Where(NamedTuple):
    """What is sent where: filters, the target topic ("" for the source's own), the rate of one task (0: no limit)."""

    name: str
    to: ReadOptions
    topic: str
    tag: str | None
    key: str | None
    from_ms: int | None
    until_ms: int | None


class SendTask(NamedTuple):
    """One piece, to be sent by a task. ``since`` is where the target queue ended before, when it may have been sent."""

    piece: Piece
    source: ReadOptions | None
    where: Where
    rate: float
    since: Mapping[str, int]
    in_doubt: bool


class Replayed(NamedTuple):
    """What was sent, what was there already because a killed run had sent it, and what the filters left out."""

    sent: int
    bytes: int
    found_there: int
    left_out: int


# --- planning -----------------------------------------------------------------------------------------------------


def pieces_of_source(options: ReadOptions) -> list[Piece]:
    """The pieces of a store, a broker or a tier, in order. What `plan_read` raises."""
    return [
        Piece(split.topic, split.queue_id, split.lo, split.hi, split.segments is not None, ())
        for split in plan_read(options)
    ]


def pieces_of_table(table: Table, topics: Sequence[str] | None) -> list[Piece]:
    """The pieces of an exported table: its committed files, those of one range together, in the order of offsets.

    Raises PipelineError: The folder is no table, or has none of a topic.
    """
    files = table.files()
    if not files:
        raise PipelineError(f"{table.root} is no table that `stratamq pipeline export` made, or it is empty")
    absent = sorted(set(topics or ()) - {file.topic for file in files})
    if absent:
        raise PipelineError(f"{table.root} has no topic {', '.join(absent)}")
    ranges: dict[tuple[str, int, int, int], list[str]] = {}
    for file in files:
        if topics is None or file.topic in topics:
            place = (file.topic, file.queue_id, file.lo, file.hi)
            ranges.setdefault(place, []).append(str(table.root / file.path))
    return [Piece(*place, False, tuple(paths)) for place, paths in sorted(ranges.items())]


def waves_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces that may be sent side by side: the first of every queue, then the second, and so on."""
    by_queue: dict[tuple[str, int], list[Piece]] = {}
    for piece in pieces:
        by_queue.setdefault((piece.topic, piece.queue_id), []).append(piece)
    return [[piece for piece in wave if piece is not None] for wave in zip_longest(*by_queue.values())]


@dataclass
class State:
    """How far a replay is, in a file that is replaced as a whole: the plan, waves done, and the wave in flight."""

    path: Path | None
    plan: str
    pieces: list[Piece] = field(default_factory=list)
    done: int = 0
    since: dict[str, int] | None = None
    """Next offset of each target queue when the wave in flight began; None when none is."""

    @classmethod
    def open(cls, path: Path | None, plan: object, pieces: Callable[[], list[Piece]]) -> State:
        """Take up the replay that the file is of, or begin one. Raises PipelineError when it is another's."""
        mark = fingerprint(plan)
        if path is None or not path.exists():
            state = cls(path, mark, pieces())
            state.save()
            return state
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows = [
                Piece(str(topic), int(queue_id), int(lo), int(hi), bool(is_cold), tuple(files))
                for topic, queue_id, lo, hi, is_cold, files in found["pieces"]
            ]
            state = cls(path, str(found["plan"]), rows, int(found["done"]), found["since"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PipelineError(f"{path} is no state of a replay: {error!r}; name another file") from error
        if state.plan != mark:
            raise PipelineError(f"{path} is the state of a replay with other options; name another file, or remove it")
        return state

    def save(self) -> None:
        """Write it. Blocks for two syncs."""
        if self.path is not None:
            os.makedirs(self.path.absolute().parent, exist_ok=True)
            document = {"plan": self.plan, "done": self.done, "since": self.since, "pieces": self.pieces}
            replace_file(str(self.path), json.dumps(document).encode())


# --- a task -------------------------------------------------------------------------------------------------------


class Limiter:
    """So many messages a second, at most half a second's worth at once."""

    def __init__(
        self, rate: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at = clock()

    @property
    def batch_max(self) -> int:
        """Most messages to send at once."""
        return BATCH_MESSAGES_MAX if not self._rate else max(1, min(BATCH_MESSAGES_MAX, int(self._rate / 2)))

    def take(self, count: int) -> None:
        """Wait until so many may be sent."""
        if not self._rate:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now)
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at += count / self._rate


def send_piece(task: SendTask) -> Json:
    """Send one piece and wait until all of it is acknowledged. Runs in a worker.

    Raises PeerUnreachable, PeerRefused after some tries; what was sent before stays sent, and is found the next time.
    """
    piece, where = task.piece, task.where
    topic = where.topic or piece.topic
    limiter = Limiter(task.rate)
    done = {"sent": 0, "bytes": 0, "found_there": 0, "left_out": 0}
    with Cluster(where.to) as cluster, Producer(where.to.namesrv[0]) as producer:
        route = cluster.route(topic)
        if not route.queues:
            raise PipelineError(f"topic {topic} has no queue at the target")
        queue = QueueKey(topic, piece.queue_id % route.queues)
        since = task.since.get(f"{topic}/{queue.queue_id}", 0)
        there = (
            keys_since(cluster, queue, since, prefix_of(where.name, piece)) if task.in_doubt or is_retry() else set()
        )
        batch: list[tuple[int, bytes, str]] = []
        names: list[str] = []
        size = 0

        def flush() -> None:
            nonlocal size
            if batch:
                limiter.take(len(batch))
                _send(cluster, producer, queue, batch, names, since, prefix_of(where.name, piece))
                done["sent"] += len(batch)
                done["bytes"] += sum(len(body) for _, body, _ in batch)
            batch.clear()
            names.clear()
            size = 0

        for offset, flag, properties, body in messages(task):
            name = f"{prefix_of(where.name, piece)}{offset}"
            if not wants(properties, where):
                done["left_out"] += 1
            elif name in there:
                done["found_there"] += 1
            else:
                kept = {key: value for key, value in properties.items() if key not in OWN_TO_BROKER}
                text = encode_properties({**kept, KEY: name})
                if batch and (size + len(body) + len(text) > BATCH_BYTES_MAX or len(batch) >= limiter.batch_max):
                    flush()
                batch.append((flag, body, text))
                names.append(name)
                size += len(body) + len(text)
        flush()
    return done


def _send(
    cluster: Cluster,
    producer: Producer,
    queue: QueueKey,
    batch: list[tuple[int, bytes, str]],
    names: Sequence[str],
    since: int,
    prefix: str,
) -> None:
    """Send a batch; after a failure look first whether it has arrived, for a batch is stored whole or not at all."""
    for left in range(RETRIES, -1, -1):
        try:
            target = Target(cluster.address(queue.topic, 0), queue.queue_id)
            producer.send(queue.topic, target, batch)
            return
        except (PeerUnreachable, PeerRefused):
            if not left:
                raise
            time.sleep(RETRY_SECONDS)
            cluster.forget(queue.topic)
            if names[0] in keys_since(cluster, queue, since, prefix):
                return


def is_retry() -> bool:
    """Whether Spark has tried this task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def prefix_of(name: str, piece: Piece) -> str:
    """What the keys of a queue's messages begin with; the offset follows."""
    return f"{name}:{piece.topic}/{piece.queue_id}/"


def keys_since(cluster: Cluster, queue: QueueKey, since: int, prefix: str) -> set[str]:
    """The replay keys with a prefix that a target queue has from an offset on."""
    low, high = cluster.ends(queue)
    found: set[str] = set()
    for batch in broker_batches(cluster, queue, max(low, since), high, ["properties"], skip_lost=lambda lost: None):
        for properties in batch.column(0).to_pylist():
            key = dict(properties).get(KEY, "")
            if key.startswith(prefix):
                found.add(key)
    return found


def messages(task: SendTask) -> Iterator[tuple[int, int, dict[str, str], bytes]]:
    """Offset, flag, properties and body of the messages of a piece, in the order of offsets."""
    where = task.where
    for batch in _batches(task):
        times = batch.column("store_timestamp").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for ms, offset, flag, properties, body in zip((one // 1000 for one in times), *columns, strict=True):
            if (where.from_ms is None or ms >= where.from_ms) and (where.until_ms is None or ms < where.until_ms):
                yield offset, flag, dict(properties or ()), body or b""


def _batches(task: SendTask) -> Iterator[Any]:
    piece, names = task.piece, [*COLUMNS, "store_timestamp"]
    if task.source is not None:
        segments = () if piece.is_cold else None
        with RangeReader(task.source, names, None) as reader:
            yield from reader.batches(QueueKey(piece.topic, piece.queue_id), piece.lo, piece.hi, segments)
        return
    tables = []
    for path in piece.files:
        absent = sorted(set(names) - set(pq.read_schema(path).names))
        if absent:
            raise PipelineError(f"{path} has no column {', '.join(absent)}; export with all columns to replay")
        tables.append(pq.read_table(path, columns=names, partitioning=None))
    # One range is in several files when it spans days; a clock that was set back mixes them.
    yield from pa.concat_tables(tables).sort_by("queue_offset").to_batches()


def wants(properties: Mapping[str, str], where: Where) -> bool:
    """Whether tag and key are those that are asked for."""
    if where.tag is not None and properties.get(TAGS) != where.tag:
        return False
    return where.key is None or where.key in split_keys(properties.get(KEYS, ""))


# --- a run --------------------------------------------------------------------------------------------------------


def replay(
    runner: Runner, state: State, source: ReadOptions | None, where: Where, *, rate: float = 0, cores: int = 1
) -> Replayed:
    """Send what a state says is left. Blocks.

    Args:
        runner: Runs the tasks.
        state: How far it is; written before and after each wave.
        source: Where to read; None when the pieces name files of a table.
        where: What to send where.
        rate: Messages a second, of all tasks together; 0 for no limit.
        cores: How many tasks run at a time.

    Raises:
        PeerRefused, PeerUnreachable: The target knows no such topic, or is not there.
        PipelineError: A task failed; run it again with the same state to go on.
    """
    done = Replayed(0, 0, 0, 0)
    waves = waves_of(state.pieces)
    while state.done < len(waves):
        wave = waves[state.done]
        in_doubt = state.since is not None
        if state.since is None:
            state.since = target_ends(where, wave)
            state.save()
        share = rate / min(cores, len(wave)) if rate else 0.0
        tasks = [SendTask(piece, source, where, share, state.since, in_doubt) for piece in wave]
        for answer in runner(send_piece, tasks):
            done = Replayed(*(before + answer[name] for name, before in done._asdict().items()))
        state.done, state.since = state.done + 1, None
        state.save()
    return done


def target_ends(where: Where, wave: Sequence[Piece]) -> dict[str, int]:
    """Next offset of every target queue of some pieces."""
    found: dict[str, int] = {}
    with Cluster(where.to) as cluster:
        for topic in {where.topic or piece.topic for piece in wave}:
            for number in range(cluster.route(topic).queues):
                found[f"{topic}/{number}"] = cluster.ends(QueueKey(topic, number))[1]
    return found
