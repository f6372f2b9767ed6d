"""Hashes of topics, tags and keys by the thousand: what consume queues and index files must say of records.

The rules are those of `formats.java`; tests hold both against each other. What is no ASCII, or very long, is hashed one
by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from stratamq.formats import java
from stratamq.formats.vector import Bytes, Ints, window
from stratamq.formats.vector_properties import Properties

_LOOP_BYTES_MIN: Final = 512
"""From this length on a string is hashed alone: the vectorised loop runs as often as the longest string is long."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_SPACE: Final = 32


def java_hashes(data: Bytes, starts: Ints, lengths: Ints) -> npt.NDArray[np.uint32]:
    """Java's string hash, unsigned, of UTF-8 strings within ``data``. About 2 ns a byte and 20 ns a string."""
    hashes = np.zeros(len(starts), dtype=np.uint32)
    if not len(starts):
        return hashes
    order = np.argsort(-lengths, kind="stable")
    begins, sizes = starts[order], lengths[order]
    folded = np.zeros(len(starts), dtype=np.uint32)
    seen = np.zeros(len(starts), dtype=np.uint8)
    longest = min(int(sizes[0]), _LOOP_BYTES_MIN)
    # Longest first, so those that still have a byte number n are always the first few.
    counts = np.searchsorted(-sizes, -np.arange(longest), side="left")
    for at, count in enumerate(counts.tolist()):
        units = data[begins[:count] + at]
        seen[:count] |= units
        folded[:count] *= np.uint32(31)
        folded[:count] += units
    hashes[order] = folded
    for number in order[(seen >= 0x80) | (sizes > _LOOP_BYTES_MIN)].tolist():
        text = data[starts[number] : starts[number] + lengths[number]].tobytes().decode("utf-8", "replace")
        hashes[number] = java.hash_units(java.utf16_units(text))
    return hashes


def fingerprints(log: Bytes, starts: Ints, lengths: Ints) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each byte range, equal for equal bytes; different ones agree by chance only.

    Cost: about 10 ns for each 8 bytes. For telling topics apart, of which there are few.
    """
    marks = lengths.astype(np.uint64) * _MIX
    if not len(starts):
        return marks
    words = window(log, "<u8")
    last = len(words) - 1
    for at in range(0, int(lengths.max()), 8):
        left = np.clip(lengths - at, 0, 8)
        begins = starts + at
        clipped = np.clip(begins, 0, last)
        shift = np.minimum(begins - clipped, 7).astype(np.uint64) * np.uint64(8)
        word = words[clipped] >> shift
        unused = (np.uint64(8) - left.astype(np.uint64)) * np.uint64(8)
        # Shifting by 64 bits is undefined, so what is wholly unused is set to 0 apart.
        word = np.where(left > 0, (word << (unused % np.uint64(64))), np.uint64(0))
        marks = (marks ^ word) * _MIX
        marks ^= marks >> np.uint64(29)
    return marks


def index_keys(found: Properties, prefix_hashes: npt.NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """The index entries that rows should have: row numbers, and key hashes as the index file stores them.

    ``prefix_hashes`` are the unsigned hashes of ``topic#`` of each row. A row's UNIQ_KEY and every piece of its KEYS
    between single spaces is a key; the order within a row is not kept.
    """
    unique = found.find(b"UNIQ_KEY")
    unique_rows = np.flatnonzero(unique >= 0)
    numbers = unique[unique_rows]
    rows, begins, ends = _key_pieces(found)
    rows = np.concatenate((unique_rows, rows))
    begins = np.concatenate((found.value_at[numbers], begins))
    lengths = np.concatenate((found.value_end[numbers], ends)) - begins
    return rows, _index_hashes(found.data, begins, lengths, prefix_hashes[rows])


def tag_index_keys(found: Properties, prefix_hashes: npt.NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """The entries by tag that RocketMQ makes from 5.4 on: row numbers and key hashes.

    ``prefix_hashes`` are the unsigned hashes of ``topic#T#`` of each row.
    """
    tags = found.find(b"TAGS")
    rows = np.flatnonzero(tags >= 0)
    begins = found.value_at[tags[rows]]
    lengths = found.value_end[tags[rows]] - begins
    return rows, _index_hashes(found.data, begins, lengths, prefix_hashes[rows])


def _index_hashes(data: Bytes, begins: Ints, lengths: Ints, prefixes: npt.NDArray[np.uint32]) -> Ints:
    """Hashes of prefix and string together, as the index file stores them: never negative."""
    hashes = java_hashes(data, begins, lengths) + prefixes * _powers(data, begins, lengths)
    absolute: Ints = np.abs(hashes.view(np.int32).astype(np.int64))
    absolute[absolute == 0x8000_0000] = 0
    return absolute


def _key_pieces(found: Properties) -> tuple[Ints, Ints, Ints]:
    """Row, begin and end of every non-empty piece of KEYS between spaces."""
    keys = found.find(b"KEYS")
    rows = np.flatnonzero(keys >= 0)
    numbers = keys[rows]
    starts, ends = found.value_at[numbers], found.value_end[numbers]
    if not rows.size:
        return rows, starts, ends
    spaces = np.flatnonzero(found.data == _SPACE)
    owner = np.searchsorted(starts, spaces, side="right") - 1
    inside = (owner >= 0) & (spaces < ends[np.maximum(owner, 0)])
    spaces = spaces[inside]
    # Values do not overlap and ascend, so sorting begins and ends apart pairs them up again.
    begins = np.sort(np.concatenate((starts, spaces + 1)))
    stops = np.sort(np.concatenate((spaces, ends)))
    kept = begins < stops
    begins, stops = begins[kept], stops[kept]
    return rows[np.searchsorted(starts, begins, side="right") - 1], begins, stops


def _powers(data: Bytes, begins: Ints, lengths: Ints) -> npt.NDArray[np.uint32]:
    """31 to the power of each string's length in UTF-16 units, modulo 2**32."""
    units = lengths.copy()
    if not data.tobytes().isascii():
        for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            text = data[begin : begin + length].tobytes()
            if not text.isascii():
                units[number] = len(java.utf16_units(text.decode("utf-8", "replace")))
    longest = int(units.max()) if len(units) else 0
    table = np.ones(longest + 1, dtype=np.uint32)
    if longest:
        np.multiply.accumulate(np.full(longest, 31, dtype=np.uint32), out=table[1:])
    powers: npt.NDArray[np.uint32] = table[units]
    return powers
