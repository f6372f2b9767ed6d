"""What the report counts: from record batches to a small table of facts that add up.

A fact is a row of one kind. Facts of the same kind, topic, text, queue and number are joined by adding counts and bytes
and taking the lowest low and the highest high, in any order and any grouping: so every worker joins what it has seen,
and the driver joins what the workers send.

========= ======== ============ ======== ==================== ================== =================
kind      topic    text         queue_id number               bytes              low, high
========= ======== ============ ======== ==================== ================== =================
minute    topic    tag          0        start of minute, ms  bodies             -
timeline  topic    ""           0        start of bucket, ms  bodies             -
queue     topic    ""           queue    0                    bodies             store times, ms
offset    topic    ""           queue    0                    0                  lowest, highest
size      topic    ""           0        bucket of body bytes 0                  exact bytes
latency   topic    ""           0        bucket of ms         0                  exact ms
key       ""       message key  0        0                    0                  -
trace     topic    JSON         queue    queue offset         0                  stored, born, ms
========= ======== ============ ======== ==================== ================== =================

Facts of kind trace are made by `outlook.trace_facts`.

Sizes and times go into buckets that are exact below `EXACT_BELOW` and 1/256 wide above (`bucket_of`), so a percentile
read from them is exact up to 64 KiB or 65 s, and at most 0.4 % off beyond.

Pure functions over Arrow; no Spark, no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS: Final = ("topic", "queue_id", "queue_offset", "store_timestamp", "born_timestamp", "tags", "keys", "body")
"""The columns that `facts_of` needs."""

FACTS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("text", pa.string()),
        ("queue_id", pa.int32()),
        ("number", pa.int64()),
        ("count", pa.int64()),
        ("bytes", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
_KEY: Final = ["kind", "topic", "text", "queue_id", "number"]
_JOIN: Final = [("count", "sum"), ("bytes", "sum"), ("low", "min"), ("high", "max")]

EXACT_BELOW: Final = 1 << 16
_STEPS: Final = 256
MINUTE_MS: Final = 60_000
_ROWS_BEFORE_JOINING: Final = 200_000


def bucket_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bucket numbers of values >= 0: the value itself below `EXACT_BELOW`, then 256 buckets to each power of two."""
    exponent = np.maximum(np.frexp(values.astype(np.float64))[1] - 9, 0)  # so that values >> exponent is 256..511
    large = EXACT_BELOW + (exponent - 8) * _STEPS + ((values >> exponent) - _STEPS)
    return np.where(values >= EXACT_BELOW, large, values)


def value_of(bucket: int) -> int:
    """The lowest value of a bucket."""
    if bucket < EXACT_BELOW:
        return bucket
    power, step = divmod(bucket - EXACT_BELOW, _STEPS)
    return int((_STEPS + step) << (power + 8))


def percentiles(buckets: Mapping[int, int], wanted: Iterable[float]) -> list[int]:
    """Values at the given shares (0 to 1) of a histogram bucket -> count: the smallest that so many are not above."""
    numbers = sorted(buckets)
    reached = np.cumsum([buckets[number] for number in numbers])
    if not numbers:
        return [0 for _ in wanted]
    total = int(reached[-1])
    ranks = [max(1, int(np.ceil(share * total))) for share in wanted]
    return [value_of(numbers[int(np.searchsorted(reached, rank))]) for rank in ranks]


def facts_of(batch: pa.RecordBatch, timeline_ms: int = MINUTE_MS) -> pa.Table:
    """All facts of one batch that has at least `COLUMNS`. ``timeline_ms`` is the width of a timeline bucket."""
    if batch.num_rows == 0:
        return FACTS.empty_table()
    stored = _milliseconds(batch.column("store_timestamp"))
    sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0).cast(pa.int64())
    size_numbers = sizes.to_numpy(zero_copy_only=False)
    waits = np.maximum(stored - _milliseconds(batch.column("born_timestamp")), 0)
    topics, queues = batch.column("topic"), batch.column("queue_id").cast(pa.int32())
    tags = pc.fill_null(batch.column("tags"), "")
    rows = batch.num_rows
    parts = [
        _facts("minute", rows, topic=topics, text=tags, number=stored // MINUTE_MS * MINUTE_MS, bytes=sizes),
        _facts("timeline", rows, topic=topics, number=stored // timeline_ms * timeline_ms, bytes=sizes),
        _facts("queue", rows, topic=topics, queue_id=queues, bytes=sizes, low=stored, high=stored),
        _facts(
            "offset",
            rows,
            topic=topics,
            queue_id=queues,
            low=batch.column("queue_offset"),
            high=batch.column("queue_offset"),
        ),
        _facts("size", rows, topic=topics, number=bucket_of(size_numbers), low=size_numbers, high=size_numbers),
        _facts("latency", rows, topic=topics, number=bucket_of(waits), low=waits, high=waits),
        _key_facts(batch.column("keys")),
    ]
    return join(pa.concat_tables(parts))


def _milliseconds(column: pa.Array) -> npt.NDArray[np.int64]:
    micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    numbers: npt.NDArray[np.int64] = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
    return numbers // 1000


def _key_facts(keys: pa.Array) -> pa.Table:
    """One fact a key; a message may have several, with spaces between."""
    single = pc.list_flatten(pc.split_pattern(pc.drop_null(keys), " "))
    single = single.filter(pc.greater(pc.utf8_length(single), 0))
    return _facts("key", len(single), text=single)


def _facts(kind: str, rows: int, **columns: Any) -> pa.Table:
    """A table of `FACTS` with one row each; columns not given are empty or zero."""
    given = {"kind": pa.repeat(kind, rows), "count": pa.repeat(1, rows), **columns}
    blank = {"topic": "", "text": "", "queue_id": 0, "number": 0, "bytes": 0, "low": 0, "high": 0}
    arrays = []
    for one in FACTS:
        values = given[one.name] if one.name in given else pa.repeat(blank[one.name], rows)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        arrays.append(array.cast(one.type))
    return join(pa.table(arrays, schema=FACTS))


def join(facts: pa.Table) -> pa.Table:
    """Join facts that belong together."""
    if facts.num_rows < 2:
        return facts
    joined = facts.group_by(_KEY, use_threads=False).aggregate(_JOIN)
    names = [*_KEY, *(f"{name}_{how}" for name, how in _JOIN)]
    return joined.select(names).rename_columns(FACTS.names).cast(FACTS)


@dataclass(slots=True)
class Folder:
    """Adds up the facts of many batches without holding more than about 200,000 rows of what can be joined."""

    timeline_ms: int = MINUTE_MS
    records: int = 0
    _parts: list[pa.Table] = field(default_factory=list)
    _rows: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one batch."""
        facts = facts_of(batch, self.timeline_ms)
        self.records += batch.num_rows
        self._parts.append(facts)
        self._rows += facts.num_rows
        if self._rows > _ROWS_BEFORE_JOINING:
            joined = self.facts()
            # What does not join (keys that differ) is kept; wait for twice as much before trying again.
            self._parts, self._rows = [joined], joined.num_rows // 2

    def facts(self) -> pa.Table:
        """All facts so far, joined."""
        return join(pa.concat_tables([FACTS.empty_table(), *self._parts]))
