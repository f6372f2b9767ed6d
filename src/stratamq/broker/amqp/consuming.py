"""Methods that consume, get and settle messages, and those that switch a channel's mode (confirms, transactions)."""

from __future__ import annotations

from stratamq.broker.amqp.arguments import resource
from stratamq.broker.amqp.broker import REPLY_TO
from stratamq.broker.amqp.channel import Channel, Unacked
from stratamq.broker.amqp.consumers import Consumer
from stratamq.broker.amqp.declaring import clean_name, find_queue, handles, queue_name
from stratamq.broker.amqp.queue import Queue
from stratamq.broker.amqp.streams import StreamQueue
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.replies import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
)

# --- the channel itself ---


@handles(methods.ChannelClose)
def channel_close(channel: Channel, arguments: methods.ChannelClose) -> None:
    """channel.close: the number may be used again as soon as the answer is out."""
    channel.shut_down()
    channel.session.channels.pop(channel.number, None)
    channel.send(methods.ChannelCloseOk())


@handles(methods.ChannelCloseOk)
def channel_close_ok(channel: Channel, arguments: methods.ChannelCloseOk) -> None:
    """An answer to nothing: ignored."""


@handles(methods.ChannelFlow)
def channel_flow(channel: Channel, arguments: methods.ChannelFlow) -> None:
    """channel.flow"""
    if not arguments.active:
        raise AmqpError(NOT_IMPLEMENTED, "active=false")
    channel.send(methods.ChannelFlowOk(True))


@handles(methods.ChannelFlowOk)
def channel_flow_ok(channel: Channel, arguments: methods.ChannelFlowOk) -> None:
    """An answer to nothing: ignored."""


# --- consumers ---


@handles(methods.BasicQos)
def basic_qos(channel: Channel, arguments: methods.BasicQos) -> None:
    """basic.qos: for the channel at once, or for each consumer that comes after it."""
    if arguments.prefetch_size:
        raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({arguments.prefetch_size})")
    if arguments.is_global:
        channel.global_prefetch = arguments.prefetch_count
        channel.resume()
    else:
        channel.prefetch = arguments.prefetch_count
    channel.send(methods.BasicQosOk())


@handles(methods.BasicConsume)
def basic_consume(channel: Channel, arguments: methods.BasicConsume) -> None:
    """basic.consume"""
    name = queue_name(channel, clean_name(arguments.queue))
    tag = arguments.consumer_tag
    if name == REPLY_TO:
        _consume_replies(channel, arguments)
        return
    if tag in channel.consumers:
        raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    channel.session.require("read", "queue", name)
    queue = find_queue(channel, name)
    _check_consumable(channel, queue, arguments)
    consumer = Consumer(
        tag or f"amq.ctag-{channel.session.make_token()}",
        channel,
        queue,
        no_ack=arguments.no_ack,
        exclusive=arguments.exclusive,
        prefetch=channel.prefetch,
        arguments=arguments.arguments,
    )
    channel.consumers[consumer.tag] = consumer
    queue.consumers.add(consumer)
    if consumer.exclusive:
        queue.exclusive_consumer = consumer
    queue.last_used_ms = channel.broker.now_ms
    if not arguments.nowait:
        channel.send(methods.BasicConsumeOk(consumer.tag))
    channel.broker.mark_dirty(queue)


def _check_consumable(channel: Channel, queue: Queue, arguments: methods.BasicConsume) -> None:
    what = resource("queue", queue.name, queue.vhost)
    if queue.exclusive_consumer is not None or (arguments.exclusive and len(queue.consumers)):
        raise AmqpError(ACCESS_REFUSED, f"{what} in exclusive use")
    if arguments.exclusive and queue.consumers.single_active:
        raise AmqpError(ACCESS_REFUSED, f"{what} in exclusive use")
    if isinstance(queue, StreamQueue):
        queue.check_consume(
            arguments.arguments,
            no_ack=arguments.no_ack,
            prefetch=channel.prefetch,
            global_prefetch=channel.global_prefetch,
        )
    if queue.type == "quorum" and channel.global_prefetch:
        raise AmqpError(NOT_IMPLEMENTED, f"{what} does not support global qos")


def _consume_replies(channel: Channel, arguments: methods.BasicConsume) -> None:
    if channel.reply_token:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
    if not arguments.no_ack:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    channel.reply_token = channel.session.make_token()
    channel.reply_tag = arguments.consumer_tag or f"amq.ctag-{channel.session.make_token()}"
    channel.broker.reply_channels[channel.reply_token] = channel
    if not arguments.nowait:
        channel.send(methods.BasicConsumeOk(channel.reply_tag))


@handles(methods.BasicCancel)
def basic_cancel(channel: Channel, arguments: methods.BasicCancel) -> None:
    """basic.cancel: a tag that is not there is no error; what it was sent stays unacknowledged on the channel."""
    tag = arguments.consumer_tag
    consumer = channel.consumers.get(tag)
    if consumer is not None:
        channel.remove_consumer(consumer)
    elif channel.reply_token and tag == channel.reply_tag:
        channel.broker.reply_channels.pop(channel.reply_token, None)
        channel.reply_token = channel.reply_tag = ""
    if not arguments.nowait:
        channel.send(methods.BasicCancelOk(tag))


@handles(methods.BasicCancelOk)
def basic_cancel_ok(channel: Channel, arguments: methods.BasicCancelOk) -> None:
    """Some clients answer the server's cancel: ignored."""


# --- get ---


@handles(methods.BasicGet)
def basic_get(channel: Channel, arguments: methods.BasicGet) -> None:
    """basic.get"""
    name = queue_name(channel, clean_name(arguments.queue))
    channel.session.require("read", "queue", name)
    queue = find_queue(channel, name)
    queue.last_used_ms = channel.broker.now_ms
    queue.dispatch()
    queue.drop_expired()
    entry = queue.take()
    if entry is None:
        channel.traffic.get_empty += 1
        queue.traffic.get_empty += 1
        channel.send(methods.BasicGetEmpty())
        return
    tag = channel.next_delivery()
    message = entry.message
    channel.note_delivered(queue, entry)
    answer = methods.BasicGetOk(tag, entry.redelivered, message.exchange, message.routing_key, queue.ready)
    channel.send_content(answer, message)
    if arguments.no_ack:
        channel.traffic.get_no_ack += 1
        queue.traffic.get_no_ack += 1
        entry.level.store.ack((entry.seq,))
    else:
        channel.traffic.get += 1
        queue.traffic.get += 1
        queue.lend(entry)
        channel.unacked[tag] = Unacked(entry, queue, None, channel.broker.now_ms, tag)
    queue.schedule()


# --- settling ---


@handles(methods.BasicAck)
def basic_ack(channel: Channel, arguments: methods.BasicAck) -> None:
    """basic.ack"""
    channel.settle(arguments.delivery_tag, multiple=arguments.multiple, ack=True, requeue=False)


@handles(methods.BasicNack)
def basic_nack(channel: Channel, arguments: methods.BasicNack) -> None:
    """basic.nack"""
    channel.settle(arguments.delivery_tag, multiple=arguments.multiple, ack=False, requeue=arguments.requeue)


@handles(methods.BasicReject)
def basic_reject(channel: Channel, arguments: methods.BasicReject) -> None:
    """basic.reject"""
    channel.settle(arguments.delivery_tag, multiple=False, ack=False, requeue=arguments.requeue)


@handles(methods.BasicRecover)
def basic_recover(channel: Channel, arguments: methods.BasicRecover) -> None:
    """basic.recover: everything unacknowledged goes back to its queue."""
    _recover(channel, arguments.requeue)
    channel.send(methods.BasicRecoverOk())


@handles(methods.BasicRecoverAsync)
def basic_recover_async(channel: Channel, arguments: methods.BasicRecoverAsync) -> None:
    """basic.recover-async: the same without an answer."""
    _recover(channel, arguments.requeue)


def _recover(channel: Channel, requeue: bool) -> None:
    if not requeue:
        raise AmqpError(NOT_IMPLEMENTED, "requeue=false")
    items = list(channel.unacked.values())
    channel.unacked.clear()
    channel.settle_items(items, ack=False, requeue=True)


# --- modes ---


@handles(methods.ConfirmSelect)
def confirm_select(channel: Channel, arguments: methods.ConfirmSelect) -> None:
    """confirm.select"""
    if channel.is_tx:
        raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.is_confirming = True
    if not arguments.nowait:
        channel.send(methods.ConfirmSelectOk())


@handles(methods.TxSelect)
def tx_select(channel: Channel, arguments: methods.TxSelect) -> None:
    """tx.select"""
    if channel.is_confirming:
        raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    channel.is_tx = True
    channel.send(methods.TxSelectOk())


def _require_tx(channel: Channel) -> None:
    if not channel.is_tx:
        raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")


@handles(methods.TxCommit)
def tx_commit(channel: Channel, arguments: methods.TxCommit) -> None:
    """tx.commit: publishes and acks take effect; the answer waits until they are safe."""
    _require_tx(channel)
    publishes, channel.tx_publishes = channel.tx_publishes, []
    settled, channel.tx_acks = channel.tx_acks, []
    accepted = True
    for message, targets, mandatory in publishes:
        living = [queue for queue in targets if not queue.is_deleted]
        if not channel.deliver_publish(message, living, mandatory):
            accepted = False
    for items, ack, requeue in settled:
        channel.settle_items(items, ack=ack, requeue=requeue)
    if not accepted:
        raise AmqpError(PRECONDITION_FAILED, "partial tx completion")

    def answer() -> None:
        if channel.is_open:
            channel.send(methods.TxCommitOk())

    channel.broker.after_sync(answer)


@handles(methods.TxRollback)
def tx_rollback(channel: Channel, arguments: methods.TxRollback) -> None:
    """tx.rollback: publishes are forgotten, settled deliveries are unacknowledged again."""
    _require_tx(channel)
    channel.tx_publishes.clear()
    settled, channel.tx_acks = channel.tx_acks, []
    known = dict(channel.unacked)
    for items, _, _ in settled:
        known.update({item.tag: item for item in items})
    channel.unacked = dict(sorted(known.items()))
    channel.send(methods.TxRollbackOk())
