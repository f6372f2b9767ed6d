"""One test for each invariant of docs/design/cold-tier.md, by name; tests/property/test_tiered.py has any order of
events."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from stratamq.config import TieredConfig
from stratamq.errors import WriterFenced
from stratamq.formats.cold_manifest import follows
from stratamq.formats.cold_names import Lifetime, manifest_name
from stratamq.tiered import commits, planning
from stratamq.tiered.owner import run_inline
from stratamq.tiered.planning import HOUR_MS, Writer
from tests.unit.tiered.test_store import Both, expected, read_everything
from tests.unit.tiered.world import World, drive_to

KEY = ("T", 0)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "w")
    yield made
    made.close()


def everything(world) -> dict[int, bytes]:
    first = world.local.first.get(KEY, 0)
    return {first + n: row for n, row in enumerate(world.local.records.get(KEY, []))}


def test_i1_coverage(tmp_path):
    both = Both(tmp_path)
    both.fill(40)
    both.tier_all()
    both.clean()
    assert both.local.min_offset(*KEY) > 0
    assert read_everything(both.store) == expected(40)
    both.close()


def test_i2_only_what_was_committed_expires_and_unknown_is_no_time(tmp_path):
    world = World(tmp_path, policy=TieredConfig(reserved_hours=1, compact=False))
    world.local.produce(KEY, 5)
    world.advance(3)
    assert world.manifest(KEY).segments == ()
    world.clock.advance(1000 * HOUR_MS)
    head = world.manifest(KEY)
    assert planning.expired(head, world.clock.wall_ms(), 1) == []
    assert (head.start, head.end) == (0, 0)
    world.close()


def test_i3_what_waits_or_is_being_uploaded_is_never_dropped(tmp_path):
    world = World(tmp_path, policy=TieredConfig(reserved_hours=1, compact=False))
    world.local.produce(KEY, 5, time_ms=1)  # long expired before it goes up
    world.advance(2)
    (work,) = world.service.due(drain=True)
    assert not drive_to(work, 1)
    world.clock.advance(HOUR_MS)
    assert world.service.due(drain=True) == []  # its owner is at work, and nobody else decides
    assert world.service.keep_from() == 0
    work.close()
    world.restart()
    world.settle()
    assert world.manifest(KEY).end == 5
    world.close()


def test_i4_a_queue_without_segments_lives_on(tmp_path):
    world = World(tmp_path, policy=TieredConfig(reserved_hours=1, compact=False))
    world.local.produce(KEY, 5)
    world.settle()
    world.clock.advance(2 * HOUR_MS)
    world.settle()
    world.restart()
    world.settle()
    head = world.manifest(KEY)
    assert (head.incarnation, head.segments, head.end) == (1, (), 5)
    world.close()


@pytest.mark.parametrize("steps", range(4))
def test_i5_there_is_no_half_made_queue(world, steps):
    world.tick()
    world.local.produce(KEY, 5)
    (work,) = world.service.due()
    drive_to(work, steps)
    work.close()
    head = world.manifest(KEY)
    assert head is None or (head.version, head.start, head.end, head.segments) == (0, 0, 0, ())


def test_i6_no_name_is_used_twice(world):
    seen = set()
    world.backend.on_call = lambda operation, name: None
    for _ in range(3):
        world.local.produce(KEY, 2)
        world.settle()
        world.service.delete_topic("T")
        world.local.records.pop(KEY)
        world.local.first.pop(KEY)
        world.settle()
    for operation, name in world.backend.calls:
        if operation == "put" and not name.endswith("/id"):
            assert name not in seen or "/e/" in name  # a claimed epoch is put again to see that it fails
            seen.add(name)


def test_i7_a_deposed_writer_cannot_publish(world, tmp_path):
    world.local.produce(KEY, 5)
    world.settle()
    new = World(tmp_path / "n", clock=world.clock, backend=world.backend, local=world.local, name="n")
    new.settle()
    new.local.produce(KEY, 1)
    new.settle()
    before = world.manifest(KEY)
    world.local.produce(KEY, 5)
    world.settle()
    assert "taken over" in world.service.failure
    assert world.manifest(KEY) == before
    with pytest.raises(WriterFenced):
        commits.check_writer(before, world.service.writer)
    new.settle()
    assert world.stored(KEY) == everything(world)
    new.close()


def test_i8_start_and_end_never_move_back(world):
    for _ in range(5):
        world.local.produce(KEY, 3)
        world.settle()
    versions = world.history(KEY)
    assert len(versions) >= 6
    assert all(follows(a, b) == [] for a, b in itertools.pairwise(versions))
    with pytest.raises(AssertionError):
        planning.succeed(versions[-1], Writer(9, "w"), 5, end=1)


def test_i9_local_files_stay_until_what_they_hold_is_committed(tmp_path):
    both = Both(tmp_path)
    both.fill(40)
    files = len(both.local.retained()[0].bases)
    both.clean()
    assert len(both.local.retained()[0].bases) == files
    both.tier_all()
    both.clean()
    assert len(both.local.retained()[0].bases) < files
    both.close()


def test_i10_objects_go_after_the_manifest_and_a_grace_time(tmp_path):
    world = World(tmp_path, policy=TieredConfig(reserved_hours=1, delete_grace_ms=500_000, compact=False))
    world.local.produce(KEY, 5)
    world.settle()
    name = world.manifest(KEY).segments[0].name
    world.clock.advance(2 * HOUR_MS)
    world.settle()
    assert [row.name for row in world.manifest(KEY).dropped] == [name]
    world.clock.advance(400_000)
    world.settle()
    assert world.objects.size(name) is not None
    world.clock.advance(200_000)
    world.settle()
    assert world.objects.size(name) is None
    world.close()


def test_i11_nothing_unconfirmed_goes_up(world):
    world.local.produce(KEY, 10)
    world.local.unconfirmed[KEY] = 3
    world.settle()
    assert sorted(world.stored(KEY)) == list(range(7))


def test_i12_what_waits_goes_up_without_a_further_message(world):
    world.backend.is_down = True
    world.local.produce(KEY, 1)
    world.advance(600)
    world.backend.is_down = False
    world.advance(100)
    assert world.stored(KEY) == everything(world)


def test_i13_the_first_offset_is_where_local_files_begin(world):
    world.local.first[KEY] = 17
    world.local.produce(KEY, 5)
    world.clock.advance(300_000)
    world.settle()
    assert world.history(KEY)[0].start == 17
    assert sorted(world.stored(KEY)) == list(range(17, 22))


def test_i14_everything_is_rebuilt_from_the_backend_alone(world, tmp_path):
    for queue in range(3):
        world.local.produce(("T", queue), 5)
    world.settle()
    found = commits.find_all(world.objects)
    assert {(one.topic, one.queue_id): one for one in found.manifests} == world.service.manifests
    assert found.broken == {}


def test_everything_holds_over_a_real_object_store(tmp_path, s3_config):
    policy = dataclasses.replace(s3_config, compact=False, reserved_hours=100_000)
    from stratamq.testing.backend import FaultyBackend
    from stratamq.tiered.backend import open_backend

    backend = FaultyBackend(open_backend(policy))
    world = World(tmp_path / "a", policy=policy, backend=backend)
    for _ in range(3):
        world.local.produce(KEY, 20, body=b"x" * 1000)
        world.settle()
    assert world.stored(KEY) == everything(world)
    world.close()
    (tmp_path / "a" / "catalogue.db").unlink()
    world.open()
    assert world.service.manifests[KEY].end == 60
    other = World(tmp_path / "b", policy=policy, backend=backend, clock=world.clock, local=world.local, name="o")
    works = [*other.service.due(), *world.service.due()]
    for work in works:
        run_inline(work)
    assert {world.service.writer.epoch, other.service.writer.epoch} == {2, 3}
    name = manifest_name(Lifetime("T", 0, 1), 0)
    assert world.objects.size(name) is not None
    other.close()
    world.close()
