"""One queue: ready messages, consumers, limits, expiry. It never touches a socket or a clock.

Who calls: the broker pushes messages and lets dirty queues `dispatch` at the end of a turn; channels take, settle and
give back. What happens to messages that die is the broker's (`Host.dead_letter`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from stratamq.broker.amqp.arguments import queue_type
from stratamq.broker.amqp.consumers import Consumer, Consumers
from stratamq.broker.amqp.dead_letters import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED
from stratamq.broker.amqp.levels import Entry, Level, expiry
from stratamq.broker.amqp.messages import Message
from stratamq.broker.amqp.storage import QueueStorage
from stratamq.broker.amqp.traffic import Traffic
from stratamq.protocols.amqp.values import Table

DELIVERY_LIMIT_DEFAULT: Final = 20
"""Of quorum queues, as in RabbitMQ 4."""
CONSUMER_TIMEOUT_MS: Final = 1_800_000
"""How long a delivery may stay unsettled before its channel is closed, where the queue does not say otherwise."""
CONGESTED_PAUSE_MS: Final = 100
"""How long expired messages wait for another look while the disk cannot follow."""


class Host(Protocol):
    """What a queue asks of the broker around it."""

    now_ms: int
    """Wall time of this turn."""

    @property
    def is_congested(self) -> bool:
        """Whether more waits for the disk than should: no dead letters are made meanwhile."""
        ...

    def mark_dirty(self, queue: Queue) -> None:
        """Let the queue dispatch at the end of the turn."""
        ...

    def wake_at(self, queue: Queue, deadline_ms: int) -> None:
        """Call the queue's `on_time` then."""
        ...

    def dead_letter(self, queue: Queue, entry: Entry, reason: str) -> None:
        """Publish a dead message to the queue's dead-letter exchange, and drop it here."""
        ...

    def queue_expired(self, queue: Queue) -> None:
        """Nobody used the queue for so long: delete it."""
        ...


class Queue:
    """One queue of a virtual host."""

    is_stream = False
    """Whether it is a topic of the log store (`streams.StreamQueue`)."""

    def __init__(
        self,
        host: Host,
        name: str,
        vhost: str,
        stores: Sequence[QueueStorage],
        *,
        durable: bool = False,
        auto_delete: bool = False,
        owner: object | None = None,
        arguments: Table | None = None,
    ) -> None:
        """``stores`` holds one store per priority, lowest first."""
        self.host = host
        self.name = name
        self.vhost = vhost
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        """The connection that may use it, for an exclusive queue."""
        self.arguments = arguments or {}
        self.type = queue_type(self.arguments)
        self.levels = [Level(store) for store in stores]
        self.ready = sum(len(level) for level in self.levels)
        self.ready_bytes = 0
        """Bytes of the bodies; without the messages of before a restart until `_count_recovered` has added them."""
        self._has_recovered = self.ready > 0
        self._notes_takes = any(store.notes_takes for store in stores)
        self.unacked = 0
        self.traffic = Traffic()
        self.consumers = Consumers()
        self.consumers.single_active = self.arguments.get("x-single-active-consumer") is True
        self.exclusive_consumer: Consumer | None = None
        self.is_dirty = self.is_deleted = False
        self.last_used_ms = host.now_ms
        self._wake_ms = 0
        self.policy: dict[str, Any] = {}
        self.apply_policy({})

    # --- settings ---

    def apply_policy(self, definition: dict[str, Any]) -> None:
        """Take what a policy says: arguments of the declaration win, of numeric limits the smaller."""
        self.policy = definition
        self.ttl_ms = self._limit("message-ttl")
        self.expires_ms = self._limit("expires")
        self.max_length = self._limit("max-length")
        self.max_bytes = self._limit("max-length-bytes")
        self.overflow = str(self._setting("overflow", "drop-head"))
        exchange = self._setting("dead-letter-exchange", None)
        self.dead_letter_exchange: str | None = None if exchange is None else str(exchange)
        key = self._setting("dead-letter-routing-key", None)
        self.dead_letter_key: str | None = None if key is None else str(key)
        limit = self._limit("delivery-limit")
        if limit is None and self.type == "quorum":
            limit = DELIVERY_LIMIT_DEFAULT
        self.delivery_limit = None if limit is None or limit < 0 or self.type != "quorum" else limit
        timeout = self._limit("consumer-timeout")
        self.consumer_timeout_ms = CONSUMER_TIMEOUT_MS if timeout is None else timeout
        self.is_limited = self.max_length is not None or self.max_bytes is not None
        if self.max_bytes is not None and self._has_recovered and not self.unacked:
            self._count_recovered()
        self.schedule()

    def _count_recovered(self) -> None:
        """Weigh what was there before a restart. Only where a limit in bytes asks for it, as every body is read."""
        self._has_recovered = False
        self.ready_bytes = sum(level.store.body_bytes() for level in self.levels)

    def _setting(self, name: str, default: Any) -> Any:
        own = self.arguments.get(f"x-{name}")
        return own if own is not None else self.policy.get(name, default)

    def _limit(self, name: str) -> int | None:
        found = [
            int(value)
            for value in (self.arguments.get(f"x-{name}"), self.policy.get(name))
            if isinstance(value, int) and not isinstance(value, bool)
        ]
        return min(found, default=None)

    # --- publishing ---

    def level_of(self, message: Message) -> Level:
        """Where a message of that priority goes."""
        priority = message.facts.priority
        return self.levels[min(priority, len(self.levels) - 1)]

    def refuses(self, body_bytes: int) -> bool:
        """Whether a publish is to be rejected because the queue is full."""
        if not self.is_limited or self.overflow == "drop-head" or not self._would_overflow(body_bytes):
            return False
        self.dispatch()
        return self._would_overflow(body_bytes)

    def _would_overflow(self, body_bytes: int) -> bool:
        if self.max_length is not None and self.ready >= self.max_length:
            return True
        return self.max_bytes is not None and self.ready_bytes + body_bytes > self.max_bytes

    def push(self, level: Level, seq: int, message: Message) -> None:
        """A message that the store has taken as ``seq``."""
        expires_ms = None
        if self.ttl_ms is not None or message.ttl_ms is not None:
            expires_ms = expiry(message, self.host.now_ms, self.ttl_ms)
        level.append(seq, message, expires_ms)
        self.traffic.publish += 1
        self.ready += 1
        self.ready_bytes += len(message.body)
        if not self.is_dirty:
            self.host.mark_dirty(self)
        if self.is_limited and self._is_over():
            self.enforce_length()

    def _is_over(self) -> bool:
        if self.max_length is not None and self.ready > self.max_length:
            return True
        return self.max_bytes is not None and self.ready_bytes > self.max_bytes

    def enforce_length(self) -> None:
        """Drop from the head until the limits hold again."""
        self.dispatch()
        while self.ready and self._is_over():
            level = next(level for level in self.levels if len(level))
            entry = self._pop(level)
            if entry is None:
                break
            self.host.dead_letter(self, entry, MAXLEN)

    # --- taking ---

    def _first_level(self) -> Level | None:
        for level in reversed(self.levels):
            if len(level):
                return level
        return None

    def _pop(self, level: Level) -> Entry | None:
        if level.peek(self.ttl_ms) is None:
            return None
        entry = level.pop()
        self.ready -= 1
        self.ready_bytes -= len(entry.message.body)
        return entry

    def head(self) -> Entry | None:
        """The message that is next in line."""
        while self.ready:
            level = self._first_level()
            if level is None:
                break
            entry = level.peek(self.ttl_ms)
            if entry is not None:
                return entry
        self.ready = sum(len(level) for level in self.levels)
        return None

    def drop_expired(self, *, strictly: bool = False) -> None:
        """Let messages at the head die whose time is over; ``strictly`` keeps those that end in this very turn."""
        now = self.host.now_ms - 1 if strictly else self.host.now_ms
        while True:
            entry = self.head()
            if entry is None or entry.expires_ms is None or entry.expires_ms > now:
                return
            if self.dead_letter_exchange is not None and self.host.is_congested:
                return
            self._pop(entry.level)
            self.host.dead_letter(self, entry, EXPIRED)

    def take(self) -> Entry | None:
        """Take the next message for a delivery; None when there is none."""
        entry = self.head()
        if entry is not None and entry.expires_ms is not None:
            self.drop_expired(strictly=True)
            entry = self.head()
        if entry is None:
            return None
        return self._pop(entry.level)

    def dispatch(self) -> None:
        """Deliver to consumers as long as there is something and somebody can take it."""
        following = self.consumers.next
        while self.ready:
            consumer = following()
            if consumer is None:
                return
            entry = self.take()
            if entry is None:
                return
            if consumer.no_ack:
                consumer.channel.deliver(consumer, entry)
                entry.level.store.ack((entry.seq,))
            else:
                self.lend(entry)
                consumer.unacked += 1
                consumer.channel.deliver(consumer, entry)

    def lend(self, entry: Entry) -> None:
        """A message that was taken goes to somebody who will settle it."""
        self.unacked += 1
        if self._notes_takes:
            entry.level.store.take(entry.seq)

    def settle_turn(self) -> None:
        """The end of a turn: deliver, then let die what nobody took in time."""
        self.is_dirty = False
        if self.is_deleted:
            return
        if len(self.consumers):
            self.dispatch()
        if self.ready:
            self.schedule()

    # --- settling ---

    def ack(self, entries: Iterable[Entry]) -> None:
        """These were consumed."""
        for entry in entries:
            self.unacked -= 1
            entry.level.store.ack((entry.seq,))

    def reject(self, entry: Entry, reason: str = REJECTED) -> None:
        """This one is not wanted; it goes to the dead-letter exchange, where there is one."""
        self.unacked -= 1
        self.host.dead_letter(self, entry, reason)

    def give_back(self, entries: Iterable[Entry], *, counts: bool = True) -> None:
        """Delivered messages return to their places; ``counts`` says whether that is an attempt that failed."""
        if self.is_deleted:
            return
        for entry in entries:
            entry.redelivered = True
            if counts:
                entry.deliveries += 1
                if self.delivery_limit is not None and entry.deliveries > self.delivery_limit:
                    self.reject(entry, DELIVERY_LIMIT)
                    continue
            self.unacked -= 1
            if self._notes_takes or (counts and self.durable and self.type == "quorum"):
                entry.level.store.note_deliveries(entry.seq, entry.deliveries)
            entry.level.give_back(entry)
            self.ready += 1
            self.ready_bytes += len(entry.message.body)
        self.host.mark_dirty(self)
        if self.is_limited and self.overflow == "drop-head" and self._is_over():
            self.enforce_length()

    def purge(self) -> int:
        """Drop all ready messages; how many there were."""
        count = self.ready
        for level in self.levels:
            level.store.ack(list(level.drain()))
        self.ready = self.ready_bytes = 0
        self._has_recovered = False
        return count

    def close(self) -> None:
        """The queue is deleted: give its stores up."""
        for level in self.levels:
            level.store.delete()

    # --- time ---

    def touch(self) -> None:
        """Somebody uses the queue, so it does not expire yet."""
        self.last_used_ms = self.host.now_ms
        self.schedule()

    def on_time(self) -> None:
        """A deadline has come: messages at the head, or the queue itself."""
        self._wake_ms = 0
        if self.is_deleted:
            return
        is_unused = self.expires_ms is not None and not len(self.consumers)
        if is_unused and self.host.now_ms >= self.last_used_ms + (self.expires_ms or 0):
            self.host.queue_expired(self)
            return
        self.drop_expired()
        self.schedule()

    def schedule(self) -> None:
        """Ask to be woken when the next thing ends, unless that has been asked for."""
        deadline = None
        if self.ready:
            entry = self.head()
            deadline = None if entry is None else entry.expires_ms
            if deadline is not None and deadline <= self.host.now_ms and self.host.is_congested:
                deadline = self.host.now_ms + CONGESTED_PAUSE_MS
        if self.expires_ms is not None and not len(self.consumers):
            end = self.last_used_ms + self.expires_ms
            deadline = end if deadline is None else min(deadline, end)
        if deadline is not None and (not self._wake_ms or deadline < self._wake_ms):
            self._wake_ms = deadline
            self.host.wake_at(self, deadline)
