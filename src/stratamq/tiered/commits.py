"""Manifests in the backend: finding the newest, committing the next, claiming the right to do so.

All of it blocks and asks the backend; nothing is remembered here. A listing may lack what was written a moment ago, so
what it says is followed up by asking for the next number until there is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import msgspec

from stratamq.errors import BackendError, CorruptionError, ObjectExists, ObjectMissing, TierError, WriterFenced
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import Manifest, decode_manifest, encode_manifest
from stratamq.formats.cold_names import Lifetime
from stratamq.tiered.backend import Backend, Entry
from stratamq.tiered.planning import Writer

PROBES_MAX: Final = 100_000
CLAIMS_MAX: Final = 1_000
MANIFESTS_KEPT: Final = 16
"""So many of the newest manifests of a queue are never deleted."""


class Conflict(TierError):
    """Somebody else wrote the version that was to be committed; nothing was changed."""

    def __init__(self, found: Manifest) -> None:
        super().__init__(f"version {found.version} of {found.life} was written by {found.writer}")
        self.found = found


class Head(NamedTuple):
    """The newest manifest of a queue; None when it has no life in the tier, and which incarnation would be next."""

    manifest: Manifest | None
    next_incarnation: int


# --- whose tier, and who may write ----------------------------------------------------------------------------------


def open_identity(backend: Backend, wanted: str, now_ms: int) -> str:
    """The number that says whose tier this is; written with ``wanted`` when there is none yet."""
    for _ in range(2):
        with contextlib.suppress(ObjectMissing):
            return _identity(backend.read(names.ID_NAME))
        with contextlib.suppress(ObjectExists):
            backend.put_new(names.ID_NAME, [_json({"id": wanted, "made_ms": now_ms})])
    return _identity(backend.read(names.ID_NAME))


def _identity(data: bytes) -> str:
    try:
        found = msgspec.json.decode(data)["id"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise CorruptionError(names.ID_NAME, 0, "whose tier this is", repr(data[:40])) from error
    return str(found)


def claim_epoch(backend: Backend, writer: str, now_ms: int) -> Writer:
    """Claim the next epoch for this process. Raises TierError when the backend lets a name be written twice."""
    listed = [names.parse_epoch_name(entry.name) for entry in backend.list(names.EPOCHS)]
    epoch = max((number for number in listed if number is not None), default=0)
    for _ in range(CLAIMS_MAX):
        epoch += 1
        if epoch > names.EPOCH_MAX:
            break
        try:
            backend.put_new(names.epoch_name(epoch), [_json({"writer": writer, "claimed_ms": now_ms})])
        except ObjectExists:
            continue
        _check_create_only(backend, names.epoch_name(epoch))
        return Writer(epoch, writer)
    raise TierError(f"no epoch could be claimed in {backend.address}: all numbers up to {epoch} are taken")


def _check_create_only(backend: Backend, name: str) -> None:
    before = backend.read(name)
    try:
        backend.put_new(name, [before])
    except ObjectExists:
        return
    raise TierError(
        f"{backend.address} lets an object be written twice, so nothing keeps two brokers apart there; "
        "use a store that knows If-None-Match"
    )


# --- the newest manifest ------------------------------------------------------------------------------------------


def find_head(backend: Backend, topic: str, queue_id: int, hint: Manifest | None) -> Head:
    """The newest manifest of a queue, looked for from ``hint`` on, one that was the newest once.

    Costs one listing, and a few requests. Raises CorruptionError when it cannot be read.
    """
    folder = names.queue_folder(topic, queue_id)
    after = names.manifest_name(hint.life, hint.version) if hint is not None else ""
    found = [names.parse_manifest_name(entry.name) for entry in backend.list(folder, after=after)]
    newest: dict[int, int] = {} if hint is None else {hint.incarnation: hint.version}
    for row in found:
        if row is not None and row.life.topic == topic and row.life.queue_id == queue_id:
            newest[row.life.incarnation] = max(newest.get(row.life.incarnation, 0), row.version or 0)
    incarnation = max(newest, default=1)
    while True:
        life = Lifetime(topic, queue_id, incarnation)
        if backend.size(names.tomb_name(life)) is not None:
            incarnation += 1
            continue
        version = _probe(backend, life, newest.get(incarnation, -1))
        if version < 0:
            return Head(None, incarnation)
        return Head(read_manifest(backend, life, version), incarnation + 1)


def _probe(backend: Backend, life: Lifetime, version: int) -> int:
    """The highest version, which is ``version`` or follows it without a hole; -1 when there is none."""
    for _ in range(PROBES_MAX):
        if backend.size(names.manifest_name(life, version + 1)) is None:
            return version
        version += 1
    return version


def read_manifest(backend: Backend, life: Lifetime, version: int) -> Manifest:
    """One version. Raises ObjectMissing, CorruptionError."""
    name = names.manifest_name(life, version)
    manifest = decode_manifest(backend.read(name), path=name)
    if manifest.life != life or manifest.version != version:
        raise CorruptionError(name, 0, f"version {version} of {life}", f"version {manifest.version} of {manifest.life}")
    return manifest


class Everything(NamedTuple):
    """All queues of a tier: their newest manifests, those whose manifest is damaged, deleted lives, and what was
    listed."""

    manifests: list[Manifest]
    broken: dict[tuple[str, int], CorruptionError]
    buried: set[Lifetime]
    listed: list[Entry]


def find_all(
    backend: Backend, *, threads: int = 8, progress: Callable[[str, int, int], None] | None = None
) -> Everything:
    """The newest manifests of all queues, from the backend alone (I14).

    Costs one listing of all manifests, and one read for each queue.
    """
    newest: dict[tuple[str, int], dict[int, int]] = {}
    buried: set[Lifetime] = set()
    listed = backend.list(names.MANIFESTS)
    for entry in listed:
        row = names.parse_manifest_name(entry.name)
        if row is None:
            continue
        if row.version is None:
            buried.add(row.life)
            continue
        lives = newest.setdefault((row.life.topic, row.life.queue_id), {})
        lives[row.life.incarnation] = max(lives.get(row.life.incarnation, 0), row.version)
    wanted = []
    for (topic, queue_id), lives in sorted(newest.items()):
        alive = [number for number in lives if Lifetime(topic, queue_id, number) not in buried]
        if alive:
            wanted.append((Lifetime(topic, queue_id, max(alive)), lives[max(alive)]))
    found: list[Manifest] = []
    broken: dict[tuple[str, int], CorruptionError] = {}

    def read(row: tuple[Lifetime, int]) -> Manifest | CorruptionError:
        try:
            return read_manifest(backend, *row)
        except CorruptionError as error:
            return error

    with ThreadPoolExecutor(threads, thread_name_prefix="tier-rebuild") as pool:
        for (life, _), got in zip(wanted, pool.map(read, wanted), strict=True):
            if isinstance(got, CorruptionError):
                broken[life.topic, life.queue_id] = got
            else:
                found.append(got)
            if progress is not None:
                progress("reading manifests", len(found) + len(broken), len(wanted))
    return Everything(found, broken, buried, listed)


# --- committing ---------------------------------------------------------------------------------------------------


def commit(backend: Backend, manifest: Manifest) -> None:
    """Publish a manifest as the next version.

    Raises:
        Conflict: That version is there, and somebody else's.
        BackendError: What happened is unknown: look for the head again.
    """
    name = names.manifest_name(manifest.life, manifest.version)
    data = encode_manifest(manifest)
    try:
        backend.put_new(name, [data])
    except ObjectExists:
        found = backend.read(name)
        if found != data:
            raise Conflict(decode_manifest(found, path=name)) from None
        return
    stored = backend.size(name)
    if stored == len(data):
        return
    if stored is not None and stored < len(data) and data.startswith(backend.read(name)):
        # A backend that says "done" over half an object. It is ours and nobody can have built on it: take it back, or
        # the queue would stand still for good behind a version that nobody can read.
        backend.delete(name)
    raise BackendError("put", name, f"{len(data)} bytes were sent, the backend has {stored}")


def check_writer(found: Manifest, writer: Writer) -> None:
    """Raise WriterFenced when a manifest was written under a higher epoch than ours."""
    if found.epoch > writer.epoch:
        raise WriterFenced(str(found.life), writer.epoch, found.epoch)


def bury(backend: Backend, life: Lifetime, now_ms: int) -> None:
    """Mark an incarnation as deleted, for good."""
    with contextlib.suppress(ObjectExists):
        backend.put_new(names.tomb_name(life), [_json({"deleted_ms": now_ms})])


def old_manifests(backend: Backend, head: Manifest, older_than_ms: int) -> list[str]:
    """Manifests that may be deleted: not among the newest, and superseded before a time. One listing, few reads."""
    folder = names.manifest_folder(head.life)
    listed = [names.parse_manifest_name(entry.name) for entry in backend.list(folder)]
    versions = sorted(
        row.version for row in listed if row is not None and row.version is not None and row.version < head.version
    )
    versions = versions[: max(0, len(versions) - MANIFESTS_KEPT)]
    low, high = 0, len(versions)
    while low < high:  # those written before the time come first
        middle = (low + high) // 2
        try:
            is_old = read_manifest(backend, head.life, versions[middle]).written_ms < older_than_ms
        except (ObjectMissing, CorruptionError):
            is_old = True
        if is_old:
            low = middle + 1
        else:
            high = middle
    # The last old one was superseded by the first that is not: only those before it are surely unused.
    return [names.manifest_name(head.life, version) for version in versions[: max(0, low - 1)]]


def delete_all(backend: Backend, wanted: Iterable[str]) -> list[str]:
    """Delete objects; returns those that are gone. Stops at the first failure, which is raised when none went."""
    gone: list[str] = []
    for name in wanted:
        try:
            backend.delete(name)
        except BackendError:
            if not gone:
                raise
            break
        gone.append(name)
    return gone


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"
