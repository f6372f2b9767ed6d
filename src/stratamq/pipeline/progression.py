"""Where a stream stands: offsets as they lie in a checkpoint, how far the next batch goes, and what got lost. Pure.

A checkpoint outlives the code, so its form is fixed: ``{"orders": {"0": 17, "1": 4}}``, next offset to read by topic
and queue; or, of a stream over several brokers, ``{"orders": {"broker-a/0": 17, "broker-b/0": 4}}``. Spark compares
offsets as text, so topics and queues always stand in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from stratamq.errors import DataLost, PipelineError

BEGINNING: Final = ""
"""Beside the topics in an end: the offsets where the batch began, of the queues that it reads."""

T = TypeVar("T")


class BrokerQueue(NamedTuple):
    """A queue of a stream, and the name of its broker; that is empty where there are no brokers to tell apart."""

    topic: str
    queue_id: int
    broker: str = ""

    def __str__(self) -> str:
        place = f" on broker {self.broker}" if self.broker else ""
        return f"topic {self.topic}, queue {self.queue_id}{place}"


Offsets = Mapping[BrokerQueue, int]
"""The next offset to read of each queue."""


def encode_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as they go into the checkpoint: sorted by topic, then by queue number, then by broker.

    Brokers are named when there are several. A queue never leaves a stream's offsets, so such a stream stays so.
    """
    return _encode(offsets, is_named=_has_brokers(offsets))


def _has_brokers(offsets: Offsets) -> bool:
    return len({key.broker for key in offsets}) > 1


def _encode(offsets: Offsets, *, is_named: bool) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for key in sorted(offsets):
        queue = f"{key.broker}/{key.queue_id}" if is_named else str(key.queue_id)
        document.setdefault(key.topic, {})[queue] = offsets[key]
    return document


def decode_offsets(document: Mapping[str, Any]) -> dict[BrokerQueue, int]:
    """Offsets out of a checkpoint; brokers where it names them.

    Raises:
        PipelineError: It is not a checkpoint of this source.
    """
    found: dict[BrokerQueue, int] = {}
    for topic, queues in document.items():
        if topic == BEGINNING:
            continue
        if not isinstance(queues, Mapping):
            raise PipelineError(f"the checkpoint is not one of the stratamq source: {topic} has {queues!r}")
        for queue, offset in queues.items():
            broker, slash, number = str(queue).rpartition("/")
            if not number.isdecimal() or bool(broker) != bool(slash) or type(offset) is not int or offset < 0:
                raise PipelineError(f"the checkpoint has {queue!r}: {offset!r} for {topic}, not a queue and an offset")
            found[BrokerQueue(topic, int(number), broker)] = offset
    return found


def on_brokers(found: Mapping[BrokerQueue, T], brokers: Sequence[str]) -> dict[BrokerQueue, T]:
    """What a checkpoint says by queue, with the names that this read has for ``brokers``: one, several, or [""].

    Raises:
        PipelineError: It is of one broker and there are several now, or of several and this read has no names.
    """
    named = sorted({key.broker for key in found if key.broker})
    unnamed = len(named) < len({key.broker for key in found})
    if named and brokers == [""]:
        raise PipelineError(
            f"the checkpoint has offsets of the brokers {', '.join(named)}, and this read has none of them: give the "
            "option namesrv, and no option broker; or begin with a new checkpoint"
        )
    if unnamed and len(brokers) > 1:
        raise PipelineError(
            "the checkpoint has offsets of one broker and does not say of which, and the topics lie on the brokers "
            f"{', '.join(brokers)} now: go on with one by the option broker, and read the others by another query"
        )
    return {key if key.broker else key._replace(broker=brokers[0]): value for key, value in found.items()}


def encode_end(start: Offsets, ends: Offsets) -> dict[str, Any]:
    """The end of a batch, with the beginnings of the queues that it reads."""
    moved = {key: start[key] for key, end in ends.items() if start[key] != end}
    is_named = _has_brokers(ends)
    return {BEGINNING: _encode(moved, is_named=is_named), **_encode(ends, is_named=is_named)}


def batch_ranges(end: Mapping[str, Any]) -> dict[BrokerQueue, tuple[int, int]]:
    """The ranges of the batch that ends so, by the end alone; none for offsets that end no batch.

    Raises:
        PipelineError: It is not a checkpoint of this source.
    """
    begins, ends = decode_offsets(end.get(BEGINNING, {})), decode_offsets(end)
    if not begins.keys() <= ends.keys():
        raise PipelineError("the checkpoint is not one of the stratamq source: a batch begins in a queue without end")
    return {key: (begin, ends[key]) for key, begin in sorted(begins.items())}


def share_limit(backlog: Mapping[BrokerQueue, int], limit: int) -> dict[BrokerQueue, int]:
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
    sizes: Mapping[BrokerQueue, int] | None = None,
    bytes_max: int | None = None,
) -> dict[BrokerQueue, int]:
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
        advice = "To go on with what is left, set failOnDataLoss to false"
        if key not in latest:
            if offset:
                raise DataLost(f"{key} is gone from the store; the stream stands at offset {offset}. {advice}")
        elif not earliest[key] <= offset <= latest[key]:
            raise DataLost(
                f"the stream stands at offset {offset} of {key}, but the store has {earliest[key]} to "
                f"{latest[key]} (exclusive). Retention overtook the stream, or it is another store. {advice}"
            )
