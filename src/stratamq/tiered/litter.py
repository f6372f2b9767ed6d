"""Objects that nothing names: left by uploads that did not end, and by queues that were deleted.

A segment is uploaded before the commit that names it, so an object without a name may be about to get one. Only what is
older than a grace time counts as litter; owners never commit what took longer to upload than half of it.
"""

from __future__ import annotations

from typing import NamedTuple

from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import Manifest
from stratamq.tiered import commits
from stratamq.tiered.backend import Backend, Entry


class Litter(NamedTuple):
    """What was found and what was done."""

    objects: list[Entry]
    """Litter that is old enough to go."""
    young: int
    """Objects that nothing names but that may be named soon."""
    deleted: list[str]
    strange: list[str]
    """Objects with names that StrataMQ did not make; they are left alone."""


def named_by(manifest: Manifest) -> set[str]:
    """All objects that a manifest names, to be deleted or not."""
    found = {name for segment in manifest.segments for name in (segment.name, segment.index_name)}
    return found | {row.name for row in manifest.dropped}


def find_litter(backend: Backend, now_ms: int, grace_ms: int) -> Litter:
    """List everything and name what is litter. Blocks: a listing of all, a read for each queue.

    A topic one of whose manifests cannot be read keeps all it has.
    """
    data = [*backend.list(names.SEGMENTS), *backend.list(names.LAKE)]  # before the manifests, which then name all of it
    everything = commits.find_all(backend)
    named: set[str] = set()
    for manifest in everything.manifests:
        named |= named_by(manifest)
    spared = tuple(part for topic, _ in everything.broken for part in names.topic_parts(topic))
    old: list[Entry] = []
    young = 0
    strange = []
    for entry in data:
        if entry.name in named or entry.name.startswith(spared):
            continue
        made = names.parse_data_name(entry.name)
        if made is None:
            strange.append(entry.name)
        elif made.made_ms + grace_ms <= now_ms:
            old.append(entry)
        else:
            young += 1
    for entry in everything.listed:
        row = names.parse_manifest_name(entry.name)
        if row is not None and row.version is not None and row.life in everything.buried:
            old.append(entry)
    return Litter(old, young, [], strange)


def collect_litter(backend: Backend, now_ms: int, grace_ms: int) -> Litter:
    """Find litter and delete it. Blocks."""
    found = find_litter(backend, now_ms, grace_ms)
    return found._replace(deleted=commits.delete_all(backend, [entry.name for entry in found.objects]))
