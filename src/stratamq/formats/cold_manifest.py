"""Manifests of the cold tier: what a queue has there. One object a version; the highest version is what counts.

One line of text, then JSON::

    stratamq-manifest 1 CRC32 LENGTH\\n{"topic": ..., ...}\\n

CRC-32 (8 hex digits) and length (decimal) are those of the JSON with its last line end. Members that a reader does not
know are left alone. What the members mean: docs/formats/cold-manifest.md.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from stratamq.errors import BadLength, BadMagic, ChecksumMismatch, CorruptionError
from stratamq.formats.cold_names import Lifetime

MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
FLAT: Final = "flat"
PARQUET: Final = "parquet"
_HEAD: Final = re.compile(rb"stratamq-manifest ([0-9]{1,4}) ([0-9a-f]{8}) ([0-9]{1,10})\n")
_VERSION: Final = 1


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed and uploaded run of messages. It never changes; its name is used once."""

    name: str
    format: str
    """``flat`` or ``parquet``."""
    first: int
    last: int
    """Offsets of its first and last message, both included."""
    bytes: int
    """Length of the object."""
    raw_bytes: int
    """Length of the records in it."""
    min_ms: int
    max_ms: int
    """Lowest and highest store time."""
    index_name: str
    """Where its index is: the object itself for a flat one."""
    index_at: int
    index_bytes: int
    sealed_ms: int

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.last - self.first + 1


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An object that nothing names any more; it may be deleted from a time on."""

    name: str
    not_before_ms: int


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets ``first`` to ``last`` that the tier will never have, since when, and why."""

    first: int
    last: int
    noted_ms: int
    reason: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one queue in the cold tier at one version."""

    topic: str
    queue_id: int
    incarnation: int
    version: int
    epoch: int
    """Of the writer. Never lower than in the version before."""
    writer: str
    written_ms: int
    start: int
    """First offset that can be read."""
    end: int
    """Offset behind the last message that was uploaded."""
    segments: tuple[Segment, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def life(self) -> Lifetime:
        """Which queue this is about."""
        return Lifetime(self.topic, self.queue_id, self.incarnation)


def flaws_of(manifest: Manifest) -> list[str]:
    """What is wrong within one manifest: its segments and gaps must tile ``[start, end)`` in order, without overlap."""
    found = []
    at = manifest.start
    pieces: list[Segment | Gap] = sorted([*manifest.segments, *manifest.gaps], key=lambda piece: piece.first)
    for piece in pieces:
        if piece.last < piece.first or piece.first < 0:
            found.append(f"offsets {piece.first} to {piece.last} are no range")
        if isinstance(piece, Gap) and piece.last < at:
            continue  # below the start: kept for the record
        if piece.first != at:
            found.append(f"a piece begins at {piece.first}, expected is {at}")
        at = piece.last + 1
    if at != manifest.end:
        found.append(f"the pieces end at {at}, the manifest says {manifest.end}")
    if list(manifest.segments) != sorted(manifest.segments, key=lambda segment: segment.first):
        found.append("the segments are out of order")
    if any(s.format not in (FLAT, PARQUET) or s.bytes < 0 or s.index_bytes <= 0 for s in manifest.segments):
        found.append("a segment has an unknown format or an impossible length")
    return found


def follows(before: Manifest, after: Manifest) -> list[str]:
    """What is wrong with one manifest as the successor of another: nothing may move backwards."""
    rules = (
        (before.life == after.life, "it is about another queue"),
        (after.version == before.version + 1, f"version {after.version} follows {before.version}"),
        (after.epoch >= before.epoch, f"epoch {after.epoch} follows {before.epoch}"),
        (after.start >= before.start, f"the start moves back from {before.start} to {after.start}"),
        (after.end >= before.end, f"the end moves back from {before.end} to {after.end}"),
    )
    return [text for holds, text in rules if not holds] + flaws_of(after)


def encode_manifest(manifest: Manifest) -> bytes:
    """The object of a manifest."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    return b"stratamq-manifest %d %08x %d\n" % (_VERSION, zlib.crc32(text), len(text)) + text


def decode_manifest(data: bytes, *, path: str) -> Manifest:
    """Read a manifest. Raises CorruptionError when it is damaged or contradicts itself; ``path`` is for that error."""
    match = _HEAD.match(data)
    if match is None:
        raise BadMagic(path, 0, "stratamq-manifest 1 ...", repr(data[:24]))
    version, crc, length = int(match[1]), int(match[2], 16), int(match[3])
    if version != _VERSION:
        raise BadMagic(path, 0, f"format {_VERSION}", f"format {version}", hint="a newer StrataMQ wrote this")
    text = data[match.end() :]
    if len(text) != length or length > MANIFEST_BYTES_MAX:
        raise BadLength(path, match.end(), f"{length} bytes", f"{len(text)} bytes")
    if zlib.crc32(text) != crc:
        raise ChecksumMismatch(path, match.end(), f"{crc:08x}", f"{zlib.crc32(text):08x}")
    try:
        manifest = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(path, match.end(), "a manifest", str(error)) from error
    flaws: Sequence[str] = flaws_of(manifest)
    if flaws:
        raise CorruptionError(path, match.end(), "segments without holes", "; ".join(flaws[:3]))
    return manifest


_decoder: Final = msgspec.json.Decoder(Manifest)
