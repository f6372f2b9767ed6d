"""One channel: publishing with confirms and transactions, deliveries and what is unacknowledged.

What methods declare, bind and consume stands in `declaring` and `consuming`; they reach the channel through `handle`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratamq.broker.amqp.broker import REPLY_TO, REPLY_TO_PREFIX
from stratamq.broker.amqp.consumers import Consumer
from stratamq.broker.amqp.levels import Entry
from stratamq.broker.amqp.messages import EXPIRATION_MAX_MS, Message, carbon_copies, encode_address
from stratamq.broker.amqp.queue import Queue
from stratamq.broker.amqp.traffic import Traffic
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import decode_method, encode_method, spec_of
from stratamq.protocols.amqp.connection import body_size
from stratamq.protocols.amqp.frames import content_frames, method_frame
from stratamq.protocols.amqp.properties import Facts, change_properties
from stratamq.protocols.amqp.replies import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
)
from stratamq.protocols.amqp.values import Table, type_name

if TYPE_CHECKING:
    from stratamq.broker.amqp.connection import Session
    from stratamq.broker.amqp.exchanges import Exchange

_ACK: Final = spec_of(methods.BasicAck).head
_CLOSE: Final = spec_of(methods.ChannelClose).head
_CLOSE_OK: Final = spec_of(methods.ChannelCloseOk).head
_ROUTES_REMEMBERED: Final = 1024
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""Bytes for one connection in one turn above which no more is delivered to it before they are written."""
_pack_tag = Struct(">Q?").pack
_ACK_FRAME: Final = Struct(">BHI4sQBB")

HANDLERS: Final[dict[bytes, Callable[[Channel, Any], None]]] = {}
"""By class and method number; filled by `declaring` and `consuming`."""


class Route(NamedTuple):
    """What is known of publishes with the same arguments, as long as the epoch does not move."""

    epoch: int
    exchange: Exchange | None
    name: str
    key: str
    address: bytes
    mandatory: bool
    targets: list[Queue] | None
    """None where headers decide, or a direct reply is asked for."""


class Unacked(NamedTuple):
    """A delivery that waits to be settled."""

    entry: Entry
    queue: Queue
    consumer: Consumer | None
    since_ms: int
    tag: int


class Channel:
    """One channel of a session."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.broker = session.broker
        self.vhost = session.vhost
        self.number = number
        self.is_open = True
        self.last_queue = ""
        self.prefetch = 0
        """For consumers started from now on."""
        self.global_prefetch = 0
        self.window_used = 0
        """Unacknowledged deliveries to consumers, for the shared window."""
        self.traffic = Traffic()
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, Unacked] = {}
        self.reply_token = ""
        self.reply_tag = ""
        self.is_confirming = False
        self.is_tx = False
        self.tx_publishes: list[tuple[Message, list[Queue], bool]] = []
        self.tx_acks: list[tuple[list[Unacked], bool, bool]] = []
        """Deliveries, whether they are acked, and else whether they go back to their queue."""
        self._next_delivery = 1
        self._publish_seq = 0
        self._batch_first = 0
        self._nacks: list[int] = []
        self._routes: dict[bytes, Route] = {}
        self._header = b""
        self._facts: Facts | None = None
        self._is_care_needed = False

    # --- sending ---

    def send(self, arguments: Any) -> None:
        """Send a method without content."""
        self.session.push(method_frame(self.number, arguments))

    def send_content(self, arguments: Any, message: Message) -> None:
        """Send a method with a message."""
        self.session.push(
            content_frames(
                self.number, encode_method(arguments), message.facts.block, message.body, self.session.core.frame_max
            )
        )

    # --- receiving ---

    def handle(self, payload: bytes) -> None:
        """A method without content. Raises AmqpError for what is to close the channel or the connection."""
        head = payload[:4]
        if not self.is_open:
            if head in (_CLOSE, _CLOSE_OK):
                self.session.channels.pop(self.number, None)
                if head == _CLOSE:
                    self.send(methods.ChannelCloseOk())
            return
        if head == _ACK and len(payload) == 13:
            self.settle(int.from_bytes(payload[4:12], "big"), multiple=payload[12] & 1 == 1, ack=True, requeue=False)
            return
        handler = HANDLERS.get(head)
        if handler is None:
            arguments = decode_method(payload)
            if isinstance(arguments, methods.ChannelOpen):
                raise AmqpError(CHANNEL_ERROR, "second 'channel.open' seen")
            raise AmqpError(COMMAND_INVALID, f"unexpected method {head.hex()}")
        handler(self, decode_method(payload))

    # --- publishing ---

    def publish(self, payload: bytes, header: bytes, body: bytes | None) -> None:
        """A basic.publish with its content. Raises AmqpError."""
        if body is None:
            limit = self.session.core._limits.body_bytes_max
            raise AmqpError(
                PRECONDITION_FAILED,
                f"message size {body_size(header)} is larger than configured max size {limit}",
            )
        broker = self.broker
        broker.counters.published += 1
        self.traffic.publish += 1
        route = self._routes.get(payload)
        if route is None or route.epoch != broker.epoch:
            route = self._resolve(payload)
        facts = self._facts
        if header is not self._header or facts is None:
            self._header = header
            block = header[12:]
            if facts is None or facts.block != block:
                facts = self._facts = Facts(block)
                self._is_care_needed = _needs_care(facts)
        if broker.alarms:
            self.session.note_publish()
        targets = route.targets
        if targets is None or self._is_care_needed:
            facts, targets = self._route_with_care(route, facts)
        if self.is_confirming:
            seq = self._publish_seq = self._publish_seq + 1
            if not self._batch_first:
                self._batch_first = seq
                if not broker.published_channels:
                    broker.wake_shell()
                broker.published_channels.append(self)
        message = Message(route.name, route.key, route.address, facts, body, broker.now_ms)
        if self.is_tx:
            self.tx_publishes.append((message, targets, route.mandatory))
            return
        if broker.has_streams:
            broker.publishing = (self._nacks, self._publish_seq) if self.is_confirming else None
        if not self.deliver_publish(message, targets, route.mandatory) and self.is_confirming:
            self._nacks.append(self._publish_seq)

    def deliver_publish(self, message: Message, targets: list[Queue], mandatory: bool) -> bool:
        """Put a routed message into its queues, or return it. False when a queue refused it."""
        if targets:
            return self.broker.enqueue(message, targets)
        if not message.exchange and message.routing_key.startswith(REPLY_TO_PREFIX) and self._reply_directly(message):
            return True
        if mandatory:
            self.broker.counters.unroutable_returned += 1
            self.traffic.return_unroutable += 1
            self.send_content(methods.BasicReturn(NO_ROUTE, "NO_ROUTE", message.exchange, message.routing_key), message)
        else:
            self.broker.counters.unroutable_dropped += 1
            self.traffic.drop_unroutable += 1
        return True

    def _resolve(self, payload: bytes) -> Route:
        arguments: methods.BasicPublish = decode_method(payload)
        if arguments.immediate:
            raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
        name, key = arguments.exchange, arguments.routing_key
        self.session.require("write", "exchange", name)
        exchange = self.vhost.exchange(name)
        if exchange.internal:
            text = f"cannot publish to internal exchange '{name}' in vhost '{self.vhost.name}'"
            raise AmqpError(ACCESS_REFUSED, text)
        if exchange.kind == "topic":
            self.session.require_topic("write", name, key)
        targets: list[Queue] | None = None
        if not self.vhost.depends_on_headers():
            targets = self.vhost.route(exchange, (key,), dict)
        if len(self._routes) >= _ROUTES_REMEMBERED:
            self._routes.clear()
        route = Route(self.broker.epoch, exchange, name, key, encode_address(name, key), arguments.mandatory, targets)
        self._routes[payload] = route
        return route

    def _route_with_care(self, route: Route, facts: Facts) -> tuple[Facts, list[Queue]]:
        """Check the properties that decide something, and route by all of them."""
        _check_expiration(facts.expiration)
        user = self.session.core.user
        if facts.user_id is not None and facts.user_id != user:
            known = self.broker.users.get(user)
            if known is None or "impersonator" not in known.tags:
                text = f"user_id property set to '{facts.user_id}' but authenticated user was '{user}'"
                raise AmqpError(PRECONDITION_FAILED, text)
        keys = [route.key]
        if facts.mentions(b"CC"):
            headers = facts.headers()
            _check_carbon_copies(headers)
            keys += carbon_copies(headers, "CC", "BCC")
            if "BCC" in headers:
                del headers["BCC"]
                facts = Facts(change_properties(facts.block, headers=headers))
        if facts.reply_to == REPLY_TO:
            if not self.reply_token:
                raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
            facts = Facts(change_properties(facts.block, reply_to=REPLY_TO_PREFIX + self.reply_token))
        if route.targets is not None and len(keys) == 1:
            return facts, route.targets
        exchange = route.exchange
        if exchange is None:
            return facts, []
        if len(keys) > 1 and exchange.kind == "topic":
            for key in keys:
                self.session.require_topic("write", exchange.name, key)
        read: list[Table] = []

        def headers_once() -> Table:
            if not read:
                read.append(facts.headers())
            return read[0]

        return facts, self.vhost.route(exchange, keys, headers_once)

    def _reply_directly(self, message: Message) -> bool:
        channel = self.broker.reply_channels.get(message.routing_key[len(REPLY_TO_PREFIX) :])
        if channel is None or not channel.is_open:
            return False
        tag = channel._next_delivery
        channel._next_delivery += 1
        channel.send_content(methods.BasicDeliver(channel.reply_tag, tag, False, "", message.routing_key), message)
        self.broker.wake_shell()
        return True

    # --- confirms ---

    def close_batch(self) -> Callable[[], None]:
        """End this turn's run of publishes; returns what sends the confirms for it."""
        first, last, nacks = self._batch_first, self._publish_seq, self._nacks
        self._batch_first = 0
        self._nacks = []

        def send() -> None:
            if self.is_open:
                self._send_confirms(first, last, nacks)

        return send

    def _send_confirms(self, first: int, last: int, nacks: list[int]) -> None:
        confirmed = last - first + 1 - len(nacks)
        self.broker.counters.confirmed += confirmed
        self.traffic.confirm += confirmed
        push = self.session.push
        for nack in sorted(nacks):
            if nack > first:
                push(self._ack_frame(nack - 1, nack - 1 > first))
            push(method_frame(self.number, methods.BasicNack(nack, False, False)))
            first = nack + 1
        if last >= first:
            push(self._ack_frame(last, last > first))

    def _ack_frame(self, tag: int, multiple: bool) -> bytes:
        return _ACK_FRAME.pack(1, self.number, 13, _ACK, tag, multiple, 0xCE)

    # --- deliveries ---

    @property
    def can_receive(self) -> bool:
        """Whether the shared window and the connection take another delivery."""
        session = self.session
        if session.is_clogged or session.unsent_bytes > UNSENT_BYTES_MAX or not self.is_open:
            return False
        return not self.global_prefetch or self.window_used < self.global_prefetch

    def next_delivery(self) -> int:
        """The next delivery tag."""
        tag = self._next_delivery
        self._next_delivery = tag + 1
        return tag

    def note_delivered(self, queue: Queue, entry: Entry) -> None:
        """Count what every kind of delivery has in common."""
        counters = self.broker.counters
        counters.delivered += 1
        if entry.redelivered:
            counters.redelivered += 1
            self.traffic.redeliver += 1
            queue.traffic.redeliver += 1

    def deliver(self, consumer: Consumer, entry: Entry) -> None:
        tag = self._next_delivery
        self._next_delivery = tag + 1
        traffic, queue_traffic = self.traffic, consumer.queue.traffic
        if consumer.no_ack:
            traffic.deliver_no_ack += 1
            queue_traffic.deliver_no_ack += 1
        else:
            self.unacked[tag] = Unacked(entry, consumer.queue, consumer, self.broker.now_ms, tag)
            self.window_used += 1
            traffic.deliver += 1
            queue_traffic.deliver += 1
        self.note_delivered(consumer.queue, entry)
        message = entry.message
        block = message.facts.block
        if consumer.queue.type == "quorum" and entry.deliveries:
            block = with_delivery_count(message, entry.deliveries)
        payload = b"".join((consumer.prefix, _pack_tag(tag, entry.redelivered), message.address))
        self.session.push(content_frames(self.number, payload, block, message.body, self.session.core.frame_max))

    def cancelled_by_server(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.tag, None)
        if self.is_open and self.session.core.capability("consumer_cancel_notify"):
            self.broker.note_cancelled(self, consumer.tag)

    def send_cancel(self, tag: str) -> None:
        """Tell the client that its consumer is gone; at the end of a turn, behind the answer to what caused it."""
        if self.is_open and not self.session.is_closed:
            self.send(methods.BasicCancel(tag, True))

    def resume(self) -> None:
        """Deliveries are possible again: let the queues of this channel's consumers know."""
        for consumer in self.consumers.values():
            if consumer.queue.ready:
                self.broker.mark_dirty(consumer.queue)

    # --- settling ---

    def settle(self, tag: int, *, multiple: bool, ack: bool, requeue: bool) -> None:
        """An ack, nack or reject. Raises AmqpError 406 for a tag that is not outstanding."""
        unacked = self.unacked
        is_all = multiple and tag == 0
        if not is_all and tag not in unacked:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if not multiple:
            items = [unacked.pop(tag)]
        elif is_all:
            items = list(unacked.values())
            unacked.clear()
        else:
            taken = []
            for known in unacked:
                if known > tag:
                    break
                taken.append(known)
            items = [unacked.pop(known) for known in taken]
        if self.is_tx:
            self.tx_acks.append((items, ack, requeue))
        else:
            self.settle_items(items, ack=ack, requeue=requeue)

    def settle_items(self, items: list[Unacked], *, ack: bool, requeue: bool, counts: bool = True) -> None:
        """Tell the queues what became of deliveries, and give their consumers credit again."""
        broker = self.broker
        is_shared = self.global_prefetch
        back: dict[Queue, list[Entry]] = {}
        for entry, queue, consumer, _, _ in items:
            if consumer is not None:
                consumer.unacked -= 1
                self.window_used -= 1
            if queue.is_deleted:
                continue
            if ack:
                queue.unacked -= 1
                queue.traffic.ack += 1
                entry.level.store.ack((entry.seq,))
            elif requeue:
                back.setdefault(queue, []).append(entry)
            else:
                queue.reject(entry)
            if queue.ready and not queue.is_dirty:
                broker.mark_dirty(queue)
        if ack:
            broker.counters.acknowledged += len(items)
            self.traffic.ack += len(items)
        for queue, entries in back.items():
            queue.give_back(entries, counts=counts)
        if is_shared:
            self.resume()

    def overdue(self) -> AmqpError | None:
        """What to close the channel with when its oldest delivery is unsettled for too long."""
        oldest = next(iter(self.unacked.values()), None)
        if oldest is None:
            return None
        limit = oldest.queue.consumer_timeout_ms
        if oldest.consumer is None or self.broker.now_ms - oldest.since_ms <= limit:
            return None
        return AmqpError(
            PRECONDITION_FAILED,
            f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {limit} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more",
        )

    # --- ends ---

    def close_for(self, error: AmqpError, class_id: int, method_id: int) -> None:
        """Close the channel with an error; until the peer's close-ok everything on it is ignored."""
        self.shut_down()
        self.send(methods.ChannelClose(error.code, error.reply_text(), class_id, method_id))

    def shut_down(self) -> None:
        """End everything of this channel: consumers go, unacknowledged messages return. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        for consumer in list(self.consumers.values()):
            self.remove_consumer(consumer)
        self.consumers.clear()
        for items, _, _ in self.tx_acks:
            self.settle_items(items, ack=False, requeue=True)
        items = list(self.unacked.values())
        self.unacked.clear()
        self.settle_items(items, ack=False, requeue=True)
        self.tx_acks.clear()
        self.tx_publishes.clear()
        if self.reply_token:
            self.broker.reply_channels.pop(self.reply_token, None)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer of this channel ends; an auto-delete queue goes with its last one."""
        self.consumers.pop(consumer.tag, None)
        queue = consumer.queue
        if not queue.consumers.remove(consumer):
            return
        if queue.exclusive_consumer is consumer:
            queue.exclusive_consumer = None
        queue.touch()
        if not len(queue.consumers) and queue.auto_delete:
            self.broker.delete_queue(queue)
        elif queue.ready:
            self.broker.mark_dirty(queue)


def with_delivery_count(message: Message, deliveries: int) -> bytes:
    """The property block with the header that quorum queues add to what comes again."""
    headers = {**message.facts.headers(), "x-delivery-count": deliveries}
    return change_properties(message.facts.block, headers=headers)


def _needs_care(facts: Facts) -> bool:
    if facts.expiration is not None or facts.user_id is not None or facts.reply_to is not None:
        return True
    return facts.mentions(b"CC")


def _check_carbon_copies(headers: Table) -> None:
    for name in ("CC", "BCC"):
        if name in headers and not isinstance(headers[name], list):
            wrong = f'{{unacceptable_type_in_header,"{name}",{type_name(headers[name])}}}'
            raise AmqpError(PRECONDITION_FAILED, f"invalid message: {wrong}")


def _check_expiration(text: str | None) -> None:
    if text is None:
        return
    number = re.match(r"[+-]?[0-9]{1,20}", text)
    if number is None:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': no_integer")
    if number.end() < len(text):
        rest = text[number.end() :]
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': {{leftover_string,\"{rest}\"}}")
    value = int(text)
    if value < 0:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': {{value_negative,{value}}}")
    if value > EXPIRATION_MAX_MS:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': {{value_too_big,{value}}}")
