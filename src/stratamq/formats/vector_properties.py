"""Property strings by the thousand: names and values of many records as positions in one buffer.

Input is the property strings of many rows one after the other in one uint8 array, and where each begins (``offsets``,
one more than rows). Output is the same answer that `formats.properties.decode_properties` gives for each row, as
positions: which bytes are a name, which are its value, to which row they belong. Both separators are single ASCII
bytes, which no UTF-8 sequence contains, so bytes need not be decoded first; text that is no UTF-8 is replaced before
(`clean_utf8`).

Source of the rules: formats/properties.py. Cost: about 60 ns a property.
"""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.formats.vector import Bytes, Ints, Mask

_NAME_VALUE: Final = 1
_PROPERTY: Final = 2
_MASKS: Final = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [2**64 - 1], dtype=np.uint64)
_PAIRWISE_MAX: Final = 24
"""Up to so many properties a row repeated names are looked for pair by pair, above by sorting."""


class Properties(NamedTuple):
    """The properties of many rows, in order, repeated names already resolved.

    ``data`` is the buffer that positions refer to: not always the one given to `split_properties`. Property ``i`` has
    its name at ``data[name_at[i]:value_at[i] - 1]``, its value at ``data[value_at[i]:value_end[i]]`` and belongs to row
    ``row[i]``; those of row ``r`` are ``row_starts[r]`` to ``row_starts[r + 1]``. Positions ascend. ``name_heads`` are
    the first eight bytes of the names as numbers.
    """

    data: Bytes
    name_at: Ints
    value_at: Ints
    value_end: Ints
    row: Ints
    row_starts: Ints
    name_heads: npt.NDArray[np.uint64]

    @property
    def row_count(self) -> int:
        """How many rows were given."""
        return len(self.row_starts) - 1

    def find(self, name: bytes) -> Ints:
        """For each row the number of the property called ``name``, -1 where it has none. Names up to 8 bytes."""
        if not 0 < len(name) <= 8:
            raise ValueError(f"only names of 1 to 8 bytes can be looked for, not {name!r}")
        wanted = np.uint64(int.from_bytes(name, "little"))
        hits = np.flatnonzero((self.name_heads == wanted) & (self.value_at - 1 - self.name_at == len(name)))
        found = np.full(self.row_count, -1, dtype=np.int64)
        found[self.row[hits]] = hits
        return found

    def rows_like(self, *heads: bytes) -> Ints:
        """The rows with a property whose name begins with one of ``heads``, 8 bytes each; ascending."""
        wanted = np.array([int.from_bytes(head, "little") for head in heads], dtype=np.uint64)
        return np.unique(self.row[np.isin(self.name_heads, wanted)])

    def text(self, row: int) -> str:
        """The properties of one row in their stored form."""
        start, end = int(self.row_starts[row]), int(self.row_starts[row + 1])
        if start == end:
            return ""
        raw = self.data[self.name_at[start] : self.value_end[end - 1]].tobytes()
        return raw.decode("utf-8", "replace") + "\x02"

    def value(self, number: int) -> bytes:
        """The value of one property."""
        return self.data[self.value_at[number] : self.value_end[number]].tobytes()


def split_properties(data: Bytes, offsets: Ints) -> Properties:
    """Find all properties of all rows. ``data`` must be valid UTF-8 within each row (`clean_utf8`)."""
    data, offsets = _with_last_separators(data, offsets)
    # Subtraction wraps around, so one comparison finds both separators.
    separators = np.flatnonzero((data - np.uint8(1)) < 2)
    is_end = data[separators] == _PROPERTY
    ends = separators[is_end]
    starts = np.empty_like(ends)
    if ends.size:
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
    if 2 * ends.size == separators.size and bool(is_end[1::2].all()):
        cuts = separators[0::2]  # the usual case: exactly one 0x01 in each segment
    else:
        cuts = _first_cuts(separators[~is_end], starts, ends)
    row_starts = np.searchsorted(ends, offsets)
    kept = (cuts > starts) & (cuts < ends - 1)
    if not kept.all():
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept)))
        row_starts = before[row_starts]
        starts, cuts, ends = starts[kept], cuts[kept], ends[kept]
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(row_starts))
    found = Properties(data, starts, cuts + 1, ends, row, row_starts, _heads_of(data, starts, cuts - starts))
    return _last_wins(found)


def _with_last_separators(data: Bytes, offsets: Ints) -> tuple[Bytes, Ints]:
    """Make every row that is not empty end with a property separator, which writers may leave out."""
    row_ends = offsets[1:][np.diff(offsets) > 0]
    lacking = row_ends[data[row_ends - 1] != _PROPERTY]
    if not lacking.size:
        return data, offsets
    longer = np.insert(data, lacking, _PROPERTY)
    return longer, offsets + np.searchsorted(lacking, offsets, side="right")


def _first_cuts(cuts: Ints, starts: Ints, ends: Ints) -> Ints:
    """The first name-value separator at or behind each segment's start; the segment's end where it has none."""
    if not cuts.size:
        return ends
    at = np.searchsorted(cuts, starts)
    first = cuts[np.minimum(at, cuts.size - 1)]
    return np.where((at < cuts.size) & (first < ends), first, ends)


def _heads_of(data: Bytes, starts: Ints, lengths: Ints) -> npt.NDArray[np.uint64]:
    """The first up to 8 bytes of each name as a little-endian number, shorter names filled with zeros."""
    if len(data) < 8:
        data = np.concatenate((data, np.zeros(8, np.uint8)))
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    heads = words[np.minimum(starts, len(words) - 1)]
    if starts.size and starts[-1] >= len(words):
        # The last few names have fewer than 8 bytes behind them: take the last word and shift.
        late = starts >= len(words)
        heads[late] >>= (8 * (starts[late] - (len(words) - 1))).astype(np.uint64)
    heads &= _MASKS[np.minimum(lengths, 8)]
    return heads


def _last_wins(found: Properties) -> Properties:
    """Of a name that a row has several times keep the last."""
    dropped: list[int] = []
    for row in _rows_with_like_names(found).tolist():
        last: dict[bytes, int] = {}
        for number in range(int(found.row_starts[row]), int(found.row_starts[row + 1])):
            name = found.data[found.name_at[number] : found.value_at[number] - 1].tobytes()
            if name in last:
                dropped.append(last[name])
            last[name] = number
    if not dropped:
        return found
    keep = np.ones(len(found.row), dtype=np.bool_)
    keep[dropped] = False
    before: Ints = np.concatenate((np.zeros(1, np.int64), np.cumsum(keep)))
    return Properties(
        data=found.data,
        name_at=found.name_at[keep],
        value_at=found.value_at[keep],
        value_end=found.value_end[keep],
        row=found.row[keep],
        row_starts=before[found.row_starts],
        name_heads=found.name_heads[keep],
    )


def _rows_with_like_names(found: Properties) -> Ints:
    """Rows in which two names could be the same: equal in length, first eight and last eight bytes."""
    none: Ints = np.zeros(0, dtype=np.int64)
    if not _like_rows(found, found.name_heads).size:
        return none
    lengths = found.value_at - 1 - found.name_at
    tails = _heads_of(found.data, np.maximum(found.name_at, found.value_at - 9), lengths)
    signs = found.name_heads ^ (tails * np.uint64(0x9E3779B97F4A7C15)) ^ (lengths.astype(np.uint64) << np.uint64(56))
    return _like_rows(found, signs)


def _like_rows(found: Properties, signs: npt.NDArray[np.uint64]) -> Ints:
    """Rows in which a number occurs twice."""
    counts = np.diff(found.row_starts)
    most = int(counts.max()) if counts.size else 0
    rows: list[Ints] = [np.zeros(0, dtype=np.int64)]
    if most <= _PAIRWISE_MAX:
        for apart in range(1, most):
            like = signs[apart:] == signs[:-apart]
            if like.any():
                like &= found.row[apart:] == found.row[:-apart]
                rows.append(found.row[apart:][like])
    else:
        order = np.lexsort((signs, found.row))
        ordered_rows, ordered_signs = found.row[order], signs[order]
        like = (ordered_signs[1:] == ordered_signs[:-1]) & (ordered_rows[1:] == ordered_rows[:-1])
        rows.append(ordered_rows[1:][like])
    return np.unique(np.concatenate(rows))


def clean_utf8(data: Bytes, offsets: Ints) -> tuple[Bytes, Ints]:
    """Replace what is no UTF-8 within a row by U+FFFD, as decoding a row with "replace" does.

    Costs next to nothing for ASCII, one decode of the whole for other valid text, and a loop over rows otherwise.
    """
    whole = data.tobytes()
    if whole.isascii():
        return data, offsets
    starts = offsets[:-1][np.diff(offsets) > 0]
    try:
        whole.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        # Valid as a whole and no row begins inside a character: then each row is valid.
        if not bool(_is_continuation(data[starts]).any()):
            return data, offsets
    bounds = itertools.pairwise(offsets.tolist())
    rows = [whole[start:end].decode("utf-8", "replace").encode("utf-8") for start, end in bounds]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return np.frombuffer(b"".join(rows), dtype=np.uint8), np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _is_continuation(values: npt.NDArray[Any]) -> Mask:
    """Which bytes can only stand inside a UTF-8 character."""
    result: Mask = (values & 0xC0) == 0x80
    return result
