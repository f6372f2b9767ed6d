"""The process that `test_pop_kill` kills: sends, pops, acknowledges and changes invisible times, until it is dead.

Arguments: directory, seed, the clock's first time. Prints ``sent name`` once a message is stored, ``ack name`` before
an ack is sent and ``acked name`` once it is answered while the message was held, and ``clock ms`` at each step.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from stratamq.testing.clock import ManualClock
from tests.crash.transaction_victim import say
from tests.unit.server.harness import Harness, records
from tests.unit.server.test_pop import ack, change, handles, pop

INVISIBLE_MS = 5_000
GROUP = "g"


def open_harness(directory: Path, now_ms: int) -> Harness:
    """A broker over the directory."""
    harness = Harness(directory, clock=ManualClock(now_ms))
    harness.broker.topics.ensure("T", queues=2)
    harness.broker.groups.get(GROUP)
    return harness


def popped(harness: Harness, invisible_ms: int = INVISIBLE_MS) -> list[tuple[str, tuple[str, int, str]]]:
    """Name and handle of each message that a pop gives out."""
    answer = pop(harness, invisibleTime=invisible_ms)
    if answer.code:
        return []
    names = [record.body.decode() for record in records(answer.body)]
    return list(zip(names, handles(answer), strict=True))


def is_open(harness: Harness, handle: tuple[str, int, str]) -> bool:
    """Whether a message's time is not over yet."""
    words = handle[2].split(" ")
    return harness.clock.wall_ms() < int(words[1]) + int(words[2])


def main() -> None:
    """Run until killed."""
    directory, seed, first_ms = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    harness = open_harness(directory, first_ms)
    held: list[tuple[str, tuple[str, int, str]]] = []
    number = 0
    say("ready")
    while True:
        for _ in range(rng.randrange(6)):
            assert harness.send(body=b"%d-%d" % (seed, number), e=rng.randrange(2)).code == 0
            say("sent", f"{seed}-{number}")
            number += 1
        held += popped(harness)
        rng.shuffle(held)
        for _ in range(min(len(held), rng.randrange(6))):
            name, handle = held.pop()
            if rng.randrange(5) == 0 and is_open(harness, handle):
                held.append((name, change(harness, handle, rng.randrange(1, 2 * INVISIBLE_MS))))
                continue
            was_open = is_open(harness, handle)
            if was_open:
                say("ack", name)
            assert ack(harness, handle).code == 0
            if was_open:
                say("acked", name)
        held = [one for one in held if rng.randrange(8)]  # a consumer that is gone
        harness.clock.advance(rng.randrange(1_500))
        say("clock", harness.clock.wall_ms())
        harness.broker.run_due()
        if rng.randrange(6) == 0:
            for file, value in harness.broker.unsaved(with_offsets=True):
                file.store(value)


if __name__ == "__main__":
    main()
