"""A clock that stands still until a test moves it."""

from __future__ import annotations

from stratamq.units import Millis


class ManualClock:
    """A `stratamq.clock.Clock` whose hands a test moves."""

    __slots__ = ("_monotonic", "_wall")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall = wall_ms
        self._monotonic = 0

    def wall_ms(self) -> Millis:
        """The wall time set last."""
        return Millis(self._wall)

    def monotonic_ms(self) -> Millis:
        """How far the clock was advanced so far."""
        return Millis(self._monotonic)

    def advance(self, ms: int) -> None:
        """Move both hands forward by ``ms``."""
        if ms < 0:
            raise ValueError("use set_wall() to step the wall clock back")
        self._wall += ms
        self._monotonic += ms

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall time, also backwards; monotonic time does not move."""
        self._wall = wall_ms
