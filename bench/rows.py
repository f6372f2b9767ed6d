"""What a benchmark returns, and how pairs are run: ours, peer, ours, peer ... and the median of the ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a job, both rates, and ours / peer for each pair. Higher is better."""

    job: str
    peer: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    target: float | None = None
    note: str = ""
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours over the peer's, pair by pair."""
        return tuple(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest ratio seen."""
        return min(self.ratios), max(self.ratios)

    def as_json(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return {
            "job": self.job,
            "peer": self.peer,
            "unit": self.unit,
            "ours": list(self.ours),
            "theirs": list(self.theirs),
            "ratio_median": self.ratio,
            "ratio_min": self.spread[0],
            "ratio_max": self.spread[1],
            "target": self.target,
            "note": self.note,
            "extra": self.extra,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A row that could not be run here, and why."""

    job: str
    reason: str

    def as_json(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return {"job": self.job, "missing": self.reason}


def pairs(
    ours: Callable[[], float], theirs: Callable[[], float], *, rounds: int, warm_up: bool = True
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Run both in turn ``rounds`` times, after one unmeasured turn each; each call returns a rate."""
    if warm_up:
        ours()
        theirs()
    measured = [(ours(), theirs()) for _ in range(rounds)]
    return tuple(a for a, _ in measured), tuple(b for _, b in measured)
