"""Consumers of a queue: who gets the next message.

Higher priority first; inside one priority in turn, leaving out whoever has no credit. With a single active consumer
only the one in office gets anything, and the next in order of registration follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from stratamq.protocols.amqp.values import Table, encode_shortstr

if TYPE_CHECKING:
    from stratamq.broker.amqp.levels import Entry
    from stratamq.broker.amqp.queue import Queue


class Receiver(Protocol):
    """The channel of a consumer."""

    @property
    def can_receive(self) -> bool:
        """Whether the channel's own window and its connection take another message."""
        ...

    def deliver(self, consumer: Consumer, entry: Entry) -> None:
        """Send a message to one of the channel's consumers."""
        ...

    def cancelled_by_server(self, consumer: Consumer) -> None:
        """The queue of a consumer is gone."""
        ...


class Consumer:
    """One subscription of a channel to a queue."""

    __slots__ = (
        "arguments",
        "channel",
        "exclusive",
        "no_ack",
        "prefetch",
        "prefix",
        "priority",
        "queue",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        tag: str,
        channel: Receiver,
        queue: Queue,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        arguments: Table,
    ) -> None:
        self.tag = tag
        self.channel = channel
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.arguments = arguments
        priority: Any = arguments.get("x-priority", 0)
        self.priority = priority if isinstance(priority, int) and not isinstance(priority, bool) else 0
        self.unacked = 0
        self.prefix = b"\x00\x3c\x00\x3c" + encode_shortstr(tag)
        """The front of every delivery to this consumer."""

    @property
    def has_credit(self) -> bool:
        """Whether another message may be sent to it now."""
        if self.no_ack:
            return self.channel.can_receive
        return (not self.prefetch or self.unacked < self.prefetch) and self.channel.can_receive


class Consumers:
    """The consumers of one queue."""

    __slots__ = ("_all", "_rings", "single_active")

    def __init__(self) -> None:
        self._all: list[Consumer] = []
        self._rings: list[deque[Consumer]] = []
        self.single_active = False

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._all))

    @property
    def active(self) -> Consumer | None:
        """The one in office, where there can be only one."""
        return self._all[0] if self._all else None

    def add(self, consumer: Consumer) -> None:
        """A new consumer, last in its turn."""
        self._all.append(consumer)
        self._arrange()

    def remove(self, consumer: Consumer) -> bool:
        """Forget a consumer; False when it was not there."""
        if consumer not in self._all:
            return False
        self._all.remove(consumer)
        for ring in self._rings:
            if consumer in ring:
                ring.remove(consumer)
        self._rings = [ring for ring in self._rings if ring]
        return True

    def _arrange(self) -> None:
        newest = self._all[-1]
        for ring in self._rings:
            if ring[0].priority == newest.priority:
                ring.append(newest)
                return
        self._rings.append(deque((newest,)))
        self._rings.sort(key=lambda ring: -ring[0].priority)

    def next(self) -> Consumer | None:
        """Who gets the next message; None when nobody can take one."""
        if self.single_active:
            first = self.active
            return first if first is not None and first.has_credit else None
        for ring in self._rings:
            if len(ring) == 1:
                if ring[0].has_credit:
                    return ring[0]
                continue
            for _ in range(len(ring)):
                consumer = ring[0]
                ring.rotate(-1)
                if consumer.has_credit:
                    return consumer
        return None
