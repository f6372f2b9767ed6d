"""The AMQP broker: virtual hosts and users, and the turn that everything is batched by.

A turn is one round of the event loop. During it sessions publish, settle and declare; `end_turn` then lets dirty queues
deliver, makes one batch of all that was written, and hands out confirms: at once where nothing waits for the disk, else
when the store says that the batch is synced. Nothing here touches sockets, threads or clocks; the shell sets `now_ms`
and calls `end_turn`, `tick` and, through the store, `on_synced`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from stratamq.broker.amqp.access import Permission, Users
from stratamq.broker.amqp.dead_letters import dead_message, is_cycle
from stratamq.broker.amqp.definition_rows import Change
from stratamq.broker.amqp.levels import Entry
from stratamq.broker.amqp.messages import Message
from stratamq.broker.amqp.queue import Queue
from stratamq.broker.amqp.storage import MemoryStorage, QueueStorage, Storage
from stratamq.broker.amqp.streams import StreamLog, StreamQueue
from stratamq.broker.amqp.vhost import VirtualHost
from stratamq.errors import StoreFull
from stratamq.protocols.amqp.replies import CONNECTION_FORCED, INTERNAL_ERROR, PRECONDITION_FAILED, AmqpError
from stratamq.protocols.amqp.values import Table

if TYPE_CHECKING:
    from stratamq.broker.amqp.channel import Channel
    from stratamq.broker.amqp.connection import Session

_log = logging.getLogger(__name__)
REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_TO_PREFIX: Final = REPLY_TO + "."


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    unroutable_dropped: int = 0
    unroutable_returned: int = 0
    confirmed: int = 0
    connections_opened: int = 0
    channels_opened: int = 0


class _StreamTurn:
    """What one turn has published to streams and not heard of yet."""

    __slots__ = ("_release", "after", "failed", "left")

    def __init__(self, release: Callable[[], None]) -> None:
        self.left = 0
        self.failed = False
        self.after: list[Callable[[], None]] = []
        """What to do once everything is stored; nothing of it when something was not."""
        self._release = release

    def end_one(self) -> None:
        """The log has dealt with one message."""
        self.left -= 1
        if self.left:
            return
        after, self.after = self.after, []
        if not self.failed:
            for work in after:
                work()
        self._release()


CHANGES_MAX: Final = 10_000
"""Changes that are written down one by one; more than that in one turn are written as the whole."""


class AmqpBroker:
    """All state that AMQP clients share."""

    def __init__(self, storage: Storage | None = None, *, now_ms: int = 0, streams: StreamLog | None = None) -> None:
        self.now_ms = now_ms
        self.streams = streams
        self.has_streams = False
        """Whether a stream queue was ever opened: until then nobody looks for one."""
        self.publishing: tuple[list[int], int] | None = None
        """Where a confirming publisher wants to hear that a stream refused its message: its nacks, and its number."""
        self._stream_turn: _StreamTurn | None = None
        self._synced_batch = 0
        self.memory = MemoryStorage()
        self.storage: Storage = storage or self.memory
        self.storage.on_synced = self.on_synced
        self.users = Users()
        self.vhosts: dict[str, VirtualHost] = {}
        self.sessions: dict[Session, None] = {}
        self.counters = Counters()
        self.epoch = 0
        """Moves with every change that a remembered route or permission may depend on."""
        self.is_definitions_dirty = False
        """Whether something durable was declared or deleted that is not written down yet."""
        self.definition_changes: list[Change] = []
        """What that was, in order; not all of it when `must_rewrite_definitions`."""
        self.must_rewrite_definitions = False
        self.alarms: dict[str, None] = {}
        self.failure = ""
        """Why nothing is taken any more until a restart; empty while all is well."""
        self.reply_channels: dict[str, Channel] = {}
        """Who waits for direct replies, by token."""
        self.published_channels: list[Channel] = []
        """Channels with unsettled confirms from this turn."""
        self.unsent: list[Session] = []
        """Sessions with frames to write; the shell empties the list."""
        self._cancelled: list[tuple[Channel, str]] = []
        self._dirty: list[Queue] = []
        self._timers: list[tuple[int, int, Queue]] = []
        self._timer_number = 0
        self._waiting: deque[tuple[int, _StreamTurn | None, Callable[[], None]]] = deque()
        self._last_batch = 0
        self._after_commit: list[Callable[[], None]] = []
        self._dead: deque[tuple[Queue, Entry, str]] | None = None
        self.wake_shell: Callable[[], None] = lambda: None
        """Called when a turn has begun that the shell does not know of (a timer, a sync)."""

    # --- virtual hosts and users ---

    def add_vhost(self, name: str) -> VirtualHost:
        """The virtual host of that name, made when it is missing."""
        found = self.vhosts.get(name)
        if found is None:
            found = self.vhosts[name] = VirtualHost(name, self, self)
            self.changed(durable=True)
        return found

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with everything in it, and close the connections to it."""
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            return
        for session in [one for one in self.sessions if getattr(one, "vhost", None) is vhost]:
            session.close_for(AmqpError(CONNECTION_FORCED, f"vhost '{name}' is deleted", hard=True))
        for queue in list(vhost.queues.values()):
            vhost.delete_queue(queue)
        for user in self.users.all():
            permissions = {key: one for key, one in user.permissions.items() if key != name}
            topics = {key: one for key, one in user.topic_permissions.items() if key[0] != name}
            self.users.put(replace(user, permissions=permissions, topic_permissions=topics))
        self.changed(durable=True)

    def add_defaults(self) -> None:
        """What a new broker begins with: virtual host ``/`` and the user guest, who may everything there."""
        self.add_vhost("/")
        self.users.add("guest", "guest", tags=("administrator",))
        self.users.permit("guest", "/", Permission(".*", ".*", ".*"))
        self.changed(durable=True)

    # --- what virtual hosts ask for ---

    def changed(self, *, durable: bool, change: Change | None = None) -> None:
        self.epoch += 1
        if not durable:
            return
        self.is_definitions_dirty = True
        if change is None or len(self.definition_changes) >= CHANGES_MAX:
            self.definition_changes.clear()
            self.must_rewrite_definitions = True
        elif not self.must_rewrite_definitions:
            self.definition_changes.append(change)

    def definitions_saved(self) -> None:
        """Everything durable is written down."""
        self.is_definitions_dirty = self.must_rewrite_definitions = False
        self.definition_changes = []

    def open_store(self, name: str, *, durable: bool) -> QueueStorage:
        return (self.storage if durable else self.memory).open_queue(name)

    def open_stream(self, name: str, vhost: str, arguments: Table) -> Queue:
        if self.streams is None:
            raise AmqpError(PRECONDITION_FAILED, f"stream '{name}': a member of a group serves no streams")
        self.has_streams = True
        return StreamQueue(self, name, vhost, self.streams, arguments=arguments)

    # --- what queues ask for ---

    def mark_dirty(self, queue: Queue) -> None:
        if not queue.is_dirty:
            queue.is_dirty = True
            if not self._dirty:
                self.wake_shell()
            self._dirty.append(queue)

    def wake_at(self, queue: Queue, deadline_ms: int) -> None:
        self._timer_number += 1
        heappush(self._timers, (deadline_ms, self._timer_number, queue))
        self.wake_shell()

    def queue_expired(self, queue: Queue) -> None:
        self.delete_queue(queue)

    @property
    def is_congested(self) -> bool:
        return self.storage.is_congested

    def dead_letter(self, queue: Queue, entry: Entry, reason: str) -> None:
        """Publish a dead message on; one that dies in turn is dealt with after this one, not inside of it."""
        if queue.dead_letter_exchange is None:
            entry.level.store.ack((entry.seq,))
            return
        if self._dead is not None:
            self._dead.append((queue, entry, reason))
            return
        self._dead = deque([(queue, entry, reason)])
        try:
            while self._dead:
                self._bury(*self._dead.popleft())
        finally:
            self._dead = None

    def _bury(self, queue: Queue, entry: Entry, reason: str) -> None:
        """The message leaves its queue in the batch in which it arrives elsewhere; before a stream has it, it stays."""
        turn = self._stream_turn = self._stream_turn or _StreamTurn(self._release) if self.has_streams else None
        before = turn.left if turn is not None else 0
        self.publishing = None
        self.publish_dead(queue, entry.message, reason)

        def forget() -> None:
            if not queue.is_deleted:
                entry.level.store.ack((entry.seq,))
                self.wake_shell()

        if turn is None or turn.left == before:
            entry.level.store.ack((entry.seq,))
        else:
            turn.after.append(forget)

    def publish_dead(self, queue: Queue, message: Message, reason: str) -> None:
        """Send what died in ``queue`` to its dead-letter exchange, where that is there."""
        vhost = self.vhosts.get(queue.vhost)
        exchange = vhost.exchanges.get(queue.dead_letter_exchange or "") if vhost is not None else None
        if exchange is None or vhost is None:
            return
        born, keys = dead_message(
            message,
            queue=queue.name,
            reason=reason,
            exchange=exchange.name,
            routing_key=queue.dead_letter_key,
            now_ms=self.now_ms,
        )
        targets = [
            target for target in vhost.route(exchange, keys, born.facts.headers) if not is_cycle(born, target.name)
        ]
        self.enqueue(born, targets, forced=True)

    # --- publishing ---

    def enqueue(self, message: Message, targets: Sequence[Queue], *, forced: bool = False) -> bool:
        """Put a message into queues. False when one of them refused it, or when the disk is full.

        ``forced`` is for what leaves another queue in the same batch: it is taken though the disk is full.
        """
        accepted = True
        size = len(message.body)
        if self.has_streams:
            targets = self._enqueue_streams(message, targets)
        if len(targets) == 1:
            queue = targets[0]
            if queue.is_limited and queue.refuses(size):
                self._refused(queue, message)
                return False
            level = queue.levels[0] if len(queue.levels) == 1 else queue.level_of(message)
            storage = self.storage if queue.durable else self.memory
            try:
                seq = storage.publish(message, message.facts.is_persistent, (level.store,), forced)[0]
            except StoreFull:
                return False
            queue.push(level, seq, message)
            return True
        for is_durable, storage in ((True, self.storage), (False, self.memory)):
            group = []
            for queue in targets:
                if queue.durable is is_durable:
                    if queue.is_limited and queue.refuses(size):
                        self._refused(queue, message)
                        accepted = False
                    else:
                        group.append((queue, queue.level_of(message)))
            if group:
                stores = [level.store for _, level in group]
                try:
                    seqs = storage.publish(message, message.facts.is_persistent, stores, forced)
                except StoreFull:
                    accepted = False
                    continue
                for (queue, level), seq in zip(group, seqs, strict=True):
                    queue.push(level, seq, message)
        return accepted

    def _enqueue_streams(self, message: Message, targets: Sequence[Queue]) -> Sequence[Queue]:
        """Append to those targets that are streams; returns the others. Confirms of this turn wait for the log."""
        streams = [queue for queue in targets if isinstance(queue, StreamQueue)]
        if not streams:
            return targets
        turn = self._stream_turn = self._stream_turn or _StreamTurn(self._release)
        publishing = self.publishing
        for queue in streams:
            turn.left += 1

            def done(failure: str, queue: StreamQueue = queue) -> None:
                if failure:
                    _log.warning("stream %s took no message: %s", queue.topic, failure)
                    turn.failed = True
                    if publishing is not None and publishing[1] not in publishing[0]:
                        publishing[0].append(publishing[1])
                turn.end_one()

            queue.publish(message, done)
        self.wake_shell()
        return [queue for queue in targets if not queue.is_stream]

    def _refused(self, queue: Queue, message: Message) -> None:
        if queue.overflow == "reject-publish-dlx":
            self.publish_dead(queue, message, "maxlen")

    # --- queues ---

    def note_unsent(self, session: Session) -> None:
        """A session has frames to write at the end of the turn."""
        if not self.unsent:
            self.wake_shell()
        self.unsent.append(session)

    def delete_queue(self, queue: Queue) -> int:
        """Delete a queue; how many messages were ready."""
        vhost = self.vhosts.get(queue.vhost)
        return vhost.delete_queue(queue) if vhost is not None else 0

    def note_cancelled(self, channel: Channel, tag: str) -> None:
        """A consumer lost its queue; its client hears of it at the end of the turn."""
        self._cancelled.append((channel, tag))
        self.wake_shell()

    # --- the turn ---

    @property
    def has_work(self) -> bool:
        """Whether something is left for another turn."""
        return bool(self._dirty or self._cancelled or self.published_channels or self._after_commit)

    def after_sync(self, then: Callable[[], None]) -> None:
        """Call ``then`` when everything that this turn writes is safe."""
        self._after_commit.append(then)
        self.wake_shell()

    def end_turn(self) -> None:
        """Deliver, make a batch, settle what can be settled."""
        for _ in range(100):
            if not self._dirty:
                break
            dirty, self._dirty = self._dirty, []
            for queue in dirty:
                queue.settle_turn()
        while self._cancelled:
            channel, tag = self._cancelled.pop(0)
            channel.send_cancel(tag)
        batch = self.storage.commit()
        if batch:
            self._last_batch = batch
        streams, self._stream_turn = self._stream_turn, None
        publishers, self.published_channels = self.published_channels, []
        waiters, self._after_commit = self._after_commit, []
        for channel in publishers:
            waiters.append(channel.close_batch())
        if not waiters:
            return
        if batch or self._waiting or streams is not None:
            # What needs no sync itself still waits its turn: a confirm may cover everything before it.
            self._waiting.extend((self._last_batch, streams, waiter) for waiter in waiters)
            self._release()
        else:
            for waiter in waiters:
                waiter()

    def on_synced(self, batch: int) -> None:
        """Everything up to this batch is safe."""
        self._synced_batch = max(self._synced_batch, batch)
        self._release()

    def _release(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._synced_batch and (waiting[0][1] is None or not waiting[0][1].left):
            waiting.popleft()[2]()
            self.wake_shell()

    # --- time ---

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for not before something else happens."""
        return self._timers[0][0] if self._timers else None

    def tick(self) -> None:
        """Let what has ended by `now_ms` end."""
        timers = self._timers
        due = []
        while timers and timers[0][0] <= self.now_ms:
            due.append(heappop(timers)[2])
        for queue in due:
            queue.on_time()

    # --- ends ---

    def fail(self, reason: str) -> None:
        """The store takes nothing more: close every connection, so that nobody waits for a confirm that cannot come.

        What was published and not confirmed may or may not be there after the restart.
        """
        self.failure = reason
        self.disconnect(AmqpError(INTERNAL_ERROR, f"the queue store has failed: {reason}", hard=True))

    def disconnect(self, error: AmqpError) -> None:
        """Close every connection; who waits for a confirm gets none."""
        self._waiting.clear()
        self._after_commit.clear()
        for session in list(self.sessions):
            session.close_for(error)

    # --- alarms ---

    def set_alarm(self, name: str, raised: bool) -> None:
        """Raise or clear ``memory`` or ``disk``: publishers are held back while any is raised."""
        if raised:
            self.alarms[name] = None
            return
        if self.alarms.pop(name, 0) is None and not self.alarms:
            for session in list(self.sessions):
                session.unblock()
