"""Seeded schedules of whole groups, and mutants of the core that they must find.

A failure prints its seed; `World(seed, nodes).run()` repeats it exactly.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.faults import Faults, draw
from tests.simulation.mutants import (
    HUNTS,
    Hunt,
    after_votes,
    disks_go,
    figure_8,
    leaders_fall,
    members_change,
    old_syncs,
    seeds_to_catch,
)
from tests.simulation.world import World

QUICK = [
    hunt for hunt in HUNTS if hunt.mutant.__name__ in ("IgnoresLogs", "LowQuorum", "VotesTwice", "AcknowledgesEarly")
]


def check(seed: int, nodes: int, faults: Faults | None = None) -> World:
    """Run one schedule; an error names the seed."""
    world = World(seed, nodes, faults=faults)
    try:
        world.run()
    except (AssertionError, ValueError) as error:
        raise AssertionError(f"seed {seed}, {nodes} nodes: {error}") from error
    return world


def test_a_few_schedules_of_three_and_five() -> None:
    worlds = [check(seed, 3) for seed in range(50)] + [check(seed, 5) for seed in range(15)]
    assert sum(len(world.ghost.acknowledged) for world in worlds) > 1_000, "schedules that store next to nothing"
    assert sum(len(world.ghost.leaders) for world in worlds) > 150, "schedules without elections"


@pytest.mark.parametrize("hunt", QUICK, ids=lambda hunt: hunt.mutant.__name__)
def test_broken_rules_are_found_at_once(hunt: Hunt) -> None:
    assert seeds_to_catch(hunt, 100) is not None


@pytest.mark.simulation
@pytest.mark.parametrize("hunt", HUNTS, ids=lambda hunt: hunt.mutant.__name__)
def test_every_broken_rule_is_found(hunt: Hunt) -> None:
    assert seeds_to_catch(hunt, 5_000) is not None


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("nodes", "faults"),
    [
        (1, draw),
        (3, draw),
        (5, draw),
        (3, after_votes),
        (3, disks_go),
        (3, leaders_fall),
        (3, old_syncs),
        (5, figure_8),
        (5, members_change),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_many_schedules(nodes: int, faults: object) -> None:
    assert callable(faults)
    for seed in range(10_000, 10_600):
        check(seed, nodes, faults(Random(seed)))
