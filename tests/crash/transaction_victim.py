"""The process that `test_transaction_kill` kills: begins and ends transactions, and answers checks, until it is dead.

Arguments: directory, seed, the clock's first time. Prints ``half number`` once a half message is stored, ``end number``
once its commit or rollback is answered, and ``clock ms`` at each step.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from stratamq.testing.clock import ManualClock
from tests.unit.server.harness import Harness
from tests.unit.server.test_transactions import Producer, asked_place, end, half

COMMIT, ROLLBACK = 8, 12


def verdict(number: int) -> int:
    """What a producer says about a message, whenever it is asked: a third is rolled back."""
    return ROLLBACK if number % 3 == 0 else COMMIT


def say(*words: object) -> None:
    """One line to who will kill us, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def open_harness(directory: Path, now_ms: int) -> tuple[Harness, Producer]:
    """A broker over the directory with a live producer of group ``p``."""
    harness = Harness(directory, clock=ManualClock(now_ms))
    producer = Producer()
    harness.peer = producer
    harness.heartbeat("c")
    producer.take()
    return harness, producer


def answer_checks(harness: Harness, producer: Producer) -> None:
    """Say to every check-back what there is to say; one that cannot be taken now is asked again."""
    while producer.asked:
        place, number = asked_place(harness, 0), int(producer.asked[0][1].body[1:])
        del producer.asked[0]
        end(harness, place, verdict(number), checked=True)


def save(harness: Harness) -> None:
    """Write reading positions and tables, as the server does every `flushConsumerOffsetInterval`."""
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)


def main() -> None:
    """Run until killed."""
    directory, seed, first_ms = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    harness, producer = open_harness(directory, first_ms)
    number = seed * 100_000
    say("ready")
    while True:
        for _ in range(rng.randrange(8)):
            place = half(harness, number, g=harness.clock.wall_ms())
            say("half", number)
            if rng.randrange(3) and end(harness, place, verdict(number)) == 0:
                say("end", number)
            number += 1
        harness.clock.advance(rng.randrange(3_000))
        say("clock", harness.clock.wall_ms())
        harness.heartbeat("c")
        harness.broker.run_due()
        answer_checks(harness, producer)
        if rng.randrange(4) == 0:
            save(harness)


if __name__ == "__main__":
    main()
