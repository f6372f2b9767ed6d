"""The one owner of a queue in the cold tier: seals, uploads, commits, expires, joins and deletes, one after the other.

`QueueOwner.round` is a generator. It runs on the store's thread and yields what blocks; who drives it carries that out
in a thread and sends the answer, or throws the error, back in. So there is one order of events for each queue, tests
can stop it anywhere, and no lock is held over a call to the backend.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from stratamq.clock import Clock
from stratamq.config import TieredConfig
from stratamq.errors import BackendError, TierError
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import FLAT, Manifest, Segment
from stratamq.formats.cold_segment import SegmentBuilder, make_block
from stratamq.tiered import commits, planning
from stratamq.tiered.backend import Backend, put_checked
from stratamq.tiered.catalogue import Catalogue
from stratamq.tiered.commits import Conflict
from stratamq.tiered.joining import Joiner
from stratamq.tiered.local import BLOCK_BYTES, Key, LocalQueues, Piece
from stratamq.tiered.planning import Waiting, Writer

BLOCKS_A_STEP: Final = 8
"""Blocks that are collected before others get their turn: about a millisecond."""
DELETES_A_ROUND: Final = 200
_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

Work = Generator[Callable[[], Any], Any, _T]
"""Yields calls that block, is sent their answers, and returns something in the end."""


@dataclass(slots=True)
class Tier:
    """What all owners of a process share."""

    backend: Backend
    catalogue: Catalogue
    policy: TieredConfig
    clock: Clock
    writer: Writer
    joiner: Joiner
    hours_of: Callable[[str], int]
    chance: Callable[[int], bytes] = os.urandom
    on_commit: Callable[[Manifest], None] = lambda manifest: None
    """Told of every manifest that is the newest from now on."""
    counters: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def unique(self) -> str:
        """A part of a name that is never used again."""
        return names.unique_part(self.clock.wall_ms(), self.chance(8))


class QueueOwner:
    """Owns one queue. At most one `round` runs at a time."""

    def __init__(self, key: Key, tier: Tier, local: LocalQueues, known: Manifest | None) -> None:
        self.key = key
        self.manifest: Manifest | None = None
        """The newest, once it is known to be; None before, and when it has to be looked for again."""
        self.known = known
        """The newest that was ever seen."""
        self.problem = ""
        """Why nothing is uploaded although messages wait; empty when all is well."""
        self.retry_ms: int | None = None
        """Not before this monotonic time is a round tried again, after one that failed for this queue alone."""
        self.is_running = False
        self.is_buried = False
        self._tier = tier
        self._local = local
        self._first_seen: tuple[int, int] | None = None
        self._counted = (0, 0, 0)
        self._kept_house_ms: int | None = None
        self._confirmed_ms = 0

    # --- what waits -------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int | None:
        """Offset up to which messages are surely in the tier; None while that is not known."""
        return None if self.known is None else self.known.end

    def waiting(self) -> Waiting:
        """What is not in the tier yet, as far as is known now. Cost: a few thousand units at most."""
        start = self._local.start(self.key)
        since = start if self.known is None else max(self.known.end, start)
        end = self._local.end(self.key)
        if end <= since:
            self._first_seen = None
            return Waiting(0, 0, 0)
        now = self._tier.clock.monotonic_ms()
        if self._first_seen is None or self._first_seen[0] != since:
            self._first_seen = (since, now)
        return Waiting(end - since, self._count_bytes(since, end), now - self._first_seen[1])

    def _count_bytes(self, since: int, end: int) -> int:
        """Bytes from ``since`` on, added up a piece at a call."""
        counted_from, upto, total = self._counted
        if counted_from != since or upto > end:
            counted_from, upto, total = since, since, 0
        if upto < end:
            more, upto = self._local.waiting_bytes(self.key, upto, end)
            total += more
        self._counted = (counted_from, upto, total)
        return total

    def is_due(self, *, may_seal: bool, drain: bool = False) -> bool:
        """Whether a round would do something: upload, or look after what is there."""
        if self.is_running or self.is_buried:
            return False
        if self.retry_ms is not None and self._tier.clock.monotonic_ms() < self.retry_ms:
            return False
        if may_seal:
            waiting = self.waiting()
            if planning.should_seal(waiting, self._tier.policy) or (drain and waiting.messages):
                return True
            if self.known is None:
                return True
        return self.known is not None and self._house_due()

    def _house_due(self) -> bool:
        if self._kept_house_ms is None:
            return True
        return self._tier.clock.monotonic_ms() - self._kept_house_ms >= self._tier.policy.expire_interval_ms

    # --- a round ----------------------------------------------------------------------------------------------------

    def round(self, *, may_seal: bool = True, drain: bool = False) -> Work[None]:
        """Do what is due now.

        Raises BackendError (try again), WriterFenced (never again), CorruptionError, TierError. A round that ends early
        leaves nothing half done: the next begins with what the backend says.
        """
        self.is_running = True
        try:
            if self.manifest is None:
                yield from self._adopt()
            if may_seal:
                yield from self._upload_all(drain)
            if self._house_due():
                self._kept_house_ms = self._tier.clock.monotonic_ms()
                yield from self._keep_house()
        except Conflict as conflict:
            self.manifest = None  # somebody joined segments, or came before us: look what there is now
            commits.check_writer(conflict.found, self._tier.writer)
            self._tier.count("conflicts")
        except BaseException:
            self.manifest = None
            raise
        finally:
            self.is_running = False

    def _adopt(self) -> Work[None]:
        """Find the queue in the backend, or make it there; from then on nobody with a lower epoch can write it."""
        tier, (topic, queue_id) = self._tier, self.key
        known = self.known
        head: commits.Head = yield lambda: commits.find_head(tier.backend, topic, queue_id, known)
        if head.manifest is None:
            life = names.Lifetime(topic, queue_id, head.next_incarnation)
            made = planning.created(life, self._local.start(self.key), tier.writer, tier.clock.wall_ms())
            yield from self._commit(made)
            return
        commits.check_writer(head.manifest, tier.writer)
        if head.manifest.epoch < tier.writer.epoch:
            yield from self._commit(planning.succeed(head.manifest, tier.writer, tier.clock.wall_ms()))
        else:
            found = head.manifest
            yield lambda: tier.catalogue.put(found)
            self._learn(found)

    def _commit(self, manifest: Manifest) -> Work[None]:
        tier, confirmed_ms = self._tier, self._confirmed_ms

        def work() -> None:
            commits.commit(tier.backend, manifest)
            waited = tier.clock.monotonic_ms() - confirmed_ms
            if manifest.version and waited > tier.policy.delete_grace_ms // 2:
                # So long after the last look the versions in between may be gone again, and ours went into the hole.
                head = commits.find_head(tier.backend, *self.key, manifest).manifest
                if head is None or head.version != manifest.version or head.life != manifest.life:
                    raise Conflict(manifest if head is None else head)
            tier.catalogue.put(manifest)

        yield work
        self._learn(manifest)

    def _learn(self, manifest: Manifest) -> None:
        self.manifest = self.known = manifest
        self._confirmed_ms = self._tier.clock.monotonic_ms()
        self._tier.on_commit(manifest)

    # --- sealing and uploading --------------------------------------------------------------------------------------

    def _upload_all(self, drain: bool) -> Work[None]:
        while self.manifest is not None and not self.is_buried:
            start, end = self._local.start(self.key), self._local.end(self.key)
            if self._is_ahead(end):
                return
            if start > self.manifest.end:
                yield from self._skip_to(start)
                continue
            waiting = self.waiting()
            if not waiting.messages or not (drain or planning.should_seal(waiting, self._tier.policy)):
                return
            yield from self._upload_one(end)

    def _is_ahead(self, end: int) -> bool:
        """Whether the tier has offsets that the local queue has not reached: it is not the history of this store."""
        assert self.manifest is not None
        if self.manifest.end <= end:
            self.problem = ""
            return False
        if not self.problem:
            self.problem = (
                f"the tier has offsets up to {self.manifest.end}, local files end at {end}: they are not of one "
                "history; nothing is uploaded until the local queue is restored, or the topic is deleted and made anew"
            )
            _logger.error("queue %s/%d: %s", *self.key, self.problem)
        return True

    def _skip_to(self, start: int) -> Work[None]:
        """Local messages are gone that were never uploaded: record it (I1), and go on with what there is."""
        assert self.manifest is not None
        tier = self._tier
        reason = "local files went before they were uploaded"
        lost = start - self.manifest.end
        gap = planning.with_gap(self.manifest, start, reason, tier.writer, tier.clock.wall_ms())
        _logger.error(
            "queue %s/%d: offsets %d to %d %s", *self.key, self.manifest.end, start - 1, "are lost: " + reason
        )
        yield from self._commit(gap)
        tier.count("gap_messages", lost)

    def _upload_one(self, end: int) -> Work[None]:
        """Seal what waits into one segment, upload it, and commit it."""
        assert self.manifest is not None
        tier, before = self._tier, self.manifest
        pieces, lost_to = yield from self._collect(before.end, end)
        if lost_to is not None:
            if lost_to > before.end:
                yield from self._skip_to(lost_to)
            return
        if not pieces:
            raise TierError(f"queue {self.key[0]}/{self.key[1]}: offset {before.end} cannot be read though it waits")
        made_ms = tier.clock.wall_ms()
        first, last = before.end, pieces[-1].first + pieces[-1].messages - 1
        name = names.segment_name(before.life, first, last, tier.writer.epoch, tier.unique())
        began = tier.clock.monotonic_ms()
        segment: Segment = yield lambda: upload(tier.backend, name, pieces, self.key[0], made_ms)
        pieces.clear()
        if tier.clock.monotonic_ms() - began > tier.policy.orphan_grace_ms // 2:
            raise BackendError("put", name, "it took so long that it may have been taken for litter")
        if self.is_buried:
            return
        yield from self._commit(planning.with_segment(before, segment, tier.writer, tier.clock.wall_ms()))
        tier.count("uploaded_messages", segment.count)
        tier.count("uploaded_bytes", segment.raw_bytes)
        tier.count("uploaded_segments")

    def _collect(self, offset: int, end: int) -> Work[tuple[list[Piece], int | None]]:
        """Views of the records of one segment; or, when the first is gone, the offset where there are some again."""
        policy = self._tier.policy
        pieces: list[Piece] = []
        size = messages = 0
        while offset < end and size < policy.seal_bytes and messages < policy.seal_messages:
            upto = min(end, offset + policy.seal_messages - messages)
            piece = self._local.read(self.key, offset, upto, min(BLOCK_BYTES, policy.seal_bytes))
            if piece.first != offset:
                return (pieces, None) if pieces else ([], piece.first)
            if not piece.messages:
                break
            pieces.append(piece)
            size += piece.bytes
            messages += piece.messages
            offset += piece.messages
            if len(pieces) % BLOCKS_A_STEP == 0:
                yield _nothing
        return pieces, None

    # --- looking after what is there --------------------------------------------------------------------------------

    def _keep_house(self) -> Work[None]:
        """Expire, delete what may be deleted, join; each by a commit of its own."""
        tier = self._tier
        if tier.policy.expire and self.manifest is not None:
            hours = tier.hours_of(self.key[0])
            gone = planning.expired(self.manifest, tier.clock.wall_ms(), hours, tier.policy.reserved_bytes)
            if gone:
                left = planning.without(
                    self.manifest, gone, tier.writer, tier.clock.wall_ms(), tier.policy.delete_grace_ms
                )
                yield from self._commit(left)
                tier.count("expired_segments", len(gone))
                _logger.info("queue %s/%d: %d segments expired; it begins at %d", *self.key, len(gone), left.start)
        yield from self._delete_dropped()
        yield from self._join()
        yield from self._delete_old_manifests()

    def _delete_dropped(self) -> Work[None]:
        tier, before = self._tier, self.manifest
        if before is None:
            return
        wanted = planning.deletable(before, tier.clock.wall_ms())[:DELETES_A_ROUND]
        if not wanted:
            return
        gone: list[str] = yield lambda: commits.delete_all(tier.backend, wanted)
        yield from self._commit(planning.purged(before, gone, tier.writer, tier.clock.wall_ms()))
        tier.count("deleted_objects", len(gone))

    def _join(self) -> Work[None]:
        tier, before = self._tier, self.manifest
        if before is None or not tier.policy.compact:
            return
        plan = planning.plan_join(before, tier.clock.wall_ms(), tier.policy, tier.joiner.target)
        if plan is None:
            return
        made_ms = tier.clock.wall_ms()
        writer, unique = tier.writer, tier.unique()
        segment: Segment = yield lambda: tier.joiner.join(
            tier.backend, before.life, plan, writer.epoch, unique, made_ms
        )
        after = planning.swapped(
            before, plan.segments, segment, writer, tier.clock.wall_ms(), tier.policy.delete_grace_ms
        )
        assert after is not None
        yield from self._commit(after)
        tier.count("joined_segments", len(plan.segments))

    def _delete_old_manifests(self) -> Work[None]:
        tier, head = self._tier, self.manifest
        if head is None or head.version < 2 * commits.MANIFESTS_KEPT:
            return
        older_than = tier.clock.wall_ms() - tier.policy.delete_grace_ms

        def work() -> None:
            wanted = commits.old_manifests(tier.backend, head, older_than)
            if wanted:
                commits.delete_all(tier.backend, wanted[:DELETES_A_ROUND])

        yield work


def upload(backend: Backend, name: str, pieces: list[Piece], topic: str, sealed_ms: int) -> Segment:
    """Build a segment of records and put it. Blocks. Raises CorruptionError when the records are not what they must be.

    A backend that stored another length than it was given is found out here.
    """
    builder = SegmentBuilder()
    blocks = []
    for piece in pieces:
        block = make_block(piece.records, piece.first, topic, path=f"queue of {topic}")
        builder.add(block)
        blocks.append(block._replace(data=b""))
    parts, index_at, index_bytes = builder.finish()
    size = put_checked(backend, name, parts)
    return Segment(
        name=name,
        format=FLAT,
        first=blocks[0].first,
        last=blocks[-1].first + blocks[-1].messages - 1,
        bytes=size,
        raw_bytes=sum(piece.bytes for piece in pieces),
        min_ms=min(block.min_ms for block in blocks),
        max_ms=max(block.max_ms for block in blocks),
        index_name=name,
        index_at=index_at,
        index_bytes=index_bytes,
        sealed_ms=sealed_ms,
    )


def _nothing() -> None:
    """Gives others their turn."""


def run_inline(work: Work[_T]) -> _T:
    """Drive work to its end on this thread: for tests and commands."""
    try:
        call = next(work)
        while True:
            try:
                answer = call()
            except Exception as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
