"""Time as an argument: cores take a `Clock`, tests give one that they move by hand."""

from __future__ import annotations

import time
from typing import Protocol

from stratamq.units import Millis


class Clock(Protocol):
    """What the time is. Wall time may step back; monotonic time never does."""

    def wall_ms(self) -> Millis:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> Millis:
        """Milliseconds since an arbitrary start; only differences mean something."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def wall_ms(self) -> Millis:
        """Milliseconds since the Unix epoch."""
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> Millis:
        """Milliseconds since an arbitrary start."""
        return Millis(time.monotonic_ns() // 1_000_000)
