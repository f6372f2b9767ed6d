"""How many half messages are open, by their real topic, as RocketMQ keeps it in ``config/transactionMetrics``.

The counts are made anew when the half messages are read back at start, so they are right after a kill too; of the file
only the data version is read.

Source: apache/rocketmq broker/.../transaction/TransactionMetrics.java.
"""

from __future__ import annotations

from typing import Any

from stratamq.broker.versions import DataVersion


class HalfCounts:
    """The table of ``config/transactionMetrics``. ``is_dirty`` until what is stored is current."""

    def __init__(self, stored: Any = None) -> None:
        self.version = DataVersion.from_json(stored.get("dataVersion") if isinstance(stored, dict) else None)
        self._counts: dict[str, tuple[int, int]] = {}
        self.is_dirty = False

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """``count`` more half messages of a topic are open."""
        self._counts[topic] = (max(0, self._counts.get(topic, (0, 0))[0] + count), now_ms)
        self.version.next(now_ms)
        self.is_dirty = True

    def count(self, topic: str) -> int:
        """Open half messages of a topic."""
        return self._counts.get(topic, (0, 0))[0]

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted."""
        self.is_dirty |= self._counts.pop(topic, None) is not None

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        counts = {topic: {"count": count, "timeStamp": ms} for topic, (count, ms) in sorted(self._counts.items())}
        return {"dataVersion": self.version.as_json(), "transactionCount": counts}
