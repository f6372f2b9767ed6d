"""What is known of half messages: which are finished, which have a newer copy, which are being ended. Pure.

A half message that is asked about, or holds others up, is appended anew. All its copies name the queue offset of the
first in their properties, so they are one chain, known by that offset, and what becomes of one holds for all.

Memory: numbers of finished halves behind the position, `limit` finished ones before it, and `limit` chains with more
than one copy. The last two forget the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from stratamq.broker.half_messages import Half

PASS_MAX: Final = 20_000
"""Finished halves that are passed over in one go."""


class HalfTable:
    """The half messages of one queue. ``position``: everything before it is finished or has a copy behind it."""

    def __init__(self, position: int, *, limit: int) -> None:
        self.position = position
        self.limit = limit
        self._finished: set[int] = set()
        self._passed: OrderedDict[int, None] = OrderedDict()
        self._newest: OrderedDict[int, int] = OrderedDict()
        self._ending: set[int] = set()

    @property
    def finished_count(self) -> int:
        """Finished halves behind the position."""
        return len(self._finished)

    def newest(self, half: Half) -> int:
        """Where a half message lies now."""
        return max(half.offset, self._newest.get(half.first, -1))

    def is_finished(self, half: Half) -> bool:
        """Whether a half message, or a copy of it, is committed or rolled back."""
        return any(map(self._is_finished_at, {half.offset, half.first, self.newest(half)}))

    def _is_finished_at(self, offset: int) -> bool:
        return offset in self._finished or offset in self._passed

    def finish(self, half: Half) -> int:
        """A half message is finished; returns the offset that a mark has to name."""
        newest = self.newest(half)
        self._newest.pop(half.first, None)
        self.finish_at(half.first)
        self.finish_at(newest)
        return newest

    def finish_at(self, offset: int) -> None:
        """A mark names this half message."""
        if offset >= self.position:
            self._finished.add(offset)
        else:
            self._pass(offset)

    def copied(self, half: Half, offset: int) -> None:
        """A half message has been appended anew."""
        self._newest[half.first] = offset
        self._newest.move_to_end(half.first)
        if len(self._newest) > self.limit:
            self._newest.popitem(last=False)

    def learn(self, half: Half) -> bool:
        """Take note of a half message that was read back, in the order of the queue; all marks are known.

        Returns:
            Whether it is one more that is open: neither finished nor the copy of one that was counted.
        """
        if half.first == half.offset:
            return not self.is_finished(half)
        is_counted = half.first >= self.position or half.first in self._newest
        if self.is_finished(half):
            self.finish_at(half.first)
            return False
        self.copied(half, half.offset)
        return not is_counted

    def advance(self, offset: int) -> None:
        """Everything before this offset is dealt with."""
        if offset == self.position + 1:
            passed = [self.position] if self.position in self._finished else []
        else:
            passed = sorted(finished for finished in self._finished if finished < offset)
        self.position = offset
        for one in passed:
            self._finished.discard(one)
            self._pass(one)

    def pass_finished(self) -> bool:
        """Advance over finished halves, `PASS_MAX` at most; says whether the position moved."""
        before = self.position
        while self.position in self._finished and self.position < before + PASS_MAX:
            self.advance(self.position + 1)
        return self.position > before

    def _pass(self, offset: int) -> None:
        self._passed[offset] = None
        if len(self._passed) > self.limit:
            self._passed.popitem(last=False)

    # --- what is being ended ---

    def begin_end(self, half: Half) -> bool:
        """A commit or rollback begins; False while another of the same half message is under way."""
        if half.first in self._ending:
            return False
        self._ending.add(half.first)
        return True

    def is_ending(self, half: Half) -> bool:
        """Whether a commit or rollback is under way."""
        return half.first in self._ending

    def end(self, half: Half) -> None:
        """The commit or rollback took place, or failed."""
        self._ending.discard(half.first)
