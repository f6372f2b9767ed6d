"""Ranges of queue offsets as planning cuts them and as reading loses them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from stratamq.errors import DataLost
from stratamq.formats.cold_manifest import Segment
from stratamq.formats.vector import Ints
from stratamq.units import MiB

BATCH_ROWS: Final = 4096
"""Rows of one batch: with 1 KB bodies 1024 took 1.17 times as long through Spark, 62,500 took 1.26 times."""
BATCH_BYTES_MAX: Final = 64 * MiB
"""A batch ends before its records exceed this, so that large bodies do not exhaust a worker's memory."""


class QueueSpan(NamedTuple):
    """Records ``[lo, hi)`` of one queue."""

    topic: str
    queue_id: int
    lo: int
    hi: int


class Split(NamedTuple):
    """One task's work: records ``[lo, hi)`` of one queue, together ``size_bytes`` of the commit log.

    With ``segments`` they are read from the cold tier: those that hold them, in order.
    """

    topic: str
    queue_id: int
    lo: int
    hi: int
    size_bytes: int
    segments: tuple[Segment, ...] | None = None


class Lost(NamedTuple):
    """Records ``[lo, hi)`` of a queue that were skipped because they are gone."""

    topic: str
    queue_id: int
    lo: int
    hi: int

    def error(self, lo: int, hi: int, available: tuple[int, int]) -> DataLost:
        """What to raise when ``[lo, hi)`` was to be read and files hold the offsets ``available``."""
        return DataLost(
            f"records of topic {self.topic}, queue {self.queue_id} are gone: wanted [{lo}, {hi}), "
            f"missing [{self.lo}, {self.hi}), available [{available[0]}, {available[1]}). Retention may have "
            "removed them while the job ran; keep records longer, or skip what is lost to read what is left"
        )


def equal_cuts(sizes: Ints, bytes_wanted: int) -> Iterator[tuple[int, int, int]]:
    """Cut some records, by their sizes, into pieces of about ``bytes_wanted``, each of at least one record.

    Yields begin, end and bytes of each piece, numbered from 0.
    """
    ends, count = np.cumsum(sizes), len(sizes)
    total = int(ends[-1])
    pieces = min(max(1, round(total / bytes_wanted)), count)
    targets = np.arange(1, pieces) * (total / pieces)
    cuts = np.unique(np.concatenate(([0], np.searchsorted(ends, targets) + 1, [count])))
    cuts = cuts[cuts <= count]
    for start, stop in pairwise(cuts.tolist()):
        yield start, stop, int(ends[stop - 1]) - (int(ends[start - 1]) if start else 0)
