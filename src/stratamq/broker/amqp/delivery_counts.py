"""How often messages of durable quorum queues came back, kept beside the store so that a limit holds over a restart.

Only messages that came back have a count here; an acknowledgement forgets it. What changes in a turn is handed to
``save`` at its end, as ``[store, number, count]``: a count of 0 forgets the message, number -1 the whole queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

Change = list[str | int]
QUEUE_GONE: Final = -1


class DeliveryCounts:
    """The counts of one broker, by the name of a queue's store and the number of the message in it."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, int]] = {}
        self.changes: list[Change] = []
        self.save: Callable[[list[Change]], None] = lambda changes: None

    def note(self, store: str, seq: int, count: int) -> None:
        """A message came back for the ``count``-th time."""
        self.of.setdefault(store, {})[seq] = count
        self.changes.append([store, seq, count])

    def forget(self, store: str, seqs: Iterable[int]) -> None:
        """Messages are gone."""
        counts = self.of.get(store)
        if not counts:
            return
        for seq in seqs:
            if counts.pop(seq, 0):
                self.changes.append([store, seq, 0])
        if not counts:
            del self.of[store]

    def drop(self, store: str) -> None:
        """A queue is gone."""
        if self.of.pop(store, None):
            self.changes.append([store, QUEUE_GONE, 0])

    def end_turn(self) -> None:
        """Hand over what has changed."""
        if self.changes:
            changes, self.changes = self.changes, []
            self.save(changes)

    def apply(self, changes: Iterable[object]) -> None:
        """Take what was saved before. Raises ValueError for what is no change; what came before it is taken."""
        for change in changes:
            match change:
                case [str(store), -1, 0]:
                    self.of.pop(store, None)
                case [str(store), int(seq), 0]:
                    self.of.get(store, {}).pop(seq, None)
                case [str(store), int(seq), int(count)] if seq >= 0 and count > 0:
                    self.of.setdefault(store, {})[seq] = count
                case _:
                    raise ValueError(f"{str(change)[:80]} is no change of a delivery count")

    def all(self) -> list[Change]:
        """Everything, as changes of nothing."""
        return [[store, seq, count] for store, counts in self.of.items() for seq, count in counts.items()]
