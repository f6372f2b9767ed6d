"""Ordered pops: a queue whose messages were given out is closed to its group until they are acknowledged or time is up.

No check-points here: the group's committed offset stays before the first message that is not acknowledged, so what was
given out is given out again after a restart or when the time is over. The blocks are kept in
``config/consumerOrderInfo.json`` so that a restart does not open a queue early.

Source: apache/rocketmq broker/.../ConsumerOrderInfoManager.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Place = tuple[str, str, int]
"""Group, topic, queue id."""
_SEPARATOR: Final = "@"


@dataclass(slots=True)
class _Block:
    pop_ms: int
    invisible_ms: int
    offsets: list[int]
    next_offset: int
    attempt: str = ""
    acked: set[int] = field(default_factory=set)
    visible_ms: dict[int, int] = field(default_factory=dict)
    """Offsets whose invisible time was changed: until when."""
    times: dict[int, int] = field(default_factory=dict)
    """How often each offset was given out."""

    def first_left(self) -> int:
        """The offset to go on from: the first that is not acknowledged."""
        return next((offset for offset in self.offsets if offset not in self.acked), self.next_offset)

    def is_over(self, now_ms: int) -> bool:
        """Whether everything is acknowledged, or nobody holds any of the rest any longer."""
        left = [offset for offset in self.offsets if offset not in self.acked]
        end = self.pop_ms + self.invisible_ms
        return all(self.visible_ms.get(offset, end) <= now_ms for offset in left)


class PopOrder:
    """What groups hold of queues that they pop in order. ``is_dirty`` until what is stored is current."""

    def __init__(self, stored: Any = None) -> None:
        self._blocks: dict[Place, _Block] = {}
        self.is_dirty = False
        table = stored.get("table") if isinstance(stored, dict) else None
        for name, queues in (table or {}).items():
            topic, _, group = name.rpartition(_SEPARATOR)
            for queue_id, value in queues.items() if isinstance(queues, dict) else ():
                block = _read_block(value)
                if block is not None:
                    self._blocks[group, topic, int(queue_id)] = block

    def may_pop(self, place: Place, attempt: str, now_ms: int) -> bool:
        """Whether a queue is open to a group; the same attempt may ask again for what it may not have got."""
        block = self._blocks.get(place)
        return block is None or block.is_over(now_ms) or (bool(attempt) and block.attempt == attempt)

    def given(
        self, place: Place, offsets: Sequence[int], *, next_offset: int, pop_ms: int, invisible_ms: int, attempt: str
    ) -> dict[int, int]:
        """Messages are given out; returns how often each was before."""
        before = self._blocks.get(place)
        times = {offset: before.times.get(offset, 0) + 1 if before is not None else 0 for offset in offsets}
        if before is not None:
            times = {offset: count if offset in before.times else 0 for offset, count in times.items()}
        block = _Block(pop_ms, invisible_ms, list(offsets), next_offset, attempt, times=times)
        self._blocks[place] = block
        self.is_dirty = True
        return dict(times)

    def ack(self, place: Place, offset: int, pop_ms: int) -> int | None:
        """One was consumed; the group's new offset in the queue, None when the message is not held by that pop."""
        block = self._blocks.get(place)
        if block is None or block.pop_ms != pop_ms or offset not in block.offsets:
            return None
        block.acked.add(offset)
        self.is_dirty = True
        return block.first_left()

    def change(self, place: Place, offset: int, pop_ms: int, visible_ms: int) -> bool:
        """One is held until another time; False when it is not held by that pop."""
        block = self._blocks.get(place)
        if block is None or block.pop_ms != pop_ms or offset not in block.offsets or offset in block.acked:
            return False
        block.visible_ms[offset] = visible_ms
        self.is_dirty = True
        return True

    def forget_group(self, group: str) -> None:
        """A group is deleted."""
        for place in [place for place in self._blocks if place[0] == group]:
            del self._blocks[place]
            self.is_dirty = True

    def as_json(self) -> dict[str, Any]:
        """What ``consumerOrderInfo.json`` holds; finished blocks are left out."""
        table: dict[str, dict[str, Any]] = {}
        for (group, topic, queue_id), block in self._blocks.items():
            if len(block.acked) == len(block.offsets):
                continue
            bits = sum(1 << number for number, offset in enumerate(block.offsets) if offset in block.acked)
            first = block.offsets[0]
            table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[str(queue_id)] = {
                "popTime": block.pop_ms,
                "i": block.invisible_ms,
                "o": [first, *(offset - first for offset in block.offsets[1:])],
                "ot": {str(offset): until for offset, until in block.visible_ms.items()},
                "oc": {str(offset): count for offset, count in block.times.items()},
                "l": block.pop_ms,
                "cm": bits,
                "a": block.attempt,
            }
        return {"table": table}


def _read_block(value: Any) -> _Block | None:
    try:
        first, *diffs = [int(offset) for offset in value["o"]]
        offsets = [first, *(first + diff for diff in diffs)]
        bits = int(value.get("cm", 0))
        return _Block(
            int(value["popTime"]),
            int(value["i"]),
            offsets,
            offsets[-1] + 1,
            str(value.get("a") or ""),
            {offset for number, offset in enumerate(offsets) if bits >> number & 1},
            {int(offset): int(until) for offset, until in (value.get("ot") or {}).items()},
            {int(offset): int(count) for offset, count in (value.get("oc") or {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
