"""What goes wrong in one schedule, and how often; drawn from the seed, so that every schedule is another world."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass
class Faults:
    """Chances are per message or per tick of the world (20 ms); times in milliseconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_ms: int = 5
    tail: float = 0.0
    """Chance that a message is late by up to an election."""
    partition: float = 0.0
    one_way: float = 0.0
    heal: float = 0.05
    breaks: float = 0.3
    """Chance that a crash is seen by another node as a broken connection; a twentieth: that one breaks by itself."""
    crash: float = 0.0
    crash_after_vote: float = 0.0
    crash_after_sync: float = 0.0
    crash_after_decision: float = 0.0
    crash_in_cut: float = 0.0
    restart: float = 0.05
    pause: float = 0.0
    wipe: float = 0.0
    rot: float = 0.0
    disk_ms: int = 4
    slow_disk: float = 0.0
    full_disk: float = 0.0
    members: float = 0.0
    trims: float = 0.02
    transfer: float = 0.0
    proposals: float = 0.3
    reads: float = 0.1
    skew: float = 0.0


def draw(random: Random) -> Faults:
    """A world in which some things go wrong often, some never."""

    def some(most: float, *, chance: float = 0.5) -> float:
        return random.uniform(0.0, most) if random.random() < chance else 0.0

    return Faults(
        loss=some(0.2),
        duplicate=some(0.2),
        delay_ms=random.choice((2, 5, 20, 60)),
        tail=some(0.15),
        partition=some(0.04),
        one_way=some(0.03),
        heal=random.choice((0.02, 0.05, 0.2)),
        crash=some(0.02),
        crash_after_vote=some(0.5),
        crash_after_sync=some(0.2),
        crash_after_decision=some(0.3, chance=0.3),
        crash_in_cut=some(0.7),
        restart=random.choice((0.02, 0.06, 0.3)),
        pause=some(0.01),
        wipe=some(0.3, chance=0.3),
        rot=some(0.3, chance=0.3),
        disk_ms=random.choice((1, 4, 30)),
        slow_disk=some(0.01),
        full_disk=some(0.01, chance=0.3),
        members=some(0.05, chance=0.4),
        transfer=some(0.03, chance=0.4),
        trims=some(0.1),
        proposals=random.choice((0.1, 0.4, 0.9)),
        reads=some(0.4),
        skew=some(0.5, chance=0.4),
    )
