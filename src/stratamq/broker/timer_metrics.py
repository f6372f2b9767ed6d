"""How many messages wait for their time, by topic, and how fast they come and go.

The counts are kept in ``config/timermetrics``. They are counted anew from the timer's log at each start, so that they
are right after a kill too.

Source: apache/rocketmq store/.../timer/TimerMetrics.java.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratamq.broker.versions import DataVersion
from stratamq.formats.java import string_hash
from stratamq.formats.timer import MAGIC_DELETE
from stratamq.logstore.timer_store import TimerStore

WINDOW_MS: Final = 10_000


class Rate:
    """How many a second, over the last ten seconds or so."""

    __slots__ = ("_count", "_last", "_start_ms")

    def __init__(self) -> None:
        self._start_ms = 0
        self._count = 0
        self._last = 0.0

    def add(self, count: int, now_ms: int) -> None:
        """Count some."""
        self._turn(now_ms)
        self._count += count

    def per_second(self, now_ms: int) -> float:
        """The rate of the last whole window."""
        self._turn(now_ms)
        return self._last

    def _turn(self, now_ms: int) -> None:
        passed = now_ms - self._start_ms
        if not 0 <= passed < WINDOW_MS:
            self._last = self._count * 1000 / passed if WINDOW_MS <= passed < 2 * WINDOW_MS else 0.0
            self._start_ms, self._count = now_ms, 0


class TimerMetrics:
    """The table of ``config/timermetrics``."""

    def __init__(self) -> None:
        self.version = DataVersion.from_json(None)
        self._counts: dict[str, tuple[int, int]] = {}
        self.is_dirty = False

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """``count`` more messages of a topic wait."""
        self._counts[topic] = (self._counts.get(topic, (0, 0))[0] + count, now_ms)
        self.is_dirty = True

    def count(self, topic: str) -> int:
        """Messages of a topic that wait."""
        return self._counts.get(topic, (0, 0))[0]

    def recount(self, files: TimerStore, topics: list[str]) -> None:
        """Count what waits, from the log: topics are known there by their hash."""
        by_hash = {string_hash(topic): topic for topic in topics}
        totals: dict[int, int] = {}
        for base in files.log.bases:
            units = files.log.units(base)
            live = units["write_ms"].astype(np.int64) + units["delay_ms"] >= files.read_ms
            hashes = units["topic_hash"][live].astype(np.int64)
            counts = np.where(units["magic"][live] & MAGIC_DELETE, -1, 1)
            del units
            found, where = np.unique(hashes, return_inverse=True)
            for number, total in zip(found, np.bincount(where, counts), strict=True):
                totals[int(number)] = totals.get(int(number), 0) + int(total)
        self._counts = {by_hash[number]: (total, 0) for number, total in totals.items() if number in by_hash}

    def adopt(self, stored: Any) -> None:
        """Take another broker's table, as `as_json` gives it, in place of this one."""
        rows = stored.get("timingCount") if isinstance(stored, dict) else None
        counts = {
            str(topic): (int(row.get("count") or 0), int(row.get("timeStamp") or 0))
            for topic, row in (rows or {}).items()
            if isinstance(row, dict)
        }
        if counts != self._counts:
            self._counts = counts
            self.is_dirty = True

    def as_json(self) -> dict[str, Any]:
        """What the file holds, and what GET_TIMER_METRICS answers."""
        self.version.counter += self.is_dirty
        counts = {topic: {"count": count, "timeStamp": ms} for topic, (count, ms) in sorted(self._counts.items())}
        return {"dataVersion": self.version.as_json(), "timingCount": counts}
