"""The cold tier of one broker: its owners, who of them has something to do, and what the tier holds.

No timers and no threads: who runs it asks `due` every second or so and drives what it returns. Everything runs on the
store's thread, except the calls that work yields.
"""

from __future__ import annotations

import logging
import os
import random
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from stratamq.clock import Clock
from stratamq.config import TieredConfig
from stratamq.errors import BackendError, CorruptionError, StoreError, TierError, WriterFenced
from stratamq.formats.cold_manifest import Manifest
from stratamq.formats.cold_names import Lifetime, escape_topic
from stratamq.tiered import commits, planning
from stratamq.tiered.backend import Backend, PrefixedBackend, open_backend
from stratamq.tiered.catalogue import FILE_NAME, Catalogue
from stratamq.tiered.joining import Joiner
from stratamq.tiered.litter import collect_litter
from stratamq.tiered.local import Key, LocalQueues
from stratamq.tiered.owner import QueueOwner, Tier, Work
from stratamq.tiered.planning import Writer

LITTER_INTERVAL_MS: Final = 24 * 3_600_000
_ID: Final = "id"
_BURY: Final = "bury "
_logger = logging.getLogger(__name__)


class OpenedTier(NamedTuple):
    """The tier as it was found: where it is, what is known of it, and which queues' manifests are damaged."""

    backend: Backend
    catalogue: Catalogue
    manifests: list[Manifest]
    broken: dict[Key, CorruptionError]


class Lag(NamedTuple):
    """How far a queue is behind: what waits, and how old the first of it is."""

    messages: int
    bytes: int
    age_ms: int


def open_tier(
    policy: TieredConfig, directory: str, broker_name: str, clock: Clock, *, backend: Backend | None = None
) -> OpenedTier:
    """Open the catalogue in ``directory``, or make it from the backend. Blocks.

    With a catalogue the backend need not be there. Without one it must be: a broker that does not know what is in its
    tier would tell consumers that old messages do not exist.

    Raises BackendError, ConfigError, TierError.
    """
    inner = PrefixedBackend(backend or open_backend(policy), escape_topic(broker_name))
    catalogue = Catalogue(os.path.join(directory, FILE_NAME))
    try:
        if catalogue.about("complete") and catalogue.about("address") == inner.address:
            manifests = catalogue.load()
            if catalogue.about("complete"):
                return OpenedTier(inner, catalogue, manifests, {})
        return rebuild(inner, catalogue, clock)
    except BaseException:
        catalogue.close()
        raise


def rebuild(
    backend: Backend,
    catalogue: Catalogue,
    clock: Clock,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> OpenedTier:
    """Fill the catalogue from the backend alone. Blocks for a listing and a read for each queue."""
    identity = commits.open_identity(backend, uuid.uuid4().hex, clock.wall_ms())
    found = commits.find_all(backend, progress=progress)
    catalogue.replace(found.manifests)
    catalogue.set_about(_ID, identity)
    catalogue.set_about("address", backend.address)
    if found.broken:
        catalogue.forget("complete")
        for error in found.broken.values():
            _logger.error("%s", error)
    return OpenedTier(backend, catalogue, found.manifests, found.broken)


class TierService:
    """See the module's text."""

    def __init__(
        self,
        opened: OpenedTier,
        local: LocalQueues,
        policy: TieredConfig,
        clock: Clock,
        *,
        is_topic: Callable[[str], bool] = lambda topic: True,
        reserve_time: Callable[[str], str | None] = lambda topic: None,
        own_names: Collection[str] = (),
        writer_name: str = "",
        chance: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Args:
        is_topic: Whether a topic exists now; others are not tiered.
        reserve_time: A topic's attribute ``reserve.time``.
        own_names: Names of cluster and broker, whose topics are not tiered.
        """
        self.policy = policy
        self.manifests: dict[Key, Manifest] = {(m.topic, m.queue_id): m for m in opened.manifests}
        """What the tier holds, by queue. Never behind what the catalogue says."""
        self.broken = dict(opened.broken)
        self.owners: dict[Key, QueueOwner] = {}
        self.failure = ""
        """Why nothing is written any more; empty while all is well. Reads go on."""
        self.failures = 0
        """Failures of the backend in a row."""
        self.last_error = ""
        self.writer: Writer | None = None
        self._local = local
        self._clock = clock
        self._is_topic = is_topic
        self._own_names = own_names
        self._random = random.Random(int.from_bytes(chance(8), "big"))
        self._writer_name = writer_name or f"{os.getpid()}-{chance(6).hex()}"
        self._opened = opened
        self._pause_until = 0
        self._is_attaching = False
        self._is_collecting = False
        self._collected_ms = clock.monotonic_ms()
        self._burials: set[Lifetime] = set()
        self._ready: OrderedDict[Key, None] = OrderedDict()
        """Queues with something to do that wait for their turn."""
        self.tier = Tier(
            opened.backend,
            opened.catalogue,
            policy,
            clock,
            Writer(0, self._writer_name),
            Joiner(policy.compact_format),
            lambda topic: planning.hours_of(topic, policy, reserve_time(topic)),
            chance,
            self._committed,
        )
        for text in opened.catalogue.about_with(_BURY):
            topic, queue_id, incarnation = text[len(_BURY) :].rsplit("/", 2)
            self._burials.add(Lifetime(topic, int(queue_id), int(incarnation)))
        for life in self._burials:
            known = self.manifests.get((life.topic, life.queue_id))
            if known is not None and known.incarnation <= life.incarnation:
                del self.manifests[life.topic, life.queue_id]

    def _committed(self, manifest: Manifest) -> None:
        key = (manifest.topic, manifest.queue_id)
        self.manifests[key] = manifest
        self.broken.pop(key, None)

    # --- who has something to do --------------------------------------------------------------------------------------

    def due(self, *, drain: bool = False, running: int = 0, look: bool = True) -> list[Work[None]]:
        """Work to be driven now, all of it, each beside the others; with those that run no more than ``uploads_max``.

        Asked often enough (each second), whatever waits is found here by itself (I12). When some work has ended, ask
        for more without ``look``: then only those come that were found and had to wait for their turn. They come in the
        order in which they were found. Cost of a look: about 4 us a queue.
        """
        if self.failure or self._clock.monotonic_ms() < self._pause_until:
            return []
        if self.writer is None:
            if self._is_attaching:
                return []
            self._is_attaching = True
            return [self._attach()]
        room = self.policy.uploads_max - running if not self.failures else 1 - running
        found: list[Work[None]] = []
        if self._burials and room > 0:
            found.append(self._guarded(None, self._bury()))
        if look:
            self._look(drain)
        while self._ready and len(found) < room:
            key = self._ready.popitem(last=False)[0]
            owner, may_seal = self.owners.get(key), self.is_tiered(key[0])
            if owner is not None and owner.is_due(may_seal=may_seal, drain=drain):
                owner.is_running = True
                found.append(self._guarded(owner, owner.round(may_seal=may_seal, drain=drain)))
        if look and not found and not running and self._litter_due():
            self._collected_ms = self._clock.monotonic_ms()
            found.append(self._guarded(None, self._collect()))
        return found

    def _look(self, drain: bool) -> None:
        """Find the queues that have something to do; those found before keep their place."""
        for key in {**dict.fromkeys(self._local.keys()), **dict.fromkeys(self.manifests)}:
            owner = self.owners.get(key) or self._new_owner(key)
            if (
                owner is not None
                and key not in self._ready
                and owner.is_due(may_seal=self.is_tiered(key[0]), drain=drain)
            ):
                self._ready[key] = None

    def _litter_due(self) -> bool:
        return self._clock.monotonic_ms() - self._collected_ms >= LITTER_INTERVAL_MS

    def is_tiered(self, topic: str) -> bool:
        """Whether a topic's new messages go to the tier."""
        return self._is_topic(topic) and planning.is_tiered(topic, self.policy, self._own_names)

    def _new_owner(self, key: Key) -> QueueOwner | None:
        if key not in self.manifests and (not self.is_tiered(key[0]) or self._is_being_buried(key)):
            return None
        owner = self.owners[key] = QueueOwner(key, self.tier, self._local, self.manifests.get(key))
        return owner

    def _is_being_buried(self, key: Key) -> bool:
        return any((life.topic, life.queue_id) == key for life in self._burials)

    def _attach(self) -> Work[None]:
        """See whose tier it is, and claim the right to write it."""
        backend, catalogue, now = self.tier.backend, self.tier.catalogue, self._clock.wall_ms()

        def work() -> Writer:
            wanted = catalogue.about(_ID) or uuid.uuid4().hex
            found = commits.open_identity(backend, wanted, now)
            if found != wanted:
                raise TierError(
                    f"{backend.address} belongs to another broker's data ({found}, ours is {wanted}); give another "
                    f"--tier, or remove {catalogue.path} to take over what is there"
                )
            return commits.claim_epoch(backend, self._writer_name, now)

        try:
            self.writer = self.tier.writer = yield work
            _logger.info("the cold tier at %s is written under epoch %d", backend.address, self.writer.epoch)
            self._succeeded()
        except BackendError as error:
            self._failed(error)
        except TierError as error:
            self._give_up(error)
        finally:
            self._is_attaching = False

    def _guarded(self, owner: QueueOwner | None, work: Work[None]) -> Work[None]:
        """Drive a round; what goes wrong ends here, and says when to try again."""
        try:
            yield from work
            self._succeeded()
            if owner is not None and owner.retry_ms is not None:
                owner.retry_ms, owner.problem = None, ""
        except BackendError as error:
            self._failed(error)
        except WriterFenced as error:
            self._give_up(error)
        except StoreError as error:  # of this queue alone: the others go on
            if owner is None:
                _logger.error("cold tier: %s", error)
                return
            if owner.problem != str(error):
                _logger.error("queue %s/%d is not tiered: %s", *owner.key, error)
            owner.problem = str(error)
            owner.retry_ms = self._clock.monotonic_ms() + self.policy.retry_max_ms
        finally:
            if owner is not None:
                owner.is_running = False

    def _succeeded(self) -> None:
        if self.failures:
            _logger.warning("the cold tier at %s answers again", self.tier.backend.address)
        self.failures = 0
        self.last_error = ""
        self._pause_until = 0

    def _failed(self, error: BackendError) -> None:
        """The backend failed: everybody waits, longer each time, then one tries."""
        if not self.failures or str(error) != self.last_error:
            _logger.warning("cold tier: %s; local files are kept, and it is tried again", error)
        self.failures += 1
        self.last_error = str(error)
        self.tier.count("failures")
        longest = min(self.policy.retry_max_ms, self.policy.retry_min_ms << min(self.failures - 1, 20))
        pause = longest // 2 + self._random.randrange(longest // 2 + 1)
        self._pause_until = self._clock.monotonic_ms() + pause

    def _give_up(self, error: TierError) -> None:
        self.failure = str(error)
        _logger.critical("the cold tier is not written any more: %s", error)

    # --- topics that go ---------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """A topic was deleted: its queues end in the tier too (I4). Noted on the disk before this returns."""
        for key in [key for key in self.manifests if key[0] == topic]:
            manifest = self.manifests.pop(key)
            self.tier.catalogue.set_about(f"{_BURY}{topic}/{key[1]}/{manifest.incarnation}", "")
            self.tier.catalogue.remove(*key)
            self._burials.add(manifest.life)
        for key in [key for key in self.owners if key[0] == topic]:
            self.owners.pop(key).is_buried = True

    def _bury(self) -> Work[None]:
        for life in sorted(self._burials):
            now = self._clock.wall_ms()
            yield lambda life=life, now=now: commits.bury(self.tier.backend, life, now)  # type: ignore[misc]
            self.tier.catalogue.forget(f"{_BURY}{life.topic}/{life.queue_id}/{life.incarnation}")
            self._burials.discard(life)

    def _collect(self) -> Work[None]:
        backend, now = self.tier.backend, self._clock.wall_ms()
        found = yield lambda: collect_litter(backend, now, self.policy.orphan_grace_ms)
        if found.deleted:
            _logger.info("cold tier: %d objects that nothing named were deleted", len(found.deleted))

    # --- what others ask ----------------------------------------------------------------------------------------------

    def keep_from(self) -> int | None:
        """Physical offset from which on local files must stay: that of the first message not committed (I9).

        None when everything is in the tier. Cost: one small read for each queue with something that waits.
        """
        low: int | None = None
        for key in list(self._local.keys()):
            if not self.is_tiered(key[0]):
                continue
            at = self._first_wanted(key)
            if at is not None and (low is None or at < low):
                low = at
        return low

    def _first_wanted(self, key: Key) -> int | None:
        start, end = self._local.start(key), self._local.visible_end(key)
        manifest = self.manifests.get(key)
        since = start if manifest is None or manifest.end > end else max(start, manifest.end)
        if since >= end:
            return None
        return max(0, self._local.physical_offset(key, since))

    def lag(self, key: Key) -> Lag:
        """How far a queue is behind."""
        owner = self.owners.get(key)
        if owner is None:
            start, end = self._local.start(key), self._local.visible_end(key)
            waiting = planning.Waiting(max(0, end - start), 0, 0) if self.is_tiered(key[0]) else None
        else:
            waiting = owner.waiting() if self.is_tiered(key[0]) else None
        if waiting is None or not waiting.messages:
            return Lag(0, 0, 0)
        start = self._local.start(key)
        since = start if owner is None or owner.end is None else max(owner.end, start)
        stored = self._local.stored_ms(key, since)
        age = max(0, self._clock.wall_ms() - stored) if stored > 0 else 0
        return Lag(waiting.messages, waiting.bytes, age)

    def problems(self) -> dict[Key, str]:
        """Queues that are not tiered though they should be, and why."""
        found = {key: owner.problem for key, owner in self.owners.items() if owner.problem}
        return {**{key: str(error) for key, error in self.broken.items()}, **found}

    def keys(self) -> Iterable[Key]:
        """Queues in the tier."""
        return self.manifests.keys()

    def close(self) -> None:
        """Close catalogue and backend. Work that is under way must have ended."""
        self.tier.catalogue.close()
        self.tier.backend.close()
