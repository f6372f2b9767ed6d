"""Where a stream stands: offsets as they lie in a checkpoint, how far the next batch goes, and what got lost. Pure.

A checkpoint outlives the code, so its form is fixed: ``{"orders": {"0": 17, "1": 4}}``, next offset to read by topic
and queue. Spark compares offsets as text, so topics and queues always stand in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stratamq.errors import DataLost, PipelineError
from stratamq.logstore.types import QueueKey

BEGINNING: Final = ""
"""Beside the topics in an end: the offsets where the batch began, of the queues that it reads."""

Offsets = Mapping[QueueKey, int]
"""The next offset to read of each queue."""


def encode_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as they go into the checkpoint: sorted by topic, then by queue number."""
    document: dict[str, dict[str, int]] = {}
    for key in sorted(offsets):
        document.setdefault(key.topic, {})[str(key.queue_id)] = offsets[key]
    return document


def decode_offsets(document: Mapping[str, Any]) -> dict[QueueKey, int]:
    """Offsets out of a checkpoint.

    Raises:
        PipelineError: It is not a checkpoint of this source.
    """
    found: dict[QueueKey, int] = {}
    for topic, queues in document.items():
        if topic == BEGINNING:
            continue
        if not isinstance(queues, Mapping):
            raise PipelineError(f"the checkpoint is not one of the stratamq source: {topic} has {queues!r}")
        for queue, offset in queues.items():
            if not str(queue).isdecimal() or type(offset) is not int or offset < 0:
                raise PipelineError(f"the checkpoint has {queue!r}: {offset!r} for {topic}, not a queue and an offset")
            found[QueueKey(topic, int(queue))] = offset
    return found


def encode_end(start: Offsets, ends: Offsets) -> dict[str, Any]:
    """The end of a batch, with the beginnings of the queues that it reads."""
    moved = {key: start[key] for key, end in ends.items() if start[key] != end}
    return {BEGINNING: encode_offsets(moved), **encode_offsets(ends)}


def batch_ranges(end: Mapping[str, Any]) -> dict[QueueKey, tuple[int, int]]:
    """The ranges of the batch that ends so, by the end alone; none for offsets that end no batch.

    Raises:
        PipelineError: It is not a checkpoint of this source.
    """
    begins, ends = decode_offsets(end.get(BEGINNING, {})), decode_offsets(end)
    if not begins.keys() <= ends.keys():
        raise PipelineError("the checkpoint is not one of the stratamq source: a batch begins in a queue without end")
    return {key: (begin, ends[key]) for key, begin in sorted(begins.items())}


def share_limit(backlog: Mapping[QueueKey, int], limit: int) -> dict[QueueKey, int]:
    """Split ``limit`` over queues in proportion to what waits in them; the sum is ``min(limit, all)`` exactly.

    Remainders go to the largest fractions, so a small queue beside a large one is not starved for ever: its turn
    comes at the latest when the large one is read. ``limit`` is at least 1.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    shares = {key: count * limit // total for key, count in backlog.items()}
    rest = limit - sum(shares.values())
    for key in sorted(backlog, key=lambda one: (-(backlog[one] * limit % total), one))[:rest]:
        shares[key] += 1
    return shares


def next_end(
    start: Offsets,
    latest: Offsets,
    *,
    rows_max: int | None = None,
    sizes: Mapping[QueueKey, int] | None = None,
    bytes_max: int | None = None,
) -> dict[QueueKey, int]:
    """How far the next batch goes: at most ``rows_max`` rows and about ``bytes_max`` bytes beyond ``start``.

    ``sizes`` are the bytes of the log between ``start`` and ``latest`` of each queue; a cut by bytes takes a queue's
    records to be of their average size. At least one record is taken when there is one, so a stream never stands still.
    A queue that has vanished keeps its offset.
    """  # fmt: skip
    waiting = {key: end - start.get(key, 0) for key, end in latest.items() if end > start.get(key, 0)}
    total = sum(waiting.values())
    rows = total if rows_max is None else min(total, rows_max)
    if bytes_max is not None and sizes is not None and total:
        rows = min(rows, max(1, total * bytes_max // max(1, sum(sizes.values()))))
    taken = share_limit(waiting, rows) if rows else {}
    ends = dict(start)
    for key in latest:
        ends[key] = start.get(key, 0) + taken.get(key, 0)
    return ends


def check_losses(start: Offsets, earliest: Offsets, latest: Offsets) -> None:
    """Compare where a stream stands with what there is.

    Raises:
        DataLost: A queue is gone, starts behind the offset that is next, or ends before it.
    """
    for key, offset in start.items():
        name = f"topic {key.topic}, queue {key.queue_id}"
        advice = "To go on with what is left, set failOnDataLoss to false"
        if key not in latest:
            if offset:
                raise DataLost(f"{name} is gone from the store; the stream stands at offset {offset}. {advice}")
        elif not earliest[key] <= offset <= latest[key]:
            raise DataLost(
                f"the stream stands at offset {offset} of {name}, but the store has {earliest[key]} to "
                f"{latest[key]} (exclusive). Retention overtook the stream, or it is another store. {advice}"
            )
