"""Data versions: how peers see at a glance that a table changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class DataVersion:
    """Counter and time of the last change. ``state_version`` belongs to controller mode and stays 0."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    @classmethod
    def from_json(cls, value: Any) -> DataVersion:
        """Read what a file or a peer says; anything unusable counts as 0."""
        fields = value if isinstance(value, dict) else {}
        numbers = [fields.get(name) for name in ("counter", "stateVersion", "timestamp")]
        return cls(*[number if isinstance(number, int) else 0 for number in numbers])

    def as_json(self) -> dict[str, int]:
        """The members as peers name them."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    def next(self, now_ms: int) -> None:
        """Count one change."""
        self.counter += 1
        self.timestamp = now_ms
