"""What counting costs: a message sent, and a second's sample of many keys.

python -m bench.statistics
"""

from __future__ import annotations

import time
import timeit

from stratamq.broker.statistics import Statistics, Totals
from stratamq.logstore.types import Appended

CALLS = 1_000_000
KEYS = 5_000


class Handler:
    """Counts as the handler of sends does."""

    def __init__(self, statistics: Statistics) -> None:
        self._puts = statistics.puts
        self.appended = Appended(0, 200, 0, 0)

    def counted(self) -> None:
        """One message."""
        size = self.appended.size
        tally = self._puts["topic"]
        tally.count += 1
        tally.size += size

    def nothing(self) -> None:
        """What a call alone costs."""


def main() -> None:
    """Measure and print."""
    statistics = Statistics(now_ms=0, totals=Totals, cluster="c")
    handler = Handler(statistics)
    best = {
        name: min(timeit.repeat(getattr(handler, name), number=CALLS, repeat=5)) / CALLS
        for name in ("counted", "nothing")
    }
    print(f"counting a message: {(best['counted'] - best['nothing']) * 1e6:.3f} us")
    for number in range(KEYS):
        statistics.puts[f"topic-{number}"].count += 1
        statistics.gets[f"topic-{number}", "group"].count += 1
    spent = []
    for second in range(1, 31):
        begun = time.perf_counter()
        statistics.run_due(second * 1000)
        spent.append(time.perf_counter() - begun)
        for tally in statistics.puts.values():
            tally.count += 1
    spent.sort()
    print(f"a second's sample of {2 * KEYS} keys in use: {spent[15] * 1e3:.1f} ms, at worst {spent[-1] * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
