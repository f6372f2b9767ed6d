"""Owners and service of the cold tier, one case at a time; any order of events is in tests/property/test_tiered.py."""

from __future__ import annotations

import pytest

from stratamq.config import TieredConfig
from stratamq.errors import BackendError, TierError
from stratamq.formats import cold_names as names
from stratamq.tiered.backend import PrefixedBackend
from stratamq.tiered.commits import Conflict
from stratamq.tiered.owner import run_inline
from stratamq.tiered.planning import HOUR_MS
from stratamq.tiered.service import open_tier
from tests.unit.tiered.world import BROKER, FakeLocal, World, drive_to

KEY = ("T", 0)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "a")
    yield made
    made.close()


def local_records(world, key=KEY):
    first = world.local.first[key]
    return {first + n: row for n, row in enumerate(world.local.records[key])}


def test_a_burst_and_then_silence_is_tiered(world):
    world.local.produce(KEY, 1000)
    world.advance(33)
    assert world.stored(KEY) == local_records(world)
    assert world.service.lag(KEY) == (0, 0, 0)


def test_what_waits_shorter_is_not_uploaded_yet_but_counted(world):
    world.local.produce(KEY, 250)
    world.advance(10)
    assert world.stored(KEY) == {}
    world.advance(1)
    world.advance(1)
    lag = world.service.lag(KEY)
    assert (lag.messages, lag.bytes) == (250, sum(map(len, world.local.records[KEY])))
    assert lag.age_ms == 12_000


def test_enough_bytes_go_up_at_once(tmp_path):
    world = World(tmp_path, policy=TieredConfig(seal_bytes=4096, compact=False))
    world.local.produce(KEY, 100, body=b"x" * 200)
    world.advance(5)
    stored = world.stored(KEY)
    assert len(world.manifest(KEY).segments) > 1
    assert len(stored) > 80
    world.close()


def test_the_second_start_uploads_nothing_twice(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.restart()
    world.local.produce(KEY, 5)
    world.settle()
    assert [(s.first, s.last) for s in world.manifest(KEY).segments] == [(0, 9), (10, 14)]
    assert world.stored(KEY) == local_records(world)


def test_a_catalogue_that_is_lost_or_damaged_is_made_anew(world):
    world.local.produce(KEY, 10)
    world.local.produce(("%RETRY%g", 3), 2)
    world.settle()
    before = dict(world.service.manifests)
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"no database" * 500)):
        world.close()
        damage(world.directory / "catalogue.db")
        world.open()
        assert world.service.manifests == before


def test_without_a_catalogue_the_backend_must_answer(world, tmp_path):
    world.backend.is_down = True
    with pytest.raises(BackendError):
        open_tier(world.policy, str(tmp_path / "new"), BROKER, world.clock, backend=world.backend)
    world.restart()  # with one it need not


def test_the_tier_of_another_broker_is_not_written(world, tmp_path):
    world.local.produce(KEY, 10)
    world.settle()
    other = World(tmp_path / "b")
    other.settle()
    other.backend = world.backend
    other.close()
    other.service = None
    opened = open_tier(other.policy, str(tmp_path / "b"), BROKER, other.clock, backend=world.backend)
    opened.catalogue.set_about("id", "somebody else")
    from stratamq.tiered.service import TierService

    service = TierService(opened, other.local, other.policy, other.clock)
    other.service = service
    other.tick()
    assert "belongs to another" in service.failure
    assert service.due() == []
    other.close()


def test_a_backend_that_is_down_is_asked_less_and_less_often(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.local.produce(KEY, 10)
    world.backend.is_down = True
    before = len(world.backend.calls)
    world.advance(3600)
    asked = len(world.backend.calls) - before
    assert 50 < asked < 150
    assert world.service.failures > 10
    world.backend.is_down = False
    world.advance(62)
    assert world.stored(KEY) == local_records(world)
    assert world.service.failures == 0


@pytest.mark.parametrize("fault", ["fail_before", "fail_after"])
@pytest.mark.parametrize("operation", ["put", "size", "list", "read"])
@pytest.mark.parametrize("nth", range(4))
def test_one_failure_anywhere_delays_and_loses_nothing(tmp_path, fault, operation, nth):
    world = World(tmp_path)
    seen = [0]

    def on_call(name, _):
        if name == operation:
            if seen[0] == nth:
                getattr(world.backend, fault).append(operation)
            seen[0] += 1

    world.backend.on_call = on_call
    world.local.produce(KEY, 10)
    world.advance(45)
    world.local.produce(KEY, 10)
    world.advance(45)
    assert world.stored(KEY) == local_records(world)
    assert [s.last - s.first + 1 for s in world.manifest(KEY).segments] == [10, 10]
    world.close()


def test_half_of_an_object_is_found_out_before_it_is_named(world):
    world.local.produce(KEY, 10)
    world.tick()
    world.tick()
    world.backend.half_puts = 1
    world.advance(35)
    assert world.service.tier.counters["failures"] == 1
    assert world.stored(KEY) == local_records(world)


def test_half_of_a_manifest_is_taken_back(world):
    world.local.produce(KEY, 10)
    world.tick()
    world.backend.half_puts, world.backend.half_part = 1, "/m/"
    world.advance(65)
    assert world.backend.half_puts == 0
    assert world.stored(KEY) == local_records(world)


def test_a_backend_that_lies_about_sizes_gets_nothing_named(world):
    world.settle()
    world.local.produce(KEY, 10)
    world.backend.size_lie = -1
    world.advance(120)
    assert world.stored(KEY) == {}
    assert world.service.keep_from() == 0
    world.backend.size_lie = 0
    world.advance(62)
    assert world.stored(KEY) == local_records(world)


def test_listings_that_lag_behind_do_no_harm(world):
    world.backend.hide_new = True
    for _ in range(3):
        world.local.produce(KEY, 5)
        world.settle()
        world.restart()
    assert world.stored(KEY) == local_records(world)
    world.close()
    (world.directory / "catalogue.db").unlink()
    world.open()
    world.local.produce(KEY, 5)
    world.settle()
    assert world.stored(KEY) == local_records(world)


def test_nothing_unconfirmed_goes_up(world):
    world.local.produce(KEY, 10)
    world.local.unconfirmed[KEY] = 4
    world.settle()
    assert sorted(world.stored(KEY)) == list(range(6))
    assert world.service.keep_from() == 6000
    world.local.unconfirmed[KEY] = 0
    world.settle()
    assert len(world.stored(KEY)) == 10
    assert world.service.keep_from() is None


def test_topics_that_are_filtered_out_do_not_hold_files_back(tmp_path):
    world = World(tmp_path, policy=TieredConfig(topics_excluded="T"))
    world.local.produce(KEY, 10)
    world.local.produce(("U", 0), 10)
    assert world.service.keep_from() == 0
    world.settle()
    assert world.manifest(KEY) is None
    assert world.service.keep_from() is None
    world.close()


def test_local_files_that_went_leave_a_gap_that_is_recorded(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.local.produce(KEY, 10)
    world.local.clean(KEY, 15)
    world.settle()
    manifest = world.manifest(KEY)
    assert [(gap.first, gap.last) for gap in manifest.gaps] == [(10, 14)]
    assert sorted(world.stored(KEY)) == [*range(10), *range(15, 20)]
    assert world.service.tier.counters["gap_messages"] == 5


def test_a_local_queue_of_another_history_is_not_mixed_in(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.local.records[KEY].clear()
    world.local.produce(KEY, 5)
    world.advance(120)
    assert "not of one history" in world.service.problems()[KEY]
    assert len(world.stored(KEY)) == 10
    assert world.service.keep_from() == 0


def test_expired_segments_go_from_the_manifest_first_and_then_from_the_backend(tmp_path):
    world = World(tmp_path, policy=TieredConfig(reserved_hours=1, delete_grace_ms=600_000, compact=False))
    world.local.produce(KEY, 10)
    world.settle()
    name = world.manifest(KEY).segments[0].name
    world.clock.advance(HOUR_MS - 60_000)
    world.settle()
    assert world.manifest(KEY).segments
    world.clock.advance(61_000)
    world.settle()
    manifest = world.manifest(KEY)
    assert (manifest.start, manifest.end, manifest.segments) == (10, 10, ())
    assert world.objects.size(name) is not None
    world.clock.advance(700_000)
    world.settle()
    assert world.objects.size(name) is None
    assert world.manifest(KEY).dropped == ()
    world.local.produce(KEY, 5)
    world.settle()
    assert sorted(world.stored(KEY)) == list(range(10, 15))
    world.close()


def test_a_deleted_topic_ends_and_a_new_one_of_its_name_is_another(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.service.delete_topic("T")
    world.topics_gone.add("T")
    del world.local.records[KEY], world.local.first[KEY]
    world.settle()
    assert world.manifest(KEY) is None
    assert world.objects.size(names.tomb_name(names.Lifetime("T", 0, 1))) is not None
    world.topics_gone.clear()
    world.local.produce(KEY, 3, body=b"new")
    world.settle()
    manifest = world.manifest(KEY)
    assert (manifest.incarnation, manifest.start, manifest.end) == (2, 0, 3)
    assert world.stored(KEY) == local_records(world)


def test_a_deletion_that_a_crash_interrupts_is_finished_by_the_next_start(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.service.delete_topic("T")
    del world.local.records[KEY], world.local.first[KEY]
    world.restart()
    assert KEY not in world.service.manifests
    world.settle()
    assert world.manifest(KEY) is None
    world.restart()
    world.settle()
    assert KEY not in world.service.manifests


def test_litter_is_found_and_live_objects_are_not(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.local.produce(KEY, 10)
    world.tick()
    (work,) = world.service.due(drain=True)
    assert not drive_to(work, 1)  # uploaded, then the process dies
    work.close()
    world.restart()
    world.settle()
    from stratamq.tiered.litter import collect_litter, find_litter

    found = find_litter(world.objects, world.clock.wall_ms(), 60_000)
    assert (len(found.objects), found.young) == (0, 1)
    found = collect_litter(world.objects, world.clock.wall_ms() + 61_000, 60_000)
    assert len(found.deleted) == 1
    assert world.stored(KEY) == local_records(world)


def test_a_broker_looks_for_litter_once_a_day(world):
    world.local.produce(KEY, 10)
    world.settle()
    name = "s/T/0/00000001/" + "0" * 20 + "-" + "0" * 20 + "-00000001-" + "0" * 28 + ".seg"
    world.objects.put_new(name, [b"left over"])
    world.clock.advance(23 * HOUR_MS)
    world.settle()
    assert world.objects.size(name) == 9
    world.clock.advance(2 * HOUR_MS)
    for _ in range(3):
        world.tick()
    assert world.objects.size(name) is None
    assert world.stored(KEY) == local_records(world)


def test_a_topic_may_say_how_long_it_is_kept(world):
    world.local.produce(KEY, 10)
    world.local.produce(("U", 0), 10)
    hours = {"T": "5", "U": None}
    world.service.close()
    world.open(reserve_time=hours.get)
    world.settle()
    world.clock.advance(6 * HOUR_MS)
    world.settle()
    assert (world.manifest(KEY).start, world.manifest(("U", 0)).start) == (10, 0)


def test_objects_of_a_deleted_queue_are_litter(world):
    world.local.produce(KEY, 10)
    world.settle()
    world.service.delete_topic("T")
    world.topics_gone.add("T")
    world.settle()
    from stratamq.tiered.litter import collect_litter

    collect_litter(world.objects, world.clock.wall_ms() + 61_000, 60_000)
    left = [entry.name for entry in world.objects.list("")]
    assert [name for name in left if name.startswith(("m/", "s/"))] == [names.tomb_name(names.Lifetime("T", 0, 1))]


def test_old_manifests_go(tmp_path):
    world = World(tmp_path, policy=TieredConfig(delete_grace_ms=60_000, compact=False))
    for _ in range(60):
        world.local.produce(KEY, 1)
        world.advance(33)
    assert world.manifest(KEY).version >= 60
    assert len(world.history(KEY)) < 40
    world.close()


def test_a_writer_that_slept_until_its_version_was_free_again_is_found_out(tmp_path):
    policy = TieredConfig(delete_grace_ms=60_000, compact=False)
    old = World(tmp_path / "old", policy=policy, name="old")
    old.local.produce(KEY, 5)
    old.settle()
    old.local.produce(KEY, 5)
    (work,) = old.service.due(drain=True)
    commit = work.send(next(work)())  # uploaded; about to commit the next version
    slept_at = old.service.manifests[KEY].version + 1
    new = World(tmp_path / "new", policy=policy, name="new", clock=old.clock, backend=old.backend, local=old.local)
    for _ in range(60):
        new.local.produce(KEY, 1)
        new.advance(33)
    name = names.manifest_name(names.Lifetime("T", 0, 1), slept_at)
    assert new.objects.size(name) is None
    with pytest.raises(Conflict) as found:
        commit()
    assert new.objects.size(name) is not None  # it went into the hole, and counts for nothing
    with pytest.raises(StopIteration):
        work.throw(found.value)
    assert "taken over" in old.service.failure
    assert old.service.manifests[KEY].version < slept_at
    assert new.manifest(KEY).writer == "new"
    new.local.produce(KEY, 1)
    new.settle()
    assert new.stored(KEY) == local_records(new)
    old.close()
    new.close()


def test_a_backend_without_create_only_puts_is_refused(world):
    inner = world.backend.inner
    put_new = inner.put_new

    def overwrite(name, parts):
        inner.objects.pop(name, None)
        put_new(name, parts)

    inner.put_new = overwrite
    world.tick()
    assert "written twice" in world.service.failure


def test_a_damaged_manifest_stops_its_queue_alone(world):
    world.local.produce(KEY, 10)
    world.local.produce(("U", 0), 10)
    world.settle()
    name = f"{BROKER}/" + names.manifest_name(names.Lifetime("T", 0, 1), world.manifest(KEY).version)
    world.backend.inner.objects[name] = b"nonsense"
    world.close()
    (world.directory / "catalogue.db").unlink()
    world.open()
    world.local.produce(KEY, 5)
    world.local.produce(("U", 0), 5)
    world.settle()
    assert "unknown magic" in world.service.problems()[KEY]
    assert len(world.stored(("U", 0))) == 15
    assert world.service.keep_from() == 0


def test_joining_keeps_every_byte(tmp_path):
    policy = TieredConfig(compact_format="flat", compact_bytes=70_000, compact_bytes_max=100_000, delete_grace_ms=0)
    world = World(tmp_path, policy=policy)
    for n in range(30):
        world.local.produce(KEY, 5, body=b"%d" % n * 800, properties=b"KEYS\x01k%d\x02" % n)
        world.settle()
    world.advance(180)
    manifest = world.manifest(KEY)
    assert len(manifest.segments) < 30
    assert world.stored(KEY) == local_records(world)
    named = {segment.name for segment in manifest.segments} | {row.name for row in manifest.dropped}
    assert {entry.name for entry in world.objects.list("s/")} == named
    world.close()


def test_a_join_by_somebody_else_is_taken_over(world):
    from stratamq.tiered.joining import commit_join, join_flat

    for _ in range(4):
        world.local.produce(KEY, 5)
        world.settle()
    head = world.manifest(KEY)
    new = join_flat(world.objects, head.life, head.segments[1:3], 1, names.unique_part(5, b"12345678"), 5)
    commit_join(world.objects, head.life, head.segments[1:3], new, name="job", now_ms=5, grace_ms=10)
    world.local.produce(KEY, 5)
    world.settle()
    world.local.produce(KEY, 5)
    world.settle()
    assert [(s.first, s.last) for s in world.manifest(KEY).segments] == [(0, 4), (5, 14), (15, 19), (20, 24), (25, 29)]
    assert world.stored(KEY) == local_records(world)
    with pytest.raises(TierError, match="not in its newest"):
        commit_join(world.objects, head.life, head.segments[1:3], new, name="job", now_ms=5, grace_ms=10)
    assert world.service.tier.counters["conflicts"] == 1


def test_all_queues_get_their_turn_in_the_order_they_were_found(tmp_path):
    world = World(tmp_path, policy=TieredConfig(uploads_max=2, compact=False))
    world.tick()
    keys = [(f"T{n}", 0) for n in range(7)]
    for key in keys:
        world.local.produce(key, 3)
    done = []
    works = world.service.due(drain=True)
    while works:
        assert len(works) <= 2
        for work in works:
            run_inline(work)
        done += [key for key in keys if key in world.service.manifests and key not in done]
        works = world.service.due(drain=True, look=False)
    assert done == keys
    assert all(world.service.manifests[key].end == 3 for key in keys)
    world.close()


def test_two_roots_in_one_backend_do_not_see_each_other(world):
    other = PrefixedBackend(world.backend, "broker-b")
    world.local.produce(KEY, 3)
    world.settle()
    assert other.list("") == []
    assert isinstance(world.local, FakeLocal)
