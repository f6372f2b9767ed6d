"""Rates of the overview: how fast each total moved between the last two samples, as RabbitMQ's basic rates are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SAMPLE_MS: Final = 5_000
"""Between two samples, as RabbitMQ's ``collect_statistics_interval``."""


class Rates:
    """The last two samples of some totals. Times are milliseconds of any one clock that does not go back."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._last: dict[str, int] = {}
        self._sampled_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for the next sample."""
        return self._sampled_ms is None or now_ms - self._sampled_ms >= SAMPLE_MS

    def sample(self, now_ms: int, totals: Mapping[str, int]) -> None:
        """Take the totals as they are now; nothing happens when no time has passed."""
        if self._sampled_ms is not None:
            seconds = (now_ms - self._sampled_ms) / 1000
            if seconds <= 0:
                return
            self._rates = {
                name: (total - self._last[name]) / seconds for name, total in totals.items() if name in self._last
            }
        self._last, self._sampled_ms = dict(totals), now_ms

    def rated(self, totals: Mapping[str, int]) -> dict[str, Any]:
        """Totals with their rates a second beside them: ``publish`` and ``publish_details``."""
        found: dict[str, Any] = {}
        for name, total in totals.items():
            found[name] = total
            found[f"{name}_details"] = {"rate": round(self._rates.get(name, 0.0), 3)}
        return found
