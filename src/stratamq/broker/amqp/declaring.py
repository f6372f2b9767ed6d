"""Methods that declare, delete, bind and unbind exchanges and queues. Checks of permissions come first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from stratamq.broker.amqp.arguments import check_exchange_argument, check_nameable, resource
from stratamq.broker.amqp.broker import REPLY_TO, REPLY_TO_PREFIX
from stratamq.broker.amqp.channel import HANDLERS, Channel
from stratamq.broker.amqp.exchanges import Binding
from stratamq.broker.amqp.queue import Queue
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import spec_of
from stratamq.protocols.amqp.replies import ACCESS_REFUSED, NOT_FOUND, AmqpError
from stratamq.protocols.amqp.values import Table, encode_table, require_utf8

T = TypeVar("T")
Handler = Callable[[Channel, Any], None]

_STRIPPED: Final = str.maketrans("", "", "\r\n")


def handles(kind: type[T]) -> Callable[[Callable[[Channel, T], None]], Callable[[Channel, T], None]]:
    """Register a function for a method."""

    def register(handler: Callable[[Channel, T], None]) -> Callable[[Channel, T], None]:
        HANDLERS[spec_of(kind).head] = handler
        return handler

    return register


def clean_name(name: str) -> str:
    """A name for something new: no line breaks, valid UTF-8. Raises AmqpError 501."""
    return require_utf8(name.translate(_STRIPPED))


def queue_name(channel: Channel, name: str) -> str:
    """The name a client means: an empty one is the queue last declared on the channel. Raises AmqpError 404."""
    if name:
        return name
    if not channel.last_queue:
        raise AmqpError(NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def find_queue(channel: Channel, name: str) -> Queue:
    """The queue of that name, for this connection. Raises AmqpError 404 or 405."""
    return channel.vhost.queue(name, channel.session)


def _not_default(name: str) -> None:
    if not name:
        raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")


# --- access ---


@handles(methods.AccessRequest)
def access_request(channel: Channel, arguments: methods.AccessRequest) -> None:
    """Old clients ask for a ticket; everybody gets the same one, which means nothing."""
    channel.send(methods.AccessRequestOk(1))


# --- exchanges ---


@handles(methods.ExchangeDeclare)
def exchange_declare(channel: Channel, arguments: methods.ExchangeDeclare) -> None:
    """exchange.declare"""
    name = clean_name(arguments.exchange)
    _not_default(name)
    if arguments.passive:
        channel.vhost.exchange(name)
    else:
        channel.session.require("configure", "exchange", name)
        check_exchange_argument(
            "alternate-exchange", resource("exchange", name, channel.vhost.name), arguments.arguments
        )
        alternate = arguments.arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            channel.session.require("read", "exchange", name)
            channel.session.require("write", "exchange", alternate)
        channel.vhost.declare_exchange(
            name,
            arguments.kind,
            durable=arguments.durable,
            auto_delete=arguments.auto_delete,
            internal=arguments.internal,
            arguments=arguments.arguments,
        )
    if not arguments.nowait:
        channel.send(methods.ExchangeDeclareOk())


@handles(methods.ExchangeDelete)
def exchange_delete(channel: Channel, arguments: methods.ExchangeDelete) -> None:
    """exchange.delete"""
    name = clean_name(arguments.exchange)
    _not_default(name)
    if name.startswith("amq."):
        text = f"deletion of system exchange '{name}' in vhost '{channel.vhost.name}' not allowed"
        raise AmqpError(ACCESS_REFUSED, text)
    channel.session.require("configure", "exchange", name)
    channel.vhost.delete_exchange(name, if_unused=arguments.if_unused)
    if not arguments.nowait:
        channel.send(methods.ExchangeDeleteOk())


@handles(methods.ExchangeBind)
def exchange_bind(channel: Channel, arguments: methods.ExchangeBind) -> None:
    """exchange.bind"""
    binding = _exchange_binding(channel, arguments)
    channel.vhost.exchange(binding.destination)
    channel.vhost.exchange(binding.source)
    channel.vhost.bind(binding)
    if not arguments.nowait:
        channel.send(methods.ExchangeBindOk())


@handles(methods.ExchangeUnbind)
def exchange_unbind(channel: Channel, arguments: methods.ExchangeUnbind) -> None:
    """exchange.unbind"""
    channel.vhost.unbind(_exchange_binding(channel, arguments))
    if not arguments.nowait:
        channel.send(methods.ExchangeUnbindOk())


def _exchange_binding(channel: Channel, arguments: methods.ExchangeBind | methods.ExchangeUnbind) -> Binding:
    destination, source = clean_name(arguments.destination), clean_name(arguments.source)
    _not_default(destination)
    _not_default(source)
    channel.session.require("write", "exchange", destination)
    channel.session.require("read", "exchange", source)
    return _binding(source, destination, "exchange", arguments.routing_key, arguments.arguments)


def _binding(source: str, destination: str, kind: Literal["queue", "exchange"], key: str, arguments: Table) -> Binding:
    return Binding(source, destination, kind, key, encode_table(arguments), arguments)


# --- queues ---


@handles(methods.QueueDeclare)
def queue_declare(channel: Channel, arguments: methods.QueueDeclare) -> None:
    """queue.declare"""
    name = clean_name(arguments.queue)
    if arguments.passive:
        _declare_passively(channel, arguments, name)
        return
    if name.startswith("amq."):
        raise AmqpError(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
    if not name:
        check_nameable(arguments.arguments)
    session = channel.session
    owner = session if arguments.exclusive else None
    shown = name or f"amq.gen-{session.make_token()}"
    session.require("configure", "queue", shown)
    found = channel.vhost.queues.get(shown)
    if found is not None:
        if found.owner is not None and found.owner is not session:
            channel.vhost.queue(shown, session)
        channel.vhost.check_redeclared(
            found,
            durable=arguments.durable and not arguments.exclusive,
            auto_delete=arguments.auto_delete,
            owner=owner,
            arguments=arguments.arguments,
        )
        found.touch()
    else:
        dead_letter = arguments.arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letter, str):
            session.require("read", "queue", shown)
            session.require("write", "exchange", dead_letter)
        found = channel.vhost.make_queue(
            shown,
            durable=arguments.durable,
            auto_delete=arguments.auto_delete,
            owner=owner,
            arguments=arguments.arguments,
        )
        if owner is not None:
            session.exclusive_queues[found] = None
    _answer_declare(channel, arguments, found)


def _answer_declare(channel: Channel, arguments: methods.QueueDeclare, queue: Queue) -> None:
    channel.last_queue = queue.name
    if not arguments.nowait:
        queue.drop_expired()
        channel.send(methods.QueueDeclareOk(queue.name, queue.ready, len(queue.consumers)))


def _declare_passively(channel: Channel, arguments: methods.QueueDeclare, name: str) -> None:
    if name == REPLY_TO or name.startswith(REPLY_TO_PREFIX):
        token = channel.reply_token if name == REPLY_TO else name[len(REPLY_TO_PREFIX) :]
        if name != REPLY_TO and token not in channel.broker.reply_channels:
            channel.vhost.queue(name, channel.session)
        if not arguments.nowait:
            channel.send(methods.QueueDeclareOk(name, 0, 1))
        return
    queue = find_queue(channel, name)
    queue.touch()
    _answer_declare(channel, arguments, queue)


@handles(methods.QueueBind)
def queue_bind(channel: Channel, arguments: methods.QueueBind) -> None:
    """queue.bind"""
    binding = _queue_binding(channel, arguments)
    find_queue(channel, binding.destination)
    source = channel.vhost.exchange(binding.source)
    if source.kind == "topic":
        channel.session.require_topic("read", source.name, binding.routing_key)
    channel.vhost.bind(binding)
    if not arguments.nowait:
        channel.send(methods.QueueBindOk())


@handles(methods.QueueUnbind)
def queue_unbind(channel: Channel, arguments: methods.QueueUnbind) -> None:
    """queue.unbind"""
    binding = _queue_binding(channel, arguments)
    if binding.destination in channel.vhost.queues:
        find_queue(channel, binding.destination)
    channel.vhost.unbind(binding)
    channel.send(methods.QueueUnbindOk())


def _queue_binding(channel: Channel, arguments: methods.QueueBind | methods.QueueUnbind) -> Binding:
    name = queue_name(channel, clean_name(arguments.queue))
    key = arguments.routing_key
    if not arguments.queue and not key:
        key = name
    source = clean_name(arguments.exchange)
    channel.session.require("write", "queue", name)
    _not_default(source)
    channel.session.require("read", "exchange", source)
    return _binding(source, name, "queue", key, arguments.arguments)


@handles(methods.QueuePurge)
def queue_purge(channel: Channel, arguments: methods.QueuePurge) -> None:
    """queue.purge"""
    name = queue_name(channel, clean_name(arguments.queue))
    channel.session.require("read", "queue", name)
    count = find_queue(channel, name).purge()
    if not arguments.nowait:
        channel.send(methods.QueuePurgeOk(count))


@handles(methods.QueueDelete)
def queue_delete(channel: Channel, arguments: methods.QueueDelete) -> None:
    """queue.delete: one that is not there is no error."""
    name = queue_name(channel, clean_name(arguments.queue))
    channel.session.require("configure", "queue", name)
    count = 0
    if name in channel.vhost.queues:
        queue = find_queue(channel, name)
        channel.vhost.check_deletable(queue, if_unused=arguments.if_unused, if_empty=arguments.if_empty)
        channel.session.exclusive_queues.pop(queue, None)
        count = channel.broker.delete_queue(queue)
    if not arguments.nowait:
        channel.send(methods.QueueDeleteOk(count))
