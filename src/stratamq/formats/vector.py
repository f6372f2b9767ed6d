"""Commit-log records by the thousand: heads, parts, checks and frames as NumPy arrays, no Python per record.

Everything here works on ``log``, one mapped commit-log file as a uint8 array (`byte_view`), and on ``positions``, the
byte positions of records in it (int64). A fixed field is read with a *window*: an array laid over the file that has one
(overlapping) element for each byte, so that ``window[positions]`` is one gather in C, whatever the alignment.

Answers agree with `formats.message` record by record; tests hold the two against each other. Nothing is trusted:
lengths are checked before they are used to address anything, so damaged bytes give flaw codes, not exceptions.

Cost on one core: heads about 30 ns a record, `check_records` about 150 ns, `walk` about 50 ns.
Why it is built like this: docs/design/bulk-reader.md.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stratamq.formats.message import (
    BLANK_BYTES,
    CRC_MASK,
    HEAD_V4,
    IPV6_EXTRA_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SYS_BORN_HOST_V6,
    SYS_HOSTS_V6,
    SYS_STORE_HOST_V6,
    TOPIC_V1_BYTES_MAX,
)
from stratamq.units import Buffer

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Heads: TypeAlias = npt.NDArray[Any]
"""A structured array of `HEAD_DTYPE`, big-endian. The host fields are only right where both hosts are IPv4."""

_HEAD_FIELDS: Final = (
    ("size", ">i4"),
    ("magic", ">i4"),
    ("crc", ">i4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("physical_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_timestamp", ">i8"),
    ("born_host", "V8"),
    ("store_timestamp", ">i8"),
    ("store_host", "V8"),
    ("reconsume_times", ">i4"),
    ("prepared_transaction_offset", ">i8"),
    ("body_bytes", ">i4"),
)
HEAD_DTYPE: Final = np.dtype(list(_HEAD_FIELDS))

# Flaw codes of `check_records`; the gravest stands. OFFSET is the only one with which the frame itself is whole.
OK: Final = 0
TRUNCATED: Final = 1
MAGIC: Final = 2
LENGTH: Final = 3
OFFSET: Final = 4
FLAW_NAMES: Final = ("ok", "truncated", "magic", "length", "offset")

_LANES_MAX: Final = 1024
_LANE_BYTES_MIN: Final = 64 * 1024
_SEED_SEARCH_BYTES: Final = 256 * 1024
_SEED_MISSES_MAX: Final = 4
"""After so many places without a record near, the data has ended or records are so large that lanes do not pay."""
_GATHER_ROWS: Final = 4096
_GATHER_WASTE_MAX: Final = 6
_MAGIC_PREFIX: Final = b"\xda\xa3\x20"


class Parts(NamedTuple):
    """Where the variable parts of records lie in the file: positions and lengths in bytes."""

    body_at: Ints
    body_bytes: Ints
    topic_at: Ints
    topic_bytes: Ints
    properties_at: Ints
    properties_bytes: Ints


class CheckedRecords(NamedTuple):
    """Outcome of `check_records`: heads and parts of all records; both mean something only where ``flaws`` is OK."""

    heads: Heads
    parts: Parts
    flaws: npt.NDArray[np.uint8]


class Walk(NamedTuple):
    """Outcome of `walk`: record positions, where it stopped, and whether a blank record stands there."""

    positions: Ints
    stop: int
    at_blank: bool


def byte_view(buffer: Buffer) -> Bytes:
    """A mapped file as a uint8 array, no copy. Keeps the mapping alive."""
    return np.frombuffer(buffer, dtype=np.uint8)


def window(log: Bytes, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array over ``log`` with one element of ``dtype`` beginning at every byte; only for indexing, never whole."""
    kind = np.dtype(dtype)
    count = max(0, len(log) - kind.itemsize + 1)
    return np.ndarray((count,), dtype=kind, buffer=log.data, strides=(1,))


def gather_heads(log: Bytes, positions: Ints) -> Heads:
    """Copy the fixed heads of records. IPv6 hosts are stepped over, so all other fields are right for them too.

    Raises IndexError when a position has fewer than 88 bytes behind it.
    """
    # As plain bytes first: NumPy moves those with one memcpy a record, a structured type field by field.
    raw = window(log, f"V{HEAD_V4.size}")[positions]
    heads = raw.view(HEAD_DTYPE)
    host_flags = heads["sys_flag"] & SYS_HOSTS_V6
    if host_flags.any():
        for kind in (SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, SYS_HOSTS_V6):
            rows = np.flatnonzero(host_flags == kind)
            if rows.size:
                _refill_behind_hosts(log, positions[rows], heads, rows, kind)
    return heads


def _refill_behind_hosts(log: Bytes, positions: Ints, heads: Heads, rows: npt.NDArray[np.intp], kind: int) -> None:
    """Read again those fields that stand behind an IPv6 host. Fields beyond the file's end read as 0."""
    shift = 0
    for name, form in _HEAD_FIELDS:
        if name == "born_host":
            shift += IPV6_EXTRA_BYTES if kind & SYS_BORN_HOST_V6 else 0
        elif name == "store_host":
            shift += IPV6_EXTRA_BYTES if kind & SYS_STORE_HOST_V6 else 0
        elif shift:
            fields = HEAD_DTYPE.fields
            assert fields is not None
            at = positions + (fields[name][1] + shift)
            view = window(log, form)
            readable = at < len(view)
            values = np.zeros(len(rows), dtype=form)
            values[readable] = view[at[readable]]
            heads[name][rows] = values


def gather_hosts(log: Bytes, positions: Ints, sys_flags: npt.NDArray[np.integer[Any]], *, born: bool) -> Bytes:
    """Hosts as rows of 21 bytes: 1 for IPv6, then address (4 bytes and 12 zeros, or 16) and i32 port.

    Rows compare equal exactly when the hosts are the same, so distinct ones are found by `numpy.unique`.
    """
    rows = np.zeros((len(positions), 21), dtype=np.uint8)
    flag = SYS_BORN_HOST_V6 if born else SYS_STORE_HOST_V6
    at = positions + 48
    if not born:
        at = positions + 64 + IPV6_EXTRA_BYTES * ((sys_flags & SYS_BORN_HOST_V6) != 0)
    v6 = (sys_flags & flag) != 0
    v4 = ~v6
    if v4.any():
        raw = window(log, "V8")[at[v4]].view(np.uint8).reshape(-1, 8)
        rows[v4, 1:5] = raw[:, :4]
        rows[v4, 17:] = raw[:, 4:]
    if v6.any():
        rows[v6, 0] = 1
        rows[v6, 1:] = window(log, "V20")[at[v6]].view(np.uint8).reshape(-1, 20)
    return rows


def check_heads(
    log: Bytes, positions: Ints, *, end: int, physical_base: int | None
) -> tuple[Heads, npt.NDArray[np.uint8]]:
    """Heads and flaws of the records at ``positions`` of a file whose data ends at ``end``.

    Looked at: room, magic, size, and (when ``physical_base``, the physical offset of the file's first byte, is given)
    the embedded physical offset. A head means something only where its flaw is OK.
    """
    flaws = np.zeros(len(positions), dtype=np.uint8)
    room = min(end, len(log)) - positions
    _mark(flaws, (room < RECORD_BYTES_MIN) | (positions < 0), TRUNCATED)
    if len(log) < RECORD_BYTES_MIN:
        return np.zeros(len(positions), HEAD_DTYPE), flaws
    heads = gather_heads(log, positions if not flaws.any() else np.where(flaws == OK, positions, 0))
    magic, size = heads["magic"], heads["size"]
    _mark(flaws, (magic != MAGIC_V1) & (magic != MAGIC_V2), MAGIC)
    _mark(flaws, size < RECORD_BYTES_MIN, LENGTH)
    _mark(flaws, size > room, TRUNCATED)
    if physical_base is not None:
        _mark(flaws, heads["physical_offset"] != positions + physical_base, OFFSET)
    return heads, flaws


def check_parts(log: Bytes, positions: Ints, heads: Heads, flaws: npt.NDArray[np.uint8]) -> Parts:
    """Where bodies, topics and properties lie; ``flaws`` gets LENGTH where they do not fill the record exactly."""
    if len(log) < RECORD_BYTES_MIN:
        nothing = np.zeros(len(positions), dtype=np.int64)
        return Parts(*([nothing] * 6))
    framed = (flaws == OK) | (flaws == OFFSET)
    parts, fits = _parts_of(log, positions, heads, framed)
    flaws[framed & ~fits] = LENGTH
    return parts


def check_records(log: Bytes, positions: Ints, *, end: int, physical_base: int | None) -> CheckedRecords:
    """Heads, parts and flaws of records: `check_heads` and `check_parts`. Bodies are not read: see `crc_matches`."""
    heads, flaws = check_heads(log, positions, end=end, physical_base=physical_base)
    return CheckedRecords(heads, check_parts(log, positions, heads, flaws), flaws)


def _mark(flaws: npt.NDArray[np.uint8], where: Mask, code: int) -> None:
    """Note a flaw where none is noted yet."""
    if where.any():
        flaws[where & (flaws == OK)] = code


def _parts_of(log: Bytes, positions: Ints, heads: Heads, framed: Mask) -> tuple[Parts, Mask]:
    """Follow body, topic and properties lengths; they must fill the record exactly.

    Where a length cannot be right the rest of that record is read at position 0 instead, so no index leaves the file.
    """
    sys_flag = heads["sys_flag"]
    body_at = positions + HEAD_V4.size
    if (sys_flag & SYS_HOSTS_V6).any():
        for flag in (SYS_BORN_HOST_V6, SYS_STORE_HOST_V6):
            body_at[(sys_flag & flag) != 0] += IPV6_EXTRA_BYTES
    record_end = positions + heads["size"]
    body_bytes = heads["body_bytes"].astype(np.int64)
    wide = heads["magic"] == MAGIC_V2
    length_bytes = 1 + wide.astype(np.int64)
    topic_at = body_at + body_bytes + length_bytes
    fits = framed & (body_bytes >= 0) & (topic_at + 2 <= record_end)
    at = np.where(fits, topic_at - length_bytes, 0)
    topic_bytes = log[at].astype(np.int64)
    if wide.any():
        rows = np.flatnonzero(wide)
        topic_bytes[rows] = window(log, ">i2")[at[rows]]
    fits &= (topic_bytes > 0) & (wide | (topic_bytes <= TOPIC_V1_BYTES_MAX))
    properties_at = topic_at + topic_bytes + 2
    fits &= properties_at <= record_end
    at = np.where(fits, properties_at - 2, 0)
    properties_bytes = window(log, ">i2")[at].astype(np.int64)
    fits &= (properties_bytes >= 0) & (properties_at + properties_bytes == record_end)
    return Parts(body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes), fits


def body_crcs(log: Bytes, parts: Parts) -> Ints:
    """CRC-32 of every body with the sign bit cleared, as records store it.

    The one loop per record there is: zlib's CRC cannot be vectorised. About 150 ns a record and 0.3 ns a byte; zlib
    lets other threads run during bodies above 5 KiB.
    """
    with log.data as view:
        starts = parts.body_at.tolist()
        slices = map(slice, starts, (parts.body_at + parts.body_bytes).tolist())
        crcs = np.fromiter(map(zlib.crc32, map(view.__getitem__, slices)), dtype=np.int64, count=len(starts))
    return crcs & CRC_MASK


def crc_matches(log: Bytes, checked: CheckedRecords) -> Mask:
    """Whether each record's body has the CRC that its head says; flawed records are not read and count as matching.

    Like RocketMQ, an empty body is never compared.
    """
    matches = np.ones(len(checked.flaws), dtype=np.bool_)
    rows = np.flatnonzero((checked.flaws == OK) & (checked.parts.body_bytes > 0))
    if rows.size:
        picked = Parts(*(part[rows] for part in checked.parts))
        matches[rows] = body_crcs(log, picked) == checked.heads["crc"][rows]
    return matches


def slices_of(log: Bytes, starts: Ints, lengths: Ints) -> list[bytes]:
    """Copies of byte ranges, one object each; about 120 ns a range."""
    with log.data as view:
        ranges = map(slice, starts.tolist(), (starts + lengths).tolist())
        return list(map(bytes, map(view.__getitem__, ranges)))


def gather_bytes(log: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    """Copies of byte ranges, one after the other in one array.

    Ranges of similar lengths are gathered as windows of the longest one's width, of which a mask keeps the wanted
    bytes: about 1 ns a byte. Where lengths differ much, or a window would leave the file, ranges are joined: 400 ns
    each.
    """
    parts = [
        _gather_block(log, starts[at : at + _GATHER_ROWS], lengths[at : at + _GATHER_ROWS])
        for at in range(0, len(starts), _GATHER_ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)


def _gather_block(log: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    width = int(lengths.max())
    total = int(lengths.sum())
    if not total:
        return np.zeros(0, dtype=np.uint8)
    if width * len(starts) <= _GATHER_WASTE_MAX * total and int(starts.max()) + width <= len(log):
        rows = window(log, f"V{width}")[starts].view(np.uint8).reshape(-1, width)
        gathered: Bytes = rows[np.arange(width) < lengths[:, None]]
        return gathered
    with log.data as view:
        ranges = map(slice, starts.tolist(), (starts + lengths).tolist())
        return np.frombuffer(b"".join(map(view.__getitem__, ranges)), dtype=np.uint8)


# --- frames ---------------------------------------------------------------------------------------------------


def walk(log: Bytes, start: int, end: int, *, physical_base: int) -> Walk:
    """Positions of all records from ``start`` on, following sizes, until a blank record, ``end`` or a bad frame.

    A frame is good when its magic is v1 or v2 and its size is possible and ends at or before ``end``; what is inside is
    for `check_records`. Long ranges are walked in up to 1,024 lanes side by side. A lane begins where the bytes look
    like a record (magic, size and own physical offset); it counts only if the lane before arrives exactly there, so the
    answer is the same as that of the plain loop.
    """
    lanes = min(_LANES_MAX, (end - start) // _LANE_BYTES_MIN)
    if lanes < 4:
        return _walk_plain(log, start, end)
    seeds = _seeds(log, start, end, lanes, physical_base)
    visited, finals = _walk_lanes(log, seeds, end)
    # The chain holds as long as each lane ends where the next one began.
    broken = np.flatnonzero(finals[:-1] != seeds[1:])
    last = int(broken[0]) if broken.size else len(seeds) - 1
    reached = int(finals[last])
    positions = np.sort(visited)
    if last + 1 < len(seeds):
        # Either the log ends inside this lane or the next seed was a decoy; the plain loop finds out which.
        positions = positions[: np.searchsorted(positions, min(reached, int(seeds[last + 1])))]
    rest = _walk_plain(log, reached, end)
    if rest.positions.size:
        positions = np.concatenate((positions, rest.positions))
    return Walk(positions, rest.stop, rest.at_blank)


def _walk_plain(log: Bytes, start: int, end: int) -> Walk:
    """The obvious loop: about 250 ns a record."""
    found: list[int] = []
    append = found.append
    at_blank = False
    position = start
    unpack: Any = SIZE_AND_MAGIC.unpack_from
    with log.data as view:
        while position + BLANK_BYTES <= end:
            size, magic = unpack(view, position)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                at_blank = magic == MAGIC_BLANK
                break
            if size < RECORD_BYTES_MIN or position + size > end:
                break
            append(position)
            position += size
    return Walk(np.array(found, dtype=np.int64), position, at_blank)


def _seeds(log: Bytes, start: int, end: int, lanes: int, physical_base: int) -> Ints:
    """Where lanes begin: the start, and about evenly spaced places that look like records."""
    found = [start]
    step = (end - start) // lanes
    misses = 0
    for lane in range(1, lanes):
        seed = find_record(
            log,
            max(start + lane * step, found[-1] + 1),
            end,
            physical_base=physical_base,
            look_bytes=_SEED_SEARCH_BYTES,
        )
        if seed is not None:
            found.append(seed)
        elif (misses := misses + 1) == _SEED_MISSES_MAX:
            break
    return np.array(found, dtype=np.int64)


def find_record(log: Bytes, start: int, end: int, *, physical_base: int, look_bytes: int = 1 << 62) -> int | None:
    """The first position from ``start`` on whose bytes look like a record at its own place, None when there is none.

    Looked at: magic, size and the embedded physical offset, so a chance hit is all but impossible. About 1 GB/s.
    """
    for chunk in range(start, min(end, start + look_bytes), 4096):
        data = log[chunk : min(end, chunk + 4096 + RECORD_BYTES_MIN)].tobytes()
        at = data.find(_MAGIC_PREFIX, 4)
        while at >= 0 and at + 32 <= len(data):
            size, magic = SIZE_AND_MAGIC.unpack_from(data, at - 4)
            if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN:
                stated = struct.unpack_from(">q", data, at + 24)[0]
                if stated == physical_base + chunk + at - 4:
                    return chunk + at - 4
            at = data.find(_MAGIC_PREFIX, at + 1)
    return None


def _walk_lanes(log: Bytes, seeds: Ints, end: int) -> tuple[Ints, Ints]:
    """Walk from every seed to the next one, all in step. Returns all positions seen and where each lane ended."""
    frames = window(log, ">u8")
    limits = np.append(seeds[1:], end)
    finals = seeds.copy()
    lanes = np.arange(len(seeds))
    current = seeds
    visited: list[Ints] = []
    low = np.uint64(0xFFFFFFFF)
    v1, v2 = np.uint64(MAGIC_V1 & 0xFFFFFFFF), np.uint64(MAGIC_V2 & 0xFFFFFFFF)
    while lanes.size:
        frame = frames[current]
        magic = frame & low
        size = (frame >> np.uint64(32)).astype(np.int64)
        following = current + size
        good = ((magic == v1) | (magic == v2)) & (size >= RECORD_BYTES_MIN) & (following <= end)
        if not good.all():
            finals[lanes[~good]] = current[~good]
            lanes, current, following, limits = lanes[good], current[good], following[good], limits[good]
        visited.append(current)
        going = following < np.minimum(limits, end - BLANK_BYTES + 1)
        if not going.all():
            finals[lanes[~going]] = following[~going]
            lanes, following, limits = lanes[going], following[going], limits[going]
        current = following
    return np.concatenate(visited), finals
