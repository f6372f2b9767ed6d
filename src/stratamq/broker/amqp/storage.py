"""What queues need of a store, as protocols, and the store in memory that transient queues and tests use.

A store keeps the messages of many queues, each queue in the order of sequence numbers that the store gives out. The
queue decides which messages are delivered; the store only hears of publishing and of what is gone for good.

Order of a turn: `publish` and `ack` any number of times, then `commit`, which makes one batch of them and returns its
number. When `synced` has reached that number the batch survives a crash; not before are confirms sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from stratamq.broker.amqp.messages import Message


class Stored(NamedTuple):
    """A message as it comes back from a store."""

    seq: int
    message: Message
    redelivered: bool
    deliveries: int = 0
    """How often it came back."""


class QueueStorage(Protocol):
    """One queue's messages."""

    @property
    def notes_takes(self) -> bool:
        """Whether `take` is to be called for each delivery, and `note_deliveries` for everything that comes back."""
        ...

    @property
    def count(self) -> int:
        """Messages held, delivered ones too until they are acknowledged."""
        ...

    def fetch(self, after: int, count: int) -> list[Stored]:
        """At most ``count`` messages with sequence numbers above ``after``, in order."""
        ...

    def body_bytes(self) -> int:
        """Bytes of the bodies of all messages held. Cost: reads every one of them."""
        ...

    def ack(self, seqs: Iterable[int]) -> None:
        """These messages are gone: consumed, dropped, expired or purged."""
        ...

    def take(self, seq: int) -> None:
        """A message goes to a consumer that will settle it."""
        ...

    def note_deliveries(self, seq: int, count: int) -> None:
        """A message came back for the ``count``-th time."""
        ...

    def delete(self) -> None:
        """The queue is gone with everything in it."""
        ...


class Storage(Protocol):
    """A store of many queues."""

    on_synced: Callable[[int], None]
    """Called on the loop when more batches are safe, with the number of the last one."""

    def open_queue(self, name: str) -> QueueStorage:
        """The queue of that name with what it holds; a new one when there is none."""
        ...

    def publish(
        self, message: Message, persistent: bool, queues: Sequence[QueueStorage], forced: bool = False
    ) -> Sequence[int]:
        """Keep a message for some queues; its sequence number in each.

        A full disk refuses it (StoreFull), unless ``forced`` says that it stands for one that goes in the same batch.
        """
        ...

    def commit(self) -> int:
        """Make a batch of everything since the last one. Its number; 0 when there is nothing to wait for."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether more waits for the disk than should; publishers are to be held back."""
        ...


class MemoryQueueStorage:
    """One queue in memory."""

    __slots__ = ("_messages", "_next")
    notes_takes = False

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._next = 1

    @property
    def count(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> int:
        """Keep a message; its sequence number."""
        seq = self._next
        self._next = seq + 1
        self._messages[seq] = message
        return seq

    def fetch(self, after: int, count: int) -> list[Stored]:
        found = []
        messages = self._messages
        for seq in range(after + 1, self._next):
            message = messages.get(seq)
            if message is not None:
                found.append(Stored(seq, message, False))
                if len(found) == count:
                    break
        return found

    def body_bytes(self) -> int:
        return sum(len(message.body) for message in self._messages.values())

    def ack(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._messages.pop(seq, None)

    def take(self, seq: int) -> None:
        pass

    def note_deliveries(self, seq: int, count: int) -> None:
        pass

    def delete(self) -> None:
        self._messages.clear()


class MemoryStorage:
    """A store that forgets everything when the process ends. Nothing needs a sync."""

    is_congested = False

    def __init__(self) -> None:
        self.on_synced: Callable[[int], None] = lambda number: None

    def open_queue(self, name: str) -> MemoryQueueStorage:
        return MemoryQueueStorage()

    def publish(
        self, message: Message, persistent: bool, queues: Sequence[QueueStorage], forced: bool = False
    ) -> Sequence[int]:
        return [queue.add(message) for queue in queues if isinstance(queue, MemoryQueueStorage)]

    def commit(self) -> int:
        return 0
