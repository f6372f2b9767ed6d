"""The process that `test_timer_kill` kills: sends messages for a time, delivers and syncs, until it is dead.

Arguments: directory, seed, the clock's first time. Prints ``number due`` for each message once it is stored, and
``clock ms`` at each step.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from stratamq.formats.properties import encode_properties
from stratamq.testing.clock import ManualClock
from tests.unit.server.test_timers import TimerHarness


def say(*words: object) -> None:
    """One line to who will kill us, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until killed."""
    directory, seed, first_ms = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    harness = TimerHarness(directory, clock=ManualClock(first_ms))
    number = seed * 100_000
    say("ready")
    while True:
        for _ in range(rng.randrange(12)):
            due = harness.clock.wall_ms() + rng.randrange(1, 8_000)
            properties = encode_properties({"TIMER_DELIVER_MS": str(due)})
            assert harness.send(body=b"%d" % number, properties=properties).code == 0
            say(number, due)
            number += 1
        harness.clock.advance(rng.randrange(1_000))
        say("clock", harness.clock.wall_ms())
        harness.broker.run_due()
        if rng.randrange(4) == 0:
            harness.sync()


if __name__ == "__main__":
    main()
