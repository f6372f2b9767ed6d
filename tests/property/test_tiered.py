"""The cold tier under any order of events: what docs/design/cold-tier.md promises as I1 to I14.

`Tier` is a stateful model: messages, time, a backend that fails in every way, crashes inside of rounds, local cleaning,
deleted topics, a second writer. What the backend really holds is looked at after every step.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratamq.config import TieredConfig
from stratamq.formats.cold_manifest import follows
from stratamq.tiered import planning, reading
from stratamq.tiered.cache import BlockCache, FetchedBlocks
from stratamq.tiered.planning import HOUR_MS, Writer
from stratamq.tiered.reading import Wanted
from tests.unit.formats.test_cold import manifest, segment
from tests.unit.tiered.world import World, drive_to

KEY = ("T", 0)
POLICY = TieredConfig(
    reserved_hours=100_000,
    compact_format="flat",
    compact_bytes=64 * 1024,
    compact_bytes_max=64 * 1024,
    seal_bytes=4096,
    delete_grace_ms=600_000,
    expire_interval_ms=10_000,
)
SETTLE_S = 200
few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


_folders: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    while _folders:
        shutil.rmtree(_folders.pop())


def new_world(**arguments) -> World:
    _folders.append(tempfile.mkdtemp(prefix="stratamq-tier-"))
    return World(Path(_folders[-1]), **arguments)


def local_of(world: World, key=KEY) -> dict[int, bytes]:
    first = world.local.first.get(key, 0)
    return {first + n: row for n, row in enumerate(world.local.records.get(key, []))}


class Tier(RuleBasedStateMachine):
    """One broker's tier; see the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.world = new_world(policy=POLICY)
        self.sent: dict[int, bytes] = {}
        self.start_at_creation: dict[int, int] = {}

    @initialize(first=st.integers(0, 50))
    def begin(self, first: int) -> None:
        self.world.local.first[KEY] = first
        self.world.local.records[KEY] = []
        self.begin_offset = first

    # --- what happens ---

    @rule(count=st.integers(1, 12), size=st.sampled_from([1, 300, 5000]))
    def produce(self, count: int, size: int) -> None:
        self.world.local.produce(KEY, count, body=b"m" * size, properties=b"KEYS\x01k\x02")
        self.sent.update(local_of(self.world))

    @rule(seconds=st.sampled_from([1, 5, 29, 31, 120, 1800]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds * 1000)

    @rule(seconds=st.integers(1, 40))
    def ticks(self, seconds: int) -> None:
        self.world.advance(seconds)

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @rule(operation=st.sampled_from(["put", "read", "size", "list", "delete"]), after=st.booleans())
    def one_failure(self, operation: str, after: bool) -> None:
        (self.world.backend.fail_after if after else self.world.backend.fail_before).append(operation)

    @rule(down=st.booleans())
    def backend_goes_or_comes(self, down: bool) -> None:
        self.world.backend.is_down = down

    @rule()
    def half_a_segment(self) -> None:
        self.world.backend.half_puts, self.world.backend.half_part = 1, "/s/"

    @rule(hide=st.booleans())
    def listings_lag(self, hide: bool) -> None:
        self.world.backend.hide_new = hide
        if not hide:
            self.world.backend.hidden.clear()

    @rule(steps=st.integers(0, 6))
    def crash_inside_a_round(self, steps: int) -> None:
        works = self.world.service.due(drain=True)
        for work in works:
            drive_to(work, steps)
            work.close()
        self._restart()

    @rule()
    def restart(self) -> None:
        self._restart()

    @rule()
    def lose_the_catalogue(self) -> None:
        """A listing that shows everything is all it takes: only then a broker without a catalogue may start."""
        self.world.backend.hide_new = False
        self.world.backend.hidden.clear()
        self.world.close()
        (self.world.directory / "catalogue.db").unlink()
        self._without_faults(self.world.open)

    def _restart(self) -> None:
        self._without_faults(self.world.restart)

    def _without_faults(self, work) -> None:
        down, self.world.backend.is_down = self.world.backend.is_down, False
        before = self.world.backend.fail_before[:], self.world.backend.fail_after[:]
        self.world.backend.fail_before, self.world.backend.fail_after = [], []
        work()
        self.world.backend.is_down = down
        self.world.backend.fail_before, self.world.backend.fail_after = before

    @rule()
    def clean_local_files(self) -> None:
        wanted = self.world.service.keep_from()
        upto = self.world.local.visible_end(KEY) if wanted is None else wanted // 1000
        self.world.local.clean(KEY, upto)

    @rule(unconfirmed=st.integers(0, 5))
    def replicas_lag(self, unconfirmed: int) -> None:
        self.world.local.unconfirmed[KEY] = min(unconfirmed, len(self.world.local.records[KEY]))

    # --- what must hold ---

    @invariant()
    def everything_is_somewhere(self) -> None:
        """I1, I3, I6, I9, I10: each message is in local files or in the tier, with the bytes it was sent with."""
        stored, local = self.world.stored(KEY), local_of(self.world)
        for offset, record in self.sent.items():
            found = local.get(offset, stored.get(offset))
            assert found == record, f"offset {offset} is {'changed' if found else 'gone'}"

    @invariant()
    def history_is_straight(self) -> None:
        """I5, I7, I8, I13: versions follow each other; the first says where the tier begins."""
        versions = self.world.history(KEY)
        for before, after in itertools.pairwise(versions):
            if before.incarnation == after.incarnation and after.version == before.version + 1:
                assert follows(before, after) == []
        if versions and versions[0].version == 0:
            first = versions[0]
            assert (first.start, first.segments) == (first.end, ())
            assert self.begin_offset <= first.start
            assert all(first.start <= gap.first for one in versions for gap in one.gaps)
        assert not any(one.gaps for one in versions)

    @invariant()
    def nothing_unconfirmed_is_stored(self) -> None:
        """I11: as far as replicas never confirm less than before."""
        head = self.world.manifest(KEY)
        assert head is None or head.end <= self.world.local.visible_end(KEY)

    def teardown(self) -> None:
        """I12: when the backend works, what waits goes up by itself. I14: and is found from the backend alone."""
        world = self.world
        backend = world.backend
        backend.is_down = backend.hide_new = False
        backend.half_puts = 0
        backend.fail_before.clear()
        backend.fail_after.clear()
        backend.hidden.clear()
        world.local.unconfirmed.clear()
        try:
            world.advance(SETTLE_S)
            assert world.service.failure == ""
            if world.local.visible_end(KEY) > self.begin_offset:
                assert world.service.manifests[KEY].end == world.local.visible_end(KEY)
            assert world.service.keep_from() is None
            before = dict(world.service.manifests)
            world.close()
            (world.directory / "catalogue.db").unlink()
            world.open()
            assert world.service.manifests == before
        finally:
            world.close()


TestTier = Tier.TestCase
TestTier.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- P1, P12 and the failure that all this is about ---


@few
@given(st.lists(st.sampled_from(["produce", "tick", "expire", "second", "minute"]), max_size=30))
def test_p1_whatever_the_schedule_everything_is_tiered(events):
    world = new_world(policy=POLICY)
    world.local.produce(KEY, 1)
    for event in events:
        if event == "produce":
            world.local.produce(KEY, 3)
        elif event == "expire":
            world.clock.advance(POLICY.expire_interval_ms)
            world.tick()
        elif event == "tick":
            world.tick()
        else:
            world.clock.advance(1000 if event == "second" else 60_000)
    world.advance(SETTLE_S)
    assert world.manifest(KEY).end == world.local.visible_end(KEY)
    assert world.stored(KEY) == local_of(world)
    world.close()


@pytest.mark.parametrize("first_batch", [1, 4097, "5 MiB"])
@pytest.mark.parametrize("expire_s", [10, 60])
def test_b3_any_phase_of_any_timer_and_any_first_batch_is_tiered_without_a_further_message(first_batch, expire_s):
    """A topic's first messages, at any second of two minutes, against timers that look each second or each twenty."""
    policy = TieredConfig(compact=False, expire_interval_ms=expire_s * 1000)
    world = new_world(policy=policy)
    late = 0
    for look_s in (1, 20):
        for second in range(0, 120, 7):
            key = (f"T{look_s}-{second}", 0)
            world.clock.advance(7_000 + second)
            if first_batch == "5 MiB":
                world.local.produce(key, 1, body=b"x" * 5 * 2**20)
            else:
                world.local.produce(key, first_batch if second % 40 == 0 else 1)
            begun = world.clock.monotonic_ms()
            while key not in world.service.manifests or not world.service.manifests[key].segments:
                world.clock.advance(look_s * 1000)
                for _ in range(3):
                    world.tick()
                assert world.clock.monotonic_ms() - begun <= 30_000 + 3_000 * look_s
            late = max(late, world.clock.monotonic_ms() - begun)
            assert world.manifest(key).end == world.local.visible_end(key)
            del world.local.records[key]
    assert late > 0
    world.close()


def test_p12_time_to_the_first_upload_is_bounded_for_all_phases():
    for seal_s in (0, 10, 30):
        world = new_world(policy=TieredConfig(compact=False, seal_age_ms=seal_s * 1000))
        for phase in range(0, 1000, 125):
            key = (f"P{phase}", 0)
            world.clock.advance(phase + 1)
            world.local.produce(key, 1)
            begun = world.clock.monotonic_ms()
            world.advance(seal_s + 4)
            assert world.manifest(key).end == 1, (seal_s, phase)
            assert world.clock.monotonic_ms() - begun <= seal_s * 1000 + 5_000
        world.close()


# --- P3 ---


@few
@given(first=st.integers(0, 1000), waits=st.lists(st.integers(0, 100_000), max_size=4), count=st.integers(1, 20))
def test_p3_the_tier_begins_where_local_files_do_whatever_the_clock_says(first, waits, count):
    world = new_world(policy=POLICY)
    world.local.first[KEY] = first
    for wait in waits:
        world.local.produce(KEY, count)
        world.clock.advance(wait)
    world.local.produce(KEY, count)
    world.clock.advance(300_000)
    world.settle()
    head = world.manifest(KEY)
    assert (head.start, head.end) == (first, world.local.visible_end(KEY))
    world.close()


# --- P4 ---


@few
@given(
    ages=st.lists(st.integers(-10, 200), max_size=8),
    now=st.integers(0, 200),
    hours=st.integers(1, 100),
    limit=st.sampled_from([0, 150, 350]),
)
def test_p4_what_expires_is_a_function_of_manifest_and_clock(ages, now, hours, limit):
    rows = tuple(segment(n * 10, n * 10 + 9, max_ms=age * HOUR_MS, bytes=100) for n, age in enumerate(ages))
    before = manifest(end=len(ages) * 10, segments=rows)
    gone = planning.expired(before, now * HOUR_MS, hours, limit)
    assert gone == planning.expired(before, now * HOUR_MS, hours, limit)
    assert tuple(gone) == rows[: len(gone)]
    after = planning.without(before, gone, Writer(9, "w"), 5, 5)
    assert planning.expired(after, now * HOUR_MS, hours, limit) == []
    assert (after.end, after.start >= before.start) == (before.end, True)
    if not limit:
        assert all(age + hours <= now for age in ages[: len(gone)])
    assert planning.expired(manifest(start=5, end=5), now * HOUR_MS, hours, limit) == []


# --- P5 ---


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("kind", ["first", "more", "expire", "join"])
def test_p5_a_crash_at_any_call_leaves_no_hole(steps, kind):
    world = new_world(policy=TieredConfig(**{**_fields(POLICY), "reserved_hours": 1 if kind == "expire" else 100_000}))
    if kind != "first":
        world.local.produce(KEY, 5)
        world.settle()
    if kind == "join":
        for _ in range(70):
            world.local.produce(KEY, 1)
            world.settle()
        world.clock.advance(20_000)
    if kind == "expire":
        world.clock.advance(2 * HOUR_MS)
    world.local.produce(KEY, 5)
    for work in world.service.due(drain=True):
        drive_to(work, steps)
        work.close()
    world.restart()
    world.settle()
    head = world.manifest(KEY)
    assert head.end == world.local.visible_end(KEY)
    local = local_of(world)
    assert world.stored(KEY) == {offset: row for offset, row in local.items() if offset >= head.start}
    assert head.gaps == ()
    from stratamq.tiered.litter import find_litter

    found = find_litter(world.objects, world.clock.wall_ms() + 10**9, 0)
    named = {name for one in (head,) for name in {s.name for s in one.segments} | {row.name for row in one.dropped}}
    held = {entry.name for entry in world.objects.list("s/")}
    assert {entry.name for entry in found.objects} == held - named
    world.close()


def _fields(policy: TieredConfig) -> dict:
    import dataclasses

    return {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}


# --- P6 ---


@few
@given(st.lists(st.sampled_from(["produce", "settle", "delete", "purge", "restart"]), min_size=3, max_size=14))
def test_p6_a_queue_made_again_is_never_hurt_by_its_old_life(events):
    from stratamq.tiered.litter import collect_litter

    world = new_world(policy=POLICY)
    world.local.produce(KEY, 2)
    world.settle()
    for event in [*events, "settle", "purge"]:
        if event == "produce":
            world.local.produce(KEY, 3, body=b"%d" % len(local_of(world)))
        elif event == "settle":
            world.settle()
        elif event == "restart":
            world.restart()
        elif event == "delete":
            world.service.delete_topic("T")
            world.local.records.pop(KEY, None)
            world.local.first.pop(KEY, None)
        else:
            collect_litter(world.objects, world.clock.wall_ms() + 10**9, 0)
    assert world.stored(KEY) == local_of(world)
    versions = [entry.name for entry in world.objects.list("m/")]
    assert len(versions) == len(set(versions))
    world.close()


# --- P7 ---


@few
@given(schedule=st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=25), produced=st.integers(1, 30))
def test_p7_of_two_writers_one_history_comes(schedule, produced):
    old = new_world(policy=POLICY, name="old")
    old.local.produce(KEY, produced)
    old.tick()
    new = new_world(policy=POLICY, name="new", clock=old.clock, backend=old.backend, local=old.local)
    works = {False: [], True: []}
    for is_new, steps in schedule:
        world = new if is_new else old
        old.local.produce(KEY, 1)
        works[is_new] = [w for w in works[is_new] if w.gi_frame is not None] or world.service.due(drain=True)
        for work in works[is_new]:
            if work.gi_frame is not None:
                _advance(work, steps)
    for world in (new, old):
        for work in works[world is new]:
            if work.gi_frame is not None:
                run_inline_from(work)
    new.settle()
    took_over = new.service.writer is not None and new.service.failure == ""
    assert took_over
    old.settle()
    old.local.produce(KEY, 1)
    old.settle()
    assert "taken over" in old.service.failure
    new.settle()
    versions = new.history(KEY)
    for before, after in itertools.pairwise(versions):
        assert follows(before, after) == []
    assert new.stored(KEY) == local_of(new)
    old.close()
    new.close()


_pending: dict[int, Any] = {}


def _advance(work, steps: int) -> None:
    """Drive work a few calls on; it stays where it is then."""
    call = _pending.pop(id(work), None)
    try:
        if call is None:
            call = next(work)
        for _ in range(steps):
            try:
                answer = call()
            except Exception as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration:
        return
    _pending[id(work)] = call


def run_inline_from(work) -> None:
    """Drive work that was begun to its end."""
    _advance(work, 10_000)
    _pending.pop(id(work), None)


# --- P8 ---


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(offsets=st.lists(st.integers(0, 79), min_size=1, max_size=10), house=st.lists(st.booleans(), max_size=6))
def test_p8_a_reader_with_an_old_manifest_gets_the_right_bytes(offsets, house):
    world = new_world(policy=POLICY)
    for _ in range(80):
        world.local.produce(KEY, 1)
        world.settle()
    old = world.service.manifests[KEY]
    for joins in house:
        world.clock.advance(11_000 if joins else 1_000)
        world.settle()
    expected = local_of(world)
    blocks = FetchedBlocks(BlockCache(10**6), world.objects, 4096)
    for offset in offsets:
        for one in (old, world.service.manifests[KEY]):
            found = reading.read(one, Wanted(offset, 3, 10**6), blocks)
            data = b"".join(found.records)
            assert data == b"".join(expected[n] for n in range(offset, found.next_offset))
            assert found.message_count == found.next_offset - offset > 0
    world.close()


# --- P9 ---


@few
@given(
    times=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 39), max_size=5),
    below=st.integers(1, 45),
)
def test_p9_offsets_by_time_are_those_of_a_plain_search(times, cuts, below):
    world = new_world(policy=TieredConfig(compact=False, seal_bytes=4096, reserved_hours=8_000_000))
    for n, ms in enumerate(times):
        world.local.produce(KEY, 1, body=b"x" * 900, time_ms=ms)
        if n in cuts:
            world.settle()
    world.settle()
    blocks = FetchedBlocks(BlockCache(10**7), world.objects, 4096)
    head = world.service.manifests[KEY]
    seen = times[:below]
    for ms in range(-1, 32):
        lower = next((n for n, t in enumerate(seen) if t >= ms), None)
        upper = next((n for n, t in reversed(list(enumerate(seen))) if t <= ms), None)
        assert reading.first_at_or_after(head, ms, blocks, below=below) == lower
        assert reading.last_at_or_before(head, ms, blocks, below=below) == upper
    world.close()


# --- P10 ---


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([0, 1, 4095, 4096, 70_000, 300_000, 4 * 2**20, 6 * 2**20]), min_size=1, max_size=4))
def test_p10_any_size_is_tiered(sizes):
    world = new_world(policy=TieredConfig(compact=False))
    for size in sizes:
        world.local.produce(KEY, 1, body=b"\x55" * size)
    world.settle()
    assert world.stored(KEY) == local_of(world)
    world.close()


# --- P11 ---


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["produce", "future", "back", "forth"]), st.integers(1, 50)), min_size=1, max_size=15
    )
)
def test_p11_no_clock_takes_what_is_inside_retention(steps):
    world = new_world(policy=TieredConfig(**{**_fields(POLICY), "reserved_hours": 72}))
    true_ms = world.clock.wall_ms()
    for what, amount in steps:
        if what == "produce":
            world.local.produce(KEY, amount)
        elif what == "future":
            world.local.produce(KEY, 1, time_ms=world.clock.wall_ms() + amount * HOUR_MS)
        elif what == "back":
            world.clock.set_wall(true_ms - amount * HOUR_MS)
        else:
            world.clock.set_wall(true_ms + amount // 3 * HOUR_MS)
        world.advance(35)
    stored = world.stored(KEY)
    assert set(local_of(world)) <= set(stored) | set(range(world.manifest(KEY).end if stored else 0, 10**6))
    assert world.manifest(KEY) is None or world.manifest(KEY).start == 0
    world.close()
