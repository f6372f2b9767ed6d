"""One virtual host: exchanges, queues and bindings, and where a message goes.

Nobody's permissions are looked at here; sessions do that before they call. Every change of what a route may depend on
moves the epoch of the broker (`Topology.changed`), so that remembered routes are found out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from stratamq.broker.amqp.arguments import (
    QUEUE_ARGUMENTS,
    check_flag,
    check_queue_arguments,
    check_same_arguments,
    queue_type,
    resource,
)
from stratamq.broker.amqp.definition_rows import PUT, TAKE, Change, binding_row, exchange_row, queue_row
from stratamq.broker.amqp.exchanges import EXCHANGE_TYPES, PREDECLARED, Binding, Exchange
from stratamq.broker.amqp.policies import Policies
from stratamq.broker.amqp.queue import Host, Queue
from stratamq.broker.amqp.storage import QueueStorage
from stratamq.protocols.amqp.replies import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
)
from stratamq.protocols.amqp.values import Table


class Topology(Protocol):
    """What a virtual host asks of the broker around it."""

    def changed(self, *, durable: bool, change: Change | None = None) -> None:
        """Something that routes depend on has changed; ``durable`` says whether it must be written down.

        ``change`` says what of it; None where only all definitions together tell.
        """
        ...

    def open_store(self, name: str, *, durable: bool) -> QueueStorage:
        """The store of one queue and priority."""
        ...

    def open_stream(self, name: str, vhost: str, arguments: Table) -> Queue:
        """A queue that is a topic of the log store. Raises AmqpError 406 where there is no log store."""
        ...


def level_names(vhost: str, queue: str, levels: int) -> list[str]:
    """Names of a queue's stores, one per priority, lowest first."""
    return [f"{vhost}\n{queue}\n{level}" for level in range(levels)]


class VirtualHost:
    """Exchanges, queues and bindings under one name."""

    def __init__(self, name: str, host: Host, topology: Topology) -> None:
        self.name = name
        self.policies = Policies()
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._host = host
        self._topology = topology
        self._bindings_to: dict[tuple[str, str], dict[Binding, None]] = {}
        """By kind and name of the destination."""
        for exchange, kind, internal in PREDECLARED:
            self.exchanges[exchange] = Exchange(exchange, kind, internal=internal)

    # --- finding ---

    def exchange(self, name: str) -> Exchange:
        """The exchange. Raises AmqpError 404."""
        found = self.exchanges.get(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {resource('exchange', name, self.name)}")
        return found

    def queue(self, name: str, user: object) -> Queue:
        """The queue, for a connection that may use it. Raises AmqpError 404 or 405."""
        found = self.queues.get(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {resource('queue', name, self.name)}")
        if found.owner is not None and found.owner is not user:
            raise self._locked(name)
        return found

    def _locked(self, name: str) -> AmqpError:
        return AmqpError(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {resource('queue', name, self.name)}. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original "
            "declaration.",
        )

    # --- exchanges ---

    def declare_exchange(
        self, name: str, kind: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: Table
    ) -> Exchange:
        """The exchange of these properties, made when it is missing. Raises AmqpError 403 or 406."""
        if kind not in EXCHANGE_TYPES:
            raise AmqpError(PRECONDITION_FAILED, f"unknown exchange type '{kind}'")
        found = self.exchanges.get(name)
        if found is not None:
            what = resource("exchange", name, self.name)
            if found.kind != kind:
                text = f"inequivalent arg 'type' for {what}: received '{kind}' but current is '{found.kind}'"
                raise AmqpError(PRECONDITION_FAILED, text)
            check_flag("durable", what, received=durable, current=found.durable)
            check_flag("auto_delete", what, received=auto_delete, current=found.auto_delete)
            check_flag("internal", what, received=internal, current=found.internal)
            check_same_arguments(what, arguments, found.arguments, ("alternate-exchange",))
            return found
        if name.startswith("amq."):
            raise AmqpError(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        made = Exchange(
            name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=dict(arguments)
        )
        made.apply_policy(self.policies.definition_for("exchanges", name))
        self.exchanges[name] = made
        self._topology.changed(durable=durable, change=(PUT, "exchanges", exchange_row(made, self.name)))
        return made

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with the bindings that touch it; nothing happens when it is not there.

        Raises AmqpError 406 when it is a source and ``if_unused`` is asked for.
        """
        found = self.exchanges.get(name)
        if found is None:
            return
        if if_unused and found.bindings:
            raise AmqpError(PRECONDITION_FAILED, f"{resource('exchange', name, self.name)} in use")
        del self.exchanges[name]
        for binding in list(found.bindings):
            self._bindings_to.get((binding.kind, binding.destination), {}).pop(binding, None)
        self._drop_bindings_to("exchange", name)
        self._topology.changed(durable=found.durable, change=(TAKE, "exchanges", exchange_row(found, self.name)))

    # --- bindings ---

    def bind(self, binding: Binding) -> None:
        """Add a binding; both ends must be there. Raises AmqpError 404 or 406."""
        source = self.exchange(binding.source)
        if source.add(binding):
            self._bindings_to.setdefault((binding.kind, binding.destination), {})[binding] = None
            change = (PUT, "bindings", binding_row(binding, self.name))
            self._topology.changed(durable=self.is_durable(binding), change=change)

    def is_durable(self, binding: Binding) -> bool:
        """Whether both ends of a binding survive a restart, and so the binding does."""
        source = self.exchanges.get(binding.source)
        if source is None or not source.durable:
            return False
        if binding.kind == "queue":
            queue = self.queues.get(binding.destination)
            return queue is not None and queue.durable
        exchange = self.exchanges.get(binding.destination)
        return exchange is not None and exchange.durable

    def unbind(self, binding: Binding) -> None:
        """Take a binding away; one that is not there is no error. May delete an auto-delete exchange."""
        source = self.exchanges.get(binding.source)
        if source is None or not source.remove(binding):
            return
        group = self._bindings_to.get((binding.kind, binding.destination), {})
        group.pop(binding, None)
        if not group:
            self._bindings_to.pop((binding.kind, binding.destination), None)
        self._topology.changed(durable=source.durable, change=(TAKE, "bindings", binding_row(binding, self.name)))
        if source.auto_delete and not source.bindings:
            self.delete_exchange(source.name)

    def _drop_bindings_to(self, kind: str, name: str) -> None:
        for binding in list(self._bindings_to.pop((kind, name), ())):
            source = self.exchanges.get(binding.source)
            if source is not None and source.remove(binding) and source.auto_delete and not source.bindings:
                self.delete_exchange(source.name)

    def bindings(self) -> Iterable[Binding]:
        """All bindings but the implicit ones of the default exchange."""
        for exchange in self.exchanges.values():
            yield from exchange.bindings

    # --- queues ---

    def check_redeclared(
        self, queue: Queue, *, durable: bool, auto_delete: bool, owner: object | None, arguments: Table
    ) -> None:
        """Refuse a declaration that does not fit the queue that is there. Raises AmqpError 405 or 406."""
        if queue.owner is not owner:
            raise self._locked(queue.name)
        what = resource("queue", queue.name, self.name)
        check_flag("durable", what, received=durable, current=queue.durable)
        check_flag("auto_delete", what, received=auto_delete, current=queue.auto_delete)
        check_same_arguments(what, arguments, queue.arguments, tuple(QUEUE_ARGUMENTS))

    def make_queue(
        self, name: str, *, durable: bool, auto_delete: bool, owner: object | None, arguments: Table
    ) -> Queue:
        """A new queue. Raises AmqpError 406 for arguments that cannot be."""
        check_queue_arguments(
            name, self.name, arguments, durable=durable, exclusive=owner is not None, auto_delete=auto_delete
        )
        return self.restore_queue(
            name, durable=durable and owner is None, auto_delete=auto_delete, owner=owner, arguments=arguments
        )

    def restore_queue(
        self, name: str, *, durable: bool, auto_delete: bool, owner: object | None, arguments: Table
    ) -> Queue:
        """A queue whose arguments have been checked, with what its stores hold."""
        if queue_type(arguments) == "stream":
            stream = self._topology.open_stream(name, self.name, dict(arguments))
            self.queues[name] = stream
            self._topology.changed(durable=True, change=(PUT, "queues", queue_row(stream)))
            return stream
        levels = int(arguments.get("x-max-priority", 0)) + 1
        stores = [self._topology.open_store(store, durable=durable) for store in level_names(self.name, name, levels)]
        queue = Queue(
            self._host,
            name,
            self.name,
            stores,
            durable=durable,
            auto_delete=auto_delete,
            owner=owner,
            arguments=dict(arguments),
        )
        queue.apply_policy(self.policies.definition_for("queues", name, queue_type=queue.type))
        self.queues[name] = queue
        self._topology.changed(durable=durable, change=(PUT, "queues", queue_row(queue)))
        return queue

    def check_deletable(self, queue: Queue, *, if_unused: bool, if_empty: bool) -> None:
        """Refuse what the client wants to keep. Raises AmqpError 406."""
        what = resource("queue", queue.name, self.name)
        if if_unused and len(queue.consumers):
            raise AmqpError(PRECONDITION_FAILED, f"{what} in use")
        if if_empty and queue.ready:
            raise AmqpError(PRECONDITION_FAILED, f"{what} not empty")

    def delete_queue(self, queue: Queue) -> int:
        """Delete a queue with its messages, consumers and bindings; how many messages were ready."""
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        count, queue.ready, queue.is_deleted = queue.ready, 0, True
        self._drop_bindings_to("queue", queue.name)
        queue.close()
        for consumer in queue.consumers:
            queue.consumers.remove(consumer)
            consumer.channel.cancelled_by_server(consumer)
        self._topology.changed(durable=queue.durable, change=(TAKE, "queues", queue_row(queue)))
        return count

    # --- routing ---

    def route(self, exchange: Exchange, keys: Iterable[str], headers: Callable[[], Table]) -> list[Queue]:
        """The queues that a message goes to, each once, alternate exchanges included.

        Args:
            exchange: Where it was published.
            keys: Its routing key and further ones (CC, BCC).
            headers: Gives the headers when an exchange on the way looks at them.
        """
        found: dict[str, Queue] = {}
        seen = {exchange.name}
        waiting = [exchange]
        keys = tuple(keys)
        while waiting:
            current = waiting.pop()
            reached = False
            for key in keys:
                for kind, name in self._destinations(current, key, headers):
                    reached = True
                    if kind == "queue":
                        queue = self.queues.get(name)
                        if queue is not None:
                            found[name] = queue
                    elif name not in seen and name in self.exchanges:
                        seen.add(name)
                        waiting.append(self.exchanges[name])
            alternate = self.exchanges.get(current.alternate) if not reached and current.alternate else None
            if alternate is not None and alternate.name not in seen:
                seen.add(alternate.name)
                waiting.append(alternate)
        return list(found.values())

    def _destinations(self, exchange: Exchange, key: str, headers: Callable[[], Table]) -> Iterable[tuple[str, str]]:
        if not exchange.name:
            return (("queue", key),) if key in self.queues else ()
        return exchange.destinations(key, headers() if exchange.needs_headers else {})

    def depends_on_headers(self) -> bool:
        """Whether any exchange with bindings looks at headers; then routes by key may be wrong."""
        return any(exchange.needs_headers and exchange.bindings for exchange in self.exchanges.values())

    def apply_policies(self) -> None:
        """Let changed policies take effect on everything that is there."""
        for exchange in self.exchanges.values():
            exchange.apply_policy(self.policies.definition_for("exchanges", exchange.name))
        for queue in self.queues.values():
            queue.apply_policy(self.policies.definition_for("queues", queue.name, queue_type=queue.type))
            if queue.is_limited and queue.overflow == "drop-head":
                queue.enforce_length()
        self._topology.changed(durable=True)
