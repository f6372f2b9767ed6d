"""All methods of AMQP 0-9-1 with RabbitMQ's extensions, a class of arguments each. Reserved fields are left out.

Names and order are those of the specification; ``codec`` says what the layout letters mean.

Source: RabbitMQ, deps/rabbitmq_codegen/amqp-rabbitmq-0.9.1.json.
"""

from __future__ import annotations

from typing import NamedTuple

from stratamq.protocols.amqp.codec import method
from stratamq.protocols.amqp.values import Table


@method(10, 10, "ootSS")
class ConnectionStart(NamedTuple):
    """connection.start"""

    version_major: int
    version_minor: int
    server_properties: Table
    mechanisms: bytes
    locales: bytes


@method(10, 11, "tsSs")
class ConnectionStartOk(NamedTuple):
    """connection.start-ok"""

    client_properties: Table
    mechanism: str
    response: bytes
    locale: str


@method(10, 20, "S")
class ConnectionSecure(NamedTuple):
    """connection.secure"""

    challenge: bytes


@method(10, 21, "S")
class ConnectionSecureOk(NamedTuple):
    """connection.secure-ok"""

    response: bytes


@method(10, 30, "hlh")
class ConnectionTune(NamedTuple):
    """connection.tune"""

    channel_max: int
    frame_max: int
    heartbeat: int


@method(10, 31, "hlh")
class ConnectionTuneOk(NamedTuple):
    """connection.tune-ok"""

    channel_max: int
    frame_max: int
    heartbeat: int


@method(10, 40, "sZB")
class ConnectionOpen(NamedTuple):
    """connection.open"""

    virtual_host: str


@method(10, 41, "Z")
class ConnectionOpenOk(NamedTuple):
    """connection.open-ok"""


@method(10, 50, "hshh")
class ConnectionClose(NamedTuple):
    """connection.close"""

    code: int
    text: str
    class_id: int
    method_id: int


@method(10, 51)
class ConnectionCloseOk(NamedTuple):
    """connection.close-ok"""


@method(10, 60, "s")
class ConnectionBlocked(NamedTuple):
    """connection.blocked"""

    reason: str


@method(10, 61)
class ConnectionUnblocked(NamedTuple):
    """connection.unblocked"""


@method(10, 70, "Ss")
class ConnectionUpdateSecret(NamedTuple):
    """connection.update-secret"""

    new_secret: bytes
    reason: str


@method(10, 71)
class ConnectionUpdateSecretOk(NamedTuple):
    """connection.update-secret-ok"""


@method(20, 10, "Z")
class ChannelOpen(NamedTuple):
    """channel.open"""


@method(20, 11, "S")
class ChannelOpenOk(NamedTuple):
    """channel.open-ok"""

    channel_id: bytes = b""


@method(20, 20, "b")
class ChannelFlow(NamedTuple):
    """channel.flow"""

    active: bool


@method(20, 21, "b")
class ChannelFlowOk(NamedTuple):
    """channel.flow-ok"""

    active: bool


@method(20, 40, "hshh")
class ChannelClose(NamedTuple):
    """channel.close"""

    code: int
    text: str
    class_id: int
    method_id: int


@method(20, 41)
class ChannelCloseOk(NamedTuple):
    """channel.close-ok"""


@method(30, 10, "sbbbbb")
class AccessRequest(NamedTuple):
    """access.request"""

    realm: str
    exclusive: bool
    passive: bool
    active: bool
    write: bool
    read: bool


@method(30, 11, "h")
class AccessRequestOk(NamedTuple):
    """access.request-ok"""

    ticket: int


@method(40, 10, "Hssbbbbbt")
class ExchangeDeclare(NamedTuple):
    """exchange.declare"""

    exchange: str
    kind: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    nowait: bool
    arguments: Table


@method(40, 11)
class ExchangeDeclareOk(NamedTuple):
    """exchange.declare-ok"""


@method(40, 20, "Hsbb")
class ExchangeDelete(NamedTuple):
    """exchange.delete"""

    exchange: str
    if_unused: bool
    nowait: bool


@method(40, 21)
class ExchangeDeleteOk(NamedTuple):
    """exchange.delete-ok"""


@method(40, 30, "Hsssbt")
class ExchangeBind(NamedTuple):
    """exchange.bind"""

    destination: str
    source: str
    routing_key: str
    nowait: bool
    arguments: Table


@method(40, 31)
class ExchangeBindOk(NamedTuple):
    """exchange.bind-ok"""


@method(40, 40, "Hsssbt")
class ExchangeUnbind(NamedTuple):
    """exchange.unbind"""

    destination: str
    source: str
    routing_key: str
    nowait: bool
    arguments: Table


@method(40, 51)
class ExchangeUnbindOk(NamedTuple):
    """exchange.unbind-ok"""


@method(50, 10, "Hsbbbbbt")
class QueueDeclare(NamedTuple):
    """queue.declare"""

    queue: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    nowait: bool
    arguments: Table


@method(50, 11, "sll")
class QueueDeclareOk(NamedTuple):
    """queue.declare-ok"""

    queue: str
    message_count: int
    consumer_count: int


@method(50, 20, "Hsssbt")
class QueueBind(NamedTuple):
    """queue.bind"""

    queue: str
    exchange: str
    routing_key: str
    nowait: bool
    arguments: Table


@method(50, 21)
class QueueBindOk(NamedTuple):
    """queue.bind-ok"""


@method(50, 30, "Hsb")
class QueuePurge(NamedTuple):
    """queue.purge"""

    queue: str
    nowait: bool


@method(50, 31, "l")
class QueuePurgeOk(NamedTuple):
    """queue.purge-ok"""

    message_count: int


@method(50, 40, "Hsbbb")
class QueueDelete(NamedTuple):
    """queue.delete"""

    queue: str
    if_unused: bool
    if_empty: bool
    nowait: bool


@method(50, 41, "l")
class QueueDeleteOk(NamedTuple):
    """queue.delete-ok"""

    message_count: int


@method(50, 50, "Hssst")
class QueueUnbind(NamedTuple):
    """queue.unbind"""

    queue: str
    exchange: str
    routing_key: str
    arguments: Table


@method(50, 51)
class QueueUnbindOk(NamedTuple):
    """queue.unbind-ok"""


@method(60, 10, "lhb")
class BasicQos(NamedTuple):
    """basic.qos"""

    prefetch_size: int
    prefetch_count: int
    is_global: bool


@method(60, 11)
class BasicQosOk(NamedTuple):
    """basic.qos-ok"""


@method(60, 20, "Hssbbbbt")
class BasicConsume(NamedTuple):
    """basic.consume"""

    queue: str
    consumer_tag: str
    no_local: bool
    no_ack: bool
    exclusive: bool
    nowait: bool
    arguments: Table


@method(60, 21, "s")
class BasicConsumeOk(NamedTuple):
    """basic.consume-ok"""

    consumer_tag: str


@method(60, 30, "sb")
class BasicCancel(NamedTuple):
    """basic.cancel"""

    consumer_tag: str
    nowait: bool


@method(60, 31, "s")
class BasicCancelOk(NamedTuple):
    """basic.cancel-ok"""

    consumer_tag: str


@method(60, 40, "Hssbb", content=True)
class BasicPublish(NamedTuple):
    """basic.publish"""

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool


@method(60, 50, "hsss", content=True)
class BasicReturn(NamedTuple):
    """basic.return"""

    code: int
    text: str
    exchange: str
    routing_key: str


@method(60, 60, "sqbss", content=True)
class BasicDeliver(NamedTuple):
    """basic.deliver"""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


@method(60, 70, "Hsb")
class BasicGet(NamedTuple):
    """basic.get"""

    queue: str
    no_ack: bool


@method(60, 71, "qbssl", content=True)
class BasicGetOk(NamedTuple):
    """basic.get-ok"""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


@method(60, 72, "Z")
class BasicGetEmpty(NamedTuple):
    """basic.get-empty"""


@method(60, 80, "qb")
class BasicAck(NamedTuple):
    """basic.ack"""

    delivery_tag: int
    multiple: bool


@method(60, 90, "qb")
class BasicReject(NamedTuple):
    """basic.reject"""

    delivery_tag: int
    requeue: bool


@method(60, 100, "b")
class BasicRecoverAsync(NamedTuple):
    """basic.recover-async"""

    requeue: bool


@method(60, 110, "b")
class BasicRecover(NamedTuple):
    """basic.recover"""

    requeue: bool


@method(60, 111)
class BasicRecoverOk(NamedTuple):
    """basic.recover-ok"""


@method(60, 120, "qbb")
class BasicNack(NamedTuple):
    """basic.nack"""

    delivery_tag: int
    multiple: bool
    requeue: bool


@method(85, 10, "b")
class ConfirmSelect(NamedTuple):
    """confirm.select"""

    nowait: bool


@method(85, 11)
class ConfirmSelectOk(NamedTuple):
    """confirm.select-ok"""


@method(90, 10)
class TxSelect(NamedTuple):
    """tx.select"""


@method(90, 11)
class TxSelectOk(NamedTuple):
    """tx.select-ok"""


@method(90, 20)
class TxCommit(NamedTuple):
    """tx.commit"""


@method(90, 21)
class TxCommitOk(NamedTuple):
    """tx.commit-ok"""


@method(90, 30)
class TxRollback(NamedTuple):
    """tx.rollback"""


@method(90, 31)
class TxRollbackOk(NamedTuple):
    """tx.rollback-ok"""
